"""Which verbs of one client are under way, so that `close` can wait for them and for their clean-ups.

Invariants
- A verb that may leave something in the store is on record (`busy`) from before it asks until its clean-up has ended. It is put
  down first and looks whether the client is closed afterwards; a close does it the other way round. So at least one of the two
  sees the other.
- At most one release of a lease is under way: the second waits for the first (`hold.release`).
- A verb is never waited for by the thread that runs it: a signal handler that closes, or releases, lies above it.

Rules of the file: bookkeeping only. Nothing here takes a lock: single operations on a dict and a list are atomic.
"""

from __future__ import annotations

import sys
from _thread import get_ident  # threading itself is forbidden to flows: it invites waiting
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ..runtime import forks
from ..runtime.base import Bell, Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPPING = f"{forks.__package__}.stepping"  # where `run` is, which steps every verb of a thread


class Subject(Protocol):
    """What a verb is about: a waiter, a hold or a `Visit`."""

    name: str
    ttl: float


class Visit:
    """The subject of a verb that has no other."""

    def __init__(self, name: str, ttl: float) -> None:
        self.name = name
        self.ttl = ttl


Mark = tuple[int]
"""Which thread it is that is busy, 0 in a loop. Each is an object of its own, which tells one verb from another."""


class Inside:
    """The verbs of one client."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.who: Callable[[], int] = get_ident if runtime.colour == "blocking" else lambda: 0
        self.disown()
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: what is under way is under way in the parent."""
        self.busy: dict[Subject, Mark] = {}
        self.bells: list[Bell] = []  # of those who wait until a verb has ended

    @contextmanager
    def visit(self, name: str, ttl: float) -> Iterator[None]:
        """A verb about `name`, from its first question to the end of its clean-up."""
        visit = Visit(name, ttl)
        try:
            self.busy[visit] = (self.who(),)
            yield
        finally:
            self.leave(visit)

    def leave(self, subject: Subject) -> None:
        """The verb is over, and what it had to clean up is."""
        self.busy.pop(subject, None)
        if self.bells:
            self.ring()

    def ring(self) -> None:
        """Somebody has left."""
        for bell in list(self.bells):
            bell.ring()

    async def wait(self, going_on: Callable[[], object], until: float) -> None:
        """Wait while `going_on`, which is asked whenever a verb ends; no longer than `until`."""
        bell = self._runtime.latch()
        self.bells.append(bell)
        try:
            while going_on() and self._runtime.now() < until:
                await bell.wait(until)
        finally:
            self.bells.remove(bell)

    def beneath(self) -> bool:
        """Whether the caller has interrupted a verb of its own thread: it is a signal handler.

        What this thread has on record and is not at is forgotten: an exception struck while it left.
        """
        mine = (self.who(),)
        if mine == (0,) or mine not in self.busy.values():
            return False
        stepped, frame = 0, sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            stepped += frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == STEPPING
        beneath = stepped > 1  # one of them steps the verb that asks
        if not beneath:
            for subject, mark in list(self.busy.items()):
                if mark == mine:
                    self.busy.pop(subject, None)
        return beneath
