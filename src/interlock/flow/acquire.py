"""Getting the lock: ask once, or wait until it is ours.

A store that keeps a line tells those who wait (`wait`); from any other it is asked for again and again, with growing pauses.
Either way nothing is left behind, whatever goes wrong: see `ask` and `wait`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from ..core import backoff
from ..core.claim import Claim, Refused
from ..core.lease import Hold
from ..errors import InterlockError
from .ask import ask, too_late
from .attempt import Attempt
from .context import Context
from .hold import finish, give_back
from .waiting import wait


async def try_acquire(context: Context, attempt: Attempt) -> Hold | None:
    """One question. The hold, or None if another client has the lock. Raises Unavailable when the store does not answer."""
    context.runtime.check_loop()
    answer = None
    try:
        with context.inside.visit(attempt.name, attempt.ttl):
            if context.queue.closed:
                raise context.closed()
            claim = Claim(attempt.name, context.runtime.token(attempt.note), attempt.stored)
            answer = await ask(context, claim, attempt.policy, context.runtime.now())
            if not isinstance(answer, Hold):
                return None
            answer.waited = 0.0
            return await _had(context, answer)
    except (InterlockError, GeneratorExit):
        raise
    except BaseException as error:
        await _return(context, answer, error)
        raise


async def _had(context: Context, hold: Hold) -> Hold:
    """It is ours, unless the client was closed meanwhile: then it is given back."""
    context.queue.holds(hold)
    if context.queue.closed:
        error = context.closed()
        await context.runtime.shield(lambda: give_back(context, hold, error))
        raise error
    return hold


async def _return(context: Context, answer: Hold | Refused | None, error: BaseException) -> None:
    """A signal's handler has raised `error` with an answer in hand that the caller does not get."""
    if isinstance(answer, Hold):
        await finish(context, answer, error)


def acquire(context: Context, attempt: Attempt, timeout: float | None) -> Coroutine[Any, Any, Hold]:
    """Wait until the lock is ours, when awaited.

    Raises AcquireTimeout when `timeout` has passed, Unavailable at the first question that the store does not answer.
    """
    if context.backend.capabilities.lines:
        return wait.acquire(context, attempt, timeout)
    return _poll(context, attempt, timeout)


async def _poll(context: Context, attempt: Attempt, timeout: float | None) -> Hold:
    runtime = context.runtime
    runtime.check_loop()
    began = runtime.now()
    give_up = None if timeout is None else began + timeout
    tries = 0
    answer = None
    try:
        with context.inside.visit(attempt.name, attempt.ttl):
            while not context.queue.closed:
                # A fresh token each time: what a late clean-up of an earlier attempt takes back can never be this one's.
                claim = Claim(attempt.name, runtime.token(attempt.note), attempt.stored)
                answer = await ask(context, claim, attempt.policy, runtime.now())
                now = runtime.now()
                if isinstance(answer, Hold):
                    answer.waited = now - began
                    return await _had(context, answer)
                left = None if give_up is None else give_up - now
                if left is not None and left <= 0:
                    raise too_late(context, attempt.name, answer, now - began)
                # When time is up in the middle of the pause, one last question follows: the lock may be free by then.
                await runtime.sleep(backoff.pause(tries, runtime.jitter(), answer.retry_after, left))
                tries += 1
            raise context.closed()
    except (InterlockError, GeneratorExit):
        raise
    except BaseException as error:
        await _return(context, answer, error)
        raise
