"""The process gate: those of one client who wait for the same name, in the order in which they came.

Only the first of them asks the store. Whoever releases a name that somebody here waits for hands it over: one request releases
the one token and claims for the next. So three hundred tasks cost a store no more than one.

Invariants
- One per name is *first*. It asks the store, unless a lease of this client holds the name: then it waits to be handed over to.
- Who has left (`gone`) is never given anything: what was taken for it is passed on by whoever took it.
- Nobody sleeps past the end of the holder's lease, here or elsewhere, and a bell that rings for nothing does no harm.

Rules of the file: bookkeeping only, no question is asked here. Every method is short and takes the guard: threads share it.
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to flows: it invites waiting
from math import inf

from ..core.claim import Refused
from ..core.lease import Hold, Policy
from ..runtime import forks
from ..runtime.base import Bell

STREAK = 16  # hand-overs in a row within one process, before those who wait elsewhere come first
SWEEP = 1024  # names more than at the last look, before those whose leases are over are forgotten


class Waiter:
    """Somebody who waits for a name."""

    __slots__ = (
        "arrival",
        "at",
        "bell",
        "fair",
        "gone",
        "hold",
        "in_line",
        "name",
        "note",
        "policy",
        "refused",
        "sent_at",
        "token",
        "ttl",
        "until",
    )

    def __init__(self, name: str, token: str, ttl: float, policy: Policy, note: str, fair: bool, arrival: float) -> None:
        self.name = name
        self.token = token
        self.ttl = ttl
        self.policy = policy
        self.note = note
        self.fair = fair
        self.arrival = arrival
        self.bell: Bell | None = None
        self.hold: Hold | None = None  # given by somebody else
        self.gone = False
        self.in_line = False  # it stands in the store's line, or may
        self.refused: Refused | None = None  # the last answer
        self.sent_at, self.at = 0.0, 0.0  # our clock before a question, and the store's in the answer to it
        self.until = 0.0  # when it asks again, if nobody rings before: the end of the holder's lease

    def ring(self) -> None:
        """Have it look around."""
        if self.bell is not None:
            self.bell.ring()


class Door:
    """One name: who of this client holds it, and who waits for it."""

    __slots__ = ("holder", "streak", "waiters")

    def __init__(self) -> None:
        self.holder: Hold | None = None
        self.waiters: list[Waiter] = []
        self.streak = 0

    def told(self, what: str) -> None:
        """A watcher of the holder: if it is lost, the first has to see to it."""
        if what == "lost" and self.waiters:
            self.waiters[0].ring()


class Gate:
    """The doors of one client."""

    def __init__(self) -> None:
        self._closed = False
        self.disown()
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: a child holds nothing of the parent's, and nobody waits there."""
        self.guard = RLock()
        self._doors: dict[str, Door] = {}
        self._swept = 0
        self.in_line: dict[str, Waiter] = {}  # by token: whom the store may announce a grant to

    def enter(self, waiter: Waiter) -> None:
        """Wait behind those who came before."""
        with self.guard:
            door = self._doors.get(waiter.name)
            if door is None:
                door = self._doors[waiter.name] = Door()
                if len(self._doors) > 2 * self._swept + SWEEP:
                    self._sweep()
            door.waiters.append(waiter)
            if len(door.waiters) == 1 and door.holder is not None and door.holder.kept:
                door.holder.watch(door.told)

    def asks(self, waiter: Waiter, now: float) -> tuple[bool, float]:
        """Whether it is for this one to ask the store; if not, when to look again at the latest."""
        with self.guard:
            door = self._doors[waiter.name]
            if self._closed:
                return True, now
            if door.waiters[0] is not waiter:
                return False, inf
            holder = door.holder
            if holder is None or holder.released or holder.lost(now):
                return True, now
            return False, holder.deadline

    def got(self, waiter: Waiter, hold: Hold) -> None:
        """It has got it from the store by asking. (An announcement of the same may have come first: then this is as good.)"""
        with self.guard:
            door = self._doors[waiter.name]
            if waiter in door.waiters:
                door.waiters.remove(waiter)
            self.in_line.pop(waiter.token, None)
            door.streak = 0
            self._now_holds(door, hold)

    def _now_holds(self, door: Door, hold: Hold) -> None:
        door.holder = hold
        if not door.waiters:
            return
        if hold.policy.renew:
            hold.watch(door.told)  # a keeper will say so if it is lost
        else:
            door.waiters[0].ring()  # it has to mind the time itself

    def holds(self, hold: Hold) -> None:
        """A lease that was had without waiting."""
        with self.guard:
            door = self._doors.setdefault(hold.name, Door())
            self._now_holds(door, hold)

    def heir(self, hold: Hold) -> tuple[Waiter, bool] | None:
        """To whom a release of this lease should hand over, and whether that one goes before all who wait elsewhere."""
        with self.guard:
            door = self._doors.get(hold.name)
            if door is None or door.holder is not hold or not door.waiters:
                return None
            first = door.waiters[0]
            if first.in_line:  # the store itself will serve it, in its turn
                return None
            return first, not first.fair and door.streak < STREAK

    def handed(self, hold: Hold, heir: Waiter, given: Hold) -> bool:
        """The heir was granted it. False: it has left meanwhile, so what was granted must be passed on."""
        with self.guard:
            door = self._doors[hold.name]
            if heir.gone or heir not in door.waiters:
                door.holder = given  # for a moment: it is released at once, with the next one as heir
                return False
            door.waiters.remove(heir)
            door.streak += 1
            heir.hold = given
            self._now_holds(door, given)
            heir.ring()
            return True

    def left(self, hold: Hold) -> None:
        """This lease is over: whoever is first here must ask, or is in the store's line."""
        with self.guard:
            door = self._doors.get(hold.name)
            if door is not None and door.holder is hold:
                door.holder = None
                if door.waiters:
                    door.waiters[0].ring()
                else:
                    del self._doors[hold.name]

    def leave(self, waiter: Waiter) -> Hold | None:
        """It does not wait any more. What it was given in the last moment must be released by whoever calls this."""
        with self.guard:
            waiter.gone = True
            self.in_line.pop(waiter.token, None)
            door = self._doors.get(waiter.name)
            if door is not None and waiter in door.waiters:
                first = door.waiters[0] is waiter
                door.waiters.remove(waiter)
                if door.waiters and first:
                    door.waiters[0].ring()
                elif not door.waiters and door.holder is None:
                    del self._doors[waiter.name]
            return waiter.hold

    def line_up(self, waiter: Waiter, token: str) -> bool:
        """It may stand in the store's line from now on, under this token. False: it has left."""
        with self.guard:
            if waiter.gone or waiter.hold is not None:
                return False
            waiter.token, waiter.in_line = token, True
            self.in_line[token] = waiter
            return True

    def announced(self, token: str) -> Waiter | None:
        """Whom an announcement is for; None if that one has left."""
        with self.guard:
            return self.in_line.get(token)

    def serve(self, waiter: Waiter, hold: Hold) -> bool:
        """A grant was announced. False: it has left meanwhile."""
        with self.guard:
            if waiter.gone:
                return False
            door = self._doors[waiter.name]
            if waiter in door.waiters:
                door.waiters.remove(waiter)
            self.in_line.pop(waiter.token, None)
            waiter.hold = hold
            door.streak = 0
            self._now_holds(door, hold)
            waiter.ring()
            return True

    def alarm(self) -> None:
        """Announcements may have been missed: everybody in line asks again."""
        with self.guard:
            for waiter in list(self.in_line.values()):
                waiter.until = 0.0
                waiter.ring()

    def close(self) -> None:
        """The client is closed: everybody asks, and is told so by the store."""
        with self.guard:
            self._closed = True
            for waiter in [waiter for door in self._doors.values() for waiter in door.waiters]:
                waiter.until = 0.0
                waiter.ring()

    def _sweep(self) -> None:
        """Forget names whose leases ended without a release."""
        for name in [name for name, door in self._doors.items() if not door.waiters and (not door.holder or door.holder.over)]:
            del self._doors[name]
        self._swept = len(self._doors)
