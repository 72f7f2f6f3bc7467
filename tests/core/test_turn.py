"""A quorum of announcements is a grant only if nodes agree, and only if they say something new."""

from __future__ import annotations

import pytest

from interlock.core.turn import GrantTally, Served


def test_a_quorum_of_equal_announcements_is_a_grant() -> None:
    turn = GrantTally(needed=3, nodes=5)
    for node, since in ((0, 7.0), (1, 5.0)):
        turn.told(node, Served(12, 3.0, since), 11)
        assert turn.granted() is None
        assert not turn.hopeful
    turn.told(4, Served(12, 2.5, 6.0), 11)
    assert turn.granted() == Served(12, 2.5, 5.0), "as short as the shortest, as old as the third"
    turn.told(3, Served(12, 3.0, 6.5), 11)
    assert turn.granted() == Served(12, 2.5, 6.0), "as old as a quorum is"


@pytest.mark.parametrize(
    ("served", "after"),
    [
        pytest.param(Served(13, 3.0, 6.0), 11, id="another fence"),
        pytest.param(Served(12, 3.0, 6.0), 12, id="not after its last answer: given back since, perhaps"),
        pytest.param(Served(12, 3.0, 6.0), None, id="has never answered"),
        pytest.param(None, 11, id="nobody knows when"),
    ],
)
def test_anything_else_is_a_hint(served: Served | None, after: int | None) -> None:
    turn = GrantTally(needed=3, nodes=4)
    turn.told(0, Served(12, 3.0, 5.0), 11)
    turn.told(1, Served(12, 3.0, 5.0), 11)
    turn.told(2, served, after)
    assert turn.granted() is None
    assert not turn.hopeful, "the last one may still agree"
    turn.told(3, served, after)
    assert turn.hopeful
    if served is None or after != 11:
        assert turn.granted() is None


def test_what_is_kept_counts_for_hope_only() -> None:
    turn = GrantTally(needed=3, nodes=5, kept=[0, 1])
    assert not turn.hopeful
    turn.told(0, Served(12, 3.0, 5.0), 11)
    assert not turn.hopeful
    turn.told(2, Served(12, 3.0, 5.0), 11)
    assert turn.hopeful
    assert turn.granted() is None
