"""What runner and warden say to each other: one JSON array per line, over a socket pair that nobody else inherits."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

Message = list[Any]


class Channel:
    """One end. `over` once the other end is gone, which is how a killed process is noticed."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unread = b""
        self.over = False

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def send(self, *message: object) -> None:
        """Say it. Nothing happens if nobody is there to hear it: reading tells."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

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
