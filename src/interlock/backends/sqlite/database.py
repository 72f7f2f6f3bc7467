"""One open database file with its gate: making it, checking that it is ours, adopting it for this boot, closing it.

Invariants
- Nothing is written to a file that is not ours, and a file is ours only if its header says so.
- The file is never opened by anything but SQLite: closing any other descriptor of it would drop the locks that SQLite
  holds for this process. (A file that has just been made, by us and inside the gate, has no locks yet.)
  A descriptor of our own marks it as used: `presence` says when that one may be closed.
- The file has one name, and is used under it: whoever finds a second one, or that another process uses another, is refused.
- A verb is done in the file that the path *as it was given* leads to: a link that leads elsewhere now is followed, by the next
  verb. So is a file that was deleted or replaced.
- Log and shared memory are those of all who have the file open: who comes and finds one of them gone, or another in its place,
  is refused.
- *Adoption.* The first opener of a boot frees every lease (their times were read on a clock that is gone) and lifts the
  counter by JUMP, or to the wall clock if that is higher, with one fully synchronous commit. Ordinary commits are not
  synchronous, so a power cut may lose the last ones; it also ends the boot, and JUMP exceeds all fences of a boot. Nobody
  adopts a file that anybody else has open: that one lives, so the boot goes on, whatever its id seems to be.
- *Versions.* A file of an older version is brought up to date by whoever opens it, in one transaction. An older interlock then
  refuses it, in words. One that has it open already goes on: it excludes as ever, it serves nobody who waits in line, and those
  find the lock when they claim again.
- *No open file crosses a fork* (`forks.guard`). SQLite keeps notes on each open file for the process: a child that has them
  takes no locks of its own, so the parent may delete the log under its feet, and a lock that another thread had at that moment
  stays for ever. Should the parent be unable to close it (a thread hangs in it), the child refuses the file.
- What another process opened is never used, closed or unlocked.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import Any

from ...core import fence as fences
from ...runtime import forks
from ...runtime.base import by_a_handler
from . import faults
from .file_lock import Budget, FileLock, Shut
from .location import quoted
from .presence import File, Presence
from .rights import GATE, follow

APPLICATION_ID = 0x696C636B
VERSION = 3
JUMP = 2**32
CHECKPOINT_PAGES = 2000  # two megabytes of log: the two fsyncs of a checkpoint come once in about 700 grants
LOOKS, LOOK = 20, 0.005  # how often, and after how many seconds, it is looked whether somebody has closed the file by now
STEPS = ("schema.sql", "line.sql", "roll.sql")  # each makes the version of its number out of the one before

Execute = Callable[..., sqlite3.Cursor]

_spoilt: set[File] = set()  # files that this process has inherited open


class Database:
    """An open file and its gate. Used by one thread at a time."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "_device",
        "_gate",
        "_named",
        "_path",
        "_presence",
        "boot",
        "connected",
        "execute",
        "inode",
        "pid",
    )

    def __init__(self, path: str, named: str) -> None:
        """Open the gate only; `connect` does the rest, inside it. `named` is the path as it was given, `path` is that without
        symbolic links. Raises OSError.
        """
        self.pid = os.getpid()
        self.boot = ""
        self.connected = False  # true once everything is checked
        self.execute: Execute = _not_connected
        self._path = path
        self._named = named
        self.inode = self._device = -1
        self._connection: sqlite3.Connection | None = None
        self._presence: Presence | None = None
        self._gate = FileLock(path + GATE, stat_of(path))
        forks.watch(self)

    def enter(self, budget: Budget) -> bool:
        """Be alone with the file. False: it, or its gate, was deleted or replaced, so this object must be given up.

        Raises Shut when the budget is spent first.
        """
        return self._gate.enter(budget) and (not self.connected or self.is_in_place())

    def is_in_place(self) -> bool:
        """Whether the path leads to this very file now, as it was given and as it was resolved."""
        try:
            found = os.stat(self._named)
            if self._path != self._named and found.st_ino == self.inode:
                found = os.stat(self._path)
        except OSError as error:
            if by_a_handler(error):
                raise
            return False
        return found.st_ino == self.inode and found.st_dev == self._device

    def leave(self) -> None:
        """Let others in. Harmless when not inside."""
        self._gate.leave()

    def rollback(self) -> None:
        """End a transaction that was left open. Raises sqlite3.Error."""
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def connect(self, budget: Budget, address: str, boot: str, wall_ms: Callable[[], int], seen: int) -> None:
        """Open the file, made and adopted as needed. Call it inside the gate. No fence will be `seen` or lower.

        Raises UsageError if the file is not ours, sqlite3.Error and OSError as they come.
        """
        size = size_of(self._path)
        if not size:
            _make_empty(self._path, size is None)
        found = os.stat(self._path)
        self.inode, self._device = found.st_ino, found.st_dev
        if (self._device, self.inode) in _spoilt:
            raise faults.inherited(address)
        if size:
            _probe(self._path, address)
        if found.st_nlink > 1:
            raise faults.hard_linked(address, found.st_nlink)
        self._presence = Presence(self._path)
        if not self._presence.mark():
            raise faults.open_elsewhere(address)
        self._refuse_split(address)
        patience = max(budget.left(), 0.0)  # for somebody who ignores the gate
        connection = sqlite3.connect(self._path, timeout=patience, isolation_level=None, check_same_thread=False)
        self._connection = connection
        connection.execute("PRAGMA synchronous = FULL")
        _bring_up_to_date(connection, address)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise faults.no_log(address, mode)
        connection.execute("SELECT boot FROM clock").fetchone()  # from the first look on, log and shared memory are there
        follow(self._path)
        self._presence.mark_beside()
        self._refuse_split(address)  # somebody who came at once, past a gate that was deleted
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if not _adopt(connection.execute, boot, wall_ms, seen, self._presence.alone):
            raise faults.another_boot(address)
        connection.execute("DELETE FROM roll WHERE since NOT LIKE ?", (f"{self.inode}.%",))  # a copy's: it may be older
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA busy_timeout = 0")  # from here on the store waits, and looks at its budget
        self.boot = boot
        self.execute = connection.cursor().execute  # one cursor for all: a new one per statement costs a microsecond
        self.connected = True

    def _refuse_split(self, address: str) -> None:
        """Refuse a file that others have open with a log or shared memory that is not at its place any more: we would not see
        what they write, nor they what we do. Inside the gate all agree, or somebody is about to have closed it outside.
        """
        assert self._presence is not None  # noqa: S101 - it is marked
        for _ in range(LOOKS):
            if self._presence.agrees():
                return
            sleep(LOOK)
        raise faults.split(address)

    def close(self, budget: Budget) -> None:
        """Close the file inside the gate, or without it when that cannot be had in time. Does nothing after a fork."""
        if self.pid != os.getpid():
            self.disown()
            return
        inside = False
        try:
            # Without the gate it is safe too: SQLite checkpoints at a close only when nobody else has the file open.
            with suppress(Shut, OSError):
                self._gate.enter(budget)
                inside = self._gate.has_name()
            if inside and self.connected:
                self._take_the_log_along()
            self.connected, self.execute = False, _not_connected
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._presence is not None:
                self._presence.end(inside)
        finally:
            self._gate.leave()
            self._gate.close()

    def _take_the_log_along(self) -> None:
        """A file that was renamed: put into it what is in the log, which stays beside the old name. SQLite would not."""
        assert self._connection is not None  # noqa: S101 - it is connected
        assert self._presence is not None  # noqa: S101
        if not os.path.lexists(self._path) and self._presence.has_name():  # else another file is there, perhaps with this log
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def disown(self) -> None:
        """See `forks`."""
        if self._connection is not None:
            forks.keep((self.execute, self._connection))
            _spoilt.add((self._device, self.inode))
        if self._presence is not None:
            self._presence.disown()
        self.connected, self.execute, self._connection = False, _not_connected, None
        self._gate.close()


def _not_connected(sql: str, args: tuple[Any, ...] = ()) -> sqlite3.Cursor:
    raise sqlite3.ProgrammingError("the database is not open")


def stat_of(path: str) -> os.stat_result | None:
    """None if there is no such file. Raises OSError."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def size_of(path: str) -> int | None:
    """In bytes; None if there is no such file. Raises OSError."""
    found = stat_of(path)
    return None if found is None else found.st_size


def look_before_the_gate(path: str, address: str) -> None:
    """Raise UsageError if there is a file that is not ours, so that not even a gate is left beside it.

    Whoever makes a file makes its gate first, so a file without one is finished: it can be read from outside.
    """
    if size_of(path) and not os.path.exists(path + GATE):
        _probe(path, address)


def _make_empty(path: str, missing: bool) -> None:
    # A log that outlived its database belongs to one that was deleted; SQLite must not find it beside the new one.
    for ending in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(path + ending)
    if missing:
        # Private: whoever can read the file can read tokens. The owner may widen it.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _probe(path: str, address: str) -> None:
    """Read the header and nothing else, in a way that leaves no trace. Raises UsageError if the file is not ours."""
    # `immutable` also keeps SQLite from recovering a log that lies beside a stranger's file.
    connection = sqlite3.connect(f"file:{quoted(path)}?mode=ro&immutable=1", uri=True)
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if faults.is_not_a_database(error):
            raise faults.foreign(address) from error
        raise
    finally:
        connection.close()
    if application != APPLICATION_ID:
        raise faults.foreign(address)
    if not 1 <= version <= VERSION:
        raise faults.other_version(address, version)


def _bring_up_to_date(connection: sqlite3.Connection, address: str) -> None:
    # Asked of SQLite: it takes back what somebody who was killed had begun, and sees what is not in the main file yet.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise faults.other_version(address, version)
    for step in STEPS[version:]:
        with open(os.path.join(os.path.dirname(__file__), step), encoding="utf-8") as script:
            connection.executescript(script.read())
    if version < VERSION:  # into the main file, where an older interlock reads that the file is none of its own any more
        connection.execute("PRAGMA wal_checkpoint(FULL)")


def _adopt(execute: Execute, boot: str, wall_ms: Callable[[], int], seen: int, alone: Callable[[], bool]) -> bool:
    """False: it is another boot's, and somebody has it open, so nothing was done. A file that is new is nobody's."""
    execute("BEGIN IMMEDIATE")
    row: tuple[Any, ...] = execute("SELECT boot, counter FROM clock WHERE id = 1").fetchone()
    stored, counter = row
    if stored not in (boot, "") and not alone():
        execute("ROLLBACK")
        return False
    lifted = max(counter, seen)
    if stored != boot:
        floor = fences.floor(wall_ms())
        # A clock beyond 2094 is wrong, and believing it would use up all fences there are.
        lifted = max(lifted + JUMP, floor if floor < fences.MAX_FENCE - JUMP else 0)
        execute("DELETE FROM entries")
        execute("DELETE FROM line")
        execute("UPDATE clock SET horizon = 9e999, low = 9e999, hand_name = '', hand_arrival = 0 WHERE id = 1")
    if lifted != counter or stored != boot:
        execute("UPDATE clock SET boot = ?, counter = ? WHERE id = 1", (boot, lifted))
    execute("COMMIT")
    return True
