"""What a user must be allowed to do with the files of a store, and how those who share it are let in.

SQLite makes its log and its shared memory beside the database and deletes them when the last one leaves. So whoever uses the
database needs to write to its *directory* as well. Without that a store would work as long as somebody else has it open, and
fail afterwards: here it fails at once.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from errno import EACCES, EROFS

GATE = "-gate"
BESIDE = ("-wal", "-shm")


def check(path: str) -> None:
    """Raises OSError, with all that is closed to this user as its file name."""
    directory = os.path.dirname(path)
    closed = [] if may(directory, os.W_OK | os.X_OK) else [directory]
    for ending in ("", GATE, *BESIDE):
        file, needed = path + ending, os.R_OK if ending == GATE else os.R_OK | os.W_OK
        if os.path.exists(file) and not may(file, needed):
            closed.append(file)
    if closed:
        code = EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else EACCES
        raise OSError(code, os.strerror(code), " and to ".join(closed))


def follow(path: str) -> None:
    """Give the files that SQLite keeps beside the database its permissions, where they are ours: the owner may have widened it
    since they were made. (SQLite itself gives them to new ones.)
    """
    mode = stat.S_IMODE(os.stat(path).st_mode) & 0o666
    for ending in BESIDE:
        with suppress(OSError):
            # Not opened, only looked up: closing it drops no lock of SQLite's. And no link is followed.
            file = os.open(path + ending, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) != mode:
                    os.chmod(f"/proc/self/fd/{file}", mode)
            finally:
                os.close(file)


def may(path: str, how: int) -> bool:
    """Whether this process may, as the user that it acts for at the moment."""
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)
