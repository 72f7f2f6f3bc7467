"""How independent nodes decide together: votes, the agreed fence, who may vote, who is worth asking.

Invariants
- Two winners of one name share a node (`votes_needed`), as long as no node votes that has forgotten a lease (`Quarantine`).
- The fence of a grant is stored on a quorum of nodes while the token held the lock there. So a later winner, who shares a
  node with this one, has seen a fence at least as high, whatever any clock did in between.

Rules of the file: pure. Moments and random numbers are arguments; nothing here talks to a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ..errors import Unavailable, Vote
from .claim import Entry, Gone, Granted, Refused, Unmarked
from .shown import shown

HIGH_STEP = 1 << 22  # about a second of fences: how coarsely a node notes the highest it ever stored
FIRST_REST, LONGEST_REST = 0.1, 2.0  # how long a node that failed is left alone
SILENT = 0.02  # a node that has owed an answer for longer is not asked again at once


def votes_needed(nodes: int, limit: int | None = 1) -> int:
    """How many of `nodes` must grant, so that no more than `limit` holders can win at once.

    A lock (limit 1) needs a majority. A semaphore needs more: with limit n the winners together have at most `nodes * limit`
    grants, so each must have more than `nodes * limit / (limit + 1)`. Readers (no limit) need a majority, to meet writers.
    """
    if limit is None:
        limit = 1
    return nodes * limit // (limit + 1) + 1


def missing_at_birth(nodes: int) -> int:
    """How many nodes may be out of reach when nobody has a roll, for the cluster to be taken for new.

    A lease stands on a quorum. If all but these few are without a roll, then for a lease to be alive at least two of those that
    we see must have forgotten it: more than one loss of memory at a time, and the quarantine is meant for one.
    """
    return max(votes_needed(nodes) - 2, 0)


class Tally:
    """The count of one vote. Feed it answers; `decided` as soon as no missing answer can change the outcome."""

    def __init__(self, asked: Sequence[int], nodes: int, limit: int | None = 1) -> None:
        self.needed = votes_needed(nodes, limit)
        self.granted: dict[int, Granted] = {}
        self.refused: dict[int, Refused] = {}
        self._open = len(asked)  # so many have not answered

    def ask(self, more: Sequence[int]) -> Sequence[int]:
        """These are asked as well."""
        self._open += len(more)
        return more

    def count(self, node: int, answer: object) -> None:
        """A node has answered, or failed to (anything that is neither Granted nor Refused). Once each."""
        self._open -= 1
        if isinstance(answer, Granted):
            self.granted[node] = answer
        elif isinstance(answer, Refused):
            self.refused[node] = answer

    @property
    def won(self) -> bool:
        """Enough have granted."""
        return len(self.granted) >= self.needed

    @property
    def decided(self) -> bool:
        """Won, or not to be won any more."""
        return self.won or len(self.granted) + self._open < self.needed

    @property
    def doubtful(self) -> bool:
        """A quorum has spoken, somebody else has a part, and only nodes that have not answered could still turn it.

        Waiting for them would keep our part from everybody else as well: after a moment it is better to give up and ask again.
        """
        return not self.won and bool(self.refused) and len(self.granted) + len(self.refused) >= self.needed

    @property
    def hopeless(self) -> bool:
        """Too few nodes say yes or no, or may still do so: it is not somebody else who has it, it is the nodes."""
        return len(self.granted) + len(self.refused) + self._open < self.needed

    @property
    def held(self) -> bool:
        """A quorum refuses in favour of one and the same: it has the lock. Else, if not won, the vote is split."""
        holders = [refused.holder for refused in self.refused.values()]
        return any(holders.count(holder) >= self.needed for holder in set(holders))

    def fence(self) -> int:
        """The fence to agree on: the highest that any granting node gave."""
        return max(granted.fence for granted in self.granted.values())

    def behind(self) -> list[int]:
        """The granting nodes that must be taught the agreed fence; none when a quorum gave it already."""
        top = self.fence()
        lower = [node for node, granted in self.granted.items() if granted.fence != top]
        return lower if len(self.granted) - len(lower) < self.needed else []

    def retry_after(self) -> float | None:
        """When enough of the refusing nodes will be free at the latest; None if never by themselves."""
        missing = self.needed - len(self.granted)
        ends = sorted(refused.retry_after for refused in self.refused.values() if refused.retry_after is not None)
        return ends[missing - 1] if 0 < missing <= len(ends) else None

    def owner(self) -> str:
        """Who most of the refusing nodes say has it."""
        owners = [refused.owner for refused in self.refused.values()]
        return max(set(owners), key=owners.count) if owners else ""


class Extensions:
    """The count of an extension of several leases, each decided alone. Feed it answers; `outcomes` are in the leases' order.

    `able` nodes could extend them. A lease is extended when a quorum has done it, and gone when so many nodes say so that no
    quorum is left; None: neither is certain. Silence does not make a lease gone: a node without an answer may still hold it.
    """

    def __init__(self, leases: int, able: int, needed: int) -> None:
        self.outcomes: list[Granted | Gone | None] = [None] * leases
        self._able, self._needed = able, needed
        self._nodes: list[int] = []  # that have answered, in this order
        self._answers: list[list[Granted | Gone | None]] = [[] for _ in range(leases)]  # of each lease, from these nodes

    def count(self, node: int, answers: Sequence[Granted | Gone | None]) -> None:
        """A node has answered, for each of the leases."""
        self._nodes.append(node)
        for number, answer in enumerate(answers):
            self._answers[number].append(answer)
            self.outcomes[number] = self._outcome(self._answers[number])

    def _outcome(self, answers: list[Granted | Gone | None]) -> Granted | Gone | None:
        granted = [answer for answer in answers if isinstance(answer, Granted)]
        gone = [answer for answer in answers if isinstance(answer, Gone)]
        if len(granted) >= self._needed:
            return Granted(max(answer.fence for answer in granted), min(answer.ttl for answer in granted))
        if gone and self._able - len(gone) < self._needed:
            return Gone(any(answer.taken for answer in gone), left=len(gone) < self._able)
        return None

    @property
    def certain(self) -> bool:
        """Nothing is open any more."""
        return None not in self.outcomes

    @property
    def hopeless(self) -> bool:
        """Nothing is certain about any of them."""
        return all(outcome is None for outcome in self.outcomes)

    def lacking(self) -> list[tuple[int, int, int]]:
        """Which leases that a quorum extended are missing on which nodes, and free there: (lease, its fence, node)."""
        return [
            (number, outcome.fence, node)
            for number, outcome in enumerate(self.outcomes)
            if isinstance(outcome, Granted)
            for node, answer in zip(self._nodes, self._answers[number], strict=True)
            if answer == Gone(taken=False)
        ]


class Marker(NamedTuple):
    """What a node keeps about itself, and every vote needs. It is good for one life of the node's memory: see `NodeStatus`.

    `nodes`: the addresses of the quorum that it votes in, in order. `high`: no fence it stored was higher. `seed`: every fence
    that it mints is above this one. `closed`: it votes for nobody, since the list of nodes is being changed, or was changed.
    `to` is what it is being changed to, while that can be given up; or `nodes` once more: the node is none of these. `era`
    counts the changes; `was` are digests of the lists before this one (`core.membership`). `window`: no client counts an answer
    that it gets more than so many seconds after it asked.
    """

    nodes: tuple[str, ...]
    high: int = 0
    seed: int = 0
    closed: bool = False
    window: float = 0.0
    to: tuple[str, ...] = ()
    era: int = 0
    was: tuple[str, ...] = ()

    @property
    def unused(self) -> bool:
        """Nobody has voted under it."""
        return self.high == 0 and self.era == 0 and not self.closed

    @property
    def retired(self) -> bool:
        """The node votes in no list. It knows one that it was a node of, or was to be one of, so that others can be told."""
        return self.closed and self.to == self.nodes


class Quarantine(NamedTuple):
    """A node that may have forgotten leases, and until when one of them may be alive: for ever while that is not known.

    `since` is when it was known that it does not vote.
    `loss` says which loss of memory it was, "" while that is not known. The wait counts for that one only, since a node may be
    let in by another client meanwhile, vote, and forget again.
    """

    since: float = inf
    until: float = inf
    loss: str = ""


def reseed(rolls: Sequence[Marker], nodes: Sequence[str]) -> Marker | None:
    """The roll for a node that has served its quarantine, from those of the others. None: too few others have one.

    A quorum of the others shares a node with every quorum that ever stored a fence, even one that the forgetful node was
    part of.
    """
    if len(rolls) < votes_needed(len(nodes)):
        return None
    high = max(roll.high for roll in rolls)
    return reopened(rolls, nodes, high, high)


def reopened(rolls: Sequence[Marker], nodes: Sequence[str], high: int, seed: int) -> Marker:
    """A roll for these nodes, which goes on in the era that any of the rolls knows of."""
    known = [roll for roll in rolls if roll.nodes == tuple(nodes)]
    last = max(known, key=lambda roll: roll.era, default=Marker(tuple(nodes)))
    window = max((roll.window for roll in rolls), default=0.0)
    return last._replace(high=high, seed=seed, closed=False, to=(), window=window)


class Health:
    """Whether a node is worth asking. Only ever saves time: a node whose vote is needed is asked anyhow."""

    __slots__ = ("_rest", "retry_at")

    def __init__(self) -> None:
        self._rest = FIRST_REST
        self.retry_at = 0.0

    def failed(self, now: float, jitter: float) -> None:
        """It gave no answer: leave it alone for a while, longer each time."""
        self.retry_at = now + self._rest * (0.5 + 0.5 * jitter)
        self._rest = min(2 * self._rest, LONGEST_REST)

    def answered(self) -> None:
        """It is back."""
        self._rest, self.retry_at = FIRST_REST, 0.0


def table(votes: Sequence[Vote]) -> str:
    """Who voted what, a line each."""
    nodes = [shown(vote.node) for vote in votes]
    width = max(map(len, nodes), default=0)
    return "\n".join(f"  {node:<{width}}  {_line(vote)}" for node, vote in zip(nodes, votes, strict=True))


def _line(vote: Vote) -> str:
    took = "" if vote.latency is None else f" after {vote.latency * 1000:.1f} ms"
    detail = f" ({shown(vote.detail)})" if vote.detail else ""
    return f"{vote.verdict}{took}{detail}"


def verdict_of(outcome: object) -> tuple[str, str]:
    """An answer or an error, as a word and a detail."""
    match outcome:
        case None:
            return "late", ""
        case Granted():
            return "granted", ""
        case Refused(after, owner):
            end = "with no expiry" if after is None else f"until {after:.1f} s from now"
            return "held", f"{end}{' by ' + owner if owner else ''}"
        case Entry(held=True, owner=owner, remaining=left):
            return "held", f"{owner or 'a foreign client'}, {'no expiry' if left is None else f'{left:.1f} s left'}"
        case Entry():
            return "free", ""
        case Unmarked():
            return "quarantined", "lost its memory"
        case Gone(taken):
            return "gone", "somebody else holds it" if taken else ""
        case Unavailable(cause="auth"):  # for good: it says what to do
            return "auth", str(outcome)
        case Unavailable(cause="error"):
            return "error", str(outcome)[:200]
        case Unavailable(cause=cause):
            return cause, ""
        case BaseException():
            return "error", str(outcome)
    return "answered", ""
