"""What the runner does while the command runs: pass on deadlines and signals, listen to the supervisor, tell the user."""

from __future__ import annotations

import math
import os
import select
import signal
from collections.abc import Callable
from typing import NamedTuple

from ...api.client import Lease
from ...core.lease import drift, margin
from ...runtime.base import World, now
from .. import exits
from . import tree
from .channel import DYING, Message
from .command import Short, explain, short_of
from .link import Link
from .options import Options
from .signals import ENDING, Signals
from .terminal import Terminal

_SLOWEST_BEAT, _FASTEST_BEAT = 5.0, 0.005
_KILLING = 0.02  # between two rounds, while the supervisor does not say that it is done
_SAME = 0.001  # two deadlines that differ by less
_KEYS = (signal.SIGINT, signal.SIGQUIT)


class Ending(NamedTuple):
    """How the command ended."""

    code: int
    ran: bool = True
    stopped: bool = False  # by us, because of the lock
    sure: bool = True  # nothing is left of it, or it ended by itself
    survivors: tuple[int, ...] = ()  # processes that could not be killed, as far as they can be seen
    key: int = 0  # the signal of a Ctrl-C or Ctrl-\\ that ended it, of which our own group knows nothing
    supervisor_gone: bool = False

    @property
    def final(self) -> bool:
        """Whether nothing can be started again."""
        return self.supervisor_gone or not self.sure


_NEVER_STARTED = Ending(exits.LOST, ran=False, stopped=True)


def beat(ttl: float, grace: float) -> float:
    """How often to look whether the lease was renewed.

    It is renewed when a third of what is usable is over, and the supervisor must hear of that before it would send SIGTERM:
    half of the time in between is for the store's answer, half for us.
    """
    usable = ttl - drift(ttl)
    return min(max((usable * 2 / 3 - margin(ttl) - grace) / 2, _FASTEST_BEAT), _SLOWEST_BEAT)


class Watch:
    """One life of the command."""

    def __init__(self, options: Options, supervisor: Link, signals: Signals, lease: Lease, say: Callable[[str], None]) -> None:
        self._options = options
        self._supervisor = supervisor
        self._signals = signals
        self._lease = lease
        self._say = say
        self._began = now()
        self._group = 0
        self._lost = self._kills = False
        self._give_up = math.inf  # waiting for the supervisor
        self.handed_on: set[int] = set()  # the signals

    def run(self) -> Ending:
        """Have the command run to its end. It is not started if the lock was lost meanwhile: we may have been stopped."""
        channel = self._supervisor.channel
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        poll.register(channel, select.POLLIN)
        pace = beat(self._options.ttl, self._options.grace)
        said = self._deadline()
        if not self._lease.remaining():  # it is lost
            return _NEVER_STARTED
        channel.send("start", self._variables(), said)
        while not channel.over and now() < self._give_up:
            pause = _KILLING if self._kills else pace if self._lost else min(pace, self._lease.remaining())
            poll.poll(math.ceil(pause * 1000))
            for number in self._signals.answer():
                self._forward(number)
            moment = self._deadline()
            if moment != said and not abs(moment - said) < _SAME:  # both may be infinite
                channel.send("deadline", moment, replaces=True)
                said = moment
            channel.flush()
            self._supervisor.wake()
            for report in channel.receive():
                if ending := self._heard(report):
                    return ending
            if self._lease.lost:
                self._stop()
        return self._bury()

    def cause(self) -> str:
        """Of the loss that has come or is near, in a few words."""
        longest = self._options.max_hold
        if longest is not None and now() > self._began + longest - self._options.ttl:
            return "--max-hold is over"
        return self._lease.reason or "not renewed in time"

    def _deadline(self) -> float:
        """When the command must be gone. The clock is read first: if we are held up in between, the moment is too early."""
        moment = now()
        return math.inf if self._options.on_lost == "warn" else moment + self._lease.remaining()

    def _variables(self) -> dict[str, str]:
        return {
            "INTERLOCK_HELD": "1",
            "INTERLOCK_LOCK": self._lease.name,
            "INTERLOCK_FENCE": str(self._lease.fence),
            "INTERLOCK_OWNER": World().owner(),
            "INTERLOCK_TTL_MS": str(round(self._options.ttl * 1000)),
        }

    def _forward(self, number: int) -> None:
        if number == signal.SIGTSTP:  # Ctrl-Z, where the command does not have the terminal
            self._stopped(number)
        else:
            self.handed_on.add(number)
            self._supervisor.channel.send("signal", number)
            self._supervisor.wake(at_once=number in ENDING)

    def _heard(self, report: Message) -> Ending | None:
        match report:
            case ["started", pid]:
                self._group = pid
            case ["stopped", number]:
                self._stopped(number)
            case ["told"]:
                self._say(f"{self._lease.name} is about to be lost ({self.cause()}); the command was sent SIGTERM")
            case ["late"]:
                return _NEVER_STARTED
            case ["failed", path, number] if not short_of(number):
                trouble = explain(self._options.command[0], path, number)
                self._say(str(trouble))
                return Ending(trouble.code, ran=False)
            case ["short" | "failed", *_, number]:
                self._say(str(Short(short_of(number) or os.strerror(number))))
                return Ending(exits.SHORT, ran=False)
            case ["ended", status, told, sure, survivors, had_terminal]:
                code = _code(status)
                number = code - 128
                key = number if had_terminal and number in _KEYS and number not in self.handed_on else 0
                return Ending(code, True, told, sure, tuple(survivors), key)
        return None

    def _stopped(self, number: int) -> None:
        name = self._lease.name
        if number == signal.SIGTSTP:
            self._say(f"Ctrl-Z would block everybody who waits for {name}; the command goes on. Ctrl-C ends it")
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            self._say(f"the command that holds {name} wants the terminal and stands still; bring it to the foreground (fg)")
        else:
            self._say(f"the command that holds {name} was stopped ({signal.Signals(number).name}); the lock stays held")

    def _stop(self) -> None:
        """The supervisor has killed, or does so now. If it cannot, because it is stopped, we do: again and again, for what was
        started meanwhile."""
        first, self._lost = not self._lost, True
        if self._options.on_lost == "warn":
            if first:
                self._say(f"lost {self._lease.name} ({self.cause()}); the command goes on (--on-lost warn)")
            return
        self._kills = True
        tree.tell(self._group, signal.SIGKILL, root=self._supervisor.pid)
        if first:
            self._give_up = now() + DYING + 1.0

    def _bury(self) -> Ending:
        """The supervisor is dead, or deaf. The kernel has killed the command; what else was below it is below us."""
        statuses: dict[int, int] = {}
        sure = tree.kill(self._group, statuses, DYING)
        Terminal().take_back(self._group)
        self._say(f"the supervisor of {self._lease.name} is gone, and the command with it")
        code = _code(statuses.get(self._group, signal.SIGKILL))
        return Ending(code, sure=sure, survivors=() if sure else tuple(tree.below()), supervisor_gone=True)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
