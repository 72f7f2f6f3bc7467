"""Stepping coroutines without an event loop: what they may wait for, and how a thread waits for it.

A coroutine of the middle layers may yield one thing only, a `Wait`: until this descriptor is readable, or this moment has
come. `run` answers it with whether the descriptor became readable. A race yields the waits of all that run in it (`Waits`),
so races may be nested. A latch yields a lock (`Parked`). No event loop, no thread, about a microsecond a call.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Coroutine, Generator
from math import inf
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
    """Awaited: until at least one of several waits is over, or the moment `until` has come. The answers of those that are over,
    by their numbers. May be awaited again with other parts: what is still the same need not be told to the kernel again."""

    __slots__ = ("numbers", "parts", "poll", "until")

    def __init__(self, parts: dict[int, Wait | Waits], until: float = inf) -> None:
        self.parts = parts
        self.until = until
        self.poll: Any = None
        self.numbers: dict[int, int] = {}  # by descriptor: those that `poll` watches

    def __await__(self) -> Generator[Waits, dict[int, Any], dict[int, Any]]:
        return (yield self)

    def watch(self) -> bool:
        """Have all parts watched. False: some are not for descriptors, or two are for one."""
        if len(self.numbers) != len(self.parts):
            self.poll, self.numbers = select.poll(), {}
            for number, part in self.parts.items():
                if type(part) is Wait and part.fd is not None:
                    self.numbers[part.fd] = number
                    self.poll.register(part.fd, select.POLLIN)
            if len(self.numbers) != len(self.parts):
                self.numbers = {}  # else they would be taken for those of other parts, once there are as many
                return False
        return True


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
    """Block until at least one of them is over, or the moment has come."""
    if not ask.watch():
        return _wait_long(ask)
    until = ask.until
    for part in ask.parts.values():
        if part.until < until:
            until = part.until
    while True:
        left = min(until - now(), LONGEST_POLL)
        if ready := ask.poll.poll(math.ceil(left * 1000) if left > 0 else 0):
            answers = {}
            for fd, _ in ready:
                answers[ask.numbers.pop(fd)] = True
                ask.poll.unregister(fd)
            return answers
        if (moment := now()) >= until:
            ask.numbers.clear()
            return _answers(ask, set(), moment) or {}


def _wait_long(ask: Waits) -> dict[int, Any]:
    """The same, for waits of any kind."""
    poll = select.poll()
    until = _register(ask, poll.register)
    while True:
        left = min(until - now(), LONGEST_POLL)
        ready = poll.poll(math.ceil(left * 1000) if left > 0 else 0)
        moment = now()
        if ready or moment >= until:
            return _answers(ask, {fd for fd, _ in ready}, moment) or {}


def _register(ask: Waits, register: Callable[[int, int], object]) -> float:
    """Have all their descriptors watched. When the first of them is over, whatever comes in."""
    until = ask.until
    for part in ask.parts.values():
        if type(part) is Wait:
            if part.fd is not None:
                register(part.fd, select.POLLIN)
            moment = part.until
        else:
            moment = _register(part, register)  # type: ignore[arg-type]
        if moment < until:
            until = moment
    return until


def _answers(ask: Waits, readable: set[int], moment: float) -> dict[int, Any] | None:
    """The answers of those that are over. None: nothing is."""
    answers: dict[int, Any] = {}
    for index, part in ask.parts.items():
        if isinstance(part, Waits):
            if (inner := _answers(part, readable, moment)) is not None:
                answers[index] = inner
        elif part.fd in readable:
            answers[index] = True
        elif part.until <= moment:
            answers[index] = False
    return answers if answers or ask.until <= moment else None


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
