"""The asyncio runtime. Flows are awaited natively; this file only says how to sleep and how to shield."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from .base import Ended, World

T = TypeVar("T")

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
        self._finishing: set[asyncio.Future[Any]] = set()

    async def settle(self) -> None:
        """See `Runtime.settle`."""
        while self._finishing:
            await asyncio.wait(self._finishing)

    async def race(self, work: Sequence[Coroutine[Any, Any, T]], ended: Ended[T], finish: bool = False) -> None:
        """See `Runtime.race`. A task each."""
        tasks = {asyncio.ensure_future(one): index for index, one in enumerate(work)}
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.cancelled():
                        outcome: T | BaseException = asyncio.CancelledError()
                    else:
                        outcome = task.exception() or task.result()
                    if ended(tasks[task], outcome):
                        return
        except BaseException:
            finish = False
            raise
        finally:
            if finish:
                self._let_finish([task for task in tasks if not task.done()])
            await _stop([task for task in tasks if task not in self._finishing])

    def _let_finish(self, tasks: list[asyncio.Future[Any]]) -> None:
        for task in tasks:
            self._finishing.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[Any]) -> None:
        self._finishing.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, or asyncio would complain that nobody did


async def _stop(tasks: list[asyncio.Future[Any]]) -> None:
    """Cancel them and wait until they have ended, which is at once: they clean nothing up that takes time."""
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as stop:
            cancelled = stop
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, or asyncio would complain that nobody did
    if cancelled is not None:
        raise cancelled
