"""A node that comes back with an older state of its memory, and lists of nodes that differ: never two holders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import interlock
from interlock.testing import FaultProxy, Node, start_nodes, stop_nodes
from interlock.testing.conformance import met
from interlock.testing.faces import Kit, run_body

from .conftest import holders, urls

RDB = ["appendonly no", 'save ""']  # as Redis and Valkey come, but that nobody saves in between
EVERYSEC = ["appendonly yes", "appendfsync everysec"]


@pytest.fixture
def three() -> Iterator[list[Node]]:
    """With snapshots only: what was written after the last one is gone after a kill."""
    nodes = start_nodes(3, persist=True, config=RDB)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture
def servers() -> Iterator[Callable[..., list[Node]]]:
    with ExitStack() as stack:

        def start(count: int, **more: Any) -> list[Node]:
            nodes = start_nodes(count, **more)
            stack.callback(stop_nodes, nodes)
            return nodes

        yield start


async def attempt(client: Any, name: str, ttl: float) -> Any:
    with suppress(interlock.NoQuorum):
        return await client.lock(name, ttl=ttl, renew=False).try_acquire()


async def vote(client: Any, node: Node, within: float, ttl: float = 1.0) -> float:
    """How long it takes until a lock has the vote of this node."""
    began = time.monotonic()
    while time.monotonic() - began < within:
        lease = await attempt(client, "probe", ttl)
        if lease is not None:
            voted = node.command("EXISTS", "probe")
            await lease.release()
            if voted:
                return time.monotonic() - began
        time.sleep(0.02)
    raise AssertionError(f"it did not vote within {within} s")


def test_a_node_that_comes_back_with_its_last_snapshot_casts_no_vote(three: list[Node], colour: str) -> None:
    """Row 1 of the review: node 3 was dead while A acquired on 1 and 2, and node 2 forgets A."""

    async def body(kit: Kit) -> None:
        a, b = kit.client(request_timeout=0.5), kit.client(request_timeout=0.5)
        for client in (a, b):
            await met(client)
            await vote(client, three[2], within=5)
        for node in three:
            node.command("SAVE")
        three[2].kill()
        lease = await a.lock("x", ttl=4, renew=False).acquire(timeout=5)
        assert holders(three[:2], "x") == [0, 1]
        three[2].restart(empty=False)
        three[1].kill()
        three[1].restart(empty=False)
        assert three[1].command("EXISTS", "interlock:roll"), "it has its roll, from before"
        assert not three[1].command("EXISTS", "x"), "and it has forgotten the lease"
        while not lease.lost:
            assert await attempt(b, "x", 4) is None or lease.lost, "two have it"
            await kit.sleep(0.02)
        later, until = None, time.monotonic() + 15
        while later is None:  # the nodes are let in again
            assert time.monotonic() < until
            later = await attempt(b, "x", 4)
            await kit.sleep(0.05)
        assert later.fence > lease.fence
        await later.release()

    run_body(body, urls(three), colour)


@pytest.mark.parametrize("how", ["snapshot", "everysec", "always", "promoted"])
def test_whoever_may_have_lost_something_waits(servers: Any, colour: str, how: str) -> None:
    nodes = servers(3, persist=True, config={"everysec": EVERYSEC, "always": ()}.get(how, RDB))
    (other,) = servers(1, config=RDB)

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.5)
        await met(client)
        lease = await client.lock("long", ttl=3, renew=False).acquire(timeout=5)
        victim = nodes[1]
        if how != "promoted":
            if how == "snapshot":
                victim.command("SAVE")
            victim.kill()
            victim.restart(empty=False)
        else:  # its data go to another server and come back, as when a node fails over to its replica
            other.command("REPLICAOF", "127.0.0.1", str(victim.port))
            settled(other)
            other.command("REPLICAOF", "NO", "ONE")
            victim.command("REPLICAOF", "127.0.0.1", str(other.port))
            settled(victim)
            victim.command("REPLICAOF", "NO", "ONE")
        assert victim.command("HGET", "interlock:roll", "list")
        took = await vote(client, victim, within=15)
        assert lease.lost, "what it may have forgotten was over by then"
        print(f"voted again after {took:.1f} s")

    run_body(body, urls(nodes), colour)


def settled(node: Node) -> None:
    until = time.monotonic() + 10
    while node.info("replication").get("master_link_status") != "up":
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_long_lease_that_was_released_keeps_nobody_out(three: list[Node], colour: str) -> None:
    """Row 10: what a node may have forgotten is bounded by what is held, not by what ever was."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.5)
        await met(client)
        async with client.lock("nightly", ttl=86_400):
            pass
        async with client.lock("gone", ttl=12, renew=False):
            pass
        three[0].kill()
        three[0].restart(empty=True)
        assert await vote(client, three[0], within=20) < 15

    run_body(body, urls(three), colour)


def test_a_long_lease_that_is_held_keeps_it_out(three: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.5)
        await met(client)
        lease = await client.lock("nightly", ttl=13, renew=False).acquire(timeout=5)
        three[0].kill()
        three[0].restart(empty=True)
        await vote(client, three[0], within=30)
        assert lease.lost

    run_body(body, urls(three), colour)


def test_who_is_refused_does_not_shorten_what_another_holds(three: list[Node], colour: str) -> None:
    """The names of long leases are kept with when they end. A contender with a shorter one must not change that."""

    async def body(kit: Kit) -> None:
        client, other = kit.client(request_timeout=0.5), kit.client(request_timeout=0.5)
        await vote(client, three[0], within=5)
        lease = await client.lock("nightly", ttl=60, renew=False).acquire(timeout=5)
        ends = [node.command("ZSCORE", "interlock:roll:long", "nightly") for node in three]
        assert await attempt(other, "nightly", 12) is None
        assert [node.command("ZSCORE", "interlock:roll:long", "nightly") for node in three] == ends
        await lease.release()

    run_body(body, urls(three), colour)


def test_names_of_long_leases_do_not_pile_up(three: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=1)
        for number in range(60):
            async with client.lock(f"n:{number}", ttl=60):
                pass
        assert max(node.command("ZCARD", "interlock:roll:long") for node in three) < 20

    run_body(body, urls(three), colour)


def test_a_lease_goes_on_on_a_node_that_was_restarted_and_holds_it(three: list[Node], colour: str) -> None:
    """It casts no vote, but it extends what it has: the lease stands on it and one other."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.5)
        await vote(client, three[2], within=5)
        three[2].kill()
        lease = await client.lock("x", ttl=3, renew=True).acquire(timeout=5)
        three[1].command("SAVE")
        three[1].kill()
        three[1].restart(empty=False)
        three[2].restart(empty=False)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            await kit.sleep(0.2)
            lease.check()
        await lease.release()

    run_body(body, urls(three), colour)


# --- lists of nodes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [3, 5])
def test_clients_that_list_other_nodes_are_refused(five: list[Node], colour: str, first: int) -> None:
    """Row 22: three of five nodes are not a quorum of three."""

    async def body(kit: Kit) -> None:
        lists = {3: urls(five[:3]), 5: urls(five)}
        one, two = kit.client(store=lists.pop(first)), kit.client(store=next(iter(lists.values())))
        lease = await one.lock("x", ttl=5).acquire(timeout=5)
        with pytest.raises(interlock.UsageError, match="same list") as caught:
            await two.lock("x", ttl=5).try_acquire()
        for node in five:
            assert str(caught.value).count(f"{node.port}") == (2 if node in five[:3] else 1), "both lists"
        assert lease.state == "held"
        await lease.release()

    run_body(body, urls(five), colour)


@pytest.mark.parametrize("slow", [0.1, 0.3, 0.6])
def test_lists_of_three_and_five_that_are_the_first_at_once(five: list[Node], slow: float) -> None:
    """Whoever wins, the other has no lock: nodes that are slow to one of them change nothing."""
    with FaultProxy(five[0].port) as one, FaultProxy(five[1].port) as two:
        for proxy in (one, two):
            proxy.delay(slow)
        longer = interlock.Client([one.url, two.url, *urls(five[2:])], request_timeout=2)
        shorter = interlock.Client(urls(five[:3]), request_timeout=2)
        got: list[Any] = []

        def ask(client: interlock.Client) -> None:
            for _ in range(4):
                with suppress(interlock.InterlockError):
                    got.append(client.lock("x", ttl=30, renew=False).try_acquire())

        with longer, shorter:
            threads = [threading.Thread(target=ask, args=(client,)) for client in (longer, shorter)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(lease is not None for lease in got) <= 1, "two have it"


def test_rolls_of_an_older_interlock_are_not_taken_for_a_new_cluster(three: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        for node in three[:2]:
            node.command("HSET", "interlock:roll", "longest", "2000", "high", "4096", "seed", "0")
        three[0].command("SET", "x", "somebody", "PX", "2000")
        three[1].command("SET", "x", "somebody", "PX", "2000")
        client = kit.client(request_timeout=0.5)
        while three[0].command("EXISTS", "x"):
            assert await attempt(client, "x", 2) is None
        assert await vote(client, three[2], within=15) >= 0

    run_body(body, urls(three), colour)


def test_a_client_by_other_addresses_lets_a_node_in_that_came_back_empty(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        one = kit.client(store=urls(five[:3]), request_timeout=0.5)
        other = kit.client(store=[url.replace("127.0.0.1", "localhost") for url in urls(five[:3])], request_timeout=0.5)
        await vote(one, five[2], within=5)
        for _ in range(3):
            await vote(other, five[2], within=5)
            await kit.sleep(0.5)  # it looks at nodes that it did not hear at first about once a second
        five[0].kill()
        five[0].restart(empty=True)
        await vote(other, five[0], within=20)

    run_body(body, urls(five), colour)


def test_a_node_in_the_place_of_another_is_refused(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        one, two = kit.client(store=urls(five[:3])), kit.client(store=[*urls(five[:2]), five[3].url])
        lease = await one.lock("x", ttl=5).acquire(timeout=5)
        with pytest.raises(interlock.UsageError, match=f"{five[3].port} is none of them"):
            for _ in range(100):  # by the second question at the latest: two nodes are a quorum, and may answer first
                assert await two.lock("x").try_acquire() is None
                await kit.sleep(0.05)
        await lease.release()

    run_body(body, urls(five), colour)


def test_the_same_nodes_by_other_names_are_the_same_list(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        other = [url.replace("127.0.0.1", "localhost") for url in urls(five)]
        one, two = kit.client(), kit.client(store=other)
        async with one.lock("x", ttl=5):
            assert await two.lock("x").try_acquire() is None
        async with two.lock("x", ttl=5):
            assert await one.lock("x").try_acquire() is None

    run_body(body, urls(five), colour)


def test_a_quorum_needs_to_know_which_server_it_talks_to(servers: Any, colour: str) -> None:
    """Row 19: without INFO nobody could tell one server from another, nor one life of it from the next."""
    nodes = servers(3, users=["alice on >secret allkeys allchannels +@all -info"])

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match=r"INFO|info"):
            await kit.client().lock("x").try_acquire()
        assert holders(nodes, "x") == []

    run_body(body, [f"redis://alice:secret@127.0.0.1:{node.port}" for node in nodes], colour)


def test_what_a_node_says_of_its_list_does_not_steer_a_terminal(three: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.5)
        await vote(client, three[0], within=5)
        for node in three:
            node.command("HSET", "interlock:roll", "nodes", "\x1b[31mred\nb\nc\nd", "list", "another")
        with pytest.raises(interlock.UsageError) as caught:
            await kit.client(request_timeout=0.5).lock("x").try_acquire()
        assert "\\x1b[31mred, b, c, d" in str(caught.value)
        assert "\x1b" not in str(caught.value)

    run_body(body, urls(three), colour)
