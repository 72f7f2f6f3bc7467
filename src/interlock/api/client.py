"""The blocking face: Client, Lock, Lease. `aclient` is its twin; a test keeps them alike.

A little long because it says all that its twin says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from ..core import checks
from ..core.checks import Duration
from ..core.claim import Entry
from ..core.lease import Hold
from ..core.renewal import Keeping
from ..errors import InterlockError
from ..flow import acquire as acquiring
from ..flow import hold as holding
from ..flow.attempt import Attempt
from ..flow.closing import close
from ..flow.context import Context
from ..flow.extend import extend
from ..flow.renewing.keeper import Keeper
from ..runtime.blocking import BlockingRuntime, run
from .base import BaseLease
from .blocks import Entered, entering, leaving
from .options import UNSET, Callback, Options, Settings, Unset, opened, where

P = ParamSpec("P")
R = TypeVar("R")


class Lease(BaseLease):
    """What you hold: a name, until a deadline, under a fence. All state lives here.

    It belongs to whoever has the object, so it may be handed to another thread or task on purpose.
    """

    __slots__ = ()

    def extend(self, ttl: Duration | None = None) -> None:
        """Set what is left of the lease to `ttl` seconds, by default to its own ttl. Renewal goes on with that ttl.

        Raises LeaseLost if it is over: it never comes back. Raises Unavailable if the store does not answer; the lease then
        stands as `remaining()` says.
        """
        try:
            period = self._hold.wanted if ttl is None else checks.ttl(ttl, self._site.drift)
            run(extend(self._site, self._hold, period, self._moved))
        finally:  # its end may have come nearer, and if the answer was lost as well
            self._moved()

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost: True. False when `timeout` seconds have passed, or as soon as it is released.

        A lease that is renewed is known to be lost a little before its deadline: a margin of a twentieth of its ttl.
        """
        return run(holding.wait_lost(self._site, self._hold, checks.timeout(timeout)))

    def release(self) -> bool:
        """Give the lock back. True if this call did, False if it was released before or is lost. Harmless when repeated.

        Ends renewal. When it is lost the store lets go of it by itself. Raises Unavailable if the store does not answer: the
        lock then ends with its ttl, and release may be called again.
        """
        try:
            released = run(holding.release(self._site, self._hold))
            self._mine.holder = None
            return released
        except InterlockError:
            raise
        except BaseException as error:  # a signal's handler has raised, before the release began perhaps
            run(holding.finish(self._site, self._hold, error))
            raise

    def _leave(self, error: BaseException | None) -> None:
        """The end of a block whose body raised `error`, or nothing."""
        try:
            run(holding.leave(self._site, self._hold, error))
            self._mine.fuse = self._mine.holder = None
        except InterlockError:
            raise
        except BaseException as struck:
            run(holding.finish(self._site, self._hold, struck))
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


class Lock:
    """A name with options. Has no state of its own: share it between threads or tasks, use it again and again."""

    def __init__(self, site: Context, keeper: Keeper, name: str, options: Options) -> None:
        self._site = site
        self._keeper = keeper
        self._options = options
        self._name = checks.name(name)
        self._attempt = Attempt(self._name, options.ttl, options.policy, options.note, options.fair)
        self._entered: Entered[Lease] = Entered()

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._name

    def acquire(self, timeout: Duration | Unset | None = UNSET) -> Lease:
        """Wait until the lock is yours, at most `timeout` seconds; None waits for ever, 0 asks once.

        Raises AcquireTimeout if somebody else still has it, Unavailable if the store does not answer. Nothing is left behind
        then, nor when the call is interrupted or cancelled.
        """
        options = self._options
        limit = options.timeout if timeout is UNSET else checks.timeout(timeout)
        hold = None
        try:
            hold = run(acquiring.acquire(self._site, self._attempt, limit))
            return Lease(self._site, self._keeper, hold, options)
        except BaseException as error:
            if hold is not None:
                self._return(hold, error)
            raise

    def try_acquire(self) -> Lease | None:
        """Ask once, without waiting: the lease, or None if somebody else has the lock.

        Raises Unavailable if the store does not answer. Nothing is left behind then.
        """
        options = self._options
        hold = None
        try:
            hold = run(acquiring.try_acquire(self._site, self._attempt))
            return None if hold is None else Lease(self._site, self._keeper, hold, options)
        except BaseException as error:
            if hold is not None:
                self._return(hold, error)
            raise

    def _return(self, hold: Hold, error: BaseException) -> None:
        """Give back what the caller never got, because of `error`: no thread for the keeper, a signal's handler."""
        hold.dropped = True  # first: whatever strikes now, nobody renews it
        run(holding.leave(self._site, hold, error))

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} on {self._site.backend.address}>"


class Client:
    """A set of locks on one store. Owns the connections; close it, or use it in a `with` block.

    `url` is a URL ("redis://…", "rediss://…", "unix://…", "valkey://…", "sqlite:///path", "memory://"), a client object of
    redis-py or valkey-py, or a list of these: a quorum of independent nodes (Redlock). Without it INTERLOCK_URL decides, and
    without that an SQLite file of this user. `ttl`, `timeout` and `renew` are the defaults of its locks; `request_timeout`
    bounds each question to a node (1 s unless given), `drift` is the share by which clocks may run apart. Durations are
    seconds, or a timedelta. Connects at the first use. Raises UsageError for settings that cannot work.

    In a coroutine use AsyncClient: Client would stop the event loop, and with it the task that holds the lock.
    """

    def __init__(
        self,
        url: Any = None,
        *,
        ttl: Duration = 10.0,
        timeout: Duration | None = None,
        renew: bool = True,
        request_timeout: Duration | Unset = UNSET,
        drift: float = 0.01,
    ) -> None:
        runtime = BlockingRuntime()
        nodes = where(url)
        bound = checks.request_timeout(1.0 if request_timeout is UNSET else request_timeout)
        given = request_timeout is not UNSET and isinstance(nodes, list | tuple)
        self._options = Options.checked(ttl, timeout, renew, drift, bound if given else 0.0)
        self._site = Context.of(opened(url, nodes, runtime), runtime, bound, self._options.drift)
        self._keeper = Keeper(self._site)

    @property
    def address(self) -> str:
        """Where the store is, without secrets."""
        return self._site.backend.address

    def lock(
        self,
        name: str,
        *,
        ttl: Duration | Unset = UNSET,
        timeout: Duration | Unset | None = UNSET,
        renew: bool | Unset = UNSET,
        max_hold: Duration | None = None,
        progress: Duration | None = None,
        lock_delay: Duration = 0.0,
        on_lost: Callback | None = None,
        on_doubtful: Callback | None = None,
        note: str = "",
        fair: bool = False,
    ) -> Lock:
        """The lock called `name`. Asks no store.

        `ttl` is how many seconds the store keeps it if you vanish, by default the client's: 10. `timeout` is how many seconds
        you are ready to wait for it, by default the client's: None, for ever. Not re-entrant: to acquire a name that you hold
        is to wait for yourself.

        A lease is renewed in the background until it is released, for `max_hold` seconds at most if given, and only while
        lease.progress() is called at least every `progress` seconds if given; `renew=False` gives a fixed lease. `on_lost` is
        called with the lease when it is lost, `on_doubtful` when renewal has failed for a third of the ttl: in a thread of its
        own, or in the event loop, where it must not block. `lock_delay` keeps the name closed for so many seconds after the
        end of a lease that was not released. `note` is shown to everybody who looks at the lock. Those who wait are served in
        the order in which they came, within a process strictly, between processes nearly; `fair=True` makes that strict, too.
        Raises UsageError for what cannot be used.
        """
        options = self._options.but(ttl, timeout, renew, max_hold, progress, lock_delay, on_lost, on_doubtful, note, fair)
        return Lock(self._site, self._keeper, name, options)

    def locked(self, name: str, **settings: Unpack[Settings]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call runs under a lock whose name is filled in from its arguments.

        `@client.locked("order:{order_id}")` locks per order; the settings are those of `lock`. A call raises what acquiring
        and leaving a `with` block raise. Raises UsageError at decoration for a template that does not fit the function, or a
        function of the other colour.
        """
        from .template import check_template, finished, name_maker  # lazily: `inspect` is a third of the import time

        check_template(name)
        options = self._options.but(**settings)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            make = name_maker(name, function, "blocking")

            @wraps(function)
            def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
                with Lock(self._site, self._keeper, make(args, kwargs), options):
                    return finished(function(*args, **kwargs))

            return under_lock

        return decorate

    def inspect(self, name: str) -> Entry:
        """Who holds `name` now, with nothing secret in it. A picture of a moment: by the time you read it, it may be old.

        Raises Unavailable if the store does not answer.
        """
        return run(self._site.inspect(checks.name(name)))

    def keeping(self) -> Keeping:
        """How renewal is doing: leases kept, round trips, failures, how late it ran. Asks no store."""
        return self._keeper.keeping()

    def close(self) -> None:
        """End renewal and close the connections. Harmless when repeated.

        Whoever waits for a lock gives up. Calls that are under way are waited for, with what they clean up, for as long as a
        question and its undoing may take: two request timeouts. Leases that are held end with their ttl. What stays in the
        store is said in the log, by name. In a signal handler that interrupts a call of the same thread it returns at once,
        and the rest follows when that call has ended.
        """
        run(close(self._site, self._keeper))

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.address}>"
