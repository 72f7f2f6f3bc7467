"""Waiting without polling: those who wait are told, in order, one at a time, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import interlock
from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.faces import COLOURS, Kit, run_body

from ..conftest import STORES, store_url

PATIENCE = 60.0


@pytest.fixture(scope="module")
def _three() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture(params=[*STORES, "quorum"])
def store(request: pytest.FixtureRequest) -> Any:
    """Each store in turn, and a quorum of three nodes."""
    if request.param != "quorum":
        return store_url(request, request.param)
    nodes: list[Node] = request.getfixturevalue("_three")
    for node in nodes:
        node.flush()
    return [node.url for node in nodes]


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


class Counted:
    """Counts the verbs that a client asks of its store."""

    def __init__(self, client: Any) -> None:
        self.verbs: Counter[str] = Counter()
        backend = client._context.backend
        for verb in ("claim", "release", "hand_over", "undo"):
            self._count(backend, verb)

    def _count(self, backend: Any, verb: str) -> None:
        real = getattr(backend, verb)

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.verbs[verb] += 1
            return await real(*args, **kwargs)

        setattr(backend, verb, counted)


async def eventually(kit: Kit, true: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        await kit.sleep(0.002)


def waiting(client: Any, name: str) -> int:
    door = client._context.queue._queues.get(name)
    return 0 if door is None else len(door.waiters)


def test_many_of_one_client_are_served_in_order_with_one_request_each(store: Any, colour: str) -> None:
    many = 60

    async def body(kit: Kit) -> None:
        client = kit.client(renew=True)
        counted, order, fences = Counted(client), [], []

        async def work(number: int) -> None:
            async with client.lock("x", ttl=20, timeout=PATIENCE) as lease:
                order.append(number)
                fences.append(lease.fence)

        async def everybody() -> None:
            async with client.lock("x", ttl=20):
                jobs = []
                for number in range(many):
                    jobs.append(start(kit, work(number)))
                    await eventually(kit, lambda number=number: waiting(client, "x") == number + 1)
                counted.verbs.clear()
            for job in jobs:
                await finish(job)

        await everybody()
        assert order == list(range(many))
        assert fences == sorted(set(fences))
        assert counted.verbs["hand_over"] == many, "one request releases and claims"
        assert counted.verbs["claim"] <= 2
        assert sum(counted.verbs.values()) <= many + 3
        assert not client._context.queue._queues
        assert not client._context.queue.in_line

    run_body(body, store, colour)


def start(kit: Kit, body: Any) -> Any:
    if kit.colour == "asyncio":
        return asyncio.create_task(body)
    from interlock.runtime.blocking import run

    thread = threading.Thread(target=run, args=(body,))
    thread.start()
    return thread


async def finish(job: Any) -> None:
    if isinstance(job, threading.Thread):
        job.join()
    else:
        await job


@pytest.mark.alone  # the order between clients of a quorum depends on how well they know its clocks
def test_two_clients_take_turns_without_asking_again_and_again(store: Any, colour: str) -> None:
    each = 30

    async def body(kit: Kit) -> None:
        one, two, holder = kit.client(renew=True), kit.client(renew=True), kit.client(renew=True)
        counts = Counted(one), Counted(two)
        order: list[str] = []

        async def work(client: Any, who: str) -> None:
            async with client.lock("x", ttl=20, timeout=PATIENCE):
                order.append(who)

        async with holder.lock("x", ttl=20):
            jobs = [start(kit, work(*who)) for _ in range(each) for who in ((one, "one"), (two, "two"))]
            await eventually(kit, lambda: waiting(one, "x") == waiting(two, "x") == each)
            await eventually(kit, lambda: len(one._context.queue.in_line) == len(two._context.queue.in_line) == 1)
        for job in jobs:
            await finish(job)
        assert Counter(order) == {"one": each, "two": each}
        turns = [who for n, who in enumerate(order) if n == 0 or order[n - 1] != who]
        # Between clients of a quorum the order is no better than what they know of the nodes' clocks.
        assert len(turns) >= (4 if isinstance(store, str) else 3), "nobody keeps it to itself for ever"
        for counted in counts:
            assert sum(counted.verbs.values()) <= 2.5 * each, counted.verbs

    run_body(body, store, colour)


@pytest.mark.alone  # the order between clients of a quorum depends on how well they know its clocks
def test_fair_means_in_the_order_of_arrival_between_clients(store: Any, colour: str) -> None:
    async def body(kit: Kit) -> None:
        clients, holder = [kit.client(renew=True) for _ in range(4)], kit.client(renew=True)
        order: list[int] = []

        async def work(client: Any, number: int) -> None:
            async with client.lock("x", ttl=20, timeout=PATIENCE, fair=True):
                order.append(number)

        async with holder.lock("x", ttl=20):
            jobs = []
            for number in range(24):
                client = clients[number % 4]
                jobs.append(start(kit, work(client, number)))
                await eventually(kit, lambda n=number: sum(waiting(client, "x") for client in clients) == n + 1)
                await eventually(kit, lambda n=number: len([c for c in clients if c._context.queue.in_line]) == min(n + 1, 4))
                await kit.sleep(0.05)  # clocks are read a little before or after, more so on a busy machine
        for job in jobs:
            await finish(job)
        assert order == list(range(24))

    run_body(body, store, colour)


def test_who_gives_up_leaves_no_trace_and_stops_nobody(store: Any, colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, client, other = kit.client(renew=True), kit.client(renew=True), kit.client(renew=True)
        lease = await holder.lock("x", ttl=20).acquire()
        for _ in range(3):
            with pytest.raises(interlock.AcquireTimeout) as caught:
                await client.lock("x").acquire(timeout=0.05)
            assert caught.value.owner
        assert not client._context.queue._queues
        assert not client._context.queue.in_line

        async def late() -> None:
            async with other.lock("x", ttl=20, timeout=PATIENCE):
                pass

        job = start(kit, late())
        await eventually(kit, lambda: len(other._context.queue.in_line) == 1)
        began = time.monotonic()
        await lease.release()
        await finish(job)
        assert time.monotonic() - began < 10, "the places of those who left were not served"
        assert not (await holder.inspect("x")).held

    run_body(body, store, colour)


def test_cancelled_waiters_leave_no_trace(store: Any) -> None:
    async def main() -> None:
        async with interlock.AsyncClient(store) as holder, interlock.AsyncClient(store) as client:
            for _ in range(20):
                lease = await holder.lock("x", ttl=20).acquire(timeout=PATIENCE)
                tasks = [asyncio.create_task(client.lock("x", ttl=20).acquire()) for _ in range(5)]
                await asyncio.sleep(0.01)
                tasks[0].cancel()
                release = asyncio.create_task(lease.release())
                await asyncio.sleep(0)
                for task in tasks[1:]:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                await release
                for got in results:
                    if not isinstance(got, BaseException):
                        await got.release()
                assert not client._context.queue._queues
                assert not client._context.queue.in_line
            async with holder.lock("x", ttl=20, timeout=PATIENCE):
                pass

    asyncio.run(main())


def test_an_idle_wait_asks_nothing(store: Any, colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, client = kit.client(renew=True), kit.client(renew=True)
        lease = await holder.lock("x", ttl=30).acquire()
        counted = Counted(client)

        async def work() -> None:
            async with client.lock("x", ttl=30, timeout=PATIENCE):
                pass

        jobs = [start(kit, work()) for _ in range(20)]
        await eventually(kit, lambda: len(client._context.queue.in_line) == 1 and waiting(client, "x") == 20)
        inboxes: Any = getattr(
            client._context.backend, "inboxes", None
        )  # of a quorum: once it is heard by one more, it asks again
        await eventually(kit, lambda: inboxes is None or all(one.open for one in inboxes.subscriptions))
        await kit.sleep(0.2)
        counted.verbs.clear()
        cpu = time.process_time()
        await kit.sleep(2)
        assert time.process_time() - cpu < 1, "nobody is busy"
        assert sum(counted.verbs.values()) == 0
        await lease.release()
        for job in jobs:
            await finish(job)

    run_body(body, store, colour)


def test_a_holder_that_vanishes_is_waited_for_no_longer_than_its_lease(store: Any, colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, client = kit.client(), kit.client(renew=True)
        lease = await holder.lock("x", ttl=1.0).acquire()  # fixed, and never released
        began = time.monotonic()
        async with client.lock("x", ttl=20, timeout=PATIENCE) as next_lease:
            assert next_lease.fence > lease.fence
            assert 0.9 < time.monotonic() - began < 10

    run_body(body, store, colour)


def test_many_locks_share_one_inbox(store: Any) -> None:
    async def main() -> None:
        async with interlock.AsyncClient(store) as holder, interlock.AsyncClient(store) as client:
            held = [await holder.lock(f"x:{n}", ttl=60).acquire() for n in range(100)]
            before = len(asyncio.all_tasks()), threading.active_count()

            async def work(n: int) -> None:
                async with client.lock(f"x:{n}", ttl=60, timeout=PATIENCE):
                    pass

            async with asyncio.TaskGroup() as group:
                for n in range(100):
                    for _ in range(5):
                        group.create_task(work(n))
                while sum(waiting(client, f"x:{n}") for n in range(100)) < 500:
                    await asyncio.sleep(0.01)
                while len(client._context.queue.in_line) < 100:
                    await asyncio.sleep(0.01)
                ears = len(store) if isinstance(store, list) else 0
                while len(asyncio.all_tasks()) - before[0] > 500 + 2 + ears:  # a hub and a keeper, whatever the number of locks
                    await asyncio.sleep(0.01)
                assert threading.active_count() - before[1] <= 1
                for lease in held:
                    await lease.release()
            assert not client._context.queue._queues

    asyncio.run(main())


def test_a_closed_client_lets_its_waiters_go(store: Any, colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, client = kit.client(renew=True), kit.client(renew=True)
        async with holder.lock("x", ttl=30):
            errors: list[BaseException] = []

            async def work() -> None:
                try:
                    await client.lock("x").acquire(timeout=PATIENCE)
                except interlock.InterlockError as error:
                    errors.append(error)

            jobs = [start(kit, work()) for _ in range(3)]
            await eventually(kit, lambda: waiting(client, "x") == 3 and client._context.queue.in_line)
            await client.close()
            for job in jobs:
                await finish(job)
            assert len(errors) == 3
            assert all(isinstance(error, interlock.UsageError) for error in errors)

    run_body(body, store, colour)
