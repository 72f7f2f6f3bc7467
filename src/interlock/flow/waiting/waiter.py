"""A waiter: one acquire that waits for a name, and the states that it goes through.

`MOVES` is the table of transitions. A move that is not in the table raises: it would be a defect.

- A waiter asks for itself (ASKING) or is handed over to (OFFERED), never both, or it would stand in the store's line twice:
  OFFERED has no `ask`. When its time is up it asks once more, though a hand-over may be on its way (LAST). That question names
  no place in the line, and what the hand-over brings is used, or given back.
- A waiter that is LEFT stays LEFT: it is given nothing.
- Only a QUEUED waiter is offered a hand-over: the store itself answers or serves the others.

A signal's handler may raise between any two instructions, so some moves are made twice: the second one finds them done.
"""

from __future__ import annotations

from enum import StrEnum

from ...core.claim import Refused
from ...core.lease import Hold
from ...runtime.base import Bell
from ..attempt import Attempt


class State(StrEnum):
    """Where a waiter is. (Text, because a plain Enum is hashed by a function of Python's own.)"""

    NEW = "made, and not in the queue of its name yet"
    QUEUED = "in the queue of its name; not in the store's line; no request for it is on its way"
    OFFERED = "a release of this client hands over to it, and the answer is on its way"
    IN_LINE = "in the queue and in the store's line; no request for it is on its way"
    ASKING = "its own question is on its way"
    LAST = "its time is up, and its last question is on its way or refused"
    SERVED = "it has a lease, or had one that ended before it could be used"
    LEFT = "it does not wait any more"


NEW, QUEUED, OFFERED, IN_LINE, ASKING, LAST, SERVED, LEFT = State


class Event(dict[State, State]):
    """What may happen to a waiter, and the state that follows each state in which it may happen."""

    def __init__(self, what: str, *moves: tuple[State, State]) -> None:
        super().__init__(moves)
        self.what = what

    def __missing__(self, state: State) -> State:
        raise RuntimeError(f"a waiter that is {state.name} got '{self.what}', which its table does not have: a defect")


ENTER = Event("enters the queue", (NEW, QUEUED))
ASK = Event("asks", (NEW, ASKING), (QUEUED, ASKING), (IN_LINE, ASKING))
ASK_LAST = Event("asks for the last time", (QUEUED, LAST), (IN_LINE, LAST), (OFFERED, LAST))
# In the last two: a hand-over gave it a lease while it asked; in the child of a fork.
REFUSE = Event("is refused", (ASKING, QUEUED), (LAST, LAST), (SERVED, SERVED), (LEFT, LEFT))
LINE_UP = Event("is refused, and in the store's line", (ASKING, IN_LINE), (LAST, LAST))
OFFER = Event("is offered a hand-over", (QUEUED, OFFERED))
STAND = Event("is put in the store's line by the hand-over", (OFFERED, IN_LINE))
# From QUEUED and IN_LINE: a signal's handler raised in the middle of the offer, or of its answer.
WITHDRAW = Event(
    "loses the offer", (OFFERED, QUEUED), (QUEUED, QUEUED), (IN_LINE, QUEUED), (LAST, LAST), (SERVED, SERVED), (LEFT, LEFT)
)
# From SERVED: the one that gave it was interrupted. From LEFT: in the child of a fork.
GIVE = Event(
    "gets a lease", (ASKING, SERVED), (LAST, SERVED), (OFFERED, SERVED), (IN_LINE, SERVED), (SERVED, SERVED), (LEFT, LEFT)
)
OUTLIVE = Event("finds its lease over", (SERVED, QUEUED), (LEFT, LEFT))
OUTLIVE_OFFERED = Event("finds its lease over while a hand-over is on its way", (SERVED, OFFERED), (LEFT, LEFT))
LEAVE = Event("leaves", *((state, LEFT) for state in State))

EVENTS = (ENTER, ASK, ASK_LAST, REFUSE, LINE_UP, OFFER, STAND, WITHDRAW, GIVE, OUTLIVE, OUTLIVE_OFFERED, LEAVE)
MOVES = [(before.name, event.what, after.name) for event in EVENTS for before, after in event.items()]
"""The table, as rows: from, event, to."""


class Waiter:
    """One acquire that waits for a name."""

    # The defaults stand in the class, not in each waiter: most waiters find the lock free and need none of them.
    state = NEW
    in_line = False  # the store's line may have its token: true of IN_LINE, and possible while it asks, or must clean up
    again = False  # news came since it asked last: it asks once more, whatever the answer that is on its way says
    offered = ""  # the token of the hand-over that is on its way
    bell: Bell | None = None
    hold: Hold | None = None  # the lease that it got
    refused: Refused | None = None  # the last answer
    after: int | None = None  # the highest fence of the name when it was answered last: what it is granted later is higher
    until = 0.0  # when it asks again, if nothing rings before: when the holder's lease can have ended, or a few seconds later

    def __init__(self, attempt: Attempt, token: str, arrival: float) -> None:
        self.attempt = attempt
        self.name = attempt.name
        self.ttl = attempt.ttl
        self.token = token
        self.arrival = arrival

    def asks(self, last: bool) -> None:
        """A question of its own goes out. `last`: its time is up."""
        self.state = (ASK_LAST if last else ASK)[self.state]
        self.again = False

    def is_refused(self, until: float) -> None:
        """It asks again at `until`, or at once if it was told to meanwhile."""
        self.state = (LINE_UP if self.in_line else REFUSE)[self.state]
        self.until = 0.0 if self.again else until

    def is_offered(self, token: str) -> None:
        """A hand-over to it goes out. First the token, then the state: what has this token can be taken back."""
        self.offered = token
        self.state = OFFER[self.state]

    def loses_offer(self) -> None:
        """Nothing came of the hand-over. The state first: until the token is gone, this may be called again."""
        self.state = WITHDRAW[self.state]
        self.offered = ""

    def stands(self, refused: Refused, until: float) -> None:
        """The hand-over put it into the store's line, under its token. That comes last: if this is interrupted before, the
        token is not the waiter's, and the one that handed over undoes it."""
        token, self.state = self.offered, STAND[self.state]
        self.offered = ""
        self.refused, self.after = refused, refused.fence
        self.until = 0.0 if self.again else until
        self.in_line, self.token = True, token

    def outlives(self, token: str) -> None:
        """Its lease is over before it could use it: it asks at once, with another token."""
        self.hold, self.token, self.in_line, self.until, self.again = None, token, False, 0.0, False
        self.state = (OUTLIVE_OFFERED if self.offered else OUTLIVE)[self.state]

    def ring(self) -> None:
        """Have it look around."""
        if self.bell is not None:
            self.bell.ring()
