"""What a flow may ask of the world. Flows get it as an argument, so the simulator can hand them another one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from os import urandom  # what `secrets` is made of, without its eight modules
from typing import Any, Protocol, TypeVar

from ..core import token
from ..errors import InterlockError, Unavailable

T = TypeVar("T")
LOOKS = 5  # at two clocks that are to be compared

Made = Callable[[], Coroutine[Any, Any, None]]
"""Makes what is to be run."""

Ended = Callable[[int, "T | BaseException"], bool]
"""Told which one ended, and with what result or exception. True: enough, stop the others."""

Bored = Callable[[], float]
"""For how many seconds to wait on before it is asked again; 0 or less: enough, stop them all."""


class Bell(Protocol):
    """Rung by anybody, waited for by one."""

    def ring(self) -> None:
        """Wake the one that waits, or the next that will: from any thread, or from the loop in the asyncio colour."""

    async def wait(self, until: float) -> bool:
        """Until it rings (True) or the moment `until` has come (False). A ring that came before counts."""

    def close(self) -> None:
        """It will not be waited for any more. Ringing it stays harmless."""


class Spawned(Protocol):
    """Work that runs beside the caller: a thread or a task."""

    async def end(self) -> None:
        """Have it end, and wait until it has, for a bounded time. Harmless from inside."""


class Runtime(Protocol):
    """The world, in one colour."""

    colour: str  # "blocking" or "asyncio"

    def now(self) -> float:
        """Seconds on a clock that never steps and counts suspended time."""

    def wall_ms(self) -> int:
        """Milliseconds on the wall clock. Only lifts fences (see `core.fence`); validity must never rest on it."""

    def wall_ahead(self) -> float:
        """Seconds that the wall clock is ahead of `now`. Only orders those who wait, where a store's clock leaves it open."""

    def jitter(self) -> float:
        """A random number in [0, 1)."""

    def token(self, note: str = "") -> str:
        """A fresh token: 128 random bits, this process's public facts, and what the holder wants to be known by."""

    def owner(self) -> str:
        """Those facts: host:pid."""

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""

    async def shield(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what `make` makes to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

        It may be made and run again, if something cancelled the work itself (a loop that shuts down cancels every task it
        finds), so it must be idempotent.
        """

    async def race(
        self,
        work: Sequence[Coroutine[Any, Any, T]],
        ended: Ended[T],
        finish: bool = False,
        bored: Bored | None = None,
        light: bool = False,
    ) -> None:
        """Run all of it side by side, in this thread or task, and tell `ended` of each that ends.

        Every one gets to its first wait before any is waited for. Once `ended` says True the rest is interrupted, as by a
        cancellation, and race returns; so it does when all have ended. (It may be told of some more, that ended meanwhile.)
        `bored` is asked once all wait, and then as often as it says. `finish`: the rest matters, though not to the caller. It
        goes on in the loop; a thread, which has nowhere to leave it, has sent what it had to send.

        `light`: the work wants no more of the task that it runs in than asyncio.timeout does, so it is given none of its own.
        """

    async def settle(self) -> None:
        """Wait for what races have left to finish."""

    async def readable(self, fd: int, until: float) -> bool:
        """Until something can be read from the descriptor (True), or the moment `until` has come (False)."""

    def bell(self) -> Bell:
        """A new one."""

    def latch(self) -> Bell:
        """A bell that is cheaper, and cannot be waited for beside other things."""

    def spawn(self, make: Made, stop: Callable[[], None], name: str, never: Callable[[], None] = lambda: None) -> Spawned:
        """Run what `make` makes beside the caller. It ends with the interpreter, or with the loop.

        `stop` should make it end soon; it is called from elsewhere. `never` is called if it does not even begin, because
        somebody has cancelled it before: nothing of its own runs then.
        """

    def call(self, function: Callable[[], object], what: str) -> None:
        """Call a user's function so that it harms nobody here: what it raises is logged, how long it takes is its own affair
        in the blocking colour. `what` is what it is called in the log."""

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call it after so many seconds, in the loop or in a thread of its own; never if that ends before."""

    def struck(self, error: BaseException) -> bool:
        """Whether it may have been raised between any two instructions, by a signal's handler, say: neither an error of ours
        nor a cancellation, which arrives where something is awaited."""

    def check_loop(self) -> None:
        """Raise UsageError if this is another event loop than the one before."""

    def yield_thread(self) -> None:
        """Somebody was woken, and should run before we go on, if that is not so by itself."""


if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """CLOCK_BOOTTIME: never steps, and goes on while the machine sleeps, as the store's clock does."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - macOS, Windows

    def now() -> float:
        """The monotonic clock; it may stand still while the machine sleeps."""
        return time.monotonic()


def attempt(function: Callable[[], object], what: str, more: type[BaseException] = SystemExit) -> None:
    """Call a user's function; what it raises is logged, SystemExit as well: it would end nothing but its thread. `more`: what
    else is no more than its own affair."""
    try:
        result = function()
        if isinstance(result, Coroutine):
            result.close()
            raise TypeError("it returned something to await, which nobody does: give a plain function")
    except (Exception, SystemExit, more):
        import logging  # lazily: most programs never come here

        with suppress(Exception):  # a user's filter or handler may raise as well
            logging.getLogger("interlock").exception("%s raised", what, extra={"event": "callback_failed"})


def by_a_handler(error: BaseException) -> bool:
    """Whether an OSError is not the system's, which have numbers: a signal's handler has raised it, a TimeoutError as a rule.
    What strikes anywhere says nothing about a file or a connection, and is not ours to explain or to drop."""
    return isinstance(error, OSError) and error.errno is None


def shortage(error: BaseException, address: str) -> Unavailable | None:
    """The error for what the system has too little of: threads, or descriptors. None: it is something else."""
    if isinstance(error, OSError) and error.errno is not None:
        short = f"the system gives no descriptor ({error.strerror}). Close some, or raise the limit (ulimit -n)"
    elif isinstance(error, RuntimeError) and "start new thread" in str(error):
        short = "the system gives no thread. End some, or raise the limit (ulimit -u, or the pids of the container)"
    else:
        return None
    return Unavailable(f"{address} cannot be used: {short}", backend=address, cause="error")


class World:
    """What both colours share."""

    colour = ""

    def __init__(self) -> None:
        self._owner = ""
        self._pid = 0

    def struck(self, error: BaseException) -> bool:
        """See `Runtime.struck`."""
        return not isinstance(error, InterlockError)

    def check_loop(self) -> None:
        """See `Runtime.check_loop`."""

    def yield_thread(self) -> None:
        """See `Runtime.yield_thread`."""

    now = staticmethod(now)

    def wall_ms(self) -> int:
        """See `Runtime.wall_ms`."""
        return time.time_ns() // 1_000_000

    def wall_ahead(self) -> float:
        """See `Runtime.wall_ahead`. Of several looks the one that took least: others may run between two clocks."""
        looks = []
        for _ in range(LOOKS):
            before, wall, after = now(), time.time_ns() / 1e9, now()
            looks.append((after - before, wall - (before + after) / 2))
        return min(looks)[1]

    def jitter(self) -> float:
        """See `Runtime.jitter`."""
        # 32 bits of the kernel's randomness; the `random` module would be shared state between threads and forks.
        return int.from_bytes(os.urandom(4), "big") / 2**32

    def token(self, note: str = "") -> str:
        """See `Runtime.token`."""
        return token.compose(urandom(token.RANDOM_DIGITS // 2).hex(), self.owner(), note)

    def owner(self) -> str:
        """This process's public facts, as they stand behind the random part of a token: host:pid."""
        pid = os.getpid()
        if pid != self._pid:  # first use, or a fork
            host = "".join(c for c in os.uname().nodename if c.isascii() and (c.isalnum() or c in "-._"))[:64]
            self._owner, self._pid = f"{host}:{pid}", pid
        return self._owner
