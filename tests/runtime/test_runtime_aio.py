"""The asyncio runtime: a shield that waits for its work to end, and lets no cancellation get lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from interlock.errors import Unavailable
from interlock.runtime.aio import AsyncioRuntime

runtime = AsyncioRuntime()


class Work:
    """Work that ends when it is told to, and remembers whether it did."""

    def __init__(self, result: object = "done") -> None:
        self.result = result
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.ended = False

    async def __call__(self) -> object:
        self.started.set()
        await self.go.wait()
        await asyncio.sleep(0)
        self.ended = True
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


async def turns(number: int = 5) -> None:
    """Let everybody else run."""
    for _ in range(number):
        await asyncio.sleep(0)


def asynchronous(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(10):
                await test()
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing runs on behind the caller's back"

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


@asynchronous
async def test_the_result_and_the_error_pass() -> None:
    work = Work(42)
    work.go.set()
    assert await runtime.shield(work) == 42
    error = KeyError("mine")
    work = Work(error)
    work.go.set()
    with pytest.raises(KeyError) as caught:
        await runtime.shield(work)
    assert caught.value is error
    assert not hasattr(error, "__notes__")


@asynchronous
async def test_a_cancelled_caller_waits_for_the_work_to_end() -> None:
    work = Work()
    caller = asyncio.create_task(runtime.shield(work))
    await work.started.wait()
    caller.cancel()
    await turns()
    assert not caller.done(), "not before the work is"
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended
    assert caller.cancelled()


@asynchronous
async def test_a_caller_cancelled_before_the_work_began_still_runs_it() -> None:
    work = Work()
    work.go.set()
    caller = asyncio.create_task(runtime.shield(work))
    await asyncio.sleep(0)  # the caller is inside the shield, the work has not had a turn yet
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended


@asynchronous
async def test_repeated_cancellation_changes_nothing_but_the_count() -> None:
    work, counts = Work(), []

    async def call() -> None:
        try:
            await runtime.shield(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            counts.append(task.cancelling())
            raise

    caller = asyncio.create_task(call())
    await work.started.wait()
    for _ in range(3):
        caller.cancel()
        await turns()
        assert not caller.done()
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended
    assert counts == [3], "every request to cancel is still on the books"


@asynchronous
async def test_the_message_of_the_cancellation_passes() -> None:
    work = Work()
    caller = asyncio.create_task(runtime.shield(work))
    await work.started.wait()
    caller.cancel("shutting down")
    await turns()
    work.go.set()
    with pytest.raises(asyncio.CancelledError, match="shutting down"):
        await caller


@asynchronous
async def test_a_failed_clean_up_is_a_note_on_the_cancellation() -> None:
    work = Work(Unavailable("the store is silent", backend="x", cause="timeout"))
    seen: list[asyncio.CancelledError] = []

    async def call() -> None:
        try:
            await runtime.shield(work)
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    caller = asyncio.create_task(call())
    await work.started.wait()
    caller.cancel()
    await turns()
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert seen[0].__notes__ == ["interlock: the clean-up failed: the store is silent"]


@asynchronous
async def test_work_that_cancels_itself_is_no_surprise() -> None:
    work = Work(asyncio.CancelledError())
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await runtime.shield(work)
    work = Work(asyncio.CancelledError())
    caller = asyncio.create_task(runtime.shield(work))
    await work.started.wait()
    caller.cancel()
    await turns()
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller


@asynchronous
async def test_inside_a_timeout_it_is_a_timeout_and_the_work_is_done() -> None:
    work = Work()
    asyncio.get_running_loop().call_later(0.03, work.go.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await runtime.shield(work)
    assert work.ended
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the timeout took its own cancellation back"


@asynchronous
async def test_inside_a_task_group_the_sibling_fails_and_the_work_is_done() -> None:
    work = Work()

    async def sibling() -> None:
        await work.started.wait()
        asyncio.get_running_loop().call_later(0.01, work.go.set)
        raise KeyError("sibling")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            shielded = group.create_task(runtime.shield(work))
            group.create_task(sibling())
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert work.ended
    assert shielded.cancelled()


@asynchronous
async def test_sleep_lets_others_run() -> None:
    ticks: list[int] = []
    ticker = asyncio.create_task(turns(3))
    ticker.add_done_callback(lambda _: ticks.append(1))
    assert runtime.colour == "asyncio"
    assert await runtime.sleep(0.005) is None
    assert ticks == [1]
