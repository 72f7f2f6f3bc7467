"""The queue of one name: the lease of this client that holds it, and the waiters of this client, in the order of arrival.

Rules of the file: bookkeeping only. `LocalQueue` calls it, under its guard.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ...core.lease import Hold
from ...errors import Unavailable
from .waiter import LEFT, OFFERED, QUEUED, Waiter

STREAK = 16  # hand-overs in a row within one process, before one that goes to the longest waiter, here or elsewhere
LOOK = 10.0  # seconds for which a waiter that is not first sleeps at most: it may become first without being told
EMPTY: list[Waiter] = []  # the waiters of most names: not one list each. It is never added to


class NameQueue:
    """One name: its holder in this client, and its waiters."""

    __slots__ = ("holder", "streak", "waiters", "watched")

    def __init__(self) -> None:
        self.holder: Hold | None = None
        self.watched: Hold | None = None  # the holder that tells us
        self.waiters = EMPTY
        self.streak = 0  # hand-overs in a row that went before all who wait elsewhere

    def remove(self, waiter: Waiter) -> None:
        """It does not stand here any more. Harmless when repeated, and before it came in."""
        if self.waiters == [waiter]:
            self.waiters = EMPTY
        elif waiter in self.waiters:
            self.waiters.remove(waiter)

    def leave(self, waiter: Waiter) -> None:
        """It does not stand here any more, and the next one may be first now."""
        first = self.waiters[:1] == [waiter]
        self.remove(waiter)
        if first and self.waiters:
            self.waiters[0].ring()

    def heir(self, hold: Hold) -> tuple[Waiter, bool] | None:
        """See `LocalQueue.heir`. None as well if the store itself will serve the first waiter, in its turn, or answer it."""
        if self.holder is not hold or not self.waiters or (first := self.waiters[0]).state is not QUEUED:
            return None
        return first, not first.attempt.fair and self.streak < STREAK

    def wake_first(self) -> None:
        """No lease of this client holds the name any more: the first waiter must ask, or is in the store's line."""
        first = self.waiters[0]
        if not first.in_line:
            first.until = 0.0
        first.ring()

    def look_at(self, waiter: Waiter, now: float) -> float | None:
        """When the waiter has to look again. None: it has to ask now."""
        while (first := self.waiters[0]) is not waiter:
            if first.state is not LEFT:
                return now + LOOK
            self.remove(first)  # a signal's handler raised while it left
        holder = self.holder
        if holder is not None and not holder.released and not holder.lost(now):
            return holder.deadline
        if waiter.state is OFFERED:  # the answer to that will ring; it takes no longer than a question may
            return now + LOOK
        return None if now >= waiter.until else waiter.until

    def held_by(self, hold: Hold, mind: Callable[[Hold], None] | None) -> None:
        """A lease of this client holds the name. `mind`: see `Keeper.mind`."""
        self.holder = hold
        if not self.waiters:
            return
        self.watch()
        if hold.policy.renew and mind is not None:
            with suppress(RuntimeError, Unavailable):  # no thread to be had, or no descriptor
                mind(hold)  # the keeper will say so if it is lost
                return
        self.waiters[0].ring()  # it has to mind the time itself

    def watch(self) -> None:
        """Have the holder tell. Once: waiters come and go while it holds."""
        if self.holder is not None and self.watched is not self.holder:
            self.watched = self.holder
            self.holder.watch(self.told)

    def told(self, what: str) -> None:
        """A watcher of the holder: if it is lost, or ends earlier, or is dropped, the first waiter has to see to it."""
        waiters = self.waiters  # looked up once: other threads leave meanwhile
        if what in ("lost", "nearer", "dropped") and waiters:
            waiters[0].ring()

    def idle(self, now: float) -> bool:
        """Whether the name may be forgotten: no waiter, and no lease that is held."""
        return not self.waiters and (self.holder is None or self.holder.over or self.holder.lost(now))
