"""A backend made of an odd number of independent backends. Redlock is a quorum of Redis nodes.

Each part of it has a file of its own, and each file its interleavings:

- `poller` asks nodes, `markers` knows what they say of themselves, `opening` and `readmission` which of them may vote
- `ticket` is one token in one state of a table, `tickets` the book of them
- `vote`, `release`, `extension` and `hand_over` put the questions; decisions are in `core.quorum` and `core.turn`
- `inboxes` hears what nodes announce to those who wait
- `change` changes the list of nodes
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ...core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, free
from ...runtime import forks
from ...runtime.base import Runtime
from ..port import Capabilities, Member
from .extension import Extending
from .hand_over import hand_over
from .inboxes import Inboxes
from .markers import Markers
from .poller import SOON, Collect, Poller
from .readmission import NOT_ASKED_FOR, Readmission
from .release import Releasing
from .ticket import State
from .tickets import RELY, Tickets
from .vote import Voting


class QuorumBackend:
    """See `port.Backend`, and `port.Line` if all members keep a line. Make it with `open_quorum`."""

    rely = RELY  # seconds, see `flow.waiting.queue`: a question costs every node several commands

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        self.address = f"quorum of {len(members)} ({', '.join(member.address for member in members)})"
        self.capabilities = Capabilities(*(all(parts) for parts in zip(*(m.capabilities for m in members), strict=True)))
        self.poller = Poller(members, runtime, self.address)
        self.nodes, self.needed = self.poller.nodes, self.poller.needed
        self.tickets = Tickets(self.poller, runtime)
        self.markers = Markers(self.poller, runtime, self.tickets.is_live)
        self.readmission = Readmission(self.poller, self.markers, runtime, self.tickets)
        self.inboxes = Inboxes(self.poller, self.tickets, runtime)
        self._releasing = Releasing(self.poller, self.tickets)
        self._voting = Voting(self.poller, self.markers, self.readmission, self.tickets, self.inboxes, self._releasing, runtime)
        self._extending = Extending(self.poller, self.markers, self.tickets, runtime)
        self._runtime = runtime
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: those who wait, and the inboxes, are the parent's."""
        self.tickets.disown()
        self.inboxes.disown()

    def allow_for(self, drift: float) -> None:
        """By what share clocks may run apart, as the client was told."""
        self.markers.drift = drift

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`. Raises NoQuorum when too few nodes say yes or no."""
        return await self._voting.claim(claim, within)

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`. Needs a quorum; heals nodes that lost the lease or never had it."""
        (answer,) = await self._extending.extend(
            [Renewal(name, token, ttl, fence)],
            lambda member, within: member.extend(name, token, ttl, within, fence),
            within,
            hear_out=False,
        )
        assert answer is not None  # noqa: S101 - NoQuorum was raised
        return answer

    async def renew(self, leases: Sequence[Renewal], within: float) -> Sequence[Granted | Gone | None]:
        """See `port.Backend.renew`. Each lease needs a quorum of its own; raises NoQuorum when none has a certain outcome.

        Heals as `extend` does, a bounded number of leases at a time: the rest is left to the next renewals. A client that only
        renews asks for no votes, so nodes that have served their quarantine are let back in here as well.
        """
        if not leases:
            return []
        until = self._runtime.now() + within
        outcomes = await self._extending.extend(
            leases, lambda member, within: member.renew(leases, within), within, hear_out=True
        )
        with suppress(*NOT_ASKED_FOR):
            await self.readmission.readmit(max(until - self._runtime.now(), SOON))
        return outcomes

    async def release(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.release`. True when a quorum had it, or may have had: silence is no loss, as for an extension.
        Raises NoQuorum when too few nodes answer."""
        until = self._runtime.now() + within
        done, held, poll, ticket = await self._releasing.release(name, token, within)
        if done >= self.needed:
            await self.readmission.tend(max(until - self._runtime.now(), SOON))
        if held >= self.needed:
            return True
        if done >= self.needed:
            return len(poll.asked) - list(poll.answers.values()).count(False) >= self.needed
        self.tickets.to_undo(ticket)
        raise self.poller.no_quorum(f"no quorum to release '{name}'", poll)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. Confirmed when so many nodes are free of the token that others can win."""
        ticket = self.tickets.get(token)
        if ticket is None or not ticket.nodes or ticket.state in (State.HELD, State.UNCONFIRMED, State.GONE):
            return False
        spared = [index for index in range(len(self.nodes)) if index not in ticket.nodes]  # not even asked: free of it
        done, _, poll, _ = await self._releasing.release(name, token, within, free=spared)
        if done < self.needed:
            raise self.poller.no_quorum(f"no quorum to take back '{name}'", poll)
        return True

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. At every node: which of them made up a quorum is not known any more."""
        return all(node.member.settled(token) for node in self.nodes)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`. What each node says is in the entry's votes."""
        poll = await self.poller.poll(range(len(self.nodes)), Collect(lambda _, member: member.inspect(name, within)))
        entries = [answer for answer in poll.answers.values() if isinstance(answer, Entry)]
        if len(entries) < self.needed:
            raise self.poller.no_quorum(f"no quorum to look at '{name}'", poll)
        votes = poll.votes()
        for index, remark in (await self.readmission.forgetful(sorted(poll.answers), within)).items():
            votes[index] = votes[index]._replace(verdict="quarantined", detail=remark)
        for owner in {entry.owner for entry in entries if entry.held}:
            mine = [entry for entry in entries if entry.held and entry.owner == owner]
            if len(mine) >= self.needed:
                ends = sorted(entry.remaining for entry in mine if entry.remaining is not None)
                spare = len(mine) - self.needed
                remaining = ends[spare] if len(ends) > spare else None
                known = [entry.fence for entry in mine if entry.fence is not None]
                usual = max(known, key=lambda fence: (known.count(fence), fence), default=None)  # what a quorum agreed on
                entry = Entry(name, True, owner, remaining, usual)
                break
        else:
            entry = free(name)
        fullest = max(entries, key=lambda entry: entry.waiters)  # the same tickets stand in all lines
        return entry._replace(votes=tuple(votes), waiting=fullest.waiting, waiters=fullest.waiters)

    async def close(self) -> None:
        """See `port.Backend.close`."""
        await self._runtime.settle()
        for node in self.nodes:
            await node.member.close()

    # --- a line ---------------------------------------------------------------------------------------------------------

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`. One at each node; a quorum of them is enough. Raises NoQuorum."""
        return await self.inboxes.open(within)

    async def hear(self, until: float) -> Sequence[Announced]:
        """See `port.Line.hear`. Raises Unavailable when fewer than a quorum can be heard."""
        return await self.inboxes.hear(until)

    async def hand_over(self, name: str, token: str, heir: Claim, before: int, within: float) -> Handed:
        """See `port.Line.hand_over`. Raises NoQuorum when too few nodes answer: then it may have happened on some."""
        return await hand_over(self._voting, self._releasing, name, token, heir, before, within)
