"""The rules of a store, as one state: which token holds which name, and which tokens wait for it.

What this file decides is right by definition. The other stores say the same in Lua and in SQL; a stateful test drives each of
them and this one with the same requests and compares the answers.

- A name has one holder: a token, or a *group* of readers (claims that are `shared`). A group has one fence, and each reader an
  end of its own. The group ends with its last reader.
- A claim may name several names, any one of which will do (the slots of a semaphore). Its token holds one of them at most.
- A name's line is ordered by arrival, then by token. The slots of a semaphore have one line, that of the claim's `name`.
- A free name goes to the first claim. A reader joins a group unless a writer in line came before it: no writer starves.
- When a name becomes free by a release, the first in line that accepts it is served; with a reader all readers next to it in
  line. A waiter whose inbox is gone is passed over.

Rules of the file: no lock, no waiting, no I/O but the pipe of an inbox. Clever belongs elsewhere.
"""

from __future__ import annotations

from _thread import allocate_lock  # threading itself is forbidden to backends: it invites waiting
from bisect import insort
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from ...core import fence as fences
from ...core.claim import Announced, Ballot, Claim, Gone, Granted, Handed, Place, Refused, Renewal, Unmarked
from ...core.token import alias_of, owner_of
from ...runtime import forks
from .inbox import Inbox
from .marker import NodeMemory

GROUP = "readers"  # what stands for the holder while readers hold a name


class Held(NamedTuple):
    """The holder of a name, and the end of its lease."""

    token: str
    fence: int
    until: float


class Stand(NamedTuple):
    """A token in line: any of `names` will do."""

    arrival: int
    token: str
    place: Place
    names: tuple[str, ...]
    shared: bool


class Memory(NodeMemory):
    """The names, their holders and their lines. One per `memory://name` and process, shared by all its clients."""

    def __init__(self, now: Callable[[], float], wall_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(now)
        self.wall_ms = wall_ms
        self.last_fence = fences.floor(wall_ms())
        self.held: dict[str, Held] = {}
        self.groups: dict[str, dict[str, float]] = {}  # name → the readers that hold it, and until when each does
        self.lines: dict[str, list[Stand]] = {}
        self.inboxes: dict[str, Inbox] = {}
        self.guard = allocate_lock()
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. The waiters are the parent's; a thread that was inside does not exist in the child."""
        self.lines, self.inboxes, self.guard = {}, {}, allocate_lock()

    # --- holders --------------------------------------------------------------------------------------------------------

    def holder(self, name: str) -> Held | None:
        """The holder of the name at this moment. Forgets what is over."""
        held = self.held.get(name)
        if held is None:
            return None
        now = self.now()
        if held.token == GROUP:
            group = self.groups[name]
            for reader in [reader for reader, until in group.items() if until <= now]:
                del group[reader]
            held = self.held[name] = held._replace(until=max(group.values(), default=now))
        if held.until > now:
            return held
        del self.held[name]
        self.groups.pop(name, None)
        return None

    def holds(self, name: str, token: str) -> bool:
        """Whether the token holds the name, alone or as a reader."""
        held = self.holder(name)
        return held is not None and (held.token == token or (held.token == GROUP and token in self.groups[name]))

    def shown_holder(self, name: str) -> str:
        """The token that holds the name, which is held; of a group its first reader."""
        return next(iter(self.groups.get(name, ())), self.held[name].token)

    def _hold(self, name: str, token: str, shared: bool, fence: int, ttl: float) -> None:
        until = self.now() + ttl
        if shared:
            group = self.groups.setdefault(name, {})
            group[token] = until
            token, until = GROUP, max(group.values())
        self.held[name] = Held(token, fence, until)

    def _let_go(self, name: str, token: str) -> None:
        """The token, which holds the name, holds it no more."""
        if (group := self.groups.get(name)) is not None:
            del group[token]
            if group:
                return
            del self.groups[name]
        del self.held[name]

    # --- the verbs ------------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, ballot: Ballot | None = None, plausible: bool = False) -> Granted | Refused | Unmarked:
        """See `port.Backend.claim`."""
        if ballot is not None and not self.votes(ballot.nodes):
            return Unmarked()
        name = claim.name
        fence = self._granted(claim, name, ballot, plausible) if not claim.names else None
        for name in sorted(claim.names, key=lambda name: not self.holds(name, claim.token)) if claim.names else ():
            fence = self._granted(claim, name, ballot, plausible)
            if fence is not None:
                break
        if fence is not None:
            if claim.name in self.lines:
                self.leave_line(claim.name, claim.token)
            self._hold(name, claim.token, claim.shared, fence, claim.ttl)
            if self.roll is not None:
                self.note_fence(self.last_fence)
            if claim.shared:  # readers in line enter with it
                self.serve(name, claim.name, ballot)
            return Granted(fence, claim.ttl, name if claim.names else "")
        self.line_up(claim)
        name = min((name for name in claim.names or (claim.name,) if name in self.held), key=lambda name: self.held[name].until)
        first, token = self.held[name], self.shown_holder(name)
        now = self.now()
        refused = Refused(first.until - now, owner_of(token), at=now, fence=self.last_fence)
        return refused if ballot is None else refused._replace(holder=alias_of(token))

    def _granted(self, claim: Claim, name: str, ballot: Ballot | None, plausible: bool) -> int | None:
        """The fence with which the claim gets the name. None: another token has it."""
        held = self.holder(name)
        if held is None:
            return self._mint(ballot, plausible)
        group = self.groups.get(name, ())
        if held.token == claim.token or (claim.shared and claim.token in group):
            return self._mint(ballot, plausible) if held.fence <= self.seed else held.fence
        return held.fence if claim.shared and group and not self._writer_before(claim) else None

    def _writer_before(self, claim: Claim) -> bool:
        """Whether a waiter that is no reader, and can be told, came before this claim."""
        mine = (claim.place.arrival, claim.token) if claim.place is not None else (inf, "")
        line = self.lines.get(claim.name, ())
        return any(not s.shared and s.place.inbox in self.inboxes and (s.arrival, s.token) < mine for s in line)

    def _mint(self, ballot: Ballot | None, plausible: bool) -> int:
        """The next fence. A proposal of a token that holds the lock needs no clock to be plausible."""
        minted, proposal = self.last_fence + 1, 0 if ballot is None else ballot.proposal
        self.last_fence = max(minted, proposal) if plausible else fences.propose(minted, proposal, self.wall_ms())
        return self.last_fence

    def extend(self, lease: Renewal) -> Granted | Gone:
        """See `port.Backend.renew`."""
        name, token, ttl, fence = lease
        held = self.holder(name)
        if held is None or not self.holds(name, token):
            return Gone(taken=held is not None)
        self.note_renewal(name)
        raised = max(held.fence, fence)
        self.last_fence = max(self.last_fence, raised)
        self._hold(name, token, held.token == GROUP, raised, ttl)
        self.note_fence(self.last_fence)
        return Granted(raised, ttl)

    def release(self, name: str, token: str, ballot: Ballot | None = None, line: str = "") -> bool:
        """See `port.Backend.release`."""
        if self.holds(name, token):
            self._let_go(name, token)
            if self.lines:
                self.serve(name, line or name, ballot)
            return True
        self.undo(line or name, token, ballot)
        return False

    def undo(self, line: str, token: str, ballot: Ballot | None = None) -> bool:
        """Leave the line; whether the token stood there. Readers that waited behind this writer join the group."""
        left = self.leave_line(line, token)
        if left and line in self.groups:
            self.serve(line, line, ballot)
        return left

    def hand_over(self, name: str, token: str, heir: Claim, before: int, ballot: Ballot | None = None) -> Handed | Unmarked:
        """See `port.Line.hand_over`."""
        held = self.holder(name)
        ours, own = self.holds(name, token), token if token == heir.token else ""
        if ours:
            self._let_go(name, token)
            self.leave_line(heir.name, heir.token)
            self.serve(name, heir.name, ballot, before, own)
            if own and held is not None and name not in self.held:
                self.held[name] = held  # nobody came before it: it keeps its fence
        if not own:  # else it is a claim, and keeps its place
            self.leave_line(heir.name, token)
        answer = self.claim(heir, ballot, plausible=ours)
        return answer if isinstance(answer, Unmarked) else Handed(ours, answer)

    def requeue(self, claim: Claim) -> int:
        """See `port.LineMember.retreat`."""
        if self.holds(claim.name, claim.token):
            self._let_go(claim.name, claim.token)
        self.line_up(claim)
        return self.last_fence

    # --- the line -------------------------------------------------------------------------------------------------------

    def line_up(self, claim: Claim) -> None:
        """Stand in line, if the claim has a place; a token that stands there keeps its place."""
        if claim.place is not None:
            line = self.lines.setdefault(claim.name, [])
            if all(stand.token != claim.token for stand in line):
                names = claim.names or (claim.name,)
                insort(line, Stand(claim.place.arrival, claim.token, claim.place, names, claim.shared))

    def leave_line(self, name: str, token: str) -> bool:
        """Leave the line of the name; whether the token stood there."""
        if name not in self.lines:
            return False
        before = self.lines.pop(name)
        if after := [stand for stand in before if stand.token != token]:
            self.lines[name] = after
        return len(after) < len(before)

    def serve(self, name: str, line: str, ballot: Ballot | None = None, before: int | None = None, own: str = "") -> None:
        """Give a name to the first in line that accepts it; with a reader, to the readers next to it. With `before` only to
        those that came before that arrival and the token `own`."""
        if line not in self.lines or (ballot is not None and not self.votes(ballot.nodes)):
            return
        for stand in list(self.lines[line]):
            if before is not None and (stand.arrival, stand.token) >= (before, own):
                return
            if name not in stand.names:
                continue
            held, inbox = self.holder(name), self.inboxes.get(stand.place.inbox)
            if held is not None and inbox is not None and not (stand.shared and held.token == GROUP):
                return
            self.leave_line(line, stand.token)
            if inbox is None:
                continue
            fence = self._mint(ballot, plausible=True) if held is None else held.fence
            self._hold(name, stand.token, stand.shared, fence, stand.place.ttl)
            self.note_fence(self.last_fence)
            inbox.put(Announced(name, stand.token, fence, stand.place.ttl, self.now()))
