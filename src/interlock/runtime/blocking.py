"""The blocking runtime: it steps the same coroutines that asyncio awaits (`stepping`). Bells, threads, races."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import InterlockError
from . import forks
from .at_exit import stop_at_exit
from .base import Bored, Ended, Made, World, attempt, now
from .stepping import Abandoned, Parked, Wait, Waits, run, wait, wait_any

__all__ = ["Abandoned", "BlockingRuntime", "Wait", "run", "wait"]

T = TypeVar("T")

PATIENCE = 5.0  # seconds for which a thread that was asked to end is waited for


class BlockingRuntime(World):
    """The world for threads."""

    colour = "blocking"

    async def sleep(self, seconds: float) -> None:
        """See `Runtime.sleep`."""
        await Wait(None, now() + seconds)

    def yield_thread(self) -> None:
        """See `Runtime.yield_thread`. It waits for the interpreter, which we would keep for up to five milliseconds."""
        time.sleep(0)

    async def shield(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See `Runtime.shield`. A thread cannot be cancelled. What a signal's handler raises meanwhile waits until the work,
        begun once more, is done; of two, the second gets through, on purpose."""
        try:
            return await make()
        except (InterlockError, Abandoned, GeneratorExit):
            raise
        except BaseException as struck:
            try:
                await make()
            except InterlockError as error:
                struck.add_note(f"interlock: the clean-up failed: {error}")
            raise

    async def race(
        self,
        work: Sequence[Coroutine[Any, Any, T]],
        ended: Ended[T],
        finish: bool = False,
        bored: Bored | None = None,
        light: bool = False,
    ) -> None:
        """See `Runtime.race`. One poll over all of them."""
        waiting: dict[int, Wait | Waits] = {}
        try:
            over = False
            for index, one in enumerate(work):  # to the first wait of each, even if the race is over before: all are asked
                over |= _step(one, None, index, waiting, ended)
            waits = Waits(waiting)
            if bored is not None and waiting and not over:
                over, waits.until = _look(bored)
            while waiting and not over:
                answers = await waits
                for index, answer in answers.items():
                    del waiting[index]
                    over |= _step(work[index], answer, index, waiting, ended)
                if bored is not None and not answers:
                    over, waits.until = _look(bored)
            if waiting:  # whose answer is here already is heard: to come back for it later would cost more
                waits.until = 0.0
                for index, answer in wait_any(waits).items():
                    del waiting[index]
                    _step(work[index], answer, index, waiting, ended)
        except BaseException:
            for one in work:
                _abandon(one)
            raise
        for index in waiting:
            _abandon(work[index])

    async def settle(self) -> None:
        """See `Runtime.settle`. Nothing is ever left."""

    async def readable(self, fd: int, until: float) -> bool:
        """See `Runtime.readable`."""
        return await Wait(fd, until)

    def bell(self) -> ThreadBell:
        """See `Runtime.bell`."""
        return ThreadBell()

    def latch(self) -> ThreadLatch:
        """See `Runtime.latch`."""
        return ThreadLatch()

    def spawn(self, make: Made, stop: Callable[[], None], name: str, never: Callable[[], None] = lambda: None) -> Thread:
        """See `Runtime.spawn`. A daemon thread: it does not keep the interpreter from ending."""
        return Thread(make, stop, name)

    def call(self, function: Callable[[], object], what: str) -> None:
        """See `Runtime.call`. In a thread of its own, which ends with it: renewal must not wait for it."""
        try:
            threading.Thread(target=attempt, args=(function, what), name="interlock-callback", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends: late is better than never
            attempt(function, what)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """See `Runtime.later`."""
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), function)
        timer.daemon = True
        timer.start()


class ThreadBell:
    """See `Bell`. A pipe that holds at most one byte."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a descriptor that was closed may be somebody else's by now
        self._pid = os.getpid()
        self._open = False
        self._ear, self._hammer = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._hammer, False)
        self._open = True
        self._rung = False
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: the pipe is the parent's, and a number that is kept may mean another file by the time it is closed."""
        self.close()

    def ring(self) -> None:
        """See `Bell.ring`."""
        if not self._rung and self._open:
            with self._guard:
                if self._open:  # twice is as good as once
                    self._rung = True
                    os.write(self._hammer, b"!")

    async def wait(self, until: float) -> bool:
        """See `Bell.wait`."""
        if not self._rung and not await Wait(self._ear if self._open else None, until):
            return False
        with self._guard:
            if self._rung:
                os.read(self._ear, 1)
                self._rung = False
        return True

    def close(self) -> None:
        """See `Bell.close`."""
        if self._pid != os.getpid():  # a fork: whoever had the guard may not exist here
            self._guard, self._pid = threading.RLock(), os.getpid()
        with self._guard:
            if self._open:
                self._open = False
                os.close(self._ear)
                os.close(self._hammer)

    def __del__(self) -> None:
        self.close()


class ThreadLatch:
    """See `Bell`. A lock that is free once it has been rung: no descriptor, and the kernel wakes the thread at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """See `Bell.ring`."""
        with suppress(RuntimeError):  # it has been rung already
            self._lock.release()

    async def wait(self, until: float) -> bool:
        """See `Bell.wait`."""
        return await Parked(self._lock, until)

    def close(self) -> None:
        """See `Bell.close`."""


class Thread:
    """See `Spawned`."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], None], name: str) -> None:
        self.stop = stop
        self._thread = threading.Thread(target=lambda: run(make()), name=name, daemon=True)
        stop_at_exit(self)
        self._thread.start()

    async def end(self) -> None:
        """See `Spawned.end`."""
        self.stop()
        self.join(PATIENCE)

    def join(self, patience: float) -> None:
        """See `ending.Working`. The child of a fork has no such thread."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(patience)


def _step(one: Any, value: Any, index: int, waiting: dict[int, Wait | Waits], ended: Ended[Any]) -> bool:
    """One step of one coroutine of a race. Whether the race is over."""
    try:
        waiting[index] = one.send(value)
        return False
    except StopIteration as stop:
        outcome = stop.value
    except InterlockError as error:  # an outcome like any other; what a signal's handler raises ends the race
        outcome = error
    return ended(index, outcome)


def _look(bored: Bored) -> tuple[bool, float]:
    """Whether the race is over for somebody who is bored, and when to ask again."""
    pause = bored()
    return pause <= 0, now() + pause


def _abandon(one: Coroutine[Any, Any, Any]) -> None:
    """End a coroutine that is still under way; harmless for one that has ended."""
    if getattr(one, "cr_frame", None) is None:
        return
    try:
        one.throw(Abandoned())
    except (Abandoned, StopIteration, InterlockError):  # nobody is interested any more
        return
    one.close()  # it wanted to wait once more: there is no time for that
