"""The figures of a keeper: how renewal is doing, and what it has to say in the log about that."""

from __future__ import annotations

from ...core import renewal
from ...core.lease import Hold
from ...core.renewal import Keeping
from ..notes import log


class Stats:
    """The figures of one keeper."""

    def __init__(self) -> None:
        self.requests = self.failures = 0
        self._renewals = self._losses = 0
        self._lateness, self._slack = 0.0, 1.0

    def keeping(self, leases: int) -> Keeping:
        """All of them."""
        return Keeping(leases, self._renewals, self.requests, self.failures, self._losses, self._lateness, self._slack)

    def confirmed(self, slack: float) -> None:
        """A renewal, when this share of the ttl was left."""
        self._renewals += 1
        self._slack = min(self._slack, slack)

    def lost(self, hold: Hold, now: float) -> None:
        """A loss."""
        self._losses += 1
        if hold.gone == "paused":
            self.looked_at(hold, now)
        log(
            "warning",
            "the lease on '%s' (fence %d) is lost: %s",
            hold.name,
            hold.fence,
            hold.gone,
            extra={"event": "lost", "lock": hold.name, "fence": hold.fence, "reason": hold.gone},
        )

    def looked_at(self, hold: Hold, now: float) -> None:
        """It was due, and the keeper has come to it."""
        late = now - renewal.due(hold)
        if late > self._lateness:
            self._lateness = late
            if late > hold.ttl / 6:
                log(
                    "warning",
                    "renewal of '%s' runs %.2f s late: this process is starved (a blocked event loop, a long C call, an "
                    "overloaded machine)",
                    hold.name,
                    late,
                    extra={"event": "starved", "lock": hold.name, "seconds": late},
                )
