"""The store in this process's memory, and the executable specification of every other store.

What `memory` answers is right by definition: a stateful test drives each store and this one with the same operations and
compares the answers. It excludes threads and tasks of one process from each other, nothing more.

Rules of the file: one dictionary, one counter, one lock around each verb. Clever belongs elsewhere.

A little long because the specification of all verbs, of the line too, is best read in one piece.
"""

from __future__ import annotations

import os
from _thread import allocate_lock  # threading itself is forbidden to backends: it invites waiting
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple
from urllib.parse import urlsplit

from ..core import fence as fences
from ..core.claim import SHOWN, Announced, Claim, Entry, Gone, Granted, Handed, Place, Refused, Renewal, Unmarked, Waiting, free
from ..core.quorum import Roll
from ..core.token import alias_of, owner_of
from ..core.waits import NOTED, Wait
from ..errors import Unavailable, UsageError
from ..runtime import forks
from ..runtime.base import Runtime
from .port import Backend, Capabilities, Standing


class Held(NamedTuple):
    """Who holds a name and until when."""

    token: str
    fence: int
    until: float


class Inbox:
    """What was announced, and a pipe to wake whoever listens."""

    def __init__(self) -> None:
        self.announced: list[Announced] = []
        self.heard = False  # somebody listens at this moment
        self.closed = False
        self.ear, self.hammer = os.pipe()
        os.set_blocking(self.ear, False)
        os.set_blocking(self.hammer, False)

    def put(self, announced: Announced) -> None:
        """Called inside the guard."""
        self.announced.append(announced)
        if len(self.announced) == 1:
            os.write(self.hammer, b"!")

    def take(self) -> list[Announced]:
        """Called inside the guard."""
        taken, self.announced = self.announced, []
        with suppress(BlockingIOError):
            os.read(self.ear, 1)
        return taken

    def close(self) -> None:
        """Nobody listens any more; whoever does at this moment is woken, and closes it. Called inside the guard, as below."""
        self.closed = True
        if self.heard:
            with suppress(BlockingIOError):
                os.write(self.hammer, b"!")
        else:
            os.close(self.ear)
            os.close(self.hammer)

    def listen(self, listens: bool) -> None:
        """Somebody does from now on, or does not any more."""
        self.heard = listens
        if self.closed and not listens:
            self.close()


class Memory:
    """The names and who holds them. One per `memory://name` and process, shared by all its clients."""

    def __init__(self, now: Callable[[], float], wall_ms: Callable[[], int] = lambda: 0) -> None:
        self.now = now
        self.wall_ms = wall_ms
        self.last_fence = fences.floor(wall_ms())
        self.roll: Roll | None = None
        self.life = self.enrolled_in = 0  # which life of this memory it is, and the one that the roll is good for
        self.enrolments = 0
        self.renewed = ""  # the name that was extended last since the roll was closed
        self.loss = ""  # which loss of memory this is, if somebody has asked
        self.losses = 0
        self.waits: dict[str, tuple[float, float | None]] = {}  # of nodes that cast no vote: by loss, since when, until when
        self.held: dict[str, Held] = {}
        self.lines: dict[str, list[tuple[int, str, Place]]] = {}  # (arrival, token, place), in order
        self.inboxes: dict[str, Inbox] = {}
        self.guard = allocate_lock()
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. Those who wait do so in the parent; a thread that was inside does not exist in the child."""
        self.lines, self.inboxes, self.guard = {}, {}, allocate_lock()

    def holder(self, name: str) -> Held | None:
        """Who holds the name at this moment; forgets it once its time is over."""
        held = self.held.get(name)
        if held is not None and held.until <= self.now():
            del self.held[name]
            return None
        return held


class MemoryBackend:
    """The port over a `Memory`."""

    capabilities = Capabilities(processes=False, hosts=False, survives=False, foreign=False, lines=True)

    def __init__(self, address: str, memory: Memory, runtime: Runtime) -> None:
        self.address = address
        self._open: Memory | None = memory
        self._runtime = runtime
        self._inbox = ""
        self._nodes: tuple[str, ...] = ()  # of its quorum, once it is elected

    @property
    def _memory(self) -> Memory:
        if self._open is None:
            raise UsageError(f"the client for {self.address} is closed; make a new one")
        return self._open

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`."""
        with self._memory.guard:
            return self._claim(claim, 0)

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """See `port.Member.vote`."""
        memory = self._memory
        with memory.guard:
            if not self._enrolled():
                return Unmarked()
            answer = self._claim(claim, proposal)
            self._note()
            return answer

    def _enrolled(self) -> bool:
        """Whether it has a good roll, for our list of nodes."""
        memory = self._memory
        roll = memory.roll
        return roll is not None and not roll.closed and roll.nodes == self._nodes and memory.enrolled_in == memory.life

    def _claim(self, claim: Claim, proposal: int, plausible: bool = False) -> Granted | Refused:
        memory = self._memory
        now, held = memory.now(), memory.holder(claim.name)
        if held is not None and held.token != claim.token:
            self._line_up(claim)
            refused = Refused(held.until - now, owner_of(held.token), at=now, fence=memory.last_fence)
            return refused._replace(holder=alias_of(held.token)) if self._nodes else refused
        self._leave_line(claim.name, claim.token)
        seed = memory.roll.seed if memory.roll is not None else 0
        fence = self._mint(proposal, plausible) if held is None or held.fence <= seed else held.fence
        memory.held[claim.name] = Held(claim.token, fence, now + claim.ttl)
        return Granted(fence, claim.ttl)

    def _mint(self, proposal: int, plausible: bool) -> int:
        """The next fence. A proposal of somebody who holds the lock needs no clock to be plausible."""
        memory = self._memory
        minted = memory.last_fence + 1
        memory.last_fence = max(minted, proposal) if plausible else fences.propose(minted, proposal, memory.wall_ms())
        return memory.last_fence

    def _note(self) -> None:
        memory = self._memory
        if memory.roll is not None:
            memory.roll = memory.roll._replace(high=max(memory.roll.high, memory.last_fence))

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        with self._memory.guard:
            return self._extend(Renewal(name, token, ttl, fence))

    async def renew(self, leases: Sequence[Renewal], within: float) -> list[Granted | Gone]:
        """See `port.Backend.renew`."""
        with self._memory.guard:
            return [self._extend(lease) for lease in leases]

    def _extend(self, lease: Renewal) -> Granted | Gone:
        memory = self._memory
        name, token, ttl, fence = lease
        held = memory.holder(name)
        if held is None or held.token != token:
            return Gone(taken=held is not None)
        if memory.roll is not None and memory.roll.closed:
            memory.renewed = name
        raised = max(held.fence, fence)
        memory.last_fence = max(memory.last_fence, raised)
        memory.held[name] = Held(token, raised, memory.now() + ttl)
        self._note()
        return Granted(raised, ttl)

    async def release(self, name: str, token: str, within: float, proposal: int = 0) -> bool:
        """See `port.Member.release`."""
        memory = self._memory
        with memory.guard:
            held = memory.holder(name)
            if held is None or held.token != token:
                self._leave_line(name, token)
                return False
            del memory.held[name]
            self._serve(name, proposal)
            return True

    # --- the line -------------------------------------------------------------------------------------------------------

    def elect(self, nodes: Sequence[str], is_live: Callable[[str], bool] = lambda token: False) -> None:
        """See `port.Member.elect`. Nothing is undone here unless it is asked for."""
        self._nodes = tuple(nodes)

    @property
    def _forgetful(self) -> bool:
        return bool(self._nodes) and not self._enrolled()

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`."""
        memory = self._memory
        with memory.guard:
            held = memory.holder(name)
            ours = held is not None and held.token == token
            if ours:
                assert held is not None  # noqa: S101 - it is ours
                del memory.held[name]
                self._leave_line(name, heir.token)
                own = token if token == heir.token else ""
                self._serve(name, proposal, before, own)
                if own and name not in memory.held:
                    memory.held[name] = held
            if token != heir.token:  # else it is a claim, and keeps its place
                self._leave_line(name, token)
            if self._forgetful:
                return Unmarked()
            answer = self._claim(heir, proposal, plausible=ours)
            self._note()
            return Handed(ours, answer)

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """See `port.LineMember.retreat`."""
        memory = self._memory
        with memory.guard:
            held = memory.holder(claim.name)
            if held is not None and held.token == claim.token:
                del memory.held[claim.name]
            self._line_up(claim)
            return memory.last_fence

    def _line_up(self, claim: Claim) -> None:
        if claim.place is not None:
            line = self._memory.lines.setdefault(claim.name, [])
            if all(token != claim.token for _, token, _ in line):
                insort(line, (claim.place.arrival, claim.token, claim.place))

    def _leave_line(self, name: str, token: str) -> bool:
        lines = self._memory.lines
        before = lines.pop(name, [])
        if after := [entry for entry in before if entry[1] != token]:
            lines[name] = after
        return len(after) < len(before)

    def _serve(self, name: str, proposal: int, before: int | None = None, own: str = "") -> None:
        """Give a free name to the first in line who can be told; only to those who came earlier than `before` and `own`."""
        memory = self._memory
        while not self._forgetful and (line := memory.lines.get(name)):
            arrival, token, place = line[0]
            if before is not None and (arrival, token) >= (before, own):
                return
            self._leave_line(name, token)
            inbox = memory.inboxes.get(place.inbox)
            if inbox is not None:
                now = memory.now()
                fence = self._mint(proposal, plausible=True)
                memory.held[name] = Held(token, fence, now + place.ttl)
                self._note()
                inbox.put(Announced(name, token, fence, place.ttl, now))
                return

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`."""
        memory = self._memory
        with memory.guard:
            if not self._inbox:
                self._inbox = f"{id(self):x}"
                memory.inboxes[self._inbox] = Inbox()
            return self._inbox

    async def hear(self, until: float) -> list[Announced]:
        """See `port.Line.hear`."""
        memory = self._memory
        with memory.guard:
            inbox = memory.inboxes.get(self._inbox)
            if inbox is None:
                raise Unavailable("the inbox is closed", backend=self.address, cause="closed")
            inbox.listen(True)
        try:
            await self._runtime.readable(inbox.ear, until)
            with memory.guard:
                return [] if inbox.closed else inbox.take()
        finally:
            with memory.guard:
                inbox.listen(False)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. Nothing is ever on its way here, but the token may stand in line."""
        with self._memory.guard:
            return self._leave_line(name, token)

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. Nothing is ever on its way here."""
        return True

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        memory = self._memory
        with memory.guard:
            held, line, now = memory.holder(name), memory.lines.get(name, []), memory.now()
            queue = tuple(Waiting(owner_of(token), max(now - arrival / 1e6, 0.0)) for arrival, token, _ in line[:SHOWN])
            entry = free(name)
            if held is not None:
                entry = Entry(name, True, owner_of(held.token), held.until - now, held.fence)
            return entry._replace(waiting=queue, waiters=len(line))

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> Standing:
        """See `port.Member.roll`."""
        memory = self._memory
        with memory.guard:
            good = memory.roll is not None and memory.enrolled_in == memory.life
            if not good and mark and not memory.loss:
                memory.losses += 1
                memory.loss = str(memory.losses)
            if good and memory.roll is not None and window > memory.roll.window:
                memory.roll = memory.roll._replace(window=window)
            now = memory.now()
            held = max((held.until - now for held in memory.held.values()), default=0.0)
            closed = memory.roll is not None and memory.roll.closed
            if not closed:  # else nobody is served
                held = max([held, *(place.ttl for line in memory.lines.values() for _, _, place in line)])
            renewed = memory.renewed if closed else ""
            noted = self._noted(waits)
            return Standing(memory.roll, good, max(held, 0.0), self._stamp(), self.address, renewed=renewed, waits=noted)

    def _noted(self, waits: Sequence[Wait]) -> tuple[Wait, ...]:
        """Note these waits as far as they are news. All that are noted."""
        memory = self._memory
        now, noted = memory.now(), memory.waits
        for loss, age, left in waits:
            since, until = noted.get(loss, (now - age, None))
            noted[loss] = since, until if left is None else min(now + left, inf if until is None else until)
        while len(noted) > NOTED:
            del noted[next(iter(noted))]
        return tuple(
            Wait(loss, max(now - since, 0.0), None if until is None else max(until - now, 0.0))
            for loss, (since, until) in noted.items()
        )

    def _stamp(self) -> str:
        """See `Standing.loss`. Each roll has another one, and another again once somebody has voted under it."""
        memory = self._memory
        roll = memory.roll
        if roll is None or memory.enrolled_in != memory.life:
            return f"{self.address}/{memory.loss}/{memory.life}" if memory.loss else ""
        return f"{self.address}/{memory.life}.{memory.enrolments}/{roll.unused}"

    async def enroll(self, roll: Roll, loss: str, within: float) -> bool:
        """See `port.Member.enroll`."""
        memory = self._memory
        with memory.guard:
            if not loss or self._stamp() != loss:
                return False
            before = memory.roll or roll
            if roll.closed and not (memory.roll is not None and memory.roll.closed):
                memory.renewed = ""
            memory.enrolments += 1
            roll = roll._replace(high=max(roll.high, before.high), window=max(roll.window, before.window))
            memory.roll, memory.loss, memory.enrolled_in = roll, "", memory.life
            memory.last_fence = max(memory.last_fence, roll.seed)
            return True

    def lag(self) -> float:
        """See `port.Member.lag`. It answers at once or not at all."""
        return 0.0

    async def close(self) -> None:
        """See `port.Backend.close`. The memory itself stays as long as the process."""
        memory, self._open = self._open, None
        if memory is not None:
            with memory.guard:
                inbox = memory.inboxes.pop(self._inbox, None)
                if inbox is not None:
                    inbox.close()


_memories: dict[str, Memory] = {}


def open_memory(url: str, runtime: Runtime) -> Backend:
    """The memory that the URL names: `memory://` is one, `memory://other` another. Raises UsageError on a path or query."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError("a memory store is 'memory://' or 'memory://NAME', with nothing behind it")
    memory = _memories.setdefault(parts.netloc, Memory(runtime.now, runtime.wall_ms))
    return MemoryBackend(f"memory://{parts.netloc}", memory, runtime)
