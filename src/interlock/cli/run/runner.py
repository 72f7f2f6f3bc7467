"""The runner: gets the lock, has the command run under it, gives the lock back and an exit code.

Invariants: the lock is given back only when the command has ended by itself, or nothing of it is left; the exit code is the
command's own only if the lock was held from its start to its end.
"""

from __future__ import annotations

import os
import signal

from ...api.client import Client, Lease
from ...core import checks
from ...core.shown import shown
from ...errors import AcquireTimeout, InterlockError, LeaseLost, Unavailable, UsageError
from ...runtime.base import now
from .. import exits
from . import tree
from .channel import DYING
from .link import Link
from .options import Options
from .signals import Interrupted, Signals
from .watch import Ending, Watch

_ENOUGH = frozenset((signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))  # after these nothing is started again
_STANDBY_PAUSE = 1.0, 30.0  # between two tries while the store is away: first, longest


class Runner:
    """One run, from the wait for the lock to the exit code."""

    def __init__(self, options: Options, supervisor: Link, signals: Signals) -> None:
        self._options = options
        self._supervisor = supervisor
        self._signals = signals
        self.key = 0  # see `Ending`

    def run(self) -> int:
        """The exit code. Raises Unavailable when the store does not answer, UsageError for a URL that cannot work."""
        with Client(self._options.url) as client:
            if client.address.startswith("memory:"):
                raise UsageError("memory:// lives in one process, so nobody else would see the lock")
            if self._waits_for_itself(client):
                self._say(f"{self._options.name} is held by the very run that this one is part of: it would wait for itself")
                return exits.USAGE
            self._supervisor.await_ready(self._signals)
            while True:
                lease = None  # lives as long as the client: one that is left to expire on purpose was not dropped
                try:
                    lease = self._acquire(client)
                    self._signals.hand_on()
                except AcquireTimeout as refused:
                    return self._busy(refused)
                except Interrupted:
                    if lease is not None:
                        self._part_with(lease)
                    raise
                began = now()
                watch = Watch(self._options, self._supervisor, self._signals, lease, self._say)
                try:
                    ending = watch.run()
                except BaseException:
                    self._break_off(lease)
                    raise
                code = self._settle(lease, ending, watch.cause(), began + self._options.at_least)
                told_to_end = _ENOUGH & {*watch.handed_on, *self._signals.answer()}
                if code != exits.LOST or not self._options.standby or ending.final or told_to_end:
                    self.key = ending.key
                    return code
                self._signals.end_us()

    def _say(self, message: str) -> None:
        if not self._options.quiet:
            exits.complain(message, exits.OK)

    def _waits_for_itself(self, client: Client) -> bool:
        """Inside of `interlock run NAME`, another one with the same name would wait for itself, for ever."""
        name, outer = os.environ.get("INTERLOCK_LOCK"), os.environ.get("INTERLOCK_OWNER")
        if self._options.timeout is not None or self._options.standby or name != self._options.name or not outer:
            return False
        return client.inspect(name).owner.partition(" ")[0] == outer

    def _acquire(self, client: Client) -> Lease:
        lock = client.lock(
            self._options.name,
            ttl=self._options.ttl,
            timeout=self._options.timeout,
            max_hold=self._options.max_hold,
            lock_delay=self._options.lock_delay,
            note=self._options.reason,
            on_lost=lambda _: self._signals.ring(),
        )
        pause, longest = _STANDBY_PAUSE
        away = False
        while True:
            try:
                if self._signals.came:
                    raise Interrupted(self._signals.came)
                lease = lock.acquire()  # a signal raises inside of it, and not between it and the next line: see `Signals`
                try:
                    if lease.ttl < self._options.ttl:  # after a wait the first grant is a short one: too short for a grace
                        lease.extend()
                except Unavailable as error:  # the answer is lost: the store may have it for the whole ttl
                    left = "it was given back" if self._give_back(lease) else self._left_behind
                    words = f"{error.backend} did not confirm for how long {lease.name} is held; {left}"
                    raise Unavailable(words, backend=error.backend, cause=error.cause) from error
                except BaseException:  # a signal: likewise
                    self._part_with(lease)
                    raise
                return lease
            except LeaseLost:
                continue
            except Unavailable as error:
                if not self._options.standby:
                    raise
                if not away:
                    self._say(f"{error}. Standing by until it is back")
                    away = True
            self._signals.rest(pause)
            pause = min(pause * 2, longest)

    @property
    def _left_behind(self) -> str:
        return f"it may stay locked for up to {self._options.ttl:g} s"

    def _part_with(self, lease: Lease) -> None:
        """Give back what was granted and is not used, and say so if that fails."""
        if not self._give_back(lease):
            self._say(f"{lease.name} could not be given back; {self._left_behind}")

    def _give_back(self, lease: Lease) -> bool:
        """Something else has gone wrong and will be told; if this does as well, the lock ends by itself. Whether it did not."""
        try:
            lease.release()
        except InterlockError:
            return False
        return True

    def _break_off(self, lease: Lease) -> None:
        """We cannot go on. The supervisor ends the command, or we do; then the lock can be given back."""
        if self._supervisor.close() or (self._options.on_lost != "warn" and tree.kill(0, {}, DYING)):
            self._give_back(lease)
        else:
            self._say(f"{lease.name} is not given back, because something of the command may still run. It ends by itself")

    def _busy(self, refused: AcquireTimeout) -> int:
        if not self._options.silent_if_busy:
            waited = f"; waited {refused.waited:.1f} s" if self._options.timeout else ""
            self._say(f"{self._options.name} is held by {shown(refused.owner) or 'a client that is not interlock'}{waited}")
        return self._options.busy

    def _settle(self, lease: Lease, ending: Ending, cause: str, not_before: float) -> int:
        """Give the lock back, or leave it shut until `not_before`. The exit code."""
        name = self._options.name
        if not ending.sure:
            pids = ", ".join(map(str, ending.survivors)) or "some that cannot be seen from here"
            self._say(f"{name} is not given back, because these processes could not be killed: {pids}. It ends by itself")
            return exits.LOST
        if ending.stopped or lease.lost:
            self._give_back(lease)  # if it was stopped early enough, the next one need not wait
            if not ending.ran:
                self._say(f"lost {name} ({cause}) before the command was started")
            elif self._options.on_lost != "warn":
                self._say(f"lost {name} ({cause}); the command was stopped")
            return exits.LOST
        rest = not_before - now()
        try:
            if ending.ran and rest >= checks.MIN_TTL:
                lease.extend(rest)
            elif not lease.release():
                lease.check()
        except Unavailable as error:
            self._say(f"the command has ended; {name} could not be given back and ends by itself: {error}")
        except InterlockError as error:
            self._say(f"{name} was lost before the command ended: {error}")
            return exits.LOST
        return ending.code
