"""Which nodes are a quorum: every client of it must count the same ones.

Two clients that count votes among other nodes can both win. So the list of nodes stands in each node's roll, every vote names
it, and a client whose list is another one is refused. A node may be known by several addresses; the list in the rolls is the
one of whoever used the cluster first, and others take it over.

The list can be changed (`core.change`). The rolls of the new list name the lists before it, so that a node that was away
meanwhile, or came back with an older state, is known for what it is: one of ours that must be let in anew.

Rules of the file: pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256

from .quorum import Marker, votes_needed

KEPT = 16  # how many earlier lists a roll names


class OtherList(Exception):
    """The nodes belong to another list than ours."""

    def __init__(self, nodes: Sequence[str], why: str) -> None:
        super().__init__(why)
        self.nodes = tuple(nodes)
        self.why = why


def common_list(
    own: Sequence[str], rolls: Mapping[str, Marker | None], known: tuple[str, ...] = (), ours: Container[str] = ()
) -> tuple[str, ...]:
    """The list of nodes to vote with: ours, or the same nodes as somebody else calls them. Raises OtherList.

    With `known`, the list that we have voted with: that it is still this one. `ours` are nodes that had a roll for it once, so
    that they need not be told by their addresses.

    `rolls` are those of the nodes that have answered, by our address of each. Rules:
    - a list that was changed into one that is seen as well, and open, does not count any more. (While it is closed the old
      one may have holders.)
    - a list that somebody has voted under, or that is being changed to, is the one; if there are several, the one of a majority
      of our nodes. A listed node that says otherwise is kept out by its roll, and does not stop the others
    - if one of our nodes has left the list for another one, be that open or not, others may vote under that
    - a list that nobody has voted under yet gives way to a longer one, then to the one that comes first
    - whoever has a roll for the list is a node of it, by whatever address, unless it was taken out of it; whoever has none is
      one if its address is listed
    """
    mine = tuple(sorted(own))
    rolls = {address: roll if roll is not None and roll.nodes else None for address, roll in rolls.items()}  # or it is old
    everybody = [roll for roll in rolls.values() if roll is not None]
    opened = [roll for roll in everybody if not roll.closed]
    rolls = {address: None if roll is None or superseded(roll, opened) else roll for address, roll in rolls.items()}
    said = [roll.nodes for roll in rolls.values() if roll is not None and not roll.unused]
    major = {nodes for nodes in said if said.count(nodes) >= votes_needed(len(mine))}
    if known:
        chosen = known
        if others := major - {known}:
            raise OtherList(max(others), "most of them belong to another quorum by now")
    else:
        used = major or set(said)
        if len(used) > 1:
            raise OtherList(max(used - {mine}), "some of them belong to another quorum")
        seen = {roll.nodes for roll in rolls.values() if roll is not None}
        chosen = min(used or seen | {mine}, key=lambda nodes: (-len(nodes), nodes))
    lists = [_last(nodes, everybody) for nodes in {chosen, mine}]  # one of them in another's words, unless it is the past
    if later := [roll.nodes for roll in everybody if any(superseded(one, [roll]) for one in lists)]:
        raise OtherList(max(later), "the list was changed")
    if len(chosen) != len(mine):
        raise OtherList(chosen, f"they are nodes of a quorum of {len(chosen)}")
    for address, roll in rolls.items():
        if address not in chosen and address not in ours and (roll is None or roll.nodes != chosen or roll.retired):
            raise OtherList(chosen, f"{address} is none of them, or has come back empty and is known there by another address")
    return chosen


def _last(nodes: tuple[str, ...], rolls: Iterable[Marker]) -> Marker:
    """The latest roll of a list."""
    return max((roll for roll in rolls if roll.nodes == nodes), key=lambda roll: roll.era, default=Marker(nodes, era=-1))


def digest(nodes: Sequence[str]) -> str:
    """What a vote names the list of nodes by, and a roll the lists before its own."""
    return sha256("\n".join(nodes).encode()).hexdigest()[:16]


def superseded(roll: Marker, others: Iterable[Marker]) -> bool:
    """Whether the list of this roll was changed into that of one of the others, with or without steps in between."""
    name = digest(roll.nodes)
    return any(other.era > roll.era and name in other.was for other in others)


def lineage(roll: Marker) -> str:
    """What a roll says about changes of the list, as text for a store to keep."""
    return "\n".join([f"{roll.era}", " ".join(roll.was), *roll.to])


def with_lineage(roll: Marker, text: str) -> Marker:
    """The roll with what that text says. Text that is none says nothing."""
    era, was, *to = [*text.split("\n"), "", ""][: max(2, text.count("\n") + 1)]
    number = int(era) if era.isascii() and era.isdigit() and len(era) < 10 else 0
    return roll._replace(to=tuple(to), era=number, was=tuple(was.split()[:KEPT]))
