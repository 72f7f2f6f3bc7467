"""Pauses between two claims: bounded from all sides, whatever the number of the attempt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.backoff import CAP, FIRST, pause

quick = settings(deadline=None, database=None, max_examples=300)
attempts = st.integers(0, 60) | st.integers(0, 10**30)
jitters = st.floats(0, 1, exclude_max=True)
bounds = st.none() | st.floats(-10, 1e7)


@quick
@given(attempts, jitters, bounds, bounds)
def test_no_pause_is_too_long(attempt: int, jitter: float, retry_after: float | None, left: float | None) -> None:
    delay = pause(attempt, jitter, retry_after, left)
    assert 0 <= delay <= CAP
    if retry_after is not None:
        assert delay <= max(0.0, retry_after + 0.005), "never past the holder's end and a little jitter"
    if left is not None:
        assert delay <= max(0.0, left), "never past the caller's own deadline"


@quick
@given(attempts, jitters)
def test_an_unbounded_pause_is_never_nothing(attempt: int, jitter: float) -> None:
    assert pause(attempt, jitter, None, None) >= FIRST / 2


@quick
@given(st.integers(0, 100), jitters, bounds, bounds)
def test_pauses_grow_with_the_attempts(attempt: int, jitter: float, retry_after: float | None, left: float | None) -> None:
    assert pause(attempt, jitter, retry_after, left) <= pause(attempt + 1, jitter, retry_after, left)


@quick
@given(attempts)
def test_jitter_spreads_over_the_upper_half(attempt: int) -> None:
    low, high = pause(attempt, 0.0, None, None), pause(attempt, 0.999999, None, None)
    assert high == pytest.approx(2 * low, rel=1e-4)


@quick
@given(st.integers(5, 10**6), jitters, jitters)
def test_waiters_do_not_all_ask_in_the_instant_of_the_expiry(attempt: int, one: float, two: float) -> None:
    first, second = pause(attempt, one, 0.0, None), pause(attempt, two, 0.0, None)
    assert 0.001 <= first < 0.005
    assert first - second == pytest.approx(0.004 * (one - two), abs=1e-12)


def test_the_schedule_in_numbers() -> None:
    assert [round(pause(n, 0.0, None, None) * 1000, 2) for n in (0, 1, 2, 8, 9, 1000)] == [2.5, 4.0, 6.4, 107.37, 125.0, 125.0]
    assert pause(0, 0.5, 0.001, None) == pytest.approx(0.00375)
    assert pause(9, 0.5, 10.0, 0.01) == 0.01
    assert pause(9, 0.5, 10.0, 0.0) == 0.0
    assert pause(10**300, 0.0, None, None) == 0.125, "a float would have overflowed"
