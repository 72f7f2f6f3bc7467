"""Which leases a keeper looks at, and when: a queue by time, fed from other threads.

Invariants
- Every lease that is kept has one valid place in the queue, at `Hold.at`, which only the keeper writes; others are ignored.
- `add` may be called from any thread or signal handler. It takes no lock, and costs an append.
- Leases that are over leave the queue at their time, or earlier when they are many: what is locked for a moment only, with a
  ttl of a day, must not pile up.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from ...core import renewal
from ...core.lease import Hold
from ...core.renewal import Step

CROWD = 1024  # newcomers that may gather before the keeper should take them in: most are released by then


class Seen(NamedTuple):
    """What a look has found."""

    due: list[Hold]  # to be renewed
    doubtful: list[Hold]  # to be told so
    lost: list[Hold]  # to be told so


class Schedule:
    """The leases of a keeper."""

    def __init__(self) -> None:
        self.incoming: deque[Hold] = deque()
        self._queue: list[tuple[float, Hold]] = []
        self._alive = 0  # how many were alive when the queue was last gone through
        self.soonest = inf  # when the first of the newcomers that the last look took in might have been due, over or not

    def everybody(self) -> set[Hold]:
        """All that are on it, some of them over perhaps."""
        return {*(hold for _, hold in list(self._queue)), *list(self.incoming)}

    def add(self, hold: Hold) -> bool:
        """Put it on, or have it looked at anew. Whether it is time to take newcomers in."""
        self.incoming.append(hold)
        return len(self.incoming) % CROWD == 0  # said once for each, not by each that comes until it is done

    def put(self, hold: Hold, at: float) -> None:
        """Have it looked at then."""
        hold.at = at
        heappush(self._queue, (at, hold))
        if len(self._queue) > self._alive + self._alive // 4 + CROWD:  # each renewal leaves a place or two behind
            self._queue[:] = [place for place in self._queue if place[1].at == place[0] and not _done(place[1])]
            heapify(self._queue)
            self._alive = len(self._queue)

    def next_look(self) -> float:
        """When the keeper should look next."""
        return self._queue[0][0] if self._queue else inf

    def look(self, now: float, drift: float, renewing: bool) -> Seen:
        """Take in newcomers, and find what is to be done. Those that are due have lost their places, unless not `renewing`."""
        self._take_in()
        seen, again = Seen([], [], []), []
        queue, horizon = self._queue, now
        while queue and queue[0][0] <= horizon:
            at, hold = heappop(queue)
            if hold.at != at:
                continue  # it has another place
            hold.at = inf  # and not this one any more: the same moment may be in the queue twice
            step, look_at = renewal.plan(hold, now, drift)
            if step is Step.DOUBT:
                hold.doubted = True
                seen.doubtful.append(hold)
                step, look_at = renewal.plan(hold, now, drift)
            if step is Step.LOSE:
                seen.lost.append(hold)
            elif step is Step.RENEW and renewing:
                seen.due.append(hold)
                horizon = max(horizon, now + hold.ttl * renewal.EARLY)  # the more go together, the fewer requests
            elif step is Step.RENEW:
                again.append((min(now + hold.ttl * renewal.EARLY, hold.tell_at), hold))
            elif step is Step.WAIT:
                again.append((look_at, hold))
            elif hold.dropped:
                hold.notify("dropped")
        for look_at, hold in again:
            self.put(hold, look_at)
        return seen

    def _take_in(self) -> None:
        self.soonest = inf
        while self.incoming:
            hold = self.incoming.popleft()
            self.soonest = min(self.soonest, renewal.earliest(hold))
            if not _done(hold):
                self.put(hold, renewal.first_look(hold))
            elif hold.dropped:
                hold.notify("dropped")


def _done(hold: Hold) -> bool:
    """Nothing is to be done about it any more. One whose loss was seen, and not told yet, is not done."""
    return hold.released or hold.told or hold.dropped
