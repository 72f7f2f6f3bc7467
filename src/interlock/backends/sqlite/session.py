"""The way into the file and out of it, around every verb of a store.

Invariants
- A verb finds the file that is at the path now, its own process's, checked and adopted, and is alone with it.
- Whatever ends a verb, nothing is left half done and the gate is left. What broke is opened anew by the next verb.
- Foreign errors end here.
- All times are on the kernel's boot clock (`_now`), whatever time namespace this process is in, or comes to be in.
- A file is closed by whoever is alone with it. Under another thread's statement that would be a null pointer there: a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from math import inf
from time import sleep
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import finalize

from ...errors import UsageError
from ...runtime.base import by_a_handler
from . import faults, rights
from .boot import Boot, this_boot
from .database import Database, look_before_the_gate
from .file_lock import FIRST_PAUSE, LONGEST_PAUSE, Budget, Shut
from .location import Location
from .presence import name_of

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound="Session")

CLOSED = "this client is closed; nothing was written. Make a new one"
CLOSE_PATIENCE = 1.0
STEADY_MS = 3.0  # by so much the distance between the wall clock and the boot clock may change unnoticed


def whole(verb: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """Around each verb: whatever happens in it, nothing is left half done and the gate is left open."""

    @wraps(verb)
    def whole(store: E, /, *args: P.args, **none: P.kwargs) -> T:
        try:
            return verb(store, *args, **none)
        except BaseException as error:
            store._failed(error, cast(Budget, args[-1]))
            raise
        finally:
            store._leave()

    return whole


class Session:
    """One file, opened when it is needed."""

    def __init__(
        self, place: Location, now: Callable[[], float], wall_ms: Callable[[], int], boot: Callable[[], Boot] = this_boot
    ) -> None:
        """Touches nothing yet. `now` is this process's boot clock, `boot` says what that is worth."""
        self._place = place
        self._clock = now
        self._now = now  # the kernel's boot clock, once a file is open
        self._wall_ms = wall_ms
        self._boot = boot
        self._booted = Boot("")
        self._apart = inf  # the wall clock minus ours when we last looked which boot this is, in milliseconds
        self._seen = 0  # the highest fence given out here: a file that replaces ours must continue above it
        self.identity = ""  # of the file that was opened last: the same for all paths that lead to it
        self._closed = False
        self._database: Database | None = None
        self._closer: finalize[..., Any] | None = None  # for those who forget to close

    @property
    def address(self) -> str:
        """Where the file is; the default place may turn out to be another one at the first verb."""
        return self._place.address

    def close(self) -> None:
        """Let go of the file. Leases stay. Every later verb raises UsageError."""
        self._closed = True
        self.rest()

    def rest(self, within: float = CLOSE_PATIENCE) -> None:
        """Let go of the file until the next verb."""
        with suppress(sqlite3.Error, OSError):
            self._drop(Budget(within))

    # The way in.

    def _enter(self, budget: Budget) -> Database:
        """Inside the gate, with the file that is at the path now."""
        database = self._database
        if database is not None and database.pid == os.getpid() and database.connected and database.enter(budget):
            # Neither clock steps against the other but when the wall clock is set, or this process is put into another time
            # namespace or restored from a checkpoint: then its boot clock means something else than it did.
            apart = self._wall_ms() - self._clock() * 1000
            if abs(apart - self._apart) < STEADY_MS or self._same_clock(apart):
                return database
        return self._enter_anew(budget)

    def _same_clock(self, apart: float) -> bool:
        if self._boot() != self._booted:
            return False
        self._apart = apart
        return True

    def _set_clock(self) -> None:
        """Learn what our clock is worth now."""
        clock, self._apart = self._clock, self._wall_ms() - self._clock() * 1000
        self._booted = self._boot()
        ahead = self._booted.ahead
        self._now = (lambda: clock() - ahead) if ahead else clock

    def _enter_anew(self, budget: Budget) -> Database:
        """There is no file yet, or it is the parent's (after a fork), or it was deleted or replaced."""
        for _ in range(100):
            self._drop(budget)
            if self._closed:
                raise UsageError(CLOSED)
            path = self._place.prepare()
            rights.check(path)
            look_before_the_gate(path, self.address)
            database = self._database = Database(path, self._place.named)
            self._closer = finalize(self, database.close, Budget(0))
            self._closer.atexit = False  # a daemon thread may be inside: see `SqliteBackend.rest`
            self._set_clock()
            if database.enter(budget):
                database.connect(budget, self.address, self._booted.id, self._wall_ms, self._seen)
                if database.is_in_place():  # else it was swapped meanwhile
                    self.identity = name_of(path)
                    return database
        raise Shut("its files were deleted again and again")

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

    # The way out.

    def _failed(self, error: BaseException, budget: Budget) -> None:
        """Nothing half done and nothing half open. Raises our error for a foreign one; otherwise the caller raises on."""
        if not isinstance(error, sqlite3.Error | OSError) or by_a_handler(error):
            if not self._rolled_back():
                self._drop(budget)
            return
        busy = isinstance(error, sqlite3.Error) and faults.is_busy(error)
        if not busy or not self._rolled_back():
            self._drop(budget)  # the next verb starts from the path again
        if busy:
            raise Shut("somebody who does not use interlock has locked the database (an SQLite shell?)") from error
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
        ours = closer is None or closer.detach() is not None  # else the finalizer closed it
        if database is not None and ours:
            database.close(budget)
