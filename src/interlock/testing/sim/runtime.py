"""The simulated world of one process: what flows get in place of asyncio. See `runtime.base.Runtime` for each method.

It behaves as the asyncio colour does: those in a race that are light are begun and interrupted by it, what is left to finish
goes on beside the caller, a shield takes a cancellation and raises it afterwards.

A little long because the world of a process has many things in it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from heapq import heappush
from math import inf
from typing import Any, TypeVar

from ...core import token as tokens
from ...core.fence import EPOCH_MS
from ...errors import InterlockError
from ...runtime.base import Bored, Ended, Made
from .kernel import Cancelled, Future, Kernel, Process, Struck, Task

T = TypeVar("T")

TIRELESS = 3


class SimRuntime:
    """See `runtime.base.Runtime`."""

    colour = "asyncio"

    def __init__(self, kernel: Kernel, process: Process, fallen: Callable[[str, BaseException], None]) -> None:
        self.kernel = kernel
        self.process = process
        self.minted: Callable[[str], None] = lambda token: None  # told of every token
        self.promised: Callable[[str], None] = lambda token: None  # and of those that were made for somebody else
        self._fallen = fallen  # told of what nobody else would hear of: a task that ended with an error
        self._finishing: set[int] = set()
        self._settled: list[Future] = []

    def another(self) -> SimRuntime:
        """For another client in the same process."""
        other = type(self)(self.kernel, self.process, self._fallen)
        other.minted, other.promised = self.minted, self.promised
        return other

    def now(self) -> float:
        """See `Runtime.now`."""
        process = self.process
        return process.offset + process.rate * self.kernel.now

    def wall_ms(self) -> int:
        """See `Runtime.wall_ms`. It starts some days after the epoch, and may jump."""
        return EPOCH_MS + int((1_000_000.0 + self.kernel.now + self.process.wall_offset) * 1000)

    def wall_ahead(self) -> float:
        """See `Runtime.wall_ahead`. Nodes have no epoch."""
        return 1_000_000.0 + self.kernel.now + self.process.wall_offset - self.now()

    def jitter(self) -> float:
        """See `Runtime.jitter`."""
        return self.kernel.random.random()

    def token(self, note: str = "") -> str:
        """See `Runtime.token`."""
        # Not from `runtime.base`, where the real ones come from: this one is no secret, and the seed decides it.
        digits = f"{self.kernel.random.getrandbits(128):032x}"
        token = f"{digits}{tokens.SEPARATOR}{self.process.name}{f' ({note})' if note else ''}"
        self.minted(token)
        return token

    def owner(self) -> str:
        """See `Runtime.owner`."""
        return self.process.name

    def struck(self, error: BaseException) -> bool:
        """See `Runtime.struck`."""
        return not isinstance(error, Cancelled | InterlockError)

    def may_strike(self) -> None:
        """A place where a signal's handler may raise. Raises Struck."""
        task = self.kernel.current
        if task is not None and task.aim is not None:
            task.aim.place()

    def check_loop(self) -> None:
        """See `Runtime.check_loop`."""

    def yield_thread(self) -> None:
        """See `Runtime.yield_thread`. Whoever was woken has its turn anyhow."""

    async def readable(self, fd: int, until: float) -> bool:
        """See `Runtime.readable`. There are no descriptors here."""
        raise NotImplementedError("a simulated process has no descriptors")

    def alarm(self, moment: float, future: Future, value: Any = None) -> None:
        """Settle it at that moment of this process's clock."""
        # A nanosecond late: a clock that is read then must not be a rounding error short of the moment.
        kernel, process = self.kernel, self.process
        moment = process.host(moment) + 1e-9
        now = kernel.now
        heappush(kernel.queue, (moment if moment > now else now, kernel.number(), process, future, value))

    async def sleep(self, seconds: float) -> None:
        """See `Runtime.sleep`."""
        future = Future()
        self.alarm(self.now() + (seconds if seconds > 0.0 else 0.0), future)
        await future

    def task(self, work: Coroutine[Any, Any, Any], then: Callable[[Task], None] = lambda task: None) -> Task:
        """Run it in a task of this process."""
        return Task(self.kernel, self.process, work, then)

    def bell(self) -> SimBell:
        """See `Runtime.bell`."""
        return SimBell(self)

    def latch(self) -> SimBell:
        """See `Runtime.latch`."""
        return SimBell(self)

    def call(self, function: Callable[[], object], what: str) -> None:
        """See `Runtime.call`."""
        function()

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """See `Runtime.later`."""
        self.kernel.at(self.process.host(self.now() + seconds) + 1e-9, self.process, function)

    def spawn(self, make: Made, stop: Callable[[], None], name: str, never: Callable[[], None] = lambda: None) -> Spawned:
        """See `Runtime.spawn`."""
        spawned = Spawned(self, stop)

        def ended(task: Task) -> None:
            if isinstance(task.error, Exception):
                self._fallen(name, task.error)
            spawned.over.settle()

        spawned.task = self.task(make(), ended)
        spawned.task.aim = None  # it runs on its own behalf
        return spawned

    async def settle(self) -> None:
        """See `Runtime.settle`."""
        while self._finishing:
            future = Future()
            self._settled.append(future)
            await future

    async def shield(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See `Runtime.shield`."""
        cancelled: Cancelled | None = None
        for _ in range(TIRELESS):
            over = [Future()]
            task = self.task(make(), lambda task: over[0].settle())  # noqa: B023 - the list of this round
            while not task.done:
                try:
                    await over[0]
                except Cancelled as stop:
                    cancelled, over[0] = stop, Future()
            if not isinstance(task.error, Cancelled):
                break
            cancelled = cancelled or Cancelled()
        if cancelled is not None:
            raise cancelled
        if task.error is not None:
            raise task.error
        result: T = task.result
        return result

    async def race(
        self,
        work: Sequence[Coroutine[Any, Any, T]],
        ended: Ended[T],
        finish: bool = False,
        bored: Bored | None = None,
        light: bool = False,
    ) -> None:
        """See `Runtime.race`. As in `runtime.aio_race`: light work is begun and interrupted here, other work a turn later."""
        kernel, process = self.kernel, self.process
        turn, left = Future(), len(work)  # until it is over; so many have not ended
        failure: BaseException | None = None  # what `ended` raised

        def told(task: Task) -> None:
            nonlocal left, failure
            left -= 1
            if isinstance(task.error, Struck):  # no outcome: the race raises it
                failure = failure or task.error
            try:
                enough = failure is not None or ended(task.place, task.result if task.error is None else task.error)
            except BaseException as error:  # noqa: BLE001 - raised by the race itself
                failure, enough = error, True
            if enough or not left:
                turn.settle()

        def look(bored: Bored) -> None:
            if not turn.done:
                pause = bored()
                if pause > 0:
                    kernel.at(process.host(self.now() + pause) + 1e-9, process, look, bored)
                else:
                    turn.settle()

        tasks = [Task(kernel, process, one, told, place, not light) for place, one in enumerate(work)]
        try:
            if light:
                for task in tasks:
                    task.begin()
            if bored is not None:
                look(bored)
            if left:
                await turn
            if failure is not None:
                raise failure
        except BaseException:
            finish = False
            raise
        finally:
            turn.settle()
            rest: list[Task] = [task for task in tasks if not task.done]
            if finish:
                for task in rest:
                    self._finishing.add(id(task))
                    task.then = self._finished
            elif rest:
                await self.stop(rest, light)

    def _finished(self, task: Task) -> None:
        self._finishing.discard(id(task))
        waiting, self._settled = self._settled, []
        for future in waiting:
            future.settle()

    async def stop(self, tasks: Sequence[Task], at_once: bool = False) -> None:
        """Cancel them, none of which has ended, and wait until they have."""
        left, turn = len(tasks), Future()

        def then(task: Task) -> None:
            nonlocal left
            left -= 1
            turn.settle()

        for task in tasks:
            task.then = then
            if at_once:
                task.interrupt()
            else:
                task.cancel()
        cancelled: Cancelled | None = None
        while left:
            try:
                await turn
            except Cancelled as stop:
                cancelled = stop
            turn = Future()
        if cancelled is not None:
            raise cancelled


class SimBell:
    """See `runtime.base.Bell`."""

    __slots__ = ("_rung", "_runtime", "_waiter")

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._rung = False
        self._waiter: Future | None = None

    def ring(self) -> None:
        """See `Bell.ring`."""
        self._rung = True
        if self._waiter is not None:
            self._waiter.settle()

    async def wait(self, until: float) -> bool:
        """See `Bell.wait`."""
        if not self._rung:
            self._waiter = future = Future()
            if until != inf and until - self._runtime.now() < 1e6:
                self._runtime.alarm(until, future)
            try:
                await future
            finally:
                self._waiter = None
        rung, self._rung = self._rung, False
        return rung

    async def rung(self) -> None:
        """Wait for ever."""
        await self.wait(inf)

    def close(self) -> None:
        """See `Bell.close`."""


class Spawned:
    """See `runtime.base.Spawned`."""

    def __init__(self, runtime: SimRuntime, stop: Callable[[], None]) -> None:
        self._runtime = runtime
        self._stop = stop
        self.task: Task | None = None
        self.over = Future()

    async def end(self) -> None:
        """See `Spawned.end`."""
        self._stop()
        if self.task is not None and self.task is not self._runtime.kernel.current and not self.task.done:
            await self._runtime.stop([self.task])
