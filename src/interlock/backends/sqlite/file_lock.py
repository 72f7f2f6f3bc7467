"""The gate: whoever is inside may use the database file, everybody else waits outside. One `flock` on a sidecar file.

Why, when SQLite has locks of its own: below 3.51.3 a checkpoint that meets a writer can corrupt a write-ahead log, and
waiting for SQLite's write lock is unfair. Inside the gate there is never a second writer, checkpoint, opener or closer.

Invariants
- Never a blocking flock: whoever is inside may be stopped for ever, and a wait must end at the caller's bound.
- The kernel opens the gate when the one inside dies. Nothing has to be cleaned up.
- Who may use the database may pass its gate: it has the database's permissions, owner and group, as far as whoever makes it may
  give them away.
- A lock belongs to the open file, which a forked child shares. The child may close its copy and must not unlock it.
- `leave` without `enter` is harmless, so callers leave in a `finally` that covers the entering itself: no signal can
  come between the two and leave the gate shut.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from errno import EACCES, EINVAL, EPERM
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from math import inf
from time import monotonic, sleep

from ...runtime.base import by_a_handler
from .inside import inside

TRY = LOCK_EX | LOCK_NB
FIRST_PAUSE = 0.00005
LONGEST_PAUSE = 0.005
PRIVATE = 0o600


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


class FileLock:
    """The sidecar of a database file."""

    __slots__ = ("_device", "_file", "_inode", "path")

    def __init__(self, path: str, like: os.stat_result | None) -> None:
        """Open the sidecar of a database that is `like` this, or does not exist yet; make it if need be. Raises OSError."""
        self.path = path
        mode = PRIVATE if like is None else stat.S_IMODE(like.st_mode) & 0o666
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.open(path, flags)
            made = False
        except FileNotFoundError:
            self._file = os.open(path, flags | os.O_CREAT, mode)
            made = True
        try:
            found = os.fstat(self._file)
            self._inode, self._device = found.st_ino, found.st_dev
            if made and like is not None:
                _if_allowed(os.fchown, self._file, -1, like.st_gid)
                if not os.geteuid():
                    _if_allowed(os.fchown, self._file, like.st_uid, -1)
            if made or (like is not None and stat.S_IMODE(found.st_mode) != mode):
                _if_allowed(os.fchmod, self._file, mode)  # whatever the umask says
        except BaseException:
            self.close()
            raise

    def enter(self, budget: Budget) -> bool:
        """Be the only one inside; tries at least once. False: another sidecar is at the path now, and newcomers queue there.

        Raises Shut when the budget is spent first.
        """
        try:
            flock(self._file, TRY)
        except BlockingIOError:
            self._wait(budget)
        try:
            found = os.stat(self.path)
        except OSError as error:
            if by_a_handler(error):
                raise
            return False
        return found.st_ino == self._inode and found.st_dev == self._device

    def _wait(self, budget: Budget) -> None:
        pause = FIRST_PAUSE
        while True:
            left = budget.left()
            if left <= 0:
                raise Shut(f"its gate ({self.path}) stayed shut: {inside(self._device, self._inode)}")
            sleep(min(pause, left))
            try:
                flock(self._file, TRY)
            except BlockingIOError:
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    def has_name(self) -> bool:
        """Whether it was not deleted: then newcomers may still queue here, perhaps under another path. Raises OSError."""
        return os.fstat(self._file).st_nlink > 0

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


def _if_allowed(change: Callable[..., None], *args: int) -> None:
    """Not allowed: the file is somebody else's, or the owner has no number in this container (EINVAL)."""
    try:
        change(*args)
    except OSError as error:
        if by_a_handler(error) or error.errno not in (EPERM, EACCES, EINVAL):
            raise
