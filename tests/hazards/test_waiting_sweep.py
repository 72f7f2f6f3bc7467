"""Cancelled at each await of waiting, and of releasing to somebody who waits.

Afterwards: no place in line, here or in the store, no grant that nobody uses, and whoever waits behind has the lock at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from interlock import AsyncClient
from interlock.backends.memory import backend as memories

from ..flow.test_cancellation import WAYS, CancelAt
from .support import LIMIT
from .test_sweep import Stage, nodes, stage  # noqa: F401 - fixtures

SOON = 5.0  # seconds: the leases here last six times as long
KEPT = 30.0


def line(stage: Stage, name: str) -> int:  # noqa: F811
    """How many wait in the store."""
    if stage.kind == "memory":
        return len(memories._memories[stage.direct.removeprefix("memory://")].lines.get(name, ()))
    if stage.kind == "sqlite":
        with closing(sqlite3.connect(stage.direct.removeprefix("sqlite://"))) as file:
            return int(file.execute("SELECT count(*) FROM line WHERE name = ?", (name,)).fetchone()[0])
    import redis

    with redis.Redis.from_url(stage.direct) as server:
        return int(server.zcard(f"interlock:{{{name}}}:line"))


def client_of(stage: Stage) -> AsyncClient:  # noqa: F811
    return AsyncClient(stage.slow, ttl=KEPT, timeout=20, request_timeout=2)


async def judged(stage: Stage, client: AsyncClient, name: str) -> None:  # noqa: F811
    gate = client._context.queue
    assert not gate.in_line, f"{name}: {gate.in_line}"
    assert not gate._queues, f"{name}: {list(gate._queues)}"
    await stage.free(name)
    assert line(stage, name) == 0, f"{name}: somebody is left in line"
    await client.close()


def cancelled(trial: CancelAt) -> asyncio.Task[Any]:
    async def attempt() -> Any:
        return await trial

    return asyncio.create_task(attempt())


async def sweep(trial: Any, way: str) -> int:
    awaits, at_once = 0, 12
    for _ in range(6):
        reached = sum(await asyncio.gather(*(trial(k, way) for k in range(awaits + 1, awaits + at_once + 1))))
        awaits += reached
        if reached < at_once:
            return awaits
    raise AssertionError("no end in sight")


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("stage", ["memory", "sqlite", "valkey"], indirect=True)
@pytest.mark.parametrize("behind", [False, True], ids=["alone", "with one behind"])
def test_a_waiter_is_cancelled_at_each_await(stage: Stage, behind: bool) -> None:  # noqa: F811
    points = {}

    async def trial(k: int, way: str) -> bool:
        name = f"{way}:{k}"
        holder, client = client_of(stage), client_of(stage)
        held = await holder.lock(name).acquire()

        async def waits() -> None:
            async with client.lock(name):
                await asyncio.sleep(0.01)

        first = CancelAt(waits(), k, way)
        task = cancelled(first)
        others = [asyncio.create_task(waits()) for _ in range(behind)]
        await asyncio.sleep(0.15)
        await held.release()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError) if first.reached else outcome is None, repr(outcome)
        async with asyncio.timeout(SOON):
            await asyncio.gather(*others)
        await judged(stage, client, name)
        await holder.close()
        return first.reached

    async def main() -> None:
        for way in WAYS:
            points[way] = await sweep(trial, way)
            assert points[way] >= 2

    stage.run(main)
    print(f"{stage.kind}: awaits at which it was cancelled {points}")


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("stage", ["memory", "sqlite", "valkey"], indirect=True)
@pytest.mark.parametrize("fair", [False, True])
def test_a_release_to_somebody_who_waits_is_cancelled_at_each_await(stage: Stage, fair: bool) -> None:  # noqa: F811
    """One of the same client waits, and one elsewhere, who came earlier."""
    points = {}

    async def trial(k: int, way: str) -> bool:
        name = f"{way}:{k}"
        other, client = client_of(stage), client_of(stage)
        held = await client.lock(name).acquire()

        async def waits(who: AsyncClient) -> None:
            async with who.lock(name, fair=fair):
                await asyncio.sleep(0.01)

        jobs = [asyncio.create_task(waits(other))]
        await asyncio.sleep(0.1)
        jobs.append(asyncio.create_task(waits(client)))
        await asyncio.sleep(0.05)
        releasing = CancelAt(held.release(), k, way)
        (outcome,) = await asyncio.gather(cancelled(releasing), return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError) if releasing.reached else outcome is True, repr(outcome)
        assert held.state == "released"
        async with asyncio.timeout(SOON):
            await asyncio.gather(*jobs)
        await judged(stage, client, name)
        await judged(stage, other, name)
        return releasing.reached

    async def main() -> None:
        for way in WAYS:
            points[way] = await sweep(trial, way)

    stage.run(main)
    print(f"{stage.kind}: awaits at which it was cancelled {points}")
