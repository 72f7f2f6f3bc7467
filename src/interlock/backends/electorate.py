"""The nodes of a quorum: whom to ask, how to ask them all at once, and who may vote.

A node that lost its memory may have forgotten leases that are still valid, and fences. It casts no vote until the longest lease
it may have forgotten is over, counted on this client's own clock, and its fences have been seeded from a quorum of the others
(docs/adr/0008). Whether it has its memory is known by its *roll*, a note that it keeps and that every vote needs.

- all nodes are new: nobody has a roll, so there is nothing to forget, and all get one at once (`_open`)
- whoever gave them their rolls was interrupted: some have one, under which nobody has voted yet. As above: all get one
- two clients are the first at once: each sees a part of the other's rolls and looks again before it suspects anybody
- a node forgets, is let in by another client and forgets again: our wait was for the first loss, and begins anew (`_waits`)
- most or all lost everything while this client looks on: they wait, then begin again above the highest fence it knows

A little long because who may vote is one story, and half of it would be hard to follow.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Coroutine, Sequence, Sized
from copy import copy
from math import inf
from typing import Any

from ..core import fence as fences
from ..core.lease import drift
from ..core.quorum import SILENT, Health, Quarantine, Roll, missing_at_birth, reseed, table, verdict_of, votes_needed
from ..errors import InterlockError, NoQuorum, Unavailable, UsageError, Vote
from ..runtime.base import Runtime
from .port import Member, Standing

log = logging.getLogger("interlock")

LOOKS = 4  # at rolls that are there only in part, before those that are missing are taken for lost
BETWEEN_LOOKS = 0.05
SOON = 0.001  # seconds, the least that anybody is given to answer
LOOK_AGAIN = 0.1  # at most so long between two looks at whether enough have answered
READMIT_PAUSE = 0.2
VET_PAUSE = 1.0
BIRTH = 0.25  # how long a new cluster waits for its last nodes, when it could do without
HEDGE, LONGEST_HEDGE = 2 * SILENT, 0.25  # how long others may be silent before a node that rests is asked after all

NEWBORN = Roll(0.0, 0, 0)

Ask = Callable[[Member], Coroutine[Any, Any, Any]]
Late = Callable[[Sequence[int], float], Ask]  # what nodes that rest are asked after all, so many seconds after the others


class Node:
    """A member and what this client knows of it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.health = Health()
        self.quarantine: Quarantine | None = None
        self.vetted = False


class Poll:
    """One question to several nodes, and what came of it."""

    __slots__ = ("_electorate", "answers", "asked", "began", "over", "times")

    def __init__(self, electorate: Electorate, asked: Sequence[int], began: float) -> None:
        self._electorate = electorate
        self.asked = asked
        self.began = began
        self.answers: dict[int, Any] = {}  # and errors, as they are
        self.times: dict[int, float] = {}  # when they came
        self.over = False

    def add(self, other: Poll) -> None:
        """What others had to say, who were asked later."""
        self.asked = [*self.asked, *other.asked]
        self.answers |= other.answers
        self.times |= other.times

    def votes(self) -> list[Vote]:
        """What each node had to say. Words take time, so they are made only for those who read them."""
        return [self._electorate.vote(index, self) for index in range(len(self._electorate.nodes))]


class Electorate:
    """The nodes, and what this client knows of them."""

    def __init__(self, members: Sequence[Member], runtime: Runtime, address: str) -> None:
        self.nodes = [Node(member) for member in members]
        self.needed = votes_needed(len(members))
        self.longest = 0.0  # the longest lease that we know of
        self.high = 0  # the highest fence
        self._address = address
        self._runtime = runtime
        self.light = all(getattr(member, "light", False) for member in members)
        self._open_yet = False
        self._opening = -inf  # until when somebody is at it
        self._unopened: tuple[float, float, NoQuorum] | None = None  # when that failed last, within what time, and why
        self.took = 0.0  # seconds, the last vote
        self._vet_again = 0.0
        self._identify_again = 0.0
        self._identities: dict[str, str] = {}  # server → the address that it is known by here

    def able(self) -> list[int]:
        """Those who may vote: who have their memory, as far as we know."""
        return [index for index, node in enumerate(self.nodes) if node.quarantine is None]

    def ready(self) -> list[int]:
        """Whom to ask. A node that failed or is silent rests, unless its vote is needed; then everybody is asked."""
        now, ready = self._runtime.now(), []
        for index, node in enumerate(self.nodes):
            if (
                node.quarantine is None
                and node.health.retry_at <= now
                and (node.member.lag() <= SILENT or self._probe(node, now))
            ):
                ready.append(index)
        return ready if len(ready) >= self.needed else self.able()

    def resting(self, asked: Sequence[int]) -> list[int]:
        """Those who may vote and were not asked. When too few of the others answer it is for them to decide."""
        return [index for index in self.able() if index not in asked]

    def _probe(self, node: Node, now: float) -> bool:
        """A silent node rests. Whether it has rested already: then it is tried once more, and rests longer."""
        probe = node.health.retry_at > 0
        node.health.failed(now, self._runtime.jitter())
        return probe

    async def poll(
        self,
        asked: Sequence[int],
        ask: Ask,
        count: Callable[[int, Any], bool],
        finish: bool = False,
        enough: Callable[[], bool] | None = None,
        late: Late | None = None,
    ) -> Poll:
        """Ask them all at once and count until it is enough. The answers and errors, and what they mean in words.

        `enough` is looked at every now and then: True ends it although some have not answered. With `late`, nodes that rest are
        asked as well when those asked keep silent.
        """
        nodes, now = self.nodes, self._runtime.now
        poll = Poll(self, asked, now())
        answers, times = poll.answers, poll.times
        hedges = [] if late is None or len(asked) == len(nodes) else self.resting(asked)
        places = [*asked, *hedges] if hedges else asked

        def ended(place: int, outcome: Any) -> bool:
            index = places[place]
            if hedges and index not in poll.asked:  # it was not needed
                return False
            answers[index] = outcome
            times[index] = moment = now()
            health = nodes[index].health
            if isinstance(outcome, Unavailable):
                health.failed(moment, self._runtime.jitter())
            elif health.retry_at:
                health.answered()
            if count(index, outcome) or len(answers) == len(poll.asked):
                poll.over = True  # here, not when the race has returned: a hedge may be due in the same turn
            return poll.over

        def bored() -> float:
            poll.over = enough is None or enough()
            return 0.0 if poll.over else min(max(SILENT, now() - poll.began), LOOK_AGAIN)

        work = [ask(nodes[index].member) for index in asked]
        if late is not None and hedges:
            work += [self._hedge(index, poll, late, enough) for index in hedges]
        try:
            await self._runtime.race(work, ended, finish, None if enough is None else bored, self.light)
        finally:
            poll.over = True
        return poll

    async def _hedge(self, index: int, poll: Poll, late: Late, enough: Callable[[], bool] | None) -> Any:
        """Ask a node that rests, unless the others have settled it by then, or it owes answers. Nodes may all be far away: then
        it is not silence yet."""
        await self._runtime.sleep(min(max(HEDGE, 2 * self.took), LONGEST_HEDGE))
        node = self.nodes[index]
        if poll.over or node.quarantine is not None or node.member.lag() > SILENT or (enough is not None and enough()):
            return None
        poll.asked = [*poll.asked, index]
        return await late([index], self._runtime.now() - poll.began)(node.member)

    def vote(self, index: int, poll: Poll) -> Vote:
        """What a node had to say, in words."""
        node = self.nodes[index]
        verdict, detail = verdict_of(poll.answers.get(index))
        if node.quarantine is not None:
            left = node.quarantine.until - self._runtime.now()
            verdict, detail = "quarantined", f"lost its memory; votes again in {max(left, 0):.1f} s at the earliest"
        elif index not in poll.asked:
            verdict = "resting" if node.health.retry_at else "silent"
        latency = poll.times[index] - poll.began if index in poll.times else None
        return Vote(node.member.address, verdict, latency, detail)

    # --- who may vote ---------------------------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Whether there is nothing to prepare: everybody is known, and nobody in quarantine. So it is nearly always."""
        if not self._open_yet:
            return False
        for node in self.nodes:  # noqa: SIM110 - four times as fast as any()
            if node.quarantine is not None or not node.vetted:
                return False
        return True

    async def prepare(self, within: float) -> None:
        """Before a vote: know who is there, and let those back in who have waited long enough. Raises NoQuorum."""
        if not self._open_yet:
            await self._begin(within)
            return
        await self.readmit(within)
        await self._identify(within)
        now = self._runtime.now()
        strangers = [index for index, node in enumerate(self.nodes) if not node.vetted and node.health.retry_at <= now]
        if strangers and now >= self._vet_again:  # those that were late, or away, when the client looked first
            self._vet_again = now + VET_PAUSE
            standings, _ = await self._roll_call(strangers, min(within, SILENT), len(strangers))
            self._vet(standings)

    async def _roll_call(
        self, nodes: Sequence[int], within: float, enough: int, mark: bool = True, least: int | None = None
    ) -> tuple[dict[int, Standing], Poll]:
        """What nodes say of themselves, once that are `enough`; or `least`, after a while."""
        standings: dict[int, Standing] = {}

        def count(index: int, outcome: object) -> bool:
            if isinstance(outcome, Standing):
                standings[index] = outcome
            return len(standings) >= enough

        after_a_while = None if least is None else self._after_a_while(standings, least)
        return standings, await self.poll(nodes, lambda member: member.roll(within, mark), count, enough=after_a_while)

    def _after_a_while(self, heard: Sized, least: int) -> Callable[[], bool]:
        """Whether so many have been heard, and the others have had their time."""
        until = self._runtime.now() + BIRTH
        return lambda: len(heard) >= least and self._runtime.now() >= until

    async def _begin(self, within: float) -> None:
        """Open, once for all who ask at the same time: a thousand tasks need not look at every node each."""
        now = self._runtime.now
        began = now()
        until = began + within
        while not self._open_yet and now() < min(self._opening, until) + LOOK_AGAIN:  # so late it may be said to have failed
            await self._runtime.sleep(BETWEEN_LOOKS / 10)
        if self._open_yet:
            return
        failed = self._unopened
        if failed is not None and failed[0] >= began and failed[1] >= within:  # meanwhile, with as much time as we have
            raise copy(failed[2])
        until = max(until, now() + within / 2)
        self._opening = until  # not for ever: whoever is at it may be killed by a fork
        try:
            await self._open(until)
        except NoQuorum as error:
            self._unopened = now(), within, copy(error)
            raise
        finally:
            self._opening = -inf

    def _left(self, until: float) -> float:
        return max(until - self._runtime.now(), SOON)

    async def _open(self, until: float) -> None:
        """The first question: see who is there, and tell a new cluster from nodes that lost their memory."""
        standings, poll = await self._roll_call(range(len(self.nodes)), self._left(until), self.needed)
        if len(standings) < self.needed:
            raise self.no_quorum("no quorum to begin with", poll)
        self._vet(standings)
        for look in range(LOOKS):
            rolls = [standing.roll for standing in standings.values() if standing.roll is not None]
            self.longest = max([self.longest, *(roll.longest for roll in rolls)])
            missing = [index for index, standing in standings.items() if standing.roll is None]
            if missing and all(roll == NEWBORN for roll in rolls) and await self._born(until):
                break
            if rolls and (not missing or look == LOOKS - 1):
                for index in missing:
                    self.suspect(index, standings[index].loss)
                break
            await self._runtime.sleep(BETWEEN_LOOKS * (0.5 + self._runtime.jitter()))  # somebody else may be at it
            again, _ = await self._roll_call(range(len(self.nodes)), self._left(until), len(self.nodes), least=self.needed)
            standings |= again
        self._open_yet = True

    async def _born(self, until: float) -> bool:
        """Whether the cluster was new and is enrolled now. Raises NoQuorum if too few nodes are there to tell."""
        everybody = range(len(self.nodes))
        least = len(self.nodes) - missing_at_birth(len(self.nodes))
        standings, poll = await self._roll_call(everybody, self._left(until), len(self.nodes), least=least)
        self._vet(standings)
        if any(standing.roll not in (None, NEWBORN) for standing in standings.values()):
            return False
        taken: set[int] = set()

        def count(index: int, outcome: object) -> bool:
            if isinstance(outcome, bool):
                taken.add(index)
            return False  # once in the life of a cluster: worth waiting for all of them

        if len(standings) >= least:
            losses, within = {self.nodes[index].member: s.loss for index, s in standings.items()}, self._left(until)
            ask: Ask = lambda member: member.enroll(NEWBORN, losses[member], within)  # noqa: E731
            poll = await self.poll(sorted(standings), ask, count, enough=self._after_a_while(taken, least))
        if len(taken) < least:
            what = "no quorum to begin with (this cluster is new, and no node that forgot must be taken for a new one)"
            raise self.no_quorum(what, poll, least)
        return True

    def _vet(self, standings: dict[int, Standing]) -> None:
        """What a node is: refused if it must not vote, complained about once if it is not fit for locks."""
        for index, standing in standings.items():
            node = self.nodes[index]
            if standing.replica:
                raise UsageError(f"{node.member.address} is a replica; nothing was locked. Give its primary, or another node")
            other = self._identities.get(standing.identity, node.member.address)
            if other != node.member.address:
                raise UsageError(
                    f"{other} and {node.member.address} are the same server, so its vote would count twice; nothing was "
                    "locked. Give independent nodes"
                )
            if standing.identity:
                self._identities[standing.identity] = node.member.address
            if not node.vetted:
                for trouble in standing.trouble:
                    warnings.warn(f"interlock: {node.member.address} {trouble}", RuntimeWarning, stacklevel=2)
                node.vetted = True

    def suspect(self, index: int, loss: str = "") -> None:
        """A node without its roll: it has lost its memory, or is new among the others. Either way it must wait."""
        node = self.nodes[index]
        if node.quarantine is not None:
            return
        self._waits(node, loss)
        log.warning(
            "%s came back without its memory: it casts no vote for %.1f s at least, then its fences are seeded from the others",
            node.member.address,
            self.longest + drift(self.longest),
            extra={"event": "quarantined", "node": node.member.address, "seconds": self.longest},
        )

    def _waits(self, node: Node, loss: str) -> None:
        now = self._runtime.now()
        node.quarantine = Quarantine(now, now + self.longest + drift(self.longest), loss)

    async def _identify(self, within: float) -> None:
        """Ask which loss a node has suffered, where a vote only said that there was one. The wait counts from here."""
        now = self._runtime.now()
        unknown = [
            index
            for index, node in enumerate(self.nodes)
            if node.quarantine and not node.quarantine.loss and node.health.retry_at <= now
        ]
        if not unknown or now < self._identify_again:
            return
        self._identify_again = now + READMIT_PAUSE
        standings, _ = await self._roll_call(unknown, min(within, SILENT), len(unknown))
        for index, standing in standings.items():
            if standing.loss:
                self._waits(self.nodes[index], standing.loss)

    async def forgetful(self, nodes: Sequence[int], within: float) -> dict[int, str]:
        """Which of these nodes lost their memory, and what an operator should know about it. Changes nothing."""
        standings, _ = await self._roll_call(nodes, within, len(nodes), mark=False)
        rolls = [standing.roll for standing in standings.values() if standing.roll is not None]
        if not rolls:
            return {}  # a cluster that nobody has used yet
        longest = max([self.longest, *(roll.longest for roll in rolls)])
        remarks = {}
        for index, standing in standings.items():
            if standing.roll is None:
                quarantine = self.nodes[index].quarantine
                if quarantine is None:
                    remarks[index] = f"lost its memory; votes again once a client has waited {longest + drift(longest):.1f} s"
                else:
                    left = max(quarantine.until - self._runtime.now(), 0)
                    remarks[index] = f"lost its memory; votes again in {left:.1f} s at the earliest"
        return remarks

    async def readmit(self, within: float) -> None:
        """Let those vote again whose quarantine is served and whose fences can be seeded from a quorum of the others."""
        now = self._runtime.now()
        served = [
            index
            for index, node in enumerate(self.nodes)
            if node.quarantine and node.quarantine.until <= now and node.health.retry_at <= now
        ]
        if not served:
            return
        for index in served:  # not with every claim, if it cannot be done now
            node = self.nodes[index]
            node.quarantine = node.quarantine and node.quarantine._replace(until=now + READMIT_PAUSE)
        # When too few can vote, most may have lost their memory: only the word of nearly everybody will do then.
        asked = sorted({*self.ready(), *served}) if len(self.able()) >= self.needed else range(len(self.nodes))
        standings, _ = await self._roll_call(asked, within / 4, len(asked))  # the rest is for what was asked for
        rolls = [standing.roll for standing in standings.values() if standing.roll is not None]
        self.longest = max([self.longest, *(roll.longest for roll in rolls)])
        self.high = max([self.high, *(roll.high for roll in rolls)])
        for index in served:
            await self._readmit_one(index, standings.get(index), rolls, len(standings), within)

    async def _readmit_one(self, index: int, standing: Standing | None, rolls: list[Roll], heard: int, within: float) -> None:
        node, now = self.nodes[index], self._runtime.now()
        if standing is None or node.quarantine is None:
            return
        if standing.roll is None:
            if standing.loss != node.quarantine.loss:  # it was let in, and forgot again; or we never knew which it was
                self._waits(node, standing.loss)
                return
            until = node.quarantine.since + self.longest + drift(self.longest)
            if until > now:  # somebody granted longer leases than we knew
                node.quarantine = node.quarantine._replace(until=until)
                return
            roll = reseed(rolls, len(self.nodes))
            if roll is None and heard >= len(self.nodes) - missing_at_birth(len(self.nodes)):
                # Most lost everything, and what this one forgot is over: the highest fence we know of is the best there is.
                # Silence is no loss: as for a new cluster, so many must answer that the silent ones cannot matter.
                roll = Roll(self.longest, self.high + fences.floor(fences.EPOCH_MS + 1), self.high)
            if roll is None:
                return
            try:
                if not await node.member.enroll(roll, standing.loss, within):
                    return  # another client was faster, or it forgot once more: the next look tells
            except Unavailable:
                return
        node.quarantine = None
        log.info("%s votes again", node.member.address, extra={"event": "readmitted", "node": node.member.address})

    # --- words ----------------------------------------------------------------------------------------------------------

    def no_quorum(self, what: str, poll: Poll, needed: int = 0) -> InterlockError:
        """The error for too few answers (of those `needed`, else of a quorum): who said what.

        It is the nodes' own when they all say that the question is wrong.
        """
        answers = poll.answers
        wrong = [answer for answer in answers.values() if isinstance(answer, UsageError)]
        if wrong and (len(wrong) >= self.needed or len(wrong) == len(answers)):  # not the nodes' fault
            return wrong[0]
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, InterlockError):
                raise answer  # a defect of ours, not an outage
        said = tuple(poll.votes())
        text = f"{what}: {needed or self.needed} of {len(self.nodes)} nodes must answer.\n{table(said)}\n"
        return NoQuorum(text, backend=self._address, votes=said)
