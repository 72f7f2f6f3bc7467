"""What makes a memory store a node of a quorum: its roll, and the waits that were noted on it. See `port.Member`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from ...core.quorum import Marker
from ...core.waits import NOTED, Wait


class NodeMemory:
    """The part of a memory that only a quorum uses."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.roll: Marker | None = None
        self.life = self.enrolled_in = 0  # which life of this memory it is, and the one that the roll is good for
        self.enrolments = 0
        self.renewed = ""  # the name that was extended last since the roll was closed
        self.loss = ""  # which loss of memory this is, if a client has asked
        self.losses = 0
        self.waits: dict[str, tuple[float, float | None]] = {}  # of nodes that cast no vote: by loss, since when, until when

    @property
    def good(self) -> bool:
        """Whether it has a roll that is good for this life of its memory."""
        return self.roll is not None and self.enrolled_in == self.life

    @property
    def seed(self) -> int:
        """What every fence must be above: see `Marker.seed`."""
        return 0 if self.roll is None else self.roll.seed

    def votes(self, nodes: Sequence[str]) -> bool:
        """Whether it has a good roll for this list of nodes."""
        return self.good and self.roll is not None and not self.roll.closed and self.roll.nodes == tuple(nodes)

    def note_fence(self, fence: int) -> None:
        """The roll knows the highest fence."""
        if self.roll is not None:
            self.roll = self.roll._replace(high=max(self.roll.high, fence))

    def note_renewal(self, name: str) -> None:
        """A closed roll knows the name that was extended last."""
        if self.roll is not None and self.roll.closed:
            self.renewed = name

    def note_window(self, window: float) -> None:
        """A good roll knows how long requests may take."""
        if self.good and self.roll is not None and window > self.roll.window:
            self.roll = self.roll._replace(window=window)

    def note_waits(self, waits: Sequence[Wait]) -> tuple[Wait, ...]:
        """Note these waits as far as they are news. All that are noted."""
        now, noted = self.now(), self.waits
        for loss, age, left in waits:
            since, until = noted.get(loss, (now - age, None))
            noted[loss] = since, until if left is None else min(now + left, inf if until is None else until)
        while len(noted) > NOTED:
            del noted[next(iter(noted))]
        return tuple(
            Wait(loss, max(now - since, 0.0), None if until is None else max(until - now, 0.0))
            for loss, (since, until) in noted.items()
        )

    def name_loss(self) -> None:
        """A memory without a good roll has a `loss` from now on."""
        if not self.good and not self.loss:
            self.losses += 1
            self.loss = str(self.losses)

    def stamp(self, address: str) -> str:
        """See `NodeStatus.loss`. Each roll has another one, and another again once a client has voted under it."""
        if not self.good or self.roll is None:
            return f"{address}/{self.loss}/{self.life}" if self.loss else ""
        return f"{address}/{self.life}.{self.enrolments}/{self.roll.unused}"

    def enroll(self, roll: Marker) -> None:
        """Take this roll."""
        before = self.roll or roll
        if roll.closed and not (self.roll is not None and self.roll.closed):
            self.renewed = ""
        self.enrolments += 1
        self.roll = roll._replace(high=max(roll.high, before.high), window=max(roll.window, before.window))
        self.loss, self.enrolled_in = "", self.life
