"""Who may vote, and what becomes of votes without an answer: played by hand in the simulator."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, cast

import pytest

from interlock.backends.memory import Held
from interlock.backends.quorum import QuorumBackend
from interlock.backends.quorum.poller import Collect
from interlock.core.claim import Claim, Granted, Renewal
from interlock.core.lease import DRIFT_RATE, Hold, deadline
from interlock.core.quorum import Marker
from interlock.flow.acquire import acquire, try_acquire
from interlock.flow.attempt import Attempt
from interlock.flow.hold import release
from interlock.testing.sim import Plan
from interlock.testing.sim.client import Client
from interlock.testing.sim.holes import BY_HAND
from interlock.testing.sim.kernel import Task
from interlock.testing.sim.mutants import planted
from interlock.testing.sim.world import World

TTL = 1.0
WINDOW = 2.0


@contextmanager
def a_world(request_timeout: float = 0.2) -> Iterator[World]:
    logger = logging.getLogger("interlock")
    logger.disabled = True
    world = World(Plan.of(1)._replace(clients=3, actors=1, ttl=TTL, request_timeout=request_timeout, newborn=False))
    yield world
    world.kernel.end()
    logger.disabled = False


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as world:
        yield world


NAMES = ("node0", "node1", "node2")


def take(world: World, client: Client, ttl: float = TTL) -> Hold | None:
    """Ask once, and let at least 50 ms pass."""
    results: list[Hold | None] = []

    def ended(task: object) -> None:
        results.append(getattr(task, "result", None))

    client.runtime.task(try_acquire(client.context, Attempt("x", ttl)), ended)
    while not results:
        world.kernel.run(world.kernel.now + 0.05)
    return results[0]


def use(world: World, *clients: Client) -> None:
    """Take it and give it back, each of them three times."""
    for client in clients * 3:
        hold = take(world, client)
        if hold is not None:
            client.runtime.task(release(client.context, hold))
            world.kernel.run(world.kernel.now + 0.05)


def forgets(world: World, number: int) -> None:
    world.nodes[number].crash(forget=True)
    world.nodes[number].restart()


def notice(world: World, *clients: Client) -> None:
    """Have them use it until they know which memory node 0 has lost, and how long to wait for that."""
    for client in clients:
        node = cast(QuorumBackend, client.context.backend).nodes[0]
        for _ in range(20):
            if node.quarantine is None or node.quarantine.until == inf:
                use(world, client)
        assert node.quarantine is not None
        assert node.quarantine.until < inf


def test_a_birth_that_was_interrupted_goes_on(world: World) -> None:
    for node, roll in zip(world.nodes, (None, None, Marker(NAMES)), strict=True):
        node.memory.roll = roll  # whoever enrolled them got no further than the last
    assert take(world, world.clients[0]) is not None
    assert all(node.memory.roll is not None for node in world.nodes)


def test_nodes_that_forgot_are_not_taken_for_new_because_of_one_that_is(world: World) -> None:
    alice, bob, _ = world.clients
    use(world, alice)
    assert take(world, alice) is not None
    forgets(world, 0)
    world.nodes[1].memory.roll = Marker(NAMES)
    assert take(world, bob) is None
    assert world.nodes[0].memory.roll is None


def test_silence_is_not_taken_for_a_loss_of_memory(world: World) -> None:
    """Carol knows of short leases only. What Bob's long one was granted by must be heard before node 0 votes again."""
    _, bob, carol = world.clients
    use(world, carol)
    world.nodes[2].frozen = True
    bobs = take(world, bob, ttl=60.0)  # on nodes 0 and 1
    world.nodes[2].queue.clear()
    world.nodes[2].thaw()
    assert bobs is not None
    forgets(world, 0)
    for node in world.nodes[1:]:
        node.frozen = True
    for _ in range(5):
        use(world, carol)
        world.kernel.run(world.kernel.now + 0.5 * TTL)
    for node in world.nodes[1:]:
        node.thaw()
    for _ in range(20):
        assert take(world, carol) is None, "two valid leases"


def test_a_node_that_forgot_waits(world: World) -> None:
    _, bob, carol = world.clients
    use(world, bob, carol)
    world.nodes[2].frozen = True
    bobs = take(world, bob)  # on nodes 0 and 1
    world.nodes[2].queue.clear()
    world.nodes[2].thaw()
    assert bobs is not None
    forgets(world, 0)
    while not bobs.lost(bob.runtime.now()):
        assert take(world, carol) is None, "two valid leases"


def test_a_node_that_forgets_again_waits_again(world: World) -> None:
    alice, bob, carol = world.clients
    use(world, alice, bob, carol)
    assert take(world, bob) is not None  # something that it may forget
    forgets(world, 0)
    notice(world, carol)
    world.kernel.run(world.kernel.now + 1.5 * TTL)
    use(world, alice, bob)  # Alice lets it back in, as the nodes have noted Carol's wait; Bob sees that; Carol sleeps on
    use(world, alice, bob)
    assert world.nodes[0].memory.roll is not None
    world.nodes[2].frozen = True
    bobs = take(world, bob)  # on nodes 0 and 1
    world.nodes[2].queue.clear()
    world.nodes[2].frozen = False
    assert bobs is not None
    forgets(world, 0)
    while not bobs.lost(bob.runtime.now()):
        assert take(world, carol) is None, "two valid leases"


def test_what_we_hold_ourselves_is_waited_for_whatever_others_have_noted(world: World) -> None:
    """All nodes forget. Bob, who knows of nothing but his own short lease, has them note a short wait. Alice reads that."""
    alice, bob, _ = world.clients
    use(world, alice, bob)
    alices = take(world, alice, ttl=60.0)
    assert alices is not None
    bob.runtime.task(try_acquire(bob.context, Attempt("y", 8.0)))
    world.kernel.run(world.kernel.now + 0.05)
    for number in range(3):
        forgets(world, number)
    notice(world, bob)
    quarantine = cast(QuorumBackend, bob.context.backend).nodes[0].quarantine
    assert quarantine is not None
    assert quarantine.until - bob.runtime.now() < 20.0  # twice its ttl: it might have been extended
    use(world, bob)  # so that the nodes have noted it
    until = world.kernel.now + 30.0
    while world.kernel.now < until:
        use(world, alice)
        world.kernel.run(world.kernel.now + 0.5)
    assert not alices.lost(alice.runtime.now())
    assert [node.memory.roll for node in world.nodes] == [None] * 3, "Alice let nodes in that forgot her lease"


def test_a_client_without_a_quorum_sees_at_once_that_another_let_nodes_in(world: World) -> None:
    """Bob would wait for two minutes, because of his own lease. Carol, who does not know of it, need not."""
    _, bob, carol = world.clients
    use(world, bob, carol)
    bob.runtime.task(try_acquire(bob.context, Attempt("y", 60.0)))
    world.kernel.run(world.kernel.now + 0.05)
    for number in range(3):
        forgets(world, number)
    notice(world, carol, bob)
    quarantine = cast(QuorumBackend, bob.context.backend).nodes[0].quarantine
    assert quarantine is not None
    assert quarantine.until - bob.runtime.now() > 100.0
    while any(node.memory.roll is None for node in world.nodes):
        assert world.kernel.now < 60.0
        use(world, carol)
    began = world.kernel.now
    while take(world, bob) is None:
        assert world.kernel.now < began + 1.0
        world.kernel.run(world.kernel.now + 0.1)


def test_a_loss_without_a_name_does_not_begin_a_wait_anew(world: World) -> None:
    """A full server cannot be marked for a while. Its wait goes on."""
    alice = world.clients[0]
    use(world, alice)
    assert take(world, alice, ttl=30.0) is not None
    forgets(world, 0)
    notice(world, alice)
    node, memory = cast(QuorumBackend, alice.context.backend).nodes[0], world.nodes[0].memory
    before, memory.loss = memory.loss, ""
    losses, memory.losses = memory.losses, -1
    backend: Any = world.nodes[0].backend
    real = backend.roll

    async def nameless(within: float, mark: bool = False, *more: Any) -> Any:
        return await real(within, False, *more)

    backend.roll = nameless
    quarantine = node.quarantine
    assert quarantine is not None
    since = quarantine.since
    for _ in range(4):
        world.kernel.run(world.kernel.now + 4.0)  # it is measured again
        use(world, alice)
    assert node.quarantine is not None
    assert node.quarantine.since == since
    backend.roll, memory.loss, memory.losses = real, before, losses
    while memory.roll is None and world.kernel.now < 120.0:
        use(world, alice)
        world.kernel.run(world.kernel.now + 1.0)
    assert memory.roll is not None, "it was let in after all"


def test_a_release_does_not_wait_for_a_node_that_is_to_be_let_in() -> None:
    """The node froze after it had come back. To ask it how it stands is not worth a request's time."""
    with a_world(request_timeout=5.0) as world:
        alice = world.clients[0]
        use(world, alice)
        forgets(world, 0)
        notice(world, alice)
        hold = take(world, alice, ttl=20.0)
        assert hold is not None
        world.kernel.run(world.kernel.now + 5.0)  # its wait is over: to let it in is the next step
        world.nodes[0].frozen = True
        began, ended = world.kernel.now, list[float]()
        alice.runtime.task(release(alice.context, hold), lambda task: ended.append(world.kernel.now))
        world.kernel.run(world.kernel.now + 10.0)
        assert ended[0] - began < 0.5


class OnItsWay:
    """Bob asks. Node 0 answers; what goes to node 1 is held up, and to node 2 it never comes. Then node 0 forgets."""

    def __init__(self, world: World, extends: bool = False, drift: float = DRIFT_RATE) -> None:
        self._world, self.answers = world, list[object]()
        _, self._bob, self._carol = world.clients
        self._backend = cast(QuorumBackend, self._bob.context.backend)
        self._backend.allow_for(drift)
        self._drift, self._ttl = drift, 8.0
        use(world, self._carol)
        token = self._bob.runtime.token()
        self._bobs(self._backend.claim(Claim("x" if extends else "y", token, 2.0), WINDOW))  # which has the window noted
        if not extends:
            self._bobs(self._backend.release("y", token, WINDOW))
        (granted,) = [answer for answer in self.answers if isinstance(answer, Granted)]
        self.answers.clear()
        for link in self._bob.links[1:]:
            link.requests_blocked = True
        world.nodes[0].memory.last_fence += 1 << 32  # its fence is the one to agree on, and node 1 can be taught it
        self.began, self._sent_at = world.kernel.now, self._bob.runtime.now()
        self._bobs(
            self._backend.extend("x", token, self._ttl, WINDOW, granted.fence)
            if extends
            else self._backend.claim(Claim("x", self._bob.runtime.token(), self._ttl), WINDOW)
        )
        assert world.nodes[0].holds().keys() == {"x"}
        forgets(world, 0)

    def _bobs(self, work: Coroutine[Any, Any, object]) -> None:
        self._bob.runtime.task(work, lambda task: self.answers.append(task.result))
        self._world.kernel.run(self._world.kernel.now + 0.05)

    def arrives(self, after: float) -> None:
        """Carol asks for it again and again, and at that moment what was held up comes to node 1."""
        while self._world.kernel.now < self.began + after:
            use(self._world, self._carol)
        self._bob.links[1].heal(reset=False)
        self._world.kernel.run(self._world.kernel.now + 0.05)

    def ends(self) -> None:
        """Carol does not get it while Bob believes that he has it."""
        until = deadline(self._sent_at, self._ttl, self._drift)
        while any(isinstance(answer, Granted) for answer in self.answers) and self._bob.runtime.now() < until:
            assert take(self._world, self._carol) is None, "two valid leases"


def test_the_others_are_asked_when_all_has_come_that_counts_on_a_lost_vote(world: World) -> None:
    """The window: what is on its way to the others is not held there yet, and the node must not be let in by that."""
    comes_in_time(OnItsWay(world))


def test_the_others_are_asked_when_all_has_come_that_counts_on_a_lost_extension(world: World) -> None:
    """They hold the lease for two more seconds, and have not heard yet that it is eight."""
    comes_in_time(OnItsWay(world, extends=True))


def comes_in_time(bobs: OnItsWay) -> None:
    bobs.arrives(after=0.75 * WINDOW)
    assert any(isinstance(answer, Granted) for answer in bobs.answers)
    bobs.ends()


def test_an_answer_does_not_count_after_its_window(world: World) -> None:
    """Bob is stopped meanwhile. Back at work he sees the answers first, then what the time is."""
    bobs = OnItsWay(world)
    world.kernel.pause(world.clients[1].process)
    bobs.arrives(after=1.5 * WINDOW)
    assert world.nodes[0].memory.roll is not None, "it was let in: nothing was held"
    world.kernel.resume(world.clients[1].process)
    world.kernel.run(world.kernel.now + 0.05)
    bobs.ends()


def test_a_window_is_shorter_on_a_clock_that_may_be_slow() -> None:
    """Bob's is a third slower than the nodes', and he was told so. Carol's is right, and need not know of his."""
    with a_world() as world:
        world.clients[1].process.rate = 0.65
        bobs = OnItsWay(world, drift=0.4)
        bobs.arrives(after=1.3 * WINDOW)
        bobs.ends()


def test_a_vote_without_an_answer_stays_while_its_lease_lives(world: World) -> None:
    """Node 2 grants, and is not heard. Renewals reach it by another connection and count on it."""
    alice = world.clients[0]
    use(world, alice)
    (wire,) = (wire for wire in alice.links[2].wires if not wire.dead)
    wire._held_replies.append((0, None))  # from here on nothing comes back on this one
    hold = take(world, alice)
    assert hold is not None
    assert world.nodes[2].holds() == {"x": hold.token}
    done: list[str] = []
    world.nodes[2].did = lambda node, verb: done.append(verb)
    for _ in range(40):
        alice.runtime.task(alice.context.backend.renew([Renewal("x", hold.token, TTL, hold.fence)], 0.15))
        world.kernel.run(world.kernel.now + 0.2)
    assert "release" not in done, "its transport took it back"
    assert world.nodes[2].holds() == {"x": hold.token}


def test_a_token_that_is_being_taken_back_is_not_used_again(world: World) -> None:
    """A stranger has node 1, node 2 is slow: what is taken back there may arrive after the next vote."""
    alice = world.clients[0]
    use(world, alice)
    world.nodes[1].memory.held["x"] = Held("a stranger", 1, inf)
    world.nodes[2].frozen = True
    alice.runtime.task(acquire(alice.context, Attempt("x", TTL), 1.0))
    world.kernel.run(world.kernel.now + 0.3)
    asked = [request.args[0].token for _, request in world.nodes[2].queue if request.verb == "vote"]
    assert len(asked) > 1
    assert len(asked) == len(set(asked)), "one is used again"


def test_what_follows_a_hand_over_without_an_answer_goes_behind_it(world: World) -> None:
    """Else the heir would be given what it has released. The connection is one that no other request takes any more."""
    alice = world.clients[0]
    use(world, alice)
    slow, results = world.nodes[2], list[Task]()
    slow.frozen = True
    hold = take(world, alice)  # node 2 owes an answer
    assert hold is not None
    alice.runtime.task(cast(QuorumBackend, alice.context.backend).nodes[2].member.inspect("x", 0.01))
    alice.runtime.task(acquire(alice.context, Attempt("x", TTL), 1.0), results.append)
    world.kernel.run(world.kernel.now + 0.1)
    alice.runtime.task(release(alice.context, hold))
    world.kernel.run(world.kernel.now + 0.05)
    (heir,) = (task.result for task in results)
    alice.runtime.task(release(alice.context, heir))
    world.kernel.run(world.kernel.now + 0.05)
    sent = [(wire, request) for wire, request in slow.queue if heir.token in str(request.args)]
    assert [request.verb for _, request in sent][-2:] == ["hand_over", "release"], "overtaken"
    assert len({id(wire) for wire, _ in sent}) == 1, "overtaken"


def test_a_client_can_be_closed_after_a_vote_that_some_never_answered(world: World) -> None:
    """Nobody is left behind who waits for their answers."""
    alice = world.clients[0]
    use(world, alice)
    polled: list[object] = []
    world.nodes[2].frozen = True
    question = Collect(lambda _, member: member.roll(0.1), lambda *_: True)
    question.finish = question.looks = True
    alice.runtime.task(cast(QuorumBackend, alice.context.backend).poller.poll(range(3), question), polled.append)
    world.kernel.run(world.kernel.now + 0.5)
    assert polled
    alice.runtime.task(alice.close(), polled.append)
    world.kernel.run(world.kernel.now + 10)
    assert len(polled) == 2


SHOWN_BY = {
    "hasty-readmission": test_a_node_that_forgot_waits,
    "undo-of-the-living": test_a_vote_without_an_answer_stays_while_its_lease_lives,
    "silence-is-loss": test_silence_is_not_taken_for_a_loss_of_memory,
    "old-wait": test_a_node_that_forgets_again_waits_again,
    "overtaken-on-its-way": test_what_follows_a_hand_over_without_an_answer_goes_behind_it,
    "unsettled": test_the_others_are_asked_when_all_has_come_that_counts_on_a_lost_vote,
    "unsettled extension": test_the_others_are_asked_when_all_has_come_that_counts_on_a_lost_extension,
    "no-window": test_an_answer_does_not_count_after_its_window,
    "token-used-again": test_a_token_that_is_being_taken_back_is_not_used_again,
}


@pytest.mark.parametrize("name", [*BY_HAND, "unsettled extension"])
def test_a_planted_bug_is_found(name: str) -> None:
    with (
        planted(name.split()[0]),
        a_world() as world,
        pytest.raises(AssertionError, match=r"two valid|took it back|used again|overtaken"),
    ):
        SHOWN_BY[name](world)
