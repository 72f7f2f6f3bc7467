"""What it means when the system has no more processes, threads, memory or descriptors: nobody's bug, and said as such."""

from __future__ import annotations

import errno

_SHORT_OF = {
    errno.EAGAIN: "processes or threads (ulimit -u, or pids.max of the cgroup)",
    errno.ENOMEM: "memory",
    errno.EMFILE: "descriptors for one process (ulimit -n)",
    errno.ENFILE: "descriptors for all processes (fs.file-max)",
}


def short_of(error: BaseException | int) -> str:
    """What there is too little of, if that is what the error (or its number) says; else ""."""
    if isinstance(error, int):
        return _SHORT_OF.get(error, "")
    if isinstance(error, MemoryError):
        return _SHORT_OF[errno.ENOMEM]
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return _SHORT_OF[errno.EAGAIN]
    return _SHORT_OF.get(error.errno or 0, "") if isinstance(error, OSError) else ""


class Short(Exception):
    """This system has too little of something for a command to be run. Nothing was started, and nothing is locked."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this system is short of {what}; the command was not started. Try later, or raise the limit")
