"""Fences grow, whatever the clock does, and fit where JavaScript and Lua keep numbers."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.fence import EPOCH_MS, MAX_FENCE, SHIFT, floor, mint

quick = settings(deadline=None, database=None, max_examples=300)
END_2093 = int(datetime(2094, 1, 1, tzinfo=UTC).timestamp() * 1000)
clocks = st.integers(-(10**13), END_2093)  # a wall clock may also stand before the epoch


@quick
@given(st.integers(0, MAX_FENCE), clocks)
def test_a_fence_is_above_the_one_before_and_never_below_the_floor(stored: int, wall_ms: int) -> None:
    assert mint(stored, wall_ms) > stored
    assert mint(stored, wall_ms) >= floor(wall_ms) >= 0


@quick
@given(st.lists(clocks, min_size=2, max_size=30))
def test_fences_grow_strictly_on_a_clock_that_jumps_about(clock: list[int]) -> None:
    fences, stored = [], 0
    for wall_ms in clock:
        stored = mint(stored, wall_ms)
        fences.append(stored)
    assert fences == sorted(set(fences))
    assert fences[-1] <= MAX_FENCE


@quick
@given(st.integers(EPOCH_MS, END_2093), st.integers(1, 2**SHIFT - 1))
def test_a_lost_counter_starts_above_every_fence_given_out_before(wall_ms: int, grants: int) -> None:
    stored = 0
    for _ in range(min(grants, 50)):
        stored = mint(stored, wall_ms)
    stored += grants - min(grants, 50)  # as many grants as fit in a millisecond
    assert mint(0, wall_ms + 1) > stored


def test_a_fence_fits_into_53_bits_until_2094() -> None:
    assert datetime.fromtimestamp(EPOCH_MS / 1000, UTC) == datetime(2025, 1, 1, tzinfo=UTC)
    assert mint(0, END_2093) < 2**53 == MAX_FENCE + 1
    assert mint(0, END_2093 + 366 * 86_400_000) > MAX_FENCE, "and not much longer: the range is used"


def test_fences_in_numbers() -> None:
    assert floor(EPOCH_MS) == 0
    assert floor(EPOCH_MS - 1) == 0, "before the epoch there is no negative fence"
    assert floor(EPOCH_MS + 1) == 4096
    assert mint(0, 0) == 1
    assert mint(4096, EPOCH_MS + 1) == 4097
    assert mint(10_000, EPOCH_MS + 1) == 10_001
