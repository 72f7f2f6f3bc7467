"""Leases that are over, and that the store may still keep: given back, not before their time.

A renewal, or an extension of the holder's, may be granted after the lease was lost. The store would keep it for another ttl. It
is not given back before the deadline, because a body that is about to stop may still be at work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

from ...core.lease import Hold
from ...errors import UsageError
from ..context import Context
from ..hold import abandon
from ..notes import left_behind

AT_ONCE = 50  # leases that are given back in one go; the rest expires by itself


class Returns:
    """The leases of one keeper that are to be given back. Other threads add to them: single operations on a list are atomic."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._some: list[Hold] = []

    def __bool__(self) -> bool:
        return bool(self._some)

    def add(self, hold: Hold) -> None:
        """One more."""
        self._some.append(hold)

    def next_at(self) -> float:
        """When the first of them may be given back."""
        return min(map(_due, self._some), default=inf)

    def ripe(self, now: float) -> list[Hold]:
        """Those that may be given back now."""
        return [hold for hold in self._some if _due(hold) <= now][:AT_ONCE]

    def forsaken(self) -> list[Hold]:
        """Those whose block is over: no holder, and no other thread, will give them back."""
        return [hold for hold in self._some if hold.forsaken]

    async def give_back(self, ripe: list[Hold], undisturbed: Callable[[], float]) -> None:
        """Give these back, each within what is left until the keeper has something else to do."""
        runtime = self._context.runtime
        for hold in ripe:
            with suppress(ValueError):
                self._some.remove(hold)
            within = max(min(self._context.request_timeout, undisturbed() - runtime.now()), 0.001)
            try:
                await self._rid(hold, within)
            except BaseException:  # there was something else to do, or the client is closed: it is still to be given back
                hold.unsure = True
                self._some.append(hold)
                raise

    async def give_up(self) -> None:
        """The client is closed: give back those that are ripe, and name the others."""
        now = self._context.runtime.now
        until = now() + self._context.request_timeout
        while self._some:
            hold, moment = self._some.pop(), now()
            if _due(hold) <= moment < until:
                await self._rid(hold, until - moment)
            elif hold.unsure or hold.forsaken:
                left_behind(hold.name, hold.ttl, UsageError("the client was closed"))

    async def _rid(self, hold: Hold, within: float) -> None:
        await abandon(self._context, hold, within)
        if hold.forsaken:
            hold.notify("dropped")
            self._context.queue.left(hold)


def _due(hold: Hold) -> float:
    """When a lease may be given back that is lost, or that no holder has any more."""
    return -inf if hold.forsaken else hold.deadline
