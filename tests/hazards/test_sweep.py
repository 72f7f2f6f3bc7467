"""Cancelled anywhere: a whole life of a lease, the keeper itself, and the closing of a client.

As tests/flow/test_cancellation.py, but with renewal on and happening, and with replies that take their time, so that requests
are really on their way. All trials of a sweep run side by side in one loop, each with a client and a name of its own.

What may be left when the cancelled task is done: nothing. The clean-up is shielded and waited for (docs/guarantees.md, "Nothing
left behind"), and the store answers here within its request_timeout, so the name must be free at once; of a quorum, once the
releases to the slower nodes have come back (`settle`), for which one request_timeout is allowed. Only a lease whose keeper was
cancelled, or whose client was closed, is left to its ttl, since that is what those mean.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, LeaseLost
from interlock.testing import FaultProxy, Node, start_nodes, stop_nodes

from ..flow.test_cancellation import WAYS, CancelAt
from .support import LIMIT, SCALE, scaled

TTL = 1.5  # long enough for a machine that has other things to do as well
REQUEST = 0.45  # the request_timeout of all clients that use a network
OF_A_FILE = 3.0  # of those that share a file, a disk and a gate with dozens of others
DELAY = 0.01  # of each reply
STORES = ["memory", "sqlite", "valkey", "quorum"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture(params=STORES)
def stage(request: pytest.FixtureRequest, nodes: list[Node], tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        proxies = []
        if request.param in ("valkey", "quorum"):
            for node in nodes:
                node.flush()
            used = nodes[:1] if request.param == "valkey" else nodes
            proxies = [stack.enter_context(FaultProxy(node.port)) for node in used]
            direct: Any = [node.url for node in used]
            slow: Any = [proxy.url for proxy in proxies]
            if request.param == "valkey":
                direct, slow = direct[0], slow[0]
            else:
                with Client(direct, ttl=5) as first, first.lock("birth"):  # the cluster begins
                    pass
        else:
            direct = slow = f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/locks.db"
        for number, proxy in enumerate(proxies):
            proxy.delay(DELAY * (1 + number / 2))
        yield Stage(request.param, direct, slow, proxies)


class Stage:
    """A store, the slow way to it, and what must not happen around it."""

    def __init__(self, kind: str, direct: Any, slow: Any, proxies: list[FaultProxy]) -> None:
        self.kind, self.direct, self.slow, self.proxies = kind, direct, slow, proxies
        self.request = OF_A_FILE if kind == "sqlite" else REQUEST
        self.complaints: list[str] = []
        self.starved = 0
        self.observer: Any = None

    def client(self) -> AsyncClient:
        return AsyncClient(self.slow, ttl=TTL, timeout=10, request_timeout=self.request)

    def excused(self, outcome: Any, client: AsyncClient) -> bool:
        """Whether a lease was lost because the machine did not let us run. Counted; it may not happen often."""
        late = isinstance(outcome, LeaseLost) and client.keeping().lateness > TTL / 6
        self.starved += late
        return late

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run it in a loop of its own. Nothing may be complained about, and nothing may be left running."""
        logger, handler = logging.getLogger("asyncio"), _Collect(self.complaints)
        threads = set(threading.enumerate())

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
            async with AsyncClient(self.direct, request_timeout=5) as self.observer:
                await main()
            assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left"
            gc.collect()

        logger.addHandler(handler)
        try:
            asyncio.run(watched())
            gc.collect()
        finally:
            logger.removeHandler(handler)
        assert self.complaints == []
        assert self.starved <= 3, "the machine is too busy to tell anything"
        left = [thread for thread in threading.enumerate() if thread not in threads and thread.name.startswith("interlock")]
        assert left == [], "a thread was left"

    async def free(self, name: str, within: float = 0.0) -> None:
        """Nobody holds it, at once or at least soon."""
        until = time.monotonic() + within
        while (await self.observer.inspect(name)).held:
            assert time.monotonic() < until, f"'{name}' is still held"
            await asyncio.sleep(0.01)


class _Collect(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        self.into.append(record.getMessage())


async def life(client: AsyncClient, name: str, seen: list[Any]) -> None:
    """Acquire, work, extend, work on while it is renewed, release."""
    async with client.lock(name) as lease:
        seen.append(lease)
        await asyncio.sleep(TTL * 0.4)
        await lease.extend(TTL)
        await asyncio.sleep(TTL * 0.4)
        await lease.extend(TTL / 2)
        await asyncio.sleep(TTL * 0.2)


async def judged(trial: CancelAt, name: str, client: AsyncClient, stage: Stage, seen: list[Any]) -> bool:
    """Run one trial to its end. Whether the cancellation was reached."""

    async def attempt() -> Any:
        return await trial

    task = asyncio.create_task(attempt())
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(stage.request + 1):
        await client._context.runtime.settle()
    if trial.reached:
        assert isinstance(outcome, asyncio.CancelledError), f"{name}: swallowed: {outcome!r}"
        assert task.cancelled()
    elif not stage.excused(outcome, client):
        assert outcome is None, f"{name}: {outcome!r}"
    await stage.free(name, within=TTL if isinstance(outcome, LeaseLost) else 0.0)
    assert all(lease._hold.released or lease._hold.gone for lease in seen), "and the lease knows"
    await client.close()
    return trial.reached


@pytest.mark.timeout(LIMIT)
def test_cancelled_at_each_await(stage: Stage) -> None:
    """A whole life, the keeper, a close: each cancelled at each of its awaits, in each way. Side by side: mostly they wait."""
    points: dict[str, dict[str, int]] = {"life": {}, "keeper": {}, "close": {}}

    async def main() -> None:
        for sweep in (sweep_life, sweep_keeper, sweep_close):
            async with asyncio.TaskGroup() as group:
                for way in WAYS:
                    group.create_task(sweep(stage, way, points))

    stage.run(main)
    print(f"{stage.kind}: awaits at which it was cancelled {points}")


async def sweep_life(stage: Stage, way: str, points: dict[str, dict[str, int]]) -> None:
    awaits, at_once = 0, 12
    while awaits % at_once == 0:  # so many at a time, until there is none to be reached
        trials = []
        for k in range(awaits + 1, awaits + at_once + 1):
            client, seen = stage.client(), []  # type: ignore[var-annotated]
            await client.inspect("x")
            name = f"{way}:{k}"
            trials.append(judged(CancelAt(life(client, name, seen), k, way), name, client, stage, seen))
        awaits += sum(await asyncio.gather(*trials))
        assert awaits < 60
    assert awaits >= 3, "three pauses at least"
    points["life"][way] = awaits


async def sweep_keeper(stage: Stage, way: str, points: dict[str, dict[str, int]]) -> None:
    """Somebody cancels every task it can find. The body is told that its lease is lost, or goes on; the next lease is kept."""

    async def trial(k: int) -> bool:
        client = stage.client()
        await client.inspect("x")
        runtime, name = client._context.runtime, f"keeper:{way}:{k}"
        real, taps = runtime.spawn, []  # type: ignore[var-annotated]

        def spawn(make: Any, stop: Any, title: str, never: Any) -> Any:
            if taps:
                return real(make, stop, title, never)
            taps.append(CancelAt(make(), k, way))

            async def tapped() -> None:
                try:
                    await taps[0]
                finally:
                    ended.append(asyncio.current_task())

            return real(tapped, stop, title, never)

        ended: list[Any] = []
        runtime.spawn = spawn  # type: ignore[method-assign]
        lost: LeaseLost | None = None
        try:
            async with client.lock(name) as lease:
                await asyncio.sleep(1.1 * TTL)
        except LeaseLost as error:
            lost = error
        assert lease.state == ("released" if lost is None else "lost")
        if taps[0].reached:
            assert ended, "the keeper did not end"
            await asyncio.sleep(0)
            assert ended[0].cancelled(), "its cancellation was swallowed"
        else:
            assert lost is None or stage.excused(lost, client)
        async with asyncio.timeout(stage.request + 1):
            await runtime.settle()
        await stage.free(name, within=TTL if lost is not None else 0.0)  # lost: nobody renews it, the ttl ends it
        renewals = client.keeping().renewals
        async with client.lock(name) as lease:
            await asyncio.sleep(0.6 * TTL)
            assert client.keeping().renewals > renewals, "the next lease is kept again"
        await client.close()
        await stage.free(name, within=stage.request)
        return taps[0].reached

    reached = await asyncio.gather(*(trial(k) for k in range(1, 9)))
    assert sum(reached) >= 2
    points["keeper"][way] = sum(reached)


async def sweep_close(stage: Stage, way: str, points: dict[str, dict[str, int]]) -> None:
    """The cancellation comes out, renewal has ended, and to close once more finishes it."""

    async def trial(k: int) -> bool:
        client, name = stage.client(), f"close:{way}:{k}"
        leases = [await client.lock(f"{name}:{n}").acquire() for n in range(3)]
        await asyncio.sleep(random.random() * TTL)
        closing = CancelAt(client.close(), k, way)

        async def attempt() -> None:
            await closing

        (outcome,) = await asyncio.gather(asyncio.create_task(attempt()), return_exceptions=True)
        if closing.reached:
            assert isinstance(outcome, asyncio.CancelledError), repr(outcome)
        else:
            assert outcome is None, repr(outcome)
        await client.close()
        for n, lease in enumerate(leases):
            assert await lease.wait_lost(5)
            await stage.free(f"{name}:{n}", within=TTL)  # not released: each ends with its ttl
        return closing.reached

    reached = await asyncio.gather(*(trial(k) for k in range(1, 7)))
    assert 0 < sum(reached) < len(reached)
    points["close"][way] = sum(reached)


@pytest.mark.timeout(LIMIT)
def test_cancelled_at_random_moments(stage: Stage) -> None:
    """Whole lives, stopped from outside at any time; some locks are fought for, some replies get lost with their connection."""
    lives = scaled(10)
    dice = random.Random(7)
    outcomes: dict[str, int] = {}

    async def trial(seed: int) -> None:
        mine = random.Random(seed)
        client, names = stage.client(), [f"seed:{seed}:{n}" for n in range(2 if SCALE < 2 else 4)]
        await client.inspect("x")
        # Two tasks fight for each name.
        tasks = [asyncio.create_task(life(client, name, [])) for name in names for _ in range(2)]
        for task in tasks:
            await asyncio.sleep(mine.random() * TTL / 8)
            if mine.random() < 0.3:  # with the whole of it in flight
                await asyncio.sleep(mine.random() * TTL)
            task.cancel()
            if mine.random() < 0.3:
                asyncio.get_running_loop().call_later(mine.random() * 0.02, task.cancel)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            kind = type(outcome).__name__
            outcomes[kind] = outcomes.get(kind, 0) + 1
            if stage.excused(outcome, client):
                continue
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), repr(outcome)
        async with asyncio.timeout(stage.request + 1):
            await client._context.runtime.settle()
        for name in names:
            await stage.free(name, within=TTL if stage.starved else 0.0)
        assert client.keeping().leases == 0
        await client.close()

    async def main() -> None:
        for first in range(0, lives, 10):
            await asyncio.gather(*(trial(dice.randrange(10**9)) for _ in range(first, min(first + 10, lives))))

    stage.run(main)
    print(f"{stage.kind}: {lives} seeds, {sum(outcomes.values())} lives: {outcomes}")


def test_a_block_cancelled_while_its_lease_is_in_doubt_gives_it_back(nodes: list[Node]) -> None:
    """The release waits for a renewal that is on its way, and is cancelled there. Else it would be renewed for ever."""
    nodes[0].flush()

    async def main() -> None:
        with FaultProxy(nodes[0].port) as proxy:
            async with AsyncClient(proxy.url, request_timeout=2) as client:
                leases: list[Any] = []

                def waiting() -> bool:
                    return bool(leases) and leases[0].state == "doubtful" and leases[0]._hold.in_flight

                async def work() -> None:
                    async with client.lock("doubt", ttl=2) as lease:
                        leases.append(lease)
                        while not waiting():
                            await asyncio.sleep(0.005)

                task = asyncio.create_task(work())
                while not leases:
                    await asyncio.sleep(0.005)
                proxy.delay(1.5)
                while not waiting():
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                task.cancel()
                proxy.heal()
                (outcome,) = await asyncio.gather(task, return_exceptions=True)
                assert isinstance(outcome, asyncio.CancelledError)
                assert leases[0].state == "released"
                assert nodes[0].command("EXISTS", "doubt") == 0

    asyncio.run(main())
