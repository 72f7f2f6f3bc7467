"""Where the file lives: what a URL means, the default place, and which places are refused.

    sqlite:                      the default place (also sqlite://)
    sqlite:locks.db              relative to the working directory at the time of opening
    sqlite:///srv/app/locks.db   absolute (also with four slashes, as SQLAlchemy spells it)

Rules of the file: `parse` and `Location.address` touch no disk. `Location.prepare` does, and writes nothing but the directory
of the default. A location, once chosen, is kept: a process never moves from one file to another by itself.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import ENOTDIR

from ...errors import Unavailable, UsageError
from ...runtime.base import by_a_handler
from .mounts import is_shared, mount_of, read_mountinfo
from .rights import may

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/-._~+@")
FILE = "locks.db"
DIRECTORY = "interlock"
PACKAGE = __name__.partition(".")[0]

Maker = Callable[[str], None]


def parse(url: str) -> str | None:
    """The absolute path that a URL names; None is the default place.

    Raises UsageError for a host, an option, `:memory:`, and `sqlite:///locks.db`, which means one thing here and another
    in SQLAlchemy.
    """
    rest = url.partition(":")[2]
    if "?" in rest or "#" in rest:
        raise UsageError(f"{url!r}: an SQLite store has no options; nothing was written. Write %3F for ? and %23 for #")
    if rest in ("", "//"):
        return None
    if rest.strip("/") == ":memory:":
        raise UsageError(f"{url!r} would be a lock that nobody else can see; nothing was written. Use 'memory://' for that")
    if not rest.startswith("//"):
        return os.path.abspath(_file(url, rest))
    host, slash, path = rest[2:].partition("/")
    if host or not slash:
        raise UsageError(
            f"{url!r} names a host, and an SQLite file has none; nothing was written. Write 'sqlite:///absolute/path.db' or "
            "'sqlite:relative/path.db'"
        )
    spelled_out = path.startswith("/")  # four slashes: an absolute path in everybody's reading
    path = os.path.normpath("/" + _file(url, path).lstrip("/"))
    if os.path.dirname(path) == "/" and not spelled_out:
        raise UsageError(
            f"{url!r} would be a file in the root directory; nothing was written. Write 'sqlite:{path[1:]}' for a file in the "
            f"working directory, or 'sqlite:///{path}' if you mean the root"
        )
    return path


def url_of(path: str) -> str:
    """The URL of an absolute path; `parse` gives the path back."""
    slashes = "///" if os.path.dirname(path) == "/" else "//"
    return f"sqlite:{slashes}{quoted(path)}"


def quoted(path: str) -> str:
    """A path with everything percent-encoded that means something else in a URL."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(path))


def _file(url: str, path: str) -> str:
    head, *rest = os.fsencode(path).split(b"%")
    try:
        decoded = head + b"".join(bytes.fromhex(part[:2].decode()) + part[2:] for part in rest)
        if any(len(part) < 2 for part in rest):
            raise ValueError
    except ValueError:
        raise UsageError(f"{url!r} has a % that is no code; nothing was written. Write %25 for the character itself") from None
    if b"\0" in decoded or decoded.endswith(b"/") or not decoded:
        raise UsageError(f"{url!r} names no file; nothing was written. Write 'sqlite:///absolute/path.db'")
    return os.fsdecode(decoded)


class Location:
    """The file of one store, before and after it is known."""

    def __init__(self, path: str | None, mountinfo: Callable[[], str] = read_mountinfo) -> None:
        self._default = path is None
        self._mountinfo = mountinfo
        self._chosen = path
        self._make: Maker | None = None  # how to make the directory of the chosen default place
        self._warned = ""  # of which place
        self.named = ""  # the path as it was given or chosen, links and all, once it is prepared
        self.address = url_of(path or os.path.join(_state_home(), DIRECTORY, FILE))

    def prepare(self, make: bool = True) -> str:
        """The path of the file without symbolic links, in a directory that exists. Without `make` nothing is written at all,
        and the directory of the default place may be missing.

        Raises UsageError for a missing directory, a directory in the place of the file, or a file system that is shared
        with other machines. Raises Unavailable when there is no place to write at all, OSError as it comes.
        """
        path = self._chosen or self._choose(make)
        if self._make is not None and make:
            self._make(os.path.dirname(path))  # somebody may have cleaned up
        self.named, real = path, os.path.realpath(path)
        directory = os.path.dirname(real)
        if not _is_directory(directory):
            if self._default and not make:
                return real
            if os.path.exists(directory):
                raise UsageError(
                    f"{self.address}: {directory} is a file, not a directory; nothing was written. Correct the path"
                )
            raise UsageError(
                f"{self.address}: the directory {directory} does not exist; nothing was written. Make it, or correct the path "
                "('sqlite:relative/path.db' is relative to the working directory)"
            )
        if os.path.exists(path) and not os.path.exists(real) and os.path.realpath(path) == real:  # else a link was swapped
            raise UsageError(
                f"{self.address} leads to a file that has no name any more: it was deleted; nothing was written. Name one in "
                "a directory that exists"
            )
        if os.path.exists(real) and not os.path.isfile(real):
            raise UsageError(f"{self.address} is not a file, and it was left untouched. Name a file in a directory that exists")
        if refusal := self._refusal(real):
            raise UsageError(
                f"{self.address} {refusal}; nothing was written. Choose a file on a local disk, or redis:// between machines"
            )
        return real

    def _refusal(self, real: str) -> str:
        """Why a file may not live there, or ""."""
        mount = mount_of(real, self._mountinfo())
        if mount is None:
            return ""
        if is_shared(mount.kind):
            return (
                f"lies on a {mount.kind} file system ({mount.point}), where locks and shared memory do not reach other "
                "machines: two processes could hold one lock"
            )
        if mount.point == real:
            return (
                "is mounted as a single file, so the files that SQLite keeps beside it would not be shared with it: mount its "
                "directory instead"
            )
        return ""

    def _choose(self, make: bool) -> str:
        """Settle on the first default directory that can be used, or could be made. Warns when it is not the usual one."""
        problems = []
        for directory, maker in _candidates():
            problem = self._problem(directory, maker, make)
            if problem:
                problems.append(f"{directory}: {problem}")
                continue
            path = os.path.join(directory, FILE)
            self.address = url_of(path)
            if make or os.path.lexists(directory):  # else it is chosen when it is needed, and perhaps it cannot be made
                self._chosen, self._make = path, maker
            if problems and self._warned != path:
                self._warned = path
                warnings.warn(
                    f"interlock keeps its locks in {path}, because the usual place cannot be used "
                    f"({'; '.join(problems)}). Processes with another environment may choose another file and would not see "
                    "these locks: set INTERLOCK_URL to one file for all of them",
                    RuntimeWarning,
                    stacklevel=_users_level(),
                )
            return path
        raise Unavailable(
            f"no directory for the default lock file can be used ({'; '.join(problems)}); nothing was written. Set "
            "INTERLOCK_URL, for example to sqlite:///path/to/locks.db",
            backend=self.address,
            cause="error",
        )

    def _problem(self, directory: str, maker: Maker, make: bool) -> str:
        if not directory.startswith("/"):
            return "there is no home directory"
        there = directory
        while not (make or os.path.lexists(there)):
            there = os.path.dirname(there)  # where making it would begin
        try:
            if there == directory:
                maker(directory)  # if it is there already, this only checks it
            elif not os.path.isdir(there):
                return os.strerror(ENOTDIR)
        except OSError as error:
            if by_a_handler(error):
                raise
            return error.strerror or str(error)
        if not may(there, os.W_OK | os.X_OK):
            return "it cannot be written"
        return self._refusal(os.path.realpath(os.path.join(directory, FILE)))


def _is_directory(path: str) -> bool:
    """Raises OSError when that cannot be told; os.path.isdir would say no to what we may not see."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _candidates() -> Iterator[tuple[str, Maker]]:
    """The default directories in order of preference, each with the way to make it."""
    yield os.path.join(_state_home(), DIRECTORY), _make
    if (runtime := os.environ.get("XDG_RUNTIME_DIR", "")).startswith("/"):
        yield os.path.join(runtime, DIRECTORY), _make
    from tempfile import gettempdir  # 18 ms, for those few who get here

    yield os.path.join(gettempdir(), f"{DIRECTORY}-{os.geteuid()}"), _make_private


def _users_level() -> int:
    """The `stacklevel`, for a warning of the caller, of the line that called this library. In asyncio it is not on the stack:
    the store has a thread of its own there.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


def _state_home() -> str:
    configured = os.environ.get("XDG_STATE_HOME", "")
    # The specification says to ignore a relative path.
    return configured if configured.startswith("/") else os.path.join(os.path.expanduser("~"), ".local", "state")


def _make(directory: str) -> None:
    os.makedirs(directory, 0o700, exist_ok=True)


def _make_private(directory: str) -> None:
    """A directory where everybody may make one: it must be ours alone, or somebody else could swap the file."""
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(1, "it is there already and is not a private directory of this user")
