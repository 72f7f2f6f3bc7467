"""The blocking runtime: it steps coroutines, waits for real descriptors, and hands interruptions to who must clean up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interlock.errors import UsageError
from interlock.runtime import stepping as blocking
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, Wait, run, wait


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


class Interrupted(BaseException):
    """What a signal handler raises, as Ctrl-C raises KeyboardInterrupt."""


@pytest.fixture
def interrupt_soon() -> Iterator[Callable[[], None]]:
    """Call it: a real signal reaches this thread 20 ms later, and its handler raises."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGUSR1))
    yield timer.start
    timer.join()
    signal.signal(signal.SIGUSR1, before)


# --- stepping -------------------------------------------------------------------------------------------------------------


def test_a_coroutine_that_never_waits_gives_its_result() -> None:
    async def inner() -> int:
        return 20

    async def outer() -> int:
        return await inner() + 1

    assert run(outer()) == 21


def test_what_a_coroutine_raises_comes_out_as_it_is() -> None:
    error = KeyError("mine")

    async def work() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        run(work())
    assert caught.value is error


def test_a_stop_iteration_in_a_coroutine_is_no_result() -> None:
    async def work() -> None:
        raise StopIteration(5)

    with pytest.raises(RuntimeError, match="StopIteration"):
        run(work())


def test_waits_are_answered_one_after_the_other(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair

    async def work() -> list[bool]:
        answers = [await Wait(one.fileno(), now() + 0.005)]
        two.send(b"x")
        answers.append(await Wait(one.fileno(), now() + 10))
        one.recv(1)
        answers.append(await Wait(one.fileno(), now()))
        answers.append(await Wait(None, now()))
        return answers

    assert run(work()) == [False, True, False, False]


def test_a_wait_in_the_middle_of_a_try_keeps_its_place() -> None:
    order: list[str] = []

    async def work() -> str:
        try:
            await Wait(None, now() + 0.001)
            order.append("waited")
            return "done"
        finally:
            order.append("cleaned")

    assert run(work()) == "done"
    assert order == ["waited", "cleaned"]


# --- waiting --------------------------------------------------------------------------------------------------------------


def test_a_readable_descriptor_ends_the_wait_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    two.send(b"x")
    began = now()
    assert wait(Wait(one.fileno(), began + 60)) is True
    assert now() - began < 5


def test_bytes_that_come_during_the_wait_end_it(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    timer = threading.Timer(0.01, two.send, (b"x",))
    timer.start()
    assert wait(Wait(one.fileno(), now() + 60)) is True
    timer.join()


def test_a_peer_that_hangs_up_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    two.close()
    assert wait(Wait(one.fileno(), now() + 60)) is True, "reading will say what happened"


def test_a_moment_that_has_passed_is_no_wait_but_still_looks(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    assert wait(Wait(one.fileno(), now() - 5)) is False
    assert wait(Wait(None, now() - 5)) is False
    two.send(b"x")
    assert wait(Wait(one.fileno(), now() - 5)) is True, "what has arrived is not thrown away for being late"


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.0001, 0.0004, 0.0009, 0.001, 0.0011, 0.0049, 0.0051])
def test_a_wait_never_ends_early(pair: tuple[socket.socket, socket.socket], seconds: float) -> None:
    for fd in (pair[0].fileno(), None):
        until = now() + seconds
        assert wait(Wait(fd, until)) is False
        assert now() >= until


class FakeClock:
    """A clock, a sleep and a poll(2) in virtual time. `lag` is how much too early each of them returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lag: float = 0.0) -> None:
        self.time = 1000.0
        self.lag = lag
        self.asked: list[float] = []
        monkeypatch.setattr(blocking, "now", lambda: self.time)
        monkeypatch.setattr(blocking.time, "sleep", self.sleep)
        monkeypatch.setattr(blocking.select, "poll", lambda: self)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.asked.append(seconds)
        self.time += max(seconds - self.lag, 1e-4)

    def register(self, fd: int, events: int) -> None: ...

    def poll(self, milliseconds: float) -> list[Any]:
        assert isinstance(milliseconds, int)
        assert milliseconds < 2**31
        self.asked.append(milliseconds / 1000)
        self.time += max(milliseconds / 1000 - self.lag, 1e-4)
        return []


@pytest.mark.parametrize("fd", [None, 3])
@pytest.mark.parametrize("lag", [0.0, 0.0003, 0.0015])
def test_a_kernel_that_returns_early_is_asked_again(monkeypatch: pytest.MonkeyPatch, fd: int | None, lag: float) -> None:
    clock = FakeClock(monkeypatch, lag)
    assert wait(Wait(fd, 1000.0105)) is False
    assert clock.time >= 1000.0105
    assert clock.time <= 1000.0135, "nor is it asked for much more than is left"


@pytest.mark.parametrize("fd", [None, 3])
def test_a_wait_of_months_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch, fd: int | None) -> None:
    clock = FakeClock(monkeypatch)
    assert wait(Wait(fd, 1000.0 + 90 * 86_400)) is False
    assert max(clock.asked) == blocking.LONGEST_POLL
    assert clock.time == pytest.approx(1000.0 + 90 * 86_400, abs=1e-3)


def test_poll_gets_whole_milliseconds_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    assert wait(Wait(3, 1000.0001)) is False
    assert clock.asked == [0.001], "rounded down it would spin, and end early"


def test_sleep_is_a_wait_for_nothing_but_time() -> None:
    began = now()
    assert run(BlockingRuntime().sleep(0.01)) is None
    assert now() >= began + 0.01


def test_the_shield_of_threads_runs_the_work_and_passes_what_comes() -> None:
    async def work() -> int:
        await Wait(None, now() + 0.001)
        return 5

    async def failing() -> int:
        raise KeyError("mine")

    runtime = BlockingRuntime()
    assert runtime.colour == "blocking"
    assert run(runtime.shield(work)) == 5
    with pytest.raises(KeyError, match="mine"):
        run(runtime.shield(failing))


# --- interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["descriptor", "sleep"])
def test_an_exception_from_a_signal_handler_reaches_the_coroutine(
    pair: tuple[socket.socket, socket.socket], interrupt_soon: Callable[[], None], what: str
) -> None:
    seen: list[str] = []

    async def work() -> None:
        interrupt_soon()
        try:
            await Wait(pair[0].fileno() if what == "descriptor" else None, now() + 30)
        except Interrupted:
            seen.append("interrupted")
            await Wait(None, now() + 0.001)  # cleaning up may wait
            seen.append("cleaned")
            raise

    with pytest.raises(Interrupted):
        run(work())
    assert seen == ["interrupted", "cleaned"]


def test_a_coroutine_that_survives_an_interruption_goes_on(interrupt_soon: Callable[[], None]) -> None:
    async def work() -> str:
        interrupt_soon()
        try:
            await Wait(None, now() + 30)
        except Interrupted:
            return f"went on: {await Wait(None, now())}"
        return "never interrupted"

    assert run(work()) == "went on: False"


def test_a_real_ctrl_c_reaches_the_coroutine() -> None:
    async def work() -> None:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await Wait(None, now() + 30)
        except KeyboardInterrupt as error:
            raise KeyError("cleaned") from error

    with pytest.raises(KeyError) as caught:
        run(work())
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)


def test_an_interruption_between_two_steps_reaches_the_coroutine_too() -> None:
    """A signal is handled between any two instructions, those of `run` included. Sixty of them, at random moments."""
    before = signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    missed = 0

    async def work(seen: list[str]) -> None:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)
            while True:
                await Wait(None, 0.0)
        except Interrupted:
            seen.append("interrupted")
            raise

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    try:
        signal.signal(signal.SIGVTALRM, handler)
        for _ in range(60):
            seen: list[str] = []
            with pytest.raises(Interrupted):
                run(work(seen))
            missed += not seen
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert missed == 0, "it left a coroutine behind that had not cleaned up"


def test_a_descriptor_that_cannot_be_waited_for_is_an_error_inside_the_coroutine() -> None:
    async def work() -> str:
        try:
            await Wait(-1, now() + 30)
        except ValueError:
            return "seen"
        return "not seen"

    assert run(work()) == "seen"


# --- strangers ------------------------------------------------------------------------------------------------------------


class Stranger:
    """Something that a loop would understand."""

    def __await__(self) -> Iterator[object]:
        yield "a future of somebody else"


def test_a_foreign_awaitable_is_named_and_the_coroutine_closed() -> None:
    closed: list[str] = []

    async def fetch() -> None:
        try:
            await Stranger()
        finally:
            closed.append("closed")

    with pytest.raises(UsageError, match=r"fetch awaited 'a future of somebody else' in a blocking client.*AsyncClient"):
        run(fetch())
    assert closed == ["closed"]


def test_an_asyncio_future_and_a_bare_yield_are_foreign_too() -> None:
    loop = asyncio.new_event_loop()
    try:
        future = loop.create_future()

        async def on_a_future() -> None:
            await future

        async def on_sleep_zero() -> None:
            await asyncio.sleep(0)

        for work in (on_a_future, on_sleep_zero):
            with pytest.raises(UsageError, match=work.__name__):
                run(work())
    finally:
        loop.close()


def test_a_subclass_of_wait_is_foreign() -> None:
    class Longer(Wait):
        pass

    async def work() -> None:
        await Longer(None, now())

    with pytest.raises(UsageError):
        run(work())


def test_a_stranger_is_named_even_if_the_clean_up_after_it_waits() -> None:
    """As the flows do: they undo a claim whatever came out of it."""
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await Stranger()
        finally:
            await Wait(None, now() + 0.001)
            cleaned.append("cleaned")

    with pytest.raises(UsageError, match="work awaited"):
        run(work())
    assert cleaned == ["cleaned"]


def test_threads_step_side_by_side(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    results: list[bool] = []

    async def work() -> bool:
        return await Wait(one.fileno(), now() + 30)

    threads = [threading.Thread(target=lambda: results.append(run(work()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    two.send(b"x")
    for thread in threads:
        thread.join(10)
    assert results == [True] * 4
