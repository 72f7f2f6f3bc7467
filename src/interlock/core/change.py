"""How the list of nodes of a quorum is changed without two holders: what to do next, from what is seen.

Invariants
- At any moment at most one of the two lists has so many open nodes that a vote under it can be won.
- When the first node is opened under the new list, no lease that was won under the old one is alive.

The stages of a node, each entered by a compare-and-set on the node's roll (`port.Member.enroll`)
- a node of the old list: open(old) → closed(old, to=new) → closed(new) → open(new), or retired(new), which is closed for ever,
  instead of closed(new) if it is no node of the new list. Only the first step can be taken back
- a node of the new list only: whatever it was → closed(new) → open(new). It is closed first, so that no client of the new list
  can take the nodes for a new cluster

The rules
1. A node of the old list goes to closed(new) when it holds no lease, and when a quorum of the old list is that far. It was
   closed all the time, or the compare-and-set would fail. So it has no vote under the old list to give, and forgets none.
2. A node is opened under the new list when a quorum of the old list is closed(new). A lease of the old list stands on a node of
   that quorum as well, and there is none: the lease is over. From here on there is no way back.
3. The change is given up only while no node of the old list is closed(new): those that are closed are opened again.
   Whoever gives up and whoever goes on cannot both get a quorum of the old list, since each node goes one way.
4. A node that may have forgotten something is not counted, and not touched before rule 2 is met.
5. The nodes of the new list begin above the highest fence of a quorum of the old one.

Rules of the file: pure. It sees nodes one after the other, so what it sees may be over; the compare-and-sets make up for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .membership import KEPT, OtherList, common_list, digest, superseded
from .quorum import Marker, votes_needed
from .shown import listed

CLOSING, DRAINING, COMMITTING, OPENING, DONE = "closing", "draining", "committing", "opening", "done"
REOPENING, GIVEN_UP, MISSING = "reopening", "given up", "missing"


class Seen(NamedTuple):
    """A node as it was seen: in which of the two lists it is, and what it said of itself. Not `heard`: it said nothing."""

    address: str
    old: bool
    new: bool
    heard: bool = False
    roll: Marker | None = None
    good: bool = False
    held: float = 0.0


class Refusal(Exception):
    """The change cannot be made, whoever tries how often."""


class TooLate(Refusal):
    """It cannot be given up any more."""


class Step(NamedTuple):
    """What comes next: the rolls to give to nodes, by number. No rolls: there is something to wait for, or it is over."""

    stage: str
    rolls: Mapping[int, Marker] = {}
    waits_for: Sequence[int] = ()  # nodes that hold leases, or are missing


class Sight:
    """What was seen, in the words of the rules. Raises Refusal if the nodes of the old list do not belong together."""

    def __init__(self, seen: Sequence[Seen], old: Sequence[str], new: Sequence[str]) -> None:
        self.seen, self.new = seen, tuple(sorted(new))
        self.needed, self.needed_new, self.spare = (
            votes_needed(len(old)),
            votes_needed(len(new)),
            len(old) - votes_needed(len(old)),
        )
        rolls = {node.address: node.roll for node in seen if node.old and node.roll is not None and node.roll.nodes != self.new}
        self.old = _name_of(old, self.new, rolls)
        last = [roll for roll in rolls.values() if roll.nodes == self.old]
        self.last = max(last, key=lambda roll: roll.era, default=None)  # the latest roll of the old list
        moved = [node.roll for node in seen if node.roll is not None and self.moved(node)]
        known = [node.roll.high for node in seen if node.roll is not None and node.old] + [roll.high for roll in moved]
        high = max(known, default=0)
        window = max((node.roll.window for node in seen if node.roll is not None), default=0.0)
        self.closed = Marker(self.new, high, high, True, window, (), *self._lineage(moved))
        self.opened, self.retired = self.closed._replace(closed=False), self.closed._replace(to=self.new)
        self.any_open = any(not roll.closed for roll in moved)
        self.left = sum(node.old and self.moved(node) for node in seen)  # so many have left the old list
        self.past = self.any_open or self.left >= self.needed

    def _lineage(self, moved: Sequence[Marker]) -> tuple[int, tuple[str, ...]]:
        if self.last is None:
            return max(((roll.era, roll.was) for roll in moved), default=(0, ()))
        was = dict.fromkeys((digest(self.old), *self.last.was))
        return self.last.era + 1, tuple(name for name in was if name != digest(self.new))[:KEPT]

    def moved(self, node: Seen) -> bool:
        """It was closed for the new list, or opened under it, by this change. It may have forgotten things since."""
        roll = node.roll
        if roll is None or roll.nodes != self.new or digest(self.old) not in roll.was:
            return False
        return self.last is None or roll.era > self.last.era

    def ready(self, node: Seen) -> bool:
        """It has come as far, and forgot nothing."""
        return node.good and self.moved(node)

    def voting(self, node: Seen) -> bool:
        """It votes under the old list."""
        return node.good and node.roll is not None and node.roll.nodes == self.old and not node.roll.closed

    def closing(self, node: Seen) -> bool:
        """It is closed for this change."""
        roll = node.roll
        return node.good and roll is not None and roll.nodes == self.old and roll.closed and roll.to == self.new

    def able(self, node: Seen) -> bool:
        """A node of the old list that counts: what it says of its leases and fences is true, or does not matter any more."""
        return node.old and (self.voting(node) or self.closing(node) or self.moved(node))

    def stranger(self, node: Seen) -> str:
        """Why the node cannot be had, "" if it can."""
        roll = node.roll
        if roll is None or roll.unused or self.moved(node):
            return ""
        if not roll.nodes:
            return "" if node.old else f"{node.address} was a node of a quorum of an older interlock: empty it first"
        if node.old and roll.nodes == self.old:
            if not (node.good and roll.closed) or roll.to == self.new:
                return ""
            return f"{node.address} is closed for another change, to {listed(roll.to)}: finish that one, or give it up"
        if (roll.retired and not node.old) or (self.last is not None and superseded(roll, [self.last])):
            return ""  # a roll that is of no use to anybody any more
        return f"{node.address} belongs to another quorum: {listed(roll.nodes)}"


def _name_of(old: Sequence[str], new: Sequence[str], rolls: Mapping[str, Marker]) -> tuple[str, ...]:
    """The old list as its nodes call it."""
    if tuple(sorted(old)) == new:
        raise Refusal("the two lists are the same: there is nothing to change")
    known = list(rolls.values())
    try:
        return common_list(old, {address: roll for address, roll in rolls.items() if not superseded(roll, known)})
    except OtherList as other:
        raise Refusal(f"the nodes of the old list do not belong together, or to another list: {listed(other.nodes)}") from None


def plan(seen: Sequence[Seen], old: Sequence[str], new: Sequence[str], back: bool = False) -> Step:
    """The next step of a change from `old` to `new`, or (`back`) of giving it up. Raises Refusal.

    `seen` has every node of both lists, once.
    """
    sight = Sight(seen, old, new)
    if back:
        return _back(sight)
    return _open(sight) if sight.past else _close(sight)


def _close(sight: Sight) -> Step:
    """Close the nodes, wait until they are empty, and have a quorum of the old list leave it."""
    nodes = list(enumerate(sight.seen))
    for _, node in nodes:
        if why := sight.stranger(node):
            raise Refusal(why)
    silent = [number for number, node in nodes if node.new and not node.heard]
    able = [number for number, node in nodes if sight.able(node)]
    if silent or len(able) < sight.needed:
        return Step(MISSING, {}, silent or [number for number, node in nodes if node.old and number not in able])
    # Nodes of the new list only; and such of the old list as were away since one before it, and know nothing of this one.
    joining = [number for number, node in nodes if not node.old and not sight.ready(node)]
    joining += [number for number, node in nodes if node.old and number not in able and node.good]
    if joining:
        return Step(CLOSING, dict.fromkeys(joining, sight.closed._replace(high=0, seed=0)))
    votes = {number: node.roll for number, node in nodes if node.roll is not None and node.old and sight.voting(node)}
    if votes:
        return Step(CLOSING, {number: roll._replace(closed=True, to=sight.new) for number, roll in votes.items()})
    closing = [number for number, node in nodes if node.old and sight.closing(node)]
    empty = [number for number in closing if sight.seen[number].held <= 0]
    if len(empty) + sight.left < sight.needed:
        return Step(DRAINING, {}, [number for number in closing if number not in empty])
    return Step(COMMITTING, {number: sight.closed if sight.seen[number].new else sight.retired for number in empty})


def _open(sight: Sight) -> Step:
    """There is no way back: open the nodes of the new list, and tell the others of the old list that they are none of it."""
    nodes = list(enumerate(sight.seen))
    rolls = {}
    for number, node in nodes:
        there = sight.ready(node) and node.roll is not None and node.roll.closed is not node.new
        if not there and (sight.ready(node) or sight.voting(node) or sight.closing(node)):
            rolls[number] = sight.opened if node.new else sight.retired
    if not sight.any_open and all(node.heard for node in sight.seen if node.new):
        # Nobody has voted under the new list: whoever forgot something has nothing of it to forget. These are closed first.
        lost = [number for number, node in nodes if node.new and number not in rolls and not sight.stranger(node)]
        if lost:
            return Step(OPENING, dict.fromkeys(lost, sight.closed))
    if rolls:
        return Step(OPENING, rolls)
    absent = [number for number, node in nodes if node.new and not sight.ready(node)]
    return Step(DONE if len(sight.new) - len(absent) >= sight.needed_new else MISSING, {}, absent)


def _back(sight: Sight) -> Step:
    """Open the old list again, and let go of the nodes that were to join it."""
    if sight.past or sight.left:
        raise TooLate(
            "it is too late to give the change up: a node has left the old list. Run the change again, and it goes on"
        )
    rolls = {}
    for number, node in enumerate(sight.seen):
        if node.old and sight.closing(node) and node.roll is not None:
            rolls[number] = node.roll._replace(closed=False, to=())
        elif not node.old and sight.ready(node) and sight.last is not None:
            rolls[number] = sight.last._replace(closed=True, to=sight.old, high=0, seed=0)
    if rolls:
        return Step(REOPENING, rolls)
    absent = [number for number, node in enumerate(sight.seen) if node.old and not sight.voting(node)]
    return Step(GIVEN_UP if len(absent) <= sight.spare else MISSING, {}, absent)
