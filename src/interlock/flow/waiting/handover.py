"""Handing over: a release and the claim of the next one of this client, in one request.

Interleavings
- nothing comes of it: no inbox can be opened, the listener was cancelled (with everything, perhaps: to start it anew would
  leave a task behind), the store refuses (it is full, say): it is a plain release, and the heir asks for itself. A release must
  not fail for the sake of a waiter
- the answer is lost: nothing may be left of either token (here the heir's; the other is the release's affair, after it), the
  heir asks for itself. Unless the heir was served from the line meanwhile, and told so: then it has it, and keeps it
- the heir has left meanwhile, or got it by itself: what was granted, or stands in line, is the caller's to give back
- the store served another client, which came earlier: the heir stands in its line. It may be served from there, and be told so,
  before this answer arrives
"""

from __future__ import annotations

from typing import NamedTuple, cast

from ...backends.port import Line
from ...core.claim import Claim, Granted, Place
from ...core.lease import Hold
from ...errors import InterlockError, Unavailable, UsageError
from ..ask import believe
from ..context import Context
from ..notes import left_behind
from ..undo import drop
from .waiter import Waiter

PROBATION = 3.0  # seconds that a grant lasts which finds its waiter asleep; one that is awake renews it in time


class Outcome(NamedTuple):
    """What came of a hand-over. `held`: the lease was held. The rest is to be given back, once it is known to be released:
    `unclaimed` was granted to an heir that has left; `token` is of no use. The store keeps either for `ttl`."""

    held: bool
    unclaimed: Hold | None = None
    token: str = ""
    ttl: float = 0.0


def place(context: Context, waiter: Waiter, inbox: str) -> Place:
    """Its place in the store's line."""
    policy = waiter.attempt.policy
    ttl = min(waiter.ttl, PROBATION) if policy.renew else waiter.ttl
    return Place(int(context.listener.clock().there(waiter.arrival) * 1e6), inbox, policy.stored(ttl))


async def hand_over(context: Context, hold: Hold, heir: Waiter, barges: bool) -> Outcome | None:
    """Release `hold` with one of ours next. None: nothing was done.

    Raises as the store does: then nothing is known of the release, and nothing is left of the heir's claim.
    """
    if context.listener.cancelled:  # the next waiter starts it again, if it is not cancelled as well
        return None
    try:
        inbox = await context.listener.listen()
    except InterlockError:
        return None
    # A token of its own: should the heir ask for itself after all, neither must undo what the other got.
    token, seat = context.runtime.token(heir.attempt.note), place(context, heir, inbox)
    claim = Claim(heir.name, token, heir.attempt.stored, seat)
    before = 0 if barges else seat.arrival
    sent_at, handed = context.runtime.now(), None
    try:
        if not context.queue.offer(heir, token):
            return None
        handed = await cast(Line, context.backend).hand_over(hold.name, hold.token, claim, before, context.within(hold.ttl))
        if isinstance(handed.heir, Granted):
            given = believe(context, claim, handed.heir, sent_at, heir.attempt.policy)
            if given is not None:
                taken = context.queue.handed(hold, heir, given, barges)
                return Outcome(handed.held, None if taken else given, ttl=claim.ttl)
        elif not handed.heir.spent and context.queue.stands(heir, handed.heir, sent_at):
            context.queue.left(hold)
            return Outcome(handed.held)
        useless = context.queue.withdraw(heir, token)  # granted too late, or spent, or not needed any more
        context.queue.left(hold)
        return Outcome(handed.held, None, token if useless else "", claim.ttl)
    except UsageError:  # an answer: nothing happened
        context.queue.withdraw(heir, token)
        return None
    except BaseException as error:
        held = handed is not None and handed.held
        try:
            answered = await _take_back(context, hold, heir, token, held, error)
        except BaseException as again:
            if context.runtime.struck(again):  # in the midst of that
                await _take_back(context, hold, heir, token, held, again)
            raise
        if answered and isinstance(error, Unavailable):  # that was its answer
            return None
        raise


async def _take_back(context: Context, hold: Hold, heir: Waiter, token: str, held: bool, error: BaseException) -> bool:
    """See to it that nothing is left of the heir's claim, because of `error`; `held`: the lease was given back by it. Whether
    nothing was unanswered. Harmless when repeated."""
    useless = context.queue.withdraw(heir, token)
    if held:  # interrupted with the answer in hand: it must not be released once more
        hold.released = True
        hold.notify("released")
        context.queue.left(hold)
    if not useless:
        return False
    try:
        if await context.runtime.shield(lambda: context.backend.undo(hold.name, token, context.request_timeout)):
            return False
        if not isinstance(error, Unavailable) and token not in (heir.token, heir.hold and heir.hold.token):
            await context.runtime.shield(
                lambda: drop(context.backend, hold.name, token, context.request_timeout)
            )  # interrupted with the answer in hand, perhaps
        return True
    except InterlockError as failure:  # logged: the error may never be seen, if the release itself comes to a good end
        left_behind(hold.name, heir.ttl, failure)
    return False
