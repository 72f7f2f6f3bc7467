"""Requests of a keeper: some leases, renewed in one round trip, and what each answer means.

Invariants
- No request is sent after the moment at which a holder is told, and no answer is believed after it.
- Released, lost or dropped while its renewal is on its way: the answer is not believed.
- The answer is lost: the deadline stands, another try follows within the window.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ...core import renewal
from ...core.claim import Gone, Granted, Renewal
from ...core.lease import Hold
from ...core.missing import Flight
from ...errors import Unavailable, UsageError
from ..context import Context
from ..notes import log
from .returns import Returns
from .schedule import Schedule
from .stats import Stats


class Requests:
    """The requests of one keeper."""

    def __init__(self, context: Context, schedule: Schedule, returns: Returns, stats: Stats) -> None:
        self._context = context
        self._schedule = schedule
        self._returns = returns
        self._stats = stats
        self.unanswered = False  # the last one was not answered

    def undisturbed(self) -> float:
        """Until when no holder has to be told anything, so until when a thread may be stuck in what cannot be interrupted."""
        if not self._context.backend.capabilities.hosts:  # a store on this machine answers at once or is stuck
            return self._schedule.next_look()
        if self._context.runtime.colour == "asyncio":
            return inf
        # To connect anew (to a node that is silent, or hung up) blocks a thread.
        return min((hold.tell_at for hold in self._schedule.everybody() if not hold.over), default=inf)

    async def race(self, batches: list[list[Hold]], alarms: Coroutine[Any, Any, None]) -> None:
        """Send these side by side, and await all answers, with `alarms` beside them."""
        running, until = len(batches), self.undisturbed()

        def ended(index: int, outcome: object) -> bool:
            nonlocal running
            running -= 1
            if isinstance(outcome, BaseException):
                raise outcome
            return running == 0

        await self._context.runtime.race([*(self._send(batch, until) for batch in batches), alarms], ended)

    async def _send(self, holds: list[Hold], until: float) -> None:
        """Renew these. The answer is awaited until `until` at the latest."""
        context, now = self._context, self._context.runtime.now()
        holds = [hold for hold in holds if renewal.sendable(hold, now, context.drift)]
        if not holds:
            return
        within = min(renewal.bound(hold, now, context.request_timeout) for hold in holds)
        within = max(min(within, until - now), 0.001)
        asked = [Renewal(h.name, h.token, h.policy.stored(renewal.ttl(h, now)), h.fence) for h in holds]
        flights = [Flight(hold.name, hold.policy.believed(lease.ttl)) for hold, lease in zip(holds, asked, strict=True)]
        answers: Sequence[Granted | Gone | None] = [None] * len(holds)
        self._stats.requests += 1
        try:
            for hold, flight in zip(holds, flights, strict=True):
                hold.extending(flight)
            with suppress(Unavailable):
                answers = await context.backend.renew(asked, within)
        except UsageError as error:  # closed meanwhile, or the store says that the question is wrong
            if not context.queue.closed:
                log("error", "renewal at %s is refused: %s", context.backend.address, error)
        finally:  # cancelled as well: then no answer is known
            self.unanswered = all(answer is None for answer in answers)
            try:
                for hold, flight, answer in zip(holds, flights, answers, strict=True):
                    self._judge(hold, flight, answer, now)
            except BaseException:  # a signal's handler has raised: nothing must be taken for on its way for ever
                for hold, flight in zip(holds, flights, strict=True):
                    hold.landed(flight)
                raise

    def _judge(self, hold: Hold, flight: Flight, answer: Granted | Gone | None, sent_at: float) -> None:
        """What an answer, or its absence, means to a lease; and when to look at it again."""
        runtime = self._context.runtime
        now = runtime.now()
        if answer is None:
            self._stats.failures += 1
            hold.failures += 1
            hold.retry_at = now + renewal.retry_after(hold, runtime.jitter())
            hold.unconfirmed(sent_at, flight.ttl, now)
        elif hold.released or hold.leaving:
            pass  # it was given back meanwhile
        elif isinstance(answer, Gone):
            hold.vanished(now, answer.taken, answer.left)
        elif hold.lost(now):
            hold.unsure = True
        else:
            self._stats.confirmed((hold.deadline - now) / hold.ttl)
            hold.renewed(sent_at, hold.policy.believed(answer.ttl), flight)
        hold.landed(flight)
        if not hold.over:
            self._schedule.put(hold, renewal.first_look(hold, runtime.jitter()))
        elif hold.gone and not hold.told:
            hold.tell()
        elif hold.gone and hold.unsure:
            self._returns.add(hold)
