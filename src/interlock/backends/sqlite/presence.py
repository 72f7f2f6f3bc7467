"""Who has a file open, and under which name: a mark that the kernel keeps on the file itself and takes away with the process.

Why: everything else (gate, log, shared memory) lies beside the file and is found by its name. Under two names one file would
have two gates and two logs. A hard link can be seen (`st_nlink`). That somebody still uses the name which the file had before
cannot.

The mark is a shared lock (`F_OFD_SETLK`) on one byte far behind the end of the file, further than SQLite ever locks. Which byte
it is says under which name the file is open: all who agree on the name share one. A second mark, in a range of its own, says
with which log and shared memory. The kernel shows everybody the marks of all processes, whatever container they are in.

Invariants
- A name is a directory and an entry in it. A directory that was moved, or is mounted twice, is the same one.
- Whoever comes marks first and looks at the others afterwards. So of two who come at once under two names, at most one gets in.
- *When a process closes any descriptor of a file, the kernel drops its other locks on that file, those of SQLite too.* So a
  descriptor of ours is closed only while this process has no connection to that file. Connections are opened inside the gate,
  so inside the gate that is known. Until somebody comes by there, it lies in `_spent`, without its mark.
- A forked child closes its copies at once, those in `_spent` too: later their numbers may mean files of its own.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import blake2b
from struct import Struct
from zlib import crc32

from ...runtime import forks
from . import rights

FIRST = 2**61  # of the bytes that the marks of names are on
BYTES = 2**60
BESIDE = FIRST + BYTES  # the first of as many for the marks of what lies beside the file

_FLOCK = Struct("hhqqi4x")  # type, whence, start, length, process

File = tuple[int, int]  # device and inode

_marked: dict[File, list[int]] = {}  # descriptors of this process, each for one connection
_spent: dict[File, list[int]] = {}  # those that are to be closed


class Presence:
    """The mark of one connection. Made inside the gate, before SQLite opens the file."""

    __slots__ = ("_byte", "_descriptor", "_file", "_path")

    def __init__(self, path: str) -> None:
        """Touches nothing yet."""
        self._path = path
        self._descriptor = -1
        self._byte = 0
        self._file: File = (-1, -1)

    def mark(self) -> bool:
        """From now on others see it. False: somebody has the file open under another name. Raises OSError."""
        self._byte = _byte(self._path)
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        self._file = found.st_dev, found.st_ino
        if self._file not in _marked:
            _close_spent(self._file)
        _marked.setdefault(self._file, []).append(self._descriptor)
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_RDLCK, self._byte, 1)
        after = self._byte + 1
        return self._nobody(FIRST, self._byte - FIRST) and self._nobody(after, FIRST + BYTES - after)

    def mark_beside(self) -> None:
        """From now on others see with which log and shared memory we have it open. Raises OSError."""
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_RDLCK, _byte_beside(self._path), 1)

    def agrees(self) -> bool:
        """Whether nobody has the file open with another log or shared memory than are beside it now. Raises OSError."""
        try:
            byte = _byte_beside(self._path)
        except FileNotFoundError:
            return self._nobody(BESIDE, BYTES)
        return self._nobody(BESIDE, byte - BESIDE) and self._nobody(byte + 1, BESIDE + BYTES - byte - 1)

    def alone(self) -> bool:
        """Whether nobody else has the file open, in this process or another. Raises OSError."""
        return self._nobody(FIRST, BYTES)

    def has_name(self) -> bool:
        """Whether the file was not deleted, wherever it is now. Raises OSError."""
        return os.fstat(self._descriptor).st_nlink > 0

    def end(self, inside: bool) -> None:
        """The connection is closed. `inside`: we are inside the gate."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        _lock(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, FIRST, 2 * BYTES)  # closing might not do: a child may have a copy
        _take(_marked, self._file, descriptor)
        _spent.setdefault(self._file, []).append(descriptor)
        if self._file not in _marked and (inside or not os.fstat(descriptor).st_nlink):  # nobody opens a file without a name
            _close_spent(self._file)

    def disown(self) -> None:
        """In a forked child: what is closed is a copy, and the mark stays the parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _take(_marked, self._file, descriptor)
            os.close(descriptor)

    def _nobody(self, start: int, length: int) -> bool:
        return length == 0 or self._lock(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length) == fcntl.F_UNLCK

    def _lock(self, command: int, kind: int, start: int, length: int) -> int:
        return _lock(self._descriptor, command, kind, start, length)


def name_of(path: str) -> str:
    """The same for all paths to one entry of one directory."""
    directory, entry = os.path.split(path)
    found = os.stat(directory)
    return f"{found.st_dev}:{found.st_ino}:{entry}"


def _byte(path: str) -> int:
    directory, entry = os.path.split(path)
    return FIRST + (os.stat(directory).st_ino % 2**28 << 32) + crc32(os.fsencode(entry))


def _byte_beside(path: str) -> int:
    """Raises FileNotFoundError if one of them is missing."""
    inodes = " ".join(str(os.stat(path + ending).st_ino) for ending in rights.BESIDE)
    return BESIDE + int.from_bytes(blake2b(inodes.encode(), digest_size=8).digest(), "big") % BYTES


def _lock(descriptor: int, command: int, kind: int, start: int, length: int) -> int:
    asked = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    answer: int = _FLOCK.unpack(fcntl.fcntl(descriptor, command, asked))[0]
    return answer


def _close_spent(file: File) -> None:
    """Call it inside the gate, without a connection."""
    for descriptor in _spent.pop(file, ()):
        os.close(descriptor)


class _Heirloom:
    """What is to be closed, and is known to no `Presence` any more."""

    def disown(self) -> None:
        """See `forks`. A child has no locks of its own yet that it could drop."""
        for file in list(_spent):
            _close_spent(file)


_heirloom = _Heirloom()  # it is watched as long as somebody has it
forks.watch(_heirloom)


def _take(descriptors: dict[File, list[int]], file: File, descriptor: int) -> None:
    those = descriptors.get(file, [])
    if descriptor in those:
        those.remove(descriptor)
    if not those:
        descriptors.pop(file, None)
