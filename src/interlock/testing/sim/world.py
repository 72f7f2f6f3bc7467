"""One history: a cluster, its clients, what befalls them, and what they write down."""

from __future__ import annotations

import gc
import logging
from math import inf
from typing import Any, NamedTuple

from ...backends.quorum import ticket
from ...core.lease import Hold
from ...core.quorum import votes_needed
from ..history import Event, Violation, check
from . import faults
from .client import Actor, Client, Face
from .kernel import Endless, Kernel, Process, Task
from .node import Node
from .plan import CLEAN, Plan
from .resource import Resource
from .runtime import SimRuntime
from .wire import Network

GRACE = 0.1  # seconds for what is under way when nothing is wrong with the network


class Outcome(NamedTuple):
    """What came of a history."""

    plan: Plan
    history: list[Event]
    failures: list[Violation]  # of what was promised
    counted: list[Violation]  # of what was not
    timeline: list[str]


class World:
    """Everything in one history."""

    runtime_type = SimRuntime
    node_type = Node
    resource_type = Resource

    def __init__(self, plan: Plan, timeline: list[str] | None = None) -> None:
        self.plan = plan
        self.kernel = Kernel(f"run {plan.seed}")
        self.history: list[Event] = []
        self.owner: dict[str, str] = {}  # token → the lease it belongs to
        self._timeline = timeline
        if timeline is not None:
            self.kernel.note = self._note
        self.network = Network(self.kernel)
        self.nodes = [self._node(number) for number in range(plan.nodes)]
        self.counter = self.resource_type(self.network, self.record)
        self.clients = [self._client(number) for number in range(plan.clients)]
        self._actors = {client: [Actor(client, number) for number in range(plan.actors)] for client in self.clients}
        self._at_work = plan.clients * plan.actors

    def _rate(self) -> float:
        random, rate = self.kernel.random, self.plan.rate
        return 1.0 + random.choice((-rate, rate, random.uniform(-rate, rate))) if rate else 1.0

    def _node(self, number: int) -> Node:
        addresses = tuple(f"node{number}" for number in range(self.plan.nodes))
        plan = self.plan
        node = self.node_type(self.kernel, addresses[number], self._rate(), plan.hybrid, plan.newborn, addresses)
        if "stale" in plan.faults:
            node.states = []
            node.save()
        if plan.forgetful:
            node.let_in = self._let_in
        return node

    def _client(self, number: int) -> Client:
        process = Process(f"client{number}", self._rate(), self.kernel.random.random() * 1000)
        runtime = self.runtime_type(
            self.kernel, process, lambda name, error: self.record(process.name, "defect", note=f"{name} ended with {error!r}")
        )

        def minted(token: str) -> None:
            self.owner[token] = self.kernel.current.op if self.kernel.current is not None else ""

        runtime.minted = minted
        runtime.promised = lambda token: self.owner.update({token: ""})
        return Client(self, process, runtime)

    # --- writing down ---------------------------------------------------------------------------------------------------

    def record(self, who: str, what: str, **fields: Any) -> None:
        """Write an event into the history."""
        event = Event(self.kernel.now, who, what, **fields)
        self.history.append(event)
        if self._timeline is not None:
            self._note(who, _words(event))

    def strike(self, who: str, what: str) -> None:
        """Write down what was done to the system."""
        self.record(who, "fault", note=what)

    def _note(self, who: str, what: str) -> None:
        assert self._timeline is not None
        self._timeline.append(f"{self.kernel.now:11.6f}  {who:<10} {what}")

    def actors_of(self, client: Client) -> list[str]:
        """The names of a client's tasks."""
        return [actor.name for actor in self._actors[client]]

    # --- the course of events -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """From the first question to the last expiry."""
        faults.schedule(self)
        for client in self.clients:
            for actor in self._actors[client]:
                client.runtime.task(actor.work(), self._ended)
        try:
            self.kernel.run(1e9)
        except Endless as error:
            self.record("", "defect", note=str(error))
        got = {event.lease: event.at for event in self.history if event.what == "got"}
        for node in self.nodes if "loss" not in self.plan.faults else ():
            for token, (name, wire, freed_at) in node.revived.items():
                lease = self.owner.get(token, token)
                if got.get(lease, -inf) > freed_at:  # an undo struck it while it waited; it went on, and got the lock
                    continue
                if not wire.cut and not wire.overtaken:  # else its undo may have been lost with the connection
                    self.record(node.address, "revived", name=name, lease=lease)
        if self.kernel.alive:
            self.record("", "defect", note=f"{len(self.kernel.alive)} tasks never ended")
            history, self.history = self.history, []
            self.kernel.note = self._timeline = None
            self.kernel.end()
            self.history = history

    def calm(self) -> None:
        """The faults are over."""
        faults.calm(self)
        self.record("", "calm")

    def _ended(self, task: Task) -> None:
        if isinstance(task.error, Exception):
            self.record(task.process.name, "defect", note=repr(task.error))
        self._at_work -= 1
        if not self._at_work:  # everybody has done everything
            jumped = sum(abs(node.offset) for node in self.nodes)
            self.kernel.at(self.kernel.now + GRACE, None, self._close)
            self.kernel.at(self.kernel.now + 4 * self.plan.ttl + jumped + 1.0, None, self._look, "", "after every ttl")

    def _close(self) -> None:
        for client in self.clients:
            self.close(client, client.face)

    def close(self, client: Client, face: Face) -> None:
        """Close it. What it leaves then is looked for, if nothing else is in the way."""

        def closed(task: Task) -> None:
            if task.error is not None:
                self.record(task.process.name, "defect", note=f"closing: {task.error!r}")
            elif self.plan.faults <= CLEAN:
                self.kernel.at(self.kernel.now + GRACE, None, self._look_behind, face)

        for actor in self._actors[client]:
            actor.unkept(face)
        client.runtime.task(face.close(), closed)

    def _look_behind(self, face: Face) -> None:
        """A client is closed: nothing of it may be in a store but leases whose holders had them, and did not release them."""
        ends = {event.lease: event.note for event in self.history if event.what == "left"}
        had = {event.lease for event in self.history if event.what == "got" and ends.get(event.lease) != "released"}
        for node in self.nodes:
            in_line = [(name, stand.token) for name, line in node.memory.lines.items() for stand in line]
            for name, token in [*node.holds().items(), *in_line]:
                owner = self.owner.get(token, "")
                if token in face.tokens and owner not in had:
                    self.record(node.address, "holds", name=name, lease=owner, note="its client is closed")

    def vouch(self, who: str, lease: str, hold: Hold, until: float) -> None:
        """A lease was granted, and is believed in until that moment: do enough nodes keep it for so long?"""
        if self.plan.forgetful:
            return  # a node that forgot it does not vote: it is kept all the same
        kept = sorted((end for node in self.nodes if (end := node.keeps(hold.name, hold.token)) is not None), reverse=True)
        needed = votes_needed(len(self.nodes))
        end = kept[needed - 1] if len(kept) >= needed else -inf
        if until > end + 1e-6:
            self.record(who, "beyond", name=hold.name, lease=lease, until=until, note=f"{lease} is kept until {end:.6f} only")

    def _let_in(self, node: Node) -> None:
        """A node may vote from now on: no quorum may be free to vote for somebody else while a holder believes in its lease.

        This is looked for by itself, since few histories go on to a second holder.
        """
        for client in self.clients:
            for lease, hold in [item for actor in self._actors[client] for item in actor.holds.items()]:
                until = client.process.host(hold.deadline)
                if until > self.kernel.now and not hold.gone:
                    free = [each for each in self.nodes if each.good and each.holds().get(hold.name) != hold.token]
                    if len(free) >= votes_needed(len(self.nodes)):
                        note = f"{node.address} may vote, and so may a quorum that does not hold {lease}"
                        self.record(node.address, "beyond", name=hold.name, lease=lease, until=until, note=note)

    def turn_ended(self, client: Client, lease: str) -> None:
        """Where nothing can be in the way, what was given back must be out of every store a moment later."""
        if self.plan.faults <= CLEAN:
            ends = [event for event in self.history[-12:] if event.lease == lease and event.what in ("left", "not")]
            if ends and ends[-1].note not in ("expired", "unreachable", "paused", "taken", "forced", "unknown"):
                self.kernel.at(self.kernel.now + GRACE, None, self._look, lease, "given back a moment ago")

    def _look(self, lease: str, note: str) -> None:
        in_line = {token for client in self.clients for face in client.faces for token in face.context.queue.in_line}
        for node in self.nodes:
            for name, token in node.holds().items():
                owner = self.owner.get(token, token)
                if not lease or (owner == lease and token not in in_line):
                    self.record(node.address, "holds", name=name, lease=owner, note=note)


def simulate(plan: Plan, timeline: bool = False) -> Outcome:
    """Run one history and judge it."""
    lines: list[str] = []
    logger = logging.getLogger("interlock")
    checked, ticket.check = ticket.check, True  # a step of a ticket that its table does not have raises
    disabled, logger.disabled = logger.disabled, True  # what the flows say about simulated trouble is of no interest
    collects = gc.isenabled()
    gc.disable()  # a fifth faster; what a history leaves is small
    try:
        world = World(plan, lines if timeline else None)
        world.run()
    finally:
        logger.disabled, ticket.check = disabled, checked
        if collects:
            gc.enable()
    violations = check(world.history)
    failures = [violation for violation in violations if plan.promised(violation.rule)]
    counted = [violation for violation in violations if not plan.promised(violation.rule)]
    return Outcome(plan, world.history, failures, counted, lines)


def _words(event: Event) -> str:
    parts = [event.what]
    if event.lease:
        parts.append(event.lease)
    if event.fence:
        parts.append(f"fence {event.fence}")
    if event.until:
        parts.append(f"until {event.until:.6f}")
    if event.value or event.what in ("enter", "write"):
        parts.append(f"value {event.value}")
    if event.note:
        parts.append(f"({event.note})")
    return " ".join(parts)
