"""Planted bugs, to show that the simulator and the checker would notice. They are nowhere else: what ships is patched.

Each is a mistake that lock libraries have made, with the faults under which it shows itself soon. A little long because they
are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

from ...backends import unanswered
from ...backends.memory import Memory, MemoryBackend
from ...backends.port import NodeStatus
from ...backends.quorum import poller
from ...backends.quorum.readmission import Readmission
from ...backends.quorum.vote import Voting
from ...backends.unanswered import Unanswered
from ...core import lease, quorum, renewal
from ...core.claim import Gone, Granted, Renewal
from ...core.lease import Hold
from ...core.quorum import Marker
from ...core.renewal import Step
from ...errors import Unavailable
from ...flow import ask, closing
from ...flow import hold as holding
from ...flow.context import Context
from ...flow.renewing.keeper import Keeper
from ...flow.undo import Undone
from ...flow.waiting import listener
from ...flow.waiting.name_queue import NameQueue
from ...flow.waiting.queue import LocalQueue
from .dating import by_the_nodes_clock
from .holes import BY_HAND, Patch
from .kernel import Process
from .node import Node
from .path import Path
from .plan import Plan
from .resource import Resource
from .runtime import SimRuntime
from .wire import Wire
from .world import Outcome, simulate


class Mutant(NamedTuple):
    """A planted bug: what it does wrong, the patches, and where to look for it."""

    what: str
    patches: Callable[[], list[Patch]]
    faults: tuple[str, ...]
    nodes: int = 3
    first: int = 0  # the seed to begin with


def _plain_del() -> list[Patch]:
    class Careless(MemoryBackend):
        async def release(self, name: str, token: str, *more: Any, **options: Any) -> bool:
            held = self._memory.holder(name)
            return await super().release(name, held.token if held is not None else token, *more, **options)

    return [(Node, "backend_type", Careless)]


def _half_quorum() -> list[Patch]:
    def half(nodes: int, limit: int | None = 1) -> int:
        return max(nodes // 2, 1)

    return [(quorum, "votes_needed", half), (poller, "votes_needed", half)]


def _validity_from_reply() -> list[Patch]:
    believe = ask.believe

    def late(context: Context, claim: Any, granted: Any, sent_at: float, policy: Any) -> Any:
        return believe(context, claim, granted, context.runtime.now(), policy)

    return [(ask, "believe", late)]


def _no_drift() -> list[Patch]:
    return [(lease, "drift", lambda ttl, rate=0.0: 0.0)]


def _wall_clock() -> list[Patch]:
    def now(self: SimRuntime) -> float:
        return self.process.offset + self.process.rate * self.kernel.now + self.process.wall_offset

    def host(self: Process, moment: float) -> float:
        return (moment - self.offset - self.wall_offset) / self.rate

    return [(SimRuntime, "now", now), (Process, "host", host)]


def _no_write_back() -> list[Patch]:
    async def agree(self: Voting, claim: Any, tally: Any, each: float) -> Granted:
        return Granted(tally.fence(), claim.ttl)

    return [(Voting, "_agree", agree)]


def _write_back_unchecked() -> list[Patch]:
    extend = Memory.extend

    def trusting(self: Memory, lease: Renewal) -> Granted | Gone:
        answer = extend(self, lease)
        if isinstance(answer, Gone) and lease.fence:
            self.last_fence = max(self.last_fence, lease.fence)
            return Granted(lease.fence, lease.ttl)
        return answer

    return [(Memory, "extend", trusting)]


def _retry() -> list[Patch]:
    exchange = Path.exchange

    async def again(
        self: Path, wire: Wire, verb: str, args: tuple[Any, ...], tokens: Sequence[str], until: float, undo: Any
    ) -> Any:
        try:
            return await exchange(self, wire, verb, args, tokens, until, undo)
        except Unavailable:
            if verb in ("claim", "vote"):  # as a client library does below our feet: a connection of its own, and no undo
                Wire(self.link).send(self.request(verb, args))
            raise

    return [(Path, "exchange", again)]


def _new_socket() -> list[Patch]:
    return [(Unanswered, "paths", lambda self, tokens: [])]


def _not_put_down() -> list[Patch]:
    return [(Unanswered, "owes", lambda self, *_: None)]


def _forgotten_at_once() -> list[Patch]:
    return [(unanswered, "OVERDUE", 0.0)]


def _renew_after_deadline() -> list[Patch]:
    plan = renewal.plan

    def late(hold: Hold, now: float, rate: float) -> tuple[Step, float]:
        if hold.kept and not hold.released and not hold.leaving and not hold.dropped and now >= hold.tell_at:
            return (Step.WAIT, now + hold.span / 20) if hold.in_flight else (Step.RENEW, now)
        return plan(hold, now, rate)

    def lost(self: Hold, now: float) -> bool:
        return not self.released and (bool(self.gone) or now >= self.deadline)

    return [(renewal, "plan", late), (renewal, "sendable", lambda hold, now, rate: not hold.in_flight), (Hold, "lost", lost)]


def _write_only_fence() -> list[Patch]:
    return [(Resource, "seals_at_entry", False)]


def _ungated_restart() -> list[Patch]:
    restart = Node.restart

    def with_a_roll(self: Node) -> None:
        restart(self)
        if self.memory.roll is None:
            self.memory.roll, self.memory.enrolled_in = Marker(self._nodes), self.memory.life

    return [(Node, "restart", with_a_roll)]


def _any_life() -> list[Patch]:
    restart = Node.restart

    def same_life(self: Node) -> None:
        restart(self)
        self.memory.life = self.memory.enrolled_in

    return [(Node, "restart", same_life)]


def _any_wait() -> list[Patch]:
    informed = Readmission._informed

    def by_any_loss(self: Any, quarantine: Any, others: list[NodeStatus], own: NodeStatus) -> Any:
        def oldest(standing: NodeStatus) -> NodeStatus:
            return standing._replace(waits=tuple(wait._replace(loss=quarantine.loss) for wait in standing.waits[:1]))

        return informed(self, quarantine, [oldest(other) for other in others], oldest(own))

    return [(Readmission, "_informed", by_any_loss)]


def _no_undo() -> list[Patch]:
    async def forget(context: Context, name: str, token: str, ttl: float, error: BaseException, **more: Any) -> Undone:
        return Undone.NEVER_ASKED

    return [(ask, "undo", forget), (holding, "undo", forget)]


def _old_announcement() -> list[Patch]:
    def believed(self: listener.Listener, waiter: Any, announced: Any) -> Hold:
        now = self._runtime.now()
        ttl = waiter.attempt.policy.believed(announced.ttl)
        until = lease.deadline(now, ttl, self._drift)
        hold = Hold(announced.name, announced.token, ttl, announced.fence, until, self._drift, now, waiter.attempt.policy)
        hold.wanted = waiter.ttl
        return hold

    return [(listener.Listener, "_believed", believed)]


def _late_telling() -> list[Patch]:
    return [(lease, "margin", lambda ttl: -0.05 * ttl)]


def _boasting() -> list[Patch]:
    def remaining(self: Hold, now: float) -> float:
        return max(0.0, self.deadline - now)  # also when it was lost before

    return [(Hold, "remaining", remaining)]


# Mistakes that interlock itself has made, and this simulator has found.


def _announcement_passed_on() -> list[Patch]:
    return [(LocalQueue, "has", lambda self, name, token: False)]


def _shortened_late() -> list[Patch]:
    return [(Hold, "shorten", lambda self, sent_at, ttl: False)]


def _sleeps_for_ever() -> list[Patch]:
    look_at = NameQueue.look_at

    def unwatched(self: NameQueue, waiter: Any, now: float) -> float | None:
        moment = look_at(self, waiter, now)
        return inf if moment is not None and self.holder is not None else moment

    return [(NameQueue, "look_at", unwatched), (NameQueue, "told", lambda self, what: None)]


def _closed_early() -> list[Patch]:
    async def let_out(context: Context) -> None:
        while any(
            queue.waiters for queue in context.queue._queues.values()
        ):  # who has left the line here may still be cleaning up
            await context.runtime.sleep(0.0001)

    return [(closing, "_let_out", let_out)]


def _answer_lost_on_its_way_up() -> list[Patch]:
    return [(SimRuntime, "struck", lambda self, error: False)]


def _release_not_sent() -> list[Patch]:
    async def finish(context: Context, hold: Hold, error: BaseException) -> None:
        if not isinstance(error, Exception):
            await done(context, hold, error)

    done = holding.finish
    return [(holding, "finish", finish), (Keeper, "forsake", lambda self, hold: None)]


MUTANTS: dict[str, Mutant] = {
    "plain-del": Mutant("release deletes whatever is there", _plain_del, ("pause", "delay")),
    "half-quorum": Mutant("half of the nodes are a quorum", _half_quorum, ("partition",)),
    "validity-from-reply": Mutant("validity is counted from the reply", _validity_from_reply, ("delay",)),
    "no-drift": Mutant("no allowance for clocks that run at different rates", _no_drift, ("drift",)),
    "wall-clock": Mutant("deadlines on the wall clock", _wall_clock, ("wall",)),
    "no-write-back": Mutant("the highest fence is not written back", _no_write_back, ("loss", "delay")),
    "write-back-unchecked": Mutant(
        "it is written back where the lock is not ours", _write_back_unchecked, ("jump", "loss"), first=1000
    ),
    "retry": Mutant("a claim without an answer is sent again", _retry, ("delay",)),
    "new-socket": Mutant("the undo takes a new connection", _new_socket, ("delay",)),
    "not-put-down": Mutant("a request that is abandoned is not put down", _not_put_down, ("cancel",), 1),
    "forgotten-at-once": Mutant("what has no answer is forgotten at once", _forgotten_at_once, ("delay",)),
    "renew-after-deadline": Mutant("renewal goes on after the deadline", _renew_after_deadline, ("pause", "freeze")),
    "write-only-fence": Mutant("the resource checks the fence on writes only", _write_only_fence, ("pause", "jump")),
    "ungated-restart": Mutant("a node without its memory votes at once", _ungated_restart, ("amnesia",)),
    "any-life": Mutant("a node that is back with an older state votes at once", _any_life, ("stale",)),
    "any-wait": Mutant("a noted wait counts for whatever was forgotten later", _any_wait, ("amnesia", "brief")),
    "no-undo": Mutant("a claim without an answer is forgotten", _no_undo, ("cancel",)),
    "old-announcement": Mutant("an announcement is counted from when it is read", _old_announcement, ("pause",), 1),
    "late-telling": Mutant("the holder is told after the deadline", _late_telling, ("freeze",)),
    "boasting": Mutant("a lease that was lost says that it has time left", _boasting, ("freeze",)),
    "announcement-passed-on": Mutant(
        "an announcement that comes second releases the lease", _announcement_passed_on, ("reorder", "duplicate"), 1
    ),
    "shortened-late": Mutant("an extend that shortens is believed when it is answered", _shortened_late, ("loss", "delay")),
    "reckoned-clock": Mutant(
        "a grant is dated by what whoever releases thinks that the node's clock reads",
        lambda: by_the_nodes_clock(read_by_whoever_releases=True),
        ("back", "pause"),
        1,
    ),
    "constant-drift": Mutant(
        "a grant is dated by the node's clock, with a drift that is not the client's",
        lambda: by_the_nodes_clock(read_by_whoever_releases=False),
        ("skew", "pause"),
        1,
    ),
    "answer-lost": Mutant(
        "a claim that is struck with its answer read is not taken back", _answer_lost_on_its_way_up, ("struck",), 1
    ),
    "release-struck": Mutant("a release that is struck is not sent", _release_not_sent, ("struck",)),
    "sleeps-for-ever": Mutant("who waits is not woken when the lease here is dropped", _sleeps_for_ever, ("loss",), 1),
    "closed-early": Mutant("a close waits for those who wait, and not for their clean-ups", _closed_early, ("close",), 1),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run with this bug; None: without any."""
    make = BY_HAND.get(name) or MUTANTS[name].patches if name else list
    patches = make()
    before = [(where, what, getattr(where, what)) for where, what, _ in patches]
    try:
        for where, what, new in patches:
            setattr(where, what, new)
        yield
    finally:
        for where, what, old in before:
            setattr(where, what, old)


def hunt(name: str, seeds: int) -> Outcome | None:
    """The first history of this mutant that breaks a promise; None if it survives so many seeds."""
    mutant = MUTANTS[name]
    for seed in range(mutant.first, mutant.first + seeds):
        with planted(name):
            outcome = simulate(Plan.of(seed, mutant.faults, mutant.nodes))
        if outcome.failures:
            return outcome
    return None
