"""How a fence grows.

A fence is `max(stored + 1, milliseconds since EPOCH_MS << 12)`. The counter part makes it grow strictly; the clock part
only ever lifts it, so that a counter that was lost (FLUSHALL, a deleted file, an expired idle key) starts above every
fence given out before. Safety never rests on the clock while the counter survives. Every store mints this way, so fences
keep growing when a lock moves from one store to another. Below 2**53 until 2094, so JavaScript and Lua can hold it.
"""

from __future__ import annotations

EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
SHIFT = 12  # 4,096 grants of one name in a millisecond before the counter runs ahead of the clock
MAX_FENCE = 2**53 - 1
AHEAD_MS = 10_000  # how far ahead of a node's clock a proposal may be


def floor(wall_ms: int) -> int:
    """The smallest fence that a store whose wall clock reads `wall_ms` may mint."""
    return max(wall_ms - EPOCH_MS, 0) << SHIFT


def mint(stored: int, wall_ms: int) -> int:
    """The next fence after `stored`."""
    return max(stored + 1, floor(wall_ms))


def propose(minted: int, proposal: int, wall_ms: int) -> int:
    """What a node of a quorum mints: the client's proposal if it is higher than its own and not far ahead of its clock.

    Nodes that all take the proposal agree at once. The bound keeps a client whose clock is wrong from using up the range.
    """
    return proposal if minted < proposal <= floor(wall_ms + AHEAD_MS) else minted
