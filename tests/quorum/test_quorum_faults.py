"""A quorum with nodes that are frozen, dead, cut off, slow, or not what they should be."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis

import interlock
from interlock.backends import unanswered
from interlock.backends.quorum.poller import Collect, Poller
from interlock.backends.redis import packing
from interlock.backends.redis.connecting import CROWD
from interlock.backends.registry import open_backend
from interlock.core.claim import Claim, Granted, Place, Refused, Renewal
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import FaultProxy, Node, start_nodes, stop_nodes
from interlock.testing.conformance import backend_of, expect, let_go, met, take, token_of
from interlock.testing.faces import Kit, run_body

from ..flow.test_cancellation import WAYS, sweep
from ..flow.test_waiting import eventually
from .conftest import all_ears, holders, urls, well


@pytest.fixture
def proxies(five: list[Node]) -> Iterator[list[FaultProxy]]:
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(node.port)) for node in five]


def gone(nodes: list[Node], name: str, within: float = 3.0) -> bool:
    """Whether the lock is off all these nodes, now or very soon."""
    until = time.monotonic() + within
    while holders(nodes, name) and time.monotonic() < until:
        time.sleep(0.01)
    return not holders(nodes, name)


# --- slow nodes ---------------------------------------------------------------------------------------------------------


def test_slow_votes_agree_on_a_fence_from_the_second_on(proxies: list[FaultProxy], colour: str) -> None:
    """A proposal that is older than a node's clock is not taken. So what votes took is how far ahead the next one is."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        await met(client)
        async with client.lock("warm"):
            pass
        for index, proxy in enumerate(proxies):
            proxy.delay(0.1 + 0.05 * index, "requests")  # no two nodes read the same time
        requests = []
        for name in ("first", "second"):
            before = [len(proxy.commands) for proxy in proxies]
            async with client.lock(name, ttl=60):
                pass
            requests.append([len(proxy.commands) - known for proxy, known in zip(proxies, before, strict=True)])
        assert max(requests[0]) == 3, "the highest fence had to be written back"
        assert requests[1].count(2) >= 3
        assert max(requests[1]) == 2, "all who were asked took what was proposed"
        for proxy in proxies:
            proxy.heal()

    run_body(body, [proxy.url for proxy in proxies], colour)


@pytest.mark.parametrize("many", [1, 3, 5])
def test_who_is_far_away_keeps_its_place_in_a_fair_line(five: list[Node], proxies: list[FaultProxy], many: int) -> None:
    """What it asks takes long to arrive, so that others who came later are at the store first."""

    async def main() -> None:
        here = urls(five[:many]) if many > 1 else five[0].url
        there = [proxy.url for proxy in proxies[:many]] if many > 1 else proxies[0].url
        order: list[str] = []

        async def work(client: interlock.AsyncClient, who: str) -> None:
            async with client.lock("order", ttl=30, timeout=20, fair=True):
                order.append(who)

        holder, near, far = (
            interlock.AsyncClient(here),
            interlock.AsyncClient(here),
            interlock.AsyncClient(there, request_timeout=5),
        )
        async with holder, near, far:
            for client in (near, far):
                async with client.lock("warm"):
                    pass
            for proxy in proxies:
                proxy.delay(0.06, "requests")
            async with holder.lock("order", ttl=30):
                jobs = []
                for client, who in ((far, "first"), (near, "second"), (far, "third"), (near, "fourth")):
                    jobs.append(asyncio.create_task(work(client, who)))
                    await asyncio.sleep(0.02)
                async with asyncio.timeout(10):
                    while (await holder.inspect("order")).waiters < 2:
                        await asyncio.sleep(0.05)
            await asyncio.gather(*jobs)
            for proxy in proxies:
                proxy.heal()
        assert order == ["first", "second", "third", "fourth"]

    asyncio.run(main())


# --- fewer nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["from the first call on", "in the middle"])
@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_minority_that_is_gone_costs_nothing_but_its_votes(five: list[Node], colour: str, how: str, first: bool) -> None:
    def strike() -> None:
        five[1].kill() if how == "killed" else five[1].pause()
        five[3].kill()

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        if first:
            with interlock.Client(urls(five)) as earlier, earlier.lock("x"):  # a cluster that has been used before
                pass
            strike()
        else:
            async with client.lock("x"):
                pass
            await well(kit, client)
            strike()
        began = time.monotonic()
        for n in range(20):
            async with client.lock("x", timeout=3) as lease:
                await lease.extend(20)
                assert holders([five[0], five[2], five[4]], "x") == [0, 1, 2]
                assert (await client.lock("x").try_acquire()) is None, n
        assert time.monotonic() - began < 5, "not once was the silent node waited for"
        entry = await client.inspect("free") if how == "killed" else None
        if entry is not None:
            verdicts = [vote.verdict for vote in entry.votes]
            assert verdicts[3] in ("refused", "closed")

    run_body(body, urls(five), colour)
    five[1].restart() if how == "killed" else five[1].resume()
    assert gone([five[0], five[1], five[2], five[4]], "x"), "also on the one that woke up"


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("verb", ["claim", "claim as a waiter", "stand in line", "extend", "renew"])
def test_a_node_that_rests_is_asked_when_others_fail(five: list[Node], colour: str, verb: str, how: str) -> None:
    """It was slow a moment ago, so it is left alone; then two others die or keep silent. Three of five are there, and three
    are enough."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        backend: Any = backend_of(client)
        held, name, token = await take(client, "held", 30.0), "y" if verb == "stand in line" else "x", token_of(client)
        inbox = await all_ears(client)
        other = await take(client, "y", 20.0)
        place = Place(1, inbox, 3.0) if verb in ("stand in line", "claim as a waiter") else None
        five[1].kill() if how == "killed" else five[1].pause()
        five[3].pause()  # one more that rests, and does not answer: it is not waited for
        for _ in range(50):
            for node in backend.poller.nodes:
                node.health.answered()
            for index in (3, 4):
                backend.poller.nodes[index].health.failed(now() + 10, 1.0)
            if backend.poller.ready() == [0, 1, 2]:  # else one of them was slow a moment ago
                break
            await kit.sleep(0.1)
        began = time.monotonic()
        if verb == "extend":
            assert isinstance(await backend.extend("held", held.token, 30.0, 5.0, held.fence), Granted)
        elif verb == "renew":
            expect(await backend.renew([held], 5.0), held)
        else:
            answer = await backend.claim(Claim(name, token, 20.0, place), 5.0)
            assert isinstance(answer, Refused if verb == "stand in line" else Granted)
        assert time.monotonic() - began < 2, "of the five seconds that it might take"
        if verb == "stand in line":
            asked = (five[0], five[2], five[4])[: 3 if how == "killed" else 2]  # no more were needed to know that it waits
            await eventually(kit, lambda: all(node.command("ZCARD", "interlock:{y}:line") == 1 for node in asked))
            assert await backend.undo("y", token, 5.0)
            assert time.monotonic() - began < 4, "nor to leave the line again"
        else:
            await let_go(client, Renewal(name, token, 1.0, 0))
        await let_go(client, held, other)
        assert gone([five[0], five[2], five[4]], name), "also on the one that was asked last"
        for node in (five[1], five[3])[0 if how == "frozen" else 1 :]:
            node.resume()  # or closing would wait for their answers

    run_body(body, urls(five), colour)


def test_a_waiter_hears_the_others_out_when_a_node_fails_at_once(
    five: list[Node], proxies: list[FaultProxy], colour: str
) -> None:
    """With one of three dead and two that rest it could not be won, so it was given up before the living had answered."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        backend: Any = backend_of(client)
        await let_go(client, await take(client, "warm"))
        place = Place(1, await all_ears(client), 3.0)
        five[1].kill()
        for proxy in proxies:
            proxy.delay(0.1)
        for index in (3, 4):
            backend.poller.nodes[index].health.failed(now() + 10, 1.0)
        for index in (0, 1, 2):
            backend.poller.nodes[index].health.answered()
        token = token_of(client)
        assert isinstance(await backend.claim(Claim("x", token, 20.0, place), 5.0), Granted)
        await let_go(client, Renewal("x", token, 1.0, 0))

    run_body(body, [proxies[0].url, five[1].url, *(proxy.url for proxy in proxies[2:])], colour)


def test_a_new_cluster_waits_for_the_nodes_that_it_needs(five: list[Node], proxies: list[FaultProxy], colour: str) -> None:
    """The first use needs all three nodes. One of them is slow: that is no reason to say that it is missing."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        proxies[1].delay(0.4)
        async with client.lock("x", ttl=60, timeout=0):
            pass

    for node in five[:3]:
        node.flush()
    run_body(body, [proxy.url for proxy in proxies[:3]], colour)


def test_a_new_cluster_does_not_wait_long_for_a_node_that_it_can_do_without(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        five[1].pause()
        began = time.monotonic()
        async with client.lock("x", ttl=60, timeout=0):
            assert time.monotonic() - began < 3
        five[1].resume()

    run_body(body, urls(five), colour)


async def two_rest(client: Any) -> tuple[Any, list[Any]]:
    """The backend of a client that knows its five nodes, and their members; the last two rest."""
    await let_go(client, await take(client, "warm"))
    backend: Any = backend_of(client)
    for index, node in enumerate(backend.poller.nodes):
        node.health.failed(now() + 10, 1.0) if index > 2 else node.health.answered()
    backend.poller.ready = lambda: [0, 1, 2]
    return backend, [node.member for node in backend.poller.nodes]


def test_a_vote_that_timed_out_is_kept_when_others_win_it(five: list[Node], colour: str) -> None:
    """The node may have granted it, and renewals may count on that: nobody must undo it while the lease lives."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        backend, members = await two_rest(client)

        async def late(*_: Any) -> Any:
            raise interlock.Unavailable("late", backend="", cause="timeout")

        members[2].vote = late
        token = token_of(client)
        assert isinstance(await backend.claim(Claim("x", token, 20.0), 5.0), Granted)
        is_live = members[2]._transport._ledger.is_live
        assert is_live(token)
        await let_go(client, Renewal("x", token, 1.0, 0))
        assert not is_live(token)

    run_body(body, urls(five), colour)


def test_nobody_is_asked_any_more_once_it_is_over(five: list[Node], colour: str) -> None:
    """The last of those asked gives up in the moment in which those that rest would be asked: it is the nodes that are missing,
    not somebody who has it."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        backend, members = await two_rest(client)

        granting = members[0].vote

        async def held_up(*args: Any) -> Any:
            answer = await granting(*args)
            time.sleep(0.1)  # so long that everybody is due when it goes on
            return answer

        async def late(*_: Any) -> Any:
            await client._context.runtime.sleep(0.03)
            raise interlock.Unavailable("late", backend="", cause="timeout")

        members[0].vote, members[1].vote, members[2].vote = held_up, late, late
        with pytest.raises(interlock.NoQuorum):
            await backend.claim(Claim("x", token_of(client), 20.0), 0.05)

    run_body(body, urls(five), colour)
    assert gone(five, "x")


def test_nodes_that_are_all_far_away_are_not_silent(five: list[Node], proxies: list[FaultProxy], colour: str) -> None:
    """One that rests is left in peace when the others take as long as they always do, and when it owes answers itself."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        _, members = await two_rest(client)
        for proxy in proxies:
            proxy.delay(0.06)
        members[4].lag = lambda: 1.0
        asked = []
        for _ in range(3):
            before = [len(proxy.commands) for proxy in proxies[3:]]
            await let_go(client, await take(client, "x"))
            asked.append([len(proxy.commands) - known for proxy, known in zip(proxies[3:], before, strict=True)])
        looked = 2  # `take` has a look at all nodes, and at their rolls
        assert asked[1:] == [[looked, looked], [looked, looked]], asked
        assert asked[0][1] == looked, "it owed answers"

    run_body(body, [proxy.url for proxy in proxies], colour)


def test_a_lease_that_a_resting_node_decides_is_extended_with_the_others(five: list[Node], colour: str) -> None:
    """Of two leases one has its quorum; the other is missing on one node, and its third copy is where nobody looked."""
    three = five[:3]

    async def body(kit: Kit) -> None:
        client = kit.client()
        backend: Any = backend_of(client)
        leases = [await take(client, "x", 20.0), await take(client, "y", 20.0)]
        await kit.sleep(0.1)
        three[1].command("DEL", "x")
        backend.poller.nodes[2].health.failed(now() + 10, 1.0)
        expect(await backend.renew(leases, 5.0), *leases)
        assert three[1].command("EXISTS", "x"), "and it is healed"
        await let_go(client, *leases)

    run_body(body, urls(three), colour)


def test_what_was_never_asked_of_a_node_need_not_be_taken_back_there(five: list[Node], colour: str) -> None:
    three = five[:3]

    async def body(kit: Kit) -> None:
        client, other = kit.client(renew=False), kit.client()
        backend: Any = backend_of(client)
        async with client.lock("warm"), other.lock("warm too"):
            pass
        backend.poller.nodes[1].health.failed(now() + 10, 1.0)
        lease = await client.lock("x", ttl=8).acquire()
        three[2].kill()
        await lease.release()
        assert await other.lock("x").try_acquire() is not None, "it was right: others can have it"

    run_body(body, urls(three), colour)


def test_connecting_to_a_frozen_node_keeps_no_other_waiting(colour: str) -> None:
    """Two of five stop in the middle of a handshake (there is a password): renewal goes on in time."""
    nodes = start_nodes(5, password="secret")

    async def body(kit: Kit) -> None:
        client = kit.client(renew=True)
        await met(client)
        lease = await client.lock("x", ttl=2).acquire()
        for node in nodes[:2]:
            node.pause()
        assert not await lease.wait_lost(4), "a second for each of them is more than it has"
        assert lease.state == "held"
        async with client.lock("y", timeout=0.5):
            pass
        await lease.release()

    try:
        run_body(body, urls(nodes), colour)
    finally:
        stop_nodes(nodes)


def test_few_threads_wait_for_a_node_that_does_not_say_hello(fresh_node: Callable[..., Node]) -> None:
    node = fresh_node(password="secret")
    member: Any = open_backend(node.url, BlockingRuntime())
    member.elect([node.url], lambda token: False)
    node.pause()
    began, errors = time.monotonic(), []

    def ask() -> None:
        try:
            run(member.roll(3.0))
        except interlock.Unavailable as error:
            errors.append((time.monotonic() - began, error.cause))

    threads = [threading.Thread(target=ask) for _ in range(60)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, sum(thread.name == "interlock-connecting" for thread in threading.enumerate()))
        time.sleep(0.01)
    node.resume()
    run(member.close())
    assert most == CROWD + 1
    assert {cause for _, cause in errors} == {"timeout"}
    assert len([took for took, _ in errors if took < 2.5]) > 10, "the others are told at once"


def test_a_frozen_node_that_is_to_be_let_back_in_is_not_waited_for_by_every_claim(five: list[Node], colour: str) -> None:
    three = five[:3]

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=1, request_timeout=0.8)
        async with client.lock("x"):
            pass
        three[2].flush()
        async with client.lock("x"):
            pass
        three[2].pause()
        await kit.sleep(1.3)  # its quarantine is served
        began = time.monotonic()
        for _ in range(8):
            async with client.lock("x"):
                pass
        assert time.monotonic() - began < 4

    run_body(body, urls(three), colour)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_without_a_quorum_it_says_so_in_time_and_leaves_nothing(five: list[Node], colour: str, how: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.4)
        async with client.lock("x"):
            pass
        for node in five[:3]:
            node.kill() if how == "killed" else node.pause()
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(interlock.NoQuorum) as caught:
                await client.lock("x", ttl=30).acquire(timeout=20)
            assert time.monotonic() - began < 5
            error = caught.value
            assert len(error.votes) == 5
            verdicts = [vote.verdict for vote in error.votes[3:]]  # one that was slow for a moment is not asked at first
            assert "granted" in verdicts
            assert set(verdicts) <= {"granted", "resting", "silent"}
            silence = {"timeout", "resting", "silent"} if how == "frozen" else {"refused", "closed", "resting"}
            assert {vote.verdict for vote in error.votes[:3]} <= silence
            assert "3 of 5 nodes must answer" in str(error)
            assert all(node.url in str(error) for node in five)
            assert len(str(error).splitlines()) < 20, "readable in one screen"
            assert gone(five[3:], "x"), "nothing is left on the two that live"
        with pytest.raises(interlock.NoQuorum):
            await client.inspect("x")
        for node in five[:3]:
            node.restart() if how == "killed" else node.resume()
        if how == "frozen":
            assert gone(five, "x"), "nor on those that were frozen, once they wake"
            async with client.lock("x", timeout=10):
                pass

    run_body(body, urls(five), colour)


def test_a_lost_quorum_while_holding_is_told(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.2)
        lease = await client.lock("x", ttl=1.0).acquire()
        for node in five[:3]:
            node.pause()
        with pytest.raises(interlock.NoQuorum, match="is held for another"):
            await lease.extend(30)
        assert lease.state == "held"
        await kit.sleep(lease.remaining())
        assert lease.lost
        with pytest.raises(interlock.LeaseLost):
            await lease.extend(30)

    run_body(body, urls(five), colour)
    for node in five[:3]:
        node.resume()


def test_a_release_without_a_quorum_can_be_repeated(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.2)
        await met(client)
        lease = await client.lock("x", ttl=60).acquire()
        for node in five[:3]:
            node.pause()
        with pytest.raises(interlock.NoQuorum):
            await lease.release()
        for node in five[:3]:
            node.resume()
        await kit.sleep(0.1)
        await lease.release()
        assert gone(five, "x")

    run_body(body, urls(five), colour)


def test_a_split_vote_does_not_wait_for_a_frozen_node(five: list[Node], colour: str) -> None:
    """Two grants, one refusal, one dead, one silent: whoever kept the two would keep everybody else out as well."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        await met(client)
        async with client.lock("x"):
            pass
        await well(kit, client)
        five[2].kill()
        five[3].pause()
        five[4].command("SET", "x", "somebody", "PX", "30000")
        began = time.monotonic()
        assert await client.lock("x").try_acquire() is None
        assert time.monotonic() - began < 2.5, "not the request timeout"
        assert gone(five[:2], "x")
        five[3].resume()

    run_body(body, urls(five), colour)


# --- replies that are lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["dropped", "cut", "black hole"])
def test_lost_replies_on_a_minority_leave_no_ghost(
    five: list[Node], proxies: list[FaultProxy], colour: str, fault: str
) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.3)
        async with client.lock("x"):
            pass
        for proxy in proxies[:2]:
            if fault == "dropped":
                proxy.drop_replies()
            elif fault == "cut":
                proxy.cut_on_reply(1, to=b"x")
            else:
                proxy.blackhole()
        for _ in range(5):
            async with client.lock("x", timeout=3) as lease:
                lease.check()
        for proxy in proxies:
            proxy.heal()
        async with client.lock("x", timeout=3):
            pass

    run_body(body, [proxy.url for proxy in proxies], colour)
    assert gone(five, "x")


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_at_every_await(five: list[Node], way: str) -> None:
    async def main() -> None:
        async with interlock.AsyncClient(urls(five)) as client:
            await client.lock("warm", renew=False).try_acquire()
            leases: list[Any] = []

            async def work() -> None:
                leases.append(await client.lock("sweep", ttl=30).acquire(timeout=5))

            async def after() -> None:
                for lease in leases:
                    await lease.release()
                leases.clear()
                assert await asyncio.to_thread(gone, five, "sweep")

            assert await sweep(client, work, way, after) >= 1
            lease: Any = None

            async def release() -> None:
                await lease.release()

            async def again() -> None:
                nonlocal lease
                assert await asyncio.to_thread(gone, five, "sweep")
                lease = await client.lock("sweep", ttl=30).acquire(timeout=1)

            await again()
            assert await sweep(client, release, way, again) >= 1
            await lease.release()

    asyncio.run(main())


def test_no_socket_piles_up_on_a_frozen_node(five: list[Node]) -> None:
    """A hundred leases held and given back while a node is silent: a handful of connections to it, not hundreds."""
    with interlock.Client(urls(five)) as client:
        with client.lock("warm"):
            pass
        five[2].pause()
        leases = [client.lock(f"n:{n}", ttl=30).acquire(timeout=3) for n in range(100)]
        for lease in leases:
            assert lease.release()
        transport: Any = client._context.backend.nodes[2].member._transport  # type: ignore[attr-defined]
        stuck = len(transport._pending)
        assert stuck < 60
        five[2].resume()
        with client.lock("x", timeout=3):
            pass
    assert gone(five, "n:0")


def test_many_unanswered_releases_leave_nothing_on_record(
    five: list[Node], colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node falls silent while leases are held, and stays so while they are given back. Nothing is asked for their tokens any
    more, so nothing may be remembered of them: not that a release had no answer, not that they may stand in line."""
    monkeypatch.setattr(unanswered, "OVERDUE", 0.4)
    three = five[:3]

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30, request_timeout=0.3)
        await met(client)
        backend: Any = backend_of(client)
        member: Any = backend.nodes[2].member
        box = await member.open_inbox(5.0)
        leases = [await take(client, f"n:{n}") for n in range(60)]
        for lease in leases:  # as if the node had never said that it was granted there
            member._places.stands(lease.token, packing.place_of(lease.token, Place(1, box, 3.0)))
            member._places.told[lease.token] = now(), 0
        three[2].pause()
        try:
            for lease in leases:  # the node may rest for the others: all are sent
                with suppress(interlock.Unavailable):
                    await member.release(lease.name, lease.token, 0.002)
            for lease in leases:
                await let_go(client, lease)
            ledger = member._transport._ledger
            assert ledger.records
            assert member._places
        finally:
            three[2].resume()

        def forgotten() -> bool:
            member.lag()
            return not ledger.records and not member._places and not member._places.told

        until = now() + 20
        while not forgotten() and now() < until:
            await kit.sleep(0.1)
            await member.inspect("x", 5.0)
        assert forgotten()
        assert all(ticket.state.name == "GONE" for ticket in backend.tickets._gone.values())
        assert not backend.tickets._tickets

    run_body(body, urls(three), colour)


def test_a_release_reaches_nodes_that_must_be_reached_anew(five: list[Node], proxies: list[FaultProxy], colour: str) -> None:
    """The connections to two nodes broke meanwhile, and the handshake of new ones takes longer than the others' answers."""
    look = "redis.call('SELECT', '1') return redis.call('EXISTS', KEYS[1])"

    def held() -> int:
        return sum(node.command("EVAL", look, "1", "x") for node in five)

    async def body(kit: Kit) -> None:
        client = kit.client()
        await met(client)
        async with client.lock("x"):
            pass
        await well(kit, client)
        lease = await client.lock("x", ttl=60).acquire()
        await kit.sleep(0.05)
        assert held() == 5
        for proxy in proxies[:2]:
            proxy.cut()
            proxy.delay(0.1, "requests")
        await kit.sleep(0.05)
        assert await lease.release() is True

    run_body(body, [f"{proxy.url}/1" for proxy in proxies], colour)
    until = time.monotonic() + 3
    while held() and time.monotonic() < until:
        time.sleep(0.01)
    assert held() == 0


# --- extending heals ----------------------------------------------------------------------------------------------------


def test_extend_heals_nodes_that_lost_the_lease(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await met(client)
        lease = await client.lock("x", ttl=30).acquire()
        for node in five[:2]:
            node.command("DEL", "x", "interlock:{x}:fence")
        for _ in range(200):  # the two may answer after the decision, and are healed the next time
            await lease.extend(30)
            await kit.sleep(0.02)
            if len(holders(five, "x")) == 5:
                break
        assert holders(five, "x") == [0, 1, 2, 3, 4]
        for node in five:
            assert node.command("GET", "x") == lease.token.encode()
            assert int(node.command("GET", "interlock:{x}:fence")) >= lease.fence, "its fence with it"
        assert await lease.release()
        assert gone(five, "x")

    run_body(body, urls(five), colour)


def test_extend_does_not_bring_back_what_a_quorum_lost(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await met(client)
        lease = await client.lock("x", ttl=30).acquire()
        await kit.sleep(0.05)
        for node in five[:3]:
            node.command("SET", "x", "somebody else", "PX", "60000")
        with pytest.raises(interlock.LeaseLost) as caught:
            await lease.extend(30)
        assert caught.value.reason == "taken"
        assert gone(five[3:], "x"), "and the rest is given back, once that is said"

    run_body(body, urls(five), colour)


# --- refusals that help -------------------------------------------------------------------------------------------------


def test_a_timeout_shows_who_voted_what(five: list[Node], colour: str) -> None:
    five[4].kill()

    async def body(kit: Kit) -> None:
        client, other = kit.client(), kit.client()
        async with other.lock("x", ttl=30):
            with pytest.raises(interlock.AcquireTimeout) as caught:
                await client.lock("x").acquire(timeout=0.2)
        assert len(caught.value.votes) == 5
        held = [vote for vote in caught.value.votes if vote.verdict == "held"]
        assert len(held) >= 2
        assert all("until" in vote.detail for vote in held)
        assert all(vote.latency is not None for vote in held)
        assert five[0].url in str(caught.value)

    run_body(body, urls(five), colour)


def test_status_shows_the_nodes(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await met(client)
        async with client.lock("x", ttl=30) as lease:
            for _ in range(100):  # a quorum was enough for the grant: the other votes may still be on their way
                entry = await client.inspect("x")
                if all(vote.verdict == "held" for vote in entry.votes):
                    break
                await kit.sleep(0.02)
            assert (entry.held, entry.fence) == (True, lease.fence)
            assert [vote.verdict for vote in entry.votes] == ["held"] * 5

    run_body(body, urls(five), colour)


def test_status_and_the_log_say_which_node_waits_and_for_how_long(
    five: list[Node], colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await met(client)
        async with client.lock("x", ttl=30):
            await kit.sleep(0.05)
            five[3].restart(empty=True)
            stranger = await kit.client().inspect("x")  # as `interlock status` does: a client that has just come
            assert stranger.held
            assert stranger.votes[3].verdict == "quarantined"
            assert "waited 30." in stranger.votes[3].detail
            for _ in range(20):  # until its vote has been heard: it may be late
                await client.lock("y", ttl=5).try_acquire()
                if len(caplog.records) == 2:
                    break
                await kit.sleep(0.1)
            first, second = caplog.records
            assert (first.event, first.node) == ("quarantined", five[3].url)  # type: ignore[attr-defined]
            assert (second.event, second.node) == ("waits", five[3].url)  # type: ignore[attr-defined]
            assert re.search(r"no vote for another (28|29|30)\.\d s", second.getMessage())
            vote = (await client.inspect("x")).votes[3]
            assert vote.verdict == "quarantined"
            assert re.search(r"votes again in (28|29|30)\.", vote.detail)

    with caplog.at_level(logging.INFO, "interlock"):
        run_body(body, urls(five), colour)


def test_a_twin_that_was_late_is_found_later(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        with pytest.raises(interlock.UsageError, match="same server"):
            for _ in range(100):
                async with client.lock("x", timeout=5):
                    pass
                await kit.sleep(0.05)

    twin = five[4].url.replace("127.0.0.1", "localhost")
    run_body(body, [five[0].url, five[1].url, five[2].url, five[4].url, twin], colour)


def test_the_same_server_twice_is_refused(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.UsageError, match="same server"):
            await kit.client().lock("x").acquire(timeout=1)

    run_body(body, [five[0].url, five[0].url.replace("127.0.0.1", "localhost"), five[0].unix_url], colour)
    assert holders(five, "x") == []


def test_a_replica_is_refused(five: list[Node], fresh_node: Callable[..., Node], colour: str) -> None:
    replica = fresh_node(config=[f"replicaof 127.0.0.1 {five[0].port}"])

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.UsageError, match="replica"):
            for _ in range(3):  # it may be late at the first
                async with kit.client().lock("x", timeout=1):
                    pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an even number, so that every node is heard
        run_body(body, [replica.url, five[1].url], colour)


def test_an_evicting_node_is_complained_about_once(fresh_node: Callable[..., Node], five: list[Node]) -> None:
    evicting = fresh_node(config=["maxmemory 100mb", "maxmemory-policy allkeys-lru"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with interlock.Client([evicting.url, five[0].url]) as client:
            for _ in range(3):
                with client.lock("x"):
                    pass
    assert len([w for w in caught if "allkeys-lru" in str(w.message)]) == 1


# --- with other Redlocks ------------------------------------------------------------------------------------------------


class PlainRedlock:
    """The algorithm as published, in a few lines over redis-py: SET NX PX on each node, a majority, compare and delete."""

    DELETE = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

    def __init__(self, nodes: list[Node], name: str) -> None:
        self.clients = [redis.Redis(port=node.port) for node in nodes]
        self.name, self.value = name, f"plain-{id(self)}"

    def acquire(self, ttl_ms: int) -> bool:
        votes = sum(bool(client.set(self.name, self.value, nx=True, px=ttl_ms)) for client in self.clients)
        if votes >= len(self.clients) // 2 + 1:
            return True
        self.release()
        return False

    def release(self) -> int:
        return sum(client.eval(self.DELETE, 1, self.name, self.value) for client in self.clients)

    def close(self) -> None:
        for client in self.clients:
            client.close()


def test_another_redlock_and_ours_exclude_each_other(five: list[Node], colour: str) -> None:
    theirs = PlainRedlock(five, "shared")

    async def body(kit: Kit) -> None:
        client = kit.client()
        await met(client)
        async with client.lock("shared", ttl=20) as lease:
            assert theirs.acquire(20_000) is False
            assert theirs.release() == 0, "and it cannot release ours"
            lease.check()
            assert holders(five, "shared") == [0, 1, 2, 3, 4]
        assert gone(five, "shared")
        assert theirs.acquire(20_000) is True
        assert await client.lock("shared").try_acquire() is None
        with pytest.raises(interlock.AcquireTimeout):
            await client.lock("shared").acquire(timeout=0.1)
        assert theirs.release() == 5, "every vote of theirs is untouched"
        async with client.lock("shared", timeout=1):
            pass

    run_body(body, urls(five), colour)
    theirs.close()


# --- the first of all clients -------------------------------------------------------------------------------------------


def test_a_new_cluster_starts_at_once(five: list[Node], colour: str, caplog: pytest.LogCaptureFixture) -> None:
    """Several clients at once on nodes that have never seen one: nobody is suspected."""

    async def body(kit: Kit) -> None:
        clients = [kit.client() for _ in range(6)]

        async def use(client: Any, n: int) -> None:
            async with client.lock(f"n:{n}", ttl=60, timeout=5):
                pass

        began = time.monotonic()
        await kit.together(*(use(client, n) for n, client in enumerate(clients)))
        assert time.monotonic() - began < 5, "far less than the ttl"

    with caplog.at_level(logging.WARNING, "interlock"):
        run_body(body, urls(five), colour)
    assert caplog.records == []
    assert all(node.command("EXISTS", "interlock:roll") for node in five)


def test_a_new_cluster_waits_for_the_nodes_without_which_it_could_be_mistaken(five: list[Node], colour: str) -> None:
    async def too_few(kit: Kit) -> None:
        with pytest.raises(interlock.NoQuorum, match=r"this cluster is new.* 3 of 3 nodes must answer"):
            await kit.client(request_timeout=0.3).lock("x").acquire(timeout=1)

    async def enough(kit: Kit) -> None:
        async with kit.client().lock("x", timeout=5):
            pass

    five[2].kill()
    run_body(too_few, urls(five[:3]), colour)
    assert not any(node.command("EXISTS", "interlock:roll") for node in five[:2]), "nothing was begun"
    run_body(enough, urls(five), colour)  # four of five
    five[2].restart()
    for node in five:
        node.flush()
    run_body(enough, urls(five[:3]), colour)


# --- settings that cannot work ------------------------------------------------------------------------------------------


def test_a_ttl_that_is_no_longer_than_the_nodes_time_to_answer_is_refused(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=2)
        for ttl in (1, 2):
            with pytest.raises(interlock.UsageError, match="no longer than the request_timeout of 2 s"):
                client.lock("x", ttl=ttl)
        async with client.lock("x", ttl=2.5, timeout=5):
            pass
        with pytest.raises(interlock.UsageError, match="no longer than the request_timeout"):
            kit.client(request_timeout=2, ttl=2)
        async with kit.client().lock("x", ttl=0.9, timeout=5):  # not given: it adapts to the ttl
            pass

    run_body(body, urls(five), colour)
    assert gone(five, "x")


def test_the_drift_allowance_can_be_set_and_shortens_what_is_believed(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        async with kit.client(drift=0.3).lock("x", ttl=10, timeout=5) as lease:
            assert 6 < lease.remaining() < 7
            await lease.extend(20)
            assert 13 < lease.remaining() < 14
        for wrong in (-0.1, 0.5, float("nan"), True, "0.01"):
            with pytest.raises(interlock.UsageError, match="drift"):
                kit.client(drift=wrong)
        with pytest.raises(interlock.UsageError, match="too short"):
            kit.client(drift=0.4).lock("x", ttl=0.015)  # more than half of it would be given up

    run_body(body, urls(five), colour)


def test_a_wrong_password_is_a_vote_that_says_so(five: list[Node], fresh_node: Callable[..., Node], colour: str) -> None:
    locked = [fresh_node(password="s3cret") for _ in range(3)]
    nodes = [*(node.url.replace("s3cret", "wrong") for node in locked), five[0].url, five[1].url]

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.NoQuorum) as caught:
            await kit.client().lock("x").acquire(timeout=2)
        assert [vote.verdict for vote in caught.value.votes[:3]] == ["auth"] * 3
        assert "s3cret" not in str(caught.value)
        assert "wrong" not in str(caught.value)

    run_body(body, nodes, colour)
    assert holders(five, "x") == []


def test_who_looks_whether_enough_have_answered_stops_with_the_race() -> None:
    """Or it looks for ever, if one of them never will, and nobody can close the client."""

    async def main() -> None:
        runtime = AsyncioRuntime()
        members = [open_backend(f"memory://{number}", runtime) for number in range(3)]
        poller = Poller(members, runtime, "three")

        async def ask(index: int, member: Any) -> bool:
            await asyncio.sleep(0.2 if index == 2 else 0.05)
            return True

        answered: list[int] = []

        def count(index: int, outcome: object) -> bool:
            answered.append(index)
            return len(answered) == 2

        question = Collect(ask, count)
        question.finish = question.looks = True
        await poller.poll(range(3), question)
        async with asyncio.timeout(5):
            await runtime.settle()
        assert len(answered) == 2

    asyncio.run(main())
