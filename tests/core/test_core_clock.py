"""The store's clock, as far as a client can tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.clock import StoreClock

OFFSETS = st.floats(-1e6, 1e6)
TOOK = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=8)


def test_a_guess_counts_until_the_store_has_told_its_time() -> None:
    clock = StoreClock(3.0)
    assert clock.there(10.0) == 13.0
    clock.guess(5.0)
    assert clock.there(10.0) == 15.0
    clock.heard(10.0, 17.0, 11.0)  # it read 17 at some moment between 10 and 11
    assert clock.known
    assert clock.offset == 6.0, "changed no more than it must"
    clock.guess(99.0)
    assert clock.offset == 6.0
    clock.heard(20.0, 26.5, 21.0)
    assert clock.offset == 6.0, "it fits still"


@given(true=OFFSETS, guess=OFFSETS, took=TOOK)
def test_what_is_known_is_off_by_no_more_than_the_last_question_took(
    true: float, guess: float, took: list[tuple[float, float]]
) -> None:
    clock, now = StoreClock(guess), 0.0
    for there, back in took:
        sent_at, read_at, now = now, now + there, now + there + back
        clock.heard(sent_at, read_at + true, now)
        assert abs(clock.offset - true) <= there + back + 1e-6
