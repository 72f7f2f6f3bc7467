"""Getting the lock from a store that misbehaves: late, silent, or occupied for long. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import AcquireTimeout, Unavailable, UsageError
from interlock.core.backoff import CAP
from interlock.core.claim import Granted, Refused
from interlock.core.lease import drift
from interlock.runtime.aio import AsyncioRuntime

from .scripted import Asked, Stage, after, granted, silent

quick = settings(deadline=None, database=None, max_examples=100)


# --- a grant --------------------------------------------------------------------------------------------------------------


def test_a_lease_is_counted_from_before_the_question() -> None:
    stage = Stage()
    stage.store.answers("claim", after(stage.world, 0.5, granted(10.0)))
    lease = stage.lock.acquire()
    assert stage.store.verbs() == ["claim"]
    assert lease.remaining() == pytest.approx(10.0 - drift(10.0) - 0.5)
    assert (lease.fence, lease.ttl, lease.state) == (7, 10.0, "held")


def test_the_ttl_that_counts_is_the_one_that_the_store_gave() -> None:
    stage = Stage(ttl=10.0)
    stage.store.answers("claim", granted(4.0))
    lease = stage.lock.acquire()
    assert lease.ttl == 4.0
    assert lease.remaining() == pytest.approx(4.0 - drift(4.0))


@pytest.mark.parametrize(("ttl", "within"), [(10.0, 1.0), (0.3, 0.3)])
def test_a_question_may_take_no_longer_than_its_answer_is_worth(ttl: float, within: float) -> None:
    stage = Stage(ttl=ttl, request_timeout=1.0)
    stage.store.answers("claim", granted(ttl))
    stage.lock.acquire()
    assert stage.store.asked[0].within == within


@pytest.mark.parametrize("how", ["acquire", "try_acquire"])
def test_a_grant_that_comes_too_late_is_given_back(how: str) -> None:
    stage = Stage()
    late = 10.0 - drift(10.0)
    stage.store.answers("claim", after(stage.world, late, granted())).answers("release", True)
    with pytest.raises(Unavailable, match="too late for a ttl of 10 s") as caught:
        getattr(stage.lock, how)()
    assert (caught.value.cause, caught.value.backend) == ("slow", "scripted://here")
    assert stage.store.verbs() == ["claim", "release"]
    assert stage.store.asked[0].token == stage.store.asked[1].token
    assert stage.world.shields == 1, "whoever cancels meanwhile"


def test_a_grant_just_in_time_is_a_lease() -> None:
    stage = Stage()
    stage.store.answers("claim", after(stage.world, 10.0 - drift(10.0) - 0.01, granted()))
    assert 0 < stage.lock.acquire().remaining() < 0.02


def test_a_late_grant_that_cannot_be_given_back_says_so() -> None:
    stage = Stage()
    stage.store.answers("claim", after(stage.world, 60.0, granted()))
    stage.store.answers("release", silent()).answers("undo", silent())
    with pytest.raises(Unavailable, match="too late") as caught:
        stage.lock.acquire()
    assert caught.value.cause == "slow"
    assert stage.store.verbs() == ["claim", "release", "undo"]
    assert "may stay locked" in str(caught.value)


# --- no answer ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["acquire", "try_acquire"])
def test_a_question_without_an_answer_is_undone_once_and_that_is_said(how: str) -> None:
    stage = Stage()
    error = silent()
    stage.store.answers("claim", error).answers("undo", False)
    with pytest.raises(Unavailable) as caught:
        getattr(stage.lock, how)()
    assert caught.value is error
    assert str(error) == "the store did not answer in time. Nothing is left behind"
    claim, undo = stage.store.asked
    assert (claim.verb, undo.verb) == ("claim", "undo")
    assert (undo.name, undo.token) == (claim.name, claim.token)
    assert undo.within == 1.0
    assert stage.world.shields == 1
    assert stage.world.slept == [], "no retry: the caller decides"


def test_an_undo_without_an_answer_is_said() -> None:
    stage = Stage(ttl=12.5)
    stage.store.answers("claim", silent()).answers("undo", silent("nor this time"))
    with pytest.raises(Unavailable) as caught:
        stage.lock.acquire()
    assert stage.store.verbs() == ["claim", "undo"]
    assert "may stay locked for up to 12.5 s" in str(caught.value)
    assert "nor this time" in str(caught.value)
    assert "Nothing is left behind" not in str(caught.value)
    assert stage.store.asked[0].token[:32] not in str(caught.value)


def test_silence_in_the_middle_of_waiting_ends_the_wait() -> None:
    stage = Stage(timeout=30.0)
    stage.store.answers("claim", Refused(5.0, "host:2"), silent()).answers("undo", False)
    with pytest.raises(Unavailable, match="Nothing is left behind"):
        stage.lock.acquire()
    claims = stage.store.of("claim")
    assert stage.store.verbs() == ["claim", "claim", "undo"]
    tokens = [asked.token for asked in stage.store.asked]
    assert tokens[0] != tokens[1] == tokens[2], "each attempt is a holder of its own, and the undo is the last one's"
    assert len(claims) == 2


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, MemoryError])
def test_whatever_interrupts_a_question_undoes_it(interruption: type[BaseException]) -> None:
    """A cancellation arrives where something is awaited, so nothing that is not on its way was sent. Anything else may have
    struck with the answer on its way up: the token is released."""
    stage = Stage()
    stage.store.answers("claim", interruption()).answers("undo", False).answers("release", True)
    with pytest.raises(interruption):
        stage.lock.acquire()
    cancelled = interruption is asyncio.CancelledError
    assert stage.store.verbs() == (["claim", "undo"] if cancelled else ["claim", "undo", "release"])


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError, MemoryError])
def test_an_interrupted_question_that_cannot_be_undone_is_noted(interruption: type[BaseException]) -> None:
    stage = Stage()
    error = interruption()
    stage.store.answers("claim", error).answers("undo", silent())
    with pytest.raises(interruption) as caught:
        stage.lock.acquire()
    assert caught.value is error
    assert any("may stay locked" in note for note in getattr(error, "__notes__", []))


def test_an_error_that_means_nothing_happened_does_not_cast_doubt() -> None:
    """The port: any error but Unavailable means that nothing happened. So nothing can be left behind."""
    stage = Stage()
    error = UsageError("the client is closed")
    stage.store.answers("claim", error).answers("undo", UsageError("the client is closed"))
    with pytest.raises(UsageError) as caught:
        stage.lock.acquire()
    assert caught.value is error
    told = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert "may stay locked" not in told


# --- waiting --------------------------------------------------------------------------------------------------------------


class Holder:
    """Somebody who holds the lock until a moment, if ever, and answers every claim."""

    def __init__(self, stage: Stage, until: float | None, takes: float = 0.0) -> None:
        self.stage, self.until, self.takes = stage, until, takes
        stage.store.script["claim"] = self  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return True

    def popleft(self) -> Any:
        return self.answer

    def answer(self, asked: Asked) -> Granted | Refused:
        self.stage.world.time += self.takes
        left = None if self.until is None else self.until - self.stage.world.time
        return granted() if left is not None and left <= 0 else Refused(left, "host:2")


def test_try_acquire_never_waits() -> None:
    stage = Stage()
    stage.store.answers("claim", Refused(5.0, "host:2"))
    assert stage.lock.try_acquire() is None
    assert stage.world.slept == []


def test_a_timeout_of_nothing_asks_once() -> None:
    stage = Stage(timeout=0.0)
    stage.store.answers("claim", Refused(5.0, "host:2"))
    with pytest.raises(AcquireTimeout):
        stage.lock.acquire()
    assert stage.world.slept == []


@quick
@given(st.floats(0, 60), st.floats(0, 1, exclude_max=True), st.floats(0, 0.3))
def test_no_waiter_sleeps_past_the_end_of_the_holder(held_for: float, jitter: float, takes: float) -> None:
    stage = Stage(jitter=jitter)
    until = stage.world.time + held_for
    Holder(stage, until, takes)
    stage.lock.acquire()
    claims = stage.store.of("claim")
    assert claims[-1].at <= until + 0.005 + 1e-9, "five milliseconds after the end at the latest"
    assert all(0 <= pause <= CAP for pause in stage.world.slept)
    assert len(claims) == len(stage.world.slept) + 1
    # Nine pauses until the cap is reached; from then on each is at least half of it.
    assert len(claims) <= 12 + held_for / (CAP / 2)


@quick
@given(st.floats(0.001, 30), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1e6))
def test_giving_up_happens_at_the_deadline_with_one_last_question(timeout: float, jitter: float, more: float | None) -> None:
    stage = Stage(timeout=timeout, jitter=jitter)
    end = stage.world.time + timeout
    Holder(stage, None if more is None else end + 1 + more)
    with pytest.raises(AcquireTimeout) as caught:
        stage.lock.acquire()
    claims = stage.store.of("claim")
    assert stage.world.time == pytest.approx(end, abs=1e-6), "neither early nor late"
    assert claims[-1].at == pytest.approx(end, abs=1e-6)
    assert sum(asked.at < end - 1e-6 for asked in claims) >= len(claims) - 2, "one last question, or two for a rounding"
    assert len(claims) <= 13 + timeout / (CAP / 2)
    assert caught.value.waited == pytest.approx(timeout, abs=1e-6)
    assert "undo" not in stage.store.verbs(), "a refused claim leaves nothing"


def test_a_lock_that_comes_free_at_the_deadline_is_taken() -> None:
    stage = Stage(timeout=2.0)
    Holder(stage, stage.world.time + 2.0 - 1e-9)
    assert stage.lock.acquire().state == "held"


def test_without_a_timeout_it_waits_for_days() -> None:
    stage = Stage(timeout=None)
    until = stage.world.time + 3600.0
    Holder(stage, until)
    stage.lock.acquire()
    assert until <= stage.world.time < until + 0.01


def test_acquires_own_timeout_counts_before_that_of_the_lock() -> None:
    stage = Stage(timeout=None)
    Holder(stage, None)
    with pytest.raises(AcquireTimeout):
        stage.lock.acquire(timeout=3)
    assert stage.world.time == pytest.approx(1003.0)
    stage = Stage(timeout=1.0)
    Holder(stage, stage.world.time + 50.0)
    stage.lock.acquire(timeout=None)
    assert stage.world.time >= 1050.0


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (Refused(4.2, "web-7:42"), "held by web-7:42 for at most another 4.2 s"),
        (Refused(None, ""), "held by somebody else with no expiry"),
    ],
)
def test_giving_up_says_who_has_it_and_for_how_long(refused: Refused, said: str) -> None:
    stage = Stage(timeout=0.0)
    stage.store.answers("claim", refused)
    with pytest.raises(AcquireTimeout) as caught:
        stage.lock.acquire()
    error = caught.value
    assert said in str(error)
    assert "Nothing is left behind" in str(error)
    assert (error.name, error.owner, error.waited) == ("x", refused.owner, 0.0)
    assert isinstance(error, TimeoutError)
    assert stage.store.asked[0].token[:32] not in str(error)


# --- cancelled for real ---------------------------------------------------------------------------------------------------


def test_a_cancelled_task_leaves_when_its_claim_is_undone() -> None:
    async def main() -> None:
        stage = Stage()
        stage.context = stage.context._replace(runtime=AsyncioRuntime())
        stage.alock._context = stage.context
        asked, undone, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            asked.set()
            await asyncio.Event().wait()

        async def undo() -> None:
            await go.wait()
            undone.set()

        stage.store.answers("claim", lambda _: hang()).answers("undo", lambda _: undo())
        task = asyncio.create_task(stage.alock.acquire())
        await asked.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done(), "it is still cleaning up"
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undone.is_set()
        assert stage.store.verbs() == ["claim", "undo"]

    asyncio.run(main())
