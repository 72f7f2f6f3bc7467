"""Taking a token off the nodes: a release, and what follows a lost vote or an interruption.

Interleavings and where each is handled
- a node is late: its answer is not awaited; the release follows its request down the same connection (the member's duty)
- the connection broke, not the node: the member's `undo` sees to it that nothing of the token is left
- the token is renewed at the same time: it is LEAVING before the first request is sent, so it is not healed any more
- interrupted: the ticket says that an undo must follow (TO_UNDO)
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from typing import Any, NamedTuple

from ...errors import Unavailable
from ..port import Member
from .poller import Poll, Poller, Question
from .ticket import Ticket
from .tickets import Tickets


class _Release(Question):
    """Give the token back. The requests are on all wires before any answer is read.

    Awaited are the answers of a quorum, or of the `known` holders only: after a lost vote there may be no more, and a node that
    did not answer the vote will not answer this either.
    """

    finish = True

    def __init__(
        self,
        poller: Poller,
        ticket: Ticket,
        within: float,
        known: set[int] | None = None,
        free: Collection[int] = (),
        held: bool = False,
    ) -> None:
        self.done: set[int] = set(free)  # nodes that are rid of it
        self.held = 0  # so many of them had it
        self.failed: set[int] = set()  # nodes that have not answered
        # Of a token that has the lock, the quorum is heard; of one that has not, there may be none.
        self.looks = not held or known is not None
        self._ticket, self._known, self._needed = ticket, known, poller.needed
        self._request = ticket.name, ticket.token, within
        self._proposal = ticket.fence and ticket.fence + 1  # the fence of whoever is served next

    def ask(self, index: int, member: Member, after: float) -> Coroutine[Any, Any, bool]:
        return self._release(member)

    async def _release(self, member: Member) -> bool:
        try:
            return await member.release(*self._request, self._proposal)
        except Unavailable as error:
            if error.cause != "closed" or not await member.undo(*self._request):
                raise
            return True  # the connection broke, not the node: it is rid of the token

    def count(self, index: int, answer: Any) -> bool:
        if isinstance(answer, bool):
            self.done.add(index)
            self.held += answer
        else:
            self.failed.add(index)
        return self.held >= self._needed or (self._known is not None and self._known <= self.done)

    def enough(self) -> bool:
        return self._known <= self.done if self._known is not None else len(self.done) >= self._needed


class Released(NamedTuple):
    """What came of it: how many nodes are rid of the token, and how many of them had it."""

    done: int
    held: int
    poll: Poll
    ticket: Ticket


class Releasing:
    """Takes tokens off the nodes."""

    def __init__(self, poller: Poller, tickets: Tickets) -> None:
        self._poller, self._tickets = poller, tickets

    async def release(
        self, name: str, token: str, within: float, known: set[int] | None = None, free: Collection[int] = ()
    ) -> Released:
        """Release on every node that was asked for the token, except those known to be `free` of it. `known`: see `Release`."""
        held = self._tickets.is_live(token)
        ticket = self._tickets.leave(name, token)
        try:
            asked = [index for index in ticket.nodes if index not in free] if free else ticket.nodes
            question = _Release(self._poller, ticket, within, known, free, held)
            poll = await self._poller.poll(asked, question) if asked else Poll(self._poller, asked, 0.0)
        except BaseException:
            self._tickets.to_undo(ticket)
            raise
        ticket.failed |= question.failed
        self._tickets.left(ticket, confirmed=len(question.done) >= self._poller.needed or not asked)
        return Released(len(question.done), question.held, poll, ticket)
