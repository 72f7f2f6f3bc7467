"""Virtual time: a queue of events, and tasks that are stepped one at a time. No event loop, no thread, no clock.

Everything that happens is an event in one queue, ordered by time and then by the order in which it was put there; all chance
comes from one generator. So a seed decides everything, and a run can be repeated exactly.

A task behaves as one of asyncio does: it is cancelled where it waits, also in the instant in which what it waits for has
arrived and it has not run yet. A process that is paused does not run; what arrives meanwhile waits in its buffers, and on
resuming it finds those before its timers, as a real loop does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from itertools import count, repeat
from math import inf
from random import Random
from typing import Any

MOST_EVENTS = 300_000  # in one history; more means that something goes round in circles


class Cancelled(BaseException):
    """Thrown into a task where it waits."""


class Struck(Exception):
    """What a signal's handler raises, between two instructions."""


class Aim:
    """When one strikes a task, or what runs on its behalf: at which of the places where it may."""

    __slots__ = ("places", "strikes")

    def __init__(self, places: int, strikes: Callable[[], None]) -> None:
        self.places = places  # left until it does; below 0: it has
        self.strikes = strikes  # told when it does

    def place(self) -> None:
        """One of the places. Raises Struck."""
        self.places -= 1
        if self.places == 0:
            self.strikes()
            raise Struck


class Endless(Exception):
    """The history does not come to an end."""


class Future:
    """Something that one task waits for."""

    __slots__ = ("done", "task", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.task: Task | None = None

    def settle(self, value: Any = None) -> None:
        """It is here. The first value counts."""
        if not self.done:
            self.done = True
            self.value = value
            task = self.task
            if task is not None and not task._scheduled:  # as `Task.wake`, which is written out here: most wake so
                task._scheduled, task._waiting = True, None
                task._kernel.ready.append(task._turn)

    def __await__(self) -> Generator[Future, None, Any]:
        if not self.done:
            yield self
        return self.value


class Process:
    """A client's process: a clock of its own, and whether it gets to run."""

    __slots__ = ("backlog", "name", "offset", "paused", "rate", "wall_offset")

    def __init__(self, name: str, rate: float = 1.0, offset: float = 0.0) -> None:
        self.name = name
        self.rate, self.offset = rate, offset
        self.wall_offset = 0.0  # what the wall clock has jumped by
        self.paused = False
        self.backlog: list[tuple[bool, Callable[[Any], object], Any]] = []  # what waits for it; True: it came in from outside

    def host(self, moment: float) -> float:
        """A moment of this process's clock, on the clock that all histories are written in."""
        return (moment - self.offset) / self.rate


class Task:
    """A coroutine on its way."""

    __slots__ = (
        "_kernel",
        "_must_cancel",
        "_scheduled",
        "_turn",
        "_waiting",
        "_work",
        "aim",
        "done",
        "error",
        "fuse",
        "op",
        "place",
        "process",
        "result",
        "then",
    )

    def __init__(
        self,
        kernel: Kernel,
        process: Process,
        work: Coroutine[Any, Any, Any],
        then: Callable[[Task], None],
        place: int = 0,
        soon: bool = True,
    ) -> None:
        """It begins after all that is due already; if not `soon`, when somebody calls `begin`."""
        self._kernel = kernel
        self._work = work
        self._waiting: Future | None = None
        self._must_cancel = False
        self._turn: Turn = process, self._step, None  # one for all its turns: there are hundreds of thousands
        self.process = process
        self.then = then  # called once it has ended
        self.place = place  # among those that were begun together
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.fuse = 0  # cancelled at this wait, counted from now; 0: never
        self.aim: Aim | None = kernel.current.aim if kernel.current is not None else None
        self.op: str = kernel.current.op if kernel.current is not None else ""  # on whose behalf
        kernel.alive[self] = None
        self._scheduled = True
        if soon:
            kernel.ready.append(self._turn)

    def begin(self) -> None:
        """Run up to the first wait, now."""
        outer = self._kernel.current
        self._step(None)
        self._kernel.current = outer

    def wake(self) -> None:
        """Have it run on."""
        if not self._scheduled and not self.done:
            self._scheduled, self._waiting = True, None
            self._kernel.ready.append(self._turn)

    def cancel(self) -> None:
        """Throw Cancelled into it where it waits; if it does not wait any more, in place of what has arrived."""
        if self.done:
            return
        self._must_cancel = True
        if self._waiting is not None:
            self._waiting.task = None
            self.wake()

    def interrupt(self) -> None:
        """Cancel it, now: unless it has something to clean up, it has ended then."""
        self._must_cancel = self._scheduled = True
        if self._waiting is not None:
            self._waiting.task = None
            self._waiting = None
        self.begin()

    def bury(self) -> None:
        """The world ends here: what it waits for will not come."""
        self.then = lambda task: None
        self.interrupt()

    def _step(self, _: None) -> None:
        if not self._scheduled:  # it was interrupted, with this turn on its way
            return
        kernel = self._kernel
        self._scheduled = False
        kernel.current = self  # tasks are stepped by nobody but the kernel, one at a time
        try:
            if self._must_cancel:
                self._must_cancel = False
                ask: Future = self._work.throw(Cancelled())
            else:
                ask = self._work.send(None)
        except StopIteration as stop:
            self.result = stop.value
            self._end()
        except (Exception, Cancelled) as error:  # noqa: BLE001 - whoever waits for the task is told
            self.error = error.with_traceback(None)  # nobody reads it, and its frames lead back here
            self._end()
        else:
            self._waiting = ask
            ask.task = self
            if self.fuse:
                self.fuse -= 1
                if not self.fuse:
                    kernel.burn(self)
            if self._must_cancel:
                self.cancel()
        kernel.current = None

    def _end(self) -> None:
        self.done = True
        del self._kernel.alive[self]
        self.then(self)
        del self._turn, self.then  # they lead back here: without them less is left for the collector


Turn = tuple[Process | None, Callable[[Any], object], Any]  # whose, what is called, and with what


def _spread(call: tuple[Callable[..., object], tuple[Any, ...]]) -> None:
    call[0](*call[1])


class Kernel:
    """The time, the queue and the chance of one history."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.current: Task | None = None
        self.alive: dict[Task, None] = {}  # tasks that have not ended
        self.ready: deque[Turn] = deque()  # due now
        self.note: Callable[[str, str], None] | None = None  # (who, what): written into the timeline, if somebody wants one
        # Due later: a call and its argument, or a future and what it is settled with.
        self.queue: list[tuple[float, float, Process | None, Callable[[Any], object] | Future | None, Any]] = []
        self.number: Callable[[], int] = count().__next__  # of the next event in the queue

    def at(self, moment: float, process: Process | None, call: Callable[..., object], *args: Any) -> None:
        """Call it then; if that process is paused, when it runs again. (What happens all the time is put there directly.)"""
        heappush(self.queue, (max(moment, self.now), self.number(), process, _spread, (call, args)))

    def soon(self, process: Process | None, call: Callable[[Any], object], argument: Any) -> None:
        """Call it after all that is due already."""
        self.ready.append((process, call, argument))

    def arrive(self, process: Process, call: Callable[[Any], object], argument: Any) -> None:
        """Something has come in for a process: now, or it waits in a buffer."""
        if process.paused:
            process.backlog.append((True, call, argument))
        else:
            call(argument)

    def burn(self, task: Task) -> None:
        """Its fuse is through: cancel it, at once or a moment later."""
        late = self.random.choice((0.0, 0.0, 0.0005, 0.002))
        if self.random.random() < 0.3:
            task.fuse = self.random.randint(1, 6)  # and once more, in its clean-up perhaps
        self.at(self.now + late, task.process, task.cancel)

    def pause(self, process: Process) -> None:
        """Stop a whole process."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Let it run again: first it sees what came in, then which of its timers are due."""
        process.paused = False
        backlog, process.backlog = process.backlog, []
        for _, call, argument in sorted(backlog, key=lambda entry: not entry[0]):
            self.soon(process, call, argument)

    def end(self) -> None:
        """End the tasks that are left. The history is over: nothing of this is part of it."""
        for _ in range(1000):  # clean-ups may begin new ones; those that others wait for come last, so they are first
            for task in reversed(list(self.alive)):
                if not task.done:
                    task.bury()

    def run(self, until: float) -> None:
        """Let time pass until there is nothing more to do. Raises Endless."""
        queue, ready = self.queue, self.ready
        next_ready = ready.popleft
        heappush(queue, (max(until, self.now), inf, None, None, None))  # behind all that is due then
        for _ in repeat(None, MOST_EVENTS):
            if ready:
                process, call, argument = next_ready()
            else:
                self.now, _, process, due, argument = heappop(queue)
                if due is None:
                    return
                if not isinstance(due, Future):
                    call = due
                elif due.done:  # of a question that has been answered: a seventh of all events
                    continue
                else:
                    call = due.settle
            if process is not None and process.paused:
                process.backlog.append((False, call, argument))
            else:
                call(argument)
        raise Endless(f"more than {MOST_EVENTS} events, and no end")
