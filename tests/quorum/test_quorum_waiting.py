"""Waiting for a quorum: told by the nodes together, whatever some of them do, and nothing is left in any line."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

import interlock
from interlock.backends import unanswered
from interlock.backends.quorum import QuorumBackend
from interlock.backends.quorum.ticket import Ticket
from interlock.backends.registry import open_backend
from interlock.core.claim import Announced, Claim, Granted, Place, Refused
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import Node
from interlock.testing.conformance import backend_of, met
from interlock.testing.faces import Kit, run_body

from ..flow.test_waiting import eventually, finish, start, waiting
from .conftest import all_ears, holders, members_of, none_under_way, urls

PATIENCE = 60.0


def line(node: Node, name: str = "x") -> int:
    return int(node.command("ZCARD", f"interlock:{{{name}}}:line"))


def nothing_left(nodes: list[Node], name: str = "x", within: float = 5.0) -> bool:
    """Whether nobody holds it and nobody waits for it on any of these nodes, now or very soon."""
    until = time.monotonic() + within
    while (busy := holders(nodes, name) or any(line(node, name) for node in nodes)) and time.monotonic() < until:
        time.sleep(0.01)
    return not busy


class Asked:
    """Counts what a client asks of its nodes, all of them together."""

    def __init__(self, client: Any) -> None:
        self.verbs: Counter[str] = Counter()
        for node in client._context.backend.nodes:
            for verb in ("vote", "release", "hand_over", "retreat", "extend"):
                self._count(node.member, verb)

    def _count(self, member: Any, verb: str) -> None:
        real = getattr(member, verb)

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.verbs[verb] += 1
            return await real(*args, **kwargs)

        setattr(member, verb, counted)


class Inside:
    """Those who hold the lock: never two, and their fences grow."""

    def __init__(self) -> None:
        self.now: list[Any] = []
        self.fences: list[int] = []
        self.order: list[Any] = []

    async def work(self, kit: Kit, client: Any, who: Any, hold: float = 0.001, **options: Any) -> None:
        async with client.lock("x", **{"ttl": 20, "timeout": PATIENCE, **options}) as lease:
            self.now.append(who)
            assert self.now == [who], "two holders"
            self.fences.append(lease.fence)
            self.order.append(who)
            await kit.sleep(hold)
            self.now.remove(who)

    def check(self, served: int) -> None:
        assert len(self.order) == served
        assert self.fences == sorted(set(self.fences))


async def all_in_line(kit: Kit, nodes: list[Node], many: int) -> None:
    await eventually(kit, lambda: all(line(node) == many for node in nodes))


def test_the_next_wins_by_announcements_alone(five: list[Node], colour: str) -> None:
    """One request to each node from whoever releases, none from whoever is next."""

    async def body(kit: Kit) -> None:
        holder, clients, inside = kit.client(renew=True), [kit.client(renew=True) for _ in range(3)], Inside()
        asked = [Asked(client) for client in (holder, *clients)]
        lease = await holder.lock("x", ttl=20).acquire()
        jobs = []
        for number, client in enumerate(clients):
            jobs.append(start(kit, inside.work(kit, client, number, hold=0.1)))
            await all_in_line(kit, five, number + 1)
        await kit.sleep(0.1)
        for each in asked:
            each.verbs.clear()
        await lease.release()
        for job in jobs:
            await finish(job)
        inside.check(3)
        assert inside.order == [0, 1, 2]
        for each in asked:
            assert each.verbs == {"release": 5}
        assert nothing_left(five)

    run_body(body, urls(five), colour)


def test_many_waiters_in_several_clients_are_all_served(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, clients, inside = kit.client(renew=True), [kit.client(renew=True) for _ in range(4)], Inside()
        lease = await holder.lock("x", ttl=20).acquire()
        jobs = [start(kit, inside.work(kit, client, (n, m))) for n, client in enumerate(clients) for m in range(15)]
        await eventually(kit, lambda: all(waiting(client, "x") == 15 for client in clients))
        await lease.release()
        for job in jobs:
            await finish(job)
        inside.check(60)
        assert nothing_left(five)
        for client in clients:
            assert not client._context.queue._queues
            assert none_under_way(client._context.backend)

    run_body(body, urls(five), colour)


def test_all_begin_at_once_on_a_free_lock(five: list[Node], colour: str) -> None:
    """Votes are split at first. Whoever came first gets it, and nobody waits for an expiry."""

    async def body(kit: Kit) -> None:
        clients, inside = [kit.client(renew=True) for _ in range(6)], Inside()
        for client in clients:  # so that they are connected
            async with client.lock("warm"):
                pass
        began = time.monotonic()
        jobs = [start(kit, inside.work(kit, client, number, ttl=120)) for number, client in enumerate(clients)]
        for job in jobs:
            await finish(job)
        inside.check(6)
        assert time.monotonic() - began < PATIENCE
        assert nothing_left(five)

    run_body(body, urls(five), colour)


def test_heads_that_disagree_on_every_node(five: list[Node], colour: str) -> None:
    """Each node's line begins with another waiter, so a release gives each of them one node."""

    async def body(kit: Kit) -> None:
        holder, clients, inside = kit.client(renew=True), [kit.client(renew=True) for _ in range(5)], Inside()
        lease = await holder.lock("x", ttl=300).acquire()
        jobs = []
        for number, client in enumerate(clients):
            jobs.append(start(kit, inside.work(kit, client, number, ttl=300)))
            await all_in_line(kit, five, number + 1)
        await kit.sleep(0.1)
        entries = five[0].command("ZRANGE", "interlock:{x}:line", "0", "-1")
        tokens = [entry.split(b" ")[0] for entry in entries]
        for shift, node in enumerate(five):
            for entry in node.command("ZRANGE", "interlock:{x}:line", "0", "-1"):
                place = (tokens.index(entry.split(b" ")[0]) + shift) % 5
                node.command("ZADD", "interlock:{x}:line", str(place + 1), entry)
        began = time.monotonic()
        await lease.release()
        for job in jobs:
            await finish(job)
        inside.check(5)
        assert time.monotonic() - began < PATIENCE
        assert nothing_left(five)

    run_body(body, urls(five), colour)


def test_a_waiter_that_reached_only_some_nodes(five: list[Node], colour: str) -> None:
    """Its ticket was lost on a majority (nodes passed it over while its inbox was gone): it is served all the same."""

    async def body(kit: Kit) -> None:
        holder, one, two, inside = kit.client(renew=True), kit.client(renew=True), kit.client(renew=True), Inside()
        await met(holder, one, two)
        await all_ears(one, two)  # else it would stand in line again when it is heard by one more
        lease = await holder.lock("x", ttl=300).acquire()
        jobs = [start(kit, inside.work(kit, one, "one"))]
        await all_in_line(kit, five, 1)
        await kit.sleep(0.05)
        for node in five[:3]:
            node.command("DEL", "interlock:{x}:line")
        jobs.append(start(kit, inside.work(kit, two, "two")))
        await eventually(kit, lambda: [line(node) for node in five] == [1, 1, 1, 2, 2])
        await lease.release()
        for job in jobs:
            await finish(job)
        inside.check(2)
        assert nothing_left(five)

    run_body(body, urls(five), colour)


@pytest.mark.parametrize("broken", [1, 2, 5])
def test_inboxes_that_break_are_opened_again(five: list[Node], colour: str, broken: int) -> None:
    async def body(kit: Kit) -> None:
        holder, client, inside = kit.client(renew=True), kit.client(renew=True), Inside()
        for _ in range(3):
            lease = await holder.lock("x", ttl=60).acquire()
            job = start(kit, inside.work(kit, client, "one"))
            await all_in_line(kit, five, 1)
            for node in five[:broken]:
                assert int(node.command("CLIENT", "KILL", "TYPE", "pubsub")) >= 1
            if broken == 5:  # then everybody asks again, once they are open
                await eventually(kit, lambda: all(node.command("PUBSUB", "NUMPAT") is not None for node in five))
            began = time.monotonic()
            await lease.release()
            await finish(job)
            assert time.monotonic() - began < 20, "nobody waited for the end of the lease"
            await eventually(kit, lambda: all(node.command("PUBSUB", "CHANNELS") for node in five))
        inside.check(3)
        assert nothing_left(five)

    run_body(body, urls(five), colour)


@pytest.mark.parametrize("how", ["frozen", "killed", "emptied"])
def test_nodes_that_fail_while_somebody_waits(five: list[Node], colour: str, how: str) -> None:
    def strike(node: Node) -> None:
        if how == "frozen":
            node.pause()
        else:
            node.kill()
            if how == "emptied":
                node.restart()

    async def body(kit: Kit) -> None:
        holder, one, two = kit.client(renew=True), kit.client(renew=True), kit.client(renew=True)
        inside = Inside()
        lease = await holder.lock("x", ttl=30).acquire()
        jobs = []
        for number, client in enumerate((one, two)):
            jobs.append(start(kit, inside.work(kit, client, number, ttl=30)))
            await all_in_line(kit, five, number + 1)
        for node in five[:2]:
            strike(node)
        began = time.monotonic()
        await lease.release()
        for job in jobs:
            await finish(job)
        assert time.monotonic() - began < 20, "nobody waited for the end of the lease"
        inside.check(2)

    run_body(body, urls(five), colour)
    for node in five[:2]:
        node.resume() if how == "frozen" else how == "emptied" or node.restart()
    assert nothing_left(five), "also on those that came back"


def test_who_gives_up_leaves_every_line(five: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, client, other, inside = kit.client(renew=True), kit.client(renew=True), kit.client(renew=True), Inside()
        lease = await holder.lock("x", ttl=30).acquire()
        for _ in range(3):
            with pytest.raises(interlock.AcquireTimeout):
                await client.lock("x").acquire(timeout=0.05)
        assert [line(node) for node in five] == [0] * 5
        assert none_under_way(client._context.backend)
        job = start(kit, inside.work(kit, other, "other"))
        await all_in_line(kit, five, 1)
        await lease.release()
        await finish(job)
        inside.check(1)

    run_body(body, urls(five), colour)
    assert nothing_left(five)
    assert [node.command("PUBSUB", "CHANNELS") for node in five] == [[]] * 5


def test_cancelled_at_the_moment_of_the_release(five: list[Node]) -> None:
    async def main() -> None:
        async with (
            interlock.AsyncClient(urls(five)) as holder,
            interlock.AsyncClient(urls(five)) as client,
            interlock.AsyncClient(urls(five)) as other,
        ):
            for round_ in range(15):
                lease = await holder.lock("x", ttl=20).acquire(timeout=PATIENCE)
                tasks = [asyncio.create_task(one.lock("x", ttl=20).acquire()) for one in (client, client, other)]
                await asyncio.sleep(0.02)
                release = asyncio.create_task(lease.release())
                await asyncio.sleep(0.0005 * (round_ % 5))
                for task in tasks:
                    task.cancel()
                for got in await asyncio.gather(*tasks, return_exceptions=True):
                    if not isinstance(got, BaseException):
                        await got.release()
                await release
                for one in (client, other):
                    assert not one._context.queue._queues
                    assert none_under_way(one._context.backend)
            async with holder.lock("x", ttl=20, timeout=PATIENCE):
                pass

    asyncio.run(main())
    assert nothing_left(five)


WORKER = """
import json, sys, interlock
client = interlock.Client(json.loads(sys.argv[1]))
print("ready", flush=True)
with client.lock("x", ttl=float(sys.argv[2]), timeout=60):
    print("holds", flush=True)
    sys.stdin.readline()
"""


def spawn(nodes: list[Node], ttl: float) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, json.dumps(urls(nodes)), str(ttl)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


@pytest.mark.parametrize("whom", ["waiter", "holder"])
def test_killed(five: list[Node], colour: str, whom: str) -> None:
    """A waiter that is dead is passed over at once; a holder that is dead is waited for until its lease ends."""

    async def body(kit: Kit) -> None:
        client, holder, inside = kit.client(renew=True), kit.client(renew=True), Inside()
        lease = None
        if whom == "waiter":
            lease = await holder.lock("x", ttl=60).acquire()
        worker = spawn(five, 60.0 if whom == "waiter" else 1.5)
        try:
            if whom == "waiter":
                await all_in_line(kit, five, 1)
            else:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "holds\n"
            job = start(kit, inside.work(kit, client, "one", ttl=60))
            await all_in_line(kit, five, 2 if whom == "waiter" else 1)
        finally:
            worker.kill()
            worker.communicate()
        began = time.monotonic()
        if lease is not None:
            await lease.release()
        await finish(job)
        assert time.monotonic() - began < 20
        inside.check(1)

    run_body(body, urls(five), colour)
    assert nothing_left(five)


def test_a_quorum_of_files(tmp_path: Path, colour: str) -> None:
    async def body(kit: Kit) -> None:
        holder, clients, inside = kit.client(renew=True), [kit.client(renew=True) for _ in range(3)], Inside()
        lease = await holder.lock("x", ttl=20).acquire()
        jobs = [start(kit, inside.work(kit, client, (n, m))) for n, client in enumerate(clients) for m in range(5)]
        await eventually(kit, lambda: all(waiting(client, "x") == 5 for client in clients))
        await lease.release()
        for job in jobs:
            await finish(job)
        inside.check(15)
        assert not (await holder.inspect("x")).held

    run_body(body, [f"sqlite://{tmp_path}/{n}.db" for n in range(3)], colour)


# --- what may be believed: three memories, step by step -----------------------------------------------------------------


def test_a_node_that_refuses_to_be_listened_to_does_not_end_the_listening(five: list[Node], colour: str) -> None:
    three = five[:3]

    async def body(kit: Kit) -> None:
        holder, client = kit.client(), kit.client()
        backend: Any = backend_of(client)
        took: list[float] = []

        async def get() -> None:
            async with client.lock("x", ttl=30):
                took.append(time.monotonic())

        async def one() -> None:
            lease = await holder.lock("x", ttl=30).acquire()
            job = start(kit, get())
            await eventually(kit, lambda: client._context.queue.in_line)
            await kit.sleep(0.1)
            took.append(time.monotonic())
            await lease.release()
            await finish(job)
            assert took[-1] - took[-2] < 5, "told, not found out when the lease would have ended"

        async def refuses(within: float) -> str:
            raise interlock.UsageError("there is no such database")

        await one()
        backend.nodes[2].member.open_inbox = refuses
        three[2].command("CLIENT", "KILL", "TYPE", "pubsub")
        await kit.sleep(0.3)
        await one()
        await one()

    run_body(body, urls(three), colour)


def test_what_was_handed_over_is_forgotten_also_for_a_node_that_died(
    five: list[Node], colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unanswered, "OVERDUE", 0.5)
    three = five[:3]

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=20)

        async def get() -> None:
            async with client.lock("x"):
                pass

        lease = await client.lock("x").acquire()
        jobs = [start(kit, get()) for _ in range(10)]
        await eventually(kit, lambda: waiting(client, "x") >= 10)
        three[2].kill()
        await lease.release()
        for job in jobs:
            await finish(job)
        member: Any = backend_of(client).nodes[2].member  # type: ignore[attr-defined]
        await kit.sleep(0.6)
        await get()
        await kit.sleep(0.6)  # what was given up is on record for as long again
        await get()
        await eventually(kit, lambda: member.lag() >= 0 and not member._places)
        assert not member._places.told
        member._transport._reap() if colour == "blocking" else member._transport._prune()
        assert not member._transport._ledger.records

    run_body(body, urls(three), colour)


def test_a_hand_over_that_most_nodes_call_a_mistake_leaves_no_heir_on_the_others(five: list[Node], colour: str) -> None:
    three = five[:3]

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=20)
        refused: list[Exception] = []

        async def get() -> None:
            try:
                await client.lock("x").acquire()
            except interlock.UsageError as error:
                refused.append(error)

        lease = await client.lock("x").acquire()
        job = start(kit, get())
        await eventually(kit, lambda: client._context.listener._inbox)
        for node in three[:2]:
            node.command("SET", "interlock:{x}:fence", "spoilt")
        await lease.release()
        await finish(job)
        assert "counter" in str(refused[0])
        await eventually(kit, lambda: holders(three, "x") == [])
        assert none_under_way(backend_of(client))

    run_body(body, urls(three), colour)


def test_a_line_that_a_node_without_its_roll_puts_back_ends_by_itself(five: list[Node], colour: str) -> None:
    three = five[:3]

    async def body(kit: Kit) -> None:
        holder, client = kit.client(), kit.client()

        async def get() -> None:
            async with client.lock("x", ttl=30):
                pass

        lease = await holder.lock("x", ttl=30).acquire()
        job = start(kit, get())
        await eventually(kit, lambda: all(line(node) for node in three))
        three[0].command("DEL", "interlock:roll")
        await holder._context.backend.nodes[0].member.release("x", lease.token, 5.0)
        assert three[0].command("PTTL", "interlock:{x}:line") > 0
        await lease.release()
        await finish(job)

    run_body(body, urls(three), colour)


class Desk:
    """A quorum of three memories, its clients, and what each of them is told. Everything happens in the order of the test."""

    def __init__(self) -> None:
        base = uuid.uuid4().hex
        self._urls = [f"memory://{base}-{n}" for n in range(3)]
        self.backends: list[QuorumBackend] = []

    def client(self) -> QuorumBackend:
        self.backends.append(cast(QuorumBackend, open_backend(self._urls, BlockingRuntime())))
        return self.backends[-1]

    def close(self) -> None:
        for backend in self.backends:
            run(backend.close())


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def token(letter: str) -> str:
    return f"{letter:0>32}~host:1"


def ticket(client: QuorumBackend, letter: str, arrival: int) -> Claim:
    return Claim("x", token(letter), 20.0, Place(arrival, run(client.open_inbox(5.0)), 3.0))


def ticket_of(client: QuorumBackend, claim: Claim) -> Ticket:
    found = client.tickets.get(claim.token)
    assert found is not None
    return found


def hear(client: QuorumBackend, seconds: float = 0.1) -> list[Announced]:
    return list(run(client.hear(now() + seconds)))


def test_a_minority_is_a_hint_and_a_quorum_is_a_grant(desk: Desk) -> None:
    holder, waiter = desk.client(), desk.client()
    granted = run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    claim = ticket(waiter, "w", 1)
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
    run(holder.nodes[0].member.release("x", token("h"), 5.0))
    assert hear(waiter) == [Announced("x", claim.token, 0, 0.0, -inf)], "after a moment"
    run(holder.nodes[1].member.release("x", token("h"), 5.0))
    run(holder.nodes[2].member.release("x", token("h"), 5.0))
    (announced,) = hear(waiter)
    assert (announced.token, announced.fence, announced.ttl) == (claim.token, granted.fence + 1, 3.0)
    assert run(waiter.release("x", claim.token, 5.0)) is True


def test_what_was_announced_before_it_was_given_back_does_not_count(desk: Desk) -> None:
    holder, waiter = desk.client(), desk.client()
    run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    claim = ticket(waiter, "w", 1)
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
    run(holder.nodes[0].member.release("x", token("h"), 5.0))  # announced, and not heard yet
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)  # the others are held, so it gives this one back
    assert run(holder.nodes[0].member.inspect("x", 5.0)).held is False
    run(holder.nodes[1].member.release("x", token("h"), 5.0))
    assert [one.ttl for one in hear(waiter)] == [0.0], "two have said so, one of them before"


def test_what_is_announced_while_it_asks_is_a_hint(desk: Desk) -> None:
    holder, waiter = desk.client(), desk.client()
    run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    claim = ticket(waiter, "w", 1)
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
    real = waiter._voting._agree
    heard: list[Any] = []

    async def agree(*args: Any) -> Any:
        heard.extend(await waiter.hear(now() + 0.1))  # as the hub does, in its own thread
        return await real(*args)

    waiter._voting._agree = agree  # type: ignore[method-assign]
    run(holder.release("x", token("h"), 5.0))
    assert isinstance(run(waiter.claim(claim, 5.0)), Granted)
    assert heard == []
    assert hear(waiter) == [], "it has the lock, and nobody need be told"


def test_a_node_that_owes_an_answer_does_not_count(desk: Desk) -> None:
    holder, waiter = desk.client(), desk.client()
    run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    claim = ticket(waiter, "w", 1)
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
    ticket_of(waiter, claim).sends([2], now())  # something was sent, and nothing came back
    run(holder.nodes[1].member.release("x", token("h"), 5.0))
    run(holder.nodes[2].member.release("x", token("h"), 5.0))
    assert [one.ttl for one in hear(waiter)] == [0.0]
    assert isinstance(run(waiter.claim(claim, 5.0)), Granted), "asked down the same path, it counts"


def test_a_token_with_a_node_that_does_not_count_any_more_is_spent(desk: Desk) -> None:
    """It holds the node, so nobody else can have it; and it cannot use it. Two such tokens would wait for each other."""
    holder, waiter = desk.client(), desk.client()
    run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    claim = ticket(waiter, "w", 1)
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
    for free in (1, 2):
        run(holder.nodes[free].member.release("x", token("h"), 5.0))
    ticket_of(waiter, claim).unanswered_since[2] = -inf  # an earlier request to it broke, and may still come
    refused = run(waiter.claim(claim, 5.0))
    assert isinstance(refused, Refused)
    assert refused.spent
    assert [run(member.inspect("x", 5.0)).held for member in members_of(holder)] == [True, False, False]
    assert isinstance(run(waiter.claim(claim._replace(token=token("n")), 5.0)), Granted), "with another it has both"


def test_a_token_that_too_many_nodes_owe_answers_is_spent(desk: Desk) -> None:
    holder, waiter = desk.client(), desk.client()
    run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    claim = ticket(waiter, "w", 1)
    assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
    ticket_of(waiter, claim).sends([0, 1], now() - 60)
    refused = run(waiter.claim(claim, 5.0))
    assert refused.spent
    assert none_under_way(waiter)
    run(holder.release("x", token("h"), 5.0))
    assert hear(waiter) == [], "it is out of line"
    assert run(waiter.inspect("x", 5.0)).held is False


def test_what_a_majority_lacks_is_left_to_it(desk: Desk) -> None:
    """The holder is on two of three nodes. Whoever waits does not keep the third from being healed, nor is served with it."""
    holder, one, two = desk.client(), desk.client(), desk.client()
    granted = run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
    run(holder.nodes[0].member.release("x", token("h"), 5.0))
    claims = [(client, ticket(client, letter, arrival)) for arrival, (client, letter) in enumerate([(two, "2"), (one, "1")])]
    for client, claim in claims:
        assert isinstance(run(client.claim(claim, 5.0)), Refused)
        assert run(holder.nodes[0].member.inspect("x", 5.0)).held is False
        assert hear(client, 0.05) == []
    assert isinstance(run(holder.extend("x", token("h"), 20.0, 5.0, granted.fence)), Granted)
    assert run(holder.nodes[0].member.inspect("x", 5.0)).held is True
    assert run(holder.release("x", token("h"), 5.0)) is True
    assert [one.token for one in hear(two)] == [token("2")]


def test_a_split_is_decided_by_the_tickets(desk: Desk) -> None:
    """Three have a node each. Whatever the order in which they ask, the earliest gets it."""
    for order in itertools.permutations(range(3)):
        holder, clients = desk.client(), [desk.client() for _ in range(3)]
        claims = [ticket(client, "abc"[n], 10 + n) for n, client in enumerate(clients)]
        run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
        for client, claim in zip(clients, claims, strict=True):
            assert isinstance(run(client.claim(claim, 5.0)), Refused)
        for n, client in enumerate(clients):  # behind their backs
            member = client.nodes[order[n]].member
            assert isinstance(
                run(member.hand_over("x", token("h"), client.inboxes.addressed(order[n], claims[n]), 0, 5.0)).heir, Granted
            )
        rounds, winner = 0, None
        while winner is None:
            rounds += 1
            assert rounds < 10
            for n in order:
                answer = run(clients[n].claim(claims[n], 5.0))
                if isinstance(answer, Granted):
                    winner = n
                    break
                assert answer.retry_after is not None
        assert winner == 0
        for n in range(3):
            run(clients[n].release("x", claims[n].token, 5.0))
        assert run(clients[0].inspect("x", 5.0)).held is False


def test_what_is_announced_to_somebody_who_has_left_is_passed_on_once(desk: Desk) -> None:
    holder, waiter = desk.client(), desk.client()
    for forgotten in (False, True):
        run(holder.claim(Claim("x", token("h"), 20.0), 5.0))
        claim = ticket(waiter, "w", 1)
        assert isinstance(run(waiter.claim(claim, 5.0)), Refused)
        run(holder.release("x", token("h"), 5.0))  # announced on all nodes, and not heard yet
        assert run(waiter.release("x", claim.token, 5.0)) is True
        if forgotten:  # much later; or its release did not get through
            waiter.tickets._gone.clear()
        strays = [Announced("x", claim.token, 0, 0.0, -inf)] if forgotten else []
        assert hear(waiter) == strays, "its release has passed it on; later, the hub does"
        assert run(waiter.inspect("x", 5.0)).held is False


def test_whoever_waits_stands_in_line_where_an_inbox_was_slow_to_open(five: list[Node], colour: str) -> None:
    """It could not be told there, so it did not wait there. Now it can, and asks again."""

    async def body(kit: Kit) -> None:
        holder, client, inside = kit.client(renew=True), kit.client(renew=True), Inside()
        member = client._context.backend.nodes[4].member
        real, tries = member.open_inbox, []

        async def slow(within: float) -> str:
            tries.append(within)
            if len(tries) < 3:
                raise interlock.Unavailable("not yet", backend="", cause="timeout")
            return await real(within)

        member.open_inbox = slow
        lease = await holder.lock("x", ttl=300).acquire()
        job = start(kit, inside.work(kit, client, 0, ttl=300))
        await all_in_line(kit, five[:4], 1)
        await all_in_line(kit, five, 1)
        assert len(tries) >= 3
        await lease.release()
        await finish(job)
        assert nothing_left(five)

    run_body(body, urls(five), colour)


def soon(true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.002)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_hand_over_whose_answers_came_too_late_to_count(earlier: bool) -> None:
    """The process was stopped meanwhile. The lease is released, which is no loss; and the heir goes on with another token: what
    some nodes still owe the old one, or are about to take back from it, is not known. `earlier`: the nodes refuse the heir, for
    one that came before it."""
    stores, told, spent, got = [f"memory://{uuid.uuid4().hex}" for _ in range(3)], [], [], []  # type: ignore[var-annotated]
    with interlock.Client(stores, ttl=30) as client, interlock.Client(stores, ttl=30) as other:

        def wait(whose: interlock.Client) -> None:
            with whose.lock("x", fair=True, timeout=20) as lease:
                got.append(lease.token)

        lease = client.lock("x", on_lost=lambda lease: told.append(lease.reason)).acquire()
        threads = [threading.Thread(target=wait, args=(whose,)) for whose in ([other] if earlier else [])]
        for thread in threads:
            thread.start()
        soon(lambda: client.inspect("x").waiters == len(threads))
        threads.append(threading.Thread(target=wait, args=(client,)))
        threads[-1].start()
        gate, quorum = client._context.queue, cast(Any, client._context.backend)
        soon(
            lambda: gate._queues["x"].waiters and gate.is_next(gate._queues["x"].waiters[0]) and client._context.listener._inbox
        )
        hand_over, in_time = quorum.hand_over, quorum.markers.in_time

        async def late(name: str, token: str, heir: Any, *rest: Any) -> Any:
            quorum.markers.in_time = lambda *_: False
            spent.append(heir.token)
            try:
                return await hand_over(name, token, heir, *rest)
            finally:
                quorum.markers.in_time = in_time

        quorum.hand_over = late
        assert lease.release()
        assert lease.state == "released"
        for thread in threads:
            thread.join()
        assert len(got) == len(threads)
        assert spent[0] not in got
        assert not told
        soon(lambda: not client.inspect("x").held and not client.inspect("x").waiters)
