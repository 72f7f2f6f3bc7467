"""Closing a client: no new verb begins, all verbs end, then the connections are closed.

Invariant: once `close` has returned, nothing of the client is in the store but what an error, a note on one or a warning names,
with how long it stays. Interleavings and where each is handled:

- amid an acquire, in line, at a hand-over         → each waiter is woken and gives up (`LocalQueue.close`); a grant that is on
  its way is given back. Both are waited for, clean-up included (`Inside`)
- amid a release, an extension, a stray's passing on → waited for
- amid a renewal                                    → cut off: the lease stays held, and is named below
- cancelled while it waits                          → it waits on, and raises the cancellation afterwards
- called twice, or by two threads                   → both wait for the same, and close what is still open
- called by a signal handler that has interrupted a verb of the same thread → that verb cannot go on before the handler has
  returned: a thread waits for it and does the rest
- called by `on_lost`                               → that is a thread of its own, or a callback, which can only start a task
- the store is silent                               → given up after the time that a question and its undoing may take. What was
  under way then is named here, and by the errors of those who were at it
- an asyncio client whose loop is closed            → what is under way there never ends: as with a silent store
- leases that are held, or lost with their last extension unanswered → left to expire, as documented, and named
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from .context import Context
from .notes import log
from .renewing.keeper import Keeper

NAMED = 20  # leases that are named one by one when a client is closed; the rest is counted


async def close(context: Context, keeper: Keeper) -> None:
    """Have all waiters give up, wait for what is under way, and close the connections. Bounded."""
    context.queue.close()
    for subject in list(context.inside.busy):
        if (ring := getattr(subject, "ring", None)) is not None:
            ring()
    if context.inside.beneath():
        context.runtime.spawn(lambda: _close(context, keeper), lambda: None, "interlock-close")
    else:
        await _close(context, keeper)


async def _close(context: Context, keeper: Keeper) -> None:
    steps: list[Callable[[], Coroutine[Any, Any, None]]] = [keeper.close, lambda: _say(context), context.backend.close]
    if context.runtime.colour == "blocking":
        steps.insert(0, lambda: _stop_listening(context))  # it listens until the store is closed, which wakes it
        steps.append(context.listener.close)
    else:
        steps.insert(0, context.listener.close)
    if context.inside.busy:
        steps.insert(0, lambda: context.runtime.shield(lambda: _let_out(context)))
    failure: BaseException | None = None
    for step in steps:  # all of them: a cancellation must not leave connections open
        try:
            await step()
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = failure or error
    if failure is not None:
        raise failure


async def _let_out(context: Context) -> None:
    """Wait until no verb is under way: for as long as a question and its undoing may take."""
    await context.inside.wait(lambda: context.inside.busy, context.runtime.now() + 2 * context.request_timeout)
    for subject in list(context.inside.busy):
        log(
            "warning",
            "the client for %s is closed, and a request about '%s' has no answer yet: it may stay locked for up to %g s",
            context.backend.address,
            subject.name,
            subject.ttl,
            extra={"event": "closed_early", "lock": subject.name, "seconds": subject.ttl},
        )


async def _stop_listening(context: Context) -> None:
    context.listener.stop_soon()


async def _say(context: Context) -> None:
    """Name what stays in the store."""
    held = context.queue.held(context.runtime.now())
    for hold in held[:NAMED]:
        seconds = hold.policy.stored(hold.ttl)
        log(
            "warning",
            "the client for %s is closed while it holds '%s': it is not renewed any more and ends by itself within %g s",
            context.backend.address,
            hold.name,
            seconds,
            extra={"event": "closed_held", "lock": hold.name, "seconds": seconds},
        )
    if len(held) > NAMED:
        log("warning", "and %d more leases that end by themselves", len(held) - NAMED, extra={"event": "closed_held"})
