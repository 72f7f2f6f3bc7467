"""The supervisor: parent of the command, enforces the deadline. Forked early, talks to no store.

Rules of the file:

1. *The deadline is enforced here,* on this process's own clock, from the last deadline that the runner passed on. Nothing
   that befalls the runner (kill -9, SIGSTOP, a hanging store) makes the command live longer.
2. *What has arrived is read before the clock is looked at,* so a supervisor that was not scheduled for a while does not stop a
   command whose lease was renewed meanwhile.
3. *Told to stop, the tree counts as ended when nothing is left of it.* Else the command counts, and what it leaves in the
   background is left alone.
4. The command inherits what we inherited: descriptors, signal mask, ignored signals, standard streams.
5. *Act first, speak afterwards, never wait.* The one place where this process waits is `poll`, until the next moment at which
   there is something to do. It waits neither for the runner, nor for a program to be loaded, nor for a reader of stderr.

Messages   from the runner: ["start", {variables}, deadline] ["deadline", moment] ["signal", number]
           to the runner:   ["ready"] ["late"] ["short", errno] ["started", pid] ["failed", path, errno] ["stopped", signal]
                            ["told"] ["ended", status, told to stop, nothing is left, [survivors], had the terminal]
"""

from __future__ import annotations

import math
import os
import select
import signal
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from ...runtime.base import now
from .. import exits
from . import tree, voice
from .channel import DYING, Channel, Message, Orders
from .signals import Bell, handle, nothing
from .start import RESET, Inherited, start
from .terminal import Terminal

_NAP = 0.5  # poll sleeps on a clock that stands still while the machine does, so look up at least this often


def serve(orders: Orders, runner: Channel, mask: Iterable[int]) -> NoReturn:
    """Be the supervisor of `runner`. In a process of its own, which ends here."""
    supervisor = Supervisor(orders, runner, mask)
    try:
        try:
            supervisor.prepare()
        except OSError as error:
            runner.send("short", error.errno)
            supervisor.leave(exits.SHORT)
        supervisor.serve()
    except BaseException:  # noqa: BLE001 - a bug; nothing is above us
        supervisor.end_everything()
        traceback.print_exc()
        supervisor.leave(exits.BUG)
    finally:
        os._exit(exits.BUG)


class Supervisor:
    """One process, one command at a time."""

    def __init__(self, orders: Orders, runner: Channel, mask: Iterable[int]) -> None:
        self._orders = orders
        self._runner = runner
        self._terminal = Terminal()  # while we are in the runner's group
        self._command = 0  # the process id and the group
        self._loading = -1  # a pipe that ends when the program runs, or tells why it does not; -1: that is known
        self._deadline = math.inf
        self._status = 0
        self._wants_terminal = False
        self._told = False  # to stop, by us
        self._kill_by = math.inf  # once it was told
        self._signals = Inherited(mask, {number for number in RESET if signal.getsignal(number) is signal.SIG_IGN})

    def prepare(self) -> None:
        """Get all that is needed. Raises OSError if this system is short of it."""
        os.setpgid(0, 0)  # what is sent to the runner's group is not for us
        tree.adopt()
        self._bell = Bell()
        handle(RESET, nothing)
        signal.signal(signal.SIGCHLD, nothing)  # were it ignored, there would be no exit status
        signal.pthread_sigmask(signal.SIG_SETMASK, self._signals.mask)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._poll.register(self._runner, select.POLLIN)
        tree.keep_descriptors()
        self._runner.send("ready")

    def serve(self) -> NoReturn:
        """Until the runner is gone and nothing is left to do."""
        alone = False
        while True:
            wake_at = min(self._kill_at(), self._term_at()) if self._command else math.inf
            self._poll.poll(math.ceil(max(0.0, min(_NAP, wake_at - now())) * 1000))
            self._bell.answer()
            messages = self._runner.receive()
            for number, message in enumerate(messages, 1):
                self._obey(message, messages[number:])
            self._look()
            if self._runner.over and not alone:
                alone = True
                self._poll.unregister(self._runner)
                self._orphaned()
            self._mind_the_time()
            if self._command and self._wants_terminal:
                self._give_terminal()
            if self._runner.over and not self._command:
                self.leave(exits.OK)
            self._runner.flush()

    def leave(self, code: int) -> NoReturn:
        """End this process, once its words are said or a moment has passed."""
        with suppress(BaseException):
            voice.finish()
        os._exit(code)

    def end_everything(self) -> None:
        """Kill all that is below us, come what may."""
        with suppress(BaseException):
            tree.kill(self._command, {}, DYING)

    # What the runner wants

    def _obey(self, message: Message, later: Sequence[Message]) -> None:
        """`later`: what has arrived after it."""
        match message:
            case ["start", variables, deadline]:
                self._deadline = next((moment for kind, moment, *_ in reversed(later) if kind == "deadline"), deadline)
                self._told, self._kill_by, self._wants_terminal = False, math.inf, False
                if self._runner.over or now() >= self._kill_at():  # we were stopped or starved, and the lock is lost
                    self._runner.send("late")
                else:
                    self._start(variables)
            case ["deadline", moment]:
                self._deadline = moment
            case ["signal", number] if self._command:
                if number == signal.SIGCONT:
                    self._terminal.give(self._command)  # perhaps by `fg`
                self._signal(number)

    def _signal(self, number: int) -> None:
        """To the command's group, whose number is the command's until it is buried."""
        with suppress(ProcessLookupError, PermissionError):  # all of it is gone, or runs as another user
            os.killpg(self._command, number)

    def _start(self, variables: dict[str, str]) -> None:
        try:
            self._command, self._loading = start(self._orders, {**os.environ, **variables}, self._signals, self._terminal)
        except OSError as error:
            self._runner.send("short", error.errno)
            return
        self._status = signal.SIGKILL  # if it survives even that
        self._poll.register(self._loading, select.POLLIN)

    # What becomes of the command

    def _look(self) -> None:
        if self._loading >= 0:
            self._look_whether_it_runs()
        while self._command:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            if found.si_pid != self._command:  # an orphan
                os.waitpid(found.si_pid, os.WNOHANG | os.WUNTRACED)
            elif found.si_code == os.CLD_STOPPED:
                os.waitid(os.P_PID, self._command, os.WSTOPPED | os.WNOHANG)
                self._stopped(found.si_status)
            elif self._told:  # not buried before the rest has ended as well, or is killed
                self._look_at_the_rest()
                return
            else:
                self._status = os.waitpid(self._command, 0)[1]
                self._ended(True)

    def _look_at_the_rest(self) -> None:
        statuses: dict[int, int] = {}
        nothing_left = tree.bury(self._command, statuses)
        self._status = statuses.get(self._command, self._status)
        if nothing_left:
            self._ended(True)
        elif self._command in statuses:  # hidden from us, and not in reach of `tree.tell` by the number of a group any more
            self._kill()

    def _look_whether_it_runs(self) -> None:
        if not select.select([self._loading], [], [], 0)[0]:
            return
        trouble = os.read(self._loading, 16)
        self._loaded()
        if not trouble:
            self._runner.send("started", self._command)
            return
        os.kill(self._command, signal.SIGKILL)  # it is about to end by itself
        os.waitpid(self._command, 0)
        self._terminal.take_back(self._command)
        self._command = 0
        self._runner.send("failed", self._orders.path, int(trouble))

    def _loaded(self) -> None:
        if self._loading >= 0:
            self._poll.unregister(self._loading)
            os.close(self._loading)
            self._loading = -1

    def _stopped(self, number: int) -> None:
        """A holder that stands still keeps all others waiting. Ctrl-Z is undone; the other ways are meant."""
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

    def _ended(self, sure: bool) -> None:
        """`sure`: nothing is left, of what counts."""
        self._loaded()
        had_terminal = self._terminal.take_back(self._command)
        self._runner.send("ended", self._status, self._told, sure, [] if sure else tree.below(), had_terminal)
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
        self._ended(sure)

    def _orphaned(self) -> None:
        """The runner was killed: the lease is not renewed any more, and only we are left to say so."""
        if not self._command:
            return
        lost = self._orders.on_lost
        if lost == "kill":
            self._kill()
        elif lost == "term" and not self._told:
            self._tell()
        if not self._orders.quiet:
            what = {"term": "is being stopped", "kill": "was killed", "warn": "goes on (--on-lost warn)"}[lost]
            exits.complain(f"the runner that held {self._orders.name} is gone, so its command {what}", exits.OK)
