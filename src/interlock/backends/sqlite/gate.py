"""The gate: whoever is inside may use the database file, everybody else waits outside. One `flock` on a sidecar file.

Why, when SQLite has locks of its own: below 3.51.3 a checkpoint that meets a writer can corrupt a write-ahead log, and
waiting for SQLite's write lock is unfair. Inside the gate there is never a second writer, checkpoint, opener or closer.

Invariants
- Never a blocking flock: whoever is inside may be stopped for ever, and a wait must end at the caller's bound.
- The kernel opens the gate when the one inside dies. Nothing has to be cleaned up.
- A lock belongs to the open file, which a forked child shares. The child may close its copy and must not unlock it.
- `leave` without `enter` is harmless, so callers leave in a `finally` that covers the entering itself: no signal can
  come between the two and leave the gate shut.
"""

from __future__ import annotations

import os
import stat
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from math import inf
from time import monotonic, sleep

TRY = LOCK_EX | LOCK_NB
FIRST_PAUSE = 0.00005
LONGEST_PAUSE = 0.005


class Shut(Exception):
    """The store could not be entered in time, so nothing was asked of it. Stays in this package; see `backend`."""


class Budget:
    """How long one request may still take. `cancel` ends it from another thread."""

    __slots__ = ("until",)

    def __init__(self, within: float) -> None:
        self.until = monotonic() + within

    def left(self) -> float:
        """Seconds; zero or less when it is spent."""
        return self.until - monotonic()

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self.until = -inf


class Gate:
    """The sidecar of a database file."""

    __slots__ = ("_file", "path")

    def __init__(self, path: str, mode: int) -> None:
        """Open the sidecar, or make it with the permissions of the database. Raises OSError."""
        self.path = path
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags)
        except FileNotFoundError:
            self._file = os.open(path, flags | os.O_CREAT, mode)
            os.fchmod(self._file, mode)  # whatever the umask says: who may use the database must be able to pass its gate

    def enter(self, budget: Budget) -> bool:
        """Be the only one inside; tries at least once. False: the sidecar was deleted, so newcomers queue at another one.

        Raises Shut when the budget is spent first.
        """
        try:
            flock(self._file, TRY)
        except BlockingIOError:
            self._wait(budget)
        return os.fstat(self._file).st_nlink > 0

    def _wait(self, budget: Budget) -> None:
        pause = FIRST_PAUSE
        while True:
            left = budget.left()
            if left <= 0:
                raise Shut(
                    f"another process was inside its gate ({self.path}) all that time, so it is stopped, or its disk hangs, or "
                    "it waits for somebody who locked the database by hand ('fuser' on the file names the candidates)"
                )
            sleep(min(pause, left))
            try:
                flock(self._file, TRY)
            except BlockingIOError:
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    def leave(self) -> None:
        """Let the next one in. Harmless when not inside."""
        if self._file >= 0:
            flock(self._file, LOCK_UN)

    def close(self) -> None:
        """Forget the sidecar, without unlocking: what a forked child closes is a copy, and the parent may be inside."""
        # Forgotten first: a fork between the two statements must not close a number that means another file by then.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def mode_of(path: str) -> int:
    """The permissions that the sidecar of this database should have: the same, or private if it does not exist yet."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o666
    except FileNotFoundError:
        return 0o600
