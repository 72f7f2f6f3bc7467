"""Hearing a quorum: an inbox at each node, and what the nodes announce, put together by the book of tickets.

A waiter stands in every node's line under the same token with the same arrival, so the heads of the lines agree, and a release
serves the same one everywhere. A quorum of equal announcements is a grant, with no request of the winner's own.

Interleavings and where each is handled (those of one token are in `tickets`)
- an announcement is lost, a node is slow or dead: a quorum of the others is enough; fewer are a hint, after a moment
- a node's inbox broke, or was slow to open: it is opened again (`_reopen`), then all that wait ask again, since they may not
  stand in line there; the other nodes suffice meanwhile
- so many inboxes broke that no quorum is left: `hear` raises; all of them are opened again, and all that wait ask
- heads disagree (lines were joined in another order, a node came back empty): each waiter gets a hint, asks, and the votes are
  split (`vote`)
- a node without its marker serves no waiter (the member's duty)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import cast

from ...core.claim import Announced, Claim
from ...errors import InterlockError, Unavailable
from ...runtime.base import Runtime
from ..port import LineMember
from .poller import Collect, Poller
from .tickets import Tickets

REOPEN_WITHIN, REOPEN_PAUSE, REOPEN_LONGEST = 0.1, 0.1, 2.0


class Subscription:
    """The inbox at one node."""

    __slots__ = ("name", "open", "pause", "retry_at")

    def __init__(self) -> None:
        self.name = ""
        self.open = False
        self.pause, self.retry_at = REOPEN_PAUSE, 0.0


class Inboxes:
    """The inboxes of one client at the nodes of a quorum."""

    def __init__(self, poller: Poller, tickets: Tickets, runtime: Runtime) -> None:
        self.needed = poller.needed
        self._poller, self._tickets, self._runtime = poller, tickets, runtime
        self.disown()

    def disown(self) -> None:
        """See `forks`: the inboxes are the parent's."""
        self.subscriptions = [Subscription() for _ in self._poller.nodes]

    @property
    def hearing(self) -> int:
        """How many nodes can be heard."""
        return sum(inbox.open for inbox in self.subscriptions)

    def addressed(self, index: int, claim: Claim) -> Claim:
        """The claim as it goes to one node, with the inbox there. Without one it does not wait there: it could not be told."""
        if claim.place is None:
            return claim
        name = self.subscriptions[index].name
        return claim._replace(place=claim.place._replace(inbox=name) if name else None)

    async def open(self, within: float) -> str:
        """See `port.Line.open_inbox`. One at each node; a quorum of them is enough. Raises NoQuorum."""
        shut = [index for index, inbox in enumerate(self.subscriptions) if not inbox.open]
        ready = [index for index in self._poller.ready() if index in shut]
        if self.hearing + len(ready) >= self.needed:  # else also those that are resting, or have no vote for now
            shut = ready
        if shut:
            ask = Collect(
                lambda _, member: cast(LineMember, member).open_inbox(within), self.opened, lambda: self.hearing >= self.needed
            )
            poll = await self._poller.poll(shut, ask)
            if self.hearing < self.needed:
                raise self._poller.no_quorum("no quorum to be told by", poll)
        return next(inbox.name for inbox in self.subscriptions if inbox.open)  # each node is told its own: see `addressed`

    def opened(self, index: int, outcome: object) -> bool:
        """A node has named the inbox there, or failed to. Never enough: see `Question.count`."""
        inbox, now = self.subscriptions[index], self._runtime.now()
        if isinstance(outcome, str):
            inbox.name, inbox.open, inbox.pause = outcome, True, REOPEN_PAUSE
        else:
            inbox.open = False
            inbox.retry_at = now + inbox.pause * (0.5 + self._runtime.jitter())
            inbox.pause = min(2 * inbox.pause, REOPEN_LONGEST)
        return False

    async def hear(self, until: float) -> Sequence[Announced]:
        """See `port.Line.hear`. Raises Unavailable when fewer than a quorum can be heard."""
        while True:
            if ripe := self._tickets.ripe():
                return ripe
            await self._reopen()
            listening = [index for index, inbox in enumerate(self.subscriptions) if inbox.open]
            if len(listening) < self.needed:
                address, broken = self._poller.address, len(self.subscriptions) - len(listening)
                raise Unavailable(
                    f"{address} cannot be heard: the inboxes at {broken} of its nodes broke", backend=address, cause="closed"
                )
            moment = min(until, self._next())
            work = [self._listen(index, moment) for index in listening]
            await self._runtime.race(work, _raises, light=self._poller.light)
            if self._runtime.now() >= until:
                return self._tickets.ripe()

    async def _listen(self, index: int, until: float) -> bool | None:
        """Hear one node, until there is something to be looked at."""
        member = cast(LineMember, self._poller.nodes[index].member)
        while True:
            try:
                heard = await member.hear(until)
            except Unavailable as error:
                self.opened(index, error)
                return True
            news = [self._tickets.announced(index, announced) for announced in heard]
            if any(news):
                return True
            if self._runtime.now() >= until:
                return None

    def _next(self) -> float:
        """When something has to be done although no node announces anything."""
        reopen = min((inbox.retry_at for inbox in self.subscriptions if not inbox.open), default=inf)
        return min(self._tickets.next_due(), reopen)

    async def _reopen(self) -> None:
        """Open inboxes that broke, or could not be opened before. It takes a thread's time, so little is spent on each."""
        now = self._runtime.now()
        for index, inbox in enumerate(self.subscriptions):
            if not inbox.open and inbox.retry_at <= now:
                try:
                    self.opened(index, await cast(LineMember, self._poller.nodes[index].member).open_inbox(REOPEN_WITHIN))
                except InterlockError as error:  # also one that refuses for good: the others can be heard
                    self.opened(index, error)
                else:
                    self._tickets.nudge()


def _raises(index: int, outcome: object) -> bool:
    """What ends a round of listening: something to be looked at. A closed client's error goes to the caller."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome is True
