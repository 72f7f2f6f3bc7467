"""Which program a command means. Found out before anybody waits for a lock."""

from __future__ import annotations

import errno
import os
import stat

_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


class CannotRun(Exception):
    """There is no such program (`found` is false), or it cannot be run."""

    def __init__(self, message: str, found: bool) -> None:
        super().__init__(message)
        self.found = found


def find(program: str) -> str:
    """The path of `program`, sought in PATH if it has no slash. Raises CannotRun."""
    if "/" in program:
        return _checked(program, program)
    refused: CannotRun | None = None
    for directory in os.get_exec_path():
        try:
            return _checked(os.path.join(directory or ".", program), program)
        except CannotRun as error:
            if error.found and refused is None:
                refused = error
    raise refused or CannotRun(f"{program}: command not found", found=False)


def explain(program: str, path: str, number: int) -> CannotRun:
    """What the kernel's refusal to run `path` means."""
    if number in _NOT_FOUND and not os.path.exists(path):
        return CannotRun(f"{program}: command not found", found=False)
    why = os.strerror(number)
    if number in _NOT_FOUND:
        why = "its interpreter, named in its first line, does not exist"
    elif number == errno.ENOEXEC:
        why = "it is no program; a script needs a first line such as #!/bin/sh"
    return CannotRun(f"{program}: cannot be run: {why}", found=True)


def _checked(path: str, program: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOT_FOUND:
            raise CannotRun(f"{program}: command not found", found=False) from None
        raise explain(program, path, error.errno or 0) from None
    if stat.S_ISDIR(mode):
        raise explain(program, path, errno.EISDIR)
    if not os.access(path, os.X_OK):
        raise explain(program, path, errno.EACCES)
    return path
