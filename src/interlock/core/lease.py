"""How long a grant may be believed, and what state that leaves a lease in.

Invariants
- A holder stops believing before the store may give the name to anyone else. The deadline is counted from a moment read
  *before* the request was sent, and shortened by an allowance for clocks that run at different rates.
- Once lost or released, a lease never comes back: whoever sees that the deadline has passed writes it down (`Hold.gone`), so an
  answer that another thread is just taking in cannot revive it.

Rules of the file: pure, every moment is an argument. Threads share a hold: single operations on a list are atomic.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from .missing import Flight, MissingAnswers

DRIFT_RATE = 0.01  # one percent: far above any quartz, near a badly calibrated virtual machine
DRIFT_FLOOR = 0.002  # two milliseconds: the granularity of expiry in Redis, twice

HELD, DOUBTFUL, LOST, RELEASED = "held", "doubtful", "lost", "released"

Watcher = Callable[[str], None]
"""Told what has become of a lease: "landed" (a renewal was answered), "nearer" (its deadline has come nearer), "doubtful",
"lost", "released", or "dropped" (nobody has it any more, so it is left to expire)."""


def drift(ttl: float, rate: float = DRIFT_RATE) -> float:
    """How much of a ttl is given up to clocks that disagree."""
    return ttl * rate + DRIFT_FLOOR


def deadline(sent_at: float, ttl: float, rate: float = DRIFT_RATE) -> float:
    """When to stop believing in a grant of `ttl` that was asked for at `sent_at`."""
    return sent_at + ttl - drift(ttl, rate)


def outlast(seconds: float, rate: float = DRIFT_RATE) -> float:
    """How long to wait, on our clock, until so many seconds have certainly passed on another's."""
    return seconds / (1 - rate) + DRIFT_FLOOR


def margin(ttl: float) -> float:
    """How long before the deadline a holder is told, so that it can stop before anybody else may begin."""
    return min(max(ttl * 0.05, 0.01), ttl / 4, 1.0)


class Policy(NamedTuple):
    """How a lease is kept. One for all leases of a lock.

    `max_hold` seconds after the grant renewal ends; it also ends when `progress` seconds have passed since the holder last
    reported any. `delay` is how long the store keeps the name closed behind the end of a lease that was not released.
    """

    renew: bool = True
    max_hold: float = inf
    progress: float = inf
    delay: float = 0.0

    def stored(self, ttl: float) -> float:
        """How long the store keeps a lease that its holder believes in for `ttl`. The same object if there is no delay."""
        return ttl + self.delay if self.delay else ttl

    def believed(self, ttl: float) -> float:
        """How much of what the store keeps is the holder's."""
        return ttl - self.delay if self.delay else ttl


FIXED = Policy(renew=False)


class Hold:
    """The state of one lease: what was granted, until when it may be believed, and what is under way."""

    __slots__ = (
        "_flying",
        "_missing",
        "_rate",
        "at",
        "began",
        "deadline",
        "doubted",
        "dropped",
        "failures",
        "fence",
        "forsaken",
        "fuse",
        "gone",
        "holder",
        "kept",
        "leaving",
        "name",
        "policy",
        "progressed",
        "released",
        "retry_at",
        "span",
        "stopped",
        "teller",
        "token",
        "told",
        "ttl",
        "unsure",
        "waited",
        "wanted",
        "watchers",
    )

    def __init__(
        self,
        name: str,
        token: str,
        ttl: float,
        fence: int,
        deadline: float,
        rate: float = DRIFT_RATE,
        began: float = 0.0,
        policy: Policy = FIXED,
    ) -> None:
        self.name = name
        self.token = token
        self.ttl = self.span = self.wanted = ttl  # granted; believed, which the schedule rests on; to be renewed for
        self.fence = fence
        self.deadline = deadline
        self.began = self.progressed = began
        self.waited = 0.0  # seconds from the first question to the grant
        self.policy = policy
        self._rate = rate
        self.gone = ""  # the reason, once it is lost
        self.told = False  # and once its watchers know
        self.doubted = False
        self.released = False
        self.leaving = False  # a release went out: from then on somebody else may have it
        self.dropped = False  # nobody has the lease any more: it is left to expire
        self.holder: object = None  # tells when nobody has the lease any more; None once nobody needs to be told
        self.fuse: Any = None  # while it is in a block: see `api.blocks`
        self.forsaken = False  # its block is over, and did not give it back: the keeper does
        self.unsure = False  # an extend went out and the store may have granted it
        self._flying: list[Flight] = []
        self._missing: MissingAnswers | None = None  # hardly any lease has some
        self.watchers: list[Watcher] | None = None
        # What a keeper notes:
        self.kept = False  # it renews this lease
        self.at = inf  # when it looks at it next
        self.retry_at = 0.0  # not to be renewed again before
        self.failures = 0  # renewals without an answer since the last that had one
        self.stopped = ""  # why it stopped renewing: "max_hold" or "progress"
        self.teller: Callable[[Hold], None] | None = None  # told of a loss before anybody else

    def __lt__(self, other: Hold) -> bool:
        """Of two that are due at the same moment any may be first."""
        return False

    # --- what may be believed -------------------------------------------------------------------------------------------

    def lost(self, now: float) -> bool:
        """True from the deadline on, or once the store said so. Never true after a release in time."""
        if self.released:
            return False
        if not self.gone and now >= self.deadline:
            self.gone = self.ending(now)
        return bool(self.gone)

    def state(self, now: float) -> str:
        """One word: held, doubtful, lost or released."""
        if self.released:
            return RELEASED
        if self.lost(now):
            return LOST
        if self.leaving:
            return RELEASED
        return DOUBTFUL if self.kept and now >= self.doubtful_at else HELD

    def remaining(self, now: float) -> float:
        """Seconds for which the lease may still be believed; 0 when lost or released."""
        if self.released or self.leaving or self.lost(now):
            return 0.0
        return max(0.0, self.deadline - now)

    @property
    def usable(self) -> float:
        """For how long a lease is believed from a confirmation on: without what is given up to clocks that disagree."""
        return self.span - drift(self.span, self._rate)

    @property
    def doubtful_at(self) -> float:
        """From when on a lease that should be renewed is in doubt: two renewals were due and none was confirmed."""
        return self.deadline - self.usable / 3

    @property
    def tell_at(self) -> float:
        """When the holder is told that the lease is lost, unless it is renewed before."""
        return self.deadline - margin(self.span)

    def ending(self, now: float) -> str:
        """Why a lease ends that nobody has taken away: the reason, for one that ends at `now`."""
        if not self.kept or self.stopped:
            return "expired"
        if (self.failures or self._flying) and now < self.deadline:
            return "unreachable"
        # The keeper would have given it up before the deadline, or have tried to renew it: it did not get to run.
        return "paused"

    @property
    def over(self) -> bool:
        """Released, lost or dropped, as far as anybody has noticed: there is nothing to keep."""
        return bool(self.released or self.gone or self.dropped)

    @property
    def in_flight(self) -> bool:
        """Whether an extend is on its way."""
        return bool(self._flying)

    def extending(self, flight: Flight) -> None:
        """An extend goes out. Which of several the store applies last cannot be known, so the shortest is believed."""
        # Put down first, then compared: of two threads that come here at once, at least one sees the other.
        self._flying.append(flight)
        for other in list(self._flying):
            if other is not flight:
                flight.believed = min(flight.believed, other.ttl)
                other.believed = min(other.believed, flight.ttl)

    def shorten(self, sent_at: float, ttl: float) -> bool:
        """An extend for `ttl` is about to go out. If it ends the lease earlier, that is believed from now on; whether it does.

        The store may apply it at once, and its answer may be late or lost.
        """
        if (end := deadline(sent_at, ttl, self._rate)) >= self.deadline:
            return False
        self._ends(end, ttl)
        return True

    def _ends(self, end: float, span: float) -> None:
        nearer = end < self.deadline
        self.deadline, self.span = end, span
        if nearer:  # whoever sleeps until then has to look again
            self.notify("nearer")

    def landed(self, flight: Flight) -> None:
        """It is answered, or given up, or never went out. Harmless when repeated."""
        with suppress(ValueError):
            self._flying.remove(flight)
        self.notify("landed")

    def renewed(self, sent_at: float, ttl: float, flight: Flight | None = None, settled: bool = False) -> None:
        """The store confirmed `ttl` for a request sent at `sent_at`. `settled`: see `MissingAnswers.believed`."""
        if self.gone:  # a moment ago, by another thread
            self.unsure = True
            return
        believed = ttl if flight is None else min(ttl, flight.believed)
        if self._missing is not None:
            believed = self._missing.believed(believed, sent_at, settled)
        self.ttl = ttl
        self.unsure = believed < ttl  # the store keeps it for longer: to be given back if it is lost
        self.doubted = False
        self.failures, self.retry_at = 0, 0.0
        self._ends(deadline(sent_at, believed, self._rate), believed)

    def unconfirmed(self, sent_at: float, ttl: float, given_up_at: float | None = None, followed: bool = False) -> None:
        """An extend went out and its answer was lost: believe the earlier of the two ends. `followed`: see `Missing`."""
        self.unsure = True
        self._missing = self._missing or MissingAnswers()
        self._missing.add(ttl, sent_at if given_up_at is None else given_up_at, followed)
        if (end := deadline(sent_at, ttl, self._rate)) < self.deadline:
            self._ends(end, ttl)

    def vanished(self, now: float, taken: bool, left: bool = False) -> None:
        """The store says that the token holds nothing: somebody else has the name, or the entry is gone before its time.
        `left`: but for some nodes of a quorum, which are to be rid of it once the holder is done."""
        if not self.lost(now):
            self.gone = "taken" if taken else "forced"
        self.unsure |= left

    def tell(self) -> None:
        """Tell the watchers that it is lost. Once."""
        if not self.told:
            self.told = True
            if self.teller is not None:
                self.teller(self)
            self.notify("lost")

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of what becomes of the lease."""
        if self.watchers is None:
            self.watchers = [watcher]
        else:  # in place, in one operation: other threads come and go, and none must undo what another did
            self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """No more. Harmless when repeated."""
        with suppress(ValueError):
            (self.watchers or []).remove(watcher)

    def notify(self, what: str) -> None:
        """Tell the watchers. They are ours and do not raise."""
        for watcher in tuple(self.watchers or ()):
            watcher(what)
