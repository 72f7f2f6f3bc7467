"""One claim: asked, believed, or undone.

Invariant: a claim ends in a hold that may be believed now, in a refusal, or in an error; and after an error no request of it
can still put the lock into the store. Interleavings and where each is handled:

- the reply is lost, late or cut; the caller is cancelled or interrupted while it is on its way   → `ask`: undo by token,
  down the same path, shielded and bounded
- the caller is cancelled in the instant in which the reply arrives                            → the same: the transport counts
  a request as answered only when its caller has the answer
- a signal's handler raises with the answer in hand, here or in the transport                 → released, down any connection:
  nothing of the token is on its way then
- the grant took longer than it is valid (slow store, frozen process)                          → given back, `Unavailable`
"""

from __future__ import annotations

from ..core.claim import Claim, Granted, Refused
from ..core.lease import Hold, Policy, deadline
from ..core.quorum import table
from ..core.shown import shown
from ..errors import AcquireTimeout, Unavailable, UsageError
from .context import Context
from .notes import NOTHING_LEFT, tell
from .undo import Undone, drop_or_tell, undo


async def ask(context: Context, claim: Claim, policy: Policy, sent_at: float) -> Hold | Refused:
    """One claim and, if its outcome stays unknown, its undoing. `sent_at` is now: before anything is sent, since the lease is
    counted from there."""
    answer = None
    try:
        answer = await context.backend.claim(claim, context.within(claim.ttl))
        if isinstance(answer, Refused):
            return answer
        hold = believe(context, claim, answer, sent_at, policy)
    except UsageError as error:  # an answer: nothing happened
        if (
            context.queue.closed
        ):  # but then it may be that of the rest of a quorum, after a close that would not wait any longer
            tell(
                error, f"'{claim.name}' may stay locked for up to {claim.ttl:g} s: the client was closed while it was asked for"
            )
        raise
    except BaseException as error:
        try:
            await _take_back(context, claim, error, answer is not None)
        except BaseException as again:
            if context.runtime.struck(again):  # in the midst of that
                await _take_back(context, claim, again, answer is not None)
            raise
        raise
    if hold is None:
        raise await _slow(context, claim, sent_at)
    return hold


async def _take_back(context: Context, claim: Claim, error: BaseException, answered: bool) -> None:
    """See to it that nothing is left of a claim, because of `error`. Harmless when repeated."""
    if not answered:
        undone = await undo(context, claim.name, claim.token, claim.ttl, error)
        # Nothing of it is on its way, so it was not sent, or a signal's handler has raised before the answer came here.
        answered = undone is Undone.NEVER_ASKED and context.runtime.struck(error)
    if answered:
        await drop_or_tell(context, claim.name, claim.token, claim.ttl, error)


async def _slow(context: Context, claim: Claim, sent_at: float) -> Unavailable:
    """The error for a grant that came too late to be of any use, once it is given back."""
    now = context.runtime.now()
    error = Unavailable(
        f"{context.backend.address} granted '{claim.name}' after {now - sent_at:.3f} s, too late for a ttl of {claim.ttl:g} s. "
        "Use a longer ttl, or look at what is slow: the store, the network or this process",
        backend=context.backend.address,
        cause="slow",
    )
    if await drop_or_tell(context, claim.name, claim.token, claim.ttl, error):
        error.tell("It was given back")
    return error


def believe(context: Context, claim: Claim, granted: Granted, sent_at: float, policy: Policy) -> Hold | None:
    """The hold that a grant gives, if the grant can still be believed."""
    ttl, drift = policy.believed(granted.ttl), context.drift
    until, now = deadline(sent_at, ttl, drift), context.runtime.now()
    if now >= until:
        return None
    hold = Hold(claim.name, claim.token, ttl, granted.fence, until, drift, sent_at, policy)
    hold.waited = now - sent_at
    return hold


def too_late(context: Context, name: str, refused: Refused, waited: float) -> AcquireTimeout:
    """The error for a wait that took too long."""
    holder = f"held by {shown(refused.owner)}" if refused.owner else "held by somebody else"
    if refused.owner.partition(" (")[0] == context.runtime.owner():
        holder += ", which is this process (locks are not re-entrant),"
    if refused.retry_after is None:
        end = "with no expiry (a foreign client wrote it so)"
    else:
        end = f"for at most another {refused.retry_after:.1f} s unless it is extended"
    voted = f". The nodes say:\n{table(refused.votes)}" if refused.votes else f". The store is {context.backend.address}"
    return AcquireTimeout(
        f"'{name}' could not be had in {waited:.2f} s: {holder} {end}. {NOTHING_LEFT}; try later or wait longer "
        f"with timeout={voted}",
        name=name,
        owner=refused.owner,
        waited=waited,
        votes=refused.votes,
    )
