"""Signals, in the two lives of a runner: while it waits they end it, while its command runs they are handed on."""

from __future__ import annotations

import math
import select
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Self

from ...runtime.base import now

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
HANDED_ON = (*ENDING, signal.SIGCONT, signal.SIGWINCH)
_CLEANING_UP = 5.0  # after a signal: longer than a wait takes to leave the line, or a lock to be given back
_SOON = 0.01  # to raise what cannot be raised where a signal came
_OURS = __name__.rpartition(".")[0]


class Interrupted(BaseException):
    """A signal came while there was nothing to hand it on to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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
    """How the runner meets signals. Begins in the first life; after the block all is as it was.

    In the first life a signal raises Interrupted, but only while the main thread is inside the library, which cleans up
    after itself. In our own code, where a lease may be in hand and not yet in a variable, it is noted in `came`, and the
    next wait looks there first. While the library cleans up, further signals are noted only: one that raised then
    would leave a place in the line, or a lock. Where an exception would be swallowed or become another one, it is raised a
    moment later, by an alarm.
    """

    def __init__(self) -> None:
        super().__init__()
        self.came = 0  # the first signal of this life
        self._deaf_until = -math.inf

    def __enter__(self) -> Self:
        """The first life."""
        touched = (*HANDED_ON, signal.SIGALRM, signal.SIGTSTP, signal.SIGTTOU)
        self._before = {number: signal.getsignal(number) for number in touched}
        self.end_us()
        return self

    def __exit__(self, *_: object) -> None:
        """As before."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.close()

    def end_us(self) -> None:
        """They end whatever the main thread waits for, and have it clean up."""
        self.came = 0
        signal.signal(signal.SIGALRM, lambda number, frame: self._interrupt(self.came or number, frame))
        handle(ENDING, self._interrupt)
        self.came = self.came or next((number for number in self.answer() if number in ENDING), 0)  # while there was no handler
        handle((signal.SIGTSTP,), signal.SIG_DFL)

    def hand_on(self) -> None:
        """They ring the bell; nothing stops us, nor does the terminal when we speak from its background.

        Raises Interrupted, if one came before that.
        """
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before[signal.SIGALRM])
        self.answer()
        handle((*HANDED_ON, signal.SIGTSTP), nothing)
        handle((signal.SIGTTOU,), signal.SIG_IGN)
        if self.came:
            raise Interrupted(self.came)

    def rest(self, seconds: float, *others: Bell | int) -> bool:
        """Wait so long, or until one of the `others` can be read: True. Raises Interrupted when a signal comes."""
        until = now() + seconds
        poll = select.poll()
        for one in (self, *others):
            poll.register(one, select.POLLIN)
        while not self.came and (left := until - now()) > 0:
            if {descriptor for descriptor, _ in poll.poll(math.ceil(left * 1000))} - {self.fileno()}:
                return True
            self.answer()
        if self.came:
            raise Interrupted(self.came)
        return False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = self.came or number
        inside = frame is not None and not frame.f_globals.get("__name__", "").startswith(_OURS)
        if inside and now() >= self._deaf_until:
            if _swallowed(frame):
                signal.setitimer(signal.ITIMER_REAL, _SOON)
                return
            self._deaf_until = now() + _CLEANING_UP
            raise Interrupted(number)


def _swallowed(frame: FrameType | None) -> bool:
    """Whether an exception would not get out of here as it is: a finaliser or the callback of a weak reference swallows it, and
    the locks of `threading` make it a RuntimeError."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_globals.get("__name__") in ("threading", "weakref"):
            return True
        frame = frame.f_back
    return False
