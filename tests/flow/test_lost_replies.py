"""A reply that never comes: dropped, cut, late. The caller gets the lock or a clear error, and no ghost stays behind.

The proxy lets the server act and swallows its answer. "No ghost" is looked up on the server itself, past the proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interlock import LeaseLost, Unavailable
from interlock.backends.redis.scripts import CLAIM, EXTEND, RELEASE
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body

REQUEST = 0.4  # seconds: the request timeout of these tests
FAULTS: dict[str, Callable[[FaultProxy, bytes], None]] = {
    "dropped": lambda proxy, what: proxy.drop_reply_to(what),
    "cut": lambda proxy, what: proxy.cut_reply_to(what),
    "reset": lambda proxy, what: proxy.cut_reply_to(what, reset=True),
}


@pytest.fixture(params=["valkey", "redis"])
def node(request: pytest.FixtureRequest) -> Node:
    return request.getfixturevalue(f"{request.param}_node")


@pytest.fixture
def proxy(node: Node) -> Iterator[FaultProxy]:
    with FaultProxy(node.port) as proxy:
        yield proxy


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


def keys(node: Node) -> set[bytes]:
    """What a client left, but for the fence counters, which expire by themselves."""
    left = set(node.command("KEYS", "*"))
    for key in left:
        assert node.command("PTTL", key) > 0, f"{key!r} would stay for ever"
    return {key for key in left if not key.endswith(b":fence")}


async def warm(kit: Kit) -> Any:
    """A client whose connection stands and whose scripts are loaded, so that the fault hits the verb and not the set-up."""
    client = kit.client(request_timeout=REQUEST)
    async with client.lock("warm") as lease:
        await lease.extend(5)
    return client


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["acquire", "try_acquire"])
def test_the_reply_to_a_claim_is_lost(node: Node, proxy: FaultProxy, colour: str, fault: str, verb: str) -> None:
    async def body(kit: Kit) -> None:
        client = await warm(kit)
        FAULTS[fault](proxy, CLAIM.sha.encode())
        before = len(proxy.commands)
        with pytest.raises(Unavailable) as caught:
            await getattr(client.lock("ghost", ttl=30), verb)()
        assert keys(node) == set(), "the undo took the lock out again"
        # what is cut off is followed by nothing: the undo goes down a new connection, which has not carried its text
        asked = [b"EVALSHA", b"EVALSHA" if fault == "dropped" else b"EVAL"]
        assert [what for what in proxy.commands[before:] if what.startswith(b"EVAL")] == asked, "one claim, no hidden retry"
        assert caught.value.cause == ("timeout" if fault == "dropped" else "closed")
        assert "Nothing is left behind" in str(caught.value)
        lease = await client.lock("ghost").try_acquire()
        assert lease is not None, "and it can be had at once"
        await lease.release()

    run_body(body, proxy.url, colour)


def test_the_first_claim_ever_is_lost(node: Node, proxy: FaultProxy, colour: str) -> None:
    """The server knows none of our scripts yet: the undo must not depend on one being loaded."""
    node.command("SCRIPT", "FLUSH")

    async def body(kit: Kit) -> None:
        proxy.drop_replies(1, to=b"redis.call('TIME')")  # the claim by text
        with pytest.raises(Unavailable):
            await kit.client(request_timeout=REQUEST).lock("ghost", ttl=30).acquire()

    run_body(body, proxy.url, colour)
    assert proxy.dropped == 1
    assert keys(node) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reply_to_a_release_is_lost(node: Node, proxy: FaultProxy, colour: str, fault: str) -> None:
    async def body(kit: Kit) -> None:
        client = await warm(kit)
        lease = await client.lock("ghost", ttl=30).acquire()
        FAULTS[fault](proxy, RELEASE.sha.encode())
        assert await lease.release() is True, "asked again, the store confirms that nothing is held"
        assert (lease.state, keys(node)) == ("released", set())
        async with client.lock("ghost", timeout=0):
            pass

    run_body(body, proxy.url, colour)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reply_to_an_extend_is_lost(node: Node, proxy: FaultProxy, colour: str, fault: str) -> None:
    async def body(kit: Kit) -> None:
        client = await warm(kit)
        lease = await client.lock("ghost", ttl=30).acquire()
        FAULTS[fault](proxy, EXTEND.sha.encode())
        with pytest.raises(Unavailable, match="is held for another"):
            await lease.extend(10)
        assert lease.state == "held"
        assert 8 < lease.remaining() < 10, "the earlier of the two ends is believed"
        await lease.extend(5)
        assert 4 < lease.remaining() < 5, "and it can be extended again"
        await lease.extend(20)
        if fault == "dropped":
            assert 18 < lease.remaining() < 20, "it went down the same connection: the lost one cannot come after it"
        else:
            assert 8 < lease.remaining() < 10, "no further than the one whose answer was lost: it may still arrive"
        assert await lease.release() is True
        assert keys(node) == set()

    run_body(body, proxy.url, colour)


def test_an_extend_that_is_late_cannot_outlive_the_release(node: Node, proxy: FaultProxy, colour: str) -> None:
    """Extend is on its way but held up; the release must come behind it, not overtake it."""

    async def body(kit: Kit) -> None:
        client = await warm(kit)
        lease = await client.lock("ghost", ttl=30).acquire()
        connections = proxy.connections
        proxy.blackhole("requests")
        with pytest.raises(Unavailable):
            await lease.extend(60)
        proxy.heal()
        assert await lease.release() is True
        assert proxy.connections == connections, "down the same connection"
        assert keys(node) == set()

    run_body(body, proxy.url, colour)


def test_a_claim_that_is_late_is_undone_behind_it(node: Node, proxy: FaultProxy, colour: str) -> None:
    """The whole connection is stuck; claim and undo arrive much later, in order, and nothing stays."""

    async def body(kit: Kit) -> None:
        client = await warm(kit)
        proxy.blackhole("requests")
        with pytest.raises(Unavailable, match="may stay locked for up to 30 s"):
            await client.lock("ghost", ttl=30).acquire()
        proxy.heal()
        proxy.wait_for(lambda p: p.live == 0)
        assert keys(node) == set()

    run_body(body, proxy.url, colour)


def test_a_frozen_server_wakes_to_claim_and_undo(fresh_node: Callable[..., Node], colour: str) -> None:
    node = fresh_node()

    async def body(kit: Kit) -> None:
        client = await warm(kit)
        node.pause()
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await client.lock("ghost", ttl=30).acquire(timeout=10)
        assert time.monotonic() - began < 10, "bounded by the request timeout, not by the wait for the holder"
        assert caught.value.cause == "timeout"
        node.resume()
        until = time.monotonic() + 5
        while node.command("EXISTS", "ghost") and time.monotonic() < until:
            time.sleep(0.01)
        assert keys(node) == set()
        async with client.lock("ghost", timeout=5):
            pass

    run_body(body, node.url, colour)


def test_a_late_reply_is_not_taken_for_another_ones(node: Node, proxy: FaultProxy, colour: str) -> None:
    """After a timeout the owed reply must not become the answer to the next request."""

    async def body(kit: Kit) -> None:
        client = await warm(kit)
        proxy.delay(REQUEST + 0.2)
        with pytest.raises(Unavailable):
            await client.lock("slow", ttl=30).acquire()
        proxy.heal()
        for n in range(20):
            async with client.lock(f"n:{n}") as lease:
                entry = await client.inspect(f"n:{n}")
                assert (entry.name, entry.fence) == (lease.name, lease.fence)
        assert keys(node) == set()

    run_body(body, proxy.url, colour)


def test_a_grant_slower_than_its_ttl_is_given_back(node: Node, proxy: FaultProxy, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = await warm(kit)
        proxy.delay(0.12)
        with pytest.raises(Unavailable):
            await client.lock("slow", ttl=0.1).acquire()
        proxy.heal()
        assert keys(node) == set()

    run_body(body, proxy.url, colour)


def test_a_connection_that_died_while_idle_is_replaced(node: Node, proxy: FaultProxy, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = await warm(kit)
        proxy.cut()
        await kit.sleep(0.05)
        async with client.lock("idle", timeout=1):
            pass

    run_body(body, proxy.url, colour)


def test_the_holder_loses_the_store_and_is_told_in_time(node: Node, proxy: FaultProxy, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = await warm(kit)
        lease = await client.lock("held", ttl=0.6).acquire()
        proxy.blackhole()
        with pytest.raises(Unavailable):
            await lease.extend(5)
        await kit.sleep(max(0.0, lease.remaining()))
        assert lease.lost
        with pytest.raises(LeaseLost):
            await lease.extend(5)
        assert await lease.release() is False, "quick, without asking a silent store"
        proxy.heal()

    run_body(body, proxy.url, colour)
