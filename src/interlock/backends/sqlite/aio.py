"""Tasks share one worker thread, so that no disk and no gate ever blocks the loop.

Invariants
- One worker and one queue: what is handed over later runs later. So an `undo` cannot overtake the claim it undoes.
- A caller that gives up takes its request out of the queue, or out of the wait at the gate if it got that far. Whatever
  was under way already is finished by the worker before anything else.
- A clean-up is waited for to its end, cancelled or not, and runs even if that end comes late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from ...errors import Unavailable, UsageError
from ...runtime import forks
from .file_lock import Budget, Shut
from .session import CLOSED

T = TypeVar("T")

GRACE = 0.05  # the worker keeps the bound itself and knows why; the loop steps in only when the worker hangs
CLOSE_PATIENCE = 5.0


class AsyncioTransport:
    """See `transport.Transport`. The worker starts with the first request and ends with `close`."""

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False
        self._turn = Lock()  # the worker's while it works
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. The parent's worker does not exist in the child."""
        self._worker, self._turn = None, Lock()

    async def run(self, verb: Callable[..., T], args: tuple[Any, ...], within: float, clean_up: bool) -> T:
        """See `transport.Transport.run`."""
        budget = Budget(within)
        job = self._hand_over(_clean_up if clean_up else _request, verb, args, budget)
        answer: asyncio.Future[T] = asyncio.wrap_future(job)
        answer.add_done_callback(_retrieve)
        try:
            if clean_up:
                await _to_the_end(answer, within + GRACE)
            else:
                await asyncio.wait((answer,), timeout=within + GRACE)
        finally:
            if not answer.done() and not clean_up:
                job.cancel()
                budget.cancel()
                answer.cancel()
        if answer.done() and not answer.cancelled():
            return answer.result()
        raise Unavailable(
            f"{self._address()} did not answer within {within:g} s: its disk hangs; what was asked may still happen. Look at "
            "the disk that the file is on",
            backend=self._address(),
            cause="timeout",
        )

    def _hand_over(self, work: Callable[..., T], *args: Any) -> Future[T]:
        if self._closed:
            raise UsageError(CLOSED)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "interlock-sqlite")
        try:
            return self._worker.submit(self._work, work, *args)
        except RuntimeError as error:  # a task of a daemon thread, most likely
            raise Unavailable(
                f"{self._address()} was not asked: the interpreter ends, and has stopped its workers",
                backend=self._address(),
                cause="closed",
            ) from error

    def _work(self, work: Callable[..., T], *args: Any) -> T:
        with self._turn:
            return work(*args)

    def pause(self, within: float) -> bool:
        """See `transport.Transport.pause`."""
        return self._turn.acquire(timeout=within)

    def go_on(self) -> None:
        """See `transport.Transport.go_on`."""
        self._turn.release()

    def retire(self, last: Callable[[], None], within: float) -> None:
        """See `transport.Transport.retire`. Nothing new begins: the interpreter has stopped all workers of its pools."""
        if self.pause(within):
            last()
            self.go_on()

    async def close(self, last: Callable[[], None]) -> None:
        """See `transport.Transport.close`. Waits for requests that were handed over before; a cancellation waits as well."""
        if self._worker is None:
            last()  # nothing was ever opened, or not by this process
            self._closed = True
            return
        try:
            job = self._hand_over(last)
        except Unavailable:  # the interpreter ends, and has the file closed: see `retire`
            return
        finally:
            self._closed = True
        worker, self._worker = self._worker, None
        try:
            await _to_the_end(asyncio.wrap_future(job), CLOSE_PATIENCE)
        finally:
            worker.shutdown(wait=job.done())  # its last job is done, so this is the blink of an eye; or it hangs
        if job.done():
            job.result()


def _request(verb: Callable[..., T], args: tuple[Any, ...], budget: Budget) -> T:
    if budget.left() <= 0:
        raise Shut("other tasks of this process were using it all that time")
    return verb(*args, budget)


def _clean_up(verb: Callable[..., T], args: tuple[Any, ...], budget: Budget) -> T:
    return verb(*args, budget)


async def _to_the_end(answer: asyncio.Future[Any], within: float) -> None:
    """Wait although the caller is cancelled; the cancellation is raised afterwards."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    cancelled: asyncio.CancelledError | None = None
    while not answer.done() and (left := until - loop.time()) > 0:
        try:
            await asyncio.wait((answer,), timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """Look at an error that nobody waits for any more, or asyncio would complain that nobody did."""
    if not answer.cancelled():
        answer.exception()
