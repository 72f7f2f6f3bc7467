"""Holding and giving back: extend, release, waiting for a loss, and how a `with` block ends.

Invariants: a lease that is over never comes back; its deadline only moves when the store has confirmed it, and moves down
when an answer was lost; the token is kept until the store has answered; the body's own exception is never masked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

from ..core.claim import Gone
from ..core.lease import DOUBTFUL, HELD, Hold
from ..errors import InterlockError, LeaseLost, Unavailable, UsageError
from .hand import Outcome, drop, hand_over
from .site import Site, Undone


def check(hold: Hold, now: float) -> None:
    """Raise LeaseLost if the lease is over, UsageError if it was released or a release is on its way."""
    if hold.lost(now):
        raise lost(hold)
    if hold.released or hold.leaving:
        raise UsageError(f"the lease on '{hold.name}' was released; acquire the lock again")


def lost(hold: Hold) -> LeaseLost:
    """The error that says so."""
    how, advice = _WORDS.get(hold.gone, ("", "Use a longer ttl, or extend in time"))
    if hold.stopped == "max_hold":
        how, advice = f"its max_hold of {hold.policy.max_hold:g} s is over", "Do less under one lock, or allow more time"
    elif hold.stopped == "progress":
        how, advice = f"progress() was not called for {hold.policy.progress:g} s", "Find out where the work hangs"
    elif hold.stopped == "cancelled":
        how, advice = "the task that renews it was cancelled, with all others perhaps", "Do not cancel tasks that are not yours"
    how = how or f"its ttl of {hold.ttl:g} s is over"
    return LeaseLost(
        f"the lease on '{hold.name}' (fence {hold.fence}) is lost: {how}. Others may be working on it, so stop writing; "
        f"what you wrote since is safe only where the resource checks the fence. {advice}",
        name=hold.name,
        reason=hold.gone or "expired",
    )


_WORDS = {
    "taken": ("somebody else holds it now", "Find out who took it: its holder is shown by `interlock status`"),
    "forced": (
        "it was removed from the store before its time",
        "Either somebody deleted it, or the store lost its memory or its clock jumped",
    ),
    "unreachable": (
        "the store could not be reached to renew it",
        "Look at the store and the network; a longer ttl rides out longer outages",
    ),
    "paused": (
        "this process did not get to run in time to renew it (suspended, stopped, or starved by something that blocks)",
        "A longer ttl rides out longer pauses; in a coroutine nothing may block the event loop",
    ),
    "forked": ("it belongs to the parent process", "Acquire in the process that does the work"),
}


def run_out(hold: Hold, now: float) -> None:
    """The moment to tell has come and nobody renewed it, or the store has said so: it is lost."""
    if not hold.released and not hold.leaving:
        hold.gone = hold.gone or hold.ending(now)
        hold.tell()


async def extend(site: Site, hold: Hold, ttl: float, moved: Callable[[], None] = lambda: None) -> None:
    """Set what is left to `ttl`. Raises LeaseLost if it is over, Unavailable if the store did not answer: then the lease is
    still held until the earlier of the old and the new end. An earlier end is believed before anything is sent; `moved` is
    called then, since whoever watches the deadline must look again."""
    site.runtime.here()
    sent_at = site.runtime.now()
    check(hold, sent_at)
    delay = hold.policy.delay
    flight = hold.extending(ttl)
    if hold.shorten(sent_at, ttl):
        moved()
    try:
        # The lease's own fence goes with it: a store that lost its counter learns it anew.
        within = min(site.within(ttl), hold.deadline - sent_at)
        answer = await site.backend.extend(hold.name, hold.token, ttl + delay, within, hold.fence)
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
    now = site.runtime.now()
    if isinstance(answer, Gone):
        hold.vanished(now, answer.taken, answer.left)
        hold.tell()
        await release(site, hold)  # what is left of it, if anything
        raise lost(hold)
    if hold.lost(now):  # over before the answer came: somebody may have acted on that, so it stays over
        hold.unsure = True
        hold.tell()
        await release(site, hold)
        raise lost(hold)
    hold.wanted = ttl
    hold.renewed(sent_at, answer.ttl - delay, flight)


async def release(site: Site, hold: Hold) -> bool:
    """Give the lock back. Whether this call did; False if it was released before or is lost.

    Not stopped by a cancellation: that is raised once the answer is known. Raises Unavailable if the store stays silent; the
    token is kept, so it may be called again.
    """
    if hold.released:
        return False
    site.runtime.here()
    if hold.lost(site.runtime.now()):
        if hold.unsure and not hold.kept:  # else the keeper does it; nobody should wait here for a store that is away
            await site.runtime.shield(lambda: abandon(site, hold, site.request_timeout))
        return False  # else it needs no round trip: the store lets go of it by itself
    try:
        if hold.in_flight:
            await _join(site, hold)
        return await _give_back(site, hold)
    except Exception:
        raise
    except BaseException:
        # Interrupted. What was sent has been followed by an undo; what was not sent is sent now, and not interrupted again.
        # (Not shielded from the start: a task for each release is a fifth of its cost, and this hardly ever happens.)
        if hold.state(site.runtime.now()) in (HELD, DOUBTFUL):
            with suppress(InterlockError):
                await site.runtime.shield(lambda: _give_back(site, hold))
        raise


async def _join(site: Site, hold: Hold) -> None:
    """Let an extension that is on its way come back first: a release that overtakes it is harmless, but hard to read in the
    store's log. Bounded, as the extension is."""
    until = site.runtime.now() + site.request_timeout
    await _watch(site, hold, lambda: hold.in_flight, lambda: until)


async def wait_lost(site: Site, hold: Hold, timeout: float | None) -> bool:
    """Wait until the lease is lost: True. False when `timeout` has passed, or once it is released."""
    site.runtime.here()
    runtime = site.runtime
    give_up = inf if timeout is None else runtime.now() + timeout

    def going_on() -> bool:
        now = runtime.now()
        return not hold.lost(now) and not hold.released and now < give_up

    await _watch(site, hold, going_on, lambda: min(give_up, hold.deadline))
    return hold.lost(runtime.now())


async def _watch(site: Site, hold: Hold, going_on: Callable[[], bool], until: Callable[[], float]) -> None:
    """Wait while `going_on`; look again whenever something becomes of the lease, and at `until`."""
    runtime = site.runtime
    bell = runtime.bell()

    def ring(what: str) -> None:
        bell.ring()

    hold.watch(ring)
    try:
        while going_on() and runtime.now() < (moment := until()):
            await bell.wait(moment)
    finally:
        hold.unwatch(ring)
        bell.close()


async def abandon(site: Site, hold: Hold, within: float) -> None:
    """A lost lease whose last extend may have got through: the store would keep it for that ttl."""
    hold.unsure = False
    if hold.policy.delay:  # it was not given back: the name stays closed, as was asked for
        return
    with suppress(Unavailable, UsageError):  # away, or the client is closed
        try:
            await site.backend.release(hold.name, hold.token, within)
        except Unavailable:
            await site.backend.undo(hold.name, hold.token, within)


async def _give_back(site: Site, hold: Hold) -> bool:
    again, hold.leaving = hold.leaving, True  # whatever comes of it: once the request is out, somebody else may have the lock
    heir = site.gate.heir(hold) if site.backend.capabilities.lines else None
    outcome = None
    try:
        if heir is not None:
            outcome = await hand_over(site, hold, *heir)
        if outcome is None:
            held = await site.backend.release(hold.name, hold.token, site.within(hold.ttl))
            site.gate.left(hold)
        else:
            held = outcome.held
    except UsageError as error:  # an answer: nothing happened
        hold.leaving = False
        error.add_note(f"interlock: '{hold.name}' was not released: it ends with its ttl, within {hold.ttl:g} s")
        raise
    except BaseException as error:
        # If the answer is lost, not the question: ask again down the same path.
        def undone(confirmed: bool) -> None:
            if not confirmed:
                hold.leaving = False  # never asked: still ours, in truth
                return
            hold.released = hold.released or not hold.lost(site.runtime.now())
            hold.notify("released")
            site.gate.left(hold)

        ended = await site.undo(hold.name, hold.token, hold.ttl, error, held=isinstance(error, Unavailable), then=undone)
        if ended is Undone.CONFIRMED and isinstance(error, Unavailable):
            return hold.released
        raise
    if held or (again and not hold.lost(site.runtime.now())):  # an earlier release did it, and its answer was lost
        hold.released = True
        if hold.watchers:
            hold.notify("released")
    elif not hold.released and hold.leaving:
        hold.vanished(site.runtime.now(), taken=False)
        hold.tell()
    if outcome is not None:
        if outcome.unclaimed or outcome.token:
            await site.runtime.shield(lambda: _pass_on(site, hold.name, outcome))
        site.runtime.after_you()
    return held


async def _pass_on(site: Site, name: str, outcome: Outcome) -> None:
    """The one that a hand-over was meant for has left: on to the next."""
    if outcome.unclaimed is not None:
        with suppress(InterlockError):
            await release(site, outcome.unclaimed)
    else:
        await drop(site, name, outcome.token)


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
        error.add_note(f"interlock: the lease on '{hold.name}' was lost ({hold.gone}) before the block ended")
