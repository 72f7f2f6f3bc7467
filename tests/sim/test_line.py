"""What a quorum announces to somebody who waits: moments that chance does not hit, played by hand in the simulator."""

from __future__ import annotations

from collections.abc import Coroutine
from math import inf
from typing import Any, cast

import pytest

from interlock.backends.memory import Held
from interlock.backends.quorum import QuorumBackend
from interlock.backends.quorum.ticket import Ticket
from interlock.backends.unanswered import Unanswered
from interlock.core.claim import Announced, Claim, Granted, Place, Refused
from interlock.core.turn import GrantTally, Served
from interlock.errors import NoQuorum, Unavailable
from interlock.flow.hold import release
from interlock.testing.sim import Plan, simulate
from interlock.testing.sim.client import Client
from interlock.testing.sim.node import Node, Request
from interlock.testing.sim.plan import faults_of
from interlock.testing.sim.wire import Subscription
from interlock.testing.sim.world import World

from .test_electorate import a_world, take

BOBS = Claim("x", "bob's", 20.0, Place(1, "", 20.0))


def pass_time(world: World, seconds: float) -> None:
    world.kernel.run(world.kernel.now + seconds)


def begin(client: Client, work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Have it done. The list is empty until it has ended."""
    results: list[Any] = []
    client.runtime.task(work, lambda task: results.append(task.error or task.result))
    return results


def done(world: World, client: Client, work: Coroutine[Any, Any, Any]) -> Any:
    results = begin(client, work)
    while not results:
        pass_time(world, 0.01)
    return results[0]


def serve(node: Node, client: Client) -> None:
    """A frozen node answers what this client has asked, and nothing else."""
    queue, node.queue, node.frozen = node.queue, [], False
    for wire, request in queue:
        if wire._link.process is client.process:
            wire.serve(request)
    node.frozen, node.queue = True, [entry for entry in queue if entry[0]._link.process is not client.process]


def settle(world: World, client: Client, line: QuorumBackend) -> None:
    """Have it use the cluster until it knows every node."""
    for number in range(20):
        if line.readmission.settled():
            return
        claim = Claim("warm", f"warm {number}", 1.0)
        if isinstance(done(world, client, line.claim(claim, 0.2)), Granted):
            done(world, client, line.release(claim.name, claim.token, 0.2))
        pass_time(world, 1.1)
    raise AssertionError("it does not settle")


def ticket_of(line: QuorumBackend) -> Ticket:
    ticket = line.tickets.get(BOBS.token)
    assert ticket is not None
    return ticket


def bobs_nodes(world: World) -> list[Node]:
    return [node for node in world.nodes if node.holds().get("x") == BOBS.token]


def an_old_announcement() -> None:
    """Node 0 serves Bob, and says so late: he has asked meanwhile, lost the vote, and given it back. Then node 1 serves him."""
    with a_world() as world:
        alice, bob, _ = world.clients
        line = cast(QuorumBackend, bob.context.backend)
        hold = take(world, alice, 20.0)
        assert hold is not None
        done(world, bob, line.open_inbox(0.2))
        settle(world, bob, line)
        assert isinstance(done(world, bob, line.claim(BOBS, 0.2)), Refused)
        heard = begin(bob, line.hear(bob.runtime.now() + 5))
        (ear,) = (wire for wire in bob.links[0].wires if isinstance(wire, Subscription) and not wire.gone)
        ear._held_replies.append((0, None))  # from here on nothing comes through
        zero, one, two = world.nodes
        one.frozen = two.frozen = True
        begin(alice, release(alice.context, hold))
        pass_time(world, 0.005)
        assert bobs_nodes(world) == [zero]
        answer = begin(bob, line.claim(BOBS, 0.2))
        pass_time(world, 0.005)
        serve(one, bob)
        serve(two, bob)
        pass_time(world, 0.01)
        assert isinstance(answer[0], Refused)
        assert not bobs_nodes(world), "he has not given it back"
        serve(one, alice)
        assert bobs_nodes(world) == [one]
        pass_time(world, 0.003)
        ear.healed(reset=False)
        pass_time(world, 0.05)
        ((announced,),) = heard
        assert isinstance(announced, Announced)
        assert not announced.fence, "he believes in one node of three"


def a_request_that_comes_late() -> None:
    """Bob's retreat from node 2 is stuck, for so long that his next vote takes another connection. It may arrive after that."""
    with a_world() as world:
        bob = world.clients[1]
        line = cast(QuorumBackend, bob.context.backend)
        done(world, bob, line.open_inbox(0.2))
        zero, one, two = world.nodes
        zero.memory.held["x"] = one.memory.held["x"] = Held("a stranger", 1, inf)

        def sticks(node: Node, verb: str) -> None:
            if verb == "vote" and not stuck:
                stuck.extend(wire for wire in bob.links[2].wires if not isinstance(wire, Subscription) and not wire.gone)
                stuck[0]._held_requests.append(Request(0, "hello"))

        stuck: list[Any] = []
        two.did = sticks
        assert isinstance(done(world, bob, line.claim(BOBS, 0.2)), Refused)
        assert bobs_nodes(world) == [two]
        pass_time(world, 6.0)
        done(world, bob, line.nodes[2].member.inspect("y", 0.2))  # on another connection: that one is given up
        pass_time(world, 6.0)  # until nothing else keeps him from asking there
        del zero.memory.held["x"]
        answer = done(world, bob, line.claim(BOBS, 0.2))
        stuck[0].healed(reset=False)
        pass_time(world, 0.1)
        assert two not in bobs_nodes(world), "nothing came late"
        assert not isinstance(answer, Granted), "he believes in one node of three"
        assert isinstance(answer, Refused)


def a_young_request_on_an_old_connection() -> None:
    """Bob's connection to node 2 is stuck. It is given up for what somebody else asked there long ago, and Bob's own young vote
    is undone with it: both may arrive after his next vote, which takes another connection."""
    with a_world() as world:
        bob = world.clients[1]
        line = cast(QuorumBackend, bob.context.backend)
        member, stuck = cast(Any, line.nodes[2].member), list[Any]()
        done(world, bob, line.open_inbox(0.2))
        settle(world, bob, line)
        zero, one, two = world.nodes
        zero.memory.held["x"] = one.memory.held["x"] = Held("a stranger", 1, inf)
        done(world, bob, member.inspect("y", 0.2))
        stuck.extend(wire for wire in bob.links[2].wires if not isinstance(wire, Subscription) and not wire.gone)
        stuck[0]._held_requests.append(Request(0, "hello"))
        interrupted(world, bob, member.vote(Claim("y", "old", 20.0), 0, 60.0))
        pass_time(world, 4.0)
        cast(Any, line.poller).ready = lambda: [0, 1, 2]
        assert isinstance(done(world, bob, line.claim(BOBS, 0.2)), Refused)
        pass_time(world, 1.2)
        interrupted(world, bob, member.vote(Claim("z", "other", 20.0), 0, 60.0))  # on another connection
        assert stuck[0].dead, "that one was not given up"
        del zero.memory.held["x"]
        answer = done(world, bob, line.claim(BOBS, 0.2))
        stuck[0].healed(reset=False)
        pass_time(world, 0.1)
        assert two not in bobs_nodes(world), "nothing came late"
        assert not isinstance(answer, Granted), "he believes in one node of three"


def interrupted(world: World, client: Client, work: Coroutine[Any, Any, Any]) -> None:
    """Have it begun, and broken off after a moment, as a vote is whose outcome is certain."""

    async def race() -> None:
        async def moment() -> None:
            await client.runtime.sleep(0.01)

        await client.runtime.race([work, moment()], lambda index, _: index == 1)

    done(world, client, race())


def test_an_announcement_older_than_the_last_answer_does_not_count() -> None:
    an_old_announcement()


def test_an_answer_does_not_count_while_an_older_request_may_be_on_its_way() -> None:
    a_request_that_comes_late()


def test_an_answer_does_not_count_while_a_request_on_a_closed_connection_may_be_on_its_way() -> None:
    a_young_request_on_an_old_connection()


def test_the_third_fails_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unanswered, "barred", lambda self, tokens, now: False)
    with pytest.raises(AssertionError, match="believes in one node of three"):
        a_young_request_on_an_old_connection()


def test_the_first_fails_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(self: GrantTally, node: int, served: Served | None, after: int | None) -> None:
        self._told[node] = served

    monkeypatch.setattr(GrantTally, "told", told)
    with pytest.raises(AssertionError, match="believes in one node of three"):
        an_old_announcement()


def test_the_second_fails_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Ticket.accept

    def all_count(self: Ticket, node: int, answer: object, sent_at: float) -> object:
        if not isinstance(answer, Unavailable):
            self.unanswered_since.pop(node, None)
        return accept(self, node, answer, sent_at)

    monkeypatch.setattr(Ticket, "accept", all_count)
    with pytest.raises(AssertionError, match="believes in one node of three"):
        a_request_that_comes_late()


def test_what_a_node_owes_is_not_forgotten_when_a_grant_is_told_that_nobody_believes() -> None:
    """Two nodes announce Bob's grant while the third owes him an answer. It is too old to be believed, so he asks once more."""
    with a_world() as world:
        alice, bob, _ = world.clients
        line = cast(QuorumBackend, bob.context.backend)
        hold = take(world, alice, 20.0)
        assert hold is not None
        done(world, bob, line.open_inbox(0.2))
        assert isinstance(done(world, bob, line.claim(BOBS, 0.2)), Refused)
        ticket_of(line).unanswered_since[2] = -inf  # the path broke under a request
        heard = begin(bob, line.hear(bob.runtime.now() + 5))
        done(world, alice, release(alice.context, hold))
        pass_time(world, 0.1)
        ((announced,),) = heard
        assert announced.fence, "the other two are enough"
        assert ticket_of(line).unanswered_since == {2: -inf}
        done(world, bob, line.release("x", BOBS.token, 0.2))
        assert not ticket_of(line).unanswered_since, "he has left"
        assert not line.tickets.ask(BOBS).unanswered_since, "and begins anew"


def test_nobody_listens_to_fewer_than_a_quorum() -> None:
    """Two of three nodes lost their memory, so they have no vote, and the inboxes there broke. They can be heard nevertheless;
    and if they are dead as well, that is said, or whoever listens would try again and again without a pause."""
    with a_world() as world:
        alice, bob, _ = world.clients
        line = cast(QuorumBackend, bob.context.backend)
        hold = take(world, alice, 20.0)
        assert hold is not None
        done(world, bob, line.open_inbox(0.2))
        assert isinstance(done(world, bob, line.claim(BOBS, 0.2)), Refused)
        for index in (1, 2):
            line.inboxes.subscriptions[index].open = False
            line.markers.quarantine(index)
        done(world, bob, line.open_inbox(0.2))
        assert line.inboxes.hearing >= line.needed
        for node in world.nodes[1:]:
            node.crash(forget=False)
        assert isinstance(done(world, bob, line.hear(bob.runtime.now() + 20)), Unavailable)
        assert isinstance(done(world, bob, line.open_inbox(0.2)), NoQuorum)


@pytest.mark.parametrize(("seed", "faults"), [(2355, "amnesia"), (456, "reorder"), (527509, "mixed")])
def test_histories_that_went_wrong(seed: int, faults: str) -> None:
    """One went round and round at the same moment: a client that heard one node of three. In one a waiter's pause grew beyond
    all numbers. In one a release overtook the vote that healed its lease."""
    assert not simulate(Plan.of(seed, faults_of(faults), 3)).failures


@pytest.mark.parametrize(("seed", "fault"), [(2651, "delay"), (1766, "reorder"), (5249, "reorder")])
def test_histories_that_were_judged_wrongly(seed: int, fault: str) -> None:
    """In one a waiter's token was undone on a node whose connection was given up, and got the lock there later, rightfully. In
    two a token that was made for an heir was taken for that of the one that handed over."""
    assert not simulate(Plan.of(seed, [fault], 3)).failures
