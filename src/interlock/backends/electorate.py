"""The nodes of a quorum: whom to ask, how to ask them all at once, and who may vote.

A node that lost its memory, or came back with an older state of it, may have forgotten leases that are still valid, and
fences. It casts no vote until whatever it may have forgotten is over, counted on this client's own clock, and its fences have
been seeded from a quorum of the others (docs/adr/0008). Whether it has its memory is known by its *roll*, a note that it keeps,
that is good for one life of its memory and for one list of nodes, and that every vote needs.

How long to wait: a lease that counts on the node stands on a quorum, so on one of any quorum of the other nodes too. These are
asked how long a lease may last that they hold (`Standing.held`), once it is known that the node does not vote: what is granted
after that does not count on it.

- all nodes are new: nobody has a roll, so there is nothing to forget, and all get one at once (`_open`)
- whoever gave them their rolls was interrupted: some have one, under which nobody has voted yet. As above: all get one
- two clients are the first at once: each sees a part of the other's rolls and looks again before it suspects anybody
- a node forgets, is let in by another client and forgets again: our wait was for the first loss, and begins anew (`_measure`)
- clients do not live for as long as a node has to wait: every node notes how far the wait has come, and the next client goes on
  from there (`core.waits`, `_informed`)
- most or all were restarted, or lost everything while this client looks on: what they and this client still know of is waited
  for, then they begin again above the highest fence that is known
- nodes with rolls for another list: refused (`core.membership`)

A little long because who may vote is one story, and half of it would be hard to follow.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Coroutine, Sequence, Sized
from contextlib import suppress
from copy import copy
from math import ceil, inf, log2
from typing import Any

from ..core import fence as fences
from ..core.lease import DRIFT_RATE, outlast
from ..core.membership import OtherList, common_list, superseded
from ..core.quorum import SILENT, Health, Quarantine, Roll, missing_at_birth, reopened, reseed, table, verdict_of, votes_needed
from ..core.shown import listed, shown
from ..core.waits import Wait, vouched_age, vouched_end
from ..errors import InterlockError, NoQuorum, Unavailable, UsageError, Vote
from ..runtime.base import Runtime
from .port import Member, Standing

log = logging.getLogger("interlock")

LOOKS = 4  # at rolls that are there only in part, before those that are missing are taken for lost
BETWEEN_LOOKS = 0.05
SOON = 0.001  # seconds, the least that anybody is given to answer
LOOK_AGAIN = 0.1  # at most so long between two looks at whether enough have answered
READMIT_PAUSE = 0.2
MEASURE_PAUSE = 10.0  # between two looks at how long a node has to wait
VET_PAUSE = 1.0
BIRTH = 0.25  # how long a new cluster waits for its last nodes, when it could do without
HEDGE, LONGEST_HEDGE = 2 * SILENT, 0.25  # how long others may be silent before a node that rests is asked after all

# What those who ask for a lock shall hear, and nobody else. A program may have warnings raised.
NOT_ASKED_FOR = (UsageError, Unavailable, RuntimeWarning)

Ask = Callable[[Member], Coroutine[Any, Any, Any]]
Late = Callable[[Sequence[int], float], Ask]  # what nodes that rest are asked after all, so many seconds after the others


class Node:
    """A member and what this client knows of it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.health = Health()
        self.quarantine: Quarantine | None = None
        self.measured_at = -inf  # when we asked last how long it has to wait
        self.vetted = False
        self.ours = False  # it had a roll for our list once: it is one of us, by whatever address we know it


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

    def __init__(
        self, members: Sequence[Member], runtime: Runtime, address: str, is_live: Callable[[str], bool] = lambda token: False
    ) -> None:
        self.nodes = [Node(member) for member in members]
        self._is_live = is_live  # see `port.Member.elect`
        self.needed = votes_needed(len(members))
        self.list: tuple[str, ...] = ()  # of nodes, as the rolls have it
        self._rolls: Sequence[Roll] = ()  # some that are good for it, as last seen
        self._elect(sorted(member.address for member in members))
        self.held: Callable[[], float] = lambda: 0.0  # for how many seconds a lease of this client may last
        self.high = 0  # the highest fence that we know of
        self.window = 0.0  # seconds after a question in which its answers count, if clocks are right: a quorum has noted that
        self._wanted = 0.0  # and the one that it shall note
        self.drift = DRIFT_RATE  # by what share clocks may run apart, as the client was told
        self._address = address
        self._runtime = runtime
        self.light = all(getattr(member, "light", False) for member in members)
        self._open_yet = False
        self._opening = -inf  # until when somebody is at it
        self._unopened: tuple[float, float, NoQuorum] | None = None  # when that failed last, within what time, and why
        self.took = 0.0  # seconds, the last vote
        self._vet_again = 0.0
        self._readmit_again = 0.0
        self._identities: dict[str, str] = {}  # server → the address that it is known by here

    def _elect(self, nodes: Sequence[str]) -> None:
        self.list = tuple(nodes)
        for node in self.nodes:
            node.member.elect(self.list, self._is_live)

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

    def ready_to_extend(self) -> Sequence[int]:
        """Whom to ask for an extension. A node in quarantine too: what it does not hold it does not extend, and to whoever
        holds something there it is as good as any."""
        ready, now = self.ready(), self._runtime.now()
        return sorted({*ready, *(i for i, node in enumerate(self.nodes) if node.quarantine and node.health.retry_at <= now)})

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
            verdict, detail = "quarantined", self._sentence(node.quarantine)
        elif index not in poll.asked:
            verdict = "resting" if node.health.retry_at else "silent"
        latency = poll.times[index] - poll.began if index in poll.times else None
        return Vote(node.member.address, verdict, latency, detail)

    def _sentence(self, quarantine: Quarantine) -> str:
        lost = "lost its memory, or was restarted;"
        if quarantine.until == inf:
            return f"{lost} votes again when a quorum of the others has said what it may have forgotten, and that is over"
        return f"{lost} votes again in {max(quarantine.until - self._runtime.now(), 0):.1f} s at the earliest"

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
            until = self._runtime.now() + within
            await self._begin(within)
            if len(self.able()) < self.needed:  # there is no lock to be had, so this client may not live to ask for another
                await self.readmit(max(self._left(until), within / 2))
            return
        now = self._runtime.now()
        strangers = [index for index, node in enumerate(self.nodes) if not node.vetted and node.health.retry_at <= now]
        if strangers and now >= self._vet_again:  # those that were late, or away, when the client looked first
            self._vet_again = now + VET_PAUSE
            standings, poll = await self._roll_call(strangers, min(within, SILENT), len(strangers))
            self._vet(standings, poll)
            for index, standing in standings.items():
                if not standing.good:
                    self.suspect(index, standing.loss)
        await self.readmit(within)

    async def tend(self, within: float) -> None:
        """After a lock was given back: what `prepare` would do before the next one, which this client may not live to ask for.
        Nodes that cast no vote are noted, or let in. Raises nothing: it is not what was asked for. Takes no longer than a node
        that is well: a look has a quarter of the time."""
        if self._open_yet and not self.settled():
            with suppress(*NOT_ASKED_FOR):
                await self.prepare(min(within, 4 * max(SILENT, 2 * self.took)))

    async def _roll_call(
        self, nodes: Sequence[int], within: float, enough: int, mark: bool = True, least: int | None = None
    ) -> tuple[dict[int, Standing], Poll]:
        """What nodes say of themselves, once that are `enough`; or `least`, after a while."""
        standings: dict[int, Standing] = {}

        def count(index: int, outcome: object) -> bool:
            if isinstance(outcome, Standing):
                standings[index] = outcome
            return len(standings) >= enough

        wanted, after_a_while = self._wanted, None if least is None else self._after_a_while(standings, least)
        waits = self._waits() if mark else ()
        poll = await self.poll(nodes, lambda member: member.roll(within, mark, wanted, waits), count, enough=after_a_while)
        noted = [s for s in standings.values() if s.good and s.roll is not None and s.roll.window + 0.001 > wanted]
        if len(noted) >= self.needed and wanted > self.window:
            self.window = wanted
        return standings, poll

    def want(self, within: float) -> None:
        """Our requests will take so long at most: see `allow`. Of a window a large drift takes a large part."""
        within = max(within, within * (1 - DRIFT_RATE) / (1 - self.drift))
        if within > self._wanted:
            self._wanted = 2.0 ** ceil(log2(within))  # so that it is seldom to be done again

    async def allow(self, within: float, until: float) -> None:
        """Have a quorum note that our requests may take so long, before the first one that may. Raises NoQuorum.

        Why: a node forgets a vote of ours, and another one has not got our request yet when it is asked what it holds. Whoever
        asks waits for so long before that: what comes to a node later than that we do not count any more.
        """
        if within > self.window:
            poll = (await self._roll_call(range(len(self.nodes)), self._left(until), len(self.nodes), least=self.needed))[1]
            if within > self.window:
                raise self.no_quorum("no quorum to begin with", poll)

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
        """The first question: see who is there, and tell a new cluster from nodes that lost their memory.

        While there are rolls that nobody has voted under, another client may be giving them another list. Then nearly everybody
        must have been heard, and have ours: two lists cannot both have that.
        """
        everybody = range(len(self.nodes))
        standings, poll = await self._roll_call(everybody, self._left(until), self.needed)
        if len(standings) < self.needed:
            raise self.no_quorum("no quorum to begin with", poll)
        for look in range(LOOKS + 1):
            self._vet(standings, poll)
            missing = [index for index, standing in standings.items() if not self._good(standing)]
            rolls = [standing.roll for standing in standings.values() if standing.roll is not None]
            used = any(not roll.unused for roll in rolls)
            if not used and not missing and self._nearly_everybody(len(standings)):
                break
            if used and (not missing or look >= LOOKS - 1):
                for index in missing:
                    self.suspect(index, standings[index].loss)
                break
            if look == LOOKS:
                raise self.no_quorum("no quorum to begin with (other clients are the first as well)", poll)
            if used or not await self._born(until):
                await self._runtime.sleep(BETWEEN_LOOKS * (0.5 + self._runtime.jitter()))  # somebody else may be at it
            least = self.needed if used else len(self.nodes) - missing_at_birth(len(self.nodes))
            again, poll = await self._roll_call(everybody, self._left(until), len(self.nodes), least=least)
            standings |= again
        self._open_yet = True

    def _good(self, standing: Standing) -> bool:
        """Whether the node has a roll that is good for our list."""
        roll = standing.roll
        return standing.good and roll is not None and not roll.closed and roll.nodes == self.list

    async def _born(self, until: float) -> bool:
        """Whether the cluster was new and is enrolled now. Raises NoQuorum if too few nodes are there to tell."""
        everybody = range(len(self.nodes))
        least = len(self.nodes) - missing_at_birth(len(self.nodes))
        standings, poll = await self._roll_call(everybody, self._left(until), len(self.nodes), least=least)
        self._vet(standings, poll)
        if any(standing.roll is not None and not standing.roll.unused for standing in standings.values()):
            return False
        taken = {index for index, standing in standings.items() if self._good(standing)}

        def count(index: int, outcome: object) -> bool:
            if outcome is True:  # else it has another roll by now: the next look tells
                taken.add(index)
            return False  # once in the life of a cluster: worth waiting for all of them

        if len(standings) >= least:
            losses, within = {self.nodes[index].member: s.loss for index, s in standings.items()}, self._left(until)
            ask: Ask = lambda member: member.enroll(Roll(self.list, window=self._wanted), losses[member], within)  # noqa: E731
            asked = sorted(standings.keys() - taken)
            poll = await self.poll(asked, ask, count, enough=self._after_a_while(taken, least))
        if len(standings) < least:
            what = "no quorum to begin with (this cluster is new, and no node that forgot must be taken for a new one)"
            raise self.no_quorum(what, poll, least)
        return True

    def _vet(self, standings: dict[int, Standing], poll: Poll) -> None:
        """What a node is: refused if it must not vote, complained about once if it is not fit for locks.

        Raises UsageError, or NoQuorum while the list of nodes is being changed.
        """
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
                    warnings.warn(f"interlock: {node.member.address} {shown(trouble)}", RuntimeWarning, stacklevel=2)
                node.vetted = True
        self._compare_lists(standings, poll)
        for index, standing in standings.items():
            node = self.nodes[index]
            node.ours = node.ours or self._good(standing)

    def _compare_lists(self, standings: dict[int, Standing], poll: Poll) -> None:
        """See that the nodes vote in our quorum and in no other; from the first answers, take over what they call it."""
        own = [node.member.address for node in self.nodes]
        known = self.list if self._open_yet else ()
        try:
            seen = {own[index]: standing.roll for index, standing in standings.items()}
            chosen = common_list(own, seen, known, {node.member.address for node in self.nodes if node.ours})
        except OtherList as other:
            raise UsageError(
                f"the nodes do not belong together: {other.why}. Given were {', '.join(sorted(own))}; the nodes themselves say "
                f"{listed(other.nodes)}. Nothing was locked, since clients with different lists could both get a lock. Give "
                "every client the same list; `interlock quorum change` changes it"
            ) from None
        if chosen != self.list and not self._open_yet:
            self._elect(chosen)
        good = [standing.roll for standing in standings.values() if standing.roll is not None and self._good(standing)]
        self._rolls = good or self._rolls
        if sum(self._shut(standing, bool(good)) for standing in standings.values()) > len(self.nodes) - self.needed:
            raise self.no_quorum(
                "the list of nodes is being changed (`interlock quorum change`): try again when it is done", poll
            )

    def _shut(self, standing: Standing, others_vote: bool) -> bool:
        """Whether the node is closed, and must stay so until whoever changes the list opens it.

        One that was restarted since is like any that was restarted, unless it may wait for a new list that nobody has opened.
        """
        roll = standing.roll
        if roll is None or not roll.closed or superseded(roll, self._rolls):
            return False
        return standing.good or not (roll.to or others_vote)

    def _missed(self, standing: Standing, standings: dict[int, Standing]) -> bool:
        """Whether a node was closed for our list, and not reached when that was opened: a quorum votes under it."""
        return standing.roll is not None and not standing.roll.to and sum(map(self._good, standings.values())) >= self.needed

    def suspect(self, index: int, loss: str = "") -> None:
        """A node without a good roll: it may have lost its memory, or is new among the others. Either way it must wait."""
        node = self.nodes[index]
        if node.quarantine is None:
            node.quarantine = Quarantine(self._runtime.now(), loss=loss)
            log.warning(
                "%s came back without its memory, or with an older state of it: it casts no vote until what it may have "
                "forgotten is over, and its fences are seeded from the others",
                node.member.address,
                extra={"event": "quarantined", "node": node.member.address},
            )

    async def forgetful(self, nodes: Sequence[int], within: float) -> dict[int, str]:
        """Which of these nodes lost their memory, and what an operator should know about it. Changes nothing."""
        standings, _ = await self._roll_call(nodes, within, len(nodes), mark=False)
        if all(standing.roll is None for standing in standings.values()):
            return {}  # a cluster that nobody has used yet
        longest = max(standing.held for standing in standings.values())
        return {
            index: self._sentence(node.quarantine)
            if (node := self.nodes[index]).quarantine is not None
            else f"lost its memory, or was restarted; votes again once a client has waited {outlast(longest, self.drift):.1f} s"
            for index, standing in standings.items()
            if not standing.good
        }

    async def readmit(self, within: float) -> None:
        """Let those vote again who have waited long enough; find out of the others how long they have to."""
        until = self._runtime.now() + within
        if self._runtime.now() >= self._readmit_again:
            # Which loss it is, how long to wait for that, and a roll: at once, if there is nothing to wait for.
            while await self._admission(self._left(until)) and self._left(until) > within / 2:
                pass

    async def _admission(self, within: float) -> bool:
        """The next step for each of those who may not vote. Whether there is another one to be taken now."""
        now = self._runtime.now()
        # As they are before anybody is asked: an answer counts for what was known then, and other threads are at it too.
        due = {index: node.quarantine for index, node in enumerate(self.nodes) if self._due(node, now)}
        if not due:
            return False
        self._readmit_again = now + READMIT_PAUSE  # not with every claim, if it cannot be done now
        # When too few can vote, most may have lost their memory: only the word of nearly everybody will do then.
        asked = sorted({*self.ready(), *due}) if len(self.able()) >= self.needed else range(len(self.nodes))
        standings, poll = await self._roll_call(asked, within / 4, len(asked))  # the rest is for what was asked for
        # One that is a replica by now is kept out. It does not stop the others.
        standings = {index: standing for index, standing in standings.items() if not standing.replica}
        self._vet(standings, poll)
        self.high = max([self.high, *(standing.roll.high for standing in standings.values() if standing.roll is not None)])
        more = news = False
        for index, quarantine in due.items():
            node, standing = self.nodes[index], standings.get(index)
            if standing is None or quarantine is None or node.quarantine is not quarantine:
                continue
            if self._good(standing):  # another client was faster
                self._votes_again(node)
            elif standing.good and self._shut(standing, True) and not self._missed(standing, standings):
                continue  # it is for whoever changes the list to open it
            elif not standing.loss:  # it could not be marked (a full server): this loss could not be told from the next
                continue
            elif standing.loss != quarantine.loss:  # which loss it was, is known from now on; or it forgot once more
                node.quarantine, more = Quarantine(self._runtime.now(), loss=standing.loss), True
            elif quarantine.until > now:
                others = [other for number, other in standings.items() if number != index]
                known, node.measured_at = self._informed(quarantine, others, standing), now
                measured = self._measure(known, now, others, standing)
                if measured is not None and measured.until < known.until:
                    if self._sooner(measured.until, known.until):
                        news = True
                        self._tell_how_long(node.member.address, measured.until - self._runtime.now())
                    known = measured
                node.quarantine, more = known, more or known.until <= self._runtime.now()
            else:
                await self._readmit_one(node, standing, list(standings.values()), within)
        if news:
            await self._roll_call(asked, within / 4, len(asked))  # which the nodes note
        return more

    def _waits(self) -> tuple[Wait, ...]:
        """What this client knows of the waits of nodes that cast no vote, for the nodes to note. Clocks may run apart, so it is
        told as if less time had passed."""
        now, rate, waits = self._runtime.now(), self.drift, []
        for node in self.nodes:
            if node.quarantine is not None and node.quarantine.loss:
                since, until, loss = node.quarantine
                left = None if until == inf else outlast(max(until - now, 0.0), rate)
                waits.append(Wait(loss, max(now - since, 0.0) * (1 - rate), left))
        return tuple(waits)

    def _informed(self, quarantine: Quarantine, others: list[Standing], own: Standing) -> Quarantine:
        """What other clients have had the nodes note of this wait, if that is more than we know. Counted from now: the answers
        are here."""
        noted = [{wait.loss: wait for wait in standing.waits}.get(quarantine.loss) for standing in (*others, own)]
        waits = [wait for wait in noted if wait is not None]
        now, since, until = self._runtime.now(), quarantine.since, quarantine.until
        if (age := vouched_age(waits, self.needed)) is not None:
            since = min(since, now - age * (1 - self.drift))
        if (end := vouched_end(waits, self.needed)) is not None:
            until = min(until, now + (outlast(end, self.drift) if end else 0.0))
            if sum(map(self._good, others)) < self.needed and (own_leases := self.held()):  # which nobody who measured knew of
                until = max(until, now + outlast(own_leases, self.drift))
        return quarantine._replace(since=since, until=until)

    @staticmethod
    def _due(node: Node, now: float) -> bool:
        """Whether there is something to be done for it. A long wait is measured again: what it was for may be released."""
        quarantine = node.quarantine
        if quarantine is None or node.health.retry_at > now:
            return False
        return quarantine.until <= now or quarantine.until == inf or now >= node.measured_at + MEASURE_PAUSE

    def _sooner(self, end: float, other: float) -> bool:
        """Whether others would believe that this is sooner, if it were noted. Each who tells it adds what clocks may differ."""
        now, rate = self._runtime.now(), self.drift
        return now + outlast(outlast(max(end - now, 0.0), rate), rate) < other

    def _measure(self, quarantine: Quarantine, asked_at: float, others: list[Standing], own: Standing) -> Quarantine | None:
        """How long it has to wait. None: that cannot be told yet.

        The others must have been asked after it was known that this one does not vote, and so long after that, that whatever
        counts on its vote has come to them too (`allow`). When most forgot, what was known before that is more.
        """
        good = [standing for standing in others if self._good(standing)]
        most_forgot = len(good) < self.needed
        if most_forgot:
            if quarantine.until < inf or not self._nearly_everybody(len(others) + 1):
                return None
            good = [*others, own]  # what anybody still knows must do
        window = max([self.window, *(standing.roll.window for standing in good if standing.roll is not None)])
        if asked_at < quarantine.since + outlast(window, self.drift):
            return None
        held = max([standing.held for standing in good])
        if most_forgot:
            held = max(held, self.held())
        return quarantine._replace(until=self._runtime.now() + outlast(held, self.drift))

    @staticmethod
    def _tell_how_long(address: str, seconds: float) -> None:
        what = "%s casts no vote for another %.1f s at least: what it may have forgotten lasts until then"
        log.info(what, address, seconds, extra={"event": "waits", "node": address, "seconds": seconds})

    def _nearly_everybody(self, heard: int) -> bool:
        """Silence is no loss: as for a new cluster, so many must answer that the silent ones cannot matter."""
        return heard >= len(self.nodes) - missing_at_birth(len(self.nodes))

    async def _readmit_one(self, node: Node, standing: Standing, standings: list[Standing], within: float) -> None:
        """Its wait is over: give it a roll, with the highest fence of a quorum of the others."""
        if not self._listed(node, standing.roll):
            return
        rolls = [other.roll for other in standings if other.roll is not None and self._good(other)]
        roll = reseed(rolls, self.list)
        if roll is None and self._nearly_everybody(len(standings)):
            # Most lost everything, and what this one forgot is over: the highest fence we know of is the best there is.
            known = [other.roll for other in standings if other.roll is not None]
            roll = reopened(known, self.list, self.high + fences.floor(fences.EPOCH_MS + 1), self.high)
        if roll is not None:
            await self._enroll(node, roll, standing.loss, within)

    def _listed(self, node: Node, roll: Roll | None) -> bool:
        """Whether it is one of us, for certain: see `common_list`.

        A roll that nobody has voted under says nothing, nor does one of a list that was changed into ours.
        """
        if roll is not None and roll.nodes and not roll.unused and not superseded(roll, self._rolls):
            return roll.nodes == self.list
        return node.member.address in self.list or node.ours

    async def _enroll(self, node: Node, roll: Roll, loss: str, within: float) -> None:
        try:
            if not await node.member.enroll(roll, loss, within):
                return  # another client was faster, or it forgot once more: the next look tells
        except Unavailable:
            return
        self._votes_again(node)

    def _votes_again(self, node: Node) -> None:
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
