"""The port: what a store must do to carry locks. Every verb is one atomic step in the store.

The contract, mirrored one to one by `interlock.testing.conformance`:

1. *Atomic.* A verb happens whole or not at all. A batch is many verbs: each of its leases is judged alone, and one that
   is gone, taken or spoilt keeps no other from being extended.
2. *Idempotent by token.* A repeated claim by the holder answers the same fence and sets the ttl anew; a repeated release or
   undo is harmless. So a lost reply costs nothing.
3. *Answers are data.* Raising `Unavailable` or being cancelled means that the outcome is unknown; the flow then calls `undo`.
   Any other error means that nothing happened.
4. *Durations, never timestamps,* go to the store; its own clock expires what it keeps.
5. *Fences grow* strictly with each grant of a name and are minted in the same step as the grant. See `core.fence`.
6. *One attempt.* No retry, no pause, no logging in a backend or hidden in a client library below it.
7. *Bounded.* A verb answers or raises `Unavailable` within `within` seconds, connecting included.
8. *Names are opaque* text that `core.checks.name` has passed.
9. *Foreign exceptions end here.* What leaves a verb is an answer, an `InterlockError` or a cancellation.
10. *Only a claim creates.* To extend or renew never makes or revives a lease, however late it arrives. So one whose answer
    never came needs no undo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked
from ..core.quorum import Marker
from ..core.waits import Wait
from ..runtime.base import Runtime


class Capabilities(NamedTuple):
    """What a store can do, declared. The conformance suite holds it to its word, and skips nothing in silence."""

    processes: bool  # excludes between processes, not only between threads of one
    hosts: bool  # excludes between machines
    survives: bool  # a held lock survives the death of every client
    foreign: bool  # shares its keys with other lock libraries
    lines: bool = False  # keeps a line of those who wait: it is a `Line`
    modes: bool = False  # carries claims of several names, and shared ones: see `Claim`
    light: bool = False  # its requests may share the task of whoever races them: see `Runtime.race`


class Backend(Protocol):
    """A store that carries locks. Make one with a registered opener; see `registry`."""

    address: str  # where it is, without secrets
    capabilities: Capabilities

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """Take the name for the token if it is free, expired, or the token's already."""

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """Set what is left of the token's lease to `ttl`. A `fence` above the stored one is stored (a quorum's write-back)."""

    async def renew(self, leases: Sequence[Renewal], within: float) -> Sequence[Granted | Gone | None]:
        """`extend` for many leases in one round trip, answered in their order. None: the outcome of that one is unknown.

        A lease whose name holds something that is no lock is Gone, and taken. Raises Unavailable when the outcome of all is
        unknown.
        """

    async def release(self, name: str, token: str, within: float) -> bool:
        """Give the name back if the token holds it; whether it did."""

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See to it that requests of this token whose answers never came leave nothing behind.

        Must follow them down the same path, so that it cannot overtake them. True: the store confirmed it. False, at once:
        none of the token's requests is unanswered.
        """

    def settled(self, token: str) -> bool:
        """Whether no extension of this token that had no answer can take effect after one that was sent later and answered.

        False if it is not known: for some seconds then no more is believed than the shorter of the two. A store of your own may
        leave this out, which means False.
        """

    async def inspect(self, name: str, within: float) -> Entry:
        """Who holds the name now."""

    async def close(self) -> None:
        """Let go of connections and files. Leases stay until they are released or expire."""


class NodeStatus(NamedTuple):
    """How a node stands: its roll, whether that is still good, and what the node is.

    A roll is good for one life of the node's memory. A node that was restarted, or failed over to its replica, may have come
    back with an older state: then it has a roll, which is not `good`, and casts no vote. `held` is for how many seconds a
    lease may last at most that it knows of, or would give to somebody in line; exactly so once its roll is closed.
    `loss` tells one loss of memory from any other, of this node and of all others: it stays the same until the node has a good
    roll, and whoever gives it one must name it. `waits` are those that were noted here, of whichever nodes (`core.waits`).
    `identity` tells one server from another whatever its address. `replica`: it must not vote at all. `trouble` is what an
    operator should hear of, in words. `renewed`: the name whose lease was extended last since the roll was closed, if any.
    """

    roll: Marker | None
    good: bool
    held: float = 0.0
    loss: str = ""
    identity: str = ""
    replica: bool = False
    trouble: tuple[str, ...] = ()
    renewed: str = ""
    waits: tuple[Wait, ...] = ()


class Member(Backend, Protocol):
    """A store that can also be a node of a quorum. With each vote, extension and renewal it keeps its roll true."""

    def elect(self, nodes: Sequence[str], is_live: Callable[[str], bool]) -> None:
        """It is a node of the quorum of these nodes from now on.

        `is_live(token)` says whether the token has the lock. Then a vote of it that this node never answered must not be undone
        behind its back: renewals may rely on it. It is asked from any thread, and must not wait.
        """

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """As `claim`, but Unmarked while the node has no good roll for this list of nodes: it may have forgotten leases.

        A new fence is `proposal` if that is higher than the node's own and no more than ten seconds ahead of its clock: nodes
        that all take it agree at once.
        """

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> NodeStatus:
        """How the node stands. With `mark`: a node without a good roll has a `loss` from now on, if it had none. A good roll
        notes `window` if that is longer than before. `waits` are noted, whether the roll is good or not, as far as the node
        has not noted them before, and counted on by its clock. A store may leave that out: then only a client that lives for
        long enough lets a node back in."""

    async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
        """Give it this roll, if it still stands as it did when it said `loss`; whether it took it. Its `high` never falls.
        Never for "": a loss without a name could not be told from the next."""

    async def release(self, name: str, token: str, within: float, proposal: int = 0) -> bool:
        """As `Backend.release`. Whoever is served gets `proposal` as its fence if that is higher than the node's own.

        Without an answer, what is on record of the token is forgotten after some seconds, unless it is live: no undo is needed
        for that.
        """

    def lag(self) -> float:
        """For how many seconds the node has owed an answer to a request that was abandoned; 0 when it owes none."""


class Line(Backend, Protocol):
    """A store that keeps those who wait in line, and tells whose turn it is.

    The line of a name is ordered by `Place.arrival`, then by token. Its first is *served* when the lock becomes free by a
    release: in the same step the lock is written for it (with a fence of its own, for `Place.ttl`), it leaves the line, and
    the grant is announced in its inbox. An inbox that is known to be gone is passed over. An announcement may be lost; whoever
    waits must claim again before the holder's lease ends. All that a line keeps expires by itself.

    - `claim` with a place: a refused token is in line, and stays where it is when it claims again. A free name goes to whoever
      claims it, line or no line: it is free only if its holder vanished, or nobody in line could be told. Whoever is granted
      leaves the line.
    - `release` and `undo` of a token that waits: it leaves the line. Of one that holds: the first in line is served.
    """

    async def open_inbox(self, within: float) -> str:
        """Where announcements to this client arrive. Opened once, and again after it broke; the same one for all names."""

    async def hear(self, until: float) -> Sequence[Announced]:
        """Wait for announcements; none when the moment `until` has come. One caller at a time.

        Raises Unavailable when the inbox is broken: then anything may have been missed, and a new one must be opened.
        """

    async def hand_over(self, name: str, token: str, heir: Claim, before: int, within: float) -> Handed:
        """Release, and claim for the heir, in one step.

        The heir is served as if it stood in line with the arrival `before` (0: before everybody): if somebody in line came
        earlier, that one is served and the heir waits in line at its own place. If the token did not hold the lock, this is a
        claim.
        """


class LineMember(Member, Protocol):
    """A node of a quorum that keeps a line: a `Line`, and this.

    Once it is elected, it serves nobody while it has no good roll: a release is then only a release, and a hand-over Unmarked.
    With each grant to somebody in line it keeps its roll true. Its refusals say `holder` and `fence`.
    """

    async def open_inbox(self, within: float) -> str:
        """See `Line.open_inbox`."""

    async def hear(self, until: float) -> Sequence[Announced]:
        """See `Line.hear`. May be abandoned at any moment: nothing is lost by that."""

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """As `Line.hand_over`. A new fence is `proposal` if that is higher than the node's own.

        To itself: the token keeps the lock, unless somebody in line came before it by arrival and token. It keeps its fence as
        well, but for a node that raised it for somebody who could not be told. `Handed.held` says nothing then.
        """

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """Give the name back if the token holds it, serve nobody, and wait in line. The highest fence given for the name.

        `longest` is for how long somebody else may have it elsewhere: the line is kept for longer.
        """


Opener = Callable[[Any, Runtime], Backend]
"""What a URL scheme is registered with: `open(url_or_client_object, runtime)`. Must not touch the network."""

__all__ = ["Backend", "Capabilities", "Line", "LineMember", "Member", "NodeStatus", "Opener"]
