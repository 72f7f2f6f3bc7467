"""How a command ends. The codes are those of sysexits.h, so that scripts and service managers know them already."""

from __future__ import annotations

import sys
from contextlib import suppress

from ..core.shown import shown

OK = 0
HELD = 1  # `status --exit-code`: the lock is held
NOT_SHOWN = 1  # `demo`: what it set out to show did not happen this time
BROKEN = 1  # `sim`: a promise was broken
USAGE = 64  # the command line is wrong
UNAVAILABLE = 69  # the store does not answer, or a program or package that is needed is not here
BUG = 70  # `run`: interlock itself is at fault
SHORT = 71  # `run`: this system is short of processes, memory or descriptors; EX_OSERR, "cannot fork"
BUSY = 75  # `run`: the lock was not to be had; EX_TEMPFAIL, "try later"
CONFIG = 78  # the URL cannot work, or what is at the key is not a lock
LOST = 79  # `run`: the lock was lost, or nearly, while the command ran; the first code after those of sysexits.h
NOT_EXECUTABLE = 126  # `run`: the command is there and cannot be run; as shells say it
NOT_FOUND = 127  # `run`: there is no such command
INTERRUPTED = 130  # 128 + SIGINT
PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of our output has left, as in `| head`

_LONGEST = 3000  # characters of a line on stderr


class WrongCommandLine(Exception):
    """The arguments cannot be meant."""


def complain(message: str, code: int) -> int:
    """One line on stderr, whatever the message; gives `code` back. A stderr that is closed or broken changes nothing."""
    message = message.replace(".\n  ", ": ").replace("\n  ", "; ")  # a table: who voted what
    if sys.stderr is not None:
        line = f"interlock: {shown(' '.join(message.split()), _LONGEST)}\n"
        with suppress(OSError):
            sys.stderr.write(line)  # one piece, so that no other words come in between
            sys.stderr.flush()
    return code


def warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: object = None, line: object = None
) -> None:
    """For `warnings.showwarning`: our own words, without a line of code."""
    complain(str(message).removeprefix("interlock: "), OK)
