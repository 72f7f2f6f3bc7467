"""What becomes of each lease of a batch, from the nodes' answers alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.claim import Gone, Granted
from interlock.core.quorum import Extensions, votes_needed

FREE, TAKEN = Gone(taken=False), Gone(taken=True)
answers = st.one_of(
    st.none(), st.just(FREE), st.just(TAKEN), st.builds(Granted, st.integers(1, 9), st.sampled_from([5.0, 6.0]))
)


def outcome(said: list[Granted | Gone | None], able: int = 5, needed: int = 3) -> Granted | Gone | None:
    tally = Extensions(1, able, needed)
    for node, answer in enumerate(said):
        tally.count(node, [answer])
    return tally.outcomes[0]


@pytest.mark.parametrize(
    ("said", "able", "expected"),
    [
        ([], 5, None),
        ([Granted(7, 5.0)] * 2, 5, None),
        ([Granted(7, 5.0), Granted(9, 4.0), Granted(8, 5.0)], 5, Granted(9, 4.0)),
        ([FREE, TAKEN], 5, None),
        ([FREE, FREE, FREE], 5, Gone(taken=False, left=True)),
        ([FREE] * 5, 5, FREE),  # nobody has it
        ([FREE, TAKEN, FREE], 5, Gone(taken=True, left=True)),
        ([Granted(7, 5.0), Granted(7, 5.0), FREE, FREE], 5, None),
        ([Granted(7, 5.0), Granted(7, 5.0), FREE, FREE, None], 5, None),
        ([Granted(7, 5.0), Granted(7, 5.0), FREE, FREE], 4, Gone(False, True)),  # the fifth has no memory: it cannot hold it
        ([Granted(7, 5.0), Granted(7, 5.0)], 2, None),  # silence and quarantine alone do not make a lease gone
    ],
)
def test_the_outcome_of_a_lease(said: list[Granted | Gone | None], able: int, expected: Granted | Gone | None) -> None:
    for order in itertools.permutations(said):
        assert outcome(list(order), able) == expected


@given(st.integers(1, 7).flatmap(lambda n: st.lists(answers, min_size=n, max_size=n)))
def test_a_certain_outcome_is_final(said: list[Granted | Gone | None]) -> None:
    """Whatever comes later, granted stays granted and gone stays gone; and the two need different nodes to say so."""
    needed = votes_needed(len(said))
    kinds = [type(outcome(said[:heard], len(said), needed)) for heard in range(len(said) + 1)]
    certain = [kind for kind in kinds if kind is not type(None)]
    assert len(set(certain)) <= 1
    assert kinds == [type(None)] * (len(kinds) - len(certain)) + certain
    final = outcome(said, len(said), needed)
    if isinstance(final, Granted):
        assert sum(isinstance(answer, Granted) for answer in said) >= needed
        assert final.fence == max(answer.fence for answer in said if isinstance(answer, Granted))
    if isinstance(final, Gone):
        assert sum(isinstance(answer, Gone) for answer in said) > len(said) - needed


@given(st.integers(0, 4).flatmap(lambda n: st.lists(st.lists(answers, min_size=n, max_size=n), min_size=1, max_size=5)))
def test_each_lease_of_a_batch_is_decided_alone(nodes: list[list[Granted | Gone | None]]) -> None:
    tally = Extensions(len(nodes[0]), 5, 3)
    for node, said in enumerate(nodes):
        tally.count(node + 10, said)
    alone = [outcome([said[number] for said in nodes]) for number in range(len(nodes[0]))]
    assert tally.outcomes == alone
    assert tally.certain == (None not in alone)
    lacking = tally.lacking()
    for number, final in enumerate(alone):
        free = [node + 10 for node, said in enumerate(nodes) if said[number] == FREE]
        mine = [(fence, node) for lease, fence, node in lacking if lease == number]
        assert mine == ([(final.fence, node) for node in free] if isinstance(final, Granted) else [])
        if isinstance(final, Gone):
            gone = sum(isinstance(said[number], Gone) for said in nodes)
            assert final.left == (gone < 5), "unless everybody says that it is gone"
