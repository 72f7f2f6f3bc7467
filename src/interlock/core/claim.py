"""The question a contender asks a store, and the answers.

Rules of the file: plain values that cross layers. Nothing here knows a clock; times are durations in seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import Vote


class Place(NamedTuple):
    """How a contender waits in line, if it is refused.

    `arrival` orders the line: microseconds on the store's clock, as near as the client can tell. `inbox` is where the client
    listens. `ttl` is how long a grant lasts that finds it waiting: short, so that one that sleeps does not keep others waiting.
    """

    arrival: int
    inbox: str
    ttl: float


class Claim(NamedTuple):
    """May the holder of `token` have `name` for `ttl` seconds? With a `place`: if not, let it wait in line.

    With `names`: any one of them will do (the slots of a semaphore), in this order; `name` is that of their line. `shared`:
    together with other claims that are shared (readers), never with one that is not. A store that declares no `modes` carries
    neither.
    """

    name: str
    token: str
    ttl: float
    place: Place | None = None
    names: tuple[str, ...] = ()
    shared: bool = False


class Ballot(NamedTuple):
    """What a quorum adds to a question to one of its nodes.

    `nodes` is the quorum's list. A new fence is `proposal` if that is higher than the node's own: nodes that all take it agree
    at once.
    """

    nodes: tuple[str, ...]
    proposal: int = 0


class Renewal(NamedTuple):
    """One lease to be extended: set what is left of the token's lease on `name` to `ttl`.

    `fence` is the lease's own: a store that lost its counter learns it anew.
    """

    name: str
    token: str
    ttl: float
    fence: int


class Granted(NamedTuple):
    """Yes. `fence` grows strictly with each grant of the name; `ttl` is what the store really gave. `name`: which of the names
    of a claim that has several."""

    fence: int
    ttl: float
    name: str = ""


class Refused(NamedTuple):
    """No: somebody else holds it.

    `retry_after` is when the holder's lease ends at the latest, in seconds, or None if it never ends by itself
    (a foreign client wrote the key without an expiry). `owner` is what the holder says of itself in public. `votes` are those
    of a quorum. `at` is the store's clock, in seconds, if it keeps a line: it orders the line, and dates nothing. A store that
    keeps a line also says `fence`, the highest that it has given for the name: what it grants later is higher.

    A node of a quorum also says `holder`, which tells one token from another without giving it away. `spent`: the token is out
    of line, and not to be used again.
    """

    retry_after: float | None
    owner: str
    votes: tuple[Vote, ...] = ()
    at: float = 0.0
    holder: str = ""
    fence: int = 0
    spent: bool = False


class Announced(NamedTuple):
    """A grant to somebody who waited in line. `at` is a moment of *our* clock that is certainly not after the grant; -inf if
    the backend knows none.

    The announcement may have waited in a buffer while the process slept, or in the network. And the store's clock may have been
    set meanwhile. So a store on another machine dates it by the last question of the token that it has answered. One with no
    ttl is a hint: there is something to be had, by asking.
    """

    name: str
    token: str
    fence: int
    ttl: float
    at: float


class Handed(NamedTuple):
    """The answer to a hand-over. `held`: the token had the lock. `heir` is what became of the claim of the other."""

    held: bool
    heir: Granted | Refused


class Unmarked(NamedTuple):
    """No vote: the node does not have its roll, so it may have forgotten leases."""


class Gone(NamedTuple):
    """The token holds nothing any more. `taken`: somebody else holds the name now. `left`: some nodes of a quorum may have the
    token still; they are rid of it when its holder is done, not before: until then it is what keeps others out."""

    taken: bool
    left: bool = False


class Waiting(NamedTuple):
    """A client in line: what it says of itself in public, and for how many seconds it has been waiting, as far as is known."""

    owner: str
    since: float


SHOWN = 100  # how many of a line an entry lists at most


class Entry(NamedTuple):
    """What a store knows of a name, with nothing secret in it.

    `remaining` is None when the holder has no expiry, `fence` is None when the holder is a foreign client. `votes` are the
    views of a quorum's nodes. `waiting` are the first of those in line, in order, and `waiters` is how many there are. Each is
    a client; those of its threads or tasks that wait behind it are known to itself only. One that was killed stays in line
    until its turn comes.
    """

    name: str
    held: bool
    owner: str
    remaining: float | None
    fence: int | None
    votes: tuple[Vote, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    waiters: int = 0


def free(name: str) -> Entry:
    """The entry of a name that nobody holds."""
    return Entry(name, False, "", 0.0, 0)
