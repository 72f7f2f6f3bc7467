"""The verbs over one SQLite file, synchronous. The only place that knows the queries.

Invariants
- Every verb is one transaction, inside the gate, in a file that is still at its path.
- The clock is read inside the transaction, so a wait at the gate shortens no lease and revives none.
- A grant draws its fence from the one counter of the file, in the transaction that stores it.
- `Shut` means that nothing was asked of the file. Any other error, and any interruption, ends in a rollback.

Used by one thread at a time; the transports see to that. The file is long because its verbs are written flat, for speed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import wraps
from math import inf
from time import sleep
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import finalize

from ...core import fence as fences
from ...core.claim import Claim, Entry, Gone, Granted, Refused, Renewal, Unmarked, free
from ...core.fence import MAX_FENCE
from ...core.quorum import Roll
from ...core.token import owner_of
from ...errors import UsageError
from . import faults
from .boot import boot_id
from .database import Database, Execute, look_before_the_gate, size_of
from .gate import FIRST_PAUSE, LONGEST_PAUSE, Budget, Shut
from .place import Place
from .sweep import STEP, Walk, walked

P = ParamSpec("P")
T = TypeVar("T")

CLOSED = "this client is closed; nothing was written. Make a new one"
CLOSE_PATIENCE = 1.0
# No RETURNING anywhere: SQLite builds a temporary table for it, which costs more than the statement itself.
LOOK = """
    SELECT clock.boot, clock.counter, clock.horizon, clock.low, clock.hand_name, clock.hand_arrival,
           entries.arrival, entries.token, entries.fence, entries.expires
    FROM clock LEFT JOIN entries ON entries.name = ? AND entries.fence IS NOT NULL
    WHERE clock.id = 1
"""
HOLDER = "SELECT arrival, token, fence, expires FROM entries WHERE name = ? AND fence IS NOT NULL"
NOBODY: tuple[Any, ...] = (None, None, None, None)  # what HOLDER finds where there is none
COUNT = "UPDATE clock SET counter = ? WHERE id = 1"
GRANT = "INSERT INTO entries (name, arrival, token, fence, expires) VALUES (?, ?, ?, ?, ?)"
RENEW = "UPDATE entries SET expires = ?, fence = ? WHERE name = ? AND arrival = ?"
FORGET = "DELETE FROM entries WHERE name = ? AND arrival = ?"
RELEASE = "DELETE FROM entries WHERE name = ? AND token = ? AND fence IS NOT NULL AND expires > ?"
REMOVE = "DELETE FROM entries WHERE name = ? AND token = ?"
NOTE = "UPDATE clock SET horizon = min(horizon, ?), low = min(low, ?) WHERE id = 1"
ROLL = "SELECT longest, seed FROM roll WHERE id = 1"
LONGEST = "UPDATE roll SET longest = ? WHERE longest < ?"
NEXT = "SELECT name, arrival, expires FROM entries WHERE (name, arrival) > (?, ?) ORDER BY name, arrival LIMIT ?"
SWEPT = "UPDATE clock SET horizon = ?, low = ?, hand_name = ?, hand_arrival = ? WHERE id = 1"


def _whole(verb: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Around each verb: whatever happens in it, nothing is left half done and the gate is left open."""

    @wraps(verb)
    def whole(store: Store, /, *args: P.args, **none: P.kwargs) -> T:
        try:
            return verb(store, *args, **none)
        except BaseException as error:
            store._failed(error, cast(Budget, args[-1]))
            raise
        finally:
            store._leave()

    return whole


class Store:
    """The leases in one file."""

    def __init__(
        self, place: Place, now: Callable[[], float], wall_ms: Callable[[], int], boot: Callable[[], str] = boot_id
    ) -> None:
        """Touches nothing yet. `now` is the machine's boot-time clock, `boot` says which boot it counts from."""
        self._place = place
        self._now = now
        self._wall_ms = wall_ms
        self._boot = boot
        self._seen = 0  # the highest fence given out here: a file that replaces ours must continue above it
        self._closed = False
        self._database: Database | None = None
        self._closer: finalize[..., Any] | None = None  # for those who forget to close

    @property
    def address(self) -> str:
        """Where the file is; the default place may turn out to be another one at the first verb."""
        return self._place.address

    # The verbs; see `port.Backend` for what they mean. Each raises Shut, Unavailable or UsageError. They are written flat on
    # purpose: a lock costs forty microseconds here, and ten of them would go into handing arguments down.

    def claim(self, claim: Claim, budget: Budget) -> Granted | Refused:
        """One claim."""
        answer = self._claim(claim, None, budget)
        assert not isinstance(answer, Unmarked)  # noqa: S101 - only a vote can be refused for that
        return answer

    def vote(self, claim: Claim, proposal: int, budget: Budget) -> Granted | Refused | Unmarked:
        """One claim as a node of a quorum."""
        return self._claim(claim, proposal, budget)

    @_whole
    def _claim(self, claim: Claim, proposal: int | None, budget: Budget) -> Granted | Refused | Unmarked:
        name, token, ttl, _ = claim
        database = self._enter(budget)
        execute = database.execute
        _, counter, horizon, low, hand, hand_arrival, arrival, holder, fence, expires = self._begin(database, budget, name)
        if proposal is not None:
            if execute(ROLL).fetchone() is None:
                execute("ROLLBACK")
                return Unmarked()
            execute(LONGEST, (ttl, ttl))
        now = self._now()
        ends = now + ttl
        if arrival is not None:
            if expires > now:
                if holder != token:
                    execute("ROLLBACK")
                    return Refused(expires - now, owner_of(holder))
                execute(RENEW, (ends, fence, name, arrival))
                if ends < horizon or ends < low:
                    execute(NOTE, (ends, ends))
                execute("COMMIT")
                return Granted(fence, ttl)
            execute(FORGET, (name, arrival))
        fence = counter + 1
        if proposal is not None:
            fence = fences.propose(fence, proposal, self._wall_ms())
        if fence > MAX_FENCE:
            raise faults.no_fence_left(self.address)
        execute(COUNT, (fence,))
        execute(GRANT, (name, fence, token, fence, ends))
        if ends < horizon or ends < low:
            execute(NOTE, (ends, ends))
        if now >= horizon:
            self._sweep(execute, Walk(horizon, min(low, ends), hand, hand_arrival), now)
        execute("COMMIT")
        self._seen = fence
        return Granted(fence, ttl)

    def extend(self, lease: Renewal, budget: Budget) -> Granted | Gone:
        """One extension."""
        return self.renew((lease,), budget)[0]

    @_whole
    def renew(self, leases: Sequence[Renewal], budget: Budget) -> list[Granted | Gone]:
        """Many extensions."""
        if not leases:
            return []
        if (highest := max(lease.fence for lease in leases)) > MAX_FENCE:
            raise UsageError(f"a fence is below 2**53, {highest} is not; nothing was written")
        database = self._enter(budget)
        execute = database.execute
        _, counter, horizon, low, _, _, *found = self._begin(database, budget, leases[0].name)  # the first comes with it
        now = self._now()
        answers: list[Granted | Gone] = []
        high, longest, soonest = counter, 0.0, inf
        for name, token, ttl, fence in leases:
            arrival, holder, stored, expires = found or execute(HOLDER, (name,)).fetchone() or NOBODY
            found = []
            if holder != token or expires <= now:
                answers.append(Gone(taken=arrival is not None and expires > now))
                continue
            raised = max(stored, fence)
            execute(RENEW, (now + ttl, raised, name, arrival))
            answers.append(Granted(raised, ttl))
            high, longest, soonest = max(high, raised), max(longest, ttl), min(soonest, now + ttl)
        if high > counter:
            execute(COUNT, (high,))
            self._seen = max(self._seen, high)
        execute(LONGEST, (longest, longest))
        if soonest < horizon or soonest < low:
            execute(NOTE, (soonest, soonest))
        execute("COMMIT")
        return answers

    @_whole
    def release(self, name: str, token: str, budget: Budget) -> bool:
        """One release."""
        database = self._enter(budget)
        # Single statements, each its own transaction: cheaper than BEGIN and COMMIT around them.
        if self._patiently(database, budget, RELEASE, (name, token, self._now())).rowcount:
            return True
        self._patiently(database, budget, REMOVE, (name, token))  # it had expired; do not leave the row
        return False

    @_whole
    def inspect(self, name: str, budget: Budget) -> Entry:
        """One look. Makes no file: where there is none, nobody holds anything."""
        if self._database is None and not self._closed and not size_of(self._place.prepare(make=False)):
            return free(name)
        database = self._enter(budget)
        *_, arrival, holder, fence, expires = self._begin(database, budget, name)
        now = self._now()
        database.execute("ROLLBACK")
        if arrival is None or expires <= now:
            return free(name)
        return Entry(name, True, owner_of(holder), expires - now, fence)

    @_whole
    def roll(self, budget: Budget) -> Roll | None:
        """The roll of the file."""
        database = self._enter(budget)
        self._begin(database, budget, "")
        row = database.execute(ROLL).fetchone()
        counter = database.execute("SELECT counter FROM clock WHERE id = 1").fetchone()[0]
        database.execute("ROLLBACK")
        return None if row is None else Roll(row[0], counter, row[1])

    @_whole
    def enroll(self, roll: Roll, budget: Budget) -> bool:
        """Give the file a roll unless it has one."""
        database = self._enter(budget)
        execute = database.execute
        self._begin(database, budget, "")
        if execute(ROLL).fetchone() is not None:
            execute("ROLLBACK")
            return False
        execute("INSERT INTO roll (id, longest, seed) VALUES (1, ?, ?)", (roll.longest, roll.seed))
        execute("UPDATE clock SET counter = max(counter, ?) WHERE id = 1", (roll.seed,))
        execute("COMMIT")
        return True

    def close(self) -> None:
        """Let go of the file. Leases stay. Every later verb raises UsageError."""
        self._closed = True
        self._drop(Budget(CLOSE_PATIENCE))

    # The way in.

    def _enter(self, budget: Budget) -> Database:
        """Inside the gate, with the file that is at the path now."""
        database = self._database
        if database is not None and database.pid == os.getpid() and database.connected and database.enter(budget):
            return database
        return self._enter_anew(budget)

    def _enter_anew(self, budget: Budget) -> Database:
        """There is no file yet, or it is the parent's (after a fork), or it was deleted or replaced."""
        for _ in range(100):
            self._drop(budget)
            if self._closed:
                raise UsageError(CLOSED)
            path = self._place.prepare()
            look_before_the_gate(path, self.address)
            database = self._database = Database(path)
            self._closer = finalize(self, database.close, Budget(0))
            if database.enter(budget):
                database.connect(budget, self.address, self._boot(), self._wall_ms, self._seen)
                return database
        raise Shut("its files were deleted again and again")

    def _begin(self, database: Database, budget: Budget, name: str) -> tuple[Any, ...]:
        """Start a transaction that nobody can get between. The row of LOOK."""
        self._patiently(database, budget, "BEGIN IMMEDIATE", ())
        row: tuple[Any, ...] = database.execute(LOOK, (name,)).fetchone()
        if row[0] != database.boot:
            raise faults.two_clocks(self.address)
        return row

    def _patiently(self, database: Database, budget: Budget, sql: str, args: tuple[Any, ...]) -> sqlite3.Cursor:
        """Execute, and again while somebody who ignores the gate has locked the database."""
        pause = FIRST_PAUSE
        while True:
            try:
                return database.execute(sql, args)
            except sqlite3.OperationalError as error:
                if not faults.is_busy(error) or budget.left() <= 0:
                    raise
            sleep(min(pause, max(budget.left(), 0.0)))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _sweep(self, execute: Execute, walk: Walk, now: float) -> None:
        rows = execute(NEXT, (walk.hand_name, walk.hand_arrival, STEP)).fetchall()
        further, dead = walked(walk, rows, now)
        for name, arrival in dead:
            execute(FORGET, (name, arrival))
        execute(SWEPT, further)

    # The way out.

    def _failed(self, error: BaseException, budget: Budget) -> None:
        """Nothing half done and nothing half open. Raises our error for a foreign one; otherwise the caller raises on."""
        busy = isinstance(error, sqlite3.Error) and faults.is_busy(error)
        broken = isinstance(error, sqlite3.Error | OSError) and not busy
        if broken or not self._rolled_back():
            self._drop(budget)  # the next verb starts from the path again
        if busy:
            raise Shut("somebody who does not use interlock has locked the database (an SQLite shell?)") from error
        if isinstance(error, sqlite3.Error | OSError):
            raise faults.mapped(error, self.address) from error

    def _rolled_back(self) -> bool:
        database = self._database
        if database is None or not database.connected:
            return False
        try:
            database.rollback()
        except sqlite3.Error:
            return False
        return True

    def _leave(self) -> None:
        # In the `finally` of a `try` that covers the entering, so that no signal can leave the gate shut.
        if self._database is not None:
            self._database.leave()

    def _drop(self, budget: Budget) -> None:
        database, self._database = self._database, None
        closer, self._closer = self._closer, None
        ours = closer is None or closer.detach() is not None  # else the finalizer closed it, at exit
        if database is not None and ours:
            database.close(budget)
