"""Many processes contend for one name while some of them are killed; many wait for one that does nothing; in which order.

Counted in what each process wrote down, on the clock of the machine.

This file is long because it is a list, and what it measures with.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import interlock
from interlock.testing import Node, start_nodes, stop_nodes

from .support import LIMIT, SCALE, Worker, now, scaled

FULL = SCALE >= 5
TTL = 2.0
NOISE = 1.0  # seconds by which a machine with other things to do may be late
STORES = ["valkey", "sqlite", "quorum"]  # five nodes


class Stage:
    """Where the processes meet."""

    def __init__(self, stores: Any, nodes: list[Node], path: Path | None) -> None:
        self.stores, self.nodes, self.path = stores, nodes, path

    def left(self) -> list[str]:
        """What is in the store and does not end by itself, or holds the name."""
        found = []
        for node in self.nodes:
            for key in node.command("KEYS", "*"):
                name, left = key.decode(), node.command("PTTL", key)
                if name == "chaos" or (left == -1 and name != "interlock:roll"):
                    found.append(f"{name} {left}")
            found += [f"subscribed: {channel!r}" for channel in node.command("PUBSUB", "CHANNELS", "*")]
        if self.path is not None:
            with closing(sqlite3.connect(self.path)) as file:
                found += [f"held {row}" for row in file.execute("SELECT * FROM entries WHERE expires > ?", (now(),))]
                found += [f"waits {row}" for row in file.execute("SELECT * FROM line WHERE expires > ?", (now() + 60 + TTL,))]
        return found


@pytest.fixture(params=STORES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    if request.param == "sqlite":
        yield Stage(f"sqlite://{tmp_path}/locks.db", [], tmp_path / "locks.db")
        return
    nodes = start_nodes({"valkey": 1, "quorum": 5}[request.param])
    urls = [node.url for node in nodes]
    try:
        yield Stage(urls[0] if len(urls) == 1 else urls, nodes, None)
    finally:
        stop_nodes(nodes)


class Grant(NamedTuple):
    """One lease, as its holder wrote it down. `ended` is None if it was killed meanwhile."""

    fence: int
    who: int
    arrived: float
    began: float
    ended: float | None


class Crowd:
    """The processes, their logs, and when which of them was killed."""

    def __init__(self, stack: ExitStack, folder: Path, order: dict[str, Any]) -> None:
        self._stack, self._folder, self._order = stack, folder, order
        self.killed: dict[int, float] = {}  # number: when
        self.born: dict[int, float] = {}
        self.workers: dict[int, Worker] = {}
        self._number = 0

    def add(self, many: int = 1) -> None:
        fresh = []
        for _ in range(many):
            self._number += 1
            worker = Worker("waiting_worker.py", "x", self._folder / f"{self._number}.log")
            self._stack.callback(self._end, worker)
            colour = "asyncio" if self._number % 2 else "blocking"
            worker.say({**self._order, "colour": colour})
            fresh.append((self._number, worker))
        for number, worker in fresh:
            assert worker.hear() == "ready"
            self.workers[number], self.born[number] = worker, now()

    def kill(self, number: int) -> None:
        worker = self.workers.pop(number)
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        self.killed[number] = now()

    def of(self, pid: int) -> int | None:
        return next((number for number, worker in self.workers.items() if worker.pid == pid), None)

    def stop(self) -> None:
        for worker in self.workers.values():
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for worker in self.workers.values():
            assert worker.hear(30) == "done", worker.errors
            assert worker.process.wait(20) == 0, worker.errors
            assert worker.errors == ""

    @staticmethod
    def _end(worker: Worker) -> None:
        worker.process.kill()
        worker.process.wait()
        with suppress(OSError):
            worker.__exit__(ValueError)

    def grants(self) -> tuple[list[Grant], Counter[str]]:
        begun: dict[int, tuple[int, float, float]] = {}
        ended: dict[int, float] = {}
        errors: Counter[str] = Counter()
        for number in range(1, self._number + 1):
            path = self._folder / f"{number}.log"
            for line in path.read_text().splitlines() if path.exists() else ():
                match line.split(" ", 3):
                    case ["+", fence, arrived, began]:
                        begun[int(fence)] = number, float(arrived), float(began)
                    case ["-", fence, at]:
                        ended[int(fence)] = float(at)
                    case ["!", kind, *_]:
                        errors[kind] += 1
        return [Grant(fence, *begun[fence], ended.get(fence)) for fence in sorted(begun)], errors

    def overlaps(self, grants: list[Grant]) -> list[tuple[Grant, Grant]]:
        """Two at a time, which must never be. Whoever was killed held until then, at the longest."""
        found = []
        for one, two in pairwise(grants):
            end = one.ended if one.ended is not None else min(self.killed[one.who], one.began + TTL)
            alive = one.ended is None and one.who not in self.killed
            if alive or two.began < min(end, one.ended or end):
                found.append((one, two))
        return found

    def stalls(self, grants: list[Grant]) -> list[float]:
        """How long nobody held it although nobody was killed: a kill may strike whoever has just been given it."""
        kills = sorted(self.killed.values())
        found = []
        for one, two in pairwise(grants):
            moments = [one.ended or one.began, *(kill for kill in kills if one.began < kill < two.began), two.began]
            found.append(max(after - before for before, after in pairwise(sorted(moments))))
        return found


@pytest.mark.timeout(LIMIT + 60)
def test_killed_at_random_while_many_contend(stage: Stage, tmp_path: Path) -> None:
    """Nobody stalls for longer than a ttl, nobody starves, two never hold it, and nothing is left."""
    seconds, many = (60.0, 20) if FULL else (5.0, 8)
    order = {"stores": stage.stores, "ttl": TTL, "hold": 0.01, "each": 2, "fair": False, "timeouts": [None, None, None, 1.0]}
    dice = random.Random(11)
    with ExitStack() as stack, interlock.Client(stage.stores, request_timeout=5) as observer:
        crowd = Crowd(stack, tmp_path, order)
        crowd.add(many)
        until, struck = now() + seconds, Counter[str]()
        while now() < until:
            time.sleep(dice.uniform(0.3, 1.2))
            number = None
            if dice.random() < 0.5:  # whoever holds it at this moment
                owner = observer.inspect("chaos").owner
                number = crowd.of(int(owner.partition(" ")[0].rpartition(":")[2])) if owner else None
            struck["holder" if number else "waiter"] += 1
            crowd.kill(number or dice.choice(list(crowd.workers)))
            crowd.add()
        crowd.stop()
        grants, errors = crowd.grants()
        time.sleep(TTL + 0.5)
        left = stage.left()
        assert not observer.inspect("chaos").held
    stalls, share = crowd.stalls(grants), Counter(grant.who for grant in grants)
    # A round takes 20 x 17 leases, and two seconds more for each holder that was killed meanwhile.
    long = 15.0 if FULL else 2 * TTL
    old = [number for number, born in crowd.born.items() if crowd.killed.get(number, until) - born > long]
    waits = sorted(grant.began - grant.arrived for grant in grants)
    report = {
        "grants": len(grants),
        "kills": dict(struck),
        "longest stall": round(max(stalls), 3),
        "grants of those who lived long": [min(share[number] for number in old), max(share[number] for number in old)],
        "longest wait": round(waits[-1], 3),
        "median wait": round(waits[len(waits) // 2], 4),
        "errors": dict(errors),
    }
    print(json.dumps(report))
    assert crowd.overlaps(grants) == []
    wrong = [(one, two) for one, two in pairwise(grants) if two.began < one.began]
    assert wrong == [], "fences grow with time"
    assert max(stalls) < TTL + NOISE, report
    assert all(share[number] for number in old), report
    assert not errors, report
    assert left == [], left


@pytest.mark.timeout(LIMIT)
def test_fair_means_in_order_between_processes(stage: Stage, tmp_path: Path) -> None:
    """Inversions: whoever is served came earlier, by more than the machine may blur, than the one served before."""
    order = {"stores": stage.stores, "ttl": 10.0, "hold": 0.004, "each": 1, "fair": True, "timeouts": [None]}
    with ExitStack() as stack:
        crowd = Crowd(stack, tmp_path, order)
        crowd.add(8)
        time.sleep(scaled(3))
        crowd.stop()
        grants, errors = crowd.grants()
    blur = 0.005
    late = sum(two.arrived < one.arrived for one, two in pairwise(grants))
    inversions = sum(two.arrived < one.arrived - blur for one, two in pairwise(grants))
    share = Counter(grant.who for grant in grants)
    print(
        json.dumps(
            {"grants": len(grants), "inversions": inversions, "by less than 5 ms": late, "share": sorted(share.values())}
        )
    )
    assert not errors
    assert len(grants) > 100
    assert inversions < max(0.01 * len(grants), 2)
    assert min(share.values()) > 0.5 * max(share.values())


@pytest.mark.timeout(LIMIT)
def test_barging_starves_nobody(stage: Stage, tmp_path: Path) -> None:
    """One process with a crowd of its own, and seven that come alone."""
    order = {"stores": stage.stores, "ttl": 10.0, "hold": 0.002, "each": 1, "fair": False, "timeouts": [None]}
    with ExitStack() as stack:
        crowd = Crowd(stack, tmp_path, order)
        crowd.add(7)
        crowd._order["each"] = 20
        crowd.add(1)
        time.sleep(scaled(3))
        crowd.stop()
        grants, errors = crowd.grants()
    share = Counter(grant.who for grant in grants)
    longest = max(two.began - one.began for who in share for one, two in pairwise([g for g in grants if g.who == who]))
    print(json.dumps({"grants": len(grants), "share": dict(share), "longest between two of one process": round(longest, 3)}))
    assert not errors
    runs, streak = [], 1
    for one, two in pairwise(grants):
        streak = streak + 1 if one.who == two.who else 1
        runs.append(streak)
    alone = [share[number] for number in range(1, 8)]
    assert min(alone) > 0
    assert min(alone) > 0.2 * max(alone)
    assert max(runs) <= 60, "sixteen in a row, and those who came before the others"


HOLDER = """
import sys, time, interlock
client = interlock.Client(sys.argv[1])
lease = client.lock("idle", ttl=float(sys.argv[2])).acquire()
print(lease.fence, flush=True)
time.sleep(600)
"""


def requests(node: Node) -> int:
    """What clients have asked of the node; not what its scripts did for that, nor what tests ask."""
    told = node.info("commandstats")
    return sum(
        int(told.get(f"cmdstat_{verb}", "calls=0").partition("calls=")[2].partition(",")[0])
        for verb in ("eval", "evalsha", "ping", "subscribe")
    )


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_hundred_who_wait_cost_next_to_nothing(valkey_node: Node, colour: str) -> None:
    """Few questions, no busy processor; and once the holder is killed, they are woken by the end of its lease."""
    node, many, seconds, ttl = valkey_node, 100, 30.0 if FULL else 4.0, 3.0
    with subprocess.Popen([sys.executable, "-c", HOLDER, node.url, str(ttl)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert int(holder.stdout.readline()) > 0
            report = (_idle_tasks if colour == "asyncio" else _idle_threads)(node, many, seconds, holder)
        finally:
            holder.kill()
    print(json.dumps({"colour": colour, "ttl": ttl, **report}))
    assert report["commands per waiter and second"] <= 0.1
    assert report["share of a processor"] < 0.3
    assert report["woken after the kill"] < ttl + NOISE
    assert report["served"] == many


def _measured(node: Node, many: int, seconds: float) -> dict[str, float]:
    before, used, began = requests(node), time.process_time(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {
        "commands per waiter and second": round((requests(node) - before) / many / took, 4),
        "share of a processor": round((time.process_time() - used) / took, 4),
    }


def _idle_threads(node: Node, many: int, seconds: float, holder: subprocess.Popen[bytes]) -> dict[str, float]:
    import threading

    served: list[float] = []

    def work() -> None:
        with client.lock("idle", ttl=10):
            served.append(now())

    with interlock.Client(node.url) as client:
        threads = [threading.Thread(target=work) for _ in range(many)]
        for thread in threads:
            thread.start()
        while len(client._context.queue._queues["idle"].waiters) < many or not client._context.queue.in_line:
            time.sleep(0.01)
        report = _measured(node, many, seconds)
        holder.kill()
        killed = now()
        for thread in threads:
            thread.join()
    return {**report, "woken after the kill": round(served[0] - killed, 3), "served": len(served)}


def _idle_tasks(node: Node, many: int, seconds: float, holder: subprocess.Popen[bytes]) -> dict[str, float]:
    async def main() -> dict[str, float]:
        served: list[float] = []

        async def work() -> None:
            async with client.lock("idle", ttl=10):
                served.append(now())

        async with interlock.AsyncClient(node.url) as client:
            tasks = [asyncio.create_task(work()) for _ in range(many)]
            while not client._context.queue.in_line or len(client._context.queue._queues["idle"].waiters) < many:
                await asyncio.sleep(0.01)
            report = await asyncio.to_thread(_measured, node, many, seconds)
            holder.kill()
            killed = now()
            await asyncio.gather(*tasks)
        return {**report, "woken after the kill": round(served[0] - killed, 3), "served": len(served)}

    return asyncio.run(main())


@pytest.mark.timeout(LIMIT)
def test_many_locks_and_waiters_share_two_connections(valkey_node: Node) -> None:
    names, each = (1000, 10) if FULL else (150, 4)
    node = valkey_node

    def connections() -> int:
        return len(node.command("CLIENT", "LIST").splitlines()) - 1  # but for the one that asks

    async def main() -> None:
        async with interlock.AsyncClient(node.url) as holder:
            leases = [await holder.lock(f"many:{n}", ttl=60).acquire() for n in range(names)]
            before = connections()
            async with interlock.AsyncClient(node.url, request_timeout=20) as client:  # ten thousand tasks start first
                gate, served = client._context.queue, 0

                async def work(n: int) -> None:
                    nonlocal served
                    async with client.lock(f"many:{n}", ttl=60):
                        served += 1

                tasks = [asyncio.create_task(work(n)) for n in range(names) for _ in range(each)]
                while len(gate.in_line) < names or any(one.after is None for one in gate.in_line.values()):
                    await asyncio.sleep(0.02)
                more, channels = connections() - before, node.command("PUBSUB", "CHANNELS", "interlock:*")
                began = now()
                for lease in leases:
                    await lease.release()
                await asyncio.gather(*tasks)
                print(json.dumps({"waiters": names * each, "connections": more, "served in": round(now() - began, 2)}))
                assert (more, len(channels), served) == (2, 1, names * each)
                assert not gate._queues
                assert not gate.in_line
            assert node.command("PUBSUB", "CHANNELS", "interlock:*") == []
            assert node.command("KEYS", "many:*") == []

    asyncio.run(main())
