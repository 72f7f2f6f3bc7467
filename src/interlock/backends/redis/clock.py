"""What the server's clock reads at least, without asking it: a hand-over needs to say when it was."""

from __future__ import annotations

from collections.abc import Callable

from ...core.lease import DRIFT_RATE

MICROS = (1 - DRIFT_RATE) * 1_000_000  # that pass there at least while a second passes here
FRESH = 10.0  # seconds for which what the server said is relied on: it grows inexact, and a clock may be set back


class ServerClock:
    """The last reading that came with a reply, and when we had it in hand.

    The reading was taken before the reply arrived. Since then at least as much time has passed there as here, less the drift.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: tuple[int, float, int] = (0, -FRESH, 0)

    def told(self, micros: int, age: int) -> None:
        """A reply that has just come in says so; 0: it does not say.

        `age` is the transport's: a new connection may lead to another server.
        """
        if micros:
            self._told = age, self._now(), micros

    def at_least(self, age: int) -> int:
        """Microseconds that the server's clock has certainly reached, or 0 if nobody knows."""
        known, at, micros = self._told
        passed = self._now() - at
        return micros + int(passed * MICROS) if known == age and 0 <= passed < FRESH else 0
