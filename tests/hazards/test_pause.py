"""A process is stopped for longer than its lease, somebody else takes the lock and works, and the process goes on.

What must hold: its first look says "paused"; an asyncio body that was waiting does not get to its next write; a write that was
under way already (no lock can stop that one) is refused by the resource, which has seen the rival's higher fence; and nothing
that the process still sends revives its lease.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.testing import Node
from interlock.testing.faces import COLOURS

from .pause_worker import GUARD
from .support import LIMIT, Worker, now, scaled

TTL = 0.4
AT_ONCE = 4


class Stage:
    """A holder that can be stopped, and everything around it. One for each thread of a test."""

    def __init__(self, colour: str, url: str, node: Node, directory: Path) -> None:
        self.colour, self.url, self.node = colour, url, node
        self.path = directory / f"{threading.get_ident()}"
        self.path.write_bytes(b"\0")
        self.fifo = f"{self.path}.fifo"
        os.mkfifo(self.fifo)
        self._ear = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)  # both ends, so that nobody has to wait for the other

    def run(self, orders: Iterator[dict[str, Any]], results: list[dict[str, Any]]) -> None:
        over = threading.Event()
        feeder = threading.Thread(target=self.feed, args=(over,))
        feeder.start()
        try:
            with (
                self.path.open("r+b") as file,
                mmap.mmap(file.fileno(), 1) as flag,
                Worker("pause_worker.py", self.colour, self.url, self.node.url, self.path, self.fifo) as holder,
                interlock.Client(self.url, renew=False, request_timeout=2) as rival,
            ):
                for order in orders:
                    results.append(self.trial(order, holder, rival, flag))
        finally:
            over.set()
            feeder.join()
            os.close(self._ear)

    def feed(self, over: threading.Event) -> None:
        """Something to read for the holder every three milliseconds, stopped or not."""
        while not over.wait(0.003):
            with suppress(BlockingIOError):
                os.write(self._ear, b"!")

    def trial(self, order: dict[str, Any], holder: Worker, rival: interlock.Client, flag: mmap.mmap) -> dict[str, Any]:
        name = order["name"]
        mine = holder.ask(order)
        time.sleep(random.random() * 2 * order["ttl"])
        os.kill(holder.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        stopped, waiting = now(), flag[0] == 1
        lease = None
        try:
            if order["rival"]:
                lease = rival.lock(name, ttl=60).acquire(timeout=20)
                assert self.node.command("EVAL", GUARD, 2, f"seal:{name}", f"log:{name}", lease.fence, "checked") == 1
        except interlock.Unavailable:  # stopped in the middle of a step of its own store
            pass
        time.sleep(max(0.0, stopped + 1.1 * order["ttl"] - now()))
        os.kill(holder.pid, signal.SIGCONT)
        report = holder.hear()
        entry = rival.inspect(name)
        log = [int(fence) for fence in self.node.command("LRANGE", f"log:{name}", 0, -1)]
        result = {
            **order,
            **report,
            "taken": lease is not None,
            "waiting": waiting,
            "revived": entry.held if lease is None else entry.fence != lease.fence,
            "accepted": sum(later < earlier for earlier, later in pairwise(log)),
        }
        if lease is not None:
            assert lease.fence > mine["fence"]
            assert lease.release()
        return result


def pauses(colour: str, url: str, node: Node, directory: Path, number: int, **order: Any) -> list[dict[str, Any]]:
    """So many pauses, some at a time."""
    ids = iter(range(number))
    guard = threading.Lock()

    def orders() -> Iterator[dict[str, Any]]:
        while True:
            with guard:
                n = next(ids, None)
            if n is None:
                return
            wait = ["sleep", "read", "busy"][n % 3]
            yield {"name": f"n:{n}", "ttl": TTL, "rival": n % 6 != 5, "fence": "checked", "wait": wait, "linger": 0.05,
                   "gap": random.choice([0.0, 0.002, 0.01]), **order}  # fmt: skip

    results: list[dict[str, Any]] = []
    errors: list[BaseException] = []

    def stage() -> None:
        try:
            Stage(colour, url, node, directory).run(orders(), results)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=stage) for _ in range(min(AT_ONCE, number))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert len(results) == number
    return results


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["valkey", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, valkey_node: Node) -> str:
    return valkey_node.url if request.param == "valkey" else f"sqlite://{tmp_path}/locks.db"


@pytest.mark.timeout(LIMIT)
def test_a_stopped_process_finds_out_and_its_late_writes_are_refused(
    colour: str, url: str, valkey_node: Node, tmp_path: Path
) -> None:
    number = scaled(8 if url.startswith("redis") else 4)
    results = pauses(colour, url, valkey_node, tmp_path, number)
    taken = [one for one in results if one["taken"]]
    waited = [one for one in results if one["waiting"] and one["wait"] != "busy" and colour == "asyncio"]
    late_checks = [one for one in results if one["passed"] >= one["deadline"]]
    print(
        f"{url.split(':')[0]}, {colour}: {len(results)} pauses, {len(taken)} with a rival in between; reasons "
        f"{dict(Counter(one['reason'] for one in results))}; checks passed after the deadline {len(late_checks)}; "
        f"bodies that were waiting {len(waited)}, of them wrote again {sum(one['stale'] > 0 for one in waited)}; "
        f"writes after the deadline {sum(one['stale'] for one in taken)}, refused {sum(one['refused'] for one in taken)}, "
        f"accepted out of order {sum(one['accepted'] for one in results)}; revived {sum(one['revived'] for one in results)}"
    )
    assert {one["reason"] for one in results} == {"paused"}
    assert all(one["lost"] for one in results)
    assert late_checks == [], "the first check after the pause raises"
    assert [one for one in waited if one["stale"]] == [], "a body that was waiting is cancelled before it writes again"
    if colour == "asyncio" and len(results) >= 32:  # of a few, chance may leave none
        assert len(waited) >= len(results) / 8
    assert all(one["refused"] >= one["stale"] for one in taken), "what slipped through is refused"
    assert all(one["accepted"] == 0 for one in results)
    assert all(not one["revived"] for one in results)
    assert len(taken) >= number / 2


@pytest.mark.timeout(LIMIT)
def test_without_the_fence_stale_writes_get_in(colour: str, valkey_node: Node, tmp_path: Path) -> None:
    """The control: the same, with a resource that does not look at the fence."""
    results = pauses(colour, valkey_node.url, valkey_node, tmp_path, 4, fence="ignored", gap=0.02, wait="busy", rival=True)
    assert sum(one["accepted"] for one in results) > 0
    assert {one["reason"] for one in results} == {"paused"}
