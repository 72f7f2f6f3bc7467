"""What a store must do that carries claims of several names, and shared ones (`Capabilities.modes`): more of the suite.

    from interlock.testing.conformance import run_case
    from interlock.testing.modes import MODE_CASES

The contract is `core.claim.Claim`. Semaphores and reader-writer locks are made of these claims. The cases ask the port itself.
"""

from __future__ import annotations

from typing import Any

from ..api.aclient import AsyncClient
from ..core.claim import Announced, Claim, Gone, Granted, Refused, Renewal
from .conformance import Case, backend_of, fresh, token_of
from .faces import Body, Kit
from .lines import GRANT, WITHIN, hear, join_as, line_of

MODE_CASES: list[Case] = []


def case(body: Body) -> Body:
    """Adds a body to the suite."""
    MODE_CASES.append(Case(body.__name__, body, needs="modes"))
    return body


def slots_of(name: str, limit: int) -> tuple[str, ...]:
    """The names of a semaphore's slots."""
    return tuple(f"{name}#{slot}" for slot in range(limit))


async def ask(client: AsyncClient, name: str, names: tuple[str, ...] = (), shared: bool = False, ttl: float = 20.0) -> Claim:
    """A claim without a place, which is granted or refused: see `granted`."""
    claim = Claim(name, token_of(client), ttl, None, names, shared)
    await backend_of(client).claim(claim, WITHIN)
    return claim


async def granted(client: AsyncClient, claim: Claim) -> Granted:
    """The grant of a claim, repeated if need be."""
    answer = await backend_of(client).claim(claim, WITHIN)
    assert isinstance(answer, Granted), f"{claim.name} was refused: {answer}"
    return answer


async def refused(client: AsyncClient, claim: Claim) -> Refused:
    """The refusal of a claim."""
    answer = await backend_of(client).claim(claim, WITHIN)
    assert isinstance(answer, Refused), f"{claim.name} was granted: {answer}"
    return answer


async def let_go(client: AsyncClient, claim: Claim, name: str = "") -> None:
    """Release what a claim got: a slot, or the name itself."""
    store: Any = backend_of(client)
    assert await store.release(name or claim.name, claim.token, WITHIN, line=claim.name)


async def tokens_told(client: AsyncClient, count: int) -> list[Announced]:
    """So many announcements."""
    told: list[Announced] = []
    while len(told) < count:
        heard = await hear(client)
        assert heard, f"{len(told)} of {count} were told"
        told += heard
    return told


# --- several names ------------------------------------------------------------------------------------------------------


@case
async def any_of_several_names_will_do(kit: Kit) -> None:
    client, name = kit.client(), fresh("slots")
    slots = slots_of(name, 2)
    got = [await granted(client, await ask(client, name, slots)) for _ in slots]
    assert [grant.name for grant in got] == list(slots), "in the order of the claim"
    refusal = await refused(client, Claim(name, token_of(client), 20.0, None, slots))
    assert refusal.retry_after is not None
    assert 0 < refusal.retry_after <= 20.0


@case
async def a_repeated_claim_keeps_its_slot(kit: Kit) -> None:
    client, name = kit.client(), fresh("slot kept")
    slots = slots_of(name, 3)
    claim = await ask(client, name, slots)
    grant = await granted(client, claim)
    again = await granted(client, claim._replace(names=slots[::-1]))
    assert (again.name, again.fence) == (grant.name, grant.fence), "not a second one"
    others = [await granted(client, await ask(client, name, slots)) for _ in range(2)]
    assert len({grant.name, *(other.name for other in others)}) == 3


@case
async def a_slot_is_a_plain_lock(kit: Kit) -> None:
    client, name = kit.client(), fresh("plain slot")
    slots = slots_of(name, 2)
    lease = await client.lock(slots[0]).acquire(timeout=1)
    claim = await ask(client, name, slots)
    assert (await granted(client, claim)).name == slots[1]
    assert await client.lock(slots[1]).try_acquire() is None
    await lease.release()
    await let_go(client, claim, slots[1])
    assert not (await client.inspect(slots[1])).held


@case
async def the_release_of_a_slot_serves_the_one_line(kit: Kit) -> None:
    client, name = kit.client(), fresh("slot line")
    slots = slots_of(name, 2)
    holders = [await ask(client, name, slots) for _ in slots]
    first = await join_as(client, Claim(name, token_of(client), 20.0, None, slots), 1)
    second = await join_as(client, Claim(name, token_of(client), 20.0, None, slots), 2)
    before = (await granted(client, holders[1])).fence
    await let_go(client, holders[1], slots[1])
    (told,) = await tokens_told(client, 1)
    assert (told.name, told.token) == (slots[1], first.token)
    assert told.fence > before
    await let_go(client, holders[0], slots[0])
    (told,) = await tokens_told(client, 1)
    assert (told.name, told.token) == (slots[0], second.token)
    assert (await granted(client, first)).name == slots[1]


@case
async def a_waiter_is_served_only_with_a_slot_that_it_named(kit: Kit) -> None:
    client, name = kit.client(), fresh("other limit")
    slots = slots_of(name, 3)
    holders = [await ask(client, name, slots) for _ in slots]
    small = await join_as(client, Claim(name, token_of(client), 20.0, None, slots[:1]), 1)
    large = await join_as(client, Claim(name, token_of(client), 20.0, None, slots), 2)
    await let_go(client, holders[2], slots[2])
    assert [one.token for one in await tokens_told(client, 1)] == [large.token]
    await let_go(client, holders[0], slots[0])
    assert [one.token for one in await tokens_told(client, 1)] == [small.token]


# --- readers ------------------------------------------------------------------------------------------------------------


@case
async def readers_hold_together_and_writers_alone(kit: Kit) -> None:
    client, name = kit.client(), fresh("readers")
    one, two = await ask(client, name, shared=True), await ask(client, name, shared=True)
    fence = (await granted(client, one)).fence
    assert (await granted(client, two)).fence == fence, "a group has one fence"
    assert await client.lock(name).try_acquire() is None
    entry = await client.inspect(name)
    assert (entry.held, entry.fence) == (True, fence)
    await let_go(client, one)
    assert await client.lock(name).try_acquire() is None, "the other still reads"
    await let_go(client, two)
    lease = await client.lock(name).try_acquire()
    assert lease is not None
    assert lease.fence > fence
    await refused(client, one)
    await lease.release()
    assert (await granted(client, one)).fence > lease.fence, "another group"


@case
async def a_reader_that_dies_costs_only_itself(kit: Kit) -> None:
    client, name = kit.client(), fresh("dead reader")
    short, long = await ask(client, name, shared=True, ttl=0.3), await ask(client, name, shared=True)
    await kit.sleep(0.4)
    renewed = await backend_of(client).renew([Renewal(name, short.token, 5.0, 0), Renewal(name, long.token, 0.3, 0)], WITHIN)
    assert isinstance(renewed[0], Gone)
    assert isinstance(renewed[1], Granted)
    assert await client.lock(name).try_acquire() is None
    await kit.sleep(0.4)
    lease = await client.lock(name).try_acquire()
    assert lease is not None, "the group ends with its last reader"
    await lease.release()


@case
async def a_waiting_writer_stops_later_readers(kit: Kit) -> None:
    client, name = kit.client(), fresh("no starving")
    reader = await ask(client, name, shared=True)
    fence = (await granted(client, reader)).fence
    writer = await join_as(client, Claim(name, token_of(client), 20.0), 10)
    await refused(client, Claim(name, token_of(client), 20.0, shared=True))
    later = await join_as(client, Claim(name, token_of(client), 20.0, shared=True), 20)
    assert writer.place is not None
    early = Claim(name, token_of(client), 20.0, writer.place._replace(arrival=5), shared=True)
    assert (await granted(client, early)).fence == fence, "it came before the writer"
    await granted(client, reader)
    await let_go(client, reader)
    await let_go(client, early)
    (told,) = await tokens_told(client, 1)
    assert told.token == writer.token
    assert told.fence > fence
    await let_go(client, writer)
    (told,) = await tokens_told(client, 1)
    assert told.token == later.token


@case
async def readers_next_to_each_other_enter_together(kit: Kit) -> None:
    client, name = kit.client(), fresh("neighbours")
    writer = await ask(client, name)
    readers = [await join_as(client, Claim(name, token_of(client), 20.0, shared=True), at) for at in (1, 2)]
    second = await join_as(client, Claim(name, token_of(client), 20.0), 3)
    last = await join_as(client, Claim(name, token_of(client), 20.0, shared=True), 4)
    await let_go(client, writer)
    told = await tokens_told(client, 2)
    assert [one.token for one in told] == [reader.token for reader in readers]
    assert len({one.fence for one in told}) == 1
    for reader in readers:
        await let_go(client, reader)
    assert [one.token for one in await tokens_told(client, 1)] == [second.token]
    await let_go(client, second)
    assert [one.token for one in await tokens_told(client, 1)] == [last.token]


@case
async def readers_behind_a_writer_that_leaves_join_the_group(kit: Kit) -> None:
    client, name = kit.client(), fresh("writer leaves")
    reader = await ask(client, name, shared=True)
    writer = await join_as(client, Claim(name, token_of(client), 20.0), 1)
    behind = await join_as(client, Claim(name, token_of(client), 20.0, shared=True), 2)
    assert await backend_of(client).undo(name, writer.token, WITHIN)
    (told,) = await tokens_told(client, 1)
    assert (told.token, told.fence) == (behind.token, (await granted(client, reader)).fence)


@case
async def a_writer_that_cannot_be_told_stops_no_reader(kit: Kit) -> None:
    client, gone, name = kit.client(), kit.client(), fresh("dead writer")
    reader = await ask(client, name, shared=True)
    await join_as(gone, Claim(name, token_of(gone), 20.0), 1)
    await gone.close()
    other = Claim(name, token_of(client), 20.0, shared=True)
    assert (await granted(client, other)).fence == (await granted(client, reader)).fence


@case
async def a_writer_becomes_a_reader_in_one_step(kit: Kit) -> None:
    client, name = kit.client(), fresh("downgrade")
    writer = await ask(client, name)
    fence = (await granted(client, writer)).fence
    waiting = await join_as(client, Claim(name, token_of(client), 20.0, shared=True), 1)
    assert (await granted(client, writer._replace(shared=True))).fence == fence, "its fence stays"
    (told,) = await tokens_told(client, 1)
    assert (told.token, told.fence) == (waiting.token, fence), "readers in line join it"
    assert await client.lock(name).try_acquire() is None
    await let_go(client, writer)
    await let_go(client, waiting)
    assert not (await client.inspect(name)).held


@case
async def a_reader_does_not_become_a_writer(kit: Kit) -> None:
    client, name = kit.client(), fresh("upgrade")
    reader = await ask(client, name, shared=True)
    await refused(client, reader._replace(shared=False))
    assert isinstance(await granted(client, reader), Granted), "it still reads"


@case
async def a_served_reader_has_what_its_place_says(kit: Kit) -> None:
    client, name = kit.client(), fresh("reader's grant")
    writer = await ask(client, name)
    await join_as(client, Claim(name, token_of(client), 20.0, shared=True), 1)
    await let_go(client, writer)
    (told,) = await tokens_told(client, 1)
    assert told.ttl == GRANT
    entry = await line_of(client).inspect(name, WITHIN)
    assert entry.remaining is not None
    assert entry.remaining <= GRANT
