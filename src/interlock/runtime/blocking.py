"""The blocking runtime: it steps the same coroutines that asyncio awaits.

A coroutine of the middle layers may yield one thing only, a `Wait`: until this descriptor is readable, or this moment has
come. `run` answers it with whether the descriptor became readable. No event loop, no thread, about a microsecond a call.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from ..errors import UsageError
from .base import Ended, World, now

T = TypeVar("T")

LONGEST_POLL = 3600.0  # poll(2) takes an int of milliseconds; nobody needs to sleep longer in one piece


class Abandoned(BaseException):
    """Thrown into a coroutine whose result is not needed any more, as asyncio would throw a cancellation."""


class Wait:
    """Awaited: until `fd` is readable (True) or the moment `until` has come (False)."""

    __slots__ = ("fd", "until")

    def __init__(self, fd: int | None, until: float) -> None:
        self.fd = fd
        self.until = until

    def __await__(self) -> Generator[Wait, bool, bool]:
        return (yield self)


def wait(ask: Wait) -> bool:
    """Block as asked."""
    while True:
        left = min(ask.until - now(), LONGEST_POLL)
        if ask.fd is None:
            if left <= 0:
                return False
            time.sleep(left)
            continue
        poll = select.poll()
        poll.register(ask.fd, select.POLLIN)
        if poll.poll(max(0, math.ceil(left * 1000))):
            return True
        if now() >= ask.until:
            return False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Step `work` to its end and return its result.

    What interrupts a wait (Ctrl-C, an exception from a signal handler) is thrown into the coroutine, where a cancellation
    would arrive under asyncio: the same clean-up runs. Raises UsageError if the coroutine awaits anything foreign.
    """
    step: Any = work.send
    value: Any = None
    while True:
        try:
            while True:  # inside the try, its jump back too: an interruption may strike there
                ask = step(value)
                if type(ask) is Wait:
                    step, value = work.send, wait(ask)
                else:
                    step, value = work.throw, _stranger(work, ask)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as error:
            if getattr(work, "cr_frame", None) is None:  # it has ended, and this is what it raised
                raise
            step, value = work.throw, error  # it struck between two steps: the coroutine cleans up and raises it


def _stranger(work: Coroutine[Any, Any, Any], ask: object) -> UsageError:
    return UsageError(
        f"{getattr(work, '__qualname__', work)!s} awaited {ask!r} in a blocking client; only interlock's own waits can be "
        "stepped. Use AsyncClient for asyncio code"
    )


class BlockingRuntime(World):
    """The world for threads."""

    colour = "blocking"

    async def sleep(self, seconds: float) -> None:
        """See `Runtime.sleep`."""
        await Wait(None, now() + seconds)

    async def shield(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See `Runtime.shield`. A thread cannot be cancelled; Ctrl-C still gets through, on purpose."""
        return await make()

    async def race(self, work: Sequence[Coroutine[Any, Any, T]], ended: Ended[T], finish: bool = False) -> None:
        """See `Runtime.race`. One poll over all of them; it waits here and yields nothing."""
        waiting: dict[int, Wait] = {}
        try:
            over = False
            for index, one in enumerate(work):  # to the first wait of each, even if the race is over before: all are asked
                over |= _step(one, one.send, None, index, waiting, ended)
            while waiting and not over:
                answers = _poll(waiting)
                for index, answer in answers.items():
                    del waiting[index]
                    over |= _step(work[index], work[index].send, answer, index, waiting, ended)
        finally:
            for one in work:
                _abandon(one)

    async def settle(self) -> None:
        """See `Runtime.settle`. Nothing is ever left."""


def _step(one: Any, step: Any, value: Any, index: int, waiting: dict[int, Wait], ended: Ended[Any]) -> bool:
    """One step of one coroutine of a race. Whether the race is over."""
    try:
        ask = step(value)
    except StopIteration as stop:
        return ended(index, stop.value)
    except Exception as error:  # noqa: BLE001 - an outcome like any other; what is not an Exception ends the race
        return ended(index, error)
    waiting[index] = ask
    return False


def _poll(waiting: dict[int, Wait]) -> dict[int, bool]:
    """Those that need not wait any longer, and whether that is because their descriptors are readable."""
    poll = select.poll()
    by_fd = {}
    for index, ask in waiting.items():
        if ask.fd is not None:
            poll.register(ask.fd, select.POLLIN)
            by_fd[ask.fd] = index
    while True:
        left = min(min(ask.until for ask in waiting.values()) - now(), LONGEST_POLL)
        ready = {by_fd[fd]: True for fd, _ in poll.poll(max(0, math.ceil(left * 1000)))}
        moment = now()
        ready |= {index: False for index, ask in waiting.items() if ask.until <= moment and index not in ready}
        if ready:
            return ready


def _abandon(one: Coroutine[Any, Any, Any]) -> None:
    """End a coroutine that is still under way; harmless for one that has ended."""
    if getattr(one, "cr_frame", None) is None:
        return
    try:
        one.throw(Abandoned())
    except (Abandoned, StopIteration):
        return
    except Exception:  # noqa: BLE001 - nobody is interested any more
        return
    one.close()  # it wanted to wait once more: there is no time for that
