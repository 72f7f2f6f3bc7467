from __future__ import annotations

from interlock.core.lease import DRIFT_RATE, Hold, Policy, deadline
from interlock.flow.renewing.schedule import Schedule


def a_hold() -> Hold:
    hold = Hold("x", "token", 9.0, 7, deadline(1000.0, 9.0), began=1000.0, policy=Policy())
    hold.kept = True
    return hold


def test_a_lease_that_was_put_down_twice_for_one_moment_is_seen_once() -> None:
    hold, schedule = a_hold(), Schedule()
    schedule.put(hold, 1003.0)
    schedule.put(hold, 1003.0)
    assert schedule.look(1003.0, DRIFT_RATE, renewing=True).due == [hold]


def test_a_loss_that_somebody_saw_before_the_keeper_did_is_still_told() -> None:
    hold, schedule = a_hold(), Schedule()
    schedule.add(hold)
    assert hold.lost(1009.0), "the process slept, and its holder looks first"
    assert schedule.look(1009.0, DRIFT_RATE, renewing=True).lost == [hold]
