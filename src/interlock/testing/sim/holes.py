"""Planted bugs of the quorum that chance takes too long to find: the tests play what shows each of them, step by step.

All of them are mistakes that interlock itself has made, found by the formal model, by reading, or by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ...backends.memory import MemoryBackend
from ...backends.port import NodeStatus
from ...backends.quorum import markers, opening
from ...backends.quorum.markers import Markers
from ...backends.quorum.readmission import Readmission
from ...backends.unanswered import Unanswered
from ...core.lease import Hold
from ...core.quorum import Marker, Quarantine
from ...core.waits import Wait
from ...flow.context import Context
from ...flow.waiting import wait
from .node import Node

Patch = tuple[object, str, Any]


def _hasty_readmission() -> list[Patch]:
    def measure(self: Readmission, quarantine: Quarantine, *more: Any) -> Quarantine:
        return quarantine._replace(until=self._runtime.now())

    return [(Readmission, "_measure", measure)]


def _unsettled() -> list[Patch]:
    real = Readmission._measure

    def measure(self: Readmission, quarantine: Quarantine, *more: Any) -> Quarantine | None:
        measured = real(self, quarantine._replace(since=-inf), *more)
        return measured and measured._replace(since=quarantine.since)

    return [(Readmission, "_measure", measure)]


def _no_window() -> list[Patch]:
    return [(Markers, "in_time", lambda self, sent_at, window: True)]


def _undo_of_the_living() -> list[Patch]:
    return [(Unanswered, "lives", lambda self, token, record: False)]


def _silence_is_loss() -> list[Patch]:
    return [(markers, "missing_at_birth", lambda nodes: nodes), (opening, "missing_at_birth", lambda nodes: nodes)]


def _old_wait() -> list[Patch]:
    class Nameless(MemoryBackend):
        async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> NodeStatus:
            standing = await super().roll(within, mark, window, waits)
            return standing._replace(loss="1" if standing.loss else "")

        async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
            return await super().enroll(roll, self._memory.stamp(self.address), within)

    return [(Node, "backend_type", Nameless)]


def _token_used_again() -> list[Patch]:
    ask = wait._ask

    async def again(context: Context, me: Any, waits: bool, answer: Any) -> tuple[Hold | None, bool]:
        before = me.token
        hold, told = await ask(context, me, waits, answer)
        if hold is None and not me.in_line:
            me.token = before
        return hold, told

    return [(wait, "_ask", again)]


def _overtaken_on_its_way() -> list[Patch]:
    return [(Unanswered, "on_way", lambda self, tokens, connection, now: None)]


BY_HAND: dict[str, Callable[[], list[Patch]]] = {
    "hasty-readmission": _hasty_readmission,  # a node without its memory is re-seeded, and does not wait
    "unsettled": _unsettled,  # the others are asked what they hold while votes are on their way to them
    "no-window": _no_window,  # an answer counts however late it comes
    "undo-of-the-living": _undo_of_the_living,  # a vote without an answer is undone while its lease lives
    "silence-is-loss": _silence_is_loss,  # nodes that are silent are taken for forgetful
    "overtaken-on-its-way": _overtaken_on_its_way,  # what follows a request that another task waits for takes a new connection
    "old-wait": _old_wait,  # a node that forgets again does not wait again
    "token-used-again": _token_used_again,  # a token is asked with again while its last claim is taken back
}
