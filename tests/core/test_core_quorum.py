"""Votes, fences and rolls: what a quorum decides from numbers alone."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.claim import Granted, Refused
from interlock.core.fence import AHEAD_MS, EPOCH_MS, floor, propose
from interlock.core.quorum import LONGEST_REST, Health, Marker, Tally, reseed, table, votes_needed
from interlock.errors import Vote

nodes = st.integers(1, 9)
limits = st.integers(1, 12)


@given(nodes, limits)
def test_no_more_holders_than_the_limit_can_win(n: int, limit: int) -> None:
    """Each node gives at most `limit` grants, so `limit + 1` winners would need more grants than there are."""
    assert (limit + 1) * votes_needed(n, limit) > n * limit
    assert votes_needed(n, limit) <= n, "and it can be won at all"
    assert (limit + 1) * (votes_needed(n, limit) - 1) <= n * limit, "with one vote less it would not hold: it is the least"


def test_a_plain_majority_is_wrong_for_a_semaphore() -> None:
    """The counter-example, laid out: five nodes, limit 2, three winners with a majority each."""
    grants = [(0, 1, 2), (0, 3, 4), (1, 2, 3)]
    per_node = [sum(node in winner for winner in grants) for node in range(5)]
    assert max(per_node) <= 2, "no node gave more than it may"
    assert all(len(winner) >= votes_needed(5, 1) for winner in grants), "and yet three have a majority"
    assert votes_needed(5, 2) == 4
    assert votes_needed(3, 2) == 3


@given(nodes)
def test_a_lock_and_readers_need_a_majority(n: int) -> None:
    assert votes_needed(n) == votes_needed(n, None) == n // 2 + 1


answers = st.sampled_from(["yes", "no", "silence"])


@given(st.lists(answers, min_size=1, max_size=7), st.randoms())
def test_it_is_decided_as_early_as_possible_and_never_wrongly(said: list[str], order: object) -> None:
    tally = Tally(range(len(said)), len(said))
    whole = said.count("yes") >= votes_needed(len(said))
    indices = list(range(len(said)))
    order.shuffle(indices)  # type: ignore[attr-defined]
    for at, index in enumerate(indices):
        rest = len(said) - at
        certain = len(tally.granted) >= tally.needed or len(tally.granted) + rest < tally.needed
        assert tally.decided == certain
        tally.count(index, {"yes": Granted(5, 1.0), "no": Refused(2.0, "a:1"), "silence": OSError()}[said[index]])
    assert tally.decided
    assert tally.won == whole
    assert tally.hopeless == (said.count("yes") + said.count("no") < tally.needed)


@given(st.dictionaries(st.integers(0, 4), st.integers(1, 4), min_size=3))
def test_the_agreed_fence_is_the_highest_and_ends_on_a_quorum(fences: dict[int, int]) -> None:
    tally = Tally(range(5), 5)
    for node, fence in fences.items():
        tally.count(node, Granted(fence, 1.0))
    top, behind = tally.fence(), tally.behind()
    have = [node for node, fence in fences.items() if fence == top]
    assert top == max(fences.values())
    assert (behind == []) == (len(have) >= 3), "one round trip when a quorum agrees"
    if behind:
        assert sorted(have + behind) == sorted(fences)


def test_the_wait_is_until_enough_nodes_are_free() -> None:
    tally = Tally(range(5), 5)
    tally.count(0, Granted(1, 1.0))
    for node, ends in ((1, 9.0), (2, 3.0), (3, 6.0)):
        tally.count(node, Refused(ends, "web:1"))
    assert tally.retry_after() == 6.0, "one has it, two more are needed: the second to end"
    tally.count(4, Refused(None, "web:2"))
    assert tally.retry_after() == 6.0
    assert tally.owner() == "web:1"
    forever = Tally(range(3), 3)
    for node in range(3):
        forever.count(node, Refused(None, ""))
    assert forever.retry_after() is None


FIVE = ("a", "b", "c", "d", "e")


@given(st.lists(st.builds(Marker, st.just(FIVE), st.integers(0, 2**50), st.integers(0, 5)), max_size=4))
def test_a_node_is_seeded_from_a_quorum_of_the_others_or_not_at_all(rolls: list[Marker]) -> None:
    roll = reseed(rolls, FIVE)
    if len(rolls) < 3:
        assert roll is None
    else:
        assert roll is not None
        assert roll.seed == roll.high == max(r.high for r in rolls)
        assert roll.nodes == FIVE


def test_a_quorum_of_the_others_has_seen_every_fence() -> None:
    """Whatever quorum stored a fence, with the forgetful node in it or not, and whichever others answer: they share a node."""
    for n in (3, 5, 7):
        q = votes_needed(n)
        for stored in itertools.combinations(range(n), q):
            for asked in itertools.combinations(range(1, n), q):  # node 0 is the forgetful one
                assert set(stored) & set(asked)


@given(st.integers(1, 2**50), st.integers(0, 2**52), st.integers(EPOCH_MS, EPOCH_MS + 10**11))
def test_a_proposal_never_lowers_and_never_leads_far_ahead(minted: int, proposal: int, wall_ms: int) -> None:
    fence = propose(minted, proposal, wall_ms)
    assert fence >= minted
    assert fence <= max(minted, floor(wall_ms + AHEAD_MS))
    if minted < proposal <= floor(wall_ms):
        assert fence == proposal


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=12))
def test_a_node_that_fails_rests_longer_each_time_and_not_for_ever(jitters: list[float]) -> None:
    health = Health()
    for jitter in jitters:
        health.failed(100.0, jitter)
        assert 100.0 < health.retry_at <= 100.0 + LONGEST_REST
    health.answered()
    assert health.retry_at == 0.0


def test_the_table_is_a_line_each() -> None:
    text = table([Vote("redis://a:6379", "granted", 0.0004), Vote("redis://bb:6379", "held", 0.001, "until 3.2 s by w:1")])
    assert text.splitlines() == [
        "  redis://a:6379   granted after 0.4 ms",
        "  redis://bb:6379  held after 1.0 ms (until 3.2 s by w:1)",
    ]
