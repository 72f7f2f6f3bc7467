"""Signals, in the two lives of a runner: while it waits they end it, while its command runs they are handed on."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Self

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
HANDED_ON = (*ENDING, signal.SIGCONT, signal.SIGWINCH)


class Interrupted(BaseException):
    """A signal came while there was nothing to hand it on to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)


def nothing(_: int, __: FrameType | None) -> None:
    """A handler whose only effect is that the wake-up descriptor learns of the signal (and that exec resets it)."""


def handle(numbers: Iterable[int], handler: signal._HANDLER) -> None:
    """Install `handler`, except where the signal is ignored: `nohup` and `&` in scripts mean that."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


class Bell:
    """A descriptor that becomes readable when a signal or `ring` comes. One per process, made in the main thread."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """For poll."""
        return self._ours.fileno()

    def ring(self) -> None:
        """From any thread."""
        with suppress(BlockingIOError):
            self._theirs.send(b"\0")

    def answer(self) -> list[int]:
        """The signals that came since the last time; silent again."""
        came = b""
        with suppress(BlockingIOError):
            while True:
                came += self._ours.recv(4096)
        return [number for number in came if number]

    def close(self) -> None:
        """No more bell."""
        signal.set_wakeup_fd(-1)
        self._ours.close()
        self._theirs.close()


class Signals(Bell):
    """How the runner meets signals. Begins in the first life; after the block all is as it was."""

    def __enter__(self) -> Self:
        """The first life."""
        self._before = {number: signal.getsignal(number) for number in (*HANDED_ON, signal.SIGTSTP, signal.SIGTTOU)}
        self.end_us()
        return self

    def __exit__(self, *_: object) -> None:
        """As before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.close()

    def end_us(self) -> None:
        """They raise Interrupted in the main thread, which ends whatever it waits for, and cleans up."""
        handle(ENDING, _interrupt)
        handle((signal.SIGTSTP,), signal.SIG_DFL)

    def hand_on(self) -> None:
        """They ring the bell; nothing stops us, nor does the terminal when we speak from its background."""
        self.answer()
        handle((*HANDED_ON, signal.SIGTSTP), nothing)
        handle((signal.SIGTTOU,), signal.SIG_IGN)
