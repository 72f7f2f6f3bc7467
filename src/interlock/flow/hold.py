"""Holding and giving back: release, waiting for a loss, and how a `with` block ends.

Invariants: a lease that is over never comes back; the token is kept until the store has answered; the body's own exception is
never masked. A release may be interrupted anywhere, and each way that it ends is told here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

from ..core.lease import Hold
from ..errors import InterlockError, Unavailable, UsageError
from .context import Context
from .inside import Mark
from .loss import lost
from .notes import left_behind, tell_left
from .undo import Undone, drop, undo
from .waiting.handover import Outcome, hand_over


def check(hold: Hold, now: float) -> None:
    """Raise LeaseLost if the lease is over, UsageError if it was released or a release is on its way."""
    if hold.lost(now):
        raise lost(hold)
    if hold.released or hold.leaving:
        raise UsageError(f"the lease on '{hold.name}' was released; acquire the lock again")


def run_out(context: Context, hold: Hold, now: float) -> None:
    """The moment to tell has come and it was not renewed, or the store has said so: it is lost."""
    with context.queue.guard:  # or a release might begin between the two lines, and be told that it is lost
        if hold.released or hold.leaving:
            return
        hold.gone = hold.gone or hold.ending(now)
    hold.tell()


async def release(context: Context, hold: Hold) -> bool:
    """Give the lock back. Whether this call did; False if it was released before or is lost.

    Not stopped by a cancellation: that is raised once the answer is known. Raises Unavailable if the store stays silent; the
    token is kept, so it may be called again.
    """
    inside = context.inside
    mark: Mark | None = None
    try:
        if hold.released:
            return False
        context.runtime.check_loop()
        if hold.lost(context.runtime.now()):
            if hold.unsure and not hold.kept:  # else the keeper does it; no caller should wait here for a store that is away
                await context.runtime.shield(lambda: abandon(context, hold, context.request_timeout))
            return False  # else it needs no round trip: the store lets go of it by itself
        mark = (inside.who(),)
        if inside.busy.setdefault(hold, mark) is not mark and not await _take_over(context, hold, mark):
            return False
        if hold.in_flight:
            await _join(context, hold)
        return await _give_back(context, hold)
    except (InterlockError, GeneratorExit):  # the latter: nothing can be awaited any more
        raise
    except BaseException as error:
        # Cancelled, or a signal's handler has raised. (Not shielded from the start: a task for each release is a fifth of its
        # cost, and this hardly ever happens.)
        await finish(context, hold, error, mark)
        raise
    finally:
        if mark is not None and inside.busy.get(hold) is mark:
            del inside.busy[hold]
            if inside.bells:
                inside.ring()


async def _take_over(context: Context, hold: Hold, mark: Mark) -> bool:
    """Another thread or task is releasing it: wait for that. Whether it is still to be released, and by us.

    Two that are on their way at once could not tell from their answers whether the lease was lost: the second finds nothing.
    """
    busy = context.inside.busy
    if mark[0] and busy.get(hold) == mark:  # a signal handler has interrupted it, and it cannot go on before that returns
        return True
    until = context.runtime.now() + 4 * context.request_timeout  # an extension, the release and their undoing

    def under_way() -> bool:
        return busy.setdefault(hold, mark) is not mark

    await context.runtime.shield(lambda: context.inside.wait(under_way, until))
    if under_way():  # its end was never noted: an exception struck there
        busy[hold] = mark
    if hold.released or hold.lost(context.runtime.now()):
        busy.pop(hold, None)
        context.inside.ring()
        return False
    return True


async def give_back(context: Context, hold: Hold, error: BaseException) -> None:
    """Release what was granted and is of no use, because of `error`. What stays in the store is said there."""
    try:
        await release(context, hold)
    except InterlockError as failure:
        tell_left(error, hold.name, hold.policy.stored(hold.ttl), failure)


async def finish(context: Context, hold: Hold, error: BaseException, mark: Mark | None = None) -> None:
    """A release was interrupted by `error`, before it began perhaps: do it, though others interrupt meanwhile. If that gets no
    answer, it is said on the error. Harmless when repeated, and for a lease that is over. `mark`: that of the release."""
    if hold.released or hold.lost(context.runtime.now()):
        if hold.released:  # it may have struck before the end of that was noted
            context.inside.leave(hold)
        return
    busy, mine = context.inside.busy, mark or (context.inside.who(),)

    async def give_back() -> None:
        if busy.setdefault(hold, mine) is not mine and not await _take_over(context, hold, mine):
            return
        hold.leaving = True
        await drop(context.backend, hold.name, hold.token, context.request_timeout, unanswered=True)
        hold.released = hold.released or not hold.lost(context.runtime.now())
        hold.notify("released")
        context.queue.left(hold)

    try:
        await context.runtime.shield(give_back)
    except InterlockError as failure:
        error.add_note(f"interlock: '{hold.name}' was not released ({failure}): it ends with its ttl, within {hold.ttl:g} s")
    finally:
        if busy.get(hold) is mine:
            context.inside.leave(hold)


async def _join(context: Context, hold: Hold) -> None:
    """Let an extension that is on its way come back first: a release that overtakes it is harmless, but hard to read in the
    store's log. Bounded, as the extension is."""
    until = context.runtime.now() + context.request_timeout
    await _watch(context, hold, lambda: hold.in_flight, lambda: until)


async def wait_lost(context: Context, hold: Hold, timeout: float | None) -> bool:
    """Wait until the lease is lost: True. False when `timeout` has passed, or once it is released."""
    context.runtime.check_loop()
    runtime = context.runtime
    give_up = inf if timeout is None else runtime.now() + timeout

    def going_on() -> bool:
        now = runtime.now()
        return not hold.lost(now) and not hold.released and now < give_up

    await _watch(context, hold, going_on, lambda: min(give_up, hold.deadline))
    return hold.lost(runtime.now())


async def _watch(context: Context, hold: Hold, going_on: Callable[[], bool], until: Callable[[], float]) -> None:
    """Wait while `going_on`; look again whenever something becomes of the lease, and at `until`."""
    runtime = context.runtime
    bell = runtime.latch()  # no descriptor: there may be none left

    def ring(what: str) -> None:
        bell.ring()

    hold.watch(ring)
    try:
        while going_on() and runtime.now() < (moment := until()):
            await bell.wait(moment)
    finally:
        hold.unwatch(ring)
        bell.close()


async def abandon(context: Context, hold: Hold, within: float) -> None:
    """A lost lease whose last extend may have got through: the store would keep it for that ttl. Or one whose block is over. If
    it cannot be given back, because the store is away or the client is closed, that is logged."""
    hold.unsure = False
    if hold.policy.delay and not hold.forsaken:  # it was not given back: the name stays closed, as was asked for
        return
    try:
        with context.inside.visit(hold.name, hold.ttl):
            await drop(context.backend, hold.name, hold.token, within, unanswered=hold.forsaken)
    except InterlockError as failure:
        left_behind(hold.name, hold.ttl, failure)


async def _give_back(context: Context, hold: Hold) -> bool:
    with context.queue.guard:  # see `run_out`
        if hold.gone:
            return False
        again, hold.leaving = hold.leaving, True  # whatever comes of it: once it is out, another client may have the lock
    heir = context.queue.heir(hold) if context.backend.capabilities.lines else None
    outcome = None
    try:
        if heir is not None:
            outcome = await hand_over(context, hold, *heir)
        if outcome is None:
            held = await context.backend.release(hold.name, hold.token, context.within(hold.ttl))
            context.queue.left(hold)
        else:
            held = outcome.held
    except UsageError as error:  # an answer: nothing happened
        _still_ours(context, hold)
        error.add_note(f"interlock: '{hold.name}' was not released: it ends with its ttl, within {hold.ttl:g} s")
        raise
    except Unavailable as error:
        # If the answer is lost, not the question: ask again down the same path.
        def undone(confirmed: bool) -> None:
            if not confirmed:
                _still_ours(context, hold)  # never asked
                return
            hold.released = hold.released or not hold.lost(context.runtime.now())
            hold.notify("released")
            context.queue.left(hold)

        ended = await undo(context, hold.name, hold.token, hold.ttl, error, held=True, then=undone)
        if ended is Undone.CONFIRMED:
            return hold.released
        raise
    if held or (again and not hold.lost(context.runtime.now())):  # an earlier release did it, and its answer was lost
        hold.released = True
        if hold.watchers:
            hold.notify("released")
    elif not hold.released and hold.leaving:
        hold.vanished(context.runtime.now(), taken=False)
        hold.tell()
    if outcome is not None:
        if outcome.unclaimed or outcome.token:
            await context.runtime.shield(lambda: _pass_on(context, hold.name, outcome))
        context.runtime.yield_thread()
    return held


def _still_ours(context: Context, hold: Hold) -> None:
    """Nothing came of its release. Whoever tells its holder may have had to pass it over meanwhile (`run_out`). It is not
    renewed any more: its holder wanted to be rid of it, and is told that it ends with its ttl."""
    hold.leaving = hold.kept = False
    if hold.teller is not None and context.queue.mind is not None:
        with suppress(RuntimeError, Unavailable):  # no thread to be had, or no descriptor
            context.queue.mind(hold)
    if (now := context.runtime.now()) >= hold.tell_at:
        run_out(context, hold, now)


async def _pass_on(context: Context, name: str, outcome: Outcome) -> None:
    """The one that a hand-over was meant for has left: on to the next."""
    given = outcome.unclaimed
    try:
        if given is not None:
            await release(context, given)
        else:
            await drop(context.backend, name, outcome.token, context.request_timeout)
    except InterlockError as failure:
        left_behind(name, outcome.ttl, failure)


async def leave(context: Context, hold: Hold, error: BaseException | None) -> None:
    """The end of a `with` block whose body raised `error`, or nothing.

    Raises LeaseLost if the lease was lost while the body ran and the body raised nothing. A failed release is raised only
    if the body raised nothing; else it becomes a note on the body's exception.
    """
    if hold.released:
        return
    if error is None:
        if not await release(context, hold) and hold.lost(context.runtime.now()):  # not: released by another thread
            raise lost(hold)
        return
    try:
        await release(context, hold)
    except InterlockError as failure:
        error.add_note(f"interlock: releasing '{hold.name}' failed as well: {failure}")
    if hold.lost(context.runtime.now()):
        error.add_note(f"interlock: the lease on '{hold.name}' was lost ({hold.gone}) before the block ended")
