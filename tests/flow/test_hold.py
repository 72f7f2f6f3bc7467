"""Extending, releasing and leaving a block, with a store that loses answers. In virtual time."""

from __future__ import annotations

import pytest

from interlock import LeaseLost, Unavailable, UsageError
from interlock.core.claim import Gone
from interlock.core.lease import drift

from .scripted import Stage, after, granted, silent


def span(ttl: float) -> float:
    """For how long a fresh lease of that ttl may be believed."""
    return ttl - drift(ttl)


# --- release --------------------------------------------------------------------------------------------------------------


def test_a_release_that_is_answered_is_one_question() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", True)
    assert lease.release() is True
    assert lease.release() is False
    assert stage.store.verbs() == ["claim", "release"]
    assert stage.store.asked[1].token == lease.token
    assert stage.world.shields == 0, "nothing interrupted it, so nothing had to be shielded"
    assert (lease.state, lease.lost, lease.remaining()) == ("released", False, 0.0)


def test_a_release_that_is_interrupted_before_it_went_out_is_sent_all_the_same() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", KeyboardInterrupt(), True).answers("undo", False)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    assert stage.store.verbs() == ["claim", "release", "undo", "release"]
    assert lease.state == "released"


def test_a_release_that_never_went_out_is_not_taken_for_done() -> None:
    """Nothing is unanswered, so nothing was asked: the lock is still there, and the error says so."""
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", silent("refused"), True).answers("undo", False)
    with pytest.raises(Unavailable, match="'x' was not released: it ends with its ttl"):
        lease.release()
    assert lease.state == "held"
    assert lease.release() is True, "and it can be released again"


def test_a_release_whose_answer_is_lost_is_confirmed_by_an_undo() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", silent()).answers("undo", True)
    assert lease.release() is True
    assert stage.store.verbs() == ["claim", "release", "undo"]
    assert stage.store.asked[2].token == lease.token
    assert lease.state == "released"


def test_a_release_into_silence_is_raised_and_can_be_repeated() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", silent("first")).answers("undo", silent("second"))
    with pytest.raises(Unavailable, match="may stay locked for up to 10 s") as caught:
        lease.release()
    assert "first" in str(caught.value)
    assert lease.state == "released", "the request is out: somebody else may have it, so it is not held"
    stage.store.answers("release", True)
    assert lease.release() is True
    assert lease.state == "released"


def test_a_release_whose_answer_came_after_the_end_does_not_claim_to_have_done_it() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", after(stage.world, 60.0, silent())).answers("undo", True)
    assert lease.release() is False
    assert lease.state == "lost"


def test_a_lost_lease_needs_no_question() -> None:
    stage = Stage()
    lease = stage.held()
    stage.world.time += span(10.0)
    assert lease.release() is False
    assert stage.store.verbs() == ["claim"]
    assert lease.lost


def test_a_release_that_the_store_denies_is_a_loss() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", False)
    assert lease.release() is False
    assert (lease.state, lease.lost) == ("lost", True)


def test_an_interrupted_release_is_undone_and_the_interruption_raised() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", KeyboardInterrupt()).answers("undo", True)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    assert lease.state == "released"
    assert stage.store.verbs() == ["claim", "release", "undo"]


# --- extend ---------------------------------------------------------------------------------------------------------------


def test_extend_sets_the_end_from_before_the_question() -> None:
    stage = Stage()
    lease = stage.held()
    stage.world.time += 5.0
    stage.store.answers("extend", after(stage.world, 0.5, granted(30.0)))
    lease.extend(30)
    assert lease.remaining() == pytest.approx(span(30.0) - 0.5)
    assert lease.ttl == 30.0


def test_extend_without_a_number_means_the_ttl_it_was_granted_with() -> None:
    stage = Stage()
    lease = stage.held(ttl=4.0)
    stage.store.answers("extend", granted(4.0))
    lease.extend()
    assert stage.store.of("extend")[0].ttl == 4.0


def test_extend_waits_no_longer_than_the_lease_lasts() -> None:
    stage = Stage()
    lease = stage.held()
    stage.world.time += span(10.0) - 0.25
    stage.store.answers("extend", granted(10.0))
    lease.extend()
    assert stage.store.of("extend")[0].within == pytest.approx(0.25)


@pytest.mark.parametrize(("ttl", "stands"), [(60.0, span(10.0) - 5.0), (2.0, span(2.0))])
def test_an_extend_without_an_answer_lowers_the_end_or_leaves_it(ttl: float, stands: float) -> None:
    stage = Stage()
    lease = stage.held()
    stage.world.time += 5.0
    stage.store.answers("extend", silent())
    with pytest.raises(Unavailable) as caught:
        lease.extend(ttl)
    assert lease.remaining() == pytest.approx(stands)
    assert f"held for another {stands:.1f} s" in str(caught.value)
    assert lease.state == "held"
    assert lease.ttl == 10.0


def test_an_interrupted_extend_counts_as_unanswered() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("extend", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lease.extend(1)
    assert lease.remaining() == pytest.approx(span(1.0))


@pytest.mark.parametrize(("taken", "reason", "said"), [(True, "taken", "somebody else"), (False, "forced", "before its time")])
def test_an_extend_of_what_is_gone_is_a_loss(taken: bool, reason: str, said: str) -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("extend", Gone(taken))
    with pytest.raises(LeaseLost, match=said) as caught:
        lease.extend()
    assert (caught.value.reason, caught.value.name) == (reason, "x")
    assert (lease.state, lease.remaining()) == ("lost", 0.0)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.extend()
    assert stage.store.verbs() == ["claim", "extend"], "what is lost is not asked about again"


def test_a_lease_that_is_over_is_not_extended() -> None:
    stage = Stage()
    lease = stage.held()
    stage.world.time += span(10.0)
    with pytest.raises(LeaseLost) as caught:
        lease.extend(60)
    assert caught.value.reason == "expired"
    assert stage.store.verbs() == ["claim"]


def test_an_answer_after_the_end_does_not_bring_a_lease_back() -> None:
    """Somebody saw `lost` and acted on it: from then on it is over, whatever the store says."""
    stage = Stage()
    lease = stage.held()
    seen: list[bool] = []

    def frozen(asked: object) -> object:
        stage.world.time += 20.0
        seen.append(lease.lost)
        return granted(60.0)

    stage.store.answers("extend", frozen).answers("release", True).answers("undo", True)
    with pytest.raises(LeaseLost):
        lease.extend(60)
    assert seen == [True]
    assert lease.lost


def test_a_lease_whose_extend_was_lost_is_given_back_even_after_its_end() -> None:
    """The store may hold it for the new ttl, long after this side stopped to believe in it."""
    stage = Stage()
    lease = stage.held()
    stage.store.answers("extend", silent())
    with pytest.raises(Unavailable):
        lease.extend(600)
    stage.world.time += 60.0
    assert lease.lost
    stage.store.answers("release", True)
    assert lease.release() is False, "it was lost, and that is what counts to the caller"
    assert stage.store.verbs() == ["claim", "extend", "release"], "but nothing stays behind for ten minutes"


def test_a_released_lease_is_neither_checked_nor_extended() -> None:
    stage = Stage()
    lease = stage.held()
    stage.store.answers("release", True)
    lease.release()
    for wrong in (lease.check, lease.extend, lease.__enter__):
        with pytest.raises(UsageError, match="was released"):
            wrong()


# --- blocks ---------------------------------------------------------------------------------------------------------------


def test_a_block_that_ends_well_releases() -> None:
    stage = Stage()
    stage.store.answers("claim", granted()).answers("release", True)
    with stage.lock as lease:
        assert lease.state == "held"
    assert lease.state == "released"


def test_a_failed_release_is_raised_if_the_body_raised_nothing() -> None:
    stage = Stage()
    stage.store.answers("claim", granted()).answers("release", silent()).answers("undo", silent())
    with pytest.raises(Unavailable, match="may stay locked"), stage.lock:
        pass


def test_the_bodys_exception_is_never_masked_by_a_failed_release() -> None:
    stage = Stage()
    stage.store.answers("claim", granted()).answers("release", silent()).answers("undo", silent())
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, stage.lock as lease:
        raise error
    assert caught.value is error
    (note,) = error.__notes__
    assert note.startswith("interlock: releasing 'x' failed as well: ")
    assert "may stay locked" in note
    assert lease.token[:32] not in note


def test_the_bodys_exception_is_never_masked_by_a_loss() -> None:
    stage = Stage()
    stage.store.answers("claim", granted())
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, stage.lock:
        stage.world.time += 60.0
        raise error
    assert caught.value is error
    assert error.__notes__ == ["interlock: the lease on 'x' was lost (expired) before the block ended"]


def test_a_body_that_raised_and_released_well_has_no_notes() -> None:
    stage = Stage()
    stage.store.answers("claim", granted()).answers("release", True)
    error = KeyError("mine")
    with pytest.raises(KeyError), stage.lock:
        raise error
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("late", [span(10.0), 3600.0])
def test_a_block_that_outlived_its_lease_says_so(late: float) -> None:
    stage = Stage()
    stage.store.answers("claim", granted())
    with pytest.raises(LeaseLost) as caught, stage.lock as lease:
        stage.world.time += late
    assert caught.value.reason == "expired"
    assert lease.token[:32] not in str(caught.value)


def test_a_block_whose_lease_the_store_had_dropped_says_so() -> None:
    stage = Stage()
    stage.store.answers("claim", granted()).answers("release", False)
    with pytest.raises(LeaseLost), stage.lock:
        pass


def test_a_block_in_which_the_lease_was_released_is_fine() -> None:
    stage = Stage()
    stage.store.answers("claim", granted()).answers("release", True)
    with stage.lock as lease:
        lease.release()
    assert stage.store.verbs() == ["claim", "release"]


def test_a_body_never_runs_without_the_lock() -> None:
    stage = Stage()
    stage.store.answers("claim", silent()).answers("undo", True)
    ran = []
    with pytest.raises(Unavailable), stage.lock:
        ran.append("body")
    assert ran == []
