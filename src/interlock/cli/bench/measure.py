"""Turns, medians, ratios: the arithmetic of every figure. Floor and subject take turns, and are compared within a round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median


def sample(cycle: Callable[[], object], cycles: int) -> list[int]:
    """How long each of so many cycles took, in nanoseconds."""
    clock, times = time.perf_counter_ns, []
    for _ in range(cycles):
        began = clock()
        cycle()
        times.append(clock() - began)
    return times


def quotient(ours: Sequence[float], floor: Sequence[float]) -> float:
    """How many times the floor: the median, over rounds, of the quotient within a round. A slow round slows both.

    Of rounds that only one of them has taken part in, nothing is known. Raises ValueError when there is no other.
    """
    pairs = [one / other for one, other in zip(ours, floor, strict=False) if math.isfinite(one) and other > 0]
    if not pairs:
        raise ValueError("no round has both of them")
    return median(pairs)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by `share` of them."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
