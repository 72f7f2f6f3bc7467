"""What a store promises as a node of a quorum: its roll stays true, whichever verb grants or lengthens a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from interlock.backends.port import LineMember, Member, NodeStatus
from interlock.backends.registry import open_backend
from interlock.core.claim import Announced, Claim, Gone, Granted, Handed, Place, Refused, Renewal, Unmarked
from interlock.core.quorum import Marker
from interlock.core.token import alias_of
from interlock.core.waits import NOTED, Wait
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import Node
from interlock.testing.faces import COLOURS

NODES = ("one", "two", "three")
Step = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=COLOURS)
def step(request: pytest.FixtureRequest) -> Iterator[Step]:
    """Runs one question to its end, in either colour."""
    if request.param == "blocking":
        yield run
    else:
        with asyncio.Runner() as runner:
            yield runner.run


@pytest.fixture
def member(store: str, step: Step) -> Iterator[Member]:
    backend = cast(Member, open_backend(store, cast(Any, BlockingRuntime() if step is run else AsyncioRuntime())))
    backend.elect(NODES, lambda token: False)
    yield backend
    step(backend.close())


def take(member: Member, step: Step, name: str, ttl: float) -> Renewal:
    token = f"{name:x>32}~host:1"
    granted = step(member.vote(Claim(name, token, ttl), 0, 5.0))
    assert isinstance(granted, Granted)
    return Renewal(name, token, ttl, granted.fence)


def test_the_roll_stays_true(member: Member, step: Step) -> None:
    def roll() -> Marker:
        return cast(Marker, step(member.roll(5.0)).roll)

    def held() -> float:
        return cast(NodeStatus, step(member.roll(5.0))).held

    assert step(member.enroll(Marker(NODES), step(member.roll(5.0, True)).loss, 5.0))
    assert roll().unused
    assert held() == 0
    leases = [take(member, step, name, 2.0) for name in "abc"]
    assert 1 < held() <= 2
    assert roll().high >= max(lease.fence for lease in leases)

    a, b, c = leases
    assert isinstance(step(member.extend(a.name, a.token, 5.0, 5.0, a.fence + 10**7)), Granted)
    assert 4 < held() <= 5
    assert roll().high >= a.fence + 10**7

    top = roll().high + 10**7
    batch = [a._replace(ttl=7.0), b._replace(ttl=900.0, fence=top), c._replace(ttl=8.0)]
    assert all(isinstance(answer, Granted) for answer in step(member.renew(batch, 5.0)))
    assert 890 < held() <= 900, "the longest of the batch"
    assert roll().high >= top, "and its highest fence"

    before = roll()
    step(member.renew([a._replace(ttl=1.0)], 5.0))
    assert roll() == before, "it never falls"
    stranger = a._replace(token="s" * 32, ttl=100.0, fence=roll().high + 10**7)
    before = roll()
    assert step(member.renew([stranger], 5.0)) == [Gone(taken=True)]
    assert roll() == before, "what was not extended is not noted"
    assert step(member.release(b.name, b.token, 5.0))
    assert held() <= 10, "a long lease that was released does not count"


def test_a_loss_of_memory_has_a_name_and_only_who_names_it_ends_it(member: Member, step: Step) -> None:
    roll = Marker(NODES)
    assert step(member.roll(5.0)).loss == "", "whoever only looks leaves nothing behind"
    assert step(member.roll(5.0)).loss == step(member.roll(5.0)).loss
    loss = step(member.roll(5.0, True)).loss
    assert len(loss) > 0
    assert step(member.roll(5.0, True)).loss == loss, "the same for all"
    assert not step(member.enroll(roll, "another", 5.0)), "another loss than the one that was waited for"
    assert not step(member.enroll(roll, "", 5.0))
    assert isinstance(step(member.vote(Claim("x", "t" * 32, 2.0), 0, 5.0)), Unmarked)
    assert step(member.enroll(roll, loss, 5.0))
    assert step(member.roll(5.0, True)) == step(member.roll(5.0))
    assert step(member.roll(5.0)).roll is not None
    assert not step(member.enroll(roll, loss, 5.0)), "it has one"


def test_no_roll_appears_where_there_was_none(member: Member, step: Step) -> None:
    token = "t" * 32
    granted = step(member.claim(Claim("x", token, 2.0), 5.0))
    assert step(member.extend("x", token, 3.0, 5.0, granted.fence)) == Granted(granted.fence, 3.0)
    assert step(member.renew([Renewal("x", token, 4.0, granted.fence)], 5.0)) == [Granted(granted.fence, 4.0)]
    assert step(member.roll(5.0)).roll is None, "a node that lost its roll must not get one by the way"


def test_a_roll_is_good_for_one_list_of_nodes(member: Member, step: Step) -> None:
    assert step(member.enroll(Marker(NODES), step(member.roll(5.0, True)).loss, 5.0))
    take(member, step, "a", 2.0)
    member.elect((*NODES, "four", "five"), lambda token: False)
    assert step(member.vote(Claim("b", "t" * 32, 2.0), 0, 5.0)) == Unmarked()
    standing = step(member.roll(5.0))
    assert (standing.good, standing.roll.nodes) == (True, NODES), "it says for which"
    assert step(member.inspect("b", 5.0)).held is False


def test_a_closed_roll_is_good_for_nobody_and_is_opened_by_who_knows_how_it_stands(member: Member, step: Step) -> None:
    assert step(member.enroll(Marker(NODES), step(member.roll(5.0, True)).loss, 5.0))
    lease = take(member, step, "a", 2.0)
    state = step(member.roll(5.0)).loss
    assert step(member.enroll(Marker(NODES, closed=True), state, 5.0))
    assert step(member.vote(Claim("b", "t" * 32, 2.0), 0, 5.0)) == Unmarked()
    assert isinstance(step(member.extend(lease.name, lease.token, 2.0, 5.0, lease.fence)), Granted), "what is held goes on"
    closed = step(member.roll(5.0))
    assert (closed.roll.closed, closed.good) == (True, True)
    assert closed.roll.high >= lease.fence, "the highest fence is not forgotten"
    assert not step(member.enroll(Marker(NODES), state, 5.0)), "that was before it was closed"
    assert step(member.enroll(Marker(NODES), closed.loss, 5.0))
    assert isinstance(step(member.vote(Claim("b", "t" * 32, 2.0), 0, 5.0)), Granted)


def test_a_fence_that_is_not_above_the_seed_is_minted_anew(member: Member, step: Step) -> None:
    """A node that came back with an older state: its counters are older than what the others gave it as its seed."""
    assert step(member.enroll(Marker(NODES), step(member.roll(5.0, True)).loss, 5.0))
    lease = take(member, step, "a", 5.0)
    seed = lease.fence + 10**9
    assert step(member.enroll(Marker(NODES, seed, seed), step(member.roll(5.0)).loss, 5.0))
    again = step(member.vote(Claim("a", lease.token, 5.0), 0, 5.0))
    assert again.fence > seed, "a claim repeated by the holder"
    assert step(member.vote(Claim("a", lease.token, 5.0), 0, 5.0)) == again
    assert take(member, step, "b", 5.0).fence > seed


# --- a line on a node of a quorum ---------------------------------------------------------------------------------------


def token(letter: str) -> str:
    return f"{letter:0>32}~host:1"


@pytest.fixture
def node(member: Member, step: Step) -> LineMember:
    """One that is elected and has its roll."""
    lined = cast(LineMember, member)
    assert step(lined.enroll(Marker(NODES), step(lined.roll(5.0, True)).loss, 5.0))
    return lined


def ticket(node: LineMember, step: Step, letter: str, arrival: int) -> Claim:
    return Claim("x", token(letter), 5.0, Place(arrival, step(node.open_inbox(5.0)), 3.0))


def heard(node: LineMember, step: Step) -> list[Announced]:
    return list(step(node.hear(now() + 0.2)))


def test_a_refusal_tells_holders_apart_and_says_how_far_the_fences_are(node: LineMember, step: Step) -> None:
    granted = step(node.vote(ticket(node, step, "a", 1), 0, 5.0))
    first = step(node.vote(ticket(node, step, "b", 2), 0, 5.0))
    bare = step(node.vote(Claim("x", token("c"), 5.0), 0, 5.0))
    assert first.holder == bare.holder == alias_of(token("a"))
    assert token("a")[:8] not in first.holder
    assert first.fence == bare.fence == granted.fence


def test_whoever_is_served_gets_the_proposal_and_the_roll_knows(node: LineMember, step: Step) -> None:
    granted = step(node.vote(ticket(node, step, "a", 1), 0, 5.0))
    refused = step(node.vote(ticket(node, step, "b", 2), 0, 5.0))
    assert isinstance(refused, Refused)
    assert step(node.release("x", token("a"), 5.0, granted.fence + 1000)) is True
    (announced,) = heard(node, step)
    assert (announced.token, announced.fence) == (token("b"), granted.fence + 1000)
    assert announced.fence > refused.fence
    roll, _, held, *_ = step(node.roll(5.0))
    assert held > 2.0
    assert roll.high >= announced.fence
    heir = Claim("x", token("c"), 9.0)
    handed = step(node.hand_over("x", token("b"), heir, 0, 5.0, announced.fence + 1000))
    assert handed == Handed(True, Granted(announced.fence + 1000, 9.0))
    roll, _, held, *_ = step(node.roll(5.0))
    assert held > 8.0
    assert roll.high >= announced.fence + 1000


def test_a_lower_proposal_does_not_lower_a_fence(node: LineMember, step: Step) -> None:
    granted = step(node.vote(ticket(node, step, "a", 1), 0, 5.0))
    handed = step(node.hand_over("x", token("a"), ticket(node, step, "b", 2), 0, 5.0, 1))
    assert handed.heir.fence > granted.fence


def test_handed_over_to_itself_it_is_kept_from_those_who_came_later(node: LineMember, step: Step) -> None:
    mine = ticket(node, step, "b", 5)
    granted = step(node.vote(mine, 0, 5.0))
    for letter, arrival in (("c", 5), ("a", 6)):  # the same arrival, and a token behind; an earlier token, but later
        assert isinstance(step(node.vote(ticket(node, step, letter, arrival), 0, 5.0)), Refused)
    handed = step(node.hand_over("x", mine.token, mine, 5, 5.0, granted.fence + 10))
    assert handed.heir == Granted(granted.fence, 5.0), "with its fence"
    assert heard(node, step) == []
    assert step(node.release("x", mine.token, 5.0)) is True
    assert [one.token for one in heard(node, step)] == [token("c")]


@pytest.mark.parametrize(("letter", "arrival"), [("f", 4), ("a", 5)])
def test_handed_over_to_itself_it_goes_to_those_who_came_before(
    node: LineMember, step: Step, letter: str, arrival: int
) -> None:
    mine = ticket(node, step, "b", 5)
    granted = step(node.vote(mine, 0, 5.0))
    assert isinstance(step(node.vote(ticket(node, step, letter, arrival), 0, 5.0)), Refused)
    refused = step(node.hand_over("x", mine.token, mine, 5, 5.0)).heir
    (announced,) = heard(node, step)
    assert announced.token == token(letter)
    assert announced.fence > granted.fence
    assert (refused.holder, refused.fence) == (alias_of(token(letter)), announced.fence)
    assert step(node.release("x", announced.token, 5.0)) is True
    assert [one.token for one in heard(node, step)] == [mine.token], "it stands in line"


def test_a_retreat_serves_nobody_and_stands_in_line(node: LineMember, step: Step) -> None:
    mine, other = ticket(node, step, "b", 1), ticket(node, step, "c", 2)
    granted = step(node.vote(mine, 0, 5.0))
    assert isinstance(step(node.vote(other, 0, 5.0)), Refused)
    assert step(node.retreat(mine, 60.0, 5.0)) == granted.fence
    assert heard(node, step) == []
    assert step(node.inspect("x", 5.0)).held is False
    passing = step(node.vote(Claim("x", token("d"), 5.0), 0, 5.0))
    assert isinstance(passing, Granted)
    assert step(node.release("x", token("d"), 5.0)) is True
    assert [one.token for one in heard(node, step)] == [mine.token]
    assert step(node.release("x", mine.token, 5.0)) is True
    assert [one.token for one in heard(node, step)] == [other.token]


def test_who_hears_late_that_it_was_served_leaves_the_line_all_the_same(node: LineMember, step: Step) -> None:
    """It was served, was told so by the next answer, lost the vote and stood back in line; only then does it hear of the first.
    Seed 3607 of the simulator, `reorder`: its release left it in line, and what it was granted there stayed until its ttl."""
    mine = ticket(node, step, "b", 2)
    step(node.vote(ticket(node, step, "a", 1), 0, 5.0))
    assert isinstance(step(node.vote(mine, 0, 5.0)), Refused)
    assert step(node.release("x", token("a"), 5.0)) is True
    assert isinstance(step(node.vote(mine, 0, 5.0)), Granted)
    step(node.retreat(mine, 60.0, 5.0))
    assert [one.token for one in heard(node, step)] == [mine.token]
    assert step(node.release("x", mine.token, 5.0)) is False
    assert step(node.inspect("x", 5.0)).waiters == 0


def test_a_hand_over_that_comes_too_early_leaves_the_line(node: LineMember, step: Step) -> None:
    """The token was granted on other nodes and goes on there; here somebody else still has the lock."""
    step(node.vote(ticket(node, step, "a", 1), 0, 5.0))
    step(node.vote(ticket(node, step, "b", 2), 0, 5.0))
    handed = step(node.hand_over("x", token("b"), ticket(node, step, "c", 3), 0, 5.0))
    assert isinstance(handed.heir, Refused)
    assert step(node.release("x", token("a"), 5.0)) is True
    assert [one.token for one in heard(node, step)] == [token("c")]


def test_without_its_roll_a_node_serves_nobody(member: Member, step: Step) -> None:
    lined = cast(LineMember, member)
    for verb in ("release", "hand_over"):
        assert isinstance(step(lined.claim(ticket(lined, step, "a", 1), 5.0)), Granted)  # as a single store would
        assert isinstance(step(lined.claim(ticket(lined, step, "b", 2), 5.0)), Refused)
        if verb == "release":
            assert step(lined.release("x", token("a"), 5.0)) is True
            assert step(lined.inspect("x", 5.0)).waiters == 1, "who waits keeps its place"
        else:
            assert step(lined.hand_over("x", token("a"), ticket(lined, step, "c", 3), 9, 5.0)) == Unmarked()
        assert heard(lined, step) == []
        assert step(lined.inspect("x", 5.0)).held is False


def test_waits_are_noted_once_and_counted_on(member: Member, step: Step, store: str) -> None:
    """See `core.waits`. With a good roll or without."""
    if store.startswith("sqlite"):  # its rolls are lost with the file only, which nobody restarts
        assert step(member.roll(5.0, True, 0.0, [Wait("loss", 1.0)])).waits == ()
        return
    (first,) = step(member.roll(5.0, True, 0.0, [Wait("loss", 1.0)])).waits
    assert first.loss == "loss"
    assert 1.0 <= first.age < 2.0
    assert first.left is None
    (second,) = step(member.roll(5.0, True, 0.0, [Wait("loss", 500.0, 60.0)])).waits
    assert first.age <= second.age < 100.0, "the first note stays"
    assert 59.0 < second.left <= 60.0, "what is left is news"
    (third,) = step(member.roll(5.0, True, 0.0, [Wait("loss", 0.0, 90.0)])).waits
    assert 50.0 < third.left <= second.left, "of two ends the nearest stays"
    (third,) = step(member.roll(5.0, True, 0.0, [Wait("loss", 0.0, 10.0)])).waits
    assert 5.0 < third.left <= 10.0, "whenever it is noted"
    assert step(member.roll(5.0)).waits[0].age >= third.age, "whoever only looks is told"
    assert step(member.enroll(Marker(NODES), step(member.roll(5.0, True)).loss, 5.0))
    many = [Wait(f"loss{n}", 0.0, 0.0) for n in range(NOTED)]
    waits = step(member.roll(5.0, True, 0.0, many)).waits
    assert [wait.loss for wait in waits] == [wait.loss for wait in many], "the newest are kept"
    assert all(wait.left == 0.0 for wait in waits)


def test_what_is_no_wait_is_not_told(valkey_node: Node, step: Step) -> None:
    backend = cast(Member, open_backend(valkey_node.url, cast(Any, BlockingRuntime() if step is run else AsyncioRuntime())))
    backend.elect(NODES, lambda token: False)
    valkey_node.command("FLUSHALL")
    valkey_node.command("SET", "interlock:waits", "loss\n1e400 x \x1b[2J nan 5\nlost 1 -1")
    assert [wait.loss for wait in step(backend.roll(5.0)).waits] == ["lost"]
    valkey_node.command("DEL", "interlock:waits")
    valkey_node.command("LPUSH", "interlock:waits", "x")
    assert step(backend.roll(5.0, True, 0.0, [Wait("loss", 1.0)])).waits[0].loss == "loss", "somebody spoilt it: written anew"
    valkey_node.command("SET", "interlock:waits", "a 1 1 " * 200_000)
    assert [wait.loss for wait in step(backend.roll(5.0, True, 0.0, [Wait("loss", 1.0)])).waits] == ["loss"], "nor in time"
    valkey_node.command("SET", "interlock:waits", f"a 1 {10**30}")
    step(backend.roll(5.0, True, 0.0, [Wait("loss", 1.0)]))
    assert [wait.loss for wait in step(backend.roll(5.0)).waits] == ["a", "loss"], "it is noted beside what cannot be"
    valkey_node.command("DEL", "interlock:waits")
    assert step(backend.roll(5.0, True, 0.0, [Wait("two words", 1.0), Wait("x" * 500, 1.0)])).waits == ()
    valkey_node.command("FLUSHALL")
    step(backend.close())


def test_a_loss_that_could_not_be_marked_is_not_let_in(member: Member, step: Step) -> None:
    """It could not be told from the next one: whoever waited for the one would let the node in after the other."""
    assert step(member.roll(5.0)).loss == ""
    assert not step(member.enroll(Marker(NODES), "", 5.0))
    assert step(member.roll(5.0)).roll is None


def test_a_full_server_has_a_loss_without_a_name(fresh_node: Callable[..., Node], step: Step) -> None:
    node = fresh_node()
    backend = cast(Member, open_backend(node.url, cast(Any, BlockingRuntime() if step is run else AsyncioRuntime())))
    backend.elect(NODES, lambda token: False)
    node.command("CONFIG", "SET", "maxmemory", "1")
    standing = step(backend.roll(5.0, True, 0.0, [Wait("loss", 1.0)]))
    assert (standing.loss, standing.good, standing.waits[0].loss) == ("", False, "loss")
    node.command("CONFIG", "SET", "maxmemory", "0")
    assert not step(backend.enroll(Marker(NODES), standing.loss, 5.0))
    assert step(backend.roll(5.0)).waits == (), "it was told, and not kept"
    step(backend.close())
