"""Connections for threads are opened by threads of their own.

To look a name up, or to ask for credentials, cannot be bounded. The caller has alarms to give, or other nodes to ask,
meanwhile. When it stops waiting, a connection that comes later is handed to `late`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...runtime.base import by_a_handler, now
from ...runtime.blocking import ThreadBell
from .connect import Recipe
from .refusals import silent
from .wire import Late, Wire

CROWD = 16  # connections that wait for a node; with more of them it counts as silent, however short they have waited
# (outside of a quorum many threads may come at once: only those that are overdue count)
MOMENT = 0.02  # seconds that others wait for a node of a quorum to be connected to
GRACE = 0.05  # for a connection that is late by as much as it takes to say so


class Connecting:
    """A connection that a thread opens. It is waited for a moment; from then on others have their turns meanwhile."""

    def __init__(self, connect: Callable[[float], Wire], until: float, late: Callable[[Wire], None]) -> None:
        self.since = now()
        self._connect, self._until = connect, until
        self._late = late  # called with a connection that nobody waits for any more
        self._guard = threading.Lock()
        self._outcome: Wire | BaseException | None = None
        self._left = False
        self._bell = ThreadBell()
        self.thread = threading.Thread(target=self._work, name="interlock-connecting", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            outcome: Wire | BaseException = self._connect(self._until)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            outcome = error
        with self._guard:
            self._outcome, left = outcome, self._left
        self._bell.ring()
        if left and isinstance(outcome, Wire):
            self._late(outcome)

    def stuck(self) -> bool:
        """Whether it is about something that does not end in time, as the look-up of a name may be."""
        return now() > self._until + GRACE

    async def wire(self) -> Wire:
        """What has come of it. Raises what the connecting raised, or Late."""
        try:
            while self._outcome is None:
                if not await self._bell.wait(self._until + GRACE) and self._outcome is None:
                    raise Late
        except BaseException:
            with self._guard:
                self._left, outcome = True, self._outcome
            if isinstance(outcome, Wire):
                self._late(outcome)
            raise
        finally:
            self._bell.close()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class Connector:
    """Opens the connections to one node."""

    def __init__(self, recipe: Recipe, beside: bool) -> None:
        self.beside = beside  # other nodes are asked at the same time
        self.under_way: list[Connecting] = []
        self._recipe = recipe
        self._guard = threading.RLock()  # a signal handler may come back in

    async def connect(self, until: float, late: Callable[[Wire], None]) -> Wire:
        """A new connection. Raises Unavailable, or whatever interrupts it."""
        try:
            with self._guard:
                under_way = self._alive()
                if sum(self.beside or one.stuck() for one in under_way) > CROWD:
                    raise silent(self._recipe.address)
                under_way.append(mine := Connecting(self._open, until, late))
        except RuntimeError:  # no more threads, or the interpreter ends
            return self._open(until)
        except OSError as error:  # no descriptor is left for its bell
            if by_a_handler(error) or (ours := self._recipe.explain(error)) is None:
                raise
            raise ours from error
        if (
            self.beside and now() - under_way[0].since <= MOMENT
        ):  # else one was waited for: the node is slow, or does not answer
            mine.thread.join(MOMENT)
        try:
            return await mine.wire()
        except Late as error:
            raise silent(self._recipe.address) from error

    def waiting(self) -> list[float]:
        """Since when connections have been under way. Costs nothing when there are none."""
        if not self.under_way:
            return []
        with self._guard:
            return [one.since for one in self._alive()]

    def join(self, until: float) -> None:
        """Wait for those under way: they may still have something to send."""
        for one in self.under_way:
            one.thread.join(max(until - now(), 0.0))

    def _alive(self) -> list[Connecting]:
        """Those under way. The others are dropped."""
        self.under_way = [one for one in self.under_way if one.thread.is_alive()]
        return self.under_way

    def _open(self, until: float) -> Wire:
        connection = self._recipe.make(until)
        try:
            connection.connect()
            return Wire(connection)
        except BaseException as error:
            connection.disconnect()
            if (ours := self._recipe.explain(error)) is not None:
                raise ours from error
            raise
