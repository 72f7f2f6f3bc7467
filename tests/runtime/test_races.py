"""Races: all begin, each that ends is told of, the rest is interrupted or goes on. In both colours; in asyncio with tasks of
their own and without (`light`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from interlock import Unavailable
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import Abandoned, BlockingRuntime, Wait, run

Body = Callable[[AsyncioRuntime, bool], Awaitable[None]]
LIGHT = pytest.mark.parametrize("light", [False, True], ids=["tasks", "light"])


def in_a_loop(body: Body, light: bool) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await body(AsyncioRuntime(), light)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing runs on behind the caller's back"

    asyncio.run(bounded())


class Runner:
    """Work that waits for a future, and notes how it began and ended."""

    def __init__(self, number: int, notes: list[str], future: asyncio.Future[Any] | None = None) -> None:
        self.number, self.notes = number, notes
        self.future = future or asyncio.get_running_loop().create_future()

    async def __call__(self) -> object:
        self.notes.append(f"{self.number} begins")
        try:
            outcome = await self.future
        except asyncio.CancelledError:
            self.notes.append(f"{self.number} is interrupted")
            raise
        self.notes.append(f"{self.number} ends")
        return outcome


def runners(notes: list[str], number: int = 3) -> list[Runner]:
    return [Runner(index, notes) for index in range(number)]


def soon(*work: Runner) -> None:
    """Have them end, one turn of the loop after the other."""

    async def end() -> None:
        for one in work:
            await asyncio.sleep(0.001)
            one.future.set_result(one.number)

    task = asyncio.get_running_loop().create_task(end())
    task.add_done_callback(lambda _: None)


@LIGHT
def test_all_begin_and_the_rest_is_interrupted(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work, told = runners(notes), []

        def ended(index: int, outcome: object) -> bool:
            told.append((index, outcome))
            return index == 2

        soon(work[1], work[2])
        await runtime.race([one() for one in work], ended, light=light)
        assert told == [(1, 1), (2, 2)]
        assert notes == ["0 begins", "1 begins", "2 begins", "1 ends", "2 ends", "0 is interrupted"]
        assert work[0].future.cancelled(), "whoever would have settled it can see that nobody waits"

    in_a_loop(body, light)


@LIGHT
def test_it_is_over_when_all_have_ended_and_an_error_is_an_outcome(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work, told = runners(notes, 2), {}
        error = Unavailable("mine", backend="", cause="timeout")
        work[0].future.set_exception(error)
        soon(work[1])
        await runtime.race([one() for one in work], lambda index, outcome: bool(told.update({index: outcome})), light=light)
        assert told == {0: error, 1: 1}
        await runtime.race([], lambda *_: False, light=light)

    in_a_loop(body, light)


@LIGHT
def test_what_a_signals_handler_raises_is_no_outcome(light: bool) -> None:
    """A time limit that strikes while one node is asked is not that node's answer: the race raises it."""

    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work, told = runners(notes, 2), []  # type: ignore[var-annotated]
        work[0].future.set_exception(TimeoutError("time is up"))
        with pytest.raises(TimeoutError, match="time is up"):
            await runtime.race([one() for one in work], lambda *outcome: bool(told.append(outcome)), light=light)
        assert not told
        assert "1 is interrupted" in notes

    in_a_loop(body, light)


@LIGHT
def test_a_cancelled_caller_interrupts_them_all(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work = runners(notes, 2)
        caller = asyncio.create_task(runtime.race([one() for one in work], lambda *_: False, finish=True, light=light))
        await asyncio.sleep(0.01)
        caller.cancel("mine")
        with pytest.raises(asyncio.CancelledError, match="mine"):
            await caller
        assert sorted(notes[2:]) == ["0 is interrupted", "1 is interrupted"], "nothing is left to finish then"

    in_a_loop(body, light)


@LIGHT
def test_what_matters_goes_on_and_can_be_waited_for(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work = runners(notes)
        told: list[int] = []
        soon(work[0])
        await runtime.race([one() for one in work], lambda index, _: not told.append(index), finish=True, light=light)
        assert told == [0]
        assert notes[-1] == "0 ends"
        work[1].future.set_exception(OSError("nobody is told of this"))
        soon(work[2])
        await runtime.settle()
        assert notes[-1] == "2 ends"
        assert told == [0], "the race is over"
        await runtime.settle()

    in_a_loop(body, light)


@LIGHT
def test_who_is_bored_ends_it(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work, pauses = runners(notes, 2), iter([0.01, 0.01, 0.0])
        began = now()
        await runtime.race([one() for one in work], lambda *_: False, bored=lambda: next(pauses), light=light)
        assert now() - began >= 0.02
        assert sorted(notes[2:]) == ["0 is interrupted", "1 is interrupted"]
        notes.clear()
        await runtime.race([one() for one in runners(notes)], lambda *_: False, bored=lambda: 0.0, light=light)
        assert notes[:3] == ["0 begins", "1 begins", "2 begins"], "before that is asked"

    in_a_loop(body, light)


@LIGHT
def test_what_the_caller_raises_about_an_outcome_ends_it(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        notes: list[str] = []
        work = runners(notes, 2)

        def ended(index: int, outcome: object) -> bool:
            raise LookupError(index)

        soon(work[1])
        with pytest.raises(LookupError, match="1"):
            await runtime.race([one() for one in work], ended, finish=True, light=light)
        assert notes[-1] == "0 is interrupted"

    in_a_loop(body, light)


@LIGHT
def test_a_clean_up_is_waited_for_whoever_cancels_meanwhile(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        clean, cleaning = asyncio.Event(), asyncio.Event()

        async def tidy() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                cleaning.set()
                await asyncio.sleep(0)
                await clean.wait()
                order.append("clean")

        async def quick() -> None:
            await asyncio.sleep(0.001)

        order: list[str] = []
        caller = asyncio.create_task(runtime.race([tidy(), quick()], lambda *_: True, light=light))
        caller.add_done_callback(lambda _: order.append("over"))
        await cleaning.wait()
        caller.cancel()
        await asyncio.sleep(0.01)
        assert not order
        clean.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert order == ["clean", "over"]

    in_a_loop(body, light)


@LIGHT
def test_an_answer_on_its_way_does_not_wake_a_clean_up(light: bool) -> None:
    """The answer has come, but whoever waited for it is interrupted before he is woken: what he does then has its own waits."""

    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        loop, woken = asyncio.get_running_loop(), 0
        work = runners([], 2)

        class CleanUp:
            def __await__(self) -> Iterator[Any]:
                nonlocal woken
                cleaned: Any = loop.create_future()
                loop.call_later(0.01, cleaned.set_result, None)
                while not cleaned.done():
                    cleaned._asyncio_future_blocking = True
                    yield cleaned
                    woken += 1

        async def tidy() -> None:
            try:
                await work[1]()
            finally:
                await CleanUp()

        def ended(index: int, outcome: object) -> bool:
            loop.call_soon(work[1].future.set_result, "too late")  # and the race wakes before the callback of that
            return True

        soon(work[0])
        await runtime.race([work[0](), tidy()], ended, light=light)
        assert woken == 1

    in_a_loop(body, light)


@LIGHT
def test_a_time_out_inside_strikes_its_own_work_only(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        async def slow(first: float) -> str:
            await asyncio.sleep(first)
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(10)
            except TimeoutError:
                await asyncio.sleep(0)
                return "late"
            return "never"

        told: dict[int, object] = {}
        work = [slow(0), slow(0.001), asyncio.sleep(0.05, "in time")]
        await runtime.race(work, lambda index, outcome: bool(told.update({index: outcome})), light=light)
        assert told == {0: "late", 1: "late", 2: "in time"}
        me = asyncio.current_task()
        assert me is not None
        assert me.cancelling() == 0

        async with asyncio.timeout(0.02):  # and one around it is not taken for one inside
            try:
                await runtime.race([slow(0.015), asyncio.sleep(10)], lambda *_: False, light=light)
            except asyncio.CancelledError:
                told[9] = "cancelled"
                raise
        raise AssertionError("the time-out was swallowed")

    with pytest.raises(TimeoutError):
        in_a_loop(body, light)


@LIGHT
def test_work_that_waits_for_a_task_takes_it_along(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        ended: list[str] = []

        async def inner() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                await asyncio.sleep(0.005)
                ended.append("inner")

        async def outer() -> None:
            try:
                await asyncio.ensure_future(inner())
            finally:
                ended.append("outer")

        await runtime.race([outer(), asyncio.sleep(0.001)], lambda *_: True, light=light)
        assert ended == ["inner", "outer"]

    in_a_loop(body, light)


@LIGHT
def test_a_cancellation_that_comes_with_the_answer_is_not_lost(light: bool) -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        current: list[Any] = []
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            current.append(asyncio.current_task())
            return await answer

        def both() -> None:
            answer.set_result("here")
            current[0].cancel()  # as a time-out would, which strikes in the same turn

        told: list[object] = []
        asyncio.get_running_loop().call_later(0.01, both)
        await runtime.race([work()], lambda index, outcome: bool(told.append(outcome)), light=light)
        assert [type(outcome) for outcome in told] == [asyncio.CancelledError]

    in_a_loop(body, light)


def test_light_work_makes_no_tasks() -> None:
    async def body(runtime: AsyncioRuntime, light: bool) -> None:
        async def look() -> int:
            await asyncio.sleep(0.001)
            return len(asyncio.all_tasks())

        await runtime.race([look(), look()], lambda index, outcome: outcome != 1 or index == 1, light=True)
        counts: list[object] = []
        await runtime.race([look(), look()], lambda index, outcome: bool(counts.append(outcome)), light=True)
        assert counts == [1, 1]

    in_a_loop(body, True)


# --- blocking -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    pairs = [os.pipe() for _ in range(3)]
    yield pairs
    for pair in pairs:
        for end in pair:
            os.close(end)


def reader(number: int, fd: int, notes: list[str], until: float = float("inf")) -> Coroutine[Any, Any, object]:
    async def read() -> object:
        notes.append(f"{number} begins")
        try:
            heard = await Wait(fd, until)
        except Abandoned:
            notes.append(f"{number} is interrupted")
            raise
        return heard

    return read()


def test_threads_hear_whoever_has_answered_by_the_time_it_is_over(pipes: list[tuple[int, int]]) -> None:
    notes: list[str] = []
    told: list[int] = []

    def ended(index: int, outcome: object) -> bool:
        if not told:
            os.write(pipes[2][1], b"!")  # it answers in the very moment in which the race is decided
        told.append(index)
        return True

    os.write(pipes[1][1], b"!")
    runtime = BlockingRuntime()
    run(runtime.race([reader(n, pipe[0], notes) for n, pipe in enumerate(pipes)], ended))
    assert told == [1, 2], "to come back for that later costs more"
    assert notes == ["0 begins", "1 begins", "2 begins", "0 is interrupted"]


def test_threads_are_bored_too(pipes: list[tuple[int, int]]) -> None:
    notes: list[str] = []
    looks: list[float] = []

    def bored() -> float:
        looks.append(now())
        return 0.01 if len(looks) < 3 else 0.0

    runtime = BlockingRuntime()
    run(runtime.race([reader(0, pipes[0][0], notes)], lambda *_: False, bored=bored))
    assert len(looks) == 3
    assert looks[2] - looks[0] >= 0.02
    assert notes[-1] == "0 is interrupted"

    looks.clear()

    async def nested() -> None:
        await runtime.race([reader(1, pipes[1][0], notes)], lambda *_: False, bored=bored)

    run(runtime.race([nested(), reader(2, pipes[2][0], notes)], lambda *_: True))
    assert len(looks) == 3, "a race inside a race keeps its own time"
    assert notes[-2:] == ["1 is interrupted", "2 is interrupted"]


def test_threads_race_sleepers_and_readers(pipes: list[tuple[int, int]]) -> None:
    """One that sleeps has no descriptor. Those of the others must not be taken for its when there are as many as waits."""
    runtime, told, notes = BlockingRuntime(), list[int](), list[str]()

    async def sleeper() -> None:
        await runtime.sleep(0.05)
        os.write(pipes[0][1], b"!")

    def ended(index: int, outcome: object) -> bool:
        told.append(index)
        return False

    os.write(pipes[1][1], b"!")  # and it stays readable
    run(runtime.race([reader(0, pipes[0][0], notes), reader(1, pipes[1][0], notes), sleeper()], ended))
    assert told == [1, 2, 0]


def test_an_exception_from_outside_interrupts_all_that_have_begun(pipes: list[tuple[int, int]]) -> None:
    notes: list[str] = []
    begun = [reader(0, pipes[0][0], notes), reader(1, pipes[1][0], notes)]

    def ended(index: int, outcome: object) -> bool:
        raise KeyboardInterrupt

    async def at_once() -> None:
        return None

    with pytest.raises(KeyboardInterrupt):
        run(BlockingRuntime().race([begun[0], at_once(), begun[1]], ended))
    assert notes == ["0 begins", "0 is interrupted"], "one that has not begun never does"
