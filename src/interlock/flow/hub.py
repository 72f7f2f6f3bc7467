"""The hub: listens to the inbox of a client on behalf of all its waiters. A thread or a task, while anybody waits."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from ..backends.port import Backend, Line
from ..core.claim import Announced
from ..core.lease import Hold, deadline
from ..errors import InterlockError, Unavailable, UsageError
from ..runtime import forks
from ..runtime.base import Runtime, Spawned
from .gate import Gate, Waiter

LINGER = 5.0  # seconds for which an inbox that nobody waits for is still listened to
TICK = 0.5  # how often it looks whether anybody still waits
REOPEN = 0.1  # pause before an inbox that cannot be opened is tried again


class Hub:
    """The listener of one client."""

    def __init__(self, backend: Backend, runtime: Runtime, request_timeout: float, drift: float, gate: Gate) -> None:
        self.offset: float | None = None  # the store's clock minus ours, as far as we know: only orders the line
        self._line = cast(Line, backend)
        self._runtime = runtime
        self._request_timeout = request_timeout
        self._drift = drift
        self._gate = gate
        self._start_afresh()
        forks.watch(self)

    def _start_afresh(self) -> None:
        self._inbox = ""
        self._spawned: Spawned | None = None
        self._closed = False

    def disown(self) -> None:
        """See `forks`: the parent listens to its inbox, not we."""
        self._start_afresh()

    async def listen(self) -> str:
        """The inbox, open and listened to. Raises Unavailable."""
        inbox = self._inbox or await self._line.open_inbox(self._request_timeout)
        with self._gate.guard:
            self._inbox = inbox
            if self._spawned is None and not self._closed:
                self._spawned = self._runtime.spawn(self._run, self._halt, "interlock-hub")
        return inbox

    def _halt(self) -> None:
        self._closed = True

    async def close(self) -> None:
        """Stop listening."""
        with self._gate.guard:
            self._closed = True
            spawned, self._spawned = self._spawned, None
        if spawned is not None:
            await spawned.end()

    async def _run(self) -> None:
        try:
            await self._listen()
        except BaseException:  # somebody cancels every task of the loop: the next who waits starts it again
            self._spawned = None
            self._gate.alarm()
            raise

    async def _listen(self) -> None:
        now = self._runtime.now
        idle_since = now()
        while not self._closed:
            try:
                for announced in await self._line.hear(now() + TICK):
                    await self._told(announced)
            except Unavailable:
                await self._reopen()
            except UsageError:  # the client was closed
                return
            if self._gate.in_line:
                idle_since = now()
            elif now() - idle_since > LINGER and self._may_end():
                return

    def _may_end(self) -> bool:
        with self._gate.guard:
            if self._gate.in_line:
                return False
            self._spawned = None
            return True

    async def _reopen(self) -> None:
        """The inbox broke: what was announced may be lost. Open it again, and have everybody ask."""
        self._inbox = ""
        try:
            self._inbox = await self._line.open_inbox(self._request_timeout)
        except Unavailable:
            self._gate.alarm()  # their own questions will tell them what is the matter
            await self._runtime.sleep(REOPEN)
        else:
            self._gate.alarm()

    async def _told(self, announced: Announced) -> None:
        waiter = self._gate.announced(announced.token)
        if waiter is not None:
            hold = self._believed(waiter, announced)
            if hold is None:  # too old to be believed: the waiter asks
                waiter.until = 0.0
                waiter.ring()
                return
            if self._gate.serve(waiter, hold):
                return
        with suppress(InterlockError):  # for somebody who has left: pass it on
            await self._line.release(announced.name, announced.token, self._request_timeout)

    def _believed(self, waiter: Waiter, announced: Announced) -> Hold | None:
        """The hold that an announcement gives, if it can still be believed.

        It was granted, on our clock, at least so long after our last question as the store's clock has advanced since its
        answer. And before now, whatever that clock did.
        """
        now = self._runtime.now()
        since = (announced.at - waiter.at) * (1 - self._drift)
        granted_at = min(waiter.sent_at + since, now)
        ttl = announced.ttl - waiter.policy.delay
        until = deadline(granted_at, ttl, self._drift)
        if since < 0 or now >= until:
            return None
        hold = Hold(announced.name, announced.token, ttl, announced.fence, until, self._drift, granted_at, waiter.policy)
        hold.wanted = waiter.ttl
        return hold
