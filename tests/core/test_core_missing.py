"""Extensions without an answer: how much of a later answer may be believed, whatever the order in which they take effect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.lease import Hold, deadline
from interlock.core.missing import LATEST, MissingAnswers

START = 1000.0


def test_what_went_down_the_same_path_has_overtaken_nothing() -> None:
    missing = MissingAnswers()
    missing.add(2.0, START, followed=True)
    assert missing.believed(60.0, START + 0.1, settled=False) == 2.0, "it may arrive after that one"
    assert missing.believed(60.0, START + 0.2, settled=True) == 60.0
    assert missing.believed(60.0, START + 0.3, settled=False) == 60.0, "once is enough"


def test_an_answer_to_what_was_sent_before_the_loss_settles_nothing() -> None:
    """Two threads: one extends for 60 and is answered, after the other gave up an extend for 2 that it sent meanwhile."""
    missing = MissingAnswers()
    missing.add(2.0, START, followed=True)
    assert missing.believed(60.0, START - 0.1, settled=True) == 2.0
    assert missing.believed(60.0, START, settled=True) == 60.0


def test_a_renewal_is_not_followed_and_settles_with_time() -> None:
    missing = MissingAnswers()
    missing.add(2.0, START, followed=False)
    assert missing.believed(60.0, START + 1, settled=True) == 2.0
    assert missing.believed(60.0, START + LATEST - 0.01, settled=True) == 2.0
    assert missing.believed(60.0, START + LATEST, settled=False) == 60.0


def test_many_of_a_kind_are_one_and_the_latest_counts() -> None:
    missing = MissingAnswers()
    for number in range(1000):
        missing.add(2.0, START + number, followed=False)
    assert len(missing._some) == 1
    assert missing.believed(60.0, START + 999 + LATEST - 0.01, settled=False) == 2.0


steps = st.lists(
    st.tuples(st.sampled_from(["lost", "confirmed"]), st.floats(1.0, 60.0), st.booleans(), st.floats(0.0, 3.0)), max_size=30
)


@given(steps)
def test_a_lease_is_never_believed_past_what_a_missing_request_may_leave(history: list[tuple[str, float, bool, float]]) -> None:
    """Against the store itself: each request that is missing takes effect at the worst moment that is still possible."""
    hold, now = Hold("x", "t", 60.0, 1, deadline(START, 60.0)), START
    abroad: list[tuple[float, float, bool]] = []  # ttl, given up at, followed
    for what, ttl, flag, pause in history:
        now += pause
        if hold.lost(now):
            break
        if what == "lost":
            hold.unconfirmed(now, ttl, now, followed=flag)
            abroad.append((ttl, now, flag))
        else:
            hold.renewed(now, ttl, settled=flag)
            abroad = [one for one in abroad if not (now >= one[1] + LATEST or (flag and one[2]))]
            # The store has granted `ttl` now; what is still abroad may arrive right after that.
            ends = now + min([ttl, *(one[0] for one in abroad)])
            assert hold.deadline < ends
            assert hold.unsure == any(one[0] < ttl for one in abroad), "what the store keeps for longer is given back at a loss"
            if not abroad:
                assert hold.deadline == deadline(now, ttl), "and no less is believed than need be"
