"""A signal's handler raises at the beginning or the end of a block: what the block held is given back, and renewed by nobody.

`tests/hazards/test_signal_sweep.py` strikes everywhere; here are the places that matter most, by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, InterlockError, Lock, UsageError
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import Node

pytestmark = pytest.mark.filterwarnings("ignore")  # of coroutines that were struck before their first step


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Such coroutines are collected, and warned of, here and not in the midst of another test."""
    yield
    gc.collect()


SOON = 3.0  # seconds: far more than it takes, and a tenth of the leases here


class Limit(Exception):
    """A job runner's time limit."""


ERRORS = [KeyboardInterrupt, TimeoutError, Limit]


@pytest.fixture(params=["memory", "valkey", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/locks.db"
    node: Node = request.getfixturevalue("valkey_node")
    return node.url


@contextmanager
def struck(file: str, function: str, error: BaseException) -> Iterator[None]:
    """Raised where this function of ours begins, as Python does for signals; once, in this thread."""
    times = 0

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal times
        if not times and frame.f_code.co_name == function and frame.f_code.co_filename.endswith(f"interlock/{file}"):
            times += 1
            raise error

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        assert times == 1, "it never came there"


def freed(client: Client, name: str) -> bool:
    until = time.monotonic() + SOON
    while client.inspect(name).held:
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("api/blocks.py", "_leave"),  # its first instruction: nothing of ours has run
        ("api/client.py", "_leave"),
        ("runtime/stepping.py", "run"),
        ("flow/hold.py", "leave"),
        ("flow/hold.py", "release"),
        ("flow/hold.py", "_give_back"),
        ("flow/waiting/queue.py", "heir"),
    ],
)
def test_at_the_end_of_a_block(url: str, file: str, function: str, error: type[BaseException]) -> None:
    """The lock lives as long as the program, and so may the traceback."""
    with Client(url, ttl=30) as client, Client(url) as other:
        lock, kept = client.lock("x"), error("struck")
        with pytest.raises(error) as caught, lock:
            trace = contextlib.ExitStack()
            trace.enter_context(struck(file, function, kept))
        with contextlib.suppress(error):
            raise caught.value
        trace.close()
        assert caught.value is kept
        assert freed(other, "x")
        assert client.keeping().leases == 0, "it is renewed, for nobody"
        with lock:
            assert other.inspect("x").held


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("how", ["lock", "lease", "stack"])
def test_a_block_that_is_over_has_nothing_whoever_has_the_lease(url: str, how: str, error: type[BaseException]) -> None:
    with Client(url, ttl=30) as client, Client(url) as other:
        lease = None
        with contextlib.ExitStack() as trace, pytest.raises(error):
            if how == "stack":
                with contextlib.ExitStack() as stack:
                    lease = stack.enter_context(client.lock("x"))
                    trace.enter_context(struck("api/client.py", "_leave", error("struck")))
            else:
                with client.lock("x") if how == "lock" else client.lock("x").acquire() as lease:
                    trace.enter_context(struck("api/blocks.py", "_leave", error("struck")))
        assert lease is not None
        assert freed(other, "x")
        assert client.keeping().leases == 0
        assert lease.remaining() == 0 or not lease._hold.kept


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("api/base.py", "__init__"),
        ("flow/renewing/keeper.py", "keep"),
        ("api/blocks.py", "begins"),
        ("flow/renewing/schedule.py", "add"),
    ],
)
def test_before_the_body_begins(url: str, file: str, function: str, error: type[BaseException]) -> None:
    with Client(url, ttl=30) as client, Client(url) as other:
        lock, struck_with = client.lock("x"), error("struck")
        with struck(file, function, struck_with), pytest.raises(error) as caught, lock:
            raise AssertionError("not here")
        assert caught.value is struck_with
        assert freed(other, "x")
        assert client.keeping().leases == 0


@pytest.mark.parametrize("error", ERRORS)
def test_with_the_answer_read_and_not_yet_ours(url: str, error: type[BaseException]) -> None:
    """Nothing of the token is on its way any more, and nobody knows that it has the lock: row 23."""
    last = {"memory": ("flow/ask.py", "believe"), "sqlite": ("backends/sqlite/database.py", "leave")}
    place = last.get(url.partition(":")[0], ("backends/redis/blocking.py", "_keep"))
    for verb in ("acquire", "try_acquire"):
        with Client(url, ttl=30) as client, Client(url) as other:
            client.inspect("x")
            with struck(*place, error("struck")), pytest.raises(error):
                getattr(client.lock("x"), verb)()
            assert not other.inspect("x").held


def test_a_release_that_is_struck_and_gets_no_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock import Unavailable

    async def silent(*_: object, **__: object) -> bool:
        raise Unavailable("silence", backend="memory", cause="timeout")

    with Client(f"memory://{uuid4().hex}", ttl=0.2, renew=False) as client:
        lease = client.lock("x").acquire()
        monkeypatch.setattr(client._context.backend, "release", silent)
        with struck("flow/waiting/queue.py", "heir", Limit("struck")), pytest.raises(Limit) as caught:
            lease.release()
        assert any("was not released" in note for note in caught.value.__notes__)


# --- whose block it is ----------------------------------------------------------------------------------------------------


def test_blocks_by_hand() -> None:
    with Client(f"memory://{uuid4().hex}") as client:
        lock = client.lock("x")
        lock.__enter__()
        gc.collect()
        assert client.keeping().leases == 1, "the lock has it"
        lock.__exit__(None, None, None)
        assert not client.inspect("x").held
        leave = lock.__exit__
        lock.__enter__()
        leave(None, None, None)
        lock.__enter__()
        leave(None, None, None)
        assert not client.inspect("x").held
        with pytest.raises(UsageError):
            leave(None, None, None)


def test_a_lock_that_somebody_derives_from() -> None:
    ended = []

    class Mine(Lock):
        def __exit__(self, *how: Any) -> None:
            ended.append(how)
            super().__exit__(*how)

    with Client(f"memory://{uuid4().hex}") as client:
        plain = client.lock("x")
        with Mine(plain._context, plain._keeper, "x", plain._options):
            assert client.inspect("x").held
        assert not client.inspect("x").held
    assert ended == [(None, None, None)]


def test_to_look_at_the_end_of_a_block_is_not_to_end_it() -> None:
    with Client(f"memory://{uuid4().hex}", ttl=30) as client:
        lock = client.lock("x")
        with lock as lease:
            assert callable(lock.__exit__)
            assert callable(lease.__exit__)
            assert isinstance(lock, contextlib.AbstractContextManager)
            gc.collect()
            assert client.inspect("x").held
            assert client.keeping().leases == 1
        assert lease.state == "released"


def test_one_lock_entered_twice_in_one_thread_keeps_its_blocks_apart() -> None:
    """Two generators that take turns, on one Lock object: each end releases its own, in any order."""
    with Client(f"memory://{uuid4().hex}") as client:
        lock = client.lock("x", ttl=0.05, renew=False, timeout=1)

        def rows() -> Iterator[Any]:
            with lock as lease:
                yield lease

        first, second = rows(), rows()
        next(first)
        lease = next(second)  # when the first is lost
        with contextlib.suppress(InterlockError):
            first.close()  # type: ignore[attr-defined]
        assert lease.state in ("held", "lost")
        with contextlib.suppress(InterlockError):
            second.close()  # type: ignore[attr-defined]


# --- asyncio --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["_leave", "entering"])
@pytest.mark.parametrize("error", [TimeoutError, Limit])
@pytest.mark.filterwarnings("ignore")
def test_in_a_task(url: str, function: str, error: type[BaseException]) -> None:
    async def main() -> None:
        async with AsyncClient(url, ttl=30) as client, AsyncClient(url) as other:
            lock = client.lock("x")
            async with lock:
                pass
            trace = contextlib.ExitStack()
            with pytest.raises(error) as caught:
                if function == "entering":
                    trace.enter_context(struck("api/blocks.py", function, error("struck")))
                async with lock:
                    if function == "_leave":
                        trace.enter_context(struck("api/blocks.py", function, error("struck")))
            trace.close()
            async with asyncio.timeout(SOON):
                while (await other.inspect("x")).held:
                    await asyncio.sleep(0.002)
            assert client.keeping().leases == 0
            assert caught.value
            await asyncio.sleep(0.01)  # nobody is stopped afterwards

    asyncio.run(main())


def test_an_entered_lease_that_nobody_has_is_not_kept_by_its_watcher() -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=30) as client:
            lease = await client.lock("x").acquire()
            lease._enter(None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del lease
                gc.collect()
            assert client.keeping().leases == 0

    asyncio.run(main())


# --- the clean-up itself --------------------------------------------------------------------------------------------------


def test_a_clean_up_that_is_struck_is_begun_once_more() -> None:
    runtime, begun = BlockingRuntime(), []

    async def work() -> str:
        begun.append(len(begun))
        if len(begun) == 1:
            raise Limit("struck")
        return "done"

    with pytest.raises(Limit):
        run(runtime.shield(work))
    assert begun == [0, 1]


def test_of_two_strikes_the_second_gets_through() -> None:
    runtime, begun = BlockingRuntime(), []

    async def work() -> None:
        begun.append(len(begun))
        raise KeyboardInterrupt(len(begun))

    with pytest.raises(KeyboardInterrupt, match="2"):
        run(runtime.shield(work))


def test_a_time_limit_that_strikes_a_race_is_no_nodes_answer() -> None:
    runtime, told = BlockingRuntime(), []  # type: ignore[var-annotated]

    async def one(error: BaseException | None) -> int:
        if error is not None:
            raise error
        return 1

    with pytest.raises(TimeoutError, match="time is up"):
        run(runtime.race([one(None), one(TimeoutError("time is up"))], lambda *outcome: bool(told.append(outcome))))
    assert told == [(0, 1)]
