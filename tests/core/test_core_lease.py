"""How long a grant may be believed, and that what is over stays over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core import checks
from interlock.core.lease import DRIFT_FLOOR, Hold, deadline, drift

quick = settings(deadline=None, database=None, max_examples=200)
moments = st.floats(0, 1e9)
ttls = st.floats(checks.MIN_TTL, checks.MAX_TTL)


def a_hold(sent_at: float = 100.0, ttl: float = 10.0) -> Hold:
    return Hold("x", "token", ttl, 7, deadline(sent_at, ttl))


@quick
@given(moments, ttls)
def test_a_grant_is_never_believed_as_long_as_the_store_keeps_it(sent_at: float, ttl: float) -> None:
    end = deadline(sent_at, ttl)
    assert end < sent_at + ttl
    assert sent_at + ttl - end >= 0.9 * max(DRIFT_FLOOR, 0.01 * ttl), "one percent, and at least two milliseconds"
    assert end > sent_at, "every legal ttl leaves time to work in"


@quick
@given(moments, moments, ttls, ttls)
def test_the_deadline_grows_with_the_moment_and_the_ttl(one: float, two: float, short: float, long: float) -> None:
    (one, two), (short, long) = sorted((one, two)), sorted((short, long))
    assert deadline(one, short) <= deadline(two, short)
    assert deadline(one, short) <= deadline(one, long)
    assert drift(short) <= drift(long)


def test_the_deadline_in_numbers() -> None:
    assert deadline(100.0, 10.0) == pytest.approx(109.898)
    assert deadline(0.0, 0.01) == pytest.approx(0.0079)


def test_a_lease_is_lost_from_its_deadline_on() -> None:
    hold = a_hold()
    before, at = hold.deadline - 1e-6, hold.deadline
    assert (hold.state(before), hold.lost(before)) == ("held", False)
    assert hold.remaining(before) == pytest.approx(1e-6, abs=1e-9)
    assert (hold.state(at), hold.lost(at), hold.remaining(at)) == ("lost", True, 0.0)
    assert hold.remaining(at + 1000) == 0.0
    assert hold.gone == "expired"


def test_what_the_store_says_is_gone_is_lost_at_once() -> None:
    hold = a_hold()
    hold.gone = "taken"
    assert (hold.state(100.0), hold.lost(100.0), hold.remaining(100.0), hold.gone) == ("lost", True, 0.0, "taken")


def test_a_release_in_time_is_no_loss_however_late_one_looks() -> None:
    hold = a_hold()
    hold.released = True
    for now in (100.0, hold.deadline, hold.deadline + 1e6):
        assert (hold.state(now), hold.lost(now), hold.remaining(now)) == ("released", False, 0.0)


# What may happen to a lease: the store confirms an extend, an answer is lost, the store says no, it is given back.
steps = st.one_of(
    st.tuples(st.just("renewed"), st.floats(0, 5), ttls),
    st.tuples(st.just("unconfirmed"), st.floats(0, 5), ttls),
    st.tuples(st.just("gone"), st.sampled_from(["taken", "expired"])),
    st.tuples(st.just("released")),
)


def apply(hold: Hold, step: tuple[Any, ...], now: float) -> None:
    match step:
        case "renewed", ago, ttl:
            hold.renewed(now - ago, ttl)
        case "unconfirmed", ago, ttl:
            hold.unconfirmed(now - ago, ttl)
        case "gone", why:
            hold.gone = why
        case ("released",):
            hold.released = True


@quick
@given(st.lists(st.tuples(st.floats(0, 100), steps), max_size=12))
def test_once_the_store_said_gone_or_it_was_released_it_never_comes_back(history: list[tuple[float, tuple[Any, ...]]]) -> None:
    hold, now, over = a_hold(), 100.0, False
    for passed, step in history:
        now += passed
        apply(hold, step, now)
        over = over or step[0] in ("gone", "released")
        assert hold.lost(now) == (hold.state(now) == "lost")
        assert (hold.remaining(now) > 0) == (hold.state(now) == "held")
        if over:
            assert hold.state(now) != "held"
            assert hold.remaining(now) == 0.0


@quick
@given(moments, moments, ttls)
def test_a_lost_answer_only_lowers_the_deadline(sent_at: float, later: float, ttl: float) -> None:
    hold = a_hold(sent_at)
    before = hold.deadline
    hold.unconfirmed(later, ttl)
    assert hold.deadline == min(before, deadline(later, ttl))
    assert hold.ttl == 10.0, "what the store last granted for sure"


@quick
@given(moments, ttls)
def test_a_confirmed_extend_sets_the_end_it_does_not_add(sent_at: float, ttl: float) -> None:
    hold = a_hold()
    hold.renewed(sent_at, ttl)
    assert (hold.deadline, hold.ttl, hold.fence) == (deadline(sent_at, ttl), ttl, 7)


def test_a_hold_has_no_room_for_what_it_does_not_know() -> None:
    with pytest.raises(AttributeError):
        a_hold().relesed = True  # type: ignore[attr-defined]


def test_an_extend_that_shortens_is_believed_from_the_moment_it_is_sent() -> None:
    hold = Hold("x", "token", 60.0, 7, deadline(1000.0, 60.0), began=1000.0)
    assert not hold.shorten(1000.0, 60.0)
    assert not hold.shorten(1010.0, 60.0)
    assert hold.deadline == deadline(1000.0, 60.0)
    assert hold.shorten(1010.0, 5.0)
    assert hold.deadline == deadline(1010.0, 5.0)
    assert hold.lost(1015.0)
