"""What a store promises as a node of a quorum: its roll stays true, whichever verb grants or lengthens a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from interlock.backends.port import Member
from interlock.backends.registry import open_backend
from interlock.core.claim import Claim, Gone, Granted, Renewal
from interlock.core.quorum import Roll
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing.faces import COLOURS

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
    backend = open_backend(store, cast(Any, BlockingRuntime() if step is run else AsyncioRuntime()))
    yield cast(Member, backend)
    step(backend.close())


def take(member: Member, step: Step, name: str, ttl: float) -> Renewal:
    token = f"{name:x>32}~host:1"
    granted = step(member.vote(Claim(name, token, ttl), 0, 5.0))
    assert isinstance(granted, Granted)
    return Renewal(name, token, ttl, granted.fence)


def test_the_roll_stays_true(member: Member, step: Step) -> None:
    def roll() -> Roll:
        return cast(Roll, step(member.roll(5.0)).roll)

    assert step(member.enroll(Roll(1.0, 0, 0), step(member.roll(5.0, True)).loss, 5.0))
    leases = [take(member, step, name, 2.0) for name in "abc"]
    assert roll().longest == 2.0
    assert roll().high >= max(lease.fence for lease in leases)

    a, b, c = leases
    assert isinstance(step(member.extend(a.name, a.token, 5.0, 5.0, a.fence + 10**7)), Granted)
    assert roll().longest == 5.0
    assert roll().high >= a.fence + 10**7

    top = roll().high + 10**7
    batch = [a._replace(ttl=7.0), b._replace(ttl=9.0, fence=top), c._replace(ttl=8.0)]
    assert all(isinstance(answer, Granted) for answer in step(member.renew(batch, 5.0)))
    assert roll().longest == 9.0, "the longest of the batch"
    assert roll().high >= top, "and its highest fence"

    step(member.renew([a._replace(ttl=1.0)], 5.0))
    assert roll() == Roll(9.0, roll().high, 0), "it never falls"
    stranger = a._replace(token="s" * 32, ttl=100.0, fence=roll().high + 10**7)
    before = roll()
    assert step(member.renew([stranger], 5.0)) == [Gone(taken=True)]
    assert roll() == before, "what was not extended is not noted"


def test_no_roll_appears_where_there_was_none(member: Member, step: Step) -> None:
    token = "t" * 32
    granted = step(member.claim(Claim("x", token, 2.0), 5.0))
    assert step(member.extend("x", token, 3.0, 5.0, granted.fence)) == Granted(granted.fence, 3.0)
    assert step(member.renew([Renewal("x", token, 4.0, granted.fence)], 5.0)) == [Granted(granted.fence, 4.0)]
    assert step(member.roll(5.0)).roll is None, "a node that lost its roll must not get one by the way"
