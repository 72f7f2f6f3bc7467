"""A wait is believed as far as a quorum of nodes vouch for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.waits import Wait, vouched_age, vouched_end

seconds = st.floats(0, 1e6)


@given(st.lists(seconds, min_size=3, max_size=5), st.floats(0, 1e9))
def test_one_clock_that_jumped_adds_nothing(ages: list[float], jumped: float) -> None:
    """With the word of a majority, no age is believed that every honest node denies; nor an end."""
    needed = (len(ages) + 1) // 2 + 1
    waits = [Wait("x", age, age) for age in ages]
    assert (vouched_age([*waits, Wait("x", jumped)], needed) or 0.0) <= max(ages)
    assert (vouched_end([*waits, Wait("x", 0.0, 0.0)], needed) or 0.0) >= min(ages)


def test_too_few() -> None:
    assert vouched_age([Wait("x", 5.0)], 2) is None
    assert vouched_end([Wait("x", 5.0, 0.0), Wait("x", 5.0)], 2) is None, "one has not been told"
    assert vouched_age([Wait("x", 5.0), Wait("x", 3.0), Wait("x", 9.0)], 2) == 5.0
    assert vouched_end([Wait("x", 5.0, 2.0), Wait("x", 3.0, 0.0), Wait("x", 9.0, 7.0)], 2) == 2.0
