"""Ways to a second holder that the formal model found (spec/README.md), on real nodes; and most of a cluster that forgets."""

from __future__ import annotations

import time
from typing import Any

import pytest

import interlock
from interlock.testing import FaultProxy, Node
from interlock.testing.conformance import met
from interlock.testing.faces import Kit, run_body

from .conftest import holders, urls


@pytest.fixture
def three(five: list[Node]) -> list[Node]:
    return five[:3]


async def attempt(client: Any, name: str, ttl: float) -> Any:
    """A fixed lease, or None; what the nodes are unable to say counts as no."""
    try:
        return await client.lock(name, ttl=ttl, renew=False).try_acquire()
    except interlock.NoQuorum:
        return None


async def warm(client: Any, ttl: float) -> None:
    await met(client)
    lease = await attempt(client, "warm", ttl)
    assert lease is not None
    await lease.release()


def test_nobody_undoes_the_vote_of_a_living_lease(three: list[Node], colour: str) -> None:
    """`undo-of-the-living`: a vote was counted without the answer of a node, which renewals count on later."""

    async def body(kit: Kit) -> None:
        with FaultProxy(three[1].port) as second, FaultProxy(three[2].port) as third:
            mine = kit.client(store=[three[0].url, second.url, third.url], request_timeout=0.5)
            other = kit.client(request_timeout=0.5)
            for client in (mine, other):
                await warm(client, 4)
            third.drop_replies(1)
            lease = await mine.lock("x", ttl=4, renew=True).try_acquire()
            await kit.sleep(0.2)
            assert holders(three, "x") == [0, 1, 2]
            second.blackhole()
            until = time.monotonic() + 8  # more than the five seconds after which an unanswered request was given up
            while time.monotonic() < until:
                assert await attempt(other, "x", 4) is None or lease.lost, "two have it"
                await kit.sleep(0.05)
            assert lease.state == "held"
            await lease.release()

    run_body(body, urls(three), colour)


def test_what_is_left_of_a_lost_lease_keeps_others_out_until_its_holder_knows(five: list[Node], colour: str) -> None:
    """Found by chaos on real nodes: a lease on three of five, of which one forgets. The renewal found it gone, and gave back
    what was left on the other two before anybody was told."""
    told: list[list[int]] = []

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=1)
        await warm(client, 3)
        for node in five[3:]:
            node.kill()
        lease = await client.lock("x", ttl=3, renew=True, on_lost=lambda _: told.append(holders(five, "x"))).try_acquire()
        assert holders(five[:3], "x") == [0, 1, 2]
        five[2].kill()
        five[2].restart(empty=True)
        for node in five[3:]:
            node.restart()
        deadline = time.monotonic() + lease.remaining()
        await lease.wait_lost(timeout=5)
        until = time.monotonic() + 1
        while not told and time.monotonic() < until:
            await kit.sleep(0.01)
        assert lease.reason in ("forced", "taken")
        assert told == [[0, 1]]
        await kit.sleep(max(deadline - time.monotonic(), 0) + 0.5)
        assert holders(five, "x") == [], "given back when it would have been over: the renewal had made it longer"

    run_body(body, urls(five), colour)


def test_silence_is_not_taken_for_a_loss(three: list[Node], colour: str) -> None:
    """`silence-is-loss`: a client that reaches only the node that forgot must not let it back in."""

    async def body(kit: Kit) -> None:
        mine, other = kit.client(request_timeout=0.5), kit.client(request_timeout=0.5)
        await met(mine)
        await warm(other, 1)
        lease = await mine.lock("x", ttl=30, renew=False).acquire(timeout=5)
        await kit.sleep(0.05)
        three[2].command("DEL", "x")  # as if its vote had been lost
        three[0].flush()
        assert await attempt(other, "x", 1) is None
        await kit.sleep(1.2)
        for node in three[1:]:
            node.pause()
        try:
            for _ in range(3):
                assert await attempt(other, "x", 1) is None
                await kit.sleep(0.3)
        finally:
            for node in three[1:]:
                node.resume()
        assert not three[0].command("EXISTS", "interlock:roll"), "it was let in"
        await kit.sleep(1.5)
        for _ in range(3):
            assert await attempt(other, "x", 1) is None
            await kit.sleep(0.3)
        assert not lease.lost

    run_body(body, urls(three), colour)


def test_a_wait_counts_for_one_loss_only(three: list[Node], colour: str) -> None:
    """`old-wait`: the node was let in by another client, voted, and forgot again."""

    async def body(kit: Kit) -> None:
        mine, other = kit.client(request_timeout=0.5), kit.client(request_timeout=0.5)
        for client in (mine, other):
            await warm(client, 3)
        three[0].flush()
        for _ in range(10):
            for client in (mine, other):
                await warm(client, 3)
        await kit.sleep(3.3)
        until = time.monotonic() + 20
        while not three[0].command("EXISTS", "interlock:roll"):
            assert time.monotonic() < until
            await warm(mine, 3)
            await kit.sleep(0.1)
        lease = await mine.lock("x", ttl=3, renew=False).acquire(timeout=5)
        await kit.sleep(0.1)
        three[2].command("DEL", "x")
        assert three[0].command("EXISTS", "x")
        three[0].flush()
        second = await attempt(other, "x", 3)
        assert second is None or lease.lost, "two have it"

    run_body(body, urls(three), colour)


@pytest.mark.parametrize(
    "losses", [[(0.1, [0, 1])], [(0.5, [0]), (0.1, [1, 2])], [(0.1, [0, 1, 2])]], ids=["two", "in turn", "all"]
)
def test_a_cluster_that_lost_most_of_its_memory_finds_its_way_back(
    three: list[Node], colour: str, losses: list[tuple[float, list[int]]]
) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.5)
        lease = await attempt(client, "x", 1)
        assert lease is not None
        await lease.release()
        fence = lease.fence
        for pause, nodes in losses:
            for index in nodes:
                three[index].flush()
            until = time.monotonic() + pause
            while time.monotonic() < until:
                if (lease := await attempt(client, "x", 1)) is not None:
                    await lease.release()
                await kit.sleep(0.03)
        for who in (client, kit.client(request_timeout=0.5)):
            until = time.monotonic() + 20
            while (lease := await attempt(who, "x", 1)) is None:
                assert time.monotonic() < until, "nobody ever gets it"
                await kit.sleep(0.05)
            assert lease.fence > fence
            fence = lease.fence
            await lease.release()

    run_body(body, urls(three), colour)
