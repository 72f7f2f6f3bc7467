"""What went wrong below, in our words. The only place that knows the errors of SQLite and of the file system.

Rules of the file: every message says what happened, what is left behind and what to do next. SQLite's own texts name
tables and causes, never values, so no token can slip in with them.
"""

from __future__ import annotations

import os
import sqlite3

from ...errors import Unavailable, UsageError

_SHARING = (
    "Users who share a file need to write to its directory as well, since SQLite makes and deletes files beside it: best a "
    "setgid directory of a common group (mode 2770) that is not sticky, and mode 660 for the file"
)
_ROLLED_BACK = "the request was rolled back, so nothing of it is left"


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody who does not use the gate holds a lock on the database."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_not_a_database(error: sqlite3.Error) -> bool:
    """Whether the file is something else."""
    return _code(error) == sqlite3.SQLITE_NOTADB


def mapped(error: sqlite3.Error | OSError, address: str) -> Unavailable:
    """Our error for a foreign one."""
    return _from_os(error, address) if isinstance(error, OSError) else _from_sqlite(error, address)


def _from_sqlite(error: sqlite3.Error, address: str) -> Unavailable:
    """Our error for one of SQLite's: Unavailable, whatever it was."""
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        text = f"{address}: the disk is full; {_ROLLED_BACK}. Make room and try again"
    elif code == sqlite3.SQLITE_CANTOPEN and _no_descriptor_left():
        text = f"{address} cannot be opened: this process has too few descriptors (ulimit -n); {_ROLLED_BACK}. Raise the limit"
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        text = (
            f"{address} cannot be written ({error}); {_ROLLED_BACK}. Let user {os.geteuid()} write to the file, to those "
            f"that have its name and an ending (-gate, -wal, -shm) and to the directory, or choose another file. {_SHARING}"
        )
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        text = (
            f"{address} is damaged ({error}); {_ROLLED_BACK}. Stop the programs that use it and move it away: a new file "
            "starts with higher fences, taken from the wall clock, and without leases"
        )
    else:
        text = (
            f"{address} failed ({error}); {_ROLLED_BACK} unless the disk says otherwise later. Look at the disk and try again"
        )
    return Unavailable(text, backend=address, cause="error")


def _from_os(error: OSError, address: str) -> Unavailable:
    """Our error for one of the file system's."""
    if isinstance(error, PermissionError) or error.errno in _CLOSED_TO_US:
        advice = f"Let user {os.geteuid()} write to {error.filename or 'it'}, or choose another file. {_SHARING}"
    else:
        advice = "Look at the disk and the limits of this process, and try again"
    return Unavailable(
        f"{address} cannot be used: {error.strerror or error}; nothing was written. {advice}", backend=address, cause="error"
    )


def foreign(address: str) -> UsageError:
    """The file belongs to somebody else."""
    return UsageError(
        f"{address} is not a lock file of interlock, and it was left untouched. Choose a file that nothing else uses; a "
        "new one is made by itself"
    )


def other_version(address: str, version: int) -> UsageError:
    """The file is ours, in a format that this version does not know."""
    return UsageError(
        f"{address} has format {version}, which this version of interlock does not know, and it was left untouched. Use the "
        "same version of interlock in every program that shares the file, or another file"
    )


def inherited(address: str) -> UsageError:
    """SQLite's notes on the file came over with a fork."""
    return UsageError(
        f"{address} cannot be used in this process: it was forked while another thread was in the middle of a request to that "
        "file which did not end, and SQLite cannot be trusted with it here. Nothing was written. Start processes by exec "
        "(multiprocessing's 'spawn' or 'forkserver'), or fork before the file is used"
    )


def hard_linked(address: str, names: int) -> UsageError:
    """The file has several names."""
    return UsageError(
        f"{address} is a file with {names} names (hard links), each of which would have a gate and a log of its own; nothing "
        "was written. Delete the others ('find -samefile' lists them), or use a symbolic link"
    )


def open_elsewhere(address: str) -> UsageError:
    """Somebody uses the file under a name that is not ours."""
    return UsageError(
        f"{address} is open under another name: it was renamed or moved while a process had it open, and what that process was "
        "granted may be in a log beside the old name. Nothing was written. Move the file back, or end the programs that use it "
        "under the old name ('fuser' on the file names them)"
    )


def split(address: str) -> UsageError:
    """A file beside the database is gone, or another is in its place, and others go on without noticing."""
    return UsageError(
        f"{address} is open in other processes, and the -wal or -shm beside it was deleted or replaced under them: what they "
        "are granted could not be seen from here. Nothing was written. End the programs that use it ('fuser' on the file names "
        "them), and keep the file away from cleaners of temporary files"
    )


def another_boot(address: str) -> UsageError:
    """The file is of another boot, as its id goes, and somebody has it open."""
    return UsageError(
        f"{address} is in use by processes with another boot id: a container has one of its own, or a kernel of its own. Its "
        "leases cannot be told from those of an earlier boot. Nothing was written, and nothing was freed. Show all of them the "
        "same /proc/sys/kernel/random/boot_id, or use a store that is a server, such as redis://"
    )


def two_clocks(address: str) -> UsageError:
    """The file was adopted by another boot while this process had it open."""
    return UsageError(
        f"{address} is used by processes that do not share a clock: two machines, or containers with kernels or time "
        "namespaces of their own. Nothing was written; leases of this process in that file are lost. Use a store that is a "
        "server, such as redis://, between machines"
    )


def no_fence_left(address: str) -> Unavailable:
    """The counter reached the largest number that a fence may be."""
    return Unavailable(
        f"{address} has no fence left below 2**53; nothing was written. Move the file away: a new one starts at the wall clock",
        backend=address,
        cause="error",
    )


def no_log(address: str, mode: str) -> UsageError:
    """SQLite would not keep a write-ahead log there."""
    return UsageError(
        f"{address} lies on a file system without shared memory for SQLite's write-ahead log (it offers {mode!r}); no lease "
        "was written. Choose a file on a local disk"
    )


_CLOSED_TO_US = frozenset((1, 13, 30))  # EPERM, EACCES, EROFS


def _no_descriptor_left() -> bool:
    """Whether this process has too few for a database, its journal, its log, the log's index and the directory."""
    opened: list[int] = []
    try:
        while len(opened) < 5:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


def _code(error: sqlite3.Error) -> int:
    extended: int = getattr(error, "sqlite_errorcode", 0)  # errors of the Python module itself have none
    return extended & 0xFF
