"""What stops the body of an asyncio block when its lease is lost: a cancellation of the task that it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from .base import now

LONGEST_SLEEP = 3600.0


class Leash:
    """Cancels the task that a block runs in, and at the block's end tells its own cancellation from others'.

    As asyncio.timeout does: each cancellation is counted by the task, so one from outside is never taken for ours.
    """

    def __init__(self, due: Callable[[], float], fire: Callable[[], None]) -> None:
        """Calls `fire` at the moment that `due` names, which may move on meanwhile."""
        task = asyncio.current_task()
        if task is None:
            raise UsageError("a block on a lock needs a task to run in; use it inside a coroutine that asyncio runs")
        self.task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._due, self._fire = due, fire
        self._pulled = self.slipped = False
        self._again: asyncio.Handle | None = None
        self._alarm = self._loop.call_later(due() - now(), self._look)

    def _look(self) -> None:
        left = self._due() - now()
        if left > 0:
            self._alarm = self._loop.call_later(min(left, LONGEST_SLEEP), self._look)
        else:
            self._fire()

    def rearm(self) -> None:
        """What is due may have come nearer."""
        if self.slipped:
            return
        self._alarm.cancel()
        self._alarm = self._loop.call_later(min(max(self._due() - now(), 0.0), LONGEST_SLEEP), self._look)

    def pull(self) -> None:
        """Cancel the task, once."""
        if self._pulled or self.slipped:
            return
        if asyncio.current_task() is self.task:
            # It is told in another way, by an exception perhaps; unless it goes on, which is seen when it waits next. (To
            # cancel a task from inside would strike wherever it waits next, even after the block.)
            self._again = self._again or self._loop.call_soon(self.pull)
        else:
            self._pulled = True
            self.task.cancel()

    def slip(self, error: BaseException | None) -> bool:
        """The block ends with `error`. Whether that is our cancellation, and nobody else's."""
        if self.slipped:
            return False
        self.slipped = True
        self._alarm.cancel()
        if self._again is not None:
            self._again.cancel()
        if not self._pulled:
            return False
        return self.task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)


class Leashes:
    """Those of one lease: one for each task that is inside a block on it."""

    def __init__(self, due: Callable[[], float], fire: Callable[[], None]) -> None:
        """See `Leash`."""
        self._due, self._fire = due, fire
        self._some: list[Leash] = []

    def __bool__(self) -> bool:
        return bool(self._some)

    def enter(self) -> Leash:
        """A block begins, in this task: its leash."""
        task = current_task()
        for leash in self._some:
            if leash.task is task and not leash.slipped:
                return leash
        leash = Leash(self._due, self._fire)
        self._some.append(leash)
        return leash

    def told(self, what: str) -> None:
        """A watcher of the lease: see `Hold.watch`."""
        if what == "lost":
            for leash in list(self._some):
                leash.pull()
        elif what == "nearer":
            self.rearm()

    def rearm(self) -> None:
        """See `Leash.rearm`."""
        for leash in self._some:
            leash.rearm()

    def slip(self, error: BaseException | None) -> bool:
        """A block ends: see `Leash.slip`. Perhaps in another task than it began in: then it is the one that can be meant."""
        task, some = current_task(), self._some
        some[:] = [leash for leash in some if not leash.slipped]  # by a block that was struck while it ended
        mine = [leash for leash in some if leash.task is task] or [leash for leash in some if leash.task.done()]
        if not mine and len(some) == 1:
            mine = some
        if not mine:
            return False
        leash = mine[0]
        stopped = leash.slip(error)  # first: whatever strikes now, nothing of it is left to stop anybody
        some.remove(leash)
        return stopped


def current_task() -> asyncio.Task[Any] | None:
    """The task that runs. None where no loop does: in a forked child that leaves its parent's block."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
