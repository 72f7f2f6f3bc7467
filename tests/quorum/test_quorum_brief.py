"""Clients that live for less time than a node has to wait after a restart let it back in together: the nodes note the wait."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import pytest

import interlock
from interlock.backends.quorum import readmission
from interlock.backends.quorum.markers import Markers
from interlock.runtime.base import now
from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.conformance import backend_of
from interlock.testing.faces import Kit, run_body

from .conftest import urls

TTL = 0.5
SOON = 20.0  # seconds, far more than it takes


@pytest.fixture
def three(five: list[Node]) -> list[Node]:
    return five[:3]


def votes(node: Node) -> bool:
    """Whether its roll is good for this life."""
    return node.command("HGET", "interlock:roll", "history") == node.info("replication")["master_replid"].encode()


async def brief(kit: Kit, name: str = "cron") -> bool:
    """One short life: a new client, one lease, the end. Whether it got it."""
    client = kit.client(request_timeout=0.25)
    try:
        lease = await client.lock(name, ttl=TTL).try_acquire()
        if lease is None:
            return False
        await lease.release()
        return True
    except interlock.NoQuorum:
        return False
    finally:
        await client.close()


async def until_all_vote(kit: Kit, nodes: list[Node], within: float = SOON) -> bool:
    until = time.monotonic() + within
    while not all(map(votes, nodes)) and time.monotonic() < until:
        await brief(kit)
        await kit.sleep(0.05)
    return all(map(votes, nodes))


def test_a_node_that_forgot_is_let_in_by_clients_that_live_for_a_moment(three: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        assert await brief(kit)
        began = time.monotonic()
        three[2].kill()
        three[2].restart(empty=True)
        assert await until_all_vote(kit, three)
        assert time.monotonic() - began > TTL, "what it may have forgotten was waited for"
        three[0].kill()
        assert await brief(kit), "its vote counts"

    run_body(body, urls(three), colour)


def test_so_are_all_of_them_after_a_restart_of_the_whole_cluster(colour: str) -> None:
    nodes = start_nodes(3, persist=True)
    try:

        async def body(kit: Kit) -> None:
            assert await brief(kit)
            for node in nodes:
                node.kill()
            for node in nodes:
                node.restart(empty=False)
            assert await until_all_vote(kit, nodes)
            assert await brief(kit)

        run_body(body, urls(nodes), colour)
    finally:
        stop_nodes(nodes)


def test_without_the_notes_they_never_do(three: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""

    async def body(kit: Kit) -> None:
        assert await brief(kit)
        three[2].kill()
        three[2].restart(empty=True)
        monkeypatch.setattr(Markers, "waits", lambda self: ())
        assert not await until_all_vote(kit, three, within=4.0)

    run_body(body, urls(three), "blocking")


def test_the_word_of_one_node_is_not_enough(three: list[Node]) -> None:
    """Its clock may have jumped: it says that the wait was over long ago, and nobody else says anything."""

    async def body(kit: Kit) -> None:
        assert await brief(kit)
        three[2].kill()
        three[2].restart(empty=True)
        assert await brief(kit)
        for node in three[1:]:
            node.command("DEL", "interlock:waits")
        noted = three[0].command("GET", "interlock:waits").split()
        assert len(noted) == 3, "one wait: its loss, since when, and its end if that is known"
        three[0].command("SET", "interlock:waits", b" ".join([noted[0], b"1", b"1"]))
        began = time.monotonic()
        assert await until_all_vote(kit, three)
        assert time.monotonic() - began > TTL

    run_body(body, urls(three), "blocking")


def test_a_wait_counts_for_one_loss(three: list[Node]) -> None:
    """The node forgets again when its first wait is nearly over: the second begins anew."""

    async def body(kit: Kit) -> None:
        assert await brief(kit)
        three[2].kill()
        three[2].restart(empty=True)
        until = time.monotonic() + 1.2 * TTL
        while time.monotonic() < until and not votes(three[2]):
            await brief(kit)
            await kit.sleep(0.02)
        began = time.monotonic()
        three[2].kill()
        three[2].restart(empty=True)
        assert await until_all_vote(kit, three)
        assert time.monotonic() - began > TTL

    run_body(body, urls(three), "blocking")


def test_so_is_a_node_that_was_away_when_its_list_was_opened(three: list[Node]) -> None:
    """It forgot nothing, and is closed still: whoever changed the list (`core.change`) could not tell it."""

    async def body(kit: Kit) -> None:
        assert await brief(kit)
        three[2].command("HSET", "interlock:roll", "list", "closed")
        until = time.monotonic() + SOON
        while three[2].command("HGET", "interlock:roll", "list") == b"closed" and time.monotonic() < until:
            assert await brief(kit)
            await kit.sleep(0.05)
        assert three[2].command("HGET", "interlock:roll", "list") == three[0].command("HGET", "interlock:roll", "list")

    run_body(body, urls(three), "blocking")


def test_a_wait_for_a_long_lease_ends_when_that_is_released(three: list[Node]) -> None:
    """How long it lasts was noted while it was held. It is measured again, and the shorter wait is noted."""

    async def body(kit: Kit) -> None:
        assert await brief(kit)
        holder = kit.client(request_timeout=0.25)
        lease = await holder.lock("long", ttl=3600).acquire()
        three[2].kill()
        three[2].restart(empty=True)

        def end_is_noted() -> bool:
            return all(node.command("GET", "interlock:waits").split()[-1] != b"-1" for node in three)

        until = time.monotonic() + SOON
        while await brief(kit) and not end_is_noted() and time.monotonic() < until:
            await kit.sleep(0.05)
        assert end_is_noted()
        await lease.release()
        assert await until_all_vote(kit, three)

    run_body(body, urls(three), "blocking")


def test_a_client_that_stays_measures_again_too(three: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readmission, "MEASURE_PAUSE", 0.5)

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.25)
        lease = await client.lock("long", ttl=3600).acquire()
        three[2].kill()
        three[2].restart(empty=True)
        node = backend_of(client).poller.nodes[2]  # type: ignore[attr-defined]
        until = time.monotonic() + SOON
        while (node.quarantine is None or node.quarantine.until == inf) and time.monotonic() < until:
            await kit.sleep(0.05)
            async with client.lock("cron", ttl=TTL):
                pass
        assert node.quarantine.until - now() > 3000
        await lease.release()
        while not votes(three[2]) and time.monotonic() < until:
            await kit.sleep(0.05)
            async with client.lock("cron", ttl=TTL):
                pass
        assert votes(three[2])

    run_body(body, urls(three), "blocking")


def test_what_is_wrong_with_a_node_is_not_raised_by_a_release(three: list[Node], colour: str) -> None:
    """A program that has warnings raised hears of it where it asks for a lock."""

    async def body(kit: Kit) -> None:
        assert await brief(kit)
        client = kit.client()
        three[2].kill()
        lease = await client.lock("x", ttl=20).acquire()
        three[2].restart(empty=True)
        three[2].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        backend: Any = backend_of(client)
        backend.nodes[2].health.answered()  # it need not rest
        backend.readmission._vet_again = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert await lease.release()
            backend.readmission._vet_again = 0.0
            with pytest.raises(RuntimeWarning, match="allkeys-lru"):
                await client.lock("x", ttl=20).acquire()

    try:
        run_body(body, urls(three), colour)
    finally:
        three[2].command("CONFIG", "SET", "maxmemory-policy", "noeviction")


STAMP = "import sys, time; begin = time.time(); time.sleep(0.15); print(begin, time.time(), file=open(sys.argv[1], 'a'))"


def test_cron_jobs_alone_heal_a_cluster(three: list[Node], tmp_path: Any) -> None:
    """Only `interlock run`, on two hosts at once: a node is restarted empty; once it votes, another one is killed."""
    stamps = tmp_path / "stamps"
    environment = {**os.environ, "INTERLOCK_URL": ",".join(urls(three))}
    command = [sys.executable, "-m", "interlock", "run", "--ttl", "2s", "--timeout", "5s", "nightly", "--"]

    def both() -> list[int]:
        hosts = [subprocess.Popen([*command, sys.executable, "-c", STAMP, stamps], env=environment) for _ in range(2)]
        return [host.wait(60) for host in hosts]

    def until(done: Callable[[], bool]) -> list[int]:
        codes, limit = [], time.monotonic() + 60
        while not done() and time.monotonic() < limit:
            codes += both()
        return codes

    assert both() == [0, 0]
    three[2].kill()
    three[2].restart(empty=True)
    codes = until(lambda: votes(three[2]))
    assert set(codes) == {0}
    assert votes(three[2])
    three[0].kill()
    assert both() == [0, 0]
    spans = sorted(tuple(map(float, line.split())) for line in stamps.read_text().splitlines())
    assert len(spans) == len(codes) + 4
    assert all(one[1] <= two[0] for one, two in pairwise(spans)), "never two at work"
