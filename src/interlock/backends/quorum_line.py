"""Waiting for a quorum: the same ticket in the lines of all nodes, and what they announce, put together.

A waiter stands in every node's line under the same token with the same arrival, so the heads of the lines agree, and a release
serves the same one everywhere. A quorum of equal announcements is a grant, with no request of the winner's own.

Invariants
- A grant is believed by announcements only while no request of the token is on its way that might give a node back (`asking`),
  only from nodes that owe the token no answer (`loose`), only with one fence from a quorum, and only for what these nodes
  granted after their last answer to the token (`Turn`). Anything else is a hint: the waiter asks, and the vote decides.
- Whoever loses a vote keeps no more than it must. If somebody has the lock, it gives back what it got, and nobody is served
  with that (`retreat`). If the vote is split, a node stays with the earliest ticket: whoever has it hands it over to itself,
  which gives it to those in line who came before. So the earliest gets them all, whoever got what at first.

Interleavings and where each is handled
- an announcement is lost, a node is slow or dead    → a quorum of the others is enough; fewer are a hint, after a moment
- a node's inbox broke, or was slow to open          → opened again (`_reopen`), then all ask again (`_nudge`), since they may
  not stand in line there; the others suffice meanwhile
- so many broke that no quorum is left                → `hear` raises: all of them are opened again, and everybody asks
- heads disagree (lines were joined in another order, a node came back empty) → each gets a hint, asks, and the votes are split
- announced while its own question is on its way      → a hint: it asks again at once (`rung`)
- an announcement is read after what it tells of was given back → its fence is not above the node's last answer (`Turn`)
- a request had no answer: it may come to the node later, by another path than what follows → that node does not count for the
  token any more; when too few are left, or it has such a node, which nobody else can have then and which it cannot use, the
  token is spent and the waiter takes another
- served on a node that lacks the lease it has already → it is healed by that; nobody need hear of it
- it left meanwhile                                  → its release passes the node on; what a node says much later is a stray,
  which the hub releases
- a node without its roll                            → does not serve (the member's duty)

This file is long because the interleavings are one story.
"""

from __future__ import annotations

from _thread import allocate_lock  # threading itself is forbidden to backends: it invites waiting
from collections import OrderedDict
from collections.abc import Collection, Sequence
from math import inf
from statistics import median
from typing import Any

from ..core.claim import Announced, Claim, Granted, Handed, Refused
from ..core.quorum import SILENT, Tally
from ..core.turn import Served, Turn
from ..errors import InterlockError, Unavailable, UsageError
from ..runtime import forks
from ..runtime.base import Runtime
from .electorate import SOON, Ask, Poll
from .port import LineMember, Member
from .quorum import QuorumBackend

HINT = 0.01  # seconds in which the other nodes are expected to announce what one of them did; as much again is jitter
SAME_PATH = 2.5  # seconds for which what follows an unanswered request goes down the same connection, for certain
PATIENCE = 0.1  # for a node that has just granted to take it back
REOPEN_WITHIN, REOPEN_PAUSE, REOPEN_LONGEST = 0.1, 0.1, 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.004, 0.25  # between the questions of somebody who has a part of a split vote
LATE = 2.0  # for how long announcements to somebody who has left are expected: what left with it passes them on


class Seat:
    """A token that waits."""

    __slots__ = ("after", "asking", "axis", "due", "loose", "name", "place", "rung", "splits", "turn", "vain")

    def __init__(self, claim: Claim, turn: Turn) -> None:
        self.name = claim.name
        self.place = claim.place
        self.turn = turn
        self.asking = False
        self.rung = False  # something was announced meanwhile
        self.due = inf  # when what was announced becomes a hint
        self.splits = 0  # votes in a row that were split
        # What is added to our clock in answers, so that it is near those of the nodes: it orders the lines.
        self.axis = 0.0
        self.after: dict[int, int] = {}  # the highest fence of each node in its last answer
        self.loose: dict[int, float] = {}  # nodes that owe it an answer: since when; for ever if the path broke
        self.vain = False  # a node has granted it the lock that does not count any more

    def sends(self, nodes: Sequence[int], now: float) -> None:
        """A request goes out to these nodes."""
        for node in nodes:
            self.loose.setdefault(node, now)

    def heed(self, node: int, answer: object, sent_at: float) -> object:
        """What an answer counts for: nothing if an earlier request may still be on its way to the node, by another path."""
        if isinstance(answer, Unavailable):
            if answer.cause == "closed":
                self.loose[node] = -inf
            return answer
        if sent_at - self.loose.get(node, sent_at) > SAME_PATH:
            self.vain |= isinstance(answer, Granted)
            return None
        self.loose.pop(node, None)
        if isinstance(answer, Granted | Refused):
            self.after[node] = answer.fence
        elif isinstance(answer, int):  # to a retreat
            self.after[node] = answer
        return answer

    def lost(self, now: float) -> int:
        """How many nodes do not count any more."""
        return sum(now - since > SAME_PATH for since in self.loose.values())


class Ear:
    """The inbox at one node."""

    __slots__ = ("name", "open", "pause", "retry_at")

    def __init__(self) -> None:
        self.name = ""
        self.open = False
        self.pause, self.retry_at = REOPEN_PAUSE, 0.0


class QuorumLine(QuorumBackend):
    """See `port.Line`. Make it with `open_quorum`."""

    rely = 6.0  # seconds, see `flow.waiting.queue`: a question costs every node several commands

    def __init__(self, members: Sequence[LineMember], runtime: Runtime) -> None:
        super().__init__(members, runtime)
        self.capabilities = self.capabilities._replace(lines=True)
        self._members = members
        self._number = {id(member): index for index, member in enumerate(members)}
        self._ahead: dict[int, float] = {}  # how far each node's clock is ahead of ours, as far as we know
        self._start_afresh()
        forks.watch(self)

    def _start_afresh(self) -> None:
        self._guard = allocate_lock()  # around the seats: the hub is a thread of its own. Never held while waiting
        self._seats: dict[str, Seat] = {}
        self._pending: dict[str, Seat] = {}  # those that something was announced to
        self._strays: dict[str, tuple[str, float]] = {}  # by token: a name, and when to say so
        self._owed: dict[str, dict[int, float]] = {}  # by token of those that were told that they have it: `Seat.loose`
        self._left: OrderedDict[str, tuple[float, set[int]]] = OrderedDict()  # until when; nodes that gave no answer
        self._ears = [Ear() for _ in self._members]

    def disown(self) -> None:
        """See `forks`: nobody waits in the child, and the inboxes are the parent's."""
        self._start_afresh()

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`. One that waits is heard by all nodes that answer soon, since it stands in their lines."""
        seat = self._seats.get(claim.token)
        if claim.place is None and seat is None:
            return await super().claim(claim, within)
        if seat is not None:
            claim = claim._replace(place=seat.place)
        seat = self._sit(claim)
        try:
            each = await self._prepare(claim, within)
            proposal = self._proposal()
            asked, sent_at, window = self.electorate.ready(), self._runtime.now(), self.electorate.window
            tally, asked_at = Tally(asked, len(self.nodes)), dict.fromkeys(asked, sent_at)
            # It asks again within `rely`, and what is on record must last until then: next time other nodes may rest.
            known_for = max(claim.ttl, self.rely)

            def count(index: int, outcome: object) -> bool:
                self._count(tally, seat, index, outcome, asked_at[index], self._in_time(sent_at, window))
                return tally.won

            def enough() -> bool:
                # That it has to wait is known: in how many lines it stands is worth a moment. When it is the nodes that are
                # missing, the others are heard out: they are needed.
                waits = tally.decided and not tally.hopeless
                return tally.doubtful or (waits and self._runtime.now() - max(asked_at.values()) >= SILENT)

            def late(nodes: Sequence[int], after: float) -> Ask:
                now = self._runtime.now()
                asked_at.update(dict.fromkeys(nodes, now))
                self._remember(claim.token, tally.ask(nodes), known_for)
                seat.sends(nodes, now)
                return lambda member: member.vote(self._at(member, claim), proposal, max(each - after, SOON))

            self._remember(claim.token, asked, known_for)
            self._asked.add(claim.token)
            seat.sends(asked, sent_at)
            ask: Ask = lambda member: member.vote(self._at(member, claim), proposal, each)  # noqa: E731
            poll = await self.electorate.poll(asked, ask, count, enough=enough, late=late)
            if tally.hopeless and (resting := self.electorate.resting(poll.asked)) and (took := self._took_so_far(poll)) < each:
                poll.add(await self.electorate.poll(resting, late(resting, took), count, enough=enough))
            self._took(poll)
            self._suspect(poll)
            return await self._judge(claim, seat, tally, sent_at, each, poll)
        finally:
            seat.asking = False

    async def hand_over(self, name: str, token: str, heir: Claim, before: int, within: float) -> Handed:
        """See `port.Line.hand_over`. Raises NoQuorum when too few nodes answer: then it may have happened on some."""
        seat = self._sit(heir)
        try:
            each = await self._prepare(heir, within)
            record = self._forget(token)  # first: a renewal under way must not heal it any more
            asked, sent_at = sorted({*record.nodes, *self.electorate.ready()}), self._runtime.now()
            window = self.electorate.window
            proposal = record.fence + 1 if record.fence else self._proposal()
            tally = Tally(asked, len(self.nodes))
            spoke, had = 0, set(record.nodes)  # those that may have had it: silence is no loss
            held = 0
            over = False  # a quorum has answered: nobody will undo it

            async def hand(member: Any) -> object:
                try:
                    handed = await member.hand_over(name, token, self._at(member, heir), before, each, proposal)
                except Unavailable:
                    if over:  # else an undo may have to follow it
                        member.drop(token)
                    raise
                except BaseException:
                    member.drop(token)
                    raise
                member.drop(token)
                return handed

            def count(index: int, outcome: object) -> bool:
                nonlocal spoke, held
                if isinstance(outcome, Handed):
                    spoke += 1
                    held += outcome.held
                    if not outcome.held:
                        had.discard(index)
                    outcome = outcome.heir
                elif isinstance(outcome, Unavailable):
                    failed.add(index)
                self._count(tally, seat, index, outcome, sent_at, self._in_time(sent_at, window))
                return tally.won and held >= self.needed and not tally.behind()

            failed = self._leaves(token)
            self._remember(heir.token, asked, max(heir.ttl, self.rely))
            self._asked.update((heir.token, token))
            seat.sends(asked, sent_at)
            poll = await self.electorate.poll(
                asked, hand, count, finish=True, enough=lambda: tally.decided and spoke >= self.needed
            )
            self._suspect(poll)
            if spoke < self.needed:
                self._where[token] = record
                error = self.electorate.no_quorum(f"no quorum to hand over '{name}'", poll)
                if isinstance(error, UsageError):  # it is taken for "nothing happened", and some nodes may have handed over
                    await self._release(heir.name, heir.token, each)
                raise error
            over = True
            for index in failed:
                self.nodes[index].member.drop(token)
            answer: Granted | Refused
            try:
                answer = await self._judge(heir, seat, tally, sent_at, each, poll)
            except InterlockError:  # a quorum has let go of the lease all the same; the heir asks for itself, and hears it
                answer = Refused(0.0, tally.owner(), tuple(poll.votes()), spent=True)
            self._asked.discard(token)
            return Handed(len(had) >= self.needed, answer)
        finally:
            seat.asking = False

    def _sit(self, claim: Claim) -> Seat:
        """The seat of a token that is about to ask. (Without a place it is nobody's.)"""
        with self._guard:
            seat = self._seats.get(claim.token) or Seat(claim, Turn(self.needed, len(self.nodes)))
            seat.loose |= self._owed.pop(claim.token, {})  # what it was told was too old to be believed
            if claim.place is not None:
                self._seats[claim.token] = seat
            seat.asking, seat.rung, seat.due = True, False, inf
            self._pending.pop(claim.token, None)
            return seat

    def _at(self, member: Member, claim: Claim) -> Claim:
        """The claim as it goes to one node, with the inbox there. Without one it does not wait there: it could not be told."""
        name = self._ears[self._number[id(member)]].name
        return claim._replace(place=claim.place._replace(inbox=name) if claim.place is not None and name else None)

    def _count(self, tally: Tally, seat: Seat, index: int, outcome: object, sent_at: float, in_time: bool) -> None:
        heeded = seat.heed(index, outcome, sent_at)
        if not in_time:
            seat.vain |= isinstance(heeded, Granted)  # it has the node, and cannot use it
            heeded = None
        tally.count(index, heeded)
        if isinstance(outcome, Refused) and outcome.at > 0:
            # It was read between asking and now. What is known is changed no more than need be: it grows more exact with each.
            now, known = self._runtime.now(), self._ahead.get(index) or self._runtime.wall_ahead()
            self._ahead[index] = min(max(known, outcome.at - now), outcome.at - sent_at)

    async def _judge(
        self,
        claim: Claim,
        seat: Seat,
        tally: Tally,
        sent_at: float,
        each: float,
        poll: Poll,
    ) -> Granted | Refused:
        """What becomes of a claim that was voted on. If it is refused it waits, unless it has no place."""
        if tally.won:
            granted = await self._agree(claim, tally, each)
            if granted is not None:
                self._has(claim.token, claim.ttl, granted.fence)  # any node may owe it an answer to an earlier question
                self._rise(claim.token)
                return granted
        lost = seat.lost(self._runtime.now())
        spent = lost > len(self.nodes) - self.needed or (lost > 0 and tally.hopeless) or seat.vain
        if spent or tally.hopeless or claim.place is None:
            await self._release(claim.name, claim.token, each, set(tally.granted), () if spent else set(tally.refused))
            if tally.hopeless and not spent:
                raise self.electorate.no_quorum(f"no quorum for '{claim.name}'", poll)
            return Refused(0.0 if spent else tally.retry_after(), tally.owner(), tuple(poll.votes()), spent=spent)
        kept = await self._stand_back(claim, seat, tally, each)
        with self._guard:
            seat.turn = Turn(self.needed, len(self.nodes), kept)
            seat.asking = False
            if self._ahead and not seat.axis:
                seat.axis = median(self._ahead.values())
            rung = seat.rung
        seat.splits = seat.splits + 1 if kept else 0
        retry_after = tally.retry_after()
        if rung or tally.won:
            retry_after = 0.0
        elif kept:  # the others who have a part will hand it over when they ask, if we came before them; else we do
            pause = min(FIRST_PAUSE * 2 ** min(seat.splits, 10), LONGEST_PAUSE) * self._runtime.jitter()
            retry_after = pause if retry_after is None else min(pause, retry_after)
        return Refused(retry_after, tally.owner(), tuple(poll.votes()), sent_at + seat.axis)

    async def _stand_back(self, claim: Claim, seat: Seat, tally: Tally, each: float) -> set[int]:
        """After a lost vote: give back what was granted, or keep it from those who came later. On which nodes it is kept."""
        kept: set[int] = set()
        nodes, place = sorted(tally.granted), claim.place
        if not nodes or place is None:
            return kept
        held, sent_at = tally.held, self._runtime.now()
        longest = max((refused.retry_after or 0.0 for refused in tally.refused.values()), default=0.0)
        top = max([tally.fence(), *(refused.fence for refused in tally.refused.values())])

        async def back(member: Any) -> object:
            if held:
                return await member.retreat(self._at(member, claim), longest, each)
            handed = await member.hand_over(claim.name, claim.token, self._at(member, claim), place.arrival, each, top + 1)
            return handed.heir if isinstance(handed, Handed) else handed

        def count(index: int, outcome: object) -> bool:
            if isinstance(seat.heed(index, outcome, sent_at), Granted):
                kept.add(index)
            return False

        seat.sends(nodes, sent_at)
        await self.electorate.poll(nodes, back, count, finish=True, enough=lambda: self._runtime.now() - sent_at > PATIENCE)
        return kept

    def _rise(self, token: str) -> None:
        """It does not wait any more."""
        if not self._seats and not self._pending:  # nobody does; a token's own seat is made by whoever asks for it
            return
        with self._guard:
            self._seats.pop(token, None)
            self._pending.pop(token, None)

    def _leaves(self, token: str) -> set[int]:
        """It is given back: what is announced to it from now on is passed on by that, except on nodes that are added here."""
        now, failed = self._runtime.now(), set[int]()
        with self._guard:
            self._left[token] = now + LATE, failed
            self._owed.pop(token, None)
            while self._left[oldest := next(iter(self._left))][0] <= now:
                del self._left[oldest]
        return failed

    async def _release(
        self, name: str, token: str, within: float, known: set[int] | None = None, free: Collection[int] = ()
    ) -> tuple[int, int, Poll]:
        failed = self._leaves(token)
        self._rise(token)
        done, held, poll = await super()._release(name, token, within, known, free)
        failed.update([index for index, answer in poll.answers.items() if isinstance(answer, BaseException)])
        return done, held, poll

    # --- hearing --------------------------------------------------------------------------------------------------------

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`. One at each node; a quorum of them is enough. Raises NoQuorum."""
        shut = [index for index, ear in enumerate(self._ears) if not ear.open]
        ready = [index for index in self.electorate.ready() if index in shut]
        if self._hearing + len(ready) >= self.needed:  # else also those that are resting, or have no vote for now
            shut = ready
        if shut:

            def count(index: int, outcome: object) -> bool:
                self._opened(index, outcome)
                return False

            poll = await self.electorate.poll(
                shut,
                lambda member: self._members[self._number[id(member)]].open_inbox(within),
                count,
                enough=lambda: self._hearing >= self.needed,
            )
            if self._hearing < self.needed:
                raise self.electorate.no_quorum("no quorum to be told by", poll)
        return f"{id(self):x}"

    def _opened(self, index: int, outcome: object) -> None:
        ear, now = self._ears[index], self._runtime.now()
        if isinstance(outcome, str):
            ear.name, ear.open, ear.pause = outcome, True, REOPEN_PAUSE
        else:
            ear.retry_at = now + ear.pause * (0.5 + self._runtime.jitter())
            ear.pause = min(2 * ear.pause, REOPEN_LONGEST)

    @property
    def _hearing(self) -> int:
        return sum(ear.open for ear in self._ears)

    async def hear(self, until: float) -> Sequence[Announced]:
        """See `port.Line.hear`. Raises Unavailable when fewer than a quorum can be heard."""
        now = self._runtime.now
        while True:
            if ripe := self._ripe(now()):
                return ripe
            await self._reopen()
            listening = [index for index, ear in enumerate(self._ears) if ear.open]
            if len(listening) < self.needed:
                raise Unavailable(
                    f"{self.address} cannot be heard: the inboxes at {len(self.nodes) - len(listening)} of its nodes broke",
                    backend=self.address,
                    cause="closed",
                )
            moment = min(until, self._next())
            await self._runtime.race([self._listen(index, moment) for index in listening], _raises, light=self.electorate.light)
            if now() >= until:
                return self._ripe(now())

    async def _listen(self, index: int, until: float) -> bool | None:
        """Hear one node, until there is something to be looked at."""
        while True:
            try:
                heard = await self._members[index].hear(until)
            except Unavailable as error:
                self._ears[index].open = False
                self._opened(index, error)
                return True
            news = [self._told(index, announced) for announced in heard]
            if any(news):
                return True
            if self._runtime.now() >= until:
                return None

    def _next(self) -> float:
        """When something has to be done although nobody says a word."""
        with self._guard:
            moments = [seat.due for seat in self._pending.values()] + [due for _, due in self._strays.values()]
        return min(moments + [ear.retry_at for ear in self._ears if not ear.open], default=inf)

    async def _reopen(self) -> None:
        """Open inboxes that broke, or could not be opened before. It takes a thread's time, so little is spent on each."""
        now = self._runtime.now()
        for index in [index for index, ear in enumerate(self._ears) if not ear.open and ear.retry_at <= now]:
            try:
                self._opened(index, await self._members[index].open_inbox(REOPEN_WITHIN))
            except InterlockError as error:  # also one that refuses for good: the others can be heard
                self._opened(index, error)
            else:
                self._nudge()

    def _nudge(self) -> None:
        """Have everybody who waits ask again: so they stand in line at a node where they could not be told before."""
        now = self._runtime.now()
        with self._guard:
            for token, seat in self._seats.items():
                if not seat.asking and seat.due == inf:
                    seat.due = now
                    self._pending[token] = seat

    def _told(self, index: int, announced: Announced) -> bool:
        """A node has announced something. Whether that is news."""
        token, now = announced.token, self._runtime.now()
        with self._guard:
            seat = self._seats.get(token)
            if seat is None:
                left = self._left.get(token)
                if left is not None and now < left[0] and index not in left[1]:
                    return False
                record = self._where.get(token)
                if record is not None and record.fence:  # it has the lock: the node has caught up
                    return False
                self._strays.setdefault(token, (announced.name, now + HINT))
                return True
            if seat.asking:
                seat.rung = True
                return False
            served = Served(announced.fence, announced.ttl, min(announced.at, now)) if announced.at > -inf else None
            seat.turn.told(index, served, None if index in seat.loose else seat.after.get(index))
            if seat.due == inf:
                seat.due = now + HINT * (1 + self._runtime.jitter())
                self._pending[token] = seat
                return True
            return seat.turn.hopeful or seat.turn.granted() is not None

    def _ripe(self, now: float) -> list[Announced]:
        """The grants and the hints that it is time for."""
        ripe: list[Announced] = []
        with self._guard:
            for token, (name, due) in list(self._strays.items()):
                if now >= due:
                    del self._strays[token]
                    ripe.append(Announced(name, token, 0, 0.0, -inf))
            for token, seat in list(self._pending.items()):
                served = seat.turn.granted()
                if served is not None:
                    self._has(token, served.ttl, served.fence)
                    ripe.append(Announced(seat.name, token, served.fence, served.ttl, served.since))
                    del self._pending[token], self._seats[token]
                    if seat.loose:
                        self._owed[token] = seat.loose
                elif seat.turn.hopeful or now >= seat.due:
                    ripe.append(Announced(seat.name, token, 0, 0.0, -inf))
                    del self._pending[token]
                    seat.due = inf
        return ripe


def _raises(index: int, outcome: object) -> bool:
    """What ends a round of listening: something to be looked at. A closed client's error goes to the caller."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome is True
