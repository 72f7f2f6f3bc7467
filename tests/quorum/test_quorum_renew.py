"""Renewing many leases at once on a quorum: nodes dead, frozen, deaf or empty, leases that differ, and what is mended."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import interlock
from interlock.backends.quorum import QuorumBackend, extension
from interlock.core.claim import Gone, Granted, Renewal
from interlock.testing import FaultProxy, Node
from interlock.testing.conformance import backend_of, expect, let_go, take
from interlock.testing.faces import Kit, run_body

from .conftest import holders, urls, well
from .test_quorum_faults import gone


@pytest.fixture
def proxies(five: list[Node]) -> Iterator[list[FaultProxy]]:
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(node.port)) for node in five]


def quorum_of(client: Any) -> QuorumBackend:
    backend = backend_of(client)
    assert isinstance(backend, QuorumBackend)
    return backend


async def take_all(client: Any, count: int, ttl: float = 20.0) -> list[Renewal]:
    return [await take(client, f"n:{n}", ttl) for n in range(count)]


async def settled(kit: Kit, client: Any, nodes: Sequence[Node], leases: Sequence[Renewal]) -> QuorumBackend:
    """Once every node has every lease. One that was slow for a moment was left out, and is healed."""
    backend = quorum_of(client)
    for _ in range(50):
        expect(await backend.renew(leases, 5.0), *leases)
        if all(held_by(node, leases) == len(leases) for node in nodes):
            return backend
        await kit.sleep(0.1)
    raise AssertionError("a node was never healed")


def held_by(node: Node, leases: Sequence[Renewal]) -> int:
    """How many of the leases are on the node."""
    return node.command("EXISTS", *(lease.name for lease in leases)) if node.running else 0


def soon(happened: Callable[[], bool], within: float = 3.0) -> bool:
    until = time.monotonic() + within
    while not happened() and time.monotonic() < until:
        time.sleep(0.01)
    return happened()


# --- fewer nodes --------------------------------------------------------------------------------------------------------


def test_every_node_gets_one_request_for_the_whole_batch(five: list[Node], proxies: list[FaultProxy], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        leases = await take_all(client, 40)
        backend = await settled(kit, client, five, leases)
        for _ in range(10):  # a node that was slow for a moment is left out of one
            await kit.sleep(0.1)
            sent = [len(proxy.commands) for proxy in proxies]
            expect(await backend.renew(leases, 5.0), *leases)
            await kit.sleep(0.05)
            commands = [proxy.commands[before:] for proxy, before in zip(proxies, sent, strict=True)]
            assert all(len(each) <= 1 for each in commands)
            if all(commands):
                break
        assert all(command in ([b"EVALSHA"], [b"EVAL"]) for command in commands), "by text on a new connection"
        assert all(node.command("PTTL", lease.name) > 50_000 for node in five for lease in leases)
        await let_go(client, *leases)

    run_body(body, [proxy.url for proxy in proxies], colour)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_minority_that_is_gone_costs_nothing_but_its_votes(five: list[Node], colour: str, how: str) -> None:
    living = [five[0], five[2], five[4]]

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        leases = await take_all(client, 30)
        await well(kit, client)
        five[3].kill()
        five[1].kill() if how == "killed" else five[1].pause()
        began = time.monotonic()
        for _ in range(20):
            expect(await backend_of(client).renew(leases, 5.0), *leases)
        assert time.monotonic() - began < 5, "not once was the silent node waited for"
        assert all(node.command("PTTL", lease.name) > 50_000 for node in living for lease in leases)
        if how == "frozen":
            five[1].resume()
            for _ in range(40):  # it is asked again once it has rested
                expect(await backend_of(client).renew(leases, 5.0), *leases)
                if all(five[1].command("PTTL", lease.name) > 59_000 for lease in leases):
                    break
                await kit.sleep(0.1)
            assert all(five[1].command("PTTL", lease.name) > 50_000 for lease in leases)
        await let_go(client, *leases)

    run_body(body, urls(five), colour)
    assert gone(living, "n:0")


def test_a_frozen_node_rests_and_its_connections_are_not_worn_out(five: list[Node], colour: str) -> None:
    def connections() -> int:
        return int(five[2].info("stats")["total_connections_received"])

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        leases = await take_all(client, 5)
        await backend_of(client).renew(leases, 5.0)
        before = connections()
        five[2].pause()
        for _ in range(30):
            expect(await backend_of(client).renew(leases, 5.0), *leases)
        ready = quorum_of(client).poller.ready
        assert any(2 not in ready() for _ in range(3)), "it is left alone, but for a question now and then"
        five[2].resume()
        assert connections() - before < 10
        await let_go(client, *leases)

    run_body(body, urls(five), colour)


def test_a_node_that_does_not_read_keeps_no_other_from_being_asked(five: list[Node], colour: str) -> None:
    """More than a socket takes at once: the first node's part must not be waited for before the others get theirs."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=5)
        leases = [(await take(client, f"{n:05}" * 100, ttl=30.0)) for n in range(300)]
        await settled(kit, client, five, leases)  # none that only this one and two others have
        await well(kit, client)
        batch = leases * 20  # six megabytes: far more than the system buffers for a frozen node
        five[0].pause()
        began = time.monotonic()
        expect(await backend_of(client).renew(batch, 30.0), *batch)
        assert time.monotonic() - began < 20
        five[0].resume()
        await let_go(client, *leases)

    run_body(body, urls(five), colour)


def test_a_node_that_must_be_reached_anew_is_renewed_as_well(five: list[Node], proxies: list[FaultProxy], colour: str) -> None:
    """The handshake of a new connection takes longer than anybody waits for. It must not be broken off each time."""
    look = "redis.call('SELECT', '1') return redis.call('PTTL', KEYS[1])"

    def left() -> int:
        return five[4].command("EVAL", look, "1", "n:0")

    async def body(kit: Kit) -> None:
        client = kit.client()
        (lease,) = await take_all(client, 1)
        shorter = lease._replace(ttl=20.0)
        while left() < 0:
            expect(await backend_of(client).renew([shorter], 5.0), shorter)
            await kit.sleep(0.1)
        proxies[4].cut()
        proxies[4].delay(0.1, "requests")
        await kit.sleep(0.05)
        expect(await backend_of(client).renew([lease], 5.0), lease)
        for _ in range(50):
            if left() <= 20_000:
                await kit.sleep(0.05)
        assert left() > 50_000

    run_body(body, [f"{proxy.url}/1" for proxy in proxies], colour)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_without_a_quorum_it_says_so_in_time(five: list[Node], colour: str, how: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.4)
        leases = await take_all(client, 10)
        await well(kit, client)
        for node in five[:3]:
            node.kill() if how == "killed" else node.pause()
        for batch, said in ((leases, "no quorum to extend 10 leases"), (leases[:1], "no quorum to extend 'n:0'")):
            began = time.monotonic()
            with pytest.raises(interlock.NoQuorum, match=said) as caught:
                await backend_of(client).renew(batch, 0.4)
            assert time.monotonic() - began < 3
            verdicts = [vote.verdict for vote in caught.value.votes]
            assert verdicts[3:] == ["answered", "answered"]
            assert set(verdicts[:3]) <= ({"timeout", "resting"} if how == "frozen" else {"refused", "closed", "resting"})
        if how == "frozen":
            for node in five[:3]:
                node.resume()
            for _ in range(30):
                try:
                    expect(await backend_of(client).renew(leases, 0.4), *leases)
                except interlock.NoQuorum:
                    await kit.sleep(0.1)
                else:
                    break
            expect(await backend_of(client).renew(leases, 0.4), *leases)

    run_body(body, urls(five), colour)


# --- leases that differ -------------------------------------------------------------------------------------------------


def test_each_lease_of_a_batch_has_an_outcome_of_its_own(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=1)
        everywhere, taken, lost, patchy, doubtful = leases = await take_all(client, 5)
        backend = await settled(kit, client, five, leases)
        backend.poller.ready = backend.poller.able  # type: ignore[method-assign]  # whatever the machine is busy with
        five[4].kill()
        for node in five[:3]:
            node.command("SET", taken.name, "somebody", "PX", "60000")
            node.command("DEL", lost.name)
        five[0].command("DEL", patchy.name)
        for node in five[:2]:
            node.command("SET", doubtful.name, "somebody", "PX", "60000")
        batch = [everywhere, taken, doubtful, lost, patchy]
        answers = list(await backend.renew(batch, 1.0))
        assert answers[2] is None, "two hold it, two do not, one is dead: nobody knows"
        assert answers[1] == Gone(taken=True, left=True)
        assert answers[3] == Gone(taken=False, left=True)
        expect([*answers[:2], *answers[3:]], everywhere, Gone(taken=True), Gone(taken=False), patchy)
        assert five[0].command("GET", patchy.name) == patchy.token.encode(), "healed"
        assert five[3].command("EXISTS", taken.name, lost.name) == 2, "their holders do not know yet: it keeps others out"
        assert [node.command("GET", doubtful.name) == doubtful.token.encode() for node in five[:4]] == [
            False,
            False,
            True,
            True,
        ]
        assert all(node.command("PTTL", everywhere.name) > 50_000 for node in five[:4])

    run_body(body, urls(five), colour)


def test_silence_is_not_the_loss_of_a_lease(five: list[Node], colour: str) -> None:
    """Two nodes have lost it and one is silent: a quorum may still hold it, and with that one awake it does."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=1)
        first, second = leases = await take_all(client, 2)
        await settled(kit, client, five, leases)
        for node in five[:2]:
            node.command("DEL", first.name)
        five[2].pause()
        answers = list(await backend_of(client).renew([first, second], 0.3))
        assert answers[0] is None
        expect(answers[1:], second)
        five[2].resume()
        for _ in range(20):
            answers = list(await backend_of(client).renew([first, second], 1.0))
            if answers[0] is not None:
                break
            await kit.sleep(0.1)
        expect(answers, first, second)
        assert holders(five, first.name) == [0, 1, 2, 3, 4], "and is healed where it was lost"

    run_body(body, urls(five), colour)


def test_a_healed_node_is_released_as_well(five: list[Node], proxies: list[FaultProxy], colour: str) -> None:
    """It was not even asked when the lease was granted."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("warm", timeout=5):
            pass
        proxies[4].refuse()
        proxies[4].cut()
        backend = quorum_of(client)
        while 4 in backend.poller.ready():
            async with client.lock("warm", timeout=5):
                pass
        leases = await take_all(client, 5)
        assert held_by(five[4], leases) == 0
        proxies[4].heal()
        for _ in range(40):
            expect(await backend.renew(leases, 5.0), *leases)
            if held_by(five[4], leases) == 5:
                break
            await kit.sleep(0.1)
        assert held_by(five[4], leases) == 5
        for lease in leases:
            assert int(five[4].command("GET", f"interlock:{{{lease.name}}}:fence")) >= lease.fence, "its fence with it"
        await let_go(client, *leases)
        assert soon(lambda: held_by(five[4], leases) == 0)

    run_body(body, [proxy.url for proxy in proxies], colour)


def test_a_healed_node_learns_a_fence_that_is_far_ahead_of_its_clock(five: list[Node], colour: str) -> None:
    """Further than a vote may lead it. Without it, the node could help to grant a lower one."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        (lease,) = await take_all(client, 1)
        ahead = lease._replace(fence=lease.fence + (3_600_000 << 12))
        await settled(kit, client, five, [ahead])
        five[4].command("DEL", lease.name, f"interlock:{{{lease.name}}}:fence")
        await settled(kit, client, five, [ahead])
        assert int(five[4].command("GET", f"interlock:{{{lease.name}}}:fence")) >= ahead.fence

    run_body(body, urls(five), colour)


def test_a_lease_that_is_released_meanwhile_is_not_put_back(five: list[Node], colour: str) -> None:
    """A node that is rid of it already answers as one that lost it. Healing it would leave a ghost for a whole ttl."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        stays, goes = leases = await take_all(client, 2)
        backend = await settled(kit, client, five, leases)
        backend.poller.ready = backend.poller.able  # type: ignore[method-assign]
        last: Any = backend.nodes[4].member
        renew = last.renew

        async def released_first(leases: Sequence[Renewal], within: float) -> Any:
            if goes in leases:
                await backend.release(goes.name, goes.token, 1.0)
                assert soon(lambda: not five[4].command("EXISTS", goes.name))
            return await renew(leases, within)

        last.renew = released_first  # when the others have theirs on the way
        await backend.renew([stays, goes], 5.0)
        assert gone(five, goes.name)
        assert holders(five, stays.name) == [0, 1, 2, 3, 4]

    run_body(body, urls(five), colour)


def test_a_renewal_that_starts_after_the_release_puts_nothing_back(five: list[Node], colour: str) -> None:
    """The release has reached one node; before it gets to the others, a renewal finds a quorum and one that looks healable."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        (lease,) = leases = await take_all(client, 1)
        backend = await settled(kit, client, five, leases)
        backend.poller.ready = backend.poller.able  # type: ignore[method-assign]
        members: list[Any] = [node.member for node in backend.nodes]
        reached = await members[4].release(lease.name, lease.token, 1.0)
        renewed: list[Any] = []

        def overtaken(release: Callable[..., Any]) -> Callable[..., Any]:
            async def late(*args: Any) -> bool:
                if not renewed:
                    renewed.append(None)
                    renewed[:] = await backend.renew([lease], 1.0)
                for _ in range(100):
                    if renewed == [None]:
                        await kit.sleep(0.01)
                return await release(*args)

            return late

        async def done_before(*args: Any) -> bool:
            return reached

        for member in members[:4]:
            member.release = overtaken(member.release)
        members[4].release = done_before
        assert await backend.release(lease.name, lease.token, 1.0)
        expect(renewed, lease)

    run_body(body, urls(five), colour)
    assert gone(five, "n:0")


def test_a_release_that_comes_while_it_is_healed_wins(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        (lease,) = leases = await take_all(client, 1)
        backend = await settled(kit, client, five, leases)
        backend.poller.ready = backend.poller.able  # type: ignore[method-assign]
        five[4].command("DEL", lease.name)
        last: Any = backend.nodes[4].member
        vote = last.vote

        async def overtaken(*args: Any) -> Any:
            await backend.release(lease.name, lease.token, 1.0)
            return await vote(*args)

        last.vote = overtaken
        await backend.renew([lease], 5.0)
        assert holders(five, lease.name) == []

    run_body(body, urls(five), colour)


# --- a node that comes back empty ---------------------------------------------------------------------------------------


def test_an_empty_node_is_healed_after_its_quarantine_a_part_at_a_time(
    five: list[Node], colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a client that does nothing but renew: it notices, waits, lets the node back in and gives it the leases again."""
    monkeypatch.setattr(extension, "MENDED_AT_ONCE", 8)

    async def body(kit: Kit) -> None:
        client = kit.client()
        leases = [lease._replace(ttl=1.5) for lease in await take_all(client, 20, ttl=1.5)]
        backend = quorum_of(client)
        five[4].kill()
        five[4].restart(empty=True)
        restarted = time.monotonic()
        seen = [0]
        while seen[-1] < 20 and time.monotonic() - restarted < 30:
            with suppress(interlock.NoQuorum):  # slow nodes rest on a busy machine, and one has just hung up
                expect(await backend.renew(leases, 1.0), *leases)
            seen.append(held_by(five[4], leases))
            if seen[-1] and not seen[-2]:
                assert time.monotonic() - restarted > 1.5, "not before the longest lease was over"
            await kit.sleep(0.05)
        assert seen[-1] == 20
        assert max(now - before for before, now in itertools.pairwise(seen)) <= 8, "a part at a time"
        assert five[4].command("EXISTS", "interlock:roll") == 1
        await let_go(client, *leases)
        assert soon(lambda: held_by(five[4], leases) == 0)

    run_body(body, urls(five), colour)


def test_no_lease_comes_back_that_a_majority_forgot(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        leases = await take_all(client, 10)
        backend = await settled(kit, client, five, leases)
        backend.poller.ready = backend.poller.able  # type: ignore[method-assign]
        for node in five[:3]:
            node.command("FLUSHALL")
        assert await backend.renew(leases, 1.0) == [Gone(taken=False, left=True)] * 10
        assert [held_by(node, leases) for node in five] == [0, 0, 0, 10, 10], "neither healed nor given back"

    run_body(body, urls(five), colour)


def test_renewed_leases_do_not_keep_the_record_of_others_for_ever(five: list[Node]) -> None:
    """Who was asked for leases that were left to expire is forgotten, though an older lease lives on."""
    with interlock.Client(urls(five), renew=False) as client:
        backend: Any = client._context.backend
        from interlock.runtime.blocking import run

        old = client.lock("old", ttl=30).acquire()
        lease = Renewal("old", old.token, 30.0, old.fence)
        for n in range(20):
            client.lock(f"left:{n}", ttl=0.5, timeout=0).acquire()
        run(backend.renew([lease], 1.0))
        time.sleep(1.1)
        answers = run(backend.renew([lease], 1.0))
        assert isinstance(answers[0], Granted)
        assert list(backend.tickets._tickets) == [old.token]
        assert old.release()


def test_a_vote_that_heals_is_of_a_token_that_lives_until_it_is_released(
    five: list[Node], colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing undoes the vote if it has no answer (`port.Member.elect`)."""
    lived: list[bool] = []

    async def body(kit: Kit) -> None:
        client = kit.client()
        (lease,) = await take_all(client, 1)
        backend = await settled(kit, client, five, [lease])
        member: Any = backend.nodes[2].member
        vote, is_live = member.vote, member._transport._ledger.is_live

        def asked(*args: Any) -> Any:
            lived.append(is_live(lease.token))
            return vote(*args)

        monkeypatch.setattr(member, "vote", asked)
        five[2].command("DEL", lease.name)
        await settled(kit, client, five, [lease])
        assert lived[0]
        await let_go(client, lease)
        assert not is_live(lease.token)

    run_body(body, urls(five), colour)
