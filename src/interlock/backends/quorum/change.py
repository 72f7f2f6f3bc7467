"""Change the list of nodes of a quorum: look at the nodes, do the next step that `core.change` names, look again.

All that is known stands in the nodes' rolls. So a change that was cut short goes on when it is run again, from any machine, and
several may run at once. What was seen may be over when the step is made; each step is a compare-and-set on one node.

Interleavings and where each is handled
- killed between two steps, or between two nodes of one step: the next run sees what was done, and goes on
- a step's answer is lost: the next look tells whether it was done
- a node is restarted: its roll is not good any more, and it is not counted (`core.change`, rule 4)
- somebody else makes another change, or gives this one up: a compare-and-set fails, and the next look shows why
- the time is over, or whoever started it has had enough: the old list is opened again, unless it is too late for that; then
  it goes on to its end
- the change is refused after some nodes were closed: the old list is opened again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from ...core import change
from ...core.change import Refusal, Seen, Step, TooLate
from ...core.quorum import Marker, table, verdict_of
from ...errors import InterlockError, NoQuorum, Unavailable, UsageError, Vote
from ...runtime.base import Runtime
from ..port import Member, NodeStatus

PAUSE = 0.1  # between two looks, when there is nothing to do
PATIENCE = 10.0  # for so long nodes that are missing are waited for, once there is no way back, or on the way back
INSPECT_PAUSE = 1.0


class Held(NamedTuple):
    """A node that holds leases: for how many seconds at most, and one that is renewed: its name and who has it, if known."""

    address: str
    seconds: float
    name: str = ""
    owner: str = ""


class Progress(NamedTuple):
    """How far it is. `nodes` are those that the step touches, or that are waited for; `held` those of them with leases."""

    stage: str
    waited: float
    nodes: Sequence[str]
    held: Sequence[Held] = ()


class Outcome(NamedTuple):
    """What has become of it: `change.DONE` or `change.GIVEN_UP`. `absent`: nodes that could not be reached or told.

    `why` it was given up: "timeout", "stopped", "refused: …".
    """

    stage: str
    nodes: tuple[str, ...]
    absent: Sequence[str]
    waited: float
    why: str = ""


class _Server:
    """A node, in one list or in both, by whatever address it is known there."""

    def __init__(self, member: Member, old: bool, new: bool) -> None:
        self.member, self.old, self.new = member, old, new
        self.status: NodeStatus | None = None
        self.trouble: BaseException | None = None

    @property
    def seen(self) -> Seen:
        here = self.status
        if here is None:
            return Seen(self.member.address, self.old, self.new)
        return Seen(self.member.address, self.old, self.new, True, here.roll, here.good, here.held)


class QuorumChange:
    """One change, from one list of members to another. Each question takes `within` seconds at most."""

    def __init__(self, old: Sequence[Member], new: Sequence[Member], runtime: Runtime, within: float) -> None:
        self._old, self._new = [member.address for member in old], [member.address for member in new]
        members = {member.address: member for member in (*old, *new)}
        self._servers = [_Server(member, address in self._old, address in self._new) for address, member in members.items()]
        self._runtime, self._within = runtime, within
        self._touched = False  # a node was given a roll
        self._holders: dict[str, tuple[float, str, str]] = {}  # address → when we looked, a name, and who has it

    async def next(self) -> Progress:
        """What would be done next. Changes nothing. Raises UsageError, or NoQuorum when too few nodes answer."""
        await self._look(mark=False)
        step = self._plan(back=False)
        if step.stage == change.MISSING:
            raise self._missing(step)
        return await self._progress(step, 0.0)

    async def run(
        self,
        timeout: float = inf,
        stopped: Callable[[], bool] = lambda: False,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> Outcome:
        """Make the change. Waits `timeout` seconds at most for leases to end; then, or once `stopped`, the old list is opened.

        Raises UsageError if it cannot be made, NoQuorum if too few nodes answer to begin with, or to go on when there is no way
        back: then it must be run again.
        """
        return await self._go(self._runtime.now() + timeout, stopped, tell, "")

    async def give_up(self, tell: Callable[[Progress], None] = lambda _: None) -> Outcome:
        """Open the old list again, after a change that was cut short. Raises UsageError if it is too late for that."""
        return await self._go(inf, lambda: False, tell, "asked for")

    # --- the loop -------------------------------------------------------------------------------------------------------

    async def _go(self, until: float, stopped: Callable[[], bool], tell: Callable[[Progress], None], why: str) -> Outcome:
        now = self._runtime.now
        began, patience, late = now(), inf, False
        while True:
            await self._look()
            if not why and not late and (stopped() or now() >= until):
                why = "stopped" if stopped() else "timeout"
            try:
                step = self._plan(back=bool(why))
            except TooLate as error:
                if why == "asked for":
                    raise UsageError(f"{error}") from None
                why, late = "", True  # it is nearly done: on to the end
                continue
            except UsageError as error:
                if why or not self._touched:
                    raise
                why = f"refused: {error}"
                continue
            absent = [self._servers[number].member.address for number in step.waits_for]
            if step.stage in (change.DONE, change.GIVEN_UP):
                nodes = self._new if step.stage == change.DONE else self._old
                return Outcome(step.stage, tuple(sorted(nodes)), absent, now() - began, why)
            tell(await self._progress(step, now() - began))
            if step.rolls and await self._enroll(step):
                patience = inf
                continue
            patience = min(patience, now() + PATIENCE)
            no_way_back = late or why or step.stage == change.OPENING
            if (step.stage == change.MISSING and not self._touched) or (no_way_back and now() >= patience):
                raise self._missing(step)
            await self._runtime.sleep(PAUSE * (0.5 + self._runtime.jitter()))

    def _plan(self, back: bool) -> Step:
        try:
            return change.plan([server.seen for server in self._servers], self._old, self._new, back)
        except TooLate:
            raise
        except Refusal as refusal:
            raise UsageError(f"the list of nodes cannot be changed: {refusal}") from None

    async def _enroll(self, step: Step) -> bool:
        """Give the nodes their rolls; whether one took it."""
        taken = [False]

        def ended(_: int, outcome: object) -> bool:
            taken[0] |= outcome is True
            return False

        self._touched = True  # before: an answer may be lost
        work = [self._give(self._servers[number], roll) for number, roll in step.rolls.items()]
        await self._runtime.race(work, ended)
        return taken[0]

    async def _give(self, server: _Server, marker: Marker) -> bool:
        assert server.status is not None  # noqa: S101 - it was heard
        return await server.member.enroll(marker, server.status.loss, self._within)

    # --- looking --------------------------------------------------------------------------------------------------------

    async def _look(self, mark: bool = True) -> None:
        """Ask every node how it stands. Raises UsageError for what must not vote, and for what refuses the question."""
        answers: dict[int, NodeStatus | BaseException] = {}

        def ended(number: int, outcome: NodeStatus | BaseException) -> bool:
            answers[number] = outcome
            return False

        await self._runtime.race([server.member.roll(self._within, mark) for server in self._servers], ended)
        for number, answer in answers.items():
            server = self._servers[number]
            server.status = answer if isinstance(answer, NodeStatus) else None
            server.trouble = None if isinstance(answer, NodeStatus) else answer
            if server.trouble is not None and not isinstance(server.trouble, Unavailable):
                raise server.trouble
        self._vet()

    def _vet(self) -> None:
        """As `Electorate` does for clients. A server that each list knows by another address is one server."""
        known: dict[str, _Server] = {}
        for server in list(self._servers):
            here = server.status
            if here is None:
                continue
            if here.replica:
                raise UsageError(f"{server.member.address} is a replica. Give its primary, or another node")
            other = known.setdefault(here.identity or server.member.address, server)
            if other is server:
                continue
            if (other.old and server.old) or (other.new and server.new):
                raise UsageError(
                    f"{other.member.address} and {server.member.address} are the same server, so its vote would count twice. "
                    "Give independent nodes"
                )
            other.old, other.new = True, True
            self._servers.remove(server)

    # --- words ----------------------------------------------------------------------------------------------------------

    async def _progress(self, step: Step, waited: float) -> Progress:
        numbers = sorted(step.rolls) or step.waits_for
        held: list[Held] = []
        if step.stage == change.DRAINING:
            held = [await self._held(self._servers[number]) for number in step.waits_for]
        return Progress(step.stage, waited, [self._servers[number].member.address for number in numbers], held)

    async def _held(self, server: _Server) -> Held:
        """What a node holds. Who has a lease that is renewed there is asked for now and then."""
        address, here = server.member.address, server.status
        assert here is not None  # noqa: S101 - it was heard
        if not here.renewed:
            return Held(address, here.held)
        now = self._runtime.now()
        looked, name, owner = self._holders.get(address, (-inf, "", ""))
        if name != here.renewed or now >= looked + INSPECT_PAUSE:
            try:
                owner = (await server.member.inspect(here.renewed, self._within)).owner
            except InterlockError:
                owner = ""
            self._holders[address] = now, here.renewed, owner
        return Held(address, here.held, here.renewed, owner)

    def _missing(self, step: Step) -> NoQuorum:
        """Who is there and who is not."""
        votes = []
        for number, server in enumerate(self._servers):
            here = server.status
            if here is None:
                verdict, detail = verdict_of(server.trouble)
            elif number in step.waits_for:
                verdict, detail = "quarantined", "has no good roll: it was restarted, lost its memory, or is of another list"
            else:
                verdict, detail = "answered", ""
            votes.append(Vote(server.member.address, verdict, None, detail))
        what = "too few nodes answer to change the list: all of the new list must, and a quorum of the old one" + (
            ". Run it again when they do, and it goes on" if self._touched else "; nothing was changed"
        )
        return NoQuorum(f"{what}.\n{table(votes)}\n", backend="quorum change", votes=tuple(votes))
