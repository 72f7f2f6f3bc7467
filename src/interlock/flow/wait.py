"""Waiting for a lock on a store that keeps a line: asked for once, then told.

Invariant: whoever waits is told, or asks again no later than the end of the holder's lease. Interleavings and where each is
handled:

- released between the refusal and the lining up → it lines up with the claim itself, in one step
- an announcement is lost, the inbox breaks      → everybody in line asks again (`Hub`), or when the holder's lease ends
- the holder is a stranger who announces nothing → asked again every now and then, as without a line (`_pause`)
- the announcement waited in a buffer            → its age is told by the store's clock (`Hub`); if it is too old, asked again
- gave up, cancelled, interrupted                → `_give_up`: it leaves the line; what it was given meanwhile is passed on
- an announcement for somebody who has left      → passed on at once (`Hub`)
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import cast

from ..core import backoff
from ..core.claim import Claim, Refused
from ..core.lease import Hold, Policy
from ..errors import InterlockError
from .ask import ask, too_late
from .gate import Waiter
from .hand import place
from .hold import release
from .site import Site


async def acquire(site: Site, name: str, ttl: float, timeout: float | None, policy: Policy, note: str, fair: bool) -> Hold:
    """See `acquire.acquire`."""
    runtime, gate = site.runtime, site.gate
    began = runtime.now()
    me = Waiter(name, runtime.token(note), ttl, policy, note, fair, began)
    try:
        gate.enter(me)  # inside: whoever is first and gone would keep everybody waiting
        return await _wait(site, me, inf if timeout is None else began + timeout)
    except BaseException as error:
        await _give_up(site, me, error)
        raise


async def _wait(site: Site, me: Waiter, give_up: float) -> Hold:
    runtime, gate = site.runtime, site.gate
    attempt = 0
    while True:
        if me.hold is not None:
            return me.hold
        now = runtime.now()
        asks, look_at = gate.asks(me, now)
        last = now >= give_up  # the lock may be free by now, so one question follows, whoever's turn it is
        if last or (asks and now >= me.until):
            hold = await _ask(site, me, waits=not last)
            if hold is not None:
                gate.got(me, hold)
                if me.in_line and me.token != hold.token:  # handed over to in vain, at the same moment
                    with suppress(InterlockError):
                        await site.backend.release(me.name, me.token, site.request_timeout)
                return hold
            _pause(site, me, attempt)
            attempt += 1
            if last:
                raise too_late(site, me.name, cast(Refused, me.refused), now - me.arrival)
        if me.bell is None:
            me.bell = runtime.latch()
            continue  # somebody may have wanted to ring it
        await me.bell.wait(min(me.until if asks else look_at, give_up))


async def _ask(site: Site, me: Waiter, waits: bool) -> Hold | None:
    """Ask the store and, if it refuses and we wait, once more with a place in its line. None: refused."""
    runtime, ttl = site.runtime, me.ttl + me.policy.delay
    told = me.in_line and me.refused is not None and me.refused.owner
    if not told:  # most locks are free: the first question needs no inbox. And strangers tell nobody
        answer = await ask(site, Claim(me.name, me.token, ttl), me.policy)
        if isinstance(answer, Hold):
            return answer
        me.refused = answer
        if not answer.owner or not waits:
            return None
    inbox = await site.hub.listen()
    sent_at = runtime.now()
    site.gate.line_up(me, me.token)
    answer = await ask(site, Claim(me.name, me.token, ttl, place(site, me, inbox)), me.policy)
    if isinstance(answer, Hold):
        return answer
    me.refused, me.sent_at, me.at = answer, sent_at, answer.at
    site.hub.offset = answer.at - sent_at
    return None


def _pause(site: Site, me: Waiter, attempt: int) -> None:
    """When to ask again although nobody rings."""
    now, jitter, refused = site.runtime.now(), site.runtime.jitter(), cast(Refused, me.refused)
    if refused.owner and refused.retry_after is not None:
        me.until = now + refused.retry_after + 0.001 + 0.02 * jitter
    else:
        me.until = now + backoff.pause(attempt, jitter, refused.retry_after, None)


async def _give_up(site: Site, me: Waiter, error: BaseException) -> None:
    """Leave the line, here and in the store, and pass on what came in the last moment."""
    given = site.gate.leave(me)
    with suppress(InterlockError):
        if given is not None:
            await site.runtime.shield(lambda: release(site, given))
        elif me.in_line:
            await site.runtime.shield(lambda: site.backend.release(me.name, me.token, site.request_timeout))
