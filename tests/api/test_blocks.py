"""Locks and leases in use: blocks, threads, tasks, generators, interruptions, and what a repr may show."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, Lease, LeaseLost, Lock


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(f"memory://{uuid4().hex}") as client:
        yield client


# --- what may be seen -----------------------------------------------------------------------------------------------------


def test_no_repr_shows_a_token(client: Client) -> None:
    lock = client.lock("order:1")
    lease = lock.acquire()
    shown = repr(lease), repr(lock), repr(client), repr(client.inspect("order:1"))
    assert not any(lease.token[:32] in text for text in shown)
    assert shown[0].startswith(f"<Lease 'order:1' fence={lease.fence} held, 9.")
    assert shown[1] == f"<Lock 'order:1' on {client.address}>"
    lease.release()
    assert repr(lease) == f"<Lease 'order:1' fence={lease.fence} released>"


def test_a_lost_lease_says_so_in_its_repr(client: Client) -> None:
    lease = client.lock("x", ttl=0.01, renew=False).acquire()
    time.sleep(0.015)
    assert repr(lease) == f"<Lease 'x' fence={lease.fence} lost>"


def test_the_async_face_has_its_own_names() -> None:
    async def main() -> None:
        client = AsyncClient(f"memory://{uuid4().hex}")
        lease = await client.lock("x").acquire()
        assert repr(lease).startswith("<AsyncLease 'x' ")
        assert repr(client.lock("x")).startswith("<AsyncLock 'x' ")
        assert repr(client).startswith("<AsyncClient on ")
        assert lease.token[:32] not in repr(lease)
        await lease.release()
        await client.close()

    asyncio.run(main())


def test_a_lease_cannot_be_written_to(client: Client) -> None:
    with client.lock("x") as lease:
        for name in ("fence", "token", "name", "lost", "state"):
            with pytest.raises(AttributeError):
                setattr(lease, name, 1)
        with pytest.raises(AttributeError):
            lease.fense = 1  # type: ignore[attr-defined]


# --- many threads, many locks ---------------------------------------------------------------------------------------------


def test_one_lock_object_serves_many_threads(client: Client) -> None:
    lock = client.lock("shared", timeout=30)
    inside, most, fences = 0, 0, []

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(5):
            with lock as lease:
                inside += 1
                most = max(most, inside)
                fences.append(lease.fence)
                time.sleep(0)
                inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most == 1
    assert fences == sorted(set(fences))
    assert len(fences) == 40
    assert client.inspect("shared").held is False


def test_blocks_of_different_locks_nest_and_cross_threads(client: Client) -> None:
    with client.lock("a") as a, client.lock("b") as b, client.lock("c") as c:
        assert a.fence < b.fence < c.fence
        assert [client.inspect(name).held for name in "abc"] == [True] * 3
    assert [client.inspect(name).held for name in "abc"] == [False] * 3


def test_an_inner_failure_releases_the_outer_lock(client: Client) -> None:
    with client.lock("b"), pytest.raises(TimeoutError), client.lock("a"), client.lock("b", timeout=0):
        raise AssertionError("not here")
    assert client.inspect("a").held is False


def test_a_lock_is_not_reentrant_and_says_so_in_time(client: Client) -> None:
    lock = client.lock("x", timeout=0.01)
    with lock, pytest.raises(TimeoutError), lock:
        raise AssertionError("not here")
    assert client.inspect("x").held is False


def test_a_failed_entry_leaves_the_outer_block_its_lease(client: Client) -> None:
    lock = client.lock("x", timeout=0)
    with lock as lease:
        with contextlib.suppress(TimeoutError), lock:
            raise AssertionError("not here")
        assert lease.state == "held"
        assert client.inspect("x").held
    assert lease.state == "released"


def test_a_lock_remembers_nobody_after_its_blocks(client: Client) -> None:
    lock = client.lock("x", timeout=30)

    def enter(_: int) -> None:
        with contextlib.suppress(KeyError), lock:
            raise KeyError

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(20)))
    assert lock._entered._leases == []


def test_a_lease_is_released_by_another_thread(client: Client) -> None:
    lease = client.lock("x").acquire()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lease.release).result() is True
    assert lease.state == "released"


def test_a_block_entered_in_one_thread_can_be_left_in_another(client: Client) -> None:
    """As web frameworks do with a `yield` dependency: each half runs in whichever worker is free."""

    @contextlib.contextmanager
    def dependency(lock: Lock) -> Iterator[None]:
        with lock:
            yield

    manager = dependency(client.lock("x"))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        one.submit(manager.__enter__).result()
        assert client.inspect("x").held
        two.submit(manager.__exit__, None, None, None).result()
    assert client.inspect("x").held is False


def test_a_block_entered_in_one_task_can_be_left_in_another() -> None:
    """As test runners do with an asynchronous fixture."""

    async def main() -> None:
        client = AsyncClient(f"memory://{uuid4().hex}")
        lock = client.lock("x")
        await asyncio.create_task(lock.__aenter__())
        assert (await client.inspect("x")).held
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert (await client.inspect("x")).held is False

    asyncio.run(main())


def test_tasks_share_one_lock_object() -> None:
    async def main() -> None:
        lock = AsyncClient(f"memory://{uuid4().hex}").lock("x", timeout=30)
        inside = 0

        async def work() -> None:
            nonlocal inside
            for _ in range(3):
                async with lock:
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    inside -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(work())
        assert lock._entered._leases == []

    asyncio.run(main())


# --- generators -----------------------------------------------------------------------------------------------------------


def test_a_generator_that_is_closed_lets_go(client: Client) -> None:
    def rows() -> Iterator[int]:
        with client.lock("x"):
            yield 1
            yield 2

    generator = rows()
    assert next(generator) == 1
    assert client.inspect("x").held
    generator.close()
    assert client.inspect("x").held is False


def test_a_generator_that_is_thrown_away_lets_go(client: Client) -> None:
    def rows() -> Iterator[int]:
        with client.lock("x"):
            yield 1

    assert next(rows()) == 1  # collected at once: the end of the block runs
    assert client.inspect("x").held is False


def test_a_generator_that_sits_on_its_lock_too_long_is_told(client: Client) -> None:
    def rows() -> Iterator[int]:
        with client.lock("x", ttl=0.01, renew=False):
            yield 1

    generator = rows()
    next(generator)
    time.sleep(0.015)
    with pytest.raises(LeaseLost):
        next(generator)


def test_two_generators_on_one_lock_object_exclude_each_other(client: Client) -> None:
    lock = client.lock("x", timeout=0)

    def rows() -> Iterator[int]:
        with lock:
            yield 1

    first, second = rows(), rows()
    next(first)
    with pytest.raises(TimeoutError):
        next(second)
    assert client.inspect("x").held
    first.close()  # type: ignore[attr-defined]
    assert client.inspect("x").held is False


def test_the_end_of_a_lost_block_does_not_take_the_lease_of_the_next(client: Client) -> None:
    """Two generators in one thread: the first overslept, the second holds the lock, and the first one ends first."""
    lock = client.lock("x", ttl=0.01, renew=False)
    later = client.lock("x", ttl=30)
    later._entered = lock._entered  # one Lock object in two rhythms: short for who oversleeps, long for who comes after

    def rows(lock: Lock) -> Iterator[Lease]:
        with lock as lease:
            yield lease

    first, second = rows(lock), rows(later)
    next(first)
    time.sleep(0.015)
    lease = next(second)
    with contextlib.suppress(LeaseLost):
        first.close()  # type: ignore[attr-defined]
    assert lease.state == "held", "it was taken from somebody who is still at work"
    assert client.inspect("x").fence == lease.fence
    with contextlib.suppress(LeaseLost):
        second.close()  # type: ignore[attr-defined]
    assert client.inspect("x").held is False


# --- interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_body_that_is_interrupted_lets_go(client: Client, interruption: type[BaseException]) -> None:
    with pytest.raises(interruption), client.lock("x"):
        raise interruption
    assert client.inspect("x").held is False


def test_a_real_ctrl_c_in_a_body_lets_go(client: Client) -> None:
    with pytest.raises(KeyboardInterrupt), client.lock("x") as lease:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(30)
    assert lease.state == "released"
    assert client.inspect("x").held is False


def test_a_real_ctrl_c_while_waiting_leaves_the_holder_alone(client: Client) -> None:
    with client.lock("x") as lease:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            client.lock("x").acquire()
        assert client.inspect("x").fence == lease.fence
    assert client.inspect("x").held is False


def test_a_cancelled_body_lets_go() -> None:
    async def main() -> None:
        client = AsyncClient(f"memory://{uuid4().hex}")
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lock("x"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.inspect("x")).held is False
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await work()
        assert (await client.inspect("x")).held is False

    asyncio.run(main())


def test_a_lease_is_a_block_only_while_it_is_held(client: Client) -> None:
    lease = client.lock("x", ttl=0.01, renew=False).acquire()
    time.sleep(0.015)
    with pytest.raises(LeaseLost), lease:
        raise AssertionError("not here")
