"""The warden: parent of the command, keeper of the deadline. Forked early, single-threaded, talks to no store.

Rules of the file:

1. *The deadline is enforced here,* on this process's own clock, from the last deadline that the runner passed on. Nothing
   that befalls the runner (kill -9, SIGSTOP, a hanging store) makes the command live longer.
2. *What has arrived is read before the clock is looked at,* so a warden that was not scheduled for a while does not stop a
   command whose lease was renewed meanwhile.
3. *Told to stop, the tree counts as ended when nothing is left of it.* Else the command counts, and what it leaves in the
   background is left alone.
4. The command inherits what we inherited: descriptors, signal mask, ignored signals, standard streams.

Messages   from the runner: ["start", {variables}, deadline] ["deadline", moment] ["signal", number]
           to the runner:   ["started", pid] ["failed", path, errno] ["stopped", signal] ["told"]
                            ["ended", status, told to stop, [survivors], had the terminal]
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from ...runtime.base import now
from .. import exits
from . import tree
from .channel import Channel, Message
from .signals import HANDED_ON, Bell, handle, nothing
from .terminal import Terminal

_NAP = 0.5  # poll sleeps on a clock that stands still while the machine does, so look up at least this often
DYING = 5.0  # SIGKILL takes effect at once, but for a process that the kernel keeps in a disk or network wait
_RESET = (*HANDED_ON, signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Orders(NamedTuple):
    """What the warden is to do; known before it is forked."""

    name: str  # of the lock
    path: str
    argv: list[str]
    grace: float
    margin: float  # how long before the deadline a lease counts as lost: then everything is killed
    on_lost: str
    quiet: bool


class Link(NamedTuple):
    """The runner's side."""

    pid: int
    channel: Channel


def fork(orders: Orders) -> Link:
    """Start the warden. To be called before this process has a thread or a client."""
    ours, theirs = socket.socketpair()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until each side has its own handlers
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            Warden(orders, Channel(theirs), mask).serve()
        except BaseException:  # noqa: BLE001 - a bug; there is nobody above us
            traceback.print_exc()
        finally:
            os._exit(exits.BUG)
    theirs.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    tree.adopt()  # if the warden is killed, what was below it falls to us
    return Link(pid, Channel(ours))


class Warden:
    """One process, one command at a time."""

    def __init__(self, orders: Orders, runner: Channel, mask: Iterable[int]) -> None:
        self._orders = orders
        self._runner = runner
        self._mask = mask
        self._terminal = Terminal()
        self._command = 0  # the process id and the group
        self._deadline = math.inf
        self._status = 0
        self._wants_terminal = False
        self._told = False  # to stop, by us
        self._kill_by = math.inf  # once it was told
        self._ignored = {number for number in _RESET if signal.getsignal(number) is signal.SIG_IGN}

    def serve(self) -> NoReturn:
        """Until the runner is gone and nothing is left to do."""
        os.setpgid(0, 0)  # what is sent to the runner's group is not for us
        tree.adopt()
        bell = Bell()
        handle(_RESET, nothing)
        signal.signal(signal.SIGCHLD, nothing)  # were it ignored, nobody could tell how the command ended
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        poll.register(self._runner, select.POLLIN)
        alone = False
        while True:
            wake_at = min(self._kill_at(), self._term_at()) if self._command else math.inf
            poll.poll(math.ceil(max(0.0, min(_NAP, wake_at - now())) * 1000))
            bell.answer()
            for message in self._runner.receive():
                self._obey(message)
            self._look()
            if self._command and self._wants_terminal:
                self._give_terminal()
            if self._runner.over and not alone:
                if not self._command:
                    os._exit(exits.OK)
                alone = True
                poll.unregister(self._runner)
                self._orphaned()
            self._mind_the_time()

    # What the runner wants

    def _obey(self, message: Message) -> None:
        verb, *rest = message
        if verb == "start":
            variables, self._deadline = rest
            self._told, self._kill_by, self._wants_terminal = False, math.inf, False
            self._start(variables)
        elif verb == "deadline":
            (self._deadline,) = rest
        elif verb == "signal" and self._command:
            (number,) = rest
            if number == signal.SIGCONT:
                self._terminal.give(self._command)  # perhaps by `fg`
            self._signal(number)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # all of it is gone, or runs as another user
            os.killpg(self._command, number)

    def _start(self, variables: dict[str, str]) -> None:
        environment = {**os.environ, **variables}
        read, write = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        warden, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                tree.die_with(warden)
                self._terminal.give(os.getpid())
                self._restore_signals()
                os.execve(self._orders.path, self._orders.argv, environment)  # noqa: S606 - that is the point
            except OSError as error:
                os.write(write, str(error.errno).encode())
            finally:
                os._exit(exits.NOT_FOUND)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write)
        with open(read, "rb") as pipe:  # ends when the program runs
            trouble = pipe.read()
        if trouble:
            os.waitpid(pid, 0)
            self._terminal.take_back(pid)
            self._runner.send("failed", self._orders.path, int(trouble))
            return
        self._command, self._status = pid, signal.SIGKILL  # the status, if it survives even that
        self._runner.send("started", pid)

    def _restore_signals(self) -> None:
        """As they were when interlock was started; what Python itself changes, too."""
        signal.set_wakeup_fd(-1)
        for number in (*_RESET, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN if number in self._ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    # What becomes of the command

    def _look(self) -> None:
        while self._command:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:  # told to stop, and nothing is left
                self._ended([])
                return
            if not pid:
                return
            if pid != self._command:  # an orphan
                continue
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
                continue
            self._status = status
            if not self._told:
                self._ended([])

    def _stopped(self, number: int) -> None:
        """A holder that stands still keeps everybody waiting. Ctrl-Z is undone; the other ways are somebody's wish."""
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            self._wants_terminal = True
            if self._give_terminal():
                return
        if number == signal.SIGTSTP:
            self._signal(signal.SIGCONT)
        self._runner.send("stopped", number)

    def _give_terminal(self) -> bool:
        """What it stands still for. Looked at again and again: a shell's `fg` tells those only that were stopped."""
        if self._terminal.give(self._command, wanted=True):
            self._wants_terminal = False
            self._signal(signal.SIGCONT)
        return not self._wants_terminal

    def _ended(self, survivors: list[int]) -> None:
        had_terminal = self._terminal.take_back(self._command)
        self._runner.send("ended", self._status, self._told, survivors, had_terminal)
        if self._runner.over:
            os._exit(exits.OK)
        self._command = 0

    # How it is ended

    def _mind_the_time(self) -> None:
        if not self._command:
            return
        if now() >= self._kill_at():
            self._kill()
        elif now() >= self._term_at():
            self._tell()

    def _kill_at(self) -> float:
        return min(self._deadline - self._orders.margin, self._kill_by)

    def _term_at(self) -> float:
        return self._kill_at() - self._orders.grace if self._orders.on_lost == "term" and not self._told else math.inf

    def _tell(self) -> None:
        """Ask everything below us to stop; it has `grace` for that, or less if the lease ends before."""
        self._told = True
        self._kill_by = now() + self._orders.grace
        tree.tell(self._command, signal.SIGTERM)
        tree.tell(self._command, signal.SIGCONT)  # who stands still hears nothing
        self._runner.send("told")

    def _kill(self) -> None:
        self._told = True
        statuses: dict[int, int] = {}
        sure = tree.kill(self._command, statuses, DYING)
        self._status = statuses.get(self._command, self._status)
        self._ended([] if sure else tree.below())

    def _orphaned(self) -> None:
        """The runner was killed: nobody renews the lease any more, and nobody else is left to say so."""
        what = {"term": "is being stopped", "kill": "was killed", "warn": "goes on (--on-lost warn)"}[self._orders.on_lost]
        if not self._orders.quiet:
            exits.complain(f"the runner that held {self._orders.name} is gone, so its command {what}", exits.OK)
        if self._orders.on_lost == "kill":
            self._kill_by = now()
        elif self._orders.on_lost == "term" and not self._told:
            self._tell()
