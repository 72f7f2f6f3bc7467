"""How long a grant may be believed, and what state that leaves a lease in.

Invariant: a holder stops believing before the store may give the name to anyone else. The deadline is counted from a moment
read *before* the request was sent, and shortened by an allowance for clocks that run at different rates.

Rules of the file: every moment is an argument. Nothing here reads a clock.
"""

from __future__ import annotations

from math import inf

DRIFT_RATE = 0.01  # one percent: far above any quartz, near a badly calibrated virtual machine
DRIFT_FLOOR = 0.002  # two milliseconds: the granularity of expiry in Redis, twice

HELD, LOST, RELEASED = "held", "lost", "released"


def drift(ttl: float, rate: float = DRIFT_RATE) -> float:
    """How much of a ttl is given up to clocks that disagree."""
    return ttl * rate + DRIFT_FLOOR


def deadline(sent_at: float, ttl: float, rate: float = DRIFT_RATE) -> float:
    """When to stop believing in a grant of `ttl` that was asked for at `sent_at`."""
    return sent_at + ttl - drift(ttl, rate)


class Hold:
    """The state of one lease: what was granted and until when it may be believed.

    Once lost or released it never comes back.
    """

    __slots__ = (
        "_floor",
        "_flying",
        "_rate",
        "deadline",
        "fence",
        "gone",
        "leaving",
        "name",
        "released",
        "token",
        "ttl",
        "unsure",
    )

    def __init__(self, name: str, token: str, ttl: float, fence: int, deadline: float, rate: float = DRIFT_RATE) -> None:
        self.name = name
        self.token = token
        self.ttl = ttl
        self.fence = fence
        self.deadline = deadline
        self._rate = rate
        self.gone = ""  # the reason, once the store has said that the token holds nothing
        self.released = False
        self.leaving = False  # a release went out: from then on somebody else may have it
        self.unsure = False  # an extend went out and the store may have granted it
        self._flying: list[list[float]] = []  # extends on their way: [what may be believed of it, its ttl]
        self._floor = inf  # the shortest ttl of those whose answers were lost: they may still arrive

    def lost(self, now: float) -> bool:
        """True from the deadline on, or once the store said so. Never true after a release in time."""
        return not self.released and (bool(self.gone) or now >= self.deadline)

    def state(self, now: float) -> str:
        """One word: held, lost or released."""
        if self.released:
            return RELEASED
        if self.lost(now):
            return LOST
        return RELEASED if self.leaving else HELD

    def remaining(self, now: float) -> float:
        """Seconds for which the lease may still be believed; 0 when lost or released."""
        if self.released or self.leaving or self.gone:
            return 0.0
        return max(0.0, self.deadline - now)

    def reason(self) -> str:
        """Why it was lost, as a word."""
        return self.gone or "expired"

    def extending(self, ttl: float) -> list[float]:
        """An extend goes out. Which of several the store applies last cannot be known, so the shortest is believed."""
        flight = [min([ttl, self._floor, *(other[1] for other in self._flying)]), ttl]
        for other in self._flying:
            other[0] = min(other[0], ttl)
        self._flying.append(flight)
        return flight

    def landed(self, flight: list[float]) -> None:
        """It is answered, or given up."""
        self._flying.remove(flight)

    def renewed(self, sent_at: float, ttl: float, flight: list[float] | None = None) -> None:
        """The store confirmed `ttl` for a request sent at `sent_at`."""
        believed = ttl if flight is None else min(ttl, flight[0])
        self.ttl = ttl
        self.unsure = False
        self.deadline = deadline(sent_at, believed, self._rate)

    def unconfirmed(self, sent_at: float, ttl: float) -> None:
        """An extend went out and its answer was lost: believe the earlier of the two ends."""
        self.unsure = True
        self._floor = min(self._floor, ttl)
        self.deadline = min(self.deadline, deadline(sent_at, ttl, self._rate))
