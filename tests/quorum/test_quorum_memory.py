"""Ways to a second holder that the formal model found (spec/README.md), on real nodes; and most of a cluster that forgets."""

from __future__ import annotations

import hashlib
import time
from math import inf
from typing import Any, cast

import pytest

import interlock
from interlock.backends.quorum import QuorumBackend
from interlock.backends.registry import open_backend
from interlock.core.claim import Claim, Granted, Place, Refused
from interlock.core.lease import deadline
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import FaultProxy, Node
from interlock.testing.conformance import met
from interlock.testing.faces import Kit, run_body

from .conftest import holders, members_of, urls


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


@pytest.mark.parametrize("ttl", [8.0, 30.0])  # leases of more than ten seconds are noted one by one
def test_what_somebody_in_line_would_be_served_with_counts_as_held(three: list[Node], ttl: float) -> None:
    """A node serves the waiter and forgets it. Another one serves it later, and the waiter, who slept, hears both at once."""
    holder, waiter, other = (cast(QuorumBackend, open_backend(urls(three), BlockingRuntime())) for _ in range(3))
    for backend in (holder, waiter, other):
        taken(backend, "warm", 1.0)
    run(waiter.open_inbox(5.0))
    while not all(ear.open for ear in waiter.inboxes.subscriptions):
        run(waiter.hear(now() + 0.05))
    granted = run(holder.claim(Claim("x", token("holder"), 3.0), 0.25))
    assert isinstance(granted, Granted)
    assert isinstance(run(waiter.claim(Claim("x", token("waiter"), ttl, Place(1, "", ttl)), 0.25)), Refused)
    run(holder.nodes[0].member.release("x", token("holder"), 0.25, granted.fence + 1))
    three[0].flush()
    node = other.nodes[0]
    while node.quarantine is None or node.quarantine.until == inf:
        taken(other, "probe", 0.5)
    until = node.quarantine.until
    run(holder.nodes[1].member.release("x", token("holder"), 0.25, granted.fence + 1))
    (grant,) = run(waiter.hear(now() + 1.0))
    assert grant.ttl == ttl, "it has the lock, by the word of nodes 0 and 1"
    assert until >= deadline(grant.at, grant.ttl), "two would have it: nobody is left on node 2 by then"
    for backend in (holder, waiter, other):
        run(backend.close())


def test_a_line_counts_for_no_longer_than_those_who_stand_in_it(three: list[Node]) -> None:
    """Who has left does not count, nor does anybody once nobody can be served."""
    holder, waiter = (cast(QuorumBackend, open_backend(urls(three), BlockingRuntime())) for _ in range(2))

    def held() -> list[int]:
        return [round(run(member.roll(1.0)).held) for member in members_of(holder)]

    run(waiter.open_inbox(5.0))
    while not all(ear.open for ear in waiter.inboxes.subscriptions):
        run(waiter.hear(now() + 0.05))
    assert isinstance(run(holder.claim(Claim("x", token("holder"), 5.0), 1.0)), Granted)
    for ttl in (1000.0, 30.0):
        claim = Claim("x", token(f"{ttl}"), ttl, Place(1, "", ttl))
        assert isinstance(run(waiter.claim(claim, 1.0)), Refused)
    assert held() == [1000] * 3
    run(waiter.release("x", token("1000.0"), 1.0))
    assert held() == [30] * 3
    for member in members_of(holder):
        standing = run(member.roll(1.0))
        assert standing.roll is not None
        assert run(member.enroll(standing.roll._replace(closed=True), standing.loss, 1.0))
    assert all(seconds <= 5 for seconds in held())
    for backend in (holder, waiter):
        run(backend.close())


def taken(backend: QuorumBackend, name: str, ttl: float) -> None:
    """Take it and give it back."""
    run(backend.claim(Claim(name, token(name), ttl), 0.25))
    run(backend.release(name, token(name), 0.25))
    time.sleep(0.02)


def token(who: str) -> str:
    return f"{hashlib.md5(who.encode(), usedforsecurity=False).hexdigest()}~host:1"
