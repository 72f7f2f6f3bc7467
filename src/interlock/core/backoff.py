"""How long to pause between two claims when the store has no way to ring a bell.

Exponential, capped, with jitter over the upper half, never past the moment when the holder's lease ends, never past the
caller's own deadline. The jitter is an argument: a number in [0, 1).
"""

from __future__ import annotations

FIRST = 0.005
FACTOR = 1.6
CAP = 0.25


def pause(attempt: int, jitter: float, retry_after: float | None, left: float | None) -> float:
    """Seconds to wait after refusal number `attempt` (from 0).

    `retry_after`: the holder's lease ends then at the latest. `left`: until the caller gives up. None means no bound.
    """
    # The exponent is bounded first: a float overflows long before a patient waiter gives up.
    base = min(CAP, FIRST * FACTOR ** min(attempt, 32))
    delay = base * (0.5 + 0.5 * jitter)
    if retry_after is not None:
        # A millisecond and a little jitter on top, so that waiters do not all ask in the instant of the expiry.
        delay = min(delay, retry_after + 0.001 + 0.004 * jitter)
    if left is not None:
        delay = min(delay, left)
    return max(delay, 0.0)
