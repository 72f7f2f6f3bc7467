"""A vote: a claim is put to the nodes, and it is decided what becomes of it.

Invariants
- A grant counts when a quorum has granted it in time, and stores its fence while the token holds the lock there (`_agree`).
- A claim that loses keeps no more than it must. If another token has the lock, it gives back what it got, and no waiter is
  served with that (`retreat`). If the vote is split, each claim hands the nodes that it has over to itself. A node then prefers
  the earliest in its line. So the earliest claim collects all nodes.

Interleavings and where each is handled
- too few of those answer that were thought to be well, or they keep silent: resting nodes are asked too (`poller`)
- split vote, or a grant that not enough nodes can be taught the fence of: taken back, or kept in line, and asked again later
- cancelled while votes are out: the ticket says so, and `undo` takes back what any node may have granted
- a request had no answer: it may come to the node later, by another path than what follows. That node does not count for the
  token any more (`Ticket.accept`). When too few are left, or such a node has granted it (no other client can have the node
  then, and this one cannot use it), the token is *spent*: it is released, and the waiter takes another
- a node lost its memory: it answers Unmarked, does not count, and is put into quarantine
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from statistics import median
from typing import Any, cast

from ...core import fence as fences
from ...core.claim import Claim, Granted, Handed, Refused, Unmarked
from ...core.clock import StoreClock
from ...core.quorum import SILENT, Tally
from ...runtime.base import Runtime
from ..port import LineMember, Member
from .inboxes import Inboxes
from .markers import Markers
from .poller import SOON, Collect, Poll, Poller, Question
from .readmission import Readmission
from .release import Releasing
from .ticket import Ticket
from .tickets import RELY, Tickets

LEAD_MS = 50  # how far ahead of our clock a proposal is, so that nodes whose clocks are a little ahead can take it too
MOST_LEAD_MS = 1000  # when votes take long: those of a thousand tasks at once reach the nodes late
PATIENCE = 0.1  # for a node that has just granted to take it back
FIRST_PAUSE, LONGEST_PAUSE = 0.004, 0.25  # between the questions of a waiter that has a part of a split vote


class Count:
    """The count of the answers to one claim, as far as they count for its ticket."""

    def __init__(self, voting: Voting, ticket: Ticket, asked: Sequence[int]) -> None:
        self._voting, self._ticket, self._in_time = voting, ticket, voting.markers.in_time
        self.sent_at, self._window = voting.runtime.now(), voting.markers.window
        self.tally = Tally(asked, len(voting.poller.nodes))
        self.asked_at = dict.fromkeys(asked, self.sent_at)

    def count(self, index: int, answer: object) -> None:
        """A node has answered, or failed to."""
        ticket, sent_at = self._ticket, self.asked_at[index]
        accepted = ticket.accept(index, answer, sent_at)
        if not self._in_time(self.sent_at, self._window):
            ticket.unusable_grant |= isinstance(accepted, Granted)
            accepted = None
        self.tally.count(index, accepted)
        if ticket.place is not None and isinstance(answer, Refused) and answer.at > 0:
            self._voting.saw_clock(index, answer.at, sent_at)


class _Vote(Question):
    """May this token have the name? With a place in line it is heard by all nodes that answer soon, since it stands there."""

    looks = late = True

    def __init__(self, voting: Voting, claim: Claim, ticket: Ticket, asked: Sequence[int], within: float) -> None:
        self.within = within
        self.counted = Count(voting, ticket, asked)
        self._voting, self._claim, self._ticket, self._tally = voting, claim, ticket, self.counted.tally
        self._proposal = voting.proposal()
        # It asks again within RELY, and what is in the book must last until then: next time other nodes may rest.
        self._known_for = claim.ttl if claim.place is None else max(claim.ttl, RELY)
        self._asks(asked, self.counted.sent_at)

    def _asks(self, nodes: Sequence[int], now: float) -> None:
        self._voting.tickets.sent(self._ticket, nodes, self._known_for)
        self._ticket.sends(nodes, now)

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, Any]:
        within = max(self.within - after, SOON) if after else self.within
        return member.vote(self._voting.inboxes.addressed(index, self._claim), self._proposal, within)

    def asks_also(self, nodes: Sequence[int]) -> None:
        now = self._voting.runtime.now()
        self.counted.asked_at.update(dict.fromkeys(nodes, now))
        self._tally.ask(nodes)
        self._asks(nodes, now)

    def count(self, index: int, answer: Any) -> bool:
        self.counted.count(index, answer)
        return self._tally.won or (self._claim.place is None and self._refused())

    def enough(self) -> bool:
        """See `Question.enough`. That it has to wait is known: in how many lines it stands is worth a moment."""
        if self._tally.doubtful or self._claim.place is None:
            return self._tally.doubtful
        return self._refused() and self._voting.runtime.now() - max(self.counted.asked_at.values()) >= SILENT

    def _refused(self) -> bool:
        # When it is the nodes that are missing, the others are heard out: they must be released, and are named in the error.
        return self._tally.decided and not self._tally.hopeless

    def needs_more(self) -> bool:
        return self._tally.hopeless


class Voting:
    """Puts claims to the vote."""

    def __init__(
        self,
        poller: Poller,
        markers: Markers,
        readmission: Readmission,
        tickets: Tickets,
        inboxes: Inboxes,
        releasing: Releasing,
        runtime: Runtime,
    ) -> None:
        self.poller, self.markers, self.tickets, self.inboxes, self.runtime = poller, markers, tickets, inboxes, runtime
        self._readmission, self._releasing = readmission, releasing
        self._lead_ms = LEAD_MS
        self._clocks: dict[int, StoreClock] = {}  # of the nodes, as far as we know

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`. Raises NoQuorum when too few nodes say yes or no."""
        ticket = self.tickets.ask(claim)
        try:
            if claim.place is not ticket.place:
                claim = claim._replace(place=ticket.place)
            each = await self.prepare(claim, within)
            asked = self.poller.ready()
            vote = _Vote(self, claim, ticket, asked, each)
            poll = await self.poller.poll(asked, vote)
            self._took(poll)
            self.see_losses(poll)
            return await self.judge(claim, ticket, vote.counted, each, poll)
        finally:
            self.tickets.interrupted(ticket)

    async def prepare(self, claim: Claim, within: float) -> float:
        """Get ready for a vote. How long it may take."""
        markers, now = self.markers, self.runtime.now
        if not self._readmission.settled() or within > markers.window:
            until = now() + within
            markers.want(within)
            await self._readmission.prepare(within)
            await markers.allow(within, until)
            within = max(until - now(), within / 2)  # a thousand tasks may have been first at once
        return min(within, claim.ttl / 2)

    def proposal(self) -> int:
        """A fence that all nodes can take: then they agree, and nothing has to be written back."""
        return fences.floor(self.runtime.wall_ms() + self._lead_ms)

    def _took(self, poll: Poll) -> None:
        """The next vote may take as long as this one did."""
        self.poller.took = self.runtime.now() - poll.began
        self._lead_ms = min(LEAD_MS + 2 * int(self.poller.took * 1000), MOST_LEAD_MS)

    def see_losses(self, poll: Poll) -> None:
        """Put nodes into quarantine that did not vote for lack of a marker."""
        for index, answer in poll.answers.items():
            if isinstance(answer, Unmarked):
                self.markers.quarantine(index)

    def saw_clock(self, index: int, at: float, sent_at: float) -> None:
        """A node's clock read `at`, some time between `sent_at` and now."""
        if index not in self._clocks:
            self._clocks[index] = StoreClock(self.runtime.wall_ahead())
        self._clocks[index].heard(sent_at, at, self.runtime.now())

    # --- what becomes of it ---------------------------------------------------------------------------------------------

    async def judge(self, claim: Claim, ticket: Ticket, counted: Count, each: float, poll: Poll) -> Granted | Refused:
        """What becomes of a claim that was voted on. If it is refused it waits, unless it has no place."""
        tally = counted.tally
        if tally.won:
            granted = await self._agree(claim, tally, each)
            if granted is not None:
                self.tickets.has(ticket, granted.fence, claim.ttl)
                return granted
        lost = ticket.lost(self.runtime.now())
        unusable = lost > len(self.poller.nodes) - self.poller.needed or (lost > 0 and tally.hopeless) or ticket.unusable_grant
        if claim.place is None or unusable or tally.hopeless:
            spent = claim.place is not None and unusable
            free = () if spent else set(tally.refused)
            await self._releasing.release(claim.name, claim.token, each, set(tally.granted), free)
            if tally.hopeless and not spent:
                raise self.poller.no_quorum(f"no quorum for '{claim.name}'", poll)
            retry_after = 0.0 if spent or tally.won else tally.retry_after()
            return Refused(retry_after, tally.owner(), tuple(poll.votes()), spent=True)  # what was granted is being taken back
        kept = await self._stand_back(claim, ticket, tally, each)
        rung = self.tickets.waits(ticket, kept)
        if self._clocks and not ticket.axis:
            ticket.axis = median(clock.offset for clock in list(self._clocks.values()))
        ticket.splits = ticket.splits + 1 if kept else 0
        retry_after = tally.retry_after()
        if rung or tally.won:
            retry_after = 0.0
        elif kept:  # with the next questions the later claims lose their nodes to the earliest
            pause = min(FIRST_PAUSE * 2 ** min(ticket.splits, 10), LONGEST_PAUSE) * self.runtime.jitter()
            retry_after = pause if retry_after is None else min(pause, retry_after)
        return Refused(retry_after, tally.owner(), tuple(poll.votes()), counted.sent_at + ticket.axis)

    async def _agree(self, claim: Claim, tally: Tally, each: float) -> Granted | None:
        """The grant, once its fence is stored on a quorum that the token still holds. None: it could not be."""
        fence, behind, needed = tally.fence(), tally.behind(), self.poller.needed
        if behind:
            stored = {index for index in tally.granted if index not in behind}

            def count(index: int, outcome: object) -> bool:
                if isinstance(outcome, Granted):
                    stored.add(index)
                return len(stored) >= needed

            teach = Collect(lambda _, member: member.extend(claim.name, claim.token, claim.ttl, each, fence), count)
            await self.poller.poll(behind, teach)
            if len(stored) < needed:
                return None
        return Granted(fence, min([granted.ttl for granted in tally.granted.values()]))

    async def _stand_back(self, claim: Claim, ticket: Ticket, tally: Tally, each: float) -> Collection[int]:
        """After a lost vote: give back what was granted, or keep it from those that came later. On which nodes it is kept."""
        nodes = sorted(tally.granted)
        if not nodes:
            return ()
        question = _StandBack(self, claim, ticket, tally, each)
        ticket.sends(nodes, question.sent_at)
        await self.poller.poll(nodes, question)
        return question.kept


class _StandBack(Question):
    """Give back what was granted in a lost vote, and wait in line; or keep it, unless one in line came before."""

    finish = looks = True

    def __init__(self, voting: Voting, claim: Claim, ticket: Ticket, tally: Tally, within: float) -> None:
        self.kept: set[int] = set()
        self.sent_at = voting.runtime.now()
        self._voting, self._claim, self._ticket, self._held, self._each = voting, claim, ticket, tally.held, within
        self._longest = max((refused.retry_after or 0.0 for refused in tally.refused.values()), default=0.0)
        self._top = max([tally.fence(), *(refused.fence for refused in tally.refused.values())])

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, Any]:
        return self._back(index, cast(LineMember, member))

    async def _back(self, index: int, member: LineMember) -> object:
        claim = self._voting.inboxes.addressed(index, self._claim)
        if self._held:
            return await member.retreat(claim, self._longest, self._each)
        arrival = self._claim.place.arrival if self._claim.place is not None else 0
        handed = await member.hand_over(claim.name, claim.token, claim, arrival, self._each, self._top + 1)
        return handed.heir if isinstance(handed, Handed) else handed

    def count(self, index: int, answer: Any) -> bool:
        if isinstance(self._ticket.accept(index, answer, self.sent_at), Granted):
            self.kept.add(index)
        return False

    def enough(self) -> bool:
        return self._voting.runtime.now() - self.sent_at > PATIENCE
