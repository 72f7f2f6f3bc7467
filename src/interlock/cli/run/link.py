"""The runner's connection to its supervisor: how it is forked, how one knows that it is ready, how it is left."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from ...runtime.base import now
from .. import exits
from . import supervisor, tree, voice
from .channel import DYING, Channel, Orders, continue_when_gone
from .command import Short, short_of
from .signals import Signals

_BIRTH = 30.0  # how long a supervisor may take to be ready, on a machine that is very busy


class Link:
    """To one supervisor."""

    def __init__(self, pid: int, channel: Channel, lifeline: socket.socket, orders: Orders) -> None:
        self.pid = pid
        self.channel = channel
        self._lifeline = lifeline
        # What it may need to end a command that still runs. With `warn` it does not end it.
        self._patience = math.inf if orders.on_lost == "warn" else orders.grace + DYING + 2.0
        self._closed = False

    def await_ready(self, signals: Signals) -> None:
        """Wait until it is, and get ready for its death ourselves. Raises Short, or Interrupted when a signal comes."""
        try:
            tree.keep_descriptors()
        except OSError as error:
            raise Short(short_of(error) or str(error)) from None
        signals.rest(_BIRTH, self.channel.fileno())
        for verb, *rest in self.channel.receive():
            if verb == "ready":
                return
            raise Short(short_of(rest[0]) or os.strerror(rest[0]))
        raise Short("time, or somebody killed the process that was to watch the command")

    def wake(self, at_once: bool = False) -> None:
        """Continue it if it is stopped and nothing of the command runs: only it can tell that the command has ended, and the
        lock would be renewed for nothing. `at_once`: whatever runs; the command is to end, and hears that from it only."""
        with suppress(ChildProcessError, ProcessLookupError):
            stopped = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if stopped and (at_once or not tree.below(self.pid)):
                os.kill(self.pid, signal.SIGCONT)

    def close(self) -> bool:
        """Have it end, and the command before it if that still runs. Whether nothing is left below us.

        It is given its time for that. If it is stopped it is continued; after that time it is killed.
        """
        if self._closed:
            return False
        self._closed = True
        self.channel.close()
        give_up, pause = now() + self._patience, 0.0005
        with suppress(ProcessLookupError, ChildProcessError):  # it is buried already
            os.kill(self.pid, signal.SIGCONT)
            while not os.waitpid(self.pid, os.WNOHANG)[0]:
                if now() > give_up:
                    os.kill(self.pid, signal.SIGKILL)
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        self._lifeline.close()
        return tree.bury(0, {})


def fork(orders: Orders) -> Link:
    """Start the supervisor. To be called before this process has a thread or a client. Raises Short."""
    ends: list[socket.socket] = []
    tree.spare_strangers()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until each side has its own handlers
    try:
        ends += socket.socketpair()
        ends += socket.socketpair()
        pid = os.fork()
        if pid == 0:
            _serve(orders, ends, mask)
        continue_when_gone(ends[2])
    except OSError as error:
        for end in ends:
            end.close()
        raise Short(short_of(error) or str(error)) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    ends[1].close()
    ends[3].close()
    tree.adopt()  # if the supervisor is killed, what was below it falls to us
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # else the kernel buries for us, and numbers are free too early
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return Link(pid, Channel(ends[0]), ends[2], orders)


def _serve(orders: Orders, ends: list[socket.socket], mask: Iterable[int]) -> NoReturn:
    """In the child."""
    try:
        voice.renew()
        ends[0].close()
        ends[2].close()
        continue_when_gone(ends[3])
        supervisor.serve(orders, Channel(ends[1]), mask)
    finally:
        os._exit(exits.BUG)
