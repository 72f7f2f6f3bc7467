"""What a quorum keeps on record and how long its first question may take: over nodes in memory, some of them slow."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from interlock.backends.memory import Memory, MemoryBackend
from interlock.backends.quorum import QuorumBackend, open_quorum
from interlock.core.claim import Claim, Granted, Place, Refused, Renewal
from interlock.core.quorum import Marker
from interlock.errors import NoQuorum, Unavailable
from interlock.runtime.aio import AsyncioRuntime

TOKEN, HOLDER = "t" * 32, "h" * 32


class Slow(MemoryBackend):
    """A node that takes `delay` seconds for each answer, and notes until when it was waited for."""

    def __init__(self, number: int, memory: Memory, runtime: AsyncioRuntime) -> None:
        super().__init__(f"memory {number}", memory, runtime)
        self.runtime, self.delay, self.waited_until = runtime, 0.0, list[float]()

    async def _takes_its_time(self, within: float) -> None:
        self.waited_until.append(self.runtime.now() + within)
        await self.runtime.sleep(min(self.delay, within))
        if self.delay >= within:
            raise Unavailable("late", backend=self.address, cause="timeout")

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Any = ()) -> Any:
        await self._takes_its_time(within)
        return await super().roll(within, mark, window, waits)

    async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
        await self._takes_its_time(within)
        return await super().enroll(roll, loss, within)

    async def vote(self, claim: Claim, proposal: int, within: float) -> Any:
        await self._takes_its_time(within)
        return await super().vote(claim, proposal, within)


def nodes(count: int, runtime: AsyncioRuntime) -> list[Slow]:
    return [Slow(number, Memory(runtime.now, runtime.wall_ms), runtime) for number in range(count)]


def lines(members: list[Slow], name: str) -> list[int]:
    """At which nodes the token stands in line."""
    return [n for n, member in enumerate(members) if any(one[1] == TOKEN for one in member._memory.lines.get(name, []))]


def test_a_waiter_with_a_short_ttl_leaves_all_lines() -> None:
    """It asks every few seconds, longer than twice its ttl: where it stands in line must be known until then."""

    async def body() -> None:
        runtime, moment = AsyncioRuntime(), 1000.0
        runtime.now = lambda: moment  # type: ignore[method-assign]
        members = nodes(5, runtime)
        holder, waiter = open_quorum(members, runtime), open_quorum(members, runtime)
        line: Any = waiter
        assert isinstance(await holder.claim(Claim("x", HOLDER, 60.0), 1.0), Granted)
        await line.open_inbox(1.0)
        await waiter.claim(Claim("first", "f" * 32, 1.0), 1.0)
        claim = Claim("x", TOKEN, 1.0, Place(1, "in", 1.0))
        waiter.poller.ready = lambda: [0, 1, 2]  # type: ignore[method-assign]
        assert isinstance(await waiter.claim(claim, 1.0), Refused)
        assert lines(members, "x") == [0, 1, 2]
        moment += 2.1
        await waiter.claim(Claim("other", "o" * 32, 1.0), 1.0)  # which would forget what is over
        moment += line.rely - 2.1
        waiter.poller.ready = lambda: [0, 3, 4]  # type: ignore[method-assign]
        assert isinstance(await waiter.claim(claim, 1.0), Refused)
        assert lines(members, "x") == [0, 1, 2, 3, 4]
        assert await waiter.undo("x", TOKEN, 1.0)
        assert lines(members, "x") == []

    asyncio.run(body())


def nodes_of(quorum: QuorumBackend, token: str) -> list[int]:
    """The nodes that may hold the token, as far as its client knows."""
    ticket = quorum.tickets.get(token)
    assert ticket is not None
    return sorted(ticket.nodes)


def test_a_lease_that_was_put_on_a_node_is_on_record_there() -> None:
    async def body() -> None:
        runtime = AsyncioRuntime()
        members = nodes(3, runtime)
        quorum = open_quorum(members, runtime)
        await quorum.claim(Claim("first", "f" * 32, 1.0), 1.0)
        quorum.poller.ready = lambda: [0, 1]  # type: ignore[method-assign]
        granted = await quorum.claim(Claim("x", TOKEN, 30.0), 1.0)
        assert isinstance(granted, Granted)
        assert nodes_of(quorum, TOKEN) == [0, 1]
        await quorum._extending._heal(2, [Renewal("x", TOKEN, 30.0, granted.fence)], runtime.now() + 1.0)
        assert [member._memory.held["x"].token for member in members] == [TOKEN] * 3
        assert nodes_of(quorum, TOKEN) == [0, 1, 2]
        assert await quorum.release("x", TOKEN, 1.0)
        await runtime.settle()
        assert not any("x" in member._memory.held for member in members)

    asyncio.run(body())


def test_a_renewal_does_not_put_on_record_what_was_released_meanwhile() -> None:
    async def body() -> None:
        runtime = AsyncioRuntime()
        quorum = open_quorum(nodes(3, runtime), runtime)
        granted = await quorum.claim(Claim("x", TOKEN, 30.0), 1.0)
        assert isinstance(granted, Granted)
        ticket = quorum.tickets.get(TOKEN)
        assert ticket is not None
        assert quorum.tickets.is_live(TOKEN)
        assert await quorum.release("x", TOKEN, 1.0)
        quorum.tickets.sent(ticket, (0, 1, 2), 30.0)  # as if it had been looked up before
        assert TOKEN not in quorum.tickets._tickets
        assert not quorum.tickets.is_live(TOKEN)

    asyncio.run(body())


async def first_question(quorum: QuorumBackend, within: float, token: str = TOKEN) -> object:
    try:
        return await quorum.claim(Claim("x", token, 10.0), within)
    except NoQuorum as error:
        return error


@pytest.mark.parametrize("case", ["one forgot, one hangs", "all are slow and new", "new, one hangs"])
def test_the_first_question_takes_no_longer_than_any_other(case: str) -> None:
    """It looks at the nodes again and again, or enrolls them. All of that has one end."""

    async def body() -> None:
        runtime, within = AsyncioRuntime(), 1.0
        members = nodes(5 if case == "one forgot, one hangs" else 3, runtime)
        listed = tuple(sorted(member.address for member in members))
        if case == "one forgot, one hangs":
            for member in members[1:]:
                await member.enroll(Marker(listed, 5, 5), (await member.roll(9.0, True)).loss, 9.0)
            members[4].delay = inf
        elif case == "all are slow and new":
            for member in members:
                member.delay = 0.6
        else:
            members[2].delay = inf
        for member in members:
            member.waited_until.clear()
        quorum, began = open_quorum(members, runtime), runtime.now()
        answer = await first_question(quorum, within)
        assert isinstance(answer, Granted if case == "one forgot, one hangs" else NoQuorum)
        last = max(moment for member in members for moment in member.waited_until)
        assert last - began <= 1.5 * within + 0.1, "and half as much for the vote itself"

    asyncio.run(body())


def test_who_has_more_time_asks_for_itself_when_the_first_question_failed() -> None:
    async def body() -> None:
        runtime = AsyncioRuntime()
        members = nodes(3, runtime)
        for member in members:
            member.delay = 0.1
        quorum = open_quorum(members, runtime)
        short, long = await asyncio.gather(first_question(quorum, 0.05, "s" * 32), first_question(quorum, 3.0))
        assert isinstance(short, NoQuorum)
        assert isinstance(long, Granted)

    asyncio.run(body())


def test_who_waits_for_the_first_question_hears_what_came_of_it() -> None:
    """Not each of a hundred asks all nodes again when it has failed."""

    async def body() -> None:
        runtime = AsyncioRuntime()
        members = nodes(3, runtime)
        members[2].delay = inf
        quorum = open_quorum(members, runtime)
        answers = await asyncio.gather(*(first_question(quorum, 0.5, f"{number:032}") for number in range(100)))
        assert {type(answer) for answer in answers} == {NoQuorum}
        assert len(set(map(id, answers))) == 100, "an error of its own: each is told more"
        assert {str(answer) for answer in answers} == {str(answers[0])}
        assert len(members[0].waited_until) < 10
        members[2].delay = 0.0
        assert isinstance(await first_question(quorum, 0.5), Granted), "later ones ask for themselves"

    asyncio.run(body())
