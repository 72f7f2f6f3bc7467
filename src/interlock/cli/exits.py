"""How a command ends. The codes are those of sysexits.h, so that scripts and service managers know them already."""

from __future__ import annotations

import sys

OK = 0
HELD = 1  # `status --exit-code`: somebody holds the lock
NOT_SHOWN = 1  # `demo`: what it set out to show did not happen this time
USAGE = 64  # the command line is wrong
UNAVAILABLE = 69  # the store does not answer, or a program or package that is needed is not here
CONFIG = 78  # the URL cannot work, or what is at the key is not a lock
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM
PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of our output has left, as in `| head`


def complain(message: str, code: int) -> int:
    """One line on stderr, whatever the message; gives `code` back."""
    print(f"interlock: {' '.join(message.split())}", file=sys.stderr)
    return code
