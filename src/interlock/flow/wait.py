"""Waiting for a lock on a store that keeps a line: asked for once, then told.

Invariant: whoever waits is told, or asks again no later than the end of the holder's lease, and every few seconds: who was
served meanwhile may be frozen or dead, and nobody would tell. Interleavings and where each is
handled:

- released between the refusal and the lining up → it lines up with the claim itself, in one step
- an announcement is lost, the inbox breaks      → everybody in line asks again (`Hub`), or when the holder's lease ends
- the holder is a stranger who announces nothing → asked again every now and then, as without a line (`_again_at`)
- no inbox can be opened                         → the same; unless this user may not, which is said
- the announcement waited in a buffer            → it counts from the last answered question (`Hub`); if that is old: asks
- it tells of a grant before the last answer     → its fence is not higher than that answer's: asked again
- the store's clock is set back or forward       → no grant is dated by it
- told to ask again while an answer is on its way → it asks again all the same (`Gate.asked`)
- the answer to its own question says that it was served, before the announcement does → that one is ignored (`Gate.has`)
- gave up, cancelled, interrupted                → `_give_up`: it leaves the line; what it was given meanwhile is passed on
- an announcement for somebody who has left      → passed on at once (`Hub`)
- what it was given is over before it came to it → it is first once more, with another token (`Gate.back`)
- the client is closed                           → everybody gives up, and the connections are closed after that (`closing`)
- too many nodes of a quorum owe its token answers → it goes on with another, as old as before (`Gate.renew`)
"""

from __future__ import annotations

from math import inf
from typing import cast

from ..core import backoff
from ..core.claim import Claim, Refused
from ..core.lease import Hold, Policy
from ..errors import InterlockError, Unavailable
from .ask import ask, too_late
from .gate import Waiter
from .hand import drop, place
from .hold import give_back
from .site import Site, tell_left


async def acquire(site: Site, name: str, ttl: float, timeout: float | None, policy: Policy, note: str, fair: bool) -> Hold:
    """See `acquire.acquire`."""
    runtime, gate = site.runtime, site.gate
    runtime.here()
    began = runtime.now()
    me = Waiter(name, runtime.token(note), ttl, policy, note, fair, began)
    inside, answer = site.inside, None
    try:  # from here on: whoever is first and gone would keep everybody waiting
        inside.busy[me] = (inside.who(),)
        if gate.enter_and_ask(me):
            answer = await ask(site, Claim(name, me.token, ttl + policy.delay if policy.delay else ttl), policy, began)
            if type(answer) is Hold:
                gate.got(me, answer)
                if not gate.closed and not me.gone:
                    inside.busy.pop(me, None)  # here, not at the end: a signal that strikes must find it in our hands
                    if inside.bells:
                        inside.ring()
                    return answer
        else:
            gate.enter(me)
        hold = await _wait(site, me, inf if timeout is None else began + timeout, answer)
        hold.waited = runtime.now() - began
        inside.leave(me)
        return hold
    except BaseException as error:
        try:
            await _give_up(site, me, answer, error)
        except BaseException as again:
            if runtime.struck(again):  # in the midst of that, or before it had begun
                await _give_up(site, me, answer, again)
            raise
        finally:
            inside.leave(me)
        if gate.closed and isinstance(error, Unavailable):  # it hung up on us, in the middle of a question
            raise site.closed() from error
        raise


async def _wait(site: Site, me: Waiter, give_up: float, answer: Hold | Refused | None) -> Hold:
    """`answer` is that to the first question, if it was asked."""
    runtime, gate = site.runtime, site.gate
    attempt = 0
    while True:
        if gate.closed or me.gone:  # gone: in the child of a fork
            raise site.closed()
        now = runtime.now()
        if me.hold is not None and me.hold.lost(now):  # given while we waited for an answer or did not run, and over by now
            gate.back(me, runtime.token(me.note))
        elif me.hold is not None:
            if me.inside:  # whoever gave it was interrupted
                gate.got(me, me.hold)
            return me.hold
        if answer is not None:
            now = me.arrival  # when that was asked
        last = now >= give_up  # the lock may be free by now, so one question follows, whoever's turn it is
        look_at = gate.turn(me, now, last) if answer is None else None
        if look_at is None:
            hold = await _ask(site, me, not last, answer)
            answer = None
            if hold is not None:
                me.hold = hold  # at once: whatever interrupts us, it is passed on
                gate.got(me, hold)
                continue
            gate.asked(me, _again_at(site, me, attempt))
            attempt += 1
            if last and me.hold is None:
                raise too_late(site, me.name, cast(Refused, me.refused), now - me.arrival)
        elif me.bell is None:
            me.bell = runtime.latch()  # and look once more: somebody may have wanted to ring it
            if gate.is_next(me):
                await _inbox(site)  # whoever hands over to it needs one, and should not have to open it then
        else:
            await me.bell.wait(min(look_at, give_up))


async def _ask(site: Site, me: Waiter, waits: bool, answer: Hold | Refused | None) -> Hold | None:
    """Ask the store, unless that is done, and, if it refuses and we wait, once more with a place in its line. None: refused."""
    runtime, ttl = site.runtime, me.ttl + me.policy.delay
    told = me.in_line and me.refused is not None and me.refused.owner
    inbox = await _inbox(site) if told else ""
    if not inbox:  # most locks are free: the first question needs no inbox. And strangers tell nobody
        sent_at = me.arrival
        if answer is None:
            sent_at = runtime.now()
            answer = await ask(site, Claim(me.name, me.token, ttl), me.policy, sent_at)
        if answer.__class__ is Hold:  # not by a call: a signal's handler might raise there, and nobody would have the hold
            return answer
        me.refused = answer = cast(Refused, answer)
        site.hub.set_clock(sent_at, answer.at)
        if answer.spent or not me.in_line:  # a quorum may still be taking back what some granted: not what it votes for next
            site.gate.renew(me, runtime.token(me.note))
        if not answer.owner or not waits:
            return None
        inbox = "" if told else await _inbox(site)
    me.deaf = not inbox
    if me.deaf or not site.gate.line_up(me):
        return None
    if site.hub.felled:  # the listener failed before we were in line, so we were not told to ask again
        await _inbox(site)
    sent_at = runtime.now()
    answer = await ask(site, Claim(me.name, me.token, ttl, place(site, me, inbox)), me.policy, sent_at)
    if answer.__class__ is Hold:  # as above
        return answer
    me.refused = answer = cast(Refused, answer)
    site.hub.set_clock(sent_at, answer.at)
    if answer.spent:
        site.gate.renew(me, runtime.token(me.note))
    else:
        me.after = answer.fence
    return None


async def _inbox(site: Site) -> str:
    """The inbox, or "" if it cannot be opened now, though the store may well answer questions."""
    try:
        return await site.hub.listen()
    except Unavailable as error:
        if error.cause == "auth":  # for good: it says what to do
            raise
        return ""


def _again_at(site: Site, me: Waiter, attempt: int) -> float:
    """When to ask again although nobody rings."""
    now, jitter, refused = site.runtime.now(), site.runtime.jitter(), cast(Refused, me.refused)
    if refused.owner and refused.retry_after is not None and not me.deaf:
        return now + site.gate.relied_on(refused.retry_after) + 0.02 * jitter
    return now + backoff.pause(attempt, jitter, refused.retry_after, None)


async def _give_up(site: Site, me: Waiter, answer: Hold | Refused | None, error: BaseException) -> None:
    """Leave the line, here and in the store, and pass on what came in the last moment, or is the `answer` that it was
    interrupted with. What stays there is said on `error`. Harmless when repeated."""
    if me.hold is None and isinstance(answer, Hold):
        me.hold = answer
    given = site.gate.leave(me)

    async def clean_up() -> None:
        if given is not None:
            await give_back(site, given, error)
        if me.in_line and (given is None or given.token != me.token):
            try:
                await drop(site, me.name, me.token)
            except InterlockError as failure:
                tell_left(error, me.name, me.ttl, failure)

    if given is not None or me.in_line:
        await site.runtime.shield(clean_up)
