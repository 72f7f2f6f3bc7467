"""What a memory store announces to one client, and a pipe that wakes the client's listener."""

from __future__ import annotations

import os
from contextlib import suppress

from ...core.claim import Announced


class Inbox:
    """The announcements to one client. The memory's guard is held around every method."""

    def __init__(self) -> None:
        self.announced: list[Announced] = []
        self.heard = False  # the client listens at this moment
        self.closed = False
        self.ear, self.hammer = os.pipe()
        os.set_blocking(self.ear, False)
        os.set_blocking(self.hammer, False)

    def put(self, announced: Announced) -> None:
        """Announce, and wake the listener."""
        self.announced.append(announced)
        if len(self.announced) == 1:
            os.write(self.hammer, b"!")

    def take(self) -> list[Announced]:
        """What was announced since the last call."""
        taken, self.announced = self.announced, []
        with suppress(BlockingIOError):
            os.read(self.ear, 1)
        return taken

    def close(self) -> None:
        """Close the pipe. A listener that hears at this moment is woken, and its `listen(False)` closes the pipe."""
        self.closed = True
        if self.heard:
            with suppress(BlockingIOError):
                os.write(self.hammer, b"!")
        else:
            os.close(self.ear)
            os.close(self.hammer)

    def listen(self, listens: bool) -> None:
        """The client listens from now on, or stops."""
        self.heard = listens
        if self.closed and not listens:
            self.close()
