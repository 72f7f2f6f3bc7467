"""The blocking face: Client, Lock, Lease. `aclient` is its twin; a test keeps them alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import TracebackType
from typing import ParamSpec, TypeVar, Unpack

from ..core import checks
from ..core.checks import Duration
from ..core.claim import Entry
from ..core.lease import Hold
from ..errors import InterlockError
from ..flow import acquire as acquiring
from ..flow import hold as holding
from ..flow.closing import close
from ..flow.extend import extend
from ..runtime.blocking import BlockingRuntime, run
from .base import BaseLease
from .base_client import BaseClient, BaseLock
from .blocks import entering, leaving
from .options import UNSET, Settings, Unset, described

P = ParamSpec("P")
R = TypeVar("R")


class Lease(BaseLease):
    """What you hold: a name, until a deadline, under a fence. All state lives here.

    It belongs to the code that has the object, so it may be handed to another thread or task on purpose.
    """

    __slots__ = ()

    def extend(self, ttl: Duration | None = None) -> None:
        """Set what is left of the lease to `ttl` seconds, by default to its own ttl. Renewal goes on with that ttl.

        Raises LeaseLost if it is over: it never comes back. Raises Unavailable if the store does not answer; the lease then
        stands as `remaining()` says.
        """
        try:
            period = self._hold.wanted if ttl is None else checks.ttl(ttl, self._context.drift)
            run(extend(self._context, self._hold, period, self._moved))
        finally:  # its end may have come nearer, and if the answer was lost as well
            self._moved()

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost: True. False when `timeout` seconds have passed, or as soon as it is released.

        A lease that is renewed is known to be lost a little before its deadline: a margin of a twentieth of its ttl.
        """
        return run(holding.wait_lost(self._context, self._hold, checks.timeout(timeout)))

    def release(self) -> bool:
        """Give the lock back. True if this call did, False if it was released before or is lost. Harmless when repeated.

        Ends renewal. When it is lost the store lets go of it by itself. Raises Unavailable if the store does not answer: the
        lock then ends with its ttl, and release may be called again.
        """
        try:
            released = run(holding.release(self._context, self._hold))
            self._mine.holder = None
            return released
        except InterlockError:
            raise
        except BaseException as error:  # a signal's handler has raised, before the release began perhaps
            run(holding.finish(self._context, self._hold, error))
            raise

    def _leave(self, error: BaseException | None) -> None:
        """The end of a block whose body raised `error`, or nothing."""
        try:
            run(holding.leave(self._context, self._hold, error))
            self._mine.fuse = self._mine.holder = None
        except InterlockError:
            raise
        except BaseException as struck:
            run(holding.finish(self._context, self._hold, struck))
            raise

    def __enter__(self) -> Lease:
        """The lease itself, once it is sure that it is held. Raises as `check` does."""
        block = entering(self)
        self.check()
        try:
            if block is not None:
                block.begins(self)
        except BaseException as error:
            self._leave(error)
            raise
        return self

    @leaving
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release. Raises LeaseLost if the lease was lost and the body raised nothing; never hides the body's exception."""
        self._leave(error)


class Lock(BaseLock["Lease"]):
    """A name with options. Has no state of its own: share it between threads or tasks, use it again and again."""

    def acquire(self, timeout: Duration | Unset | None = UNSET) -> Lease:
        """Wait until the lock is yours, at most `timeout` seconds; None waits for ever, 0 asks once.

        Raises AcquireTimeout if another still has it, Unavailable if the store does not answer. Nothing is left behind
        then, nor when the call is interrupted or cancelled.
        """
        options = self._options
        limit = options.timeout if timeout is UNSET else checks.timeout(timeout)
        hold = None
        try:
            hold = run(acquiring.acquire(self._context, self._attempt, limit))
            return Lease(self._context, self._keeper, hold, options)
        except BaseException as error:
            if hold is not None:
                self._return(hold, error)
            raise

    def try_acquire(self) -> Lease | None:
        """Ask once, without waiting: the lease, or None if another has the lock.

        Raises Unavailable if the store does not answer. Nothing is left behind then.
        """
        options = self._options
        hold = None
        try:
            hold = run(acquiring.try_acquire(self._context, self._attempt))
            return None if hold is None else Lease(self._context, self._keeper, hold, options)
        except BaseException as error:
            if hold is not None:
                self._return(hold, error)
            raise

    def _return(self, hold: Hold, error: BaseException) -> None:
        """Give back what the caller never got, because of `error`: no thread for the keeper, a signal's handler."""
        hold.dropped = True  # first: whatever strikes now, it is not renewed
        run(holding.leave(self._context, hold, error))

    def __enter__(self) -> Lease:
        """Acquire with the lock's own timeout. The body never runs without the lock."""
        block = entering(self)
        lease = self.acquire()
        try:
            if block is not None:
                block.begins(lease)
            else:
                self._entered.push(get_ident(), lease)
        except BaseException as error:
            lease._leave(error)
            raise
        return lease

    @leaving
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release. Raises LeaseLost if the lease was lost and the body raised nothing; never hides the body's exception."""
        self._entered.pop(get_ident())._leave(error)


class Client(BaseClient):
    """A set of locks on one store. Owns the connections; close it, or use it in a `with` block.

    In a coroutine use AsyncClient: Client would stop the event loop, and with it the task that holds the lock.
    """

    _runtime = BlockingRuntime

    @described
    def lock(self, name: str, **settings: Unpack[Settings]) -> Lock:
        """The lock called `name`. Asks no store.

        Not re-entrant: to acquire a name that you hold is to wait for yourself. Raises UsageError for what cannot be used,
        TypeError for a setting that does not exist.
        """
        return Lock(self._context, self._keeper, name, self._options.but(settings))

    @described
    def locked(self, name: str, **settings: Unpack[Settings]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call runs under a lock whose name is filled in from its arguments.

        `@client.locked("order:{order_id}")` locks per order; the settings are those of `lock`. A call raises what acquiring
        and leaving a `with` block raise. Raises UsageError at decoration for a template that does not fit the function, or a
        function of the other colour.
        """
        from .template import check_template, finished, name_maker  # lazily: `inspect` is a third of the import time

        check_template(name)
        options = self._options.but(settings)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            make = name_maker(name, function, "blocking")

            @wraps(function)
            def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
                with Lock(self._context, self._keeper, make(args, kwargs), options):
                    return finished(function(*args, **kwargs))

            return under_lock

        return decorate

    def inspect(self, name: str) -> Entry:
        """Who holds `name` now, with nothing secret in it. A picture of a moment: by the time you read it, it may be old.

        Raises Unavailable if the store does not answer.
        """
        return run(self._context.inspect(checks.name(name)))

    def close(self) -> None:
        """End renewal and close the connections. Harmless when repeated.

        Waiters give up. Calls that are under way are waited for, with what they clean up, for as long as a
        question and its undoing may take: two request timeouts. Leases that are held end with their ttl. What stays in the
        store is said in the log, by name. In a signal handler that interrupts a call of the same thread it returns at once,
        and the rest follows when that call has ended.
        """
        run(close(self._context, self._keeper))

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()
