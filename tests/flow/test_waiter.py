"""The states of a waiter: the table is whole, and what it does not have is refused."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest

from interlock import AcquireTimeout, AsyncClient, Client
from interlock.core.claim import Refused
from interlock.core.lease import Hold
from interlock.flow.attempt import Attempt
from interlock.flow.waiting import waiter as states
from interlock.flow.waiting.queue import LocalQueue
from interlock.flow.waiting.waiter import EVENTS, LEFT, MOVES, OFFERED, State, Waiter


def test_the_table_can_be_drawn() -> None:
    assert len(MOVES) == len(set(MOVES)) == sum(map(len, EVENTS))
    names = {state.name for state in State}
    assert {before for before, _, _ in MOVES} == {after for _, _, after in MOVES} | {"NEW"} == names
    assert all(what for _, what, _ in MOVES)


def test_each_state_can_be_reached_and_left() -> None:
    reached, before = {"NEW"}, set[str]()
    while reached != before:
        before = set(reached)
        reached |= {after for start, _, after in MOVES if start in before}
    assert reached == {state.name for state in State}
    assert {start for start, _, after in MOVES if after == "LEFT"} == reached, "from everywhere"
    assert {after for start, _, after in MOVES if start == "LEFT"} == {"LEFT"}, "and for good"


def test_it_asks_or_is_offered_never_both() -> None:
    assert OFFERED not in states.ASK
    assert set(states.OFFER) == {State.QUEUED}, "no question, no place in line, no other offer"
    queue, me = LocalQueue(), Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(me)
    assert queue.turn(me, 1.0, last=False) is None
    assert not queue.offer(me, "b"), "it asks"
    queue.asked(me, 5.0)
    assert queue.offer(me, "b")
    assert not queue.offer(me, "c"), "twice"
    assert queue.turn(me, 6.0, last=False) is not None, "it is offered, so it does not ask"
    with pytest.raises(RuntimeError, match="OFFERED got 'asks'"):
        me.asks(last=False)


def test_the_last_question_is_asked_though_a_hand_over_is_on_its_way() -> None:
    """What the hand-over brings meanwhile is used; a place in line that it brings is not needed."""
    for served in (True, False):
        queue, me = LocalQueue(), Waiter(Attempt("x", 10), "a", 0.0)
        before, given = Hold("x", "old", 10, 1, 1e9), Hold("x", "b", 10, 2, 1e9)
        queue.enter(me)
        assert queue.offer(me, "b")
        assert queue.turn(me, 1.0, last=True) is None
        if served:
            assert queue.handed(before, me, given, barged=True)
            assert me.hold is given
        else:
            assert not queue.stands(me, Refused(5.0, "h:1"), 1.0), "its token must leave"
        queue.asked(me, 5.0)
        assert me.state is (State.SERVED if served else State.LAST)


def test_one_that_has_left_is_given_nothing() -> None:
    queue, me = LocalQueue(), Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(me)
    assert queue.offer(me, "b")
    queue.leave(me)
    assert not queue.handed(Hold("x", "old", 10, 1, 1e9), me, Hold("x", "b", 10, 2, 1e9), barged=True)
    assert me.state is LEFT
    assert me.hold is None


def test_a_lease_that_ended_unused_while_a_hand_over_is_on_its_way() -> None:
    """The announcement came first, and the lease that it brought is over. The hand-over's answer still decides."""
    queue, me = LocalQueue(), Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(me)
    assert queue.offer(me, "b")
    assert queue.serve(me, Hold("x", "b", 10, 2, 5.0))
    queue.back(me, "c")
    assert me.state is OFFERED
    assert not queue.offer(me, "d")
    assert queue.withdraw(me, "b")
    assert me.state is State.QUEUED


# --- how long it waited -----------------------------------------------------------------------------------------------------


def slow(client: Any, seconds: float) -> None:
    """Its store takes so long to answer a claim."""
    claim, sleep = client._context.backend.claim, client._context.runtime.sleep

    async def late(*args: Any) -> Any:
        await sleep(seconds)
        return await claim(*args)

    client._context.backend.claim = late


def test_a_question_without_a_wait_tells_how_long_it_took() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    with Client(url) as one, Client(url) as two:
        slow(one, 0.1)
        began = time.monotonic()
        lease = one.lock("x").acquire(timeout=0)
        assert 0.1 <= lease.waited <= time.monotonic() - began + 0.01
        slow(two, 0.1)
        with pytest.raises(AcquireTimeout, match=r"in 0\.[1-9]") as caught:
            two.lock("x").acquire(timeout=0)
        assert caught.value.waited >= 0.1
        lease.release()


def test_a_task_that_does_not_wait_tells_it_too() -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid.uuid4().hex}") as client:
            slow(client, 0.1)
            lease = await client.lock("x").acquire(timeout=0)
            assert lease.waited >= 0.1
            with pytest.raises(AcquireTimeout):
                await client.lock("x").acquire(timeout=0)
            await lease.release()

    asyncio.run(main())
