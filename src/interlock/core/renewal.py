"""When a keeper acts on a lease: the schedule of renewal, doubt and loss.

    |----------- usable: ttl without the allowance for clocks ---|
    grant        renew at 1/3     doubtful at 2/3      tell    deadline    the store lets go
                 |…retries, each bounded by what is left…|

Invariants
- No renewal is sent after the moment at which the holder is told (`Hold.tell_at`), and none after `max_hold`.
- After a confirmation the next renewal waits for a fifth of what is usable, whatever the drift. So moments are counted in
  shares of that, not of the ttl: a large drift would move shares of the ttl into the past.

Rules of the file: pure. Moments and random numbers are arguments.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import NamedTuple

from .lease import DRIFT_FLOOR, Hold, drift

BATCH = 250  # leases in one request: a millisecond or two of a server's time
AT_ONCE = 4  # requests on their way at the same time, so that a far store does not limit how many leases can be kept
EARLY = 0.1  # share of what is usable by which a lease may be renewed before its time, to go along with others


class Step(Enum):
    """What is to be done with a lease."""

    WAIT = "nothing yet"
    RENEW = "ask the store to extend it"
    DOUBT = "tell that it is in doubt"
    LOSE = "tell that it is lost"
    FORGET = "nothing any more"


class Keeping(NamedTuple):
    """How renewal is doing, since the client was made.

    `leases` are kept now. `renewals` were confirmed, in `requests` round trips; `failures` had no answer; `losses` were told.
    `lateness` is the longest time by which the keeper came late to a lease, in seconds. `slack` is the smallest share of a
    ttl that was left when a renewal was confirmed: 0.6 is healthy, 0.1 is close to losing leases.
    """

    leases: int
    renewals: int
    requests: int
    failures: int
    losses: int
    lateness: float
    slack: float


def due(hold: Hold) -> float:
    """When to renew: a third of what is usable after the last confirmation, or after the pause that follows a failure."""
    return max(hold.deadline - hold.usable * 2 / 3, hold.retry_at)


def earliest(hold: Hold) -> float:
    """A moment before which nobody has to look at a lease, told as cheaply as can be."""
    return hold.deadline - hold.span * 0.7


def first_look(hold: Hold, jitter: float = 0.0) -> float:
    """When to look at a lease that was just granted or renewed, or could not be; a little early, by chance, so that clients do
    not march in step. Its alarms do not wait for the pause that follows a failure."""
    if not hold.kept:
        return hold.tell_at
    alarm = hold.tell_at if hold.doubted else min(hold.doubtful_at, hold.tell_at)
    return min(due(hold) - hold.usable * EARLY * jitter / 2, alarm)


def plan(hold: Hold, now: float, rate: float) -> tuple[Step, float]:
    """What to do with a lease now, and if nothing, when to look again."""
    if hold.released or hold.told or hold.dropped:
        return Step.FORGET, inf
    if hold.gone:
        return Step.LOSE, inf
    if hold.leaving:  # a release is on its way; if it fails the lease may be ours again
        return (Step.FORGET, inf) if now >= hold.deadline else (Step.WAIT, now + max(hold.span * EARLY, 0.001))
    if now >= hold.tell_at:
        return Step.LOSE, inf
    if hold.kept and not hold.in_flight and now >= max(due(hold) - hold.usable * EARLY, hold.retry_at):
        hold.stopped = stopped(hold, now, rate)
        if not hold.stopped:
            return Step.RENEW, inf
    if hold.kept and not hold.doubted and now >= hold.doubtful_at:
        return Step.DOUBT, inf
    looks = [hold.tell_at]
    if hold.kept and not hold.doubted:
        looks.append(hold.doubtful_at)
    if hold.kept and not hold.in_flight and hold.stopped != "max_hold":
        looks.append(max(due(hold), now + hold.span * EARLY / 2 if hold.stopped else 0.0))
    return Step.WAIT, min(looks)


def sendable(hold: Hold, now: float, rate: float) -> bool:
    """Whether a renewal that was planned may still be sent: other threads, and time, went on since the plan."""
    over = hold.over or hold.leaving or hold.in_flight or now >= hold.tell_at
    return hold.kept and not over and not stopped(hold, now, rate)


def stopped(hold: Hold, now: float, rate: float) -> str:
    """Why it is not renewed any more, or ""."""
    if hold.began + hold.policy.max_hold <= hold.deadline + drift(hold.ttl, rate) + DRIFT_FLOOR:
        return "max_hold"
    return "progress" if now - hold.progressed >= hold.policy.progress else ""


def ttl(hold: Hold, now: float) -> float:
    """For how long to renew it: its ttl, or what is left until `max_hold`."""
    return min(hold.wanted, hold.began + hold.policy.max_hold - now)


def bound(hold: Hold, now: float, request_timeout: float) -> float:
    """How long the answer to a renewal is awaited: never past the moment of telling, and with time for another try."""
    left = hold.tell_at - now
    return max(min(request_timeout, max(left / 2, min(left, 0.01))), 0.001)


def retry_after(hold: Hold, jitter: float) -> float:
    """The pause after a renewal that failed."""
    return min(max(hold.span / 30, 0.005), 15.0) * (0.5 + jitter)


def batches(holds: list[Hold]) -> list[list[Hold]]:
    """Cut what is due into requests. Short leases do not travel with long ones, whose patience they would cut short."""
    ordered = sorted(holds, key=lambda hold: hold.ttl)
    cut: list[list[Hold]] = []
    for hold in ordered:
        if not cut or len(cut[-1]) >= BATCH or hold.ttl > 4 * cut[-1][0].ttl:
            cut.append([])
        cut[-1].append(hold)
    return cut
