"""Waiting for a lock on a store that keeps a line: asked for once, then told.

Invariant: a waiter is told, or asks again no later than the end of the holder's lease, and every few seconds: the one that was
served meanwhile may be frozen or dead, and would tell no one. Interleavings and where each is handled:

- released between the refusal and the lining up → it lines up with the claim itself, in one step
- an announcement is lost, the inbox breaks      → all waiters in line ask again (`Listener`), or when the holder's lease ends
- the holder is a stranger who announces nothing → asked again every now and then, as without a line (`_again_at`)
- no inbox can be opened                         → the same; unless this user may not, which is said
- the announcement waited in a buffer            → it counts from the last answered question (`Listener`); if that is old: asks
- it tells of a grant before the last answer     → its fence is not higher than that answer's: asked again
- the store's clock is set back or forward       → no grant is dated by it
- told to ask again while an answer is on its way → it asks again all the same (`LocalQueue.asked`)
- the answer to its own question says that it was served, before the announcement does → that one is ignored (`LocalQueue.has`)
- gave up, cancelled, interrupted                → `_give_up`: it leaves the line; what it was given meanwhile is passed on
- an announcement for a waiter that has left     → passed on at once (`Listener`)
- what it was given is over before it came to it → it is first once more, with another token (`LocalQueue.back`)
- the client is closed                           → all waiters give up, and the connections are closed after that (`closing`)
- too many nodes of a quorum owe its token answers → it goes on with another, as old as before (`LocalQueue.renew`)
"""

from __future__ import annotations

from math import inf
from typing import cast

from ...core import backoff
from ...core.claim import Claim, Refused
from ...core.lease import Hold
from ...errors import Unavailable
from ..ask import ask, too_late
from ..attempt import Attempt
from ..context import Context
from ..hold import give_back
from ..undo import drop_or_tell
from .handover import place
from .waiter import LEFT, SERVED, Waiter


async def acquire(context: Context, attempt: Attempt, timeout: float | None) -> Hold:
    """See `acquire.acquire`."""
    runtime, queue, inside = context.runtime, context.queue, context.inside
    runtime.check_loop()
    began = runtime.now()
    me = Waiter(attempt, runtime.token(attempt.note), began)
    answer = None
    try:  # from here on: a waiter that is first and gone would keep all others waiting
        inside.busy[me] = (inside.who(),)
        if queue.enter_and_ask(me):
            answer = await ask(context, Claim(me.name, me.token, attempt.stored), attempt.policy, began)
            if type(answer) is Hold:
                queue.got(me, answer)
                if not queue.closed and me.state is SERVED:
                    inside.busy.pop(me, None)  # here, not at the end: a signal that strikes must find it in our hands
                    if inside.bells:
                        inside.ring()
                    return answer
        else:
            queue.enter(me)
        hold = await _wait(context, me, inf if timeout is None else began + timeout, answer)
        hold.waited = runtime.now() - began
        inside.leave(me)
        return hold
    except BaseException as error:
        try:
            await _give_up(context, me, answer, error)
        except BaseException as again:
            if runtime.struck(again):  # in the midst of that, or before it had begun
                await _give_up(context, me, answer, again)
            raise
        finally:
            inside.leave(me)
        if queue.closed and isinstance(error, Unavailable):  # it hung up on us, in the middle of a question
            raise context.closed() from error
        raise


async def _wait(context: Context, me: Waiter, give_up: float, answer: Hold | Refused | None) -> Hold:
    """`answer` is that to the first question, if it was asked."""
    runtime, queue = context.runtime, context.queue
    tries = 0
    while True:
        if queue.closed or me.state is LEFT:  # the latter: in the child of a fork
            raise context.closed()
        now = runtime.now()
        if me.hold is not None:
            if me.state is not SERVED:  # the one that gave it was interrupted
                queue.got(me, me.hold)
            if not me.hold.lost(now):
                return me.hold
            queue.back(me, runtime.token(me.attempt.note))  # given while we waited for an answer or did not run; over by now
        if answer is not None:
            now = me.arrival  # when that was asked
        last = now >= give_up  # the lock may be free by now, so one question follows, first or not
        look_at = queue.turn(me, now, last) if answer is None else None
        if look_at is None:
            hold, told = await _ask(context, me, not last, answer)
            answer = None
            if hold is not None:
                me.hold = hold  # at once: whatever interrupts us, it is passed on
                queue.got(me, hold)
                continue
            queue.asked(me, _again_at(context, me, told, tries))
            tries += 1
            if last and me.hold is None:
                raise too_late(context, me.name, cast(Refused, me.refused), runtime.now() - me.arrival)
        elif me.bell is None:
            me.bell = runtime.latch()  # and look once more: another thread may have wanted to ring it
            if queue.is_next(me):
                await _inbox(context)  # the one that hands over to it needs one, and should not have to open it then
        else:
            await me.bell.wait(min(look_at, give_up))


async def _ask(context: Context, me: Waiter, waits: bool, answer: Hold | Refused | None) -> tuple[Hold | None, bool]:
    """Ask the store, unless that is done, and, if it refuses and we wait, once more with a place in its line.

    The hold, or None: refused. And whether the store will tell: it has our place, and the inbox is open.
    """
    runtime, queue, attempt = context.runtime, context.queue, me.attempt
    lined_up = me.in_line and me.refused is not None and me.refused.owner
    inbox = await _inbox(context) if lined_up else ""
    if not inbox:  # most locks are free: the first question needs no inbox. And strangers tell no one
        sent_at = me.arrival
        if answer is None:
            sent_at = runtime.now()
            answer = await ask(context, Claim(me.name, me.token, attempt.stored), attempt.policy, sent_at)
        if answer.__class__ is Hold:  # not by a call: a signal's handler might raise there, and the hold would be lost
            return answer, False
        me.refused = answer = cast(Refused, answer)
        context.listener.set_clock(sent_at, answer.at)
        if answer.spent or not me.in_line:  # another token: the quorum may still be releasing this one
            queue.change_token(me, runtime.token(attempt.note))
        if not answer.owner or not waits:
            return None, False
        inbox = "" if lined_up else await _inbox(context)
    if not inbox or not queue.line_up(me):
        return None, False
    if context.listener.cancelled:  # it failed before we were in line, so we were not told to ask again
        await _inbox(context)
    sent_at = runtime.now()
    answer = await ask(context, Claim(me.name, me.token, attempt.stored, place(context, me, inbox)), attempt.policy, sent_at)
    if answer.__class__ is Hold:  # as above
        return answer, False
    me.refused = answer = cast(Refused, answer)
    context.listener.set_clock(sent_at, answer.at)
    if answer.spent:
        queue.change_token(me, runtime.token(attempt.note))
    else:
        me.after = answer.fence
    return None, True


async def _inbox(context: Context) -> str:
    """The inbox, or "" if it cannot be opened now, though the store may well answer questions."""
    try:
        return await context.listener.listen()
    except Unavailable as error:
        if error.cause == "auth":  # for good: it says what to do
            raise
        return ""


def _again_at(context: Context, me: Waiter, told: bool, tries: int) -> float:
    """When to ask again although nothing rings. `told`: the store will tell, unless the next holder dies before it releases."""
    now, jitter, refused = context.runtime.now(), context.runtime.jitter(), cast(Refused, me.refused)
    if refused.owner and refused.retry_after is not None and told:
        return now + context.queue.relied_on(refused.retry_after) + 0.02 * jitter
    return now + backoff.pause(tries, jitter, refused.retry_after, None)


async def _give_up(context: Context, me: Waiter, answer: Hold | Refused | None, error: BaseException) -> None:
    """Leave the line, here and in the store, and pass on what came in the last moment, or is the `answer` that it was
    interrupted with. What stays there is said on `error`. Harmless when repeated."""
    if me.hold is None and isinstance(answer, Hold):
        me.hold = answer
    given = context.queue.leave(me)

    async def clean_up() -> None:
        if given is not None:
            await give_back(context, given, error)
        if me.in_line and (given is None or given.token != me.token):
            await drop_or_tell(context, me.name, me.token, me.ttl, error)

    if given is not None or me.in_line:
        await context.runtime.shield(clean_up)
