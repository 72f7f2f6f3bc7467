"""The waits of nodes that cast no vote, as nodes have noted them for clients that do not live that long.

A node that may have forgotten leases waits twice: until whatever counts on its forgotten votes has come to the others, then
until the leases that these hold are over. A client may end before that. So every node that a client reaches notes how far the
wait has come, and counts it on by its own clock. The next client asks all nodes and goes on from there.

Invariant: what is believed of a wait is never more than has really passed. It rests on three rules.
- A note names one loss of memory of one node (`NodeStatus.loss`). A node that forgets again has another loss, and no note.
- The first note of a loss stays. Whoever makes it knows that the node does not vote; what it says later adds nothing. Of
  several ends the nearest counts: by each of them all is over, and a long lease may have been released since.
- A quorum of nodes must vouch for it: the clock of one may have jumped. It does not matter which nodes: one that has
  forgotten a note merely has none, and an older note of the same loss is just as true.

Rules of the file: pure. Only durations go to nodes and come from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NOTED = 32  # how many waits a node keeps: the newest


class Wait(NamedTuple):
    """How far a wait has come."""

    loss: str  # which loss of memory of which node
    age: float  # for how many seconds it has been known that the node casts no vote
    left: float | None = None  # seconds until what it forgot is over; None: that was not measured yet


def vouched_age(waits: Sequence[Wait], needed: int) -> float | None:
    """For how long the node has been known not to vote, as far as so many nodes say so. One wait from each node."""
    ages = sorted((wait.age for wait in waits), reverse=True)
    return ages[needed - 1] if len(ages) >= needed else None


def vouched_end(waits: Sequence[Wait], needed: int) -> float | None:
    """Seconds until its wait is over, as far as so many nodes say so. One wait from each node."""
    ends = sorted(wait.left for wait in waits if wait.left is not None)
    return ends[needed - 1] if len(ends) >= needed else None
