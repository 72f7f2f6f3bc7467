"""A loss stops the body of an asyncio block, and the block says what happened: never more, never less.

The rules are those of asyncio.timeout: our cancellation becomes LeaseLost, anybody else's stays a cancellation, the body's own
exception is never masked. The losses are real ones: a fixed lease runs out, or somebody deletes the entry from the store.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, LeaseLost, UsageError
from interlock.backends.memory import backend as memory

TTL = 0.15


def in_a_client(body: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        name = uuid4().hex
        async with AsyncClient(f"memory://{name}") as client:
            client.remove = memory._memories[name].held.clear  # type: ignore[attr-defined]
            await asyncio.wait_for(body(client), 20)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing runs on"

    asyncio.run(main())


def here() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.mark.parametrize("by", ["lock", "lease", "decorator"])
def test_a_body_is_cancelled_at_loss_and_the_block_says_so(by: str) -> None:
    async def body(client: AsyncClient) -> None:
        lock = client.lock("x", ttl=TTL, renew=False)
        stopped = False

        async def work() -> None:
            nonlocal stopped
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                stopped = True
                raise

        with pytest.raises(LeaseLost) as caught:
            if by == "lock":
                async with lock:
                    await work()
            elif by == "lease":
                async with await lock.acquire():
                    await work()
            else:
                await client.locked("x", ttl=TTL, renew=False)(work)()
        assert stopped
        assert caught.value.reason == "expired"
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert here().cancelling() == 0
        await asyncio.sleep(0)  # a cancellation that was left over would strike here
        async with client.lock("x", timeout=5):
            pass

    in_a_client(body)


def test_a_renewed_body_goes_on_and_is_stopped_when_the_store_lets_go() -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with client.lock("x", ttl=TTL) as lease:
                await asyncio.sleep(3 * TTL)
                assert lease.state == "held"
                client.remove()  # type: ignore[attr-defined]
                await asyncio.sleep(30)
        assert (caught.value.reason, lease.reason, lease.state) == ("forced", "forced", "lost")
        assert here().cancelling() == 0

    in_a_client(body)


def test_a_cancellation_from_outside_stays_one() -> None:
    async def body(client: AsyncClient) -> None:
        async def work() -> None:
            async with client.lock("x", ttl=10):
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (await client.inspect("x")).held

    in_a_client(body)


def test_both_at_once_is_a_cancellation() -> None:
    """Whoever cancels from outside must get what it asked for, even if the lease was lost in the same instant."""

    async def body(client: AsyncClient) -> None:
        async def work() -> None:
            async with client.lock("x", ttl=TTL, renew=False):
                try:
                    await asyncio.sleep(30)
                finally:
                    task.cancel()  # from outside, while our own is being dealt with

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert task.cancelled()
        assert any("was lost" in note for note in caught.value.__notes__)

    in_a_client(body)


def test_the_bodys_own_exception_is_never_masked() -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(KeyError) as caught:
            async with client.lock("x", ttl=TTL, renew=False):
                try:
                    await asyncio.sleep(30)
                finally:
                    raise KeyError("my own")
        assert any("was lost (expired)" in note for note in caught.value.__notes__)
        assert here().cancelling() == 0
        await asyncio.sleep(0)

    in_a_client(body)


def test_a_body_that_swallows_the_cancellation_is_told_at_the_end() -> None:
    async def body(client: AsyncClient) -> None:
        done = False
        with pytest.raises(LeaseLost):
            async with client.lock("x", ttl=TTL, renew=False):
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.01)  # it is cancelled once, not again and again
                    done = True
        assert done
        assert here().cancelling() == 0

    in_a_client(body)


def test_blocks_nest_and_the_right_one_is_lost() -> None:
    async def body(client: AsyncClient) -> None:
        inner_seen: list[BaseException] = []
        with pytest.raises(LeaseLost) as caught:
            async with client.lock("outer", ttl=TTL, renew=False):
                try:
                    async with client.lock("inner"):
                        await asyncio.sleep(30)
                except BaseException as error:
                    inner_seen.append(error)
                    raise
        assert caught.value.name == "outer"
        assert isinstance(inner_seen[0], asyncio.CancelledError), "to the inner block it is a cancellation from outside"
        assert not (await client.inspect("inner")).held

        async with client.lock("outer") as outer:
            with pytest.raises(LeaseLost) as caught:
                async with client.lock("inner", ttl=TTL, renew=False):
                    await asyncio.sleep(30)
            assert caught.value.name == "inner"
            assert outer.state == "held"
            await asyncio.sleep(0.01)

    in_a_client(body)


def test_it_nests_with_timeouts_and_task_groups() -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(TTL / 2), client.lock("x", ttl=10):
                await asyncio.sleep(30)
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(20), client.lock("x", ttl=TTL, renew=False):
                await asyncio.sleep(30)
        with pytest.raises(LeaseLost):
            async with client.lock("x", ttl=TTL, renew=False), asyncio.timeout(20):
                await asyncio.sleep(30)

        ended: list[int] = []

        async def child(number: int) -> None:
            try:
                await asyncio.sleep(30)
            finally:
                ended.append(number)

        with pytest.raises(LeaseLost):
            async with client.lock("x", ttl=TTL, renew=False), asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(child(number))
        assert sorted(ended) == [0, 1, 2], "the children were stopped with their parent"

        with pytest.raises(ExceptionGroup) as failed:
            async with asyncio.TaskGroup() as group:

                async def holds() -> None:
                    async with client.lock("x", ttl=TTL, renew=False):
                        await asyncio.sleep(30)

                group.create_task(holds())
                group.create_task(child(9))
        assert [type(error) for error in failed.value.exceptions] == [LeaseLost]

    in_a_client(body)


def test_a_loss_that_the_body_finds_itself_is_no_second_cancellation() -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with client.lock("x", ttl=10) as lease:
                client.remove()  # type: ignore[attr-defined]
                await lease.extend()
        assert caught.value.reason == "forced"
        assert here().cancelling() == 0
        await asyncio.sleep(0)

        with pytest.raises(LeaseLost):  # found, ignored, worked on: stopped at the next wait
            async with client.lock("x", ttl=10) as lease:
                client.remove()  # type: ignore[attr-defined]
                with pytest.raises(LeaseLost):
                    await lease.extend()
                await asyncio.sleep(30)
        assert here().cancelling() == 0

    in_a_client(body)


def test_a_lease_handed_to_another_task_stops_the_task_of_the_block() -> None:
    async def body(client: AsyncClient) -> None:
        lease = await client.lock("x", ttl=TTL, renew=False).acquire()

        async def other() -> None:
            async with lease:
                await asyncio.sleep(30)

        task = asyncio.create_task(other())
        with pytest.raises(LeaseLost):
            await task
        assert here().cancelling() == 0

    in_a_client(body)


def test_nobody_is_cancelled_after_the_block() -> None:
    async def body(client: AsyncClient) -> None:
        async with client.lock("x", ttl=TTL, renew=False):
            pass
        await asyncio.sleep(2 * TTL)
        async with client.lock("x", ttl=TTL) as lease:
            await lease.release()
            await asyncio.sleep(2 * TTL)  # released inside the block: there is nothing to lose

    in_a_client(body)


# --- callbacks, waiting ---------------------------------------------------------------------------------------------------


def test_callbacks_and_waiting_in_a_loop() -> None:
    async def body(client: AsyncClient) -> None:
        heard: list[tuple[str, str]] = []
        lost = asyncio.Event()

        def on_lost(lease: Any) -> None:
            heard.append(("lost", lease.reason))
            lost.set()
            raise KeyError("a callback's own trouble harms nobody")

        lock = client.lock(
            "x", ttl=TTL, max_hold=2 * TTL, on_lost=on_lost, on_doubtful=lambda lease: heard.append(("doubtful", lease.state))
        )
        lease = await lock.acquire()
        assert not await lease.wait_lost(TTL)
        assert await lease.wait_lost()
        await lost.wait()
        assert heard == [("doubtful", "doubtful"), ("lost", "expired")]
        assert client.keeping().losses == 1

        lease = await client.lock("y").acquire()
        waiter = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(0.01)
        await lease.release()
        assert not await waiter, "a release is no loss, and nobody waits for ever"

    in_a_client(body)


def test_callbacks_of_a_fixed_lease_are_called_as_well() -> None:
    with Client(f"memory://{uuid4().hex}") as client:
        heard: list[str] = []
        lease = client.lock("x", ttl=TTL, renew=False, on_lost=lambda lease: heard.append(lease.reason)).acquire()
        assert lease.wait_lost(20)
        for _ in range(200):
            if heard:
                break
            lease.wait_lost(0.01)
        assert heard == ["expired"]


# --- what is dropped ------------------------------------------------------------------------------------------------------


def test_a_dropped_lease_warns_and_is_not_renewed() -> None:
    with Client(f"memory://{uuid4().hex}", ttl=TTL) as client:
        leases = [client.lock("x").acquire()]
        with pytest.warns(ResourceWarning, match="'x' was dropped without release"):
            leases.clear()
        with client.lock("x", timeout=20):
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.lock("y", renew=False).acquire()  # a fixed lease may be left to expire, that is what it is for
            gc.collect()


def test_a_client_in_a_second_loop_says_so() -> None:
    client = AsyncClient(f"memory://{uuid4().hex}")

    async def use() -> None:
        async with client.lock("x"):
            pass

    asyncio.run(use())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(use())
