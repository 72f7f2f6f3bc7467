"""A task cancelled at every await of acquire and release, one after the other, on every store.

For each k the coroutine is run again and cancelled at its k-th suspension, in two ways: at once, and in the very instant in
which the awaited thing is done. Afterwards: no key, no task, and the cancellation came out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from interlock import AsyncClient

WAYS = ["at once", "as it is done", "again and again"]


class CancelAt:
    """Awaits `work` and cancels the current task at its k-th suspension. `reached`: it got that far."""

    def __init__(self, work: Coroutine[Any, Any, Any], k: int, way: str) -> None:
        self.work, self.k, self.way = work, k, way
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[Any], Any] = self.work.send
        value: Any = None
        n = 0
        while True:
            try:
                future = step(value)
            except StopIteration as stop:
                return stop.value
            n += 1
            if n == self.k or (self.way == "again and again" and n > self.k):
                self.reached = True
                if self.way == "as it is done" and future is not None:
                    future.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                value = yield future
                step = self.work.send
            except BaseException as error:
                value, step = error, self.work.throw


def others() -> set[Any]:
    """All tasks but keepers: those are there as long as their clients."""
    return {task for task in asyncio.all_tasks() if task.get_name() not in ("interlock-keeper", "interlock-listener")}


async def sweep(client: AsyncClient, work: Callable[[], Coroutine[Any, Any, Any]], way: str, after: Callable[[], Any]) -> int:
    """Cancel `work` at each of its awaits in turn; how many there are."""
    k = 0
    while True:
        k += 1
        assert k < 50, "no end in sight"
        tasks = others()
        trial = CancelAt(work(), k, way)

        async def attempt(trial: CancelAt = trial) -> Any:
            return await trial

        task = asyncio.create_task(attempt())
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        await client._context.runtime.settle()  # a quorum's releases go on behind the caller's back, for one request at most
        assert others() == tasks, "a task was left behind"
        if trial.reached:
            assert isinstance(outcome, asyncio.CancelledError), f"the cancellation at await {k} was swallowed: {outcome!r}"
        else:
            assert not isinstance(outcome, BaseException), repr(outcome)
        await after()
        if not trial.reached:
            return k - 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("connected", [True, False], ids=["warm", "cold"])
def test_acquire(store: str, way: str, connected: bool) -> None:
    async def main() -> None:
        client = AsyncClient(store)
        leases: list[Any] = []

        async def work() -> None:
            nonlocal client
            if not connected:
                await client.close()
                client = AsyncClient(store)
            leases.append(await client.lock("sweep", ttl=30).acquire(timeout=5))

        async def after() -> None:
            for lease in leases:
                await lease.release()
            leases.clear()
            async with AsyncClient(store) as observer:
                assert not (await observer.inspect("sweep")).held

        if connected:
            await client.inspect("sweep")
        points = await sweep(client, work, way, after)
        assert points >= (0 if store.startswith("memory") else 1)
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_waiting(store: str, way: str) -> None:
    """The lock is held by somebody else; cancelled while asking and while pausing, the holder is untouched."""

    async def main() -> None:
        async with AsyncClient(store) as client, AsyncClient(store) as holder:
            lease = await holder.lock("sweep", ttl=60).acquire()

            async def work() -> None:
                assert await client.lock("sweep").try_acquire() is None
                with pytest.raises(TimeoutError):
                    await client.lock("sweep").acquire(timeout=0.02)

            async def after() -> None:
                assert (await holder.inspect("sweep")).fence == lease.fence

            assert await sweep(client, work, way, after) >= 1
            assert await lease.release()

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["release", "block"])
def test_release(store: str, way: str, how: str) -> None:
    async def main() -> None:
        async with AsyncClient(store) as client, AsyncClient(store) as observer:
            lease: Any = None

            async def work() -> None:
                await (lease.release() if how == "release" else lease.__aexit__(None, None, None))

            async def after() -> None:
                nonlocal lease
                assert not (await observer.inspect("sweep")).held
                lease = await client.lock("sweep", ttl=30).acquire(timeout=1)

            await after()
            points = await sweep(client, work, way, after)
            assert points >= (0 if store.startswith("memory") else 1)
            await lease.release()

    asyncio.run(main())


def test_a_thousand_tasks_cancelled_at_once_leave_nothing(store: str) -> None:
    async def main() -> None:
        async with AsyncClient(store) as client, AsyncClient(store) as observer:

            async def work(n: int) -> None:
                async with client.lock(f"many:{n % 50}", ttl=30, timeout=30):
                    await asyncio.sleep(0.001)

            tasks = [asyncio.create_task(work(n)) for n in range(300)]
            await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for n in range(50):
                assert not (await observer.inspect(f"many:{n}")).held

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["timeout", "wait_for", "TaskGroup"])
def test_the_usual_ways_to_cancel(store: str, kind: str) -> None:
    """asyncio.timeout, wait_for and TaskGroup end a waiting acquire as they end anything else."""

    async def main() -> None:
        async with AsyncClient(store) as client:
            held = await client.lock("usual", ttl=30).acquire()
            if kind == "timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.lock("usual").acquire()
            elif kind == "wait_for":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.lock("usual").acquire(), 0.05)
            else:
                with pytest.raises(ExceptionGroup) as caught:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(client.lock("usual").acquire())
                        group.create_task(_fail())
                assert caught.group_contains(KeyError)
            await held.release()
            async with client.lock("usual", timeout=1):
                pass

    async def _fail() -> None:
        await asyncio.sleep(0.02)
        raise KeyError

    asyncio.run(main())
