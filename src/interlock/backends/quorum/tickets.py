"""The book of tickets: every token of this client that the nodes may know, one `Ticket` each. It changes their states.

One guard for all of it, since the listener is a thread of its own. It is never held while something is awaited. It may be taken
again by its own thread: a signal's handler may use the client.

Interleavings and where each is handled
- an announcement comes while a claim of the token is on its way: noted, and the waiter asks again at once (`rung`)
- it is read after what it tells of was given back: its fence is not above the node's last answer (`GrantTally`)
- it comes from fewer nodes than a quorum: after a moment it is a hint, and the waiter asks (`ripe`)
- it comes to a token that has the lock already: that node was healed by it; there is nothing to tell
- it comes to a token that was released: the release passes it on, unless the node has not answered the release, or it comes
  much later (a *stray*): then the listener is told to release the token
- a renewal is under way when its token is released: the token is not HELD any more, so it is not put back on any node
- a fork: those who wait, and the inboxes, are the parent's; which leases are held is still known
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to backends: it invites waiting
from collections import OrderedDict
from collections.abc import Collection, Sequence
from math import inf

from ...core.claim import Announced, Claim
from ...core.turn import GrantTally, Served
from ...runtime.base import Runtime
from .poller import Poller
from .ticket import OVER, UNDER_WAY, WAITS, State, Ticket

HINT = 0.01  # seconds in which the other nodes are expected to announce what one of them did; as much again is jitter
LATE = 2.0  # seconds after a release in which the release itself passes on what nodes announce to its token
RELY = 6.0  # seconds for which one in line relies on what it was told, at most: see `flow.waiting.queue`


class Tickets:
    """The tickets of one client by token."""

    def __init__(self, poller: Poller, runtime: Runtime) -> None:
        self.high = 0  # the highest fence that this client knows of
        self._runtime = runtime
        self._size, self._needed = len(poller.nodes), poller.needed
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()  # those touched last come last
        self._gone: OrderedDict[str, Ticket] = OrderedDict()  # those that are GONE, in the order in which they left
        self._due: dict[str, Ticket] = {}  # those of which the listener has to be told
        self._nothing = self._no_grants()  # what was announced to those that do not wait
        self.guard = RLock()

    def disown(self) -> None:
        """See `forks`."""
        self.guard = RLock()
        self._due.clear()
        self._gone.clear()
        for token, ticket in list(self._tickets.items()):
            if ticket.state in WAITS:
                del self._tickets[token]

    def get(self, token: str) -> Ticket | None:
        """The ticket of a token that the nodes may hold, or that was released a moment ago."""
        return self._tickets.get(token) or self._gone.get(token)

    def is_live(self, token: str) -> bool:
        """Whether the token has the lock. Then no request of it must be undone behind its back: renewals may count on it.

        Also while it is claimed once more.
        """
        ticket = self._tickets.get(token)
        return ticket is not None and (ticket.state is State.HELD or (ticket.state is State.ASKING and ticket.fence > 0))

    def held_for(self) -> float:
        """For how many seconds a lease of this client may last at most."""
        with self.guard:
            ends = [ticket.until for ticket in self._tickets.values() if ticket.fence]
        return max(max(ends, default=0.0) - self._runtime.now(), 0.0)

    # --- claims ---------------------------------------------------------------------------------------------------------

    def ask(self, claim: Claim) -> Ticket:
        """A claim of this token is about to be sent. One that waits keeps the place that it has."""
        with self.guard:
            ticket = self._tickets.get(claim.token)
            if ticket is None:
                ticket = self._tickets[claim.token] = Ticket(
                    claim.name, claim.token, self._nothing if claim.place is None else self._no_grants(), claim.place
                )
            elif ticket.state in WAITS:
                ticket.rung = False
            else:
                ticket.wait_anew(claim.place, self._no_grants())
            self._stop_telling(ticket)
            ticket.to(State.ASKING)
            return ticket

    def _no_grants(self, kept: Collection[int] = ()) -> GrantTally:
        return GrantTally(self._needed, self._size, kept)

    def sent(self, ticket: Ticket, nodes: Sequence[int], ttl: float) -> None:
        """These nodes are asked for it. If it was released meanwhile, it is not put into the book again."""
        with self.guard:
            now = self._runtime.now()
            ticket.nodes = tuple({*ticket.nodes, *nodes}) if ticket.nodes else nodes
            ticket.until = now + 2 * ttl
            if ticket.token in self._tickets:
                self._tickets.move_to_end(ticket.token)
            self._prune(now)

    def has(self, ticket: Ticket, fence: int, ttl: float) -> None:
        """It has the lock."""
        with self.guard:
            ticket.to(State.HELD)
            self._stop_telling(ticket)
            self._tickets[ticket.token] = ticket
            ticket.fence, ticket.until = max(fence, ticket.fence), self._runtime.now() + 2 * ttl
            self.high = max(self.high, fence)

    def waits(self, ticket: Ticket, kept: Collection[int]) -> bool:
        """It was refused, and waits; it holds these nodes since that vote. Whether something was announced meanwhile."""
        with self.guard:
            ticket.grants = self._no_grants(kept)
            if ticket.state is State.ASKING:
                ticket.to(State.WAITING)
            return ticket.rung

    def interrupted(self, ticket: Ticket) -> None:
        """A claim of it is over, by an error perhaps."""
        if ticket.state is State.ASKING:
            with self.guard:
                if not ticket.nodes:
                    self._tickets.pop(ticket.token, None)
                ticket.to(State.GONE if not ticket.nodes else State.WAITING if ticket.place is not None else State.TO_UNDO)

    # --- releases -------------------------------------------------------------------------------------------------------

    def leave(self, name: str, token: str) -> Ticket:
        """It is released, on the nodes of its ticket: on all if nothing is known of it."""
        with self.guard:
            ticket = self.get(token)
            if ticket is None:
                ticket = Ticket(name, token, self._nothing)
            if ticket.state in (State.NEW, State.GONE):
                ticket.nodes = range(self._size)
            self._gone.pop(token, None)
            self._tickets[token] = ticket
            ticket.to(State.LEAVING)
            ticket.left_until, ticket.failed = self._runtime.now() + LATE, set()
            ticket.unanswered_since = {}
            self._stop_telling(ticket)
            return ticket

    def left(self, ticket: Ticket, confirmed: bool) -> None:
        """Its release was answered, by enough nodes or not."""
        with self.guard:
            if ticket.state is State.GONE or ticket.state not in OVER:
                return
            if confirmed:
                ticket.to(State.GONE)
                self._tickets.pop(ticket.token, None)
                ticket.nodes, ticket.fence, ticket.until = (), 0, self._runtime.now() + LATE
                self._gone[ticket.token] = ticket
            elif ticket.state is State.LEAVING:
                ticket.to(State.UNCONFIRMED)

    def to_undo(self, ticket: Ticket) -> None:
        """Its release was interrupted, or its caller is told that it failed: an undo follows."""
        with self.guard:
            if ticket.state in (State.LEAVING, State.UNCONFIRMED):
                ticket.to(State.TO_UNDO)

    def _prune(self, now: float) -> None:
        """Forget those that were left to expire, and those that have long left."""
        tickets, gone = self._tickets, self._gone
        while tickets and (oldest := next(iter(tickets.values()))).until <= now:
            if oldest.state in UNDER_WAY:
                oldest.until = now + 2 * RELY
                tickets.move_to_end(oldest.token)
                continue
            del tickets[oldest.token]
        while gone and next(iter(gone.values())).until <= now:
            gone.popitem(last=False)

    # --- announcements --------------------------------------------------------------------------------------------------

    def announced(self, node: int, announced: Announced) -> bool:
        """A node has announced something. Whether the listener should look at it."""
        token, now = announced.token, self._runtime.now()
        with self.guard:
            ticket = self.get(token)
            if ticket is None:
                ticket = self._gone[token] = Ticket(announced.name, token, self._nothing)
                ticket.to(State.GONE)
                ticket.until = now + LATE
            if ticket.state is State.ASKING:
                ticket.rung = True
                return False
            if ticket.state is State.HELD:  # the node has caught up
                return False
            if ticket.state in OVER:
                if now < ticket.left_until and node not in ticket.failed:
                    return False
                self._tell(ticket, now + HINT)
                return True
            served = Served(announced.fence, announced.ttl, min(announced.at, now)) if announced.at > -inf else None
            ticket.grants.told(node, served, None if node in ticket.unanswered_since else ticket.after.get(node))
            if ticket.due == inf:
                ticket.to(State.OFFERED)
                self._tell(ticket, now + HINT * (1 + self._runtime.jitter()))
                return True
            return ticket.grants.hopeful or ticket.grants.granted() is not None

    def nudge(self) -> None:
        """Have all that wait ask again: so they stand in line at a node where they could not be told before."""
        now = self._runtime.now()
        with self.guard:
            for ticket in self._tickets.values():
                if ticket.state is State.WAITING:
                    ticket.to(State.OFFERED)
                    self._tell(ticket, now)

    def _tell(self, ticket: Ticket, due: float) -> None:
        ticket.due = min(ticket.due, due)
        self._due[ticket.token] = ticket

    def _stop_telling(self, ticket: Ticket) -> None:
        ticket.due = inf
        self._due.pop(ticket.token, None)

    def next_due(self) -> float:
        """When the listener has to be told something, although no node announces anything."""
        with self.guard:
            return min((ticket.due for ticket in self._due.values()), default=inf)

    def ripe(self) -> list[Announced]:
        """The grants and the hints that it is time for. A hint has no ttl."""
        now, ripe = self._runtime.now(), []
        with self.guard:
            for token, ticket in list(self._due.items()):
                served = ticket.grants.granted() if ticket.state is State.OFFERED else None
                if served is not None:
                    self.has(ticket, served.fence, served.ttl)
                    ripe.append(Announced(ticket.name, token, served.fence, served.ttl, served.since))
                elif now >= ticket.due or (ticket.state is State.OFFERED and ticket.grants.hopeful):
                    self._stop_telling(ticket)
                    if ticket.state is State.OFFERED:
                        ticket.to(State.WAITING)
                    ripe.append(Announced(ticket.name, token, 0, 0.0, -inf))
        return ripe
