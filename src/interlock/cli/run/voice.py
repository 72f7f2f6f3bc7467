"""What runner and supervisor say on stderr, without ever waiting for a reader.

While a `Voice` stands in for `sys.stderr`, everything that prints (our words, warnings, log records, tracebacks of threads)
goes to a queue, and a thread of its own does the writing. So a full pipe, a terminal that Ctrl-S has stopped or a hung network
file stop that thread and nothing else. Not O_NONBLOCK: the command and the shell share the open file, and so that flag.

Rules of the file: `write` neither waits nor raises; what does not fit is dropped. The thread blocks all signals: with
`stty tostop` a write from the background is SIGTTOU for the whole process, unless it is blocked.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase
from queue import Empty, SimpleQueue
from typing import TextIO

LAST_WORDS = 1.0  # how long a process that is done waits for its words to be taken
_PIECES = 200  # that wait to be said; more are dropped
_PIECE = 4096  # bytes of one piece: what a pipe takes whole or not at all
_LONGEST = 16 * _PIECE  # bytes of one write: more than the longest line of `exits.complain`


class Voice(TextIOBase):
    """A stand-in for `stream`, which is a real stderr."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fd = stream.fileno()
        self._pieces: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._speaks = False  # the thread is there

    def write(self, text: str) -> int:
        """To be said as soon as it is taken."""
        if self._pieces.qsize() < _PIECES:
            words = text.encode(self._stream.encoding, "backslashreplace")
            for start in range(0, min(len(words), _LONGEST), _PIECE):
                self._pieces.put(words[start : start + _PIECE])
            self._begin()
        return len(text)

    def flush(self) -> None:
        """Nothing: `finish` is for the end."""

    def fileno(self) -> int:
        """That of the stderr behind it."""
        return self._fd

    def finish(self, patience: float = LAST_WORDS) -> None:
        """Wait until all is said, for `patience` seconds at most. To be called when nothing is at stake any more."""
        if self._speaks:
            said = threading.Event()
            self._pieces.put(said)
            said.wait(patience)
        else:  # nothing was said, or this system has no thread for us
            self._say_what_fits()

    def _begin(self) -> None:
        if not self._speaks:
            self._speaks = True  # first: a signal's handler may write, too
            try:
                _thread.start_new_thread(self._speak, ())
            except RuntimeError:  # no more threads; the next word tries again
                self._speaks = False

    def _speak(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            piece = self._pieces.get()
            if isinstance(piece, threading.Event):
                piece.set()
            else:
                self._utter(piece)

    def _utter(self, piece: bytes) -> None:
        try:
            while piece:
                try:
                    piece = piece[os.write(self._fd, piece) :]
                except BlockingIOError:  # another process has made it so
                    select.select([], [self._fd], [])
        except (OSError, ValueError):  # the reader is gone
            return

    def _say_what_fits(self) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            while select.select([], [self._fd], [], 0)[1]:
                piece = self._pieces.get_nowait()
                if isinstance(piece, bytes):
                    os.write(self._fd, piece)
        except (Empty, OSError, ValueError):
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def unhurried() -> Iterator[None]:
    """Have a Voice for `sys.stderr` in the block; at its end wait a moment for the last words."""
    stream = sys.stderr
    try:
        sys.stderr = Voice(stream)
    except (AttributeError, OSError, ValueError):  # None: closed by the caller, descriptor 2 may be anything. Or no real file
        yield
        return
    try:
        yield
    finally:
        finish()
        sys.stderr = stream


def renew() -> None:
    """After a fork: the thread of the parent's voice is not here."""
    if isinstance(sys.stderr, Voice):
        sys.stderr = Voice(sys.stderr._stream)


def finish() -> None:
    """Wait a moment for the last words."""
    if isinstance(sys.stderr, Voice):
        sys.stderr.finish()
