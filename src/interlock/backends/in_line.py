"""Which tokens may stand in a node's line, and when that is forgotten.

A token is noted from before its first claim with a place is sent until it is known to be out of the line. So what takes it back
also takes it out of the line, answered or not. It is forgotten
- by an answer: it was granted, released, or passed on
- by an undo, answered or not
- OVERDUE seconds after it was asked to leave without an answer, or after it has the lock no more (`prune`): a lease that was
  left to expire is never released. One that only waits stays, however long that takes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from . import unanswered

V = TypeVar("V")


class InLine(dict[str, V]):
    """By token: how it stands in line."""

    def __init__(self) -> None:
        super().__init__()
        # Tokens that were told that they stand there: when that was asked, and the highest fence by then. What is announced to
        # them with a higher one was granted later.
        self.told: dict[str, tuple[float, int]] = {}
        self._ending: dict[str, float] = {}  # tokens that wait no more: when they were last known to be wanted
        self._look_again = 0.0

    def stands(self, token: str, how: V) -> None:
        """It is about to ask for a place."""
        self.setdefault(token, how)
        self._ending.pop(token, None)

    def leaves(self, token: str, now: float) -> None:
        """It is asked to leave."""
        if token in self:
            self._ending[token] = now

    def left(self, token: str) -> None:
        """It stands in no line any more, or nothing will be asked for it again."""
        self.pop(token, None)
        self.told.pop(token, None)
        self._ending.pop(token, None)

    def prune(self, now: float, is_live: Callable[[str], bool]) -> None:
        """Forget those that nothing more will be asked for."""
        if now < self._look_again:
            return
        self._look_again = now + unanswered.OVERDUE / 2
        for token in list(self):
            if is_live(token):
                self._ending[token] = now
            elif now - self._ending.get(token, now) >= unanswered.OVERDUE:
                self.left(token)
