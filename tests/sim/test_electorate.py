"""Who may vote, played by hand in the simulator."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from interlock.core.lease import Hold
from interlock.core.quorum import Roll
from interlock.flow.acquire import try_acquire
from interlock.flow.hold import release
from interlock.testing.sim import Plan
from interlock.testing.sim.client import Client
from interlock.testing.sim.world import World

TTL = 1.0


@pytest.fixture
def world() -> Iterator[World]:
    logger = logging.getLogger("interlock")
    logger.disabled = True
    world = World(Plan.of(1)._replace(clients=3, actors=1, ttl=TTL, request_timeout=0.2, newborn=False))
    yield world
    world.kernel.end()
    logger.disabled = False


def take(world: World, client: Client, ttl: float = TTL) -> Hold | None:
    """Ask once, and let at least 50 ms pass."""
    results: list[Hold | None] = []

    def ended(task: object) -> None:
        results.append(getattr(task, "result", None))

    client.runtime.task(try_acquire(client.site, "x", ttl), ended)
    while not results:
        world.kernel.run(world.kernel.now + 0.05)
    return results[0]


def use(world: World, *clients: Client) -> None:
    """Take it and give it back, each of them three times."""
    for client in clients * 3:
        hold = take(world, client)
        if hold is not None:
            client.runtime.task(release(client.site, hold))
            world.kernel.run(world.kernel.now + 0.05)


def forgets(world: World, number: int) -> None:
    world.nodes[number].crash(forget=True)
    world.nodes[number].restart()


def test_a_birth_that_was_interrupted_goes_on(world: World) -> None:
    for node, roll in zip(world.nodes, (None, None, Roll(0.0, 0, 0)), strict=True):
        node.memory.roll = roll  # whoever enrolled them got no further than the last
    assert take(world, world.clients[0]) is not None
    assert all(node.memory.roll is not None for node in world.nodes)


def test_nodes_that_forgot_are_not_taken_for_new_because_of_one_that_is(world: World) -> None:
    alice, bob, _ = world.clients
    use(world, alice)
    assert take(world, alice) is not None
    forgets(world, 0)
    world.nodes[1].memory.roll = Roll(0.0, 0, 0)
    assert take(world, bob) is None
    assert world.nodes[0].memory.roll is None


def test_silence_is_not_taken_for_a_loss_of_memory(world: World) -> None:
    """Carol knows of short leases only. What Bob's long one was granted by must be heard before node 0 votes again."""
    _, bob, carol = world.clients
    use(world, carol)
    world.nodes[2].frozen = True
    bobs = take(world, bob, ttl=60.0)  # on nodes 0 and 1
    world.nodes[2].thaw()
    assert bobs is not None
    forgets(world, 0)
    use(world, carol)  # she notices, and waits
    world.kernel.run(world.kernel.now + 1.5 * TTL)
    for node in world.nodes[1:]:
        node.frozen = True
    use(world, carol)
    for node in world.nodes[1:]:
        node.thaw()
    for _ in range(20):
        assert take(world, carol) is None, "two valid leases"


@pytest.mark.xfail(strict=True, reason="a hole: the quarantine of a client that slept counts from the first loss")
def test_a_node_that_forgets_again_waits_again(world: World) -> None:
    alice, bob, carol = world.clients
    use(world, alice, bob, carol)
    forgets(world, 0)
    use(world, alice, bob, carol)  # all of them notice, and wait
    world.kernel.run(world.kernel.now + 1.5 * TTL)
    use(world, alice, bob)  # Alice lets it back in, Bob sees that; Carol sleeps on
    assert world.nodes[0].memory.roll is not None
    world.nodes[2].frozen = True
    bobs = take(world, bob)  # on nodes 0 and 1
    world.nodes[2].queue.clear()
    world.nodes[2].frozen = False
    assert bobs is not None
    forgets(world, 0)
    while not bobs.lost(bob.runtime.now()):
        assert take(world, carol) is None, "two valid leases"
