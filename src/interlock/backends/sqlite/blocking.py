"""Threads share one connection: one at a time, each waiting no longer than it said.

Invariants
- A signal handler may raise between any two steps (Ctrl-C in a notebook, where the process lives on). So the lock knows
  its owner, and the `finally` that gives it back covers the taking of it.
- A signal handler or finaliser that calls back into the store from inside a verb is refused, not let in.
- The file is closed by whoever is alone with it: by `close`, or by the verb that it could not wait for, or that it interrupts.
  Under another thread's statement that would be a null pointer there: a crash.
- A forked child starts with a fresh lock: the old one may be held by a thread that does not exist there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any, TypeVar

from ...errors import UsageError
from ...runtime import forks
from .file_lock import Budget, Shut

T = TypeVar("T")

CLOSE_PATIENCE = 5.0


class BlockingTransport:
    """See `transport.Transport`. The caller's own thread does the work."""

    def __init__(self) -> None:
        self._turn = RLock()
        self._inside = False
        self._last: Callable[[], None] | None = None  # what a close has left to whoever is inside
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`."""
        self._turn, self._inside = RLock(), False

    async def run(self, verb: Callable[..., T], args: tuple[Any, ...], within: float, clean_up: bool) -> T:
        """See `transport.Transport.run`. A disk that hangs cannot be bounded here: the kernel does not let the thread go."""
        budget = Budget(within)
        mine = False
        try:
            if not self._turn.acquire(False) and not self._turn.acquire(True, max(within, 0.0)):
                raise Shut("other threads of this process were using it all that time")
            if self._inside:
                raise UsageError(
                    "a signal handler or finaliser used this client while the same thread was inside it; nothing was written. "
                    "Set a flag there, and act on it outside"
                )
            mine = self._inside = True
            return verb(*args, budget)
        finally:
            if mine:
                self._inside = False
                if self._last is not None:
                    self._end()
            try:  # noqa: SIM105 - a context manager costs more than the rest of this method
                self._turn.release()
            except RuntimeError:  # it was never ours: the wait ended without it
                pass

    def pause(self, within: float) -> bool:
        """See `transport.Transport.pause`."""
        if not self._turn.acquire(timeout=within):
            return False
        if self._inside:  # a signal handler or finaliser forks
            self._turn.release()
            return False
        return True

    def go_on(self) -> None:
        """See `transport.Transport.go_on`."""
        self._end()
        self._turn.release()

    def retire(self, last: Callable[[], None], within: float) -> None:
        """See `transport.Transport.retire`. The turn is kept, by a thread that may take it again."""
        if self.pause(within):
            last()

    async def close(self, last: Callable[[], None]) -> None:
        """See `transport.Transport.close`. Waits for a verb of another thread that is under way."""
        self._last = last
        try:
            if self._turn.acquire(timeout=CLOSE_PATIENCE) and not self._inside:
                self._end()
        finally:
            with suppress(RuntimeError):
                self._turn.release()

    def _end(self) -> None:
        """What was left to do. Whoever calls it has the turn and is not inside."""
        last, self._last = self._last, None
        if last is not None:
            last()
