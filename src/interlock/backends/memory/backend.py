"""The port over a `Memory`. It excludes threads and tasks of one process from each other, nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import urlsplit

from ...core.claim import (
    SHOWN,
    Announced,
    Ballot,
    Claim,
    Entry,
    Gone,
    Granted,
    Handed,
    Refused,
    Renewal,
    Unmarked,
    Waiting,
    free,
)
from ...core.quorum import Marker
from ...core.token import owner_of
from ...core.waits import Wait
from ...errors import Unavailable, UsageError
from ...runtime.base import Runtime
from ..port import Backend, Capabilities, NodeStatus
from .inbox import Inbox
from .state import Memory


class MemoryBackend:
    """See `port.LineMember`. Every verb is a rule of `Memory`, inside its guard."""

    capabilities = Capabilities(processes=False, hosts=False, survives=False, foreign=False, lines=True, modes=True)

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

    def _ballot(self, proposal: int = 0) -> Ballot | None:
        return Ballot(self._nodes, proposal) if self._nodes else None

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`."""
        memory = self._memory
        with memory.guard:
            return cast("Granted | Refused", memory.claim(claim))  # Unmarked is for ballots

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """See `port.Member.vote`."""
        with self._memory.guard:
            return self._memory.claim(claim, Ballot(self._nodes, proposal))

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        with self._memory.guard:
            return self._memory.extend(Renewal(name, token, ttl, fence))

    async def renew(self, leases: Sequence[Renewal], within: float) -> list[Granted | Gone]:
        """See `port.Backend.renew`."""
        with self._memory.guard:
            return [self._memory.extend(lease) for lease in leases]

    async def release(self, name: str, token: str, within: float, proposal: int = 0, line: str = "") -> bool:
        """See `port.Member.release`."""
        memory = self._memory
        with memory.guard:
            return memory.release(name, token, self._ballot(proposal) if self._nodes else None, line)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. Nothing is ever on its way here, but the token may stand in line."""
        with self._memory.guard:
            return self._memory.undo(name, token, self._ballot())

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. Nothing is ever on its way here."""
        return True

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        memory = self._memory
        with memory.guard:
            held, line, now = memory.holder(name), memory.lines.get(name, []), memory.now()
            queue = tuple(Waiting(owner_of(stand.token), max(now - stand.arrival / 1e6, 0.0)) for stand in line[:SHOWN])
            entry = free(name)
            if held is not None:
                entry = Entry(name, True, owner_of(memory.shown_holder(name)), held.until - now, held.fence)
            return entry._replace(waiting=queue, waiters=len(line))

    async def close(self) -> None:
        """See `port.Backend.close`. The memory itself stays as long as the process."""
        memory, self._open = self._open, None
        if memory is not None:
            with memory.guard:
                inbox = memory.inboxes.pop(self._inbox, None)
                if inbox is not None:
                    inbox.close()

    # --- the line -------------------------------------------------------------------------------------------------------

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`."""
        with self._memory.guard:
            return self._memory.hand_over(name, token, heir, before, self._ballot(proposal))

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """See `port.LineMember.retreat`."""
        with self._memory.guard:
            return self._memory.requeue(claim)

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

    # --- a node of a quorum ---------------------------------------------------------------------------------------------

    def elect(self, nodes: Sequence[str], is_live: Callable[[str], bool] = lambda token: False) -> None:
        """See `port.Member.elect`. Nothing is undone here unless it is asked for."""
        self._nodes = tuple(nodes)

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> NodeStatus:
        """See `port.Member.roll`."""
        memory = self._memory
        with memory.guard:
            if mark:
                memory.name_loss()
            memory.note_window(window)
            now = memory.now()
            held = max((held.until - now for held in memory.held.values()), default=0.0)
            closed = memory.roll is not None and memory.roll.closed
            if not closed:  # else nobody is served
                held = max([held, *(stand.place.ttl for line in memory.lines.values() for stand in line)])
            renewed, noted = memory.renewed if closed else "", memory.note_waits(waits)
            loss = memory.stamp(self.address)
            return NodeStatus(memory.roll, memory.good, max(held, 0.0), loss, self.address, renewed=renewed, waits=noted)

    async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
        """See `port.Member.enroll`."""
        memory = self._memory
        with memory.guard:
            if not loss or memory.stamp(self.address) != loss:
                return False
            memory.enroll(roll)
            memory.last_fence = max(memory.last_fence, roll.seed)
            return True

    def lag(self) -> float:
        """See `port.Member.lag`. It answers at once or not at all."""
        return 0.0


_memories: dict[str, Memory] = {}


def open_memory(url: str, runtime: Runtime) -> Backend:
    """The memory that the URL names: `memory://` is one, `memory://other` another. Raises UsageError on a path or query."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError("a memory store is 'memory://' or 'memory://NAME', with nothing behind it")
    memory = _memories.setdefault(parts.netloc, Memory(runtime.now, runtime.wall_ms))
    return MemoryBackend(f"memory://{parts.netloc}", memory, runtime)
