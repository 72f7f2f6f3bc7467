"""What the faces of both colours share: everything that needs no answer from a store."""

from __future__ import annotations

import os
from typing import Generic, TypeVar

from ..core.lease import Hold
from ..errors import UsageError
from ..flow.hold import check
from ..flow.site import Site

L = TypeVar("L", bound="BaseLease")


class Entered(Generic[L]):
    """Which leases are inside a `with` block of one Lock, by thread or task.

    A Lock is shared, so its blocks must not mix theirs up. A block may also end elsewhere than it began: a generator fixture is
    often finished by another task. Then there is normally only one it can be.
    """

    def __init__(self) -> None:
        self._leases: list[tuple[int, L]] = []

    def push(self, who: int, lease: L) -> None:
        """A block begins."""
        self._leases.append((who, lease))

    def pop(self, who: int) -> L:
        """A block ends: its lease. Raises UsageError if it cannot be told which."""
        everybody = list(self._leases)  # other threads come and go meanwhile
        mine = [entry for entry in everybody if entry[0] == who]
        if mine or len(everybody) == 1:
            mine = mine or everybody
            # Of several in one thread (generators that take turns) all but one are lost; the valid one may be at work.
            entry = next((entry for entry in mine if entry[1].lost), mine[-1])
            self._leases.remove(entry)
            return entry[1]
        raise UsageError(
            "a `with` block on a lock ended in another thread or task than it began in, while others are inside; nothing was "
            "released. Use `lease = lock.acquire()` and `with lease:` there"
        )


class BaseLease:
    """What you hold: a name, until a deadline, under a fence. All state lives here.

    It belongs to whoever has the object, so it may be handed to another thread or task on purpose.
    """

    __slots__ = ("_mine", "_pid", "_site")

    def __init__(self, site: Site, hold: Hold) -> None:
        self._site = site
        self._mine = hold
        self._pid = os.getpid()

    @property
    def _hold(self) -> Hold:
        """The hold; in a forked child a lost one, since the lease is the parent's and must not be touched from there."""
        if self._pid != os.getpid():
            self._mine.gone, self._mine.unsure = "forked", False
        return self._mine

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._hold.name

    @property
    def fence(self) -> int:
        """The fencing token: grows strictly with every grant of this name. Let the resource refuse smaller ones."""
        return self._hold.fence

    @property
    def token(self) -> str:
        """The holder's random identity, which is the lock's value in the store. A secret: do not log it or hand it on."""
        return self._hold.token

    @property
    def ttl(self) -> float:
        """For how long the store last granted it, in seconds."""
        return self._hold.ttl

    @property
    def lost(self) -> bool:
        """Whether you held it and may not hold it any more. True from the deadline on, whatever ran in between."""
        return self._hold.lost(self._site.runtime.now())

    @property
    def state(self) -> str:
        """One word: "held", "lost" or "released"."""
        return self._hold.state(self._site.runtime.now())

    def remaining(self) -> float:
        """For how many seconds the lease may still be believed; 0 when lost or released. Asks no store."""
        return self._hold.remaining(self._site.runtime.now())

    def check(self) -> None:
        """Raise LeaseLost if the lease is over, UsageError if it was released. Asks no store.

        It cannot close the gap between this check and your write: only the fence, checked by the resource, can.
        """
        check(self._hold, self._site.runtime.now())

    def __repr__(self) -> str:
        left = f", {self.remaining():.3f} s left" if self.state == "held" else ""
        return f"<{type(self).__name__} {self.name!r} fence={self.fence} {self.state}{left}>"
