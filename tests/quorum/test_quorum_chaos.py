"""A quorum under fire: races, nodes killed, frozen and cut while grants go on, nodes that come back without their memory.

The numbers here are those of every commit; INTERLOCK_CHAOS=10 multiplies them (docs/adr/0008 has the figures of a long run).
Each test has its control: with the rule taken out, it finds what the rule is against.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.testing import FaultProxy, Node, start_nodes, stop_nodes

from .conftest import holders, urls

SCALE = float(os.environ.get("INTERLOCK_CHAOS", "1"))


# --- races --------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_two_clients_race_and_no_split_vote_waits_for_a_ttl(five: list[Node]) -> None:
    """Both start at the same instant, round after round. Never two inside, and each gets in long before a ttl is over."""
    rounds = int(200 * SCALE)
    ttl = 60.0
    barrier = threading.Barrier(2)
    inside = 0
    slowest = 0.0
    fences: list[int] = []
    errors: list[BaseException] = []

    def contender() -> None:
        nonlocal inside, slowest
        try:
            with interlock.Client(urls(five)) as client:
                lock = client.lock("race", ttl=ttl, timeout=30)
                with lock:
                    pass
                for _ in range(rounds):
                    barrier.wait(60)
                    began = time.monotonic()
                    with lock as lease:
                        slowest = max(slowest, time.monotonic() - began)
                        inside += 1
                        assert inside == 1, "two holders"
                        fences.append(lease.fence)
                        inside -= 1
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=contender) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(fences) == 2 * rounds
    assert fences == sorted(set(fences))
    assert slowest < ttl / 2, "no split vote had to wait for an expiry"


# --- fences -------------------------------------------------------------------------------------------------------------

WORKER = """
import json, os, random, sys, time
import interlock
from interlock.core import fence
from interlock.backends.quorum import vote
from interlock.backends.redis import backend, packing
# The clock gives no help here: an epoch in the far future leaves the counters alone to make fences grow.
fence.EPOCH_MS = 10**14
backend.EPOCH_MS = packing.EPOCH_MS = b"100000000000000"
nodes, mutant, seconds, journal = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
if mutant == "max only":
    async def max_only(self, claim, tally, each):
        return vote.Granted(tally.fence(), claim.ttl)
    vote.Voting._agree = max_only
client = interlock.Client(nodes, ttl=1.0, request_timeout=0.25)
clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
until = clock() + seconds
with open(journal, "a") as file:
    while clock() < until:
        name = f"n:{random.randrange(5)}"
        invoked = clock()
        try:
            lease = client.lock(name).acquire(timeout=1.0)
        except (interlock.NotAcquired, interlock.Unavailable):
            continue
        returned = clock()
        file.write(json.dumps([name, invoked, returned, lease.fence, lease.remaining()]) + "\\n")
        time.sleep(random.random() * 0.002)
        try:
            lease.release()
        except interlock.InterlockError:
            pass
"""


@pytest.fixture
def persistent() -> Iterator[list[Node]]:
    # On disk before each reply, so that no counter is lost. Nobody can know that: a node that was killed waits all the same.
    nodes = start_nodes(5, persist=True)
    yield nodes
    stop_nodes(nodes)


def grants_under_fire(nodes: list[Node], directory: Path, mutant: str, wanted: int, limit: float) -> list[Any]:
    """Grants of several processes while nodes are killed and restarted with their data, frozen, and cut off."""
    dice = random.Random(5)
    journals = [directory / f"{mutant or 'shipped'}-{n}.jsonl" for n in range(3)]
    faults = {"kill": 0, "freeze": 0, "cut": 0, "drop": 0}
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(node.port)) for node in nodes]
        for proxy, node in zip(proxies, nodes, strict=True):
            assert proxy.port != node.port
        arguments = json.dumps([proxy.url for proxy in proxies])
        until = time.monotonic() + limit
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, arguments, mutant, str(limit), str(journal)])
            for journal in journals
        ]
        try:
            while time.monotonic() < until and sum(map(lines, journals)) < wanted:
                victim = dice.randrange(5)
                fault = dice.choice(list(faults))
                if fault == "kill" and not all(map(votes, nodes)):
                    continue  # one that was killed waits: with two of them, and one that is frozen, there is no quorum
                faults[fault] += 1
                if fault == "kill":
                    nodes[victim].kill()
                    time.sleep(dice.random() * 0.02)
                    nodes[victim].restart(empty=False)
                elif fault == "freeze":
                    nodes[victim].pause()
                    time.sleep(dice.random() * 0.05)
                    nodes[victim].resume()
                elif fault == "cut":
                    proxies[victim].cut(reset=dice.random() < 0.5)
                else:
                    proxies[victim].drop_replies(dice.randrange(1, 4), to=b"n:")
                time.sleep(0.02 + dice.random() * 0.08)
                if dice.random() < 0.2:
                    proxies[victim].heal()
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
    rows = [json.loads(line) for journal in journals for line in journal.read_text().splitlines() if line.endswith("]")]
    print(f"{len(rows)} grants, faults {faults}")
    return rows


def votes(node: Node) -> bool:
    """Whether the node may vote: its roll is good for this life."""
    return node.command("HGET", "interlock:roll", "history") == node.info("replication")["master_replid"].encode()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fence_faults(rows: list[Any]) -> list[str]:
    """Where a fence was given twice, or a later grant has a lower one. Later: asked for after the other had returned."""
    faults = []
    for name in {row[0] for row in rows}:
        mine = [row for row in rows if row[0] == name]
        seen: dict[int, Any] = {}
        for row in mine:
            if row[3] in seen:
                faults.append(f"{name}: {row[3]} twice")
            seen[row[3]] = row
        highest = 0
        returned = sorted(mine, key=lambda row: row[2])
        at = 0
        for row in sorted(mine, key=lambda row: row[1]):
            while at < len(returned) and returned[at][2] < row[1]:
                highest = max(highest, returned[at][3])
                at += 1
            if row[3] <= highest:
                faults.append(f"{name}: {row[3]} although {highest} was given before")
    return faults


def test_the_check_of_fences_can_fail() -> None:
    good = [["n", 1.0, 2.0, 5, 1], ["n", 1.5, 2.5, 7, 1], ["n", 3.0, 4.0, 8, 1]]
    assert fence_faults(good) == []
    assert fence_faults([["n", 1.0, 2.0, 7, 1], ["n", 1.5, 2.5, 5, 1]]) == [], "side by side: no order between them"
    assert fence_faults([*good, ["n", 5.0, 6.0, 8, 1]])
    assert fence_faults([*good, ["n", 5.0, 6.0, 6, 1]])


@pytest.mark.timeout(900)
def test_fences_grow_while_nodes_are_killed_frozen_and_cut(persistent: list[Node], tmp_path: Path) -> None:
    wanted = int(1000 * SCALE)
    rows = grants_under_fire(persistent, tmp_path, "", wanted, limit=25 * SCALE + 20)
    assert len(rows) >= wanted * 0.9
    assert fence_faults(rows) == []


@pytest.mark.timeout(300)
def test_max_of_the_counters_without_writing_it_back_is_caught(persistent: list[Node], tmp_path: Path) -> None:
    """The control: the same run, with the planted mistake, must show duplicates or regressions."""
    found: list[str] = []
    for turn in range(3):
        directory = tmp_path / str(turn)
        directory.mkdir()
        found = fence_faults(grants_under_fire(persistent, directory, "max only", 1000, 15))
        if found:
            break
    assert found


# --- nodes that lose their memory ---------------------------------------------------------------------------------------


def forgetful_rounds(nodes: list[Node], rounds: int) -> tuple[int, int]:
    """Hold a lease on two of three nodes, empty one of the two, let somebody else try. (overlaps, tries)

    The holder cannot reach the third node, so the lease stands on a bare quorum: the worst case.
    """
    ttl, overlaps, tries = 0.5, 0, 0
    with interlock.Client(urls(nodes)) as first, first.lock("x", ttl=ttl):  # the cluster is born with all its nodes
        pass
    for turn in range(rounds):
        away, victim = turn % 3, nodes[(turn + 1 + turn % 2) % 3]
        with FaultProxy(nodes[away].port) as proxy:
            proxy.refuse()
            theirs = [proxy.url if n == away else node.url for n, node in enumerate(nodes)]
            with (
                interlock.Client(theirs, request_timeout=0.3) as one,
                interlock.Client(urls(nodes), request_timeout=0.3) as two,
            ):
                if turn % 2:  # a client that knows the cluster, or one that comes new
                    two.inspect("x")
                    with two.lock("other", ttl=ttl, timeout=5):
                        pass
                lease = one.lock("x", ttl=ttl).acquire(timeout=10)
                victim.kill()
                victim.restart(empty=True)
                while not lease.lost:
                    tries += 1
                    try:
                        second = two.lock("x", ttl=ttl).try_acquire()
                    except interlock.Unavailable:
                        continue
                    if second is not None:
                        overlaps += not lease.lost and not second.lost
                        second.release()
                        break
                last = two.lock("x", ttl=ttl, timeout=10).acquire()  # and it goes on once the lease is over
                assert last.fence > lease.fence
                last.release()
                deadline = time.monotonic() + 10
                while not all(node.command("EXISTS", "interlock:roll") for node in nodes) and time.monotonic() < deadline:
                    with two.lock("x", ttl=ttl, timeout=10):  # serves the quarantine, and lets the node vote again
                        time.sleep(0.02)
                assert all(node.command("EXISTS", "interlock:roll") for node in nodes), "the node was let back in"
    return overlaps, tries


@pytest.fixture
def three(five: list[Node]) -> list[Node]:
    return five[:3]


@pytest.mark.timeout(900)
def test_a_node_that_comes_back_empty_never_makes_two_holders(three: list[Node]) -> None:
    overlaps, tries = forgetful_rounds(three, int(12 * SCALE))
    print(f"{overlaps} overlaps in {int(12 * SCALE)} rounds, {tries} tries")
    assert overlaps == 0
    assert tries > 12
    assert holders(three, "x") == []


@pytest.mark.timeout(120)
def test_without_the_gate_two_holders_appear(three: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: nodes that vote whether or not they have their memory."""
    from interlock.backends.redis.backend import RedisBackend

    async def ungated(self: Any, claim: Any, proposal: int, within: float) -> Any:
        return await self.claim(claim, within)

    async def at_once(self: Any, within: float) -> None:
        self._markers.opened = True

    monkeypatch.setattr(RedisBackend, "vote", ungated)

    async def no_window(self: Any, within: float, until: float) -> None:
        self.window = within

    monkeypatch.setattr("interlock.backends.quorum.readmission.Readmission.prepare", at_once)
    monkeypatch.setattr("interlock.backends.quorum.markers.Markers.allow", no_window)
    overlaps = 0
    for turn in range(6):
        away, victim = turn % 3, three[(turn + 1) % 3]
        with FaultProxy(three[away].port) as proxy:
            proxy.refuse()
            theirs = [proxy.url if n == away else node.url for n, node in enumerate(three)]
            with interlock.Client(theirs) as one, interlock.Client(urls(three)) as two:
                lease = one.lock("x", ttl=2).acquire(timeout=5)
                victim.kill()
                victim.restart(empty=True)
                second = two.lock("x", ttl=2).try_acquire()
                overlaps += second is not None and not lease.lost and not second.lost
        time.sleep(0.1)
        for node in three:
            node.command("DEL", "x")
    assert overlaps > 0
