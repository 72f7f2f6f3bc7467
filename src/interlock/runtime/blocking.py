"""The blocking runtime: it steps the same coroutines that asyncio awaits.

A coroutine of the middle layers may yield one thing only, a `Wait`: until this descriptor is readable, or this moment has
come. `run` answers it with whether the descriptor became readable. No event loop, no thread, about a microsecond a call.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from ..errors import UsageError
from .base import World, now

T = TypeVar("T")

LONGEST_POLL = 3600.0  # poll(2) takes an int of milliseconds; nobody needs to sleep longer in one piece


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

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """See `Runtime.shield`. A thread cannot be cancelled; Ctrl-C still gets through, on purpose."""
        return await work
