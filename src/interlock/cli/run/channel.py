"""What the runner and its supervisor say to each other: orders before the fork, then one JSON array per line over a socket
pair that no other process inherits.

Sending never waits. What the other end does not take, because it is stopped, is kept and tried again at the next `flush`: the
newest of those messages that replace each other, and a bounded number of the others.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any, NamedTuple

Message = list[Any]

DYING = 5.0  # SIGKILL takes effect at once, but for a process that the kernel keeps in a disk or network wait
_KEPT = 100  # messages that are kept for an end that does not read


class Orders(NamedTuple):
    """What the supervisor must know of a run."""

    name: str  # of the lock
    path: str
    argv: list[str]
    grace: float
    margin: float  # how long before the deadline a lease counts as lost: then everything is killed
    on_lost: str
    quiet: bool


class Channel:
    """One end. `over` once the other end is gone, which is how a killed process is noticed."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unread = b""
        self._cut = b""  # the rest of a message that went out in part
        self._unsent: list[tuple[str, bytes]] = []
        self.over = False

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def send(self, verb: str, *rest: object, replaces: bool = False) -> None:
        """Say it, now or at a later `flush`. `replaces`: what was said before under this verb and not sent is dropped.

        If the other end is gone, nothing happens: reading tells.
        """
        if replaces:
            self._unsent = [message for message in self._unsent if message[0] != verb]
        if len(self._unsent) < _KEPT:
            self._unsent.append((verb, json.dumps([verb, *rest]).encode() + b"\n"))
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as the other end takes it."""
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._cut or self._unsent:
                if not self._cut:
                    self._cut = self._unsent.pop(0)[1]
                self._cut = self._cut[self._socket.send(self._cut, socket.MSG_DONTWAIT) :]

    def receive(self) -> list[Message]:
        """What has arrived, without waiting."""
        while not self.over:
            try:
                piece = self._socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it went without reading all we said
                piece = b""
            self._unread += piece
            self.over = not piece
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """The other end sees that it is over."""
        self._socket.close()


def continue_when_gone(end: socket.socket) -> None:
    """Have the kernel send us SIGCONT when the other end of this pair is gone: if we are stopped, we run again, and act.

    Nothing is ever said over this pair. Elsewhere than on Linux: nothing.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
