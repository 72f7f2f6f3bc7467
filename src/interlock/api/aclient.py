"""The asyncio face: AsyncClient, AsyncLock, AsyncLease. `client` is its twin; a test keeps them alike."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from ..core import checks
from ..core.checks import Duration
from ..core.claim import Entry
from ..core.lease import Hold
from ..errors import InterlockError, LeaseLost
from ..flow import acquire as acquiring
from ..flow import hold as holding
from ..flow.closing import close
from ..flow.extend import extend
from ..flow.loss import lost
from ..runtime.aio import AsyncioRuntime
from ..runtime.aio_leash import Leashes, current_task
from .base import BaseLease
from .base_client import BaseClient, BaseLock
from .blocks import Block, entering, leaving
from .options import UNSET, Settings, Unset, described

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLease(BaseLease):
    """What you hold: a name, until a deadline, under a fence. All state lives here.

    It belongs to the code that has the object, so it may be handed to another thread or task on purpose.
    """

    __slots__ = ()
    _leashes: Leashes | None

    def _enter(self, block: Block | None) -> None:
        """A block begins: from now on a loss cancels its task, and those of other blocks on the same lease."""
        hold, context, now = self._hold, self._context, self._context.runtime.now
        if self._leashes is None:
            self._leashes = Leashes(lambda: hold.tell_at, lambda: holding.run_out(context, hold, now()))
            hold.watch(self._leashes.told)  # not a method of ours: the hold would keep a lease that was dropped
        leash = self._leashes.enter()
        if block is not None:
            block.ties(leash)

    async def extend(self, ttl: Duration | None = None) -> None:
        """Set what is left of the lease to `ttl` seconds, by default to its own ttl. Renewal goes on with that ttl.

        Raises LeaseLost if it is over: it never comes back. Raises Unavailable if the store does not answer; the lease then
        stands as `remaining()` says.
        """
        try:
            period = self._hold.wanted if ttl is None else checks.ttl(ttl, self._context.drift)
            await extend(self._context, self._hold, period, self._moved)
        finally:  # its end may have come nearer, and if the answer was lost as well
            self._moved()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost: True. False when `timeout` seconds have passed, or as soon as it is released.

        A lease that is renewed is known to be lost a little before its deadline: a margin of a twentieth of its ttl.
        """
        return await holding.wait_lost(self._context, self._hold, checks.timeout(timeout))

    async def release(self) -> bool:
        """Give the lock back. True if this call did, False if it was released before or is lost. Harmless when repeated.

        Ends renewal. When it is lost the store lets go of it by itself. Raises Unavailable if the store does not answer: the
        lock then ends with its ttl, and release may be called again.
        """
        try:
            released = await holding.release(self._context, self._hold)
            self._mine.holder = None
            return released
        except (InterlockError, GeneratorExit):  # the latter: nothing can be awaited any more
            raise
        except BaseException as error:  # a signal's handler has raised, before the release began perhaps
            await holding.finish(self._context, self._hold, error)
            raise

    async def _leave(self, error: BaseException | None) -> None:
        """The end of a block whose body raised `error`, or nothing."""
        try:
            if (leashes := self._leashes) is not None:
                stopped = leashes.slip(error)
                if not leashes:
                    self._hold.unwatch(leashes.told)
                    self._leashes = None
                if stopped:  # the body was, by us: what happened to it is the loss
                    with suppress(LeaseLost):
                        await holding.leave(self._context, self._hold, None)
                    raise lost(self._hold) from error
            await holding.leave(self._context, self._hold, error)
            self._mine.fuse = self._mine.holder = None
        except (InterlockError, GeneratorExit):  # the latter: nothing can be awaited any more
            raise
        except BaseException as struck:
            await holding.finish(self._context, self._hold, struck)
            raise

    async def __aenter__(self) -> AsyncLease:
        """The lease itself, once it is sure that it is held. Raises as `check` does."""
        block = entering(self)
        self.check()
        try:
            if block is not None:
                block.begins(self)
            self._enter(block)
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    @leaving
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. Raises LeaseLost if the lease was lost and the body raised nothing; never hides the body's exception."""
        await self._leave(error)


class AsyncLock(BaseLock["AsyncLease"]):
    """A name with options. Has no state of its own: share it between threads or tasks, use it again and again."""

    async def acquire(self, timeout: Duration | Unset | None = UNSET) -> AsyncLease:
        """Wait until the lock is yours, at most `timeout` seconds; None waits for ever, 0 asks once.

        Raises AcquireTimeout if another still has it, Unavailable if the store does not answer. Nothing is left behind
        then, nor when the call is interrupted or cancelled.
        """
        options = self._options
        limit = options.timeout if timeout is UNSET else checks.timeout(timeout)
        hold = None
        try:
            hold = await acquiring.acquire(self._context, self._attempt, limit)
            return AsyncLease(self._context, self._keeper, hold, options)
        except BaseException as error:
            if hold is not None:
                await self._return(hold, error)
            raise

    async def try_acquire(self) -> AsyncLease | None:
        """Ask once, without waiting: the lease, or None if another has the lock.

        Raises Unavailable if the store does not answer. Nothing is left behind then.
        """
        options = self._options
        hold = None
        try:
            hold = await acquiring.try_acquire(self._context, self._attempt)
            return None if hold is None else AsyncLease(self._context, self._keeper, hold, options)
        except BaseException as error:
            if hold is not None:
                await self._return(hold, error)
            raise

    async def _return(self, hold: Hold, error: BaseException) -> None:
        """Give back what the caller never got, because of `error`: no thread for the keeper, a signal's handler."""
        hold.dropped = True  # first: whatever strikes now, it is not renewed
        await holding.leave(self._context, hold, error)

    async def __aenter__(self) -> AsyncLease:
        """Acquire with the lock's own timeout. The body never runs without the lock."""
        block = entering(self)
        lease = await self.acquire()
        try:
            if block is not None:
                block.begins(lease)
            else:
                self._entered.push(_me(), lease)
            lease._enter(block)
        except BaseException as error:
            await lease._leave(error)
            raise
        return lease

    @leaving
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. Raises LeaseLost if the lease was lost and the body raised nothing; never hides the body's exception."""
        await self._entered.pop(_me())._leave(error)


class AsyncClient(BaseClient):
    """A set of locks on one store. Owns the connections; close it, or use it in a `with` block.

    In a coroutine use AsyncClient: Client would stop the event loop, and with it the task that holds the lock.
    """

    _runtime = AsyncioRuntime

    @described
    def lock(self, name: str, **settings: Unpack[Settings]) -> AsyncLock:
        """The lock called `name`. Asks no store.

        Not re-entrant: to acquire a name that you hold is to wait for yourself. Raises UsageError for what cannot be used,
        TypeError for a setting that does not exist.
        """
        return AsyncLock(self._context, self._keeper, name, self._options.but(settings))

    @described
    def locked(
        self, name: str, **settings: Unpack[Settings]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate a function so that each call runs under a lock whose name is filled in from its arguments.

        `@client.locked("order:{order_id}")` locks per order; the settings are those of `lock`. A call raises what acquiring
        and leaving a `with` block raise. Raises UsageError at decoration for a template that does not fit the function, or a
        function of the other colour.
        """
        from .template import check_template, finished, name_maker  # lazily: `inspect` is a third of the import time

        check_template(name)
        options = self._options.but(settings)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            make = name_maker(name, function, "asyncio")

            @wraps(function)
            async def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
                async with AsyncLock(self._context, self._keeper, make(args, kwargs), options):
                    return finished(await function(*args, **kwargs))

            return under_lock

        return decorate

    async def inspect(self, name: str) -> Entry:
        """Who holds `name` now, with nothing secret in it. A picture of a moment: by the time you read it, it may be old.

        Raises Unavailable if the store does not answer.
        """
        return await self._context.inspect(checks.name(name))

    async def close(self) -> None:
        """End renewal and close the connections. Harmless when repeated.

        Waiters give up. Calls that are under way are waited for, with what they clean up, for as long as a
        question and its undoing may take: two request timeouts. Leases that are held end with their ttl. What stays in the
        store is said in the log, by name. In a signal handler that interrupts a call of the same thread it returns at once,
        and the rest follows when that call has ended.
        """
        await close(self._context, self._keeper)

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()


def _me() -> int:
    return id(current_task())
