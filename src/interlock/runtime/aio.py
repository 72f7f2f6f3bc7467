"""The asyncio runtime. Flows are awaited natively; this file says how to sleep, to shield, to race and to run beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ..errors import UsageError
from . import forks
from .aio_race import Race, Racer, in_a_task, interrupt, wake
from .base import Bored, Ended, Made, World, attempt, now

T = TypeVar("T")

LONGEST_SLEEP = 3600.0
TIRELESS = 3  # how often shielded work is begun again when something cancels it from outside


class AsyncioRuntime(World):
    """The world for tasks."""

    colour = "asyncio"

    async def sleep(self, seconds: float) -> None:
        """See `Runtime.sleep`."""
        await asyncio.sleep(seconds)

    async def shield(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See `Runtime.shield`.

        Unlike asyncio.shield, it does not return before the work is done: nothing runs on behind the caller's back.
        """
        self._check_parent()
        cancelled: asyncio.CancelledError | None = None
        for _ in range(TIRELESS):
            task = asyncio.ensure_future(make())
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError as stop:
                    cancelled = stop
            if not task.cancelled():
                break
            cancelled = cancelled or asyncio.CancelledError()
        if cancelled is not None:
            if task.cancelled():
                cancelled.add_note("interlock: the clean-up was cancelled as well; the lock may stay until its ttl ends")
            elif (error := task.exception()) is not None:
                cancelled.add_note(f"interlock: the clean-up failed: {error}")
            raise cancelled
        return task.result()

    def __init__(self) -> None:
        super().__init__()
        self._finishing: set[Racer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inherited = False
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. A child may go on with the parent's tasks, if only to cancel them: their clean-up must ask no store."""
        self._inherited = True

    def _check_parent(self) -> None:
        if self._inherited:
            raise UsageError(
                "this AsyncClient belongs to the parent process; nothing was done. Make a client of its own in the child"
            )

    def struck(self, error: BaseException) -> bool:
        """See `Runtime.struck`."""
        return not isinstance(error, asyncio.CancelledError) and super().struck(error)

    def check_loop(self) -> None:
        """See `Runtime.check_loop`."""
        self._check_parent()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "this AsyncClient belongs to another event loop; nothing was done. Make one client in each loop, inside the "
                "coroutine that asyncio.run() runs"
            )

    async def readable(self, fd: int, until: float) -> bool:
        """See `Runtime.readable`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        ready = False

        def read() -> None:
            nonlocal ready
            ready = True
            wake(waiter)

        loop.add_reader(fd, read)
        alarm = loop.call_later(min(until - now(), LONGEST_SLEEP), wake, waiter)
        try:
            await waiter
        finally:
            alarm.cancel()
            loop.remove_reader(fd)
        return ready

    def bell(self) -> TaskBell:
        """See `Runtime.bell`."""
        return TaskBell()

    def latch(self) -> TaskBell:
        """See `Runtime.latch`."""
        return TaskBell()

    def spawn(self, make: Made, stop: Callable[[], None], name: str, never: Callable[[], None] = lambda: None) -> Task:
        """See `Runtime.spawn`."""
        began = False

        async def begin() -> None:
            nonlocal began
            began = True
            await make()

        task = asyncio.get_running_loop().create_task(begin(), name=name)
        task.add_done_callback(lambda _: None if began else never())
        return Task(task, stop)

    def call(self, function: Callable[[], object], what: str) -> None:
        """See `Runtime.call`. In the loop, so it must not block. It may look at a task that was cancelled: that is not ours."""
        attempt(function, what, asyncio.CancelledError)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """See `Runtime.later`."""
        asyncio.get_running_loop().call_later(min(seconds, LONGEST_SLEEP), function)

    async def settle(self) -> None:
        """See `Runtime.settle`."""
        while self._finishing:
            await asyncio.wait([racer.over() for racer in self._finishing])

    async def race(
        self,
        work: Sequence[Coroutine[Any, Any, T]],
        ended: Ended[T],
        finish: bool = False,
        bored: Bored | None = None,
        light: bool = False,
    ) -> None:
        """See `Runtime.race`. Light work is stepped by hand: a task for each would cost more than all that it does."""
        loop = asyncio.get_running_loop()
        race = Race(loop, ended, len(work))
        racers = [Racer(race, index, one if light else in_a_task(one)) for index, one in enumerate(work)]
        try:
            for racer in racers:
                racer.step()
            if bored is not None and light:
                race.look(bored)
            elif bored is not None:
                race.alarm = loop.call_soon(race.look, bored)  # after the tasks have begun
            if not race.over:
                await race.turn
            if race.error is not None:
                raise race.error
        except BaseException:
            finish = False
            raise
        finally:
            race.closed = True
            if race.alarm is not None:
                race.alarm.cancel()
            if race.open:
                rest = [racer for racer in racers if not racer.ended]
                if finish:
                    self._finishing.update(rest)
                    race.finished = self._finishing.discard
                else:
                    await interrupt(rest)


class TaskBell:
    """See `Bell`. Used in one loop only."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """See `Bell.ring`."""
        self._rung = True
        try:
            wake(self._waiter)
        except RuntimeError:  # the loop of whoever waits is closed: it will never come to it
            self._waiter = None

    async def wait(self, until: float) -> bool:
        """See `Bell.wait`."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            alarm = loop.call_later(min(until - now(), LONGEST_SLEEP), wake, self._waiter)
            try:
                await self._waiter
            finally:
                alarm.cancel()
                self._waiter = None
        rung, self._rung = self._rung, False
        return rung

    def close(self) -> None:
        """See `Bell.close`."""


class Task:
    """See `Spawned`."""

    def __init__(self, task: asyncio.Task[None], stop: Callable[[], None]) -> None:
        self._task = task
        self._stop = stop

    async def end(self) -> None:
        """See `Spawned.end`."""
        self._stop()
        if self._task is not asyncio.current_task() and self._task.get_loop() is asyncio.get_running_loop():
            await _stop(self._task)


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel it and wait until it has ended, which is at once: it cleans nothing up that takes time."""
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as stop:
            cancelled = stop
    if not task.cancelled():
        task.exception()  # looked at, or asyncio would complain that nobody did
    if cancelled is not None:
        raise cancelled
