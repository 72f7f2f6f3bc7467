"""Extending a lease.

Invariants: the deadline moves up only when the store has confirmed it, and moves down when an answer was lost. An end that is
earlier is believed before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.claim import Gone
from ..core.lease import Hold
from ..core.missing import Flight
from ..errors import Unavailable, UsageError
from .context import Context
from .hold import check, release
from .loss import lost


async def extend(context: Context, hold: Hold, ttl: float, moved: Callable[[], None] = lambda: None) -> None:
    """Set what is left to `ttl`. Raises LeaseLost if it is over, Unavailable if the store did not answer: then the lease is
    still held until the earlier of the old and the new end. An earlier end is believed before anything is sent; `moved` is
    called then, since its watchers must look again."""
    context.runtime.check_loop()
    sent_at, flight = context.runtime.now(), Flight(hold.name, ttl)
    check(hold, sent_at)
    try:
        await _extend(context, hold, flight, sent_at, moved)
    except BaseException as error:
        if context.runtime.struck(
            error
        ):  # anywhere: it may have got through, and nothing must be taken for on its way for ever
            hold.unconfirmed(sent_at, ttl, context.runtime.now(), followed=True)
            hold.landed(flight)
            context.inside.leave(flight)
        raise


async def _extend(context: Context, hold: Hold, flight: Flight, sent_at: float, moved: Callable[[], None]) -> None:
    ttl, policy = flight.ttl, hold.policy
    try:
        hold.extending(flight)
        context.inside.busy[flight] = (context.inside.who(),)
        if context.queue.closed:  # it may not wait for us any more: the store would keep what no caller hears of
            closed = context.closed()
            closed.add_note(
                f"interlock: '{hold.name}' was not extended: it ends by itself within {policy.stored(hold.ttl):g} s"
            )
            raise closed
        if hold.shorten(sent_at, ttl):
            moved()
        # The lease's own fence goes with it: a store that lost its counter learns it anew.
        within = min(context.within(ttl), hold.deadline - sent_at)
        answer = await context.backend.extend(hold.name, hold.token, policy.stored(ttl), within, hold.fence)
    except UsageError:  # an answer: nothing happened
        raise
    except BaseException as error:
        hold.unconfirmed(sent_at, ttl, context.runtime.now(), followed=True)
        if isinstance(error, Unavailable):
            left = hold.remaining(context.runtime.now())
            error.tell(f"The lease on '{hold.name}' is held for another {left:.1f} s as it stands; extend again or release")
        raise
    finally:
        hold.landed(flight)
        context.inside.leave(flight)
    if hold.released or hold.leaving:  # meanwhile, by another thread
        check(hold, sent_at)
    now = context.runtime.now()
    if isinstance(answer, Gone):
        hold.vanished(now, answer.taken, answer.left)
        hold.tell()
        await release(context, hold)  # what is left of it, if anything
        raise lost(hold)
    if hold.lost(now):  # over before the answer came: its holder may have acted on that, so it stays over
        hold.unsure = True
        hold.tell()
        await release(context, hold)
        raise lost(hold)
    hold.wanted = ttl
    hold.renewed(sent_at, policy.believed(answer.ttl), flight, context.settled(hold.token))
