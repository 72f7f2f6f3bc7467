"""When and where to look for dead rows, so that nothing piles up and hardly anybody pays for it. Pure.

An index by expiry would find them at once and make every claim and release a third dearer. Instead the file remembers a
moment before which no row can have expired (`horizon`). Until then nobody looks. After it, each grant walks a few rows
further along the primary key, from where the last one stopped (`hand`), until the table has been walked once; the
earliest expiry met on the way (`low`) is the next horizon. The line of those who wait is short and looked at as a whole, at the
end of a walk.

Invariants
- No row expires before `horizon`, except rows that expired already and wait for the hand. (One in line expires after the lease
  that it waits for, so it need not be noted.)
- During a walk, no row behind the hand expires before `low`.
- Whoever gives a row an earlier expiry than either lowers both in the same transaction.
- A grant adds one row and walks STEP, so the dead are never many more than the living.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

STEP = 8


class Walk(NamedTuple):
    """How far it has got. All of it is kept in the file, so that it goes on from process to process."""

    horizon: float = inf
    low: float = inf
    hand_name: str = ""
    hand_arrival: int = 0


def walked(walk: Walk, rows: list[tuple[str, int, float]], now: float) -> tuple[Walk, list[tuple[str, int]]]:
    """After looking at the next STEP rows behind the hand (name, arrival, expires): the new state, and which are dead."""
    dead = [(name, arrival) for name, arrival, expires in rows if expires <= now]
    low = min([walk.low, *(expires for _, _, expires in rows if expires > now)])
    if len(rows) < STEP:
        return Walk(horizon=low), dead
    name, arrival, _ = rows[-1]
    return Walk(walk.horizon, low, name, arrival), dead
