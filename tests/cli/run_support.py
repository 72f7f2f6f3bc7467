"""What the tests of `interlock run` share: runs in the background, processes to look at, terminals to type on."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from .support import COMMAND, environment

PATIENCE = float(os.environ.get("INTERLOCK_PATIENCE", "30"))  # never a promise: how long a test waits for what must come

# Writes its process id and a CLOCK_MONOTONIC stamp every few milliseconds, and so does a grandchild in a session of its own.
# Deaf to SIGTERM, so that only SIGKILL ends it. Arguments: the file of the command, the file of the grandchild.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    path = sys.argv[2]
with open(path, "w", buffering=1) as file:
    file.write(f"{os.getpid()}\\n")
    end = time.monotonic() + 100  # so that a test that fails leaves nothing for long
    while time.monotonic() < end:
        file.write(f"{time.monotonic():.6f}\\n")
        time.sleep(0.003)
"""

# Says which of the signals it was sent arrive, and ends with code 4 at SIGTERM. Argument: a file to make when it is ready.
POLITE = """
import signal, sys
def heard(number, _):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(4)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTERM):
    signal.signal(number, heard)
with open(sys.argv[1], "w") as file:
    file.write("ready\\n")
while True:
    signal.pause()
"""

# Become the command that follows: with all signals as a login shell has them, although the tests may be run by `nohup` or in
# the background of a script; and with the terminal at stdin as its own.
PLAIN = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
ON_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0){PLAIN}"


def until(happened: Callable[[], object], what: str = "it") -> None:
    """Wait until `happened()` is true."""
    give_up = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < give_up, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.01)


def state(pid: int) -> str:
    """The letter that /proc has for it: T is stopped, Z waits to be buried, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be buried does not."""
    return state(pid) not in "ZX"


def stamps(path: Path) -> tuple[int, list[float]]:
    """The process id that a STUBBORN child has written, and its stamps. The last line may be half a line."""
    pid, *times = path.read_text().splitlines()
    return int(pid), [float(line) for line in times if len(line.partition(".")[2]) == 6]


def written(path: Path) -> Callable[[], bool]:
    """For `until`: the file is there and has a whole line in it (a STUBBORN one: a stamp, too)."""
    return lambda: path.exists() and path.read_text().count("\n") >= (2 if path.suffix == ".stamps" else 1)


def changed(statements: str) -> tuple[str, ...]:
    """The command line after these Python statements: to have it fail where the system cannot be made to."""
    script = f"import sys; from interlock.cli.main import main\n{statements}\nsys.exit(main(sys.argv[1:]))"
    return sys.executable, "-c", script


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that nobody reads and that has no room left: the end to read from, the end to write to, which blocks."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"." * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b".")
        os.set_blocking(write, True)
        yield read, write
    finally:
        os.close(read)
        os.close(write)


class Background:
    """`interlock run …` under way, in a session of its own. At the end of the block it and all below it is dead."""

    def __init__(
        self,
        *arguments: str,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        program: Sequence[str] = COMMAND,
        **env: str,
    ) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", PLAIN, *program, "run", *arguments],
            env=environment(**env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self.pid = self._popen.pid

    @property
    def supervisor(self) -> int:
        """The process id of the supervisor, once there is one."""
        until(lambda: children(self.pid), "the supervisor")
        return children(self.pid)[0]

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Wait for it: exit code, stdout, stderr."""
        out, err = self._popen.communicate(timeout=PATIENCE)
        return self._popen.returncode, (out or b"").decode(), (err or b"").decode()

    def running(self) -> bool:
        return self._popen.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        everything = [self.pid, *descendants(self.pid)] if self.running() else []
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.communicate(timeout=PATIENCE)


class Screen:
    """A program on a terminal of its own: type on it, read what it shows."""

    def __init__(self, *command: str, **env: str) -> None:
        self._ours, theirs = os.openpty()
        self._path = os.ttyname(theirs)
        self._popen = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *command],
            env=environment(**env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.pid = self._popen.pid
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def stopped(self) -> bool:
        """Whether Ctrl-S was typed and has taken effect: nothing can be written."""
        terminal = os.open(self._path, os.O_RDWR | os.O_NOCTTY)
        try:
            return not select.select([], [terminal], [], 0)[1]
        finally:
            os.close(terminal)

    def shows(self, text: str) -> bool:
        """Whether the program has written this by now."""
        with contextlib.suppress(BlockingIOError, OSError):  # EIO: everybody has closed it
            while piece := os.read(self._ours, 65536):
                self.text += piece.decode()
        return text in self.text

    def wait_for(self, text: str) -> None:
        until(lambda: self.shows(text), f"{text!r} on the screen, which shows {self.text!r}")

    def end(self) -> int:
        until(lambda: (self.shows("\0"), self._popen.poll())[1] is not None, f"the end; the screen shows {self.text!r}")
        self.shows("\0")
        return self._popen.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        everything = [self.pid, *descendants(self.pid)] if self._popen.poll() is None else []
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait(PATIENCE)
        os.close(self._ours)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)
