"""Which nodes are a quorum: every client must count the same ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.membership import OtherList, common_list
from interlock.core.quorum import Marker

ABC, ABCDE = ("a", "b", "c"), ("a", "b", "c", "d", "e")
USED, UNUSED = Marker(ABC, high=7), Marker(ABC)


def test_a_new_cluster_is_called_what_we_call_it() -> None:
    assert common_list(["c", "a", "b"], {"a": None, "b": None, "c": None}) == ABC


def test_order_does_not_matter() -> None:
    assert common_list(["c", "b", "a"], {"a": USED, "b": USED, "c": USED}) == ABC


@pytest.mark.parametrize("roll", [USED, Marker(ABC, closed=True)])
def test_more_or_fewer_nodes_are_another_quorum(roll: Marker) -> None:
    with pytest.raises(OtherList) as caught:
        common_list(ABCDE, {"a": roll, "d": None, "e": None})
    assert caught.value.nodes == ABC
    with pytest.raises(OtherList):
        common_list(["a", "b"], {"a": roll})


def test_other_names_of_the_same_nodes_are_taken_over() -> None:
    assert common_list(["A", "B", "C"], {"A": USED, "B": USED, "C": USED}) == ABC
    assert common_list(["A", "B", "C"], {"A": USED, "B": USED}) == ABC, "the third did not answer"


def test_who_has_no_roll_and_is_not_listed_is_none_of_them() -> None:
    with pytest.raises(OtherList, match="d is none of them"):
        common_list(["a", "b", "d"], {"a": USED, "b": USED, "d": None})
    with pytest.raises(OtherList, match="d is none of them"):
        common_list(["a", "b", "d"], {"a": USED, "b": USED, "d": Marker(("x", "y", "z"))})
    assert common_list(ABC, {"a": USED, "b": USED, "c": None}) == ABC, "this one forgot"


def test_a_node_of_another_quorum_is_refused() -> None:
    with pytest.raises(OtherList, match="another quorum"):
        common_list(ABC, {"a": USED, "b": Marker(("b", "d", "e"), high=3), "c": Marker(("c", "d", "e"), high=3)})


def test_one_listed_node_that_says_otherwise_does_not_stop_the_others() -> None:
    """It came from another cluster, or its roll was spoilt. It is kept out by that."""
    stray = Marker(("c", "x", "y"), high=3)
    assert common_list(ABC, {"a": USED, "b": USED, "c": stray}) == ABC
    assert common_list(ABC, {"a": USED, "b": USED, "c": stray}, ABC) == ABC
    with pytest.raises(OtherList):
        common_list(ABC, {"a": USED, "c": stray})
    with pytest.raises(OtherList):
        common_list(ABC, {"a": USED, "b": stray, "c": stray}, ABC)
    with pytest.raises(OtherList, match="d is none of them"):
        common_list(("a", "b", "d"), {"a": USED, "b": USED, "d": Marker(("d", "x", "y"), high=3)})


def test_what_we_voted_with_stays() -> None:
    assert common_list(["a", "b", "c"], {"c": None}, ABC) == ABC
    with pytest.raises(OtherList):
        common_list(["a", "b", "d"], {"d": None}, ABC)
    assert common_list(ABC, {"a": Marker(ABCDE, high=9)}, ABC) == ABC, "one alone may be wrong"
    with pytest.raises(OtherList) as caught:
        common_list(ABC, {"a": Marker(ABCDE, high=9), "b": Marker(ABCDE, high=9)}, ABC)
    assert caught.value.nodes == ABCDE, "the other one is named"


def test_unused_lists_give_way_to_a_longer_one() -> None:
    assert common_list(ABCDE, {"a": UNUSED, "b": UNUSED, "c": None, "d": None, "e": None}) == ABCDE
    with pytest.raises(OtherList):
        common_list(ABC, {"a": Marker(ABCDE), "b": UNUSED, "c": UNUSED})


Lists = st.sampled_from([ABC, ABCDE, ("a", "b", "d"), ("c", "d", "e"), ("A", "b", "c")])
Rolls = st.one_of(st.none(), st.builds(Marker, Lists, st.integers(0, 1), st.just(0), st.booleans()))


@given(Lists, st.lists(Rolls, min_size=5, max_size=5))
def test_nobody_votes_with_a_list_that_a_used_roll_contradicts(own: tuple[str, ...], rolls: list[Marker | None]) -> None:
    seen = dict(zip(own, rolls, strict=False))
    try:
        chosen = common_list(own, seen)
    except OtherList:
        return
    assert len(chosen) == len(own)
    others = [roll for roll in seen.values() if roll is not None and not roll.unused and roll.nodes != chosen]
    assert 2 * len(others) < len(own), "a majority of other lists is never outvoted"
    for address, roll in seen.items():
        assert address in chosen or (roll is not None and roll.nodes == chosen)
