"""Holding and giving back: extend, release, and how a `with` block ends.

Invariants: a lease that is over never comes back; its deadline only moves when the store has confirmed it, and moves down
when an answer was lost; the token is kept until the store has answered; the body's own exception is never masked.
"""

from __future__ import annotations

from contextlib import suppress

from ..core.claim import Gone
from ..core.lease import HELD, Hold
from ..errors import InterlockError, LeaseLost, Unavailable, UsageError
from .site import Site, Undone


def check(hold: Hold, now: float) -> None:
    """Raise LeaseLost if the lease is over, UsageError if it was released or a release is on its way."""
    if hold.lost(now):
        raise lost(hold)
    if hold.released or hold.leaving:
        raise UsageError(f"the lease on '{hold.name}' was released; acquire the lock again")


def lost(hold: Hold) -> LeaseLost:
    """The error that says so."""
    how = {"taken": "somebody else holds it now", "forked": "it belongs to the parent process"}.get(hold.gone)
    how = how or f"its ttl of {hold.ttl:g} s is over"
    return LeaseLost(
        f"the lease on '{hold.name}' (fence {hold.fence}) is lost: {how}. Others may be working on it, so stop writing; "
        "what you wrote since is safe only where the resource checks the fence. Use a longer ttl or extend in time",
        name=hold.name,
        reason=hold.reason(),
    )


async def extend(site: Site, hold: Hold, ttl: float) -> None:
    """Set what is left to `ttl`. Raises LeaseLost if it is over, Unavailable if the store did not answer: then the lease is
    still held until the earlier of the old and the new end."""
    sent_at = site.runtime.now()
    check(hold, sent_at)
    flight = hold.extending(ttl)
    try:
        # The lease's own fence goes with it: a store that lost its counter learns it anew.
        within = min(site.within(ttl), hold.deadline - sent_at)
        answer = await site.backend.extend(hold.name, hold.token, ttl, within, hold.fence)
    except UsageError:  # an answer: nothing happened
        raise
    except BaseException as error:
        hold.unconfirmed(sent_at, ttl)
        if isinstance(error, Unavailable):
            left = hold.remaining(site.runtime.now())
            error.tell(f"The lease on '{hold.name}' is held for another {left:.1f} s as it stands; extend again or release")
        raise
    finally:
        hold.landed(flight)
    if hold.released or hold.leaving:  # meanwhile, by another thread
        check(hold, sent_at)
    if isinstance(answer, Gone):
        hold.gone = "taken" if answer.taken else "expired"
        raise lost(hold)
    if hold.lost(site.runtime.now()):  # over before the answer came: somebody may have acted on that, so it stays over
        hold.gone, hold.unsure = "expired", True
        await release(site, hold)
        raise lost(hold)
    hold.renewed(sent_at, answer.ttl, flight)


async def release(site: Site, hold: Hold) -> bool:
    """Give the lock back. Whether this call did; False if it was released before or is lost.

    Not stopped by a cancellation: that is raised once the answer is known. Raises Unavailable if the store stays silent; the
    token is kept, so it may be called again.
    """
    if hold.released:
        return False
    if hold.lost(site.runtime.now()):
        if hold.unsure:
            await site.runtime.shield(lambda: _abandon(site, hold))
        return False  # else it needs no round trip: the store lets go of it by itself
    try:
        return await _give_back(site, hold)
    except Exception:
        raise
    except BaseException:
        # Interrupted. What was sent has been followed by an undo; what was not sent is sent now, and not interrupted again.
        # (Not shielded from the start: a task for each release is a fifth of its cost, and this hardly ever happens.)
        if hold.state(site.runtime.now()) == HELD:
            with suppress(InterlockError):
                await site.runtime.shield(lambda: _give_back(site, hold))
        raise


async def _abandon(site: Site, hold: Hold) -> None:
    """A lost lease whose last extend may have got through: the store would keep it for that ttl."""
    hold.unsure = False
    with suppress(Unavailable):
        try:
            await site.backend.release(hold.name, hold.token, site.request_timeout)
        except Unavailable:
            await site.backend.undo(hold.name, hold.token, site.request_timeout)


async def _give_back(site: Site, hold: Hold) -> bool:
    hold.leaving = True  # whatever comes of it: once the request is out, somebody else may have the lock
    try:
        held = await site.backend.release(hold.name, hold.token, site.within(hold.ttl))
    except UsageError as error:  # an answer: nothing happened
        hold.leaving = False
        error.add_note(f"interlock: '{hold.name}' was not released: it ends with its ttl, within {hold.ttl:g} s")
        raise
    except BaseException as error:
        # If the answer is lost, not the question: ask again down the same path.
        undone = await site.undo(hold.name, hold.token, hold.ttl, error, held=isinstance(error, Unavailable))
        if undone is Undone.NEVER_ASKED:
            hold.leaving = False  # still ours, in truth
        elif undone is Undone.CONFIRMED:
            hold.released = hold.released or not hold.lost(site.runtime.now())
            if isinstance(error, Unavailable):
                return hold.released
        raise
    if held:
        hold.released = True
    elif not hold.released and hold.leaving:
        hold.gone = hold.gone or "expired"
    return held


async def leave(site: Site, hold: Hold, error: BaseException | None) -> None:
    """The end of a `with` block whose body raised `error`, or nothing.

    Raises LeaseLost if the lease was lost while the body ran and the body raised nothing. A failed release is raised only
    if the body raised nothing; else it becomes a note on the body's exception.
    """
    if hold.released:
        return
    if error is None:
        if not await release(site, hold) and hold.lost(site.runtime.now()):  # not: released by another thread
            raise lost(hold)
        return
    try:
        await release(site, hold)
    except InterlockError as failure:
        error.add_note(f"interlock: releasing '{hold.name}' failed as well: {failure}")
    if hold.lost(site.runtime.now()):
        error.add_note(f"interlock: the lease on '{hold.name}' was lost ({hold.reason()}) before the block ended")
