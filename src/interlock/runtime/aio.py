"""The asyncio runtime. Flows are awaited natively; this file only says how to sleep and how to shield."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .base import World

T = TypeVar("T")


class AsyncioRuntime(World):
    """The world for tasks."""

    colour = "asyncio"

    async def sleep(self, seconds: float) -> None:
        """See `Runtime.sleep`."""
        await asyncio.sleep(seconds)

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """See `Runtime.shield`.

        Unlike asyncio.shield, it does not return before the work is done: nothing runs on behind the caller's back.
        """
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as stop:
                cancelled = stop
        if cancelled is not None:
            if not task.cancelled() and (error := task.exception()) is not None:
                cancelled.add_note(f"interlock: the clean-up failed: {error}")
            raise cancelled
        return task.result()
