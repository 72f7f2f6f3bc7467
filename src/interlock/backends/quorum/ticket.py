"""One token of this client, and all that is known of it: its state, the nodes that may hold it, and what they owe it.

`ROWS` is the table of states: what may follow what, and by which event; docs/design.md has it drawn. A step that is not in the
table raises where `check` is on: in the tests and in the simulator.

Invariants
- No request of a token that LEAVES or is GONE makes it HELD again: there is no such row.
- Announcements make a token HELD only from OFFERED: while no request of it is on its way that might give a node back.
- A node counts for the token only while it owes it no answer from another path (`accept`). A request without an answer may
  reach the node later than one that was sent after it, by another connection. For SAME_PATH seconds what follows it takes the
  same connection; after that the node does not count for this token any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from math import inf
from typing import NamedTuple

from ...core.claim import Granted, Place, Refused
from ...core.turn import GrantTally
from ...errors import Unavailable

# Seconds for which what follows an unanswered request goes down the same connection, for certain. Below `unanswered.OVERDUE`,
# after which the transport may give that connection up.
SAME_PATH = 2.5

ANSWERS = (Granted, Refused)

check = False  # raise on a step that the table does not have. Switched on by the tests and the simulator


class State(Enum):
    """Where a token is in its life."""

    NEW = "nothing was asked for it"
    ASKING = "a claim of it is on its way"
    WAITING = "it stands in line, or may, and no request of it is on its way"
    OFFERED = "it waits, and a node has announced a grant, or it shall ask again"
    HELD = "it has the lock"
    LEAVING = "its release is on its way"
    TO_UNDO = "a request of it ended without an outcome: nodes may hold it, and an undo must follow"
    UNCONFIRMED = "it was released, and too few nodes have confirmed that"
    GONE = "it was released; what is announced to it now is late"


class Row(NamedTuple):
    """A step from one state to another."""

    before: State
    after: State
    event: str


_NEW, _ASKING, _WAITING, _OFFERED, _HELD, _LEAVING, _TO_UNDO, _UNCONFIRMED, _GONE = State

ROWS = [
    Row(_NEW, _ASKING, "claimed, or named as an heir"),
    Row(_NEW, _LEAVING, "released, although nothing is known of it: every node is asked"),
    Row(_NEW, _GONE, "announced, although nothing is known of it: the listener is told to release it"),
    Row(_ASKING, _HELD, "a quorum has granted it and stores its fence"),
    Row(_ASKING, _WAITING, "refused, and it has a place in line; or interrupted there"),
    Row(_ASKING, _LEAVING, "refused, and it has no place, or must not be used again"),
    Row(_ASKING, _TO_UNDO, "interrupted, and it has no place"),
    Row(_ASKING, _GONE, "interrupted before anything was sent"),
    Row(_WAITING, _ASKING, "claimed again"),
    Row(_WAITING, _OFFERED, "a node has announced a grant; or an inbox was opened again, so that it shall ask"),
    Row(_WAITING, _LEAVING, "its waiter gave up"),
    Row(_OFFERED, _HELD, "a quorum has announced the same grant"),
    Row(_OFFERED, _WAITING, "fewer have: the listener was given a hint"),
    Row(_OFFERED, _ASKING, "claimed again"),
    Row(_OFFERED, _LEAVING, "its waiter gave up"),
    Row(_HELD, _ASKING, "claimed again: what was announced was too old to be believed"),
    Row(_HELD, _LEAVING, "released, or handed over"),
    Row(_LEAVING, _LEAVING, "released once more"),
    Row(_LEAVING, _GONE, "enough nodes have confirmed it"),
    Row(_LEAVING, _UNCONFIRMED, "too few nodes have confirmed it"),
    Row(_LEAVING, _TO_UNDO, "interrupted, or failed and its caller was told so"),
    Row(_TO_UNDO, _LEAVING, "undone, or released"),
    Row(_TO_UNDO, _ASKING, "claimed again"),
    Row(_TO_UNDO, _GONE, "another release of it was confirmed"),
    Row(_UNCONFIRMED, _LEAVING, "released once more"),
    Row(_UNCONFIRMED, _TO_UNDO, "its caller was told that the release failed"),
    Row(_UNCONFIRMED, _ASKING, "claimed again"),
    Row(_UNCONFIRMED, _GONE, "another release of it was confirmed"),
    Row(_GONE, _LEAVING, "released once more: something was announced late"),
]  # fmt: skip

TRANSITIONS: dict[State, frozenset[State]] = {
    state: frozenset(row.after for row in ROWS if row.before is state) for state in State
}
WAITS = frozenset({State.WAITING, State.OFFERED})
UNDER_WAY = WAITS | {State.ASKING, State.LEAVING}  # not to be forgotten, however old
OVER = frozenset({State.LEAVING, State.TO_UNDO, State.UNCONFIRMED, State.GONE})


class Ticket:
    """A token, in one state of the table. Changed under the guard of the book (`tickets`)."""

    __slots__ = (
        "after", "axis", "due", "failed", "fence", "grants", "left_until", "name", "nodes", "place", "rung", "splits",
        "state", "token", "unanswered_since", "until", "unusable_grant",
    )  # fmt: skip

    def __init__(self, name: str, token: str, grants: GrantTally, place: Place | None = None) -> None:
        self.name = name
        self.token = token
        self.state = State.NEW
        self.nodes: Sequence[int] = ()  # the nodes that were asked for it: any of them may hold it
        self.until = 0.0  # how long that matters
        self.fence = 0  # of its grant; 0 if it never had the lock
        self.unanswered_since: dict[int, float] = {}  # nodes that owe it an answer; -inf if the path broke
        self.due = inf  # when the listener is told: that it is to ask again, or to be released
        self.failed: set[int] = set()  # nodes that have not answered its release: what they announce has to be passed on
        self.left_until = 0.0  # until then its release passes on what is announced to it, but for nodes in `failed`
        self.wait_anew(place, grants)

    def wait_anew(self, place: Place | None, grants: GrantTally) -> None:
        """Nothing is known of its wait."""
        self.place = place
        self.grants = grants
        self.rung = False  # something was announced while it asked
        self.splits = 0  # votes in a row that were split
        self.axis = 0.0  # what is added to our clock in answers, so that it is near those of the nodes: it orders the lines
        self.after: dict[int, int] = {}  # the highest fence of each node in its last answer
        self.unusable_grant = False  # a node has granted it the lock, and does not count any more

    def to(self, state: State) -> None:
        """Go on to this state."""
        if check and state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a ticket does not go from {self.state.name} to {state.name}")
        self.state = state

    def sends(self, nodes: Iterable[int], now: float) -> None:
        """A request goes out to these nodes."""
        for node in nodes:
            self.unanswered_since.setdefault(node, now)

    def accept(self, node: int, answer: object, sent_at: float) -> object:
        """What an answer counts for: nothing if an earlier request may still be on its way to the node, by another path."""
        if isinstance(answer, Unavailable):
            if answer.cause == "closed":
                self.unanswered_since[node] = -inf
            return answer
        unanswered = self.unanswered_since
        if sent_at - unanswered.get(node, sent_at) > SAME_PATH:
            self.unusable_grant |= isinstance(answer, Granted)
            return None
        unanswered.pop(node, None)
        if isinstance(answer, ANSWERS):
            self.after[node] = answer.fence
        elif isinstance(answer, int):  # to a requeue
            self.after[node] = answer
        return answer

    def lost(self, now: float) -> int:
        """How many nodes do not count for it any more."""
        return sum(now - since > SAME_PATH for since in self.unanswered_since.values())
