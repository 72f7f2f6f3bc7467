"""Which program a command means, found out before the lock is waited for; and why it cannot be started."""

from __future__ import annotations

import errno
import os
import stat

from .. import exits

_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_SHORT_OF = {
    errno.EAGAIN: "processes or threads (ulimit -u, or pids.max of the cgroup)",
    errno.ENOMEM: "memory",
    errno.EMFILE: "descriptors for one process (ulimit -n)",
    errno.ENFILE: "descriptors for all processes (fs.file-max)",
}


class CannotRun(Exception):
    """There is no such program; or there is, and it cannot be run because of `why`."""

    def __init__(self, program: str, why: str = "") -> None:
        super().__init__(f"{program}: cannot be run: {why}" if why else f"{program}: command not found")
        self.code = exits.NOT_EXECUTABLE if why else exits.NOT_FOUND


class Short(Exception):
    """This system has too little of something for a command to be run. Nothing was started, and nothing is locked."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this system is short of {what}; the command was not started. Try later, or raise the limit")


def find(program: str) -> str:
    """The path of `program`, sought in PATH if it has no slash. Raises CannotRun."""
    if "/" in program:
        return _checked(program, program)
    refused = CannotRun(program)
    for directory in os.get_exec_path():
        try:
            return _checked(os.path.join(directory or ".", program), program)
        except CannotRun as error:
            if refused.code == exits.NOT_FOUND:
                refused = error
    raise refused


def explain(program: str, path: str, number: int) -> CannotRun:
    """What the kernel's refusal to run `path` means."""
    if number in _NOT_FOUND:
        return CannotRun(program, "its interpreter, named in its first line, does not exist" if os.path.exists(path) else "")
    if number == errno.ENOEXEC:
        return CannotRun(program, "it is no program; a script needs a first line such as #!/bin/sh")
    return CannotRun(program, os.strerror(number))


def _checked(path: str, program: str) -> str:
    try:
        directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise explain(program, path, error.errno or errno.EIO) from None
    if directory or not os.access(path, os.X_OK):
        raise explain(program, path, errno.EISDIR if directory else errno.EACCES)
    return path


def short_of(error: BaseException | int | None) -> str:
    """What this system has too little of, if that is what the error (or its number) says; else ""."""
    if isinstance(error, MemoryError):
        return _SHORT_OF[errno.ENOMEM]
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return _SHORT_OF[errno.EAGAIN]
    number = error.errno if isinstance(error, OSError) else error
    return _SHORT_OF.get(number, "") if isinstance(number, int) else ""
