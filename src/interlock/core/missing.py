"""Extensions on their way, and those whose answers are missing: how much of a later answer may be believed.

An extend(2) without an answer may reach the store after an extend(60) that was confirmed, if they went down different
connections. Then the store lets go after 2 seconds. So no more than 2 seconds are believed until that cannot happen any more:
because the later one went down the same connection, or because LATEST seconds have passed.

Rules of the file: pure. Moments are arguments. Threads share it: single operations on a list are atomic.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

LATEST = 5.0  # seconds for which a request may still arrive, once it was given up: as long as transports reckon with it


class Flight:
    """An extend on its way: of which name, for how long it asks, and how much of that may be believed when it is granted."""

    __slots__ = ("believed", "name", "ttl")

    def __init__(self, name: str, ttl: float) -> None:
        self.name = name
        self.ttl = self.believed = ttl


class Missing(NamedTuple):
    """An extension for `ttl` that was given up at that moment. `followed`: requests that come later go down its path."""

    ttl: float
    at: float
    followed: bool


class MissingAnswers:
    """Those of one lease."""

    __slots__ = ("_some",)

    def __init__(self) -> None:
        self._some: list[Missing] = []

    def add(self, ttl: float, at: float, followed: bool) -> None:
        """One more. The latest of each kind counts: those of a store that is away are many."""
        self._some.append(Missing(ttl, at, followed))
        for older in [some for some in list(self._some) if some.ttl == ttl and some.followed == followed][:-1]:
            self._forget(older)

    def believed(self, ttl: float, sent_at: float, settled: bool) -> float:
        """How much may be believed of a confirmed `ttl` that was asked for at `sent_at`. What it has overtaken is forgotten.

        `settled`: it went down the path of all that are followed and were given up before it was sent.
        """
        for some in list(self._some):
            if sent_at >= some.at + LATEST or (settled and some.followed and sent_at >= some.at):
                self._forget(some)
            else:
                ttl = min(ttl, some.ttl)
        return ttl

    def _forget(self, some: Missing) -> None:
        with suppress(ValueError):  # another thread did
            self._some.remove(some)
