"""Stepping coroutines without an event loop: what they may wait for, and how a thread waits for it.

A coroutine of the middle layers may yield one thing only, a `Wait`: until this descriptor is readable, or this moment has
come. `run` answers it with whether the descriptor became readable. A race yields the waits of all that run in it (`Waits`),
so races may be nested. A latch yields a lock (`Parked`). No event loop, no thread, about a microsecond a call.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from ..errors import UsageError
from .base import now

T = TypeVar("T")

LONGEST_POLL = 3600.0  # poll(2) takes an int of milliseconds; nobody needs to sleep longer in one piece


class Abandoned(BaseException):
    """Thrown into a coroutine whose result is not needed any more, as asyncio would throw a cancellation."""


class Wait:
    """Awaited: until `fd` is readable (True) or the moment `until` has come (False)."""

    __slots__ = ("fd", "poll", "until")

    def __init__(self, fd: int | None, until: float) -> None:
        self.fd = fd
        self.until = until
        self.poll: Any = None  # made once for one that is awaited again and again

    def __await__(self) -> Generator[Wait, bool, bool]:
        return (yield self)


class Parked:
    """Awaited: until the lock can be had (True) or the moment `until` has come (False)."""

    __slots__ = ("lock", "until")

    def __init__(self, lock: Any, until: float) -> None:
        self.lock = lock
        self.until = until

    def __await__(self) -> Generator[Parked, bool, bool]:
        return (yield self)


class Waits:
    """Awaited: until at least one of several waits is over. The answers of those, by their numbers."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[int, Wait | Waits]) -> None:
        self.parts = parts

    def __await__(self) -> Generator[Waits, dict[int, Any], dict[int, Any]]:
        return (yield self)


def wait(ask: Wait) -> bool:
    """Block as asked."""
    while True:
        left = ask.until - now()
        if left > LONGEST_POLL:
            left = LONGEST_POLL
        if ask.fd is None:
            if left <= 0:
                return False
            time.sleep(left)
            continue
        if ask.poll is None:
            ask.poll = select.poll()
            ask.poll.register(ask.fd, select.POLLIN)
        if ask.poll.poll(math.ceil(left * 1000) if left > 0 else 0):
            return True
        if now() >= ask.until:
            return False


def wait_any(ask: Waits) -> dict[int, Any]:
    """Block until at least one of them is over."""
    leaves: list[Wait] = []
    _collect(ask, leaves)
    poll = select.poll()
    for leaf in leaves:
        if leaf.fd is not None:
            poll.register(leaf.fd, select.POLLIN)
    until = min(leaf.until for leaf in leaves)
    while True:
        left = min(until - now(), LONGEST_POLL)
        readable = {fd for fd, _ in poll.poll(max(0, math.ceil(left * 1000)))}
        if readable or now() >= until:
            return _answers(ask, readable, now())


def _collect(ask: Waits, leaves: list[Wait]) -> None:
    for part in ask.parts.values():
        if type(part) is Wait:
            leaves.append(part)
        else:
            _collect(part, leaves)  # type: ignore[arg-type]


def _answers(ask: Waits, readable: set[int], moment: float) -> dict[int, Any]:
    answers: dict[int, Any] = {}
    for index, part in ask.parts.items():
        if isinstance(part, Waits):
            if inner := _answers(part, readable, moment):
                answers[index] = inner
        elif part.fd in readable:
            answers[index] = True
        elif part.until <= moment:
            answers[index] = False
    return answers


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
                elif type(ask) is Waits:
                    step, value = work.send, wait_any(ask)
                elif type(ask) is Parked:
                    left = min(ask.until - now(), LONGEST_POLL)
                    step, value = work.send, ask.lock.acquire(True, left) if left > 0 else ask.lock.acquire(False)
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
