"""Handing a lock over on a quorum: the release of one token and the claim of another, in one request to each node.

Interleavings and where each is handled
- too few nodes answer: it may have happened on some. The released ticket is TO_UNDO, the heir's is WAITING, and
  the caller, who is told, undoes both
- all nodes refuse the question itself: the caller takes that for "nothing happened", so the heir is taken off the nodes first
- a quorum has let go of the lease and the heir has not got it: the heir waits in line, or asks for itself
- the token is renewed at the same time: it is LEAVING before the first request is sent, so it is not healed any more
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, cast

from ...core.claim import Claim, Granted, Handed, Refused
from ...errors import InterlockError, Unavailable, UsageError
from ..port import LineMember, Member
from .poller import Question
from .release import Releasing
from .ticket import Ticket
from .tickets import RELY
from .vote import Count, Voting


class _HandOver(Question):
    """Release the token, and give the lock to the heir, unless one in line came before `before`."""

    finish = looks = True

    def __init__(
        self, voting: Voting, ticket: Ticket, heir: Claim, heirs: Ticket, before: int, within: float, asked: Sequence[int]
    ) -> None:
        self.counted = Count(voting, heirs, asked)
        self.spoke = 0  # nodes that have answered
        self.had = set(ticket.nodes)  # those that may have had the token: silence is no loss
        self._held = 0
        self._voting, self._ticket, self._heir, self._tally = voting, ticket, heir, self.counted.tally
        self._before, self._within, self._needed = before, within, voting.poller.needed
        self._proposal = ticket.fence + 1 if ticket.fence else voting.proposal()

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, Any]:
        ticket, heir, taker = self._ticket, self._voting.inboxes.addressed(index, self._heir), cast(LineMember, member)
        return taker.hand_over(ticket.name, ticket.token, heir, self._before, self._within, self._proposal)

    def count(self, index: int, answer: Any) -> bool:
        if isinstance(answer, Handed):
            self.spoke += 1
            self._held += answer.held
            if not answer.held:
                self.had.discard(index)
            answer = answer.heir
        elif isinstance(answer, Unavailable):
            self._ticket.failed.add(index)
        self.counted.count(index, answer)
        return self._tally.won and self._held >= self._needed and not self._tally.behind()

    def enough(self) -> bool:
        return self._tally.decided and self.spoke >= self._needed


async def hand_over(
    voting: Voting, releasing: Releasing, name: str, token: str, heir: Claim, before: int, within: float
) -> Handed:
    """See `port.Line.hand_over`. Raises NoQuorum when too few nodes answer: then it may have happened on some."""
    poller, tickets = voting.poller, voting.tickets
    heirs = tickets.ask(heir)
    try:
        each = await voting.prepare(heir, within)
        ticket = tickets.leave(name, token)
        try:
            asked = sorted({*ticket.nodes, *poller.ready()})
            question = _HandOver(voting, ticket, heir, heirs, before, each, asked)
            counted = question.counted
            tickets.sent(heirs, asked, max(heir.ttl, RELY))
            heirs.sends(asked, counted.sent_at)
            poll = await poller.poll(asked, question)
            voting.see_losses(poll)
            if question.spoke < poller.needed:
                error = poller.no_quorum(f"no quorum to hand over '{name}'", poll)
                if isinstance(error, UsageError):
                    await releasing.release(heir.name, heir.token, each)
                raise error
            answer: Granted | Refused
            try:
                answer = await voting.judge(heir, heirs, counted, each, poll)
            except InterlockError:  # a quorum has let go of the lease all the same; the heir asks for itself, and hears it
                answer = Refused(0.0, counted.tally.owner(), tuple(poll.votes()), spent=True)
        except BaseException:
            tickets.to_undo(ticket)
            raise
        tickets.left(ticket, confirmed=True)
        return Handed(len(question.had) >= poller.needed, answer)
    finally:
        tickets.interrupted(heirs)
