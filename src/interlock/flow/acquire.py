"""Getting the lock: ask, wait while it is refused, and leave nothing behind whatever goes wrong.

Invariant: `acquire` either returns a hold that may be believed now, or raises, and then no request of it can still put the
lock into the store. Interleavings and where each is handled:

- the reply is lost, late or cut; the caller is cancelled or interrupted while it is on its way   → `_ask`: undo by token,
  down the same path, shielded and bounded
- the caller is cancelled in the instant in which the reply arrives                            → the same: the transport counts
  a request as answered only when its caller has the answer
- cancelled while pausing between two claims                                                   → nothing is out there
- the grant took longer than it is valid (slow store, frozen process)                          → given back, `Unavailable`
"""

from __future__ import annotations

from ..core import backoff
from ..core.claim import Claim, Granted, Refused
from ..core.lease import FIXED, Hold, Policy, deadline
from ..core.quorum import table
from ..errors import AcquireTimeout, Unavailable, UsageError
from .site import Site


async def try_acquire(site: Site, name: str, ttl: float, policy: Policy = FIXED, note: str = "") -> Hold | None:
    """One question. The hold, or None if somebody else has the lock. Raises Unavailable when the store does not answer."""
    site.runtime.here()
    answer = await _ask(site, Claim(name, site.runtime.token(note), ttl + policy.delay), policy)
    return answer if isinstance(answer, Hold) else None


async def acquire(site: Site, name: str, ttl: float, timeout: float | None, policy: Policy = FIXED, note: str = "") -> Hold:
    """Wait until the lock is ours.

    Raises AcquireTimeout when `timeout` has passed, Unavailable at the first question that the store does not answer.
    """
    runtime = site.runtime
    runtime.here()
    began = runtime.now()
    give_up = None if timeout is None else began + timeout
    attempt = 0
    while True:
        # A fresh token each time: what a late clean-up of an earlier attempt takes back can never be this one's.
        answer = await _ask(site, Claim(name, runtime.token(note), ttl + policy.delay), policy)
        if isinstance(answer, Hold):
            return answer
        now = runtime.now()
        left = None if give_up is None else give_up - now
        if left is not None and left <= 0:
            raise _too_late(site, name, answer, now - began)
        # When time is up in the middle of the pause, one last question follows: the lock may be free by then.
        await runtime.sleep(backoff.pause(attempt, runtime.jitter(), answer.retry_after, left))
        attempt += 1


async def _ask(site: Site, claim: Claim, policy: Policy) -> Hold | Refused:
    """One claim and, if its outcome stays unknown, its undoing."""
    sent_at = site.runtime.now()  # before anything is sent: the lease is counted from here
    try:
        answer = await site.backend.claim(claim, site.within(claim.ttl))
    except UsageError:  # an answer: nothing happened
        raise
    except BaseException as error:
        await site.undo(claim.name, claim.token, claim.ttl, error)
        raise
    if isinstance(answer, Refused):
        return answer
    return await _believed(site, claim, answer, sent_at, policy)


async def _believed(site: Site, claim: Claim, granted: Granted, sent_at: float, policy: Policy) -> Hold:
    """The hold that a grant gives, if the grant can still be believed. The store keeps the name closed for `policy.delay`
    more, which is not the holder's."""
    ttl = granted.ttl - policy.delay
    until = deadline(sent_at, ttl, site.drift)
    now = site.runtime.now()
    if now < until:
        return Hold(claim.name, claim.token, ttl, granted.fence, until, site.drift, sent_at, policy)
    error = Unavailable(
        f"{site.backend.address} granted '{claim.name}' after {now - sent_at:.3f} s, too late for a ttl of {claim.ttl:g} s. "
        "Use a longer ttl, or look at what is slow: the store, the network or this process",
        backend=site.backend.address,
        cause="slow",
    )
    try:
        await site.runtime.shield(lambda: site.backend.release(claim.name, claim.token, site.request_timeout))
    except Unavailable:
        await site.undo(claim.name, claim.token, claim.ttl, error, held=True)
    else:
        error.tell("It was given back")
    raise error


def _too_late(site: Site, name: str, refused: Refused, waited: float) -> AcquireTimeout:
    holder = f"held by {refused.owner}" if refused.owner else "held by somebody else"
    if refused.owner.partition(" (")[0] == site.runtime.owner():
        holder += ", which is this process (locks are not re-entrant),"
    if refused.retry_after is None:
        end = "with no expiry (a foreign client wrote it so)"
    else:
        end = f"for at most another {refused.retry_after:.1f} s unless it is extended"
    voted = f"\n{table(refused.votes)}" if refused.votes else f". The store is {site.backend.address}"
    return AcquireTimeout(
        f"'{name}' could not be had in {waited:.2f} s: {holder} {end}. Nothing is left behind; try later or wait longer "
        f"with timeout={voted}",
        name=name,
        owner=refused.owner,
        waited=waited,
        votes=refused.votes,
    )
