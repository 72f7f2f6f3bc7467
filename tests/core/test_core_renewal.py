"""The schedule of a keeper: what it does with a lease, and when."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from interlock.core import renewal
from interlock.core.lease import DRIFT_RATE, FIXED, Hold, Policy, deadline, drift, margin
from interlock.core.missing import Flight
from interlock.core.renewal import Step, plan

ttls = st.floats(0.05, 86_400)
START = 1000.0


def a_hold(ttl: float = 9.0, policy: Policy = Policy()) -> Hold:  # noqa: B008 - immutable
    hold = Hold("x", "token", ttl, 7, deadline(START, ttl), began=START, policy=policy)
    hold.kept = policy.renew
    return hold


def step(hold: Hold, now: float) -> Step:
    return plan(hold, now, DRIFT_RATE)[0]


@given(st.floats(0.05, 600))
def test_a_lease_that_nobody_answers_for_goes_through_every_stage_in_time(ttl: float) -> None:
    hold = a_hold(ttl)
    now, stages = START, []
    for _ in range(1000):
        what, look_at = plan(hold, now, DRIFT_RATE)
        if what is Step.LOSE:
            stages.append(("lose", now))
            break
        if what is Step.RENEW:
            stages.append(("renew", now))
            within = renewal.bound(hold, now, 1.0)
            assert within > 0
            assert now + within <= hold.tell_at + 0.0011, "no request outlasts the moment of telling"
            hold.unconfirmed(now, renewal.ttl(hold, now))
            now += within
            hold.failures += 1
            hold.retry_at = now + renewal.retry_after(hold, 0.5)
            continue
        if what is Step.DOUBT:
            stages.append(("doubt", now))
            assert hold.state(now) == "doubtful"
            hold.doubted = True
            continue
        assert look_at > now, "a keeper that looks without end"
        now = look_at
    names = [name for name, _ in stages]
    assert names.count("doubt") <= 1
    assert names[-1] == "lose"
    assert names.count("renew") >= 2, "it is tried again within the window"
    told = stages[-1][1]
    assert hold.deadline - margin(ttl) - 1e-6 <= told
    assert told < hold.deadline, "told before anybody else may have it"
    assert hold.ending(told) == "unreachable"
    assert stages[0][1] <= START + ttl / 3 + 1e-6, "a third of the ttl is over when renewal begins, at the latest"


@given(ttls, st.floats(0, 0.999))
def test_a_renewed_lease_is_looked_at_again_in_a_third_of_its_ttl(ttl: float, jitter: float) -> None:
    hold = a_hold(ttl)
    at = renewal.first_look(hold, jitter)
    assert START + ttl * 0.2 < at <= START + ttl / 3
    assert step(hold, at) is Step.RENEW


@given(st.floats(0.01, 7 * 86_400), st.floats(0, 0.4), st.floats(0, 0.999), st.floats(0, 0.2))
def test_between_two_renewals_is_a_pause_whatever_the_drift(ttl: float, rate: float, jitter: float, took: float) -> None:
    """All that a client may be given: an idle lease is asked for three to five times while it lasts, not without end."""
    assume(ttl > 2 * drift(ttl, rate))  # others are refused: see `checks.ttl`
    hold = Hold("x", "token", ttl, 7, deadline(START, ttl, rate), rate, START, Policy())
    hold.kept = True
    now, before, usable = START, START, ttl - drift(ttl, rate)
    for _ in range(20):
        now = renewal.first_look(hold, jitter)
        for _ in range(5):
            what, look_at = plan(hold, now, rate)
            if what is Step.RENEW:
                break
            assert what is Step.WAIT
            assert look_at > now
            now = look_at
        assert what is Step.RENEW
        slack = 1e-6 + abs(now) * 1e-12
        assert now - before >= usable / 5 - slack, "no pause"
        assert now - before <= usable / 3 + slack
        assert plan(hold, before + usable / 5 - slack, rate)[0] is Step.WAIT, "nor does it go along with others before that"
        before = now
        hold.renewed(now, ttl)
        now += took * usable
        assert plan(hold, before, rate)[0] is Step.WAIT


@pytest.mark.parametrize("ended", ["released", "dropped", "told"])
def test_what_is_over_is_forgotten(ended: str) -> None:
    hold = a_hold()
    setattr(hold, ended, True)
    for now in (START, hold.tell_at, hold.deadline + 1):
        assert step(hold, now) is Step.FORGET


def test_what_the_store_said_is_told_at_once() -> None:
    hold = a_hold()
    hold.vanished(START + 1, taken=True)
    assert step(hold, START + 1) is Step.LOSE
    assert hold.gone == "taken"


def test_while_a_release_is_on_its_way_nothing_is_sent_and_nothing_told() -> None:
    hold = a_hold()
    hold.leaving = True
    what, again = plan(hold, START + 5, DRIFT_RATE)
    assert (what, again > START + 5) == (Step.WAIT, True)
    assert step(hold, hold.deadline) is Step.FORGET
    hold.leaving = False  # the release never went out: it is ours again
    assert step(hold, START + 5) is Step.RENEW


def test_one_renewal_at_a_time_and_its_alarms_go_on() -> None:
    hold = a_hold()
    hold.extending(flight := Flight("x", 9.0))
    what, again = plan(hold, START + 4, DRIFT_RATE)
    assert (what, again) == (Step.WAIT, hold.doubtful_at)
    assert step(hold, hold.doubtful_at) is Step.DOUBT
    hold.doubted = True
    assert plan(hold, hold.doubtful_at, DRIFT_RATE) == (Step.WAIT, hold.tell_at)
    assert step(hold, hold.tell_at) is Step.LOSE
    hold.landed(flight)
    assert step(hold, START + 4) is Step.RENEW


def test_a_fixed_lease_is_only_watched() -> None:
    hold = a_hold(policy=FIXED)
    assert renewal.first_look(hold) == hold.tell_at
    assert plan(hold, START + 8, DRIFT_RATE) == (Step.WAIT, hold.tell_at)
    assert step(hold, hold.tell_at) is Step.LOSE
    assert hold.ending(hold.tell_at) == "expired"
    assert hold.state(hold.tell_at) == "held", "doubt is for those that should have been renewed"


@given(ttls, st.floats(1, 50))
def test_nothing_is_renewed_past_max_hold(ttl: float, times: float) -> None:
    hold = a_hold(ttl, Policy(max_hold=ttl * times))
    end, now, renewals = START + ttl * times, START, 0
    for _ in range(2000):
        what, look_at = plan(hold, now, DRIFT_RATE)
        if what is Step.LOSE:
            break
        if what is Step.RENEW:
            asked = renewal.ttl(hold, now)
            assert now + asked <= end + 1e-6 * ttl, "the store would keep it for longer than was allowed"
            hold.renewed(now, asked)
            renewals += 1
        elif what is Step.DOUBT:
            hold.doubted = True
        else:
            now = look_at
    assert hold.ending(now) == "expired"
    assert now <= end
    assert now >= end - 0.2 * ttl - 0.2, "nor ended much earlier"
    assert renewals <= 6 * times + 8


def test_renewal_stops_without_progress_and_goes_on_with_it() -> None:
    hold = a_hold(9.0, Policy(progress=4.0))
    assert step(hold, START + 3) is Step.RENEW
    what, again = plan(hold, START + 4.5, DRIFT_RATE)
    assert what is Step.WAIT
    assert START + 4.5 < again < START + 6, "looked at again soon: progress may be reported"
    assert hold.stopped == "progress"
    hold.progressed = START + 5
    assert step(hold, again) is Step.RENEW
    assert hold.stopped == ""
    hold.progressed = START
    assert step(hold, hold.tell_at) is Step.LOSE


def test_a_lease_that_was_not_even_tried_was_paused() -> None:
    hold = a_hold()
    assert hold.lost(hold.deadline + 5)
    assert hold.gone == "paused"
    hold = a_hold()
    hold.failures = 2
    assert hold.ending(hold.deadline - 0.01) == "unreachable"
    assert hold.ending(hold.deadline) == "paused", "the keeper would have said so before"


def test_batches_are_cut_by_number_and_by_patience() -> None:
    short, long = [a_hold(0.1) for _ in range(300)], [a_hold(10.0) for _ in range(700)]
    cut = renewal.batches([*long, *short])
    assert sum(map(len, cut)) == 1000
    assert max(map(len, cut)) <= renewal.BATCH
    assert len(cut) == 5
    for batch in cut:
        assert len({hold.ttl for hold in batch}) == 1
    assert renewal.batches([]) == []


def test_what_was_seen_to_be_lost_stays_lost() -> None:
    """The thread that works sees the deadline pass while the keeper takes in an answer: it is not brought back to life."""
    hold = a_hold()
    assert hold.lost(hold.deadline)
    hold.renewed(hold.deadline - 0.001, 9.0)
    assert hold.lost(START + 10)
    assert hold.state(START + 10) == "lost"
    assert hold.remaining(START + 10) == 0.0


def test_watchers_are_told_once_and_may_leave() -> None:
    hold = a_hold()
    heard: list[str] = []
    hold.watch(heard.append)
    hold.gone = "taken"
    hold.tell()
    hold.tell()
    assert heard == ["lost"]
    hold.unwatch(heard.append)
    hold.notify("landed")
    assert heard == ["lost"]
    assert not hold.watchers
    hold.unwatch(heard.append)
    assert renewal.first_look(a_hold()) < inf


def test_a_watcher_that_comes_while_another_leaves_is_not_forgotten() -> None:
    """Two threads: the one that leaves is interrupted while it looks for itself."""
    hold = a_hold()
    heard: list[str] = []

    class Leaving:
        def __call__(self, what: str) -> None: ...

        def __eq__(self, other: object) -> bool:
            hold.watch(heard.append)
            return self is other

        __hash__ = None  # type: ignore[assignment]

    leaving = Leaving()
    hold.watch(Leaving())
    hold.watch(leaving)
    hold.unwatch(leaving)
    hold.notify("lost")
    assert "lost" in heard


@given(st.floats(0.05, 86_400), st.floats(0, 0.99), st.floats(0, 1))
def test_an_alarm_does_not_wait_for_the_pause_after_a_failure(ttl: float, when: float, jitter: float) -> None:
    hold = a_hold(ttl)
    now = START + (hold.tell_at - START) * when
    hold.failures, hold.retry_at = 1, now + renewal.retry_after(hold, jitter)
    assert renewal.first_look(hold, jitter) <= hold.doubtful_at
    hold.doubted = True
    assert renewal.first_look(hold, jitter) <= hold.tell_at
