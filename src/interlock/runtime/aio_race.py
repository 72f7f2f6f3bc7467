"""Coroutines that run side by side in one task of a loop: see `AsyncioRuntime.race`.

A question to five nodes would be five tasks, each of which costs as much as all that it does. So each coroutine is stepped by
hand: up to its first wait by the race, from then on by the callback of whatever it waits for.

Invariants
- It is stepped as a task would be: it is the current one while it runs, and can be cancelled where it waits.
- Nobody is told of an outcome after the race has returned; what `ended` raises is raised by the race, not in a callback.
- What is interrupted has ended when the race returns, unless it is left to finish.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # the documented way to be a task of another kind
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import InterlockError
from .base import Bored, Ended

T = TypeVar("T")


class Race:
    """What those who run in a race share."""

    __slots__ = ("_ended", "alarm", "closed", "error", "finished", "loop", "open", "over", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Ended[Any], number: int) -> None:
        self.open = number  # so many have not ended
        self.over = number == 0
        self.closed = False  # nobody is told any more
        self.error: BaseException | None = None  # what `ended` raised
        self.turn: asyncio.Future[None] = loop.create_future()  # until it is over
        self.alarm: asyncio.Handle | None = None
        self.finished: Callable[[Racer], None] | None = None  # told of each that ends afterwards
        self.loop = loop
        self._ended = ended

    def told(self, racer: Racer, outcome: Any) -> None:
        """One has ended."""
        self.open -= 1
        if self.closed:
            if self.finished is not None:
                self.finished(racer)
            return
        try:
            enough = self.error is not None or self._ended(racer.index, outcome)
        except BaseException as error:  # noqa: BLE001 - raised by the race itself
            self.error, enough = error, True
        if enough or not self.open:
            self.end()

    def look(self, bored: Bored) -> None:
        """Ask whether it is enough, now and later."""
        if not self.over:
            pause = bored()
            if pause > 0:
                self.alarm = self.loop.call_later(pause, self.look, bored)
            else:
                self.end()

    def end(self) -> None:
        """It is over: the race wakes, with whatever else has ended by then."""
        self.over = True
        wake(self.turn)


class Racer:
    """One coroutine of a race, stepped by whatever it waits for. While it runs it is the current task, as far as time-outs ask:
    they want to cancel it, and to tell their cancellation from others'."""

    __slots__ = ("__weakref__", "_awaited", "_cancels", "_must_cancel", "_over", "_race", "_work", "ended", "index")

    def __init__(self, race: Race, index: int, work: Coroutine[Any, Any, Any]) -> None:
        self.index = index
        self.ended = False
        self._race = race
        self._work = work
        self._awaited: asyncio.Future[Any] | None = None
        self._cancels = 0
        self._must_cancel = False
        self._over: asyncio.Future[None] | None = None

    def step(self, woken: object = None, error: BaseException | None = None) -> None:
        """Go on until it waits again."""
        if woken is not self._awaited:  # it was interrupted, with this callback on its way
            return
        loop = self._race.loop
        if self._must_cancel:
            error, self._must_cancel = asyncio.CancelledError(), False
        outer: Any = asyncio.current_task(loop)
        if outer is not None:
            _leave_task(loop, outer)
        _enter_task(loop, self)  # type: ignore[arg-type]
        try:
            awaited = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as stop:
            outcome = stop.value
        except (InterlockError, asyncio.CancelledError) as failure:  # an outcome like any other
            outcome = failure
        except Exception as struck:  # noqa: BLE001 - a signal's handler has raised it: the race raises it
            outcome, self._race.error = struck, struck
        else:
            if awaited is None:  # it lets others have a turn
                awaited = loop.create_future()
                loop.call_soon(wake, awaited)
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self.step)
            self._awaited = awaited
            return
        finally:
            _leave_task(loop, self)  # type: ignore[arg-type]
            if outer is not None:
                _enter_task(loop, outer)
        self._awaited = None
        self.ended = True
        wake(self._over)
        self._race.told(self, outcome)

    def interrupt(self) -> None:
        """Cancel it, now. Unless it cleans up, or waits for a task, it has ended then."""
        awaited = self._awaited
        if isinstance(awaited, asyncio.Task):
            awaited.cancel()  # and it goes on when that has ended
            return
        if awaited is not None:
            self._awaited = None
            awaited.remove_done_callback(self.step)
            awaited.cancel()
        self.step(error=asyncio.CancelledError())

    def cancel(self, msg: object = None) -> bool:
        """See `asyncio.Task.cancel`. In the next turn: whoever calls it has something to note first."""
        self._cancels += 1
        if self._awaited is None or not self._awaited.cancel():
            self._must_cancel = True
        return not self.ended

    def cancelling(self) -> int:
        """See `asyncio.Task.cancelling`."""
        return self._cancels

    def uncancel(self) -> int:
        """See `asyncio.Task.uncancel`."""
        self._cancels = max(self._cancels - 1, 0)
        return self._cancels

    def over(self) -> asyncio.Future[None]:
        """Until it has ended."""
        if self._over is None:
            self._over = self._race.loop.create_future()
            if self.ended:
                wake(self._over)
        return self._over


async def in_a_task(work: Coroutine[Any, Any, T]) -> T:
    """Give it one of its own."""
    return await asyncio.ensure_future(work)


async def interrupt(racers: list[Racer]) -> None:
    """Cancel them and wait until they have ended, which is at once: they clean nothing up that takes time."""
    for racer in racers:
        racer.interrupt()
    cancelled: asyncio.CancelledError | None = None
    while rest := [racer.over() for racer in racers if not racer.ended]:
        try:
            await asyncio.wait(rest)
        except asyncio.CancelledError as stop:
            cancelled = stop
    if cancelled is not None:
        raise cancelled


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Settle what somebody may wait for, if nobody has."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
