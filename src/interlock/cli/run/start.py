"""How the supervisor's child becomes the command."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, NoReturn

from .. import exits
from . import tree
from .channel import Orders
from .signals import HANDED_ON
from .terminal import Terminal

RESET = (*HANDED_ON, signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)  # what the supervisor handles itself


class Inherited(NamedTuple):
    """The signals as they were when interlock was started: the mask, and those that are ignored."""

    mask: Iterable[int]
    ignored: set[int]

    def restore(self) -> None:
        """In the child. What Python itself changes, too."""
        signal.set_wakeup_fd(-1)
        for number in (*RESET, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def start(orders: Orders, environment: Mapping[str, str], signals: Inherited, terminal: Terminal) -> tuple[int, int]:
    """Start the command in a group of its own. Gives its process id, and a pipe that ends when its program runs, or holds the
    number of the error because of which it does not.

    Does not wait for the program to be loaded: it may lie on a disk that hangs. Raises OSError if there is no process or
    descriptor to be had.
    """
    supervisor = os.getpid()
    read, write = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(orders, environment, signals, terminal, supervisor, write)
    except OSError:
        os.close(read)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
    with suppress(OSError):  # the child does so, too: whichever comes first
        os.setpgid(pid, pid)
    return pid, read


def _become(
    orders: Orders, environment: Mapping[str, str], signals: Inherited, terminal: Terminal, supervisor: int, trouble: int
) -> NoReturn:
    """In the child."""
    number = errno.ENOMEM
    try:
        os.setpgid(0, 0)
        tree.die_with(supervisor)
        terminal.give(os.getpid())
        signals.restore()
        os.execve(orders.path, orders.argv, environment)  # noqa: S606 - that is the point
    except OSError as error:
        number = error.errno or 0
    finally:
        os.write(trouble, str(number).encode())
        os._exit(exits.NOT_FOUND)
