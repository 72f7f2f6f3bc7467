"""The ledger of unanswered requests: one rule for all transports, without sockets, without a clock of its own.

A request is *unanswered* from the moment its first byte may have left until its caller has the answer in hand, not merely until
the reply has arrived. It is so for each of its tokens: one or, when a lock is handed over, two.

The invariant: no request of a token, and no undo of one, takes effect after a later request of that token was answered, unless
the token is *astray* (`settled` is False) or the later request is one that takes back.

A connection is an opaque key. It carries requests in order. The ledger only reads whether it is `dead` (closed, or broken).

The state of a record, which is of one token and its last unanswered request
| state      | means                                           | what follows goes      | may it create something there? |
|------------|-------------------------------------------------|------------------------|--------------------------------|
| OWED       | the connection is open                          | down that connection   | yes: it cannot overtake        |
| DEALT_WITH | a reply came in; the caller had left by then    | down any connection    | yes                            |
| BROKEN     | the connection died; what was asked may arrive  | down any connection    | not for OVERDUE seconds        |
| GIVEN_UP   | we closed it; the undo was the last thing sent  | down any connection    | not for OVERDUE seconds        |
The last two bar only if the request created something: if it has an undo.

Transitions
| from → to           | by                                                                                            |
|---------------------|-----------------------------------------------------------------------------------------------|
| none → OWED         | `owes`, `on_way`                                                                              |
| any → OWED          | `owes`: a later request of the token has no answer either. The undo of an earlier one is kept  |
| OWED → DEALT_WITH   | `dealt_with`                                                                                  |
| OWED → BROKEN       | the connection dies                                                                           |
| OWED → GIVEN_UP     | `give_up`, then the transport sends the undos and closes                                      |
| any → none          | `answered`, `forget`, `prune`; on a quorum `dealt_with` and `arrived`, if it created nothing  |

Interleavings and where each is handled
- the reply is lost: OWED. The undo, or the release, goes down the same connection (`paths`), so it cannot overtake
- the reply is late: the transport finds it (`dealt_with`, `arrived`). What created something stays on record: the caller never
  got the answer, and will take it back. On a quorum, what created nothing (a release to the slowest node) is over
- the connection broke: BROKEN. What takes back may go elsewhere; what creates something may not (`barred`), or it would be
  told that it has what the late request, or its undo, takes away
- no reply comes on an open connection for OVERDUE seconds: `prune` names the connection, `give_up` says which undos are the
  last things to send. The bar counts from then: the undo may arrive late as well
- a request with two tokens (a hand-over): a record for each, whose undo takes back that token and not the other, which may be
  alive by then. The token that the request creates something for stands first
- an extension follows an unanswered claim: the claim's undo stays on record. On another connection: the broken claim's record
  stays (`owes`): the claim may still arrive
- one request is answered, a later one of the same token is not: only the records from before the first are settled (`answered`)
- one task must follow what another one still waits for, on a connection that is *retired* (it takes no new requests):
  `on_way` puts that on record
- a signal's handler raises amid `owes`: the caller repeats it; that is harmless. Each change of a record is one step
- a fork: the child makes a new ledger. What the parent asked is the parent's to undo
- the token has the lock (`is_live`): its unanswered vote must not be undone behind its back, for renewals may rely on it. The
  connection is kept, and what is on record of it, for as long as the token lives. Not for an unanswered extension: it created
  nothing, and a connection that died in silence would take the lease with it
- a token that nothing more is asked for: its record is OVERDUE seconds old, and not live. `prune` forgets it
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to backends: it invites waiting
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf
from typing import Any, Generic, Protocol, TypeVar

OVERDUE = 5.0  # seconds after which an answer that nobody waits for is not expected any more

Undo = Callable[[str], Any] | None
"""Makes the request that takes back what an unanswered one may have done for this token. None: it creates nothing."""


class Connection(Protocol):
    """All that the ledger knows of one."""

    @property
    def dead(self) -> bool:
        """Whether it is closed or broken."""


C = TypeVar("C", bound=Connection)


class State(Enum):
    """See the table above."""

    OWED = auto()
    DEALT_WITH = auto()
    BROKEN = auto()
    GIVEN_UP = auto()


class Record(Generic[C]):
    """The last unanswered request of a token."""

    __slots__ = ("connection", "due", "given_up", "key", "since", "undo")

    def __init__(self, connection: C, undo: Undo, since: float, due: float, key: object = None) -> None:
        self.connection: C | None = connection  # None: dealt with
        self.undo = undo
        self.since = since
        self.due = due  # when to look at it again
        self.given_up = False
        self.key = key  # of the reply, where one can be told from another

    @property
    def state(self) -> State:
        """See `State`."""
        if self.connection is None:
            return State.DEALT_WITH
        if not self.connection.dead:
            return State.OWED
        return State.GIVEN_UP if self.given_up else State.BROKEN

    @property
    def guards(self) -> bool:
        """Whether it created something and its connection is dead: it, or its undo, may still arrive."""
        return self.undo is not None and self.connection is not None and self.connection.dead


class Unanswered(Generic[C]):
    """The ledger of one node. `records`, by token, stand in the order in which they are to be looked at."""

    def __init__(self, is_live: Callable[[str], bool] | None = None) -> None:
        self.is_live = is_live  # None: this store is not a node of a quorum
        self.records: OrderedDict[str, Record[C]] = OrderedDict()
        self.guard = RLock()  # threads share the ledger. Never held while waiting; a signal's handler may come back in
        self.overdue = OVERDUE
        self._astray: dict[str, float] = {}  # tokens: since when

    # --- before a request is sent ---------------------------------------------------------------------------------------

    def earlier(self, tokens: Sequence[str]) -> list[tuple[str, Record[C]]]:
        """What is on record of these tokens, for `sends` and `answered`."""
        return [(token, record) for token in tokens if (record := self.records.get(token)) is not None]

    def barred(self, tokens: Sequence[str], now: float) -> bool:
        """Whether a request that creates something for the first of these tokens might overtake an earlier one of that token,
        which would then take effect later, or its undo would."""
        record = self.records.get(tokens[0]) if tokens else None
        return record is not None and record.guards and now - record.since < self.overdue

    def paths(self, tokens: Sequence[str]) -> list[C]:
        """The open connections that unanswered requests of these tokens went down. What follows goes down the first."""
        found = [record.connection for _, record in self.earlier(tokens) if record.connection is not None]
        return [connection for connection in found if not connection.dead]

    def sends(self, earlier: Sequence[tuple[str, Record[C]]], connection: C | None, now: float) -> None:
        """A request goes down this connection (None: any other): tokens that took another before go astray."""
        with self.guard:
            for token, record in earlier:
                if record.connection is not None and record.connection is not connection:
                    self._astray.pop(token, None)
                    self._astray[token] = now

    def settled(self, token: str, now: float) -> bool:
        """Whether all of the token went down one connection, or so long ago on another that it will not arrive any more."""
        return not self._astray or now - self._astray.get(token, -inf) >= self.overdue

    # --- afterwards -----------------------------------------------------------------------------------------------------

    def answered(self, earlier: Sequence[tuple[str, Record[C]]], connection: C) -> None:
        """A request that was sent after these has its answer. What went down another connection, and creates something, is not
        settled by that. Nor is a later request of the token."""
        with self.guard:
            for token, record in earlier:
                done = record.connection is connection or record.connection is None or record.undo is None
                if done and self.records.get(token) is record:
                    self.forget(token)

    def owes(self, tokens: Sequence[str], connection: C, undo: Undo, now: float, key: object = None) -> None:
        """Put down that a request of these tokens has no answer. Harmless when repeated. `key`: see `arrived`."""
        with self.guard:
            for token in tokens:
                before, kept = self.records.get(token), undo
                if before is not None and undo is None:
                    if before.connection is connection:
                        kept = before.undo
                    elif before.undo is not None and before.connection is not None:
                        continue  # that request may still arrive and create something: its record stays
                self.records[token] = Record(connection, kept, now, now + self.overdue, key)
                self.records.move_to_end(token)

    def on_way(self, tokens: Sequence[str], connection: C, now: float) -> None:
        """Callers still wait for answers to these on a connection that new requests do not take any more."""
        with self.guard:
            for token in tokens:
                if token not in self.records:
                    self.records[token] = Record(connection, None, now, now + self.overdue)

    def dealt_with(self, connection: C) -> None:
        """Every reply that was owed on this connection has come in."""
        with self.guard:
            for token, record in list(self.records.items()):
                if record.connection is connection:
                    record.connection = None
                    if self._over(record):
                        self.forget(token)

    def arrived(self, tokens: Sequence[str], key: object) -> None:
        """A reply has come in that no caller waits for any more. `key` is the one that `owes` was given."""
        with self.guard:
            for token in tokens:
                record = self.records.get(token)
                if record is not None and record.key is key and self._over(record):
                    self.forget(token)

    def _over(self, record: Record[C]) -> bool:
        """Whether nothing follows it once its reply is there: a quorum takes back what created something, and nothing else."""
        return record.undo is None and self.is_live is not None

    def forget(self, token: str) -> Record[C] | None:
        """Nothing has to follow this token's requests any more. What was on record."""
        return self.records.pop(token, None)

    # --- when nothing comes ---------------------------------------------------------------------------------------------

    def lives(self, token: str, record: Record[C]) -> bool:
        """Whether the token has the lock, by what this request may have created: see `port.Member.elect`. An extension that has
        no answer created nothing, so nothing relies on its connection."""
        return record.undo is not None and self.is_live is not None and self.is_live(token)

    def needed(self) -> set[C]:
        """The connections that something may have to follow on. Any other may be closed."""
        return {record.connection for record in list(self.records.values()) if record.connection is not None}

    def kept(self) -> set[C]:
        """The open connections that living tokens need: a release has to go down them."""
        some = [(token, record, record.connection) for token, record in list(self.records.items())]
        return {conn for token, record, conn in some if conn is not None and not conn.dead and self.lives(token, record)}

    def prune(self, now: float, overdue: Callable[[C], bool]) -> list[C]:
        """Forget what is long over. The connections to give up on: those on which replies are `overdue`, as the transport says.

        What is on record of them stays until that has happened.
        """
        with self.guard:
            for token in [token for token, since in list(self._astray.items()) if now - since >= self.overdue]:
                self._astray.pop(token, None)
            silent: dict[C, None] = {}
            for token, record in list(self.records.items()):  # a copy: a signal's handler may come back in
                if self.records.get(token) is not record:
                    continue
                if now < record.due:
                    break
                connection = record.connection
                if connection is not None and not connection.dead:
                    lives = self.lives(token, record)
                    if lives or overdue(connection):
                        record.due = now + self.overdue
                        self.records.move_to_end(token)
                        if not lives:
                            silent[connection] = None
                        continue
                self.forget(token)
            return list(silent)

    def give_up(self, connection: C, now: float) -> list[Any] | None:
        """The requests to send as the last thing on this connection, which is to be closed then. None: a living token needs it.

        From now on the undos may arrive late, too, so the bar counts from here.
        """
        with self.guard:
            if connection in self.kept():
                return None
            found = self.broke(connection, now)
            for _, record in found:
                record.given_up = True
            return [record.undo(token) for token, record in found if record.undo is not None]

    def broke(self, connection: C, now: float) -> list[tuple[str, Record[C]]]:
        """The connection is found to be broken, or is about to be closed: the bar counts from here. What is on record of it."""
        with self.guard:
            found = [(token, record) for token, record in list(self.records.items()) if record.connection is connection]
            for token, record in found:
                if record.undo is not None:
                    record.since, record.due = now, now + self.overdue
                    self.records.move_to_end(token)
            return found
