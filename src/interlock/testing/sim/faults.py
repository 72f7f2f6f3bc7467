"""The faults: what strikes when. All of it is put into the queue before the first task runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.token import owner_of

if TYPE_CHECKING:
    from .client import Client
    from .node import Node
    from .world import World


def schedule(world: World) -> None:
    """Put the faults of the plan into the queue."""
    plan, random = world.plan, world.kernel.random
    for fault in sorted(plan.faults):
        if fault in _WEATHER:
            _WEATHER[fault](world)
        elif fault in _STRIKES:
            for aim in _AIMED.get(fault, ()) if random.random() < 0.5 else ():
                _aim(world, *aim)
            for _ in range(random.randint(1, 4) * _OFTEN.get(fault, 1)):
                begin = random.random() * plan.span
                world.kernel.at(begin, None, _STRIKES[fault], world)
    world.kernel.at(plan.span, None, world.calm)


def _lasts(world: World, most: float = 2.0) -> float:
    """For how long something is broken: often a moment, sometimes longer than a lease, never longer than the faults."""
    random, plan = world.kernel.random, world.plan
    length = random.choice((0.02, 0.3, most)) * random.random() * plan.ttl + 0.001
    return min(world.kernel.now + length, plan.span)


def _somebody(world: World) -> Client:
    return world.kernel.random.choice(world.clients)


def _some_node(world: World) -> Node:
    return world.kernel.random.choice(world.nodes)


def _aim(world: World, what: str, chance: float, strike: Callable[[World, Node], None]) -> None:
    """Have a fault strike right after a node has done something: the moments that matter are too short to be hit by chance."""

    def did(node: Node, verb: str) -> None:
        if before is not None:
            before(node, verb)
        if verb == what and world.kernel.now < world.plan.span and world.kernel.random.random() < chance:
            world.kernel.at(world.kernel.now + 1e-6, None, strike, world, node)  # its answer is on its way already

    before = world.nodes[0].did
    for node in world.nodes:
        node.did = did


# --- what is there all the time -------------------------------------------------------------------------------------------


def _delay(world: World) -> None:
    world.network.tail = world.kernel.random.choice((0.02, 0.1, 0.3))
    world.network.longest_tail = world.plan.ttl * world.kernel.random.choice((0.3, 1.5))


def _reorder(world: World) -> None:
    world.network.tail, world.network.longest_tail = 0.5, 0.02


def _loss(world: World) -> None:
    world.network.loss = world.kernel.random.choice((0.02, 0.05, 0.2))


def _duplicate(world: World) -> None:
    world.network.duplicate = world.kernel.random.choice((0.05, 0.2))


# --- what strikes ---------------------------------------------------------------------------------------------------------


def _cut(world: World) -> None:
    link = world.kernel.random.choice(_somebody(world).links)
    half_open = world.kernel.random.random() < 0.3
    world.strike(link.process.name, f"its connections to {link.node.address} are cut{', half open' if half_open else ''}")
    link.cut(half_open)


def _block(world: World, requests: bool, replies: bool) -> None:
    random = world.kernel.random
    if random.random() < 0.5:
        links = random.sample((client := _somebody(world)).links, random.randint(1, len(client.links)))
    else:
        node = random.randrange(len(world.nodes))
        links = [client.links[node] for client in world.clients]
    what = "requests" if not replies else "replies" if not requests else "nothing"
    reset = random.random() < 0.3
    until = _lasts(world)
    for link in links:
        only = f"{what} cannot pass" if requests != replies else "nothing can pass"
        world.strike(link.process.name, f"{only} to and from {link.node.address} until {until:.6f}")
        link.requests_blocked, link.replies_blocked = requests, replies
        world.kernel.at(until, None, link.heal, reset)


def _partition(world: World) -> None:
    _block(world, requests=True, replies=True)


def _oneway(world: World) -> None:
    requests = world.kernel.random.random() < 0.4
    _block(world, requests, not requests)


def _freeze(world: World, beside: Node | None = None) -> None:
    node = world.kernel.random.choice([node for node in world.nodes if node is not beside] or world.nodes)
    if not node.frozen and not node.down:
        until = _lasts(world)
        world.strike(node.address, f"freezes until {until:.6f}")
        node.frozen = True
        world.kernel.at(until, None, _thaw, world, node)


def _thaw(world: World, node: Node) -> None:
    if node.frozen:
        world.strike(node.address, "goes on")
        node.thaw()


def _die(world: World, node: Node, forget: bool) -> None:
    until = _lasts(world, most=1.0)
    world.strike(node.address, f"dies, {'forgets everything' if forget else 'keeps its memory'}, is back at {until:.6f}")
    node.crash(forget)
    world.kernel.at(until, None, _restart, world, node)


def _restart(world: World, node: Node) -> None:
    if node.down:
        world.strike(node.address, "is back")
        node.restart()


def _crash(world: World) -> None:
    node = _some_node(world)
    if not node.down:
        _die(world, node, forget=False)


def _amnesia(world: World, this: Node | None = None) -> None:
    """One at a time: not before every other node has its roll."""
    often = world.nodes[0]  # some nodes are more ill than others
    node = this or (often if world.kernel.random.random() < 0.6 else _some_node(world))
    others = [other for other in world.nodes if other is not node]
    if not node.down and all(other.good for other in others):
        _die(world, node, forget=True)


def _stale(world: World, this: Node | None = None) -> None:
    """One at a time, as above. When it is back it is as it was before."""
    node = this or _some_node(world)
    if not node.down and all(other.good for other in world.nodes if other is not node):
        node.go_back()
        _die(world, node, forget=False)


def _pause_the_next(world: World, node: Node) -> None:
    """Whoever was just served does not run when it is told."""
    owners = [owner_of(token) for token in node.holds().values()]
    for client in world.clients:
        if client.process.name in owners:
            _pause(world, client, world.kernel.now + world.plan.ttl * world.kernel.random.uniform(0.1, 0.9))


def _pause(world: World, this: Client | None = None, until: float = 0.0) -> None:
    client = this or _somebody(world)
    if not client.process.paused:
        until = min(until, world.plan.span) or _lasts(world, most=3.0)
        for actor in world.actors_of(client):
            world.record(actor, "pause", until=until)
        world.kernel.pause(client.process)
        world.kernel.at(until, None, _resume, world, client)


def _resume(world: World, client: Client) -> None:
    if client.process.paused:
        for actor in world.actors_of(client):
            world.record(actor, "resume")
        world.kernel.resume(client.process)


def _wall(world: World) -> None:
    client = _somebody(world)
    jump = world.plan.ttl * world.kernel.random.uniform(-3.0, 3.0)
    world.strike(client.process.name, f"its wall clock jumps by {jump:+.3f} s")
    client.process.wall_offset += jump


def _jump(world: World, this: Node | None = None) -> None:
    node = this or _some_node(world)
    sign = 1.0 if this is not None else world.kernel.random.choice((-1.0, 1.0))
    jump = world.plan.ttl * sign * world.kernel.random.uniform(0.1, 2.0)
    world.strike(node.address, f"its clock jumps by {jump:+.3f} s")
    node.offset += jump


def _back(world: World, this: Node | None = None) -> None:
    """Its leases last longer by that. Set right again, some would end early: not before nobody holds anything there."""
    node = this or _some_node(world)
    step = world.plan.ttl * world.kernel.random.uniform(0.05, 2.0)
    world.strike(node.address, f"its clock is set back by {step:.3f} s")
    node.offset -= step
    if world.kernel.random.random() < 0.7:
        world.kernel.at(_lasts(world), None, _set_right, world, node)


def _set_right(world: World, node: Node) -> None:
    if node.offset < 0 and not node.holds():
        world.strike(node.address, f"its clock is set right, by {-node.offset:+.3f} s")
        node.offset = 0.0
    elif node.offset < 0 and world.kernel.now < world.plan.span:
        world.kernel.at(world.kernel.now + world.plan.ttl * 0.02 * world.kernel.random.random(), None, _set_right, world, node)


def _close(world: World, _: Node | None = None) -> None:
    """Somebody closes the client of a process, amid whatever its tasks are at."""
    client = _somebody(world)
    world.strike(client.process.name, "its client is closed")
    world.close(client, client.reopen())


_WEATHER: dict[str, Callable[[World], None]] = {"delay": _delay, "reorder": _reorder, "loss": _loss, "duplicate": _duplicate}
_STRIKES: dict[str, Callable[[World], None]] = {
    "cut": _cut,
    "partition": _partition,
    "oneway": _oneway,
    "freeze": _freeze,
    "crash": _crash,
    "amnesia": _amnesia,
    "stale": _stale,
    "pause": _pause,
    "close": _close,
    "wall": _wall,
    "jump": _jump,
    "back": _back,
}
_AIMED: dict[str, list[tuple[str, float, Callable[[World, Node], None]]]] = {
    "freeze": [("enroll", 0.7, _freeze), ("release", 0.05, _freeze)],
    "amnesia": [("vote", 0.03, _amnesia), ("claim", 0.03, _amnesia)],
    "stale": [("vote", 0.03, _stale), ("claim", 0.03, _stale)],
    "pause": [("release", 0.3, _pause_the_next)],
    "close": [(verb, 0.05, _close) for verb in ("claim", "vote", "hand_over", "renew", "extend", "release")],
    "jump": [("vote", 0.3, _jump), ("claim", 0.3, _jump)],
    "back": [("release", 0.1, _back), ("vote", 0.05, _back), ("claim", 0.05, _back)],
}
_OFTEN = {"amnesia": 2, "stale": 2, "jump": 3, "back": 2}


def calm(world: World) -> None:
    """Everything works again."""
    network = world.network
    network.loss = network.duplicate = network.tail = 0.0
    for client in world.clients:
        _resume(world, client)
        for link in client.links:
            if link.requests_blocked or link.replies_blocked:
                link.heal(reset=False)
    for node in world.nodes:
        _thaw(world, node)
        _restart(world, node)
