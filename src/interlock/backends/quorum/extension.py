"""Extending leases on a quorum, and healing nodes that lost them or never had them.

Interleavings and where each is handled
- too few nodes answer: resting nodes are asked too, while there is time (`poller`)
- released while its renewal is under way: nodes that are rid of it already look as if they lacked it. A token that is not held
  any more is not put back there; if it was released while it was put there, it is taken off that node again (`_heal`)
- a node that came back empty lacks all leases: they are put there a few at a time, so that the next renewals need not wait
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ...core.claim import Claim, Gone, Granted, Renewal, Unmarked
from ...core.quorum import Extensions
from ...runtime.base import Runtime
from ..port import Member
from .markers import Markers
from .poller import SOON, Poller, Question
from .ticket import OVER
from .tickets import Tickets

PATIENCE = 0.1  # seconds for nodes that rest, if it is not for all that was asked
MENDED_AT_ONCE = 50  # leases

Ask = Callable[[Member, float], Coroutine[Any, Any, Any]]


class _Extension(Question):
    """Extend these leases. `hear_out`: wait a moment for nodes that are slower than a quorum: what they lack is healed."""

    finish = late = True

    def __init__(
        self, extending: Extending, leases: Sequence[Renewal], ask: Ask, sent_at: float, within: float, hear_out: bool
    ) -> None:
        self.within, self.looks = within, hear_out
        self.tally = Extensions(len(leases), len(extending.poller.nodes), extending.poller.needed)
        self._extending, self._leases, self._ask, self._hear_out = extending, leases, ask, hear_out
        self._sent_at, self._window = sent_at, extending.markers.window

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, Any]:
        left = max(self.within - after, SOON) if after else self.within
        if after and not self.tally.hopeless:  # some leases are extended: they should not have to wait for long
            left = min(left, PATIENCE)
        return self._ask(member, left)

    def asks_also(self, nodes: Sequence[int]) -> None:
        tickets = self._extending.tickets
        for lease in self._leases:
            ticket = tickets.get(lease.token)
            if ticket is not None and ticket.state not in OVER:
                tickets.sent(ticket, nodes, lease.ttl)

    def count(self, index: int, answer: Any) -> bool:
        in_time = not self._window or self._extending.markers.in_time(self._sent_at, self._window)
        if in_time and not isinstance(answer, BaseException):
            self.tally.count(index, [answer] if isinstance(answer, Granted | Gone) else answer)
        return self.tally.certain and not self._hear_out

    def enough(self) -> bool:
        return self.tally.certain

    def needs_more(self) -> bool:
        return not self.tally.certain


class Extending:
    """Extends leases and heals nodes."""

    def __init__(self, poller: Poller, markers: Markers, tickets: Tickets, runtime: Runtime) -> None:
        self.poller, self.markers, self.tickets = poller, markers, tickets
        self._runtime = runtime

    async def extend(
        self, leases: Sequence[Renewal], ask: Ask, within: float, hear_out: bool
    ) -> Sequence[Granted | Gone | None]:
        """Extend leases, and mend where nodes differ. Raises NoQuorum when nothing is certain about any."""
        asked, sent_at = self.poller.ready_to_extend(), self._runtime.now()
        until = sent_at + within
        if within > self.markers.window and self.markers.window:
            self.markers.want(within)
            await self.markers.allow(within, until)
        question = _Extension(self, leases, ask, sent_at, within, hear_out)
        question.asks_also(asked)  # now, not later: a release takes the token out of the book, and there it must stay
        poll = await self.poller.poll(asked, question)
        if question.tally.hopeless:
            what = f"extend '{leases[0].name}'" if len(leases) == 1 else f"extend {len(leases)} leases"
            raise self.poller.no_quorum(f"no quorum to {what}", poll)
        await self._mend(leases, question.tally, until)
        return question.tally.outcomes

    async def _mend(self, leases: Sequence[Renewal], tally: Extensions, until: float) -> None:
        """Put leases on nodes that lost them or never had them. Best effort.

        What is left of lost ones stays: their holders do not know yet, and it keeps others out until they do (`Gone.left`).
        """
        self.tickets.high = max([self.tickets.high, *(one.fence for one in tally.outcomes if isinstance(one, Granted))])
        work: dict[int, list[Renewal]] = {}
        lacking = [lack for lack in tally.lacking() if self.poller.nodes[lack[2]].quarantine is None]
        for number, fence, node in lacking[:MENDED_AT_ONCE]:
            work.setdefault(node, []).append(leases[number]._replace(fence=fence))
        if work:
            await self._runtime.race([self._heal(node, some, until) for node, some in work.items()], lambda *_: False)

    async def _heal(self, index: int, leases: Sequence[Renewal], until: float) -> None:
        """Put leases on a node, their fences with them. The quorum stands without."""
        member = self.poller.nodes[index].member
        for name, token, ttl, fence in leases:
            if (left := until - self._runtime.now()) <= 0:
                return
            ticket = self.tickets.get(token)
            if ticket is None or ticket.state in OVER:  # released, or about to be
                continue
            self.tickets.sent(ticket, (index,), ttl)
            answer = await member.vote(Claim(name, token, ttl), fence, left)
            if isinstance(answer, Unmarked):
                self.markers.quarantine(index)
                return
            if isinstance(answer, Granted) and answer.fence < fence:
                await member.extend(name, token, ttl, left, fence)
            if ticket.state in OVER:  # by now
                await member.release(name, token, left)
