"""What a store that keeps a line must do (`Capabilities.lines`): more of the conformance suite, run like the rest of it.

    from interlock.testing.conformance import run_case
    from interlock.testing.lines import LINE_CASES

The contract that the cases mirror is `interlock.backends.port.Line`. They ask the port itself: what waits in line there is a
token, and who waits with it is the flow's affair.

This file is long because it is a list.
"""

from __future__ import annotations

from typing import cast

from ..api.aclient import AsyncClient
from ..backends.port import Line
from ..core.claim import Announced, Claim, Granted, Handed, Place, Refused
from ..core.token import owner_of
from .conformance import Case, backend_of, fresh, let_go, met, take, token_of
from .faces import Body, Kit

LINE_CASES: list[Case] = []
WITHIN = 5.0
GRANT = 3.0  # seconds that a grant lasts which finds somebody waiting


def case(body: Body) -> Body:
    """Adds a body to the suite."""
    LINE_CASES.append(Case(body.__name__, body, needs="lines"))
    return body


def line_of(client: AsyncClient) -> Line:
    """The port below a client whose store keeps a line."""
    return cast(Line, backend_of(client))


async def join(client: AsyncClient, name: str, arrival: int, token: str = "") -> Claim:
    """Stand in line behind whoever holds the name."""
    return await join_as(client, Claim(name, token or token_of(client), 20.0), arrival)


async def join_as(client: AsyncClient, claim: Claim, arrival: int) -> Claim:
    """Stand in line with this claim."""
    await met(client)
    line = line_of(client)
    claim = claim._replace(place=Place(arrival, await line.open_inbox(WITHIN), GRANT))
    refused = await line.claim(claim, WITHIN)
    assert isinstance(refused, Refused), f"{claim.name} was taken"
    assert refused.at > 0, "a store that keeps a line says what time it is"
    return claim


async def hear(client: AsyncClient, seconds: float = WITHIN) -> list[Announced]:
    """What is announced to a client within that time."""
    return list(await line_of(client).hear(client._context.runtime.now() + seconds))


async def told(client: AsyncClient, claim: Claim) -> Announced:
    """The next announcement. A slow node of a quorum gives hints to others as well, also to those who have left."""
    told: list[Announced] = []
    while not told:
        heard = await hear(client)
        assert heard, "nobody was told"
        told = [one for one in heard if one.ttl or one.token == claim.token]
    (announced,) = told
    assert (announced.name, announced.token) == (claim.name, claim.token)
    return announced


async def served(client: AsyncClient, claim: Claim) -> Announced:
    """The one announcement that there is, which is to that claim. A hint has the claim made again; there may be several, as a
    quorum also gives them when it hears a node that it could not hear before."""
    announced = await told(client, claim)
    while not announced.ttl:
        answer = await line_of(client).claim(claim, WITHIN)
        if isinstance(answer, Granted):
            announced = announced._replace(fence=answer.fence, ttl=answer.ttl)
        else:
            announced = await told(client, claim)
    entry = await line_of(client).inspect(claim.name, WITHIN)
    assert (entry.held, entry.fence) == (True, announced.fence)
    return announced


async def unserved(client: AsyncClient, seconds: float, why: str = "") -> None:
    """Nobody of that client is told that it has something."""
    assert [one for one in await hear(client, seconds) if one.ttl] == [], why


def still(answer: object, fence: int, ttl: float) -> None:
    """It has the lock as before. A node of a quorum that had not heard of that may have minted a higher fence."""
    assert isinstance(answer, Granted)
    assert answer.fence >= fence
    assert answer.ttl == ttl


async def leave(client: AsyncClient, claim: Claim) -> bool:
    """Release a claim, whatever has become of it."""
    return await line_of(client).release(claim.name, claim.token, WITHIN)


async def free_and_empty(client: AsyncClient, name: str) -> None:
    """Nobody has it, nobody waits for it, nobody is told anything."""
    assert (await line_of(client).inspect(name, WITHIN)).held is False
    last = await take(client, name)
    await let_go(client, last)
    assert (await line_of(client).inspect(name, WITHIN)).held is False, "nobody was served"
    await line_of(client).open_inbox(WITHIN)
    await unserved(client, 0.05)


@case
async def inspect_shows_who_waits(kit: Kit) -> None:
    name, client, other = fresh("queue"), kit.client(), kit.client()
    holder = await take(client, name)
    assert (await client.inspect(name)).waiters == 0
    at = (await line_of(client).claim(Claim(name, token_of(client), 1.0, Place(1, "", GRANT)), WITHIN)).at  # type: ignore[union-attr]
    now = int(at * 1e6)
    late, early = await join(client, name, now - 2_000_000), await join(other, name, now - 9_000_000)
    entry = await client.inspect(name)
    assert entry.waiters == len(entry.waiting)
    assert [waiting.owner for waiting in entry.waiting[-2:]] == [owner_of(early.token), owner_of(late.token)]
    assert 9 <= entry.waiting[-2].since < 60
    assert 2 <= entry.waiting[-1].since < entry.waiting[-2].since
    assert all(secret[:32] not in str(entry) for secret in (holder.token, early.token, late.token)), "nothing secret"
    await leave(client, late)
    await leave(other, early)


# --- standing there -----------------------------------------------------------------------------------------------------


@case
async def the_line_is_ordered_by_arrival(kit: Kit) -> None:
    name, client, other = fresh("arrival"), kit.client(), kit.client()
    holder = await take(client, name)
    late, early, middle = [await join(other, name, arrival) for arrival in (3000, 1000, 2000)]
    await let_go(client, holder)
    fences = [holder.fence]
    for claim in (early, middle, late):
        fences.append((await served(other, claim)).fence)
        assert await leave(other, claim) is True
    assert fences == sorted(set(fences))
    await free_and_empty(other, name)


@case
async def those_who_came_at_the_same_time_are_ordered_by_their_tokens(kit: Kit) -> None:
    name, client = fresh("same-time"), kit.client()
    holder = await take(client, name)
    claims = [await join(client, name, 1000, token) for token in sorted((token_of(client) for _ in range(4)), reverse=True)]
    await let_go(client, holder)
    for claim in reversed(claims):
        await served(client, claim)
        await leave(client, claim)


@case
async def a_repeated_claim_keeps_its_place(kit: Kit) -> None:
    name, client = fresh("keeps"), kit.client()
    holder = await take(client, name)
    first, second = await join(client, name, 1000), await join(client, name, 2000)
    await join(client, name, 500, second.token)
    await join(client, name, 9000, first.token)
    assert isinstance(await line_of(client).claim(first._replace(place=None), WITHIN), Refused)
    await let_go(client, holder)
    await served(client, first)
    await leave(client, first)
    await served(client, second)
    await leave(client, second)
    await free_and_empty(client, name)


@case
async def a_claim_without_a_place_is_not_in_line(kit: Kit) -> None:
    name, client = fresh("no-place"), kit.client()
    holder = await take(client, name)
    await line_of(client).open_inbox(WITHIN)
    assert isinstance(await line_of(client).claim(Claim(name, token_of(client), 5.0), WITHIN), Refused)
    await let_go(client, holder)
    await free_and_empty(client, name)


@case
async def whoever_is_granted_leaves_the_line(kit: Kit) -> None:
    name, client = fresh("leaves"), kit.client()
    await line_of(client).open_inbox(WITHIN)
    holder = await take(client, name, ttl=0.5)
    claim = await join(client, name, 1000)
    await kit.sleep(0.51)
    granted = await line_of(client).claim(claim, WITHIN)
    assert isinstance(granted, Granted)
    assert granted.fence > holder.fence
    assert await leave(client, claim) is True
    await free_and_empty(client, name)


@case
async def an_old_announcement_takes_nobody_out_of_line(kit: Kit) -> None:
    """It may come after its grant is over, when the token stands in line once more. Who leaves then must be out of it."""
    name, client, other = fresh("old-news"), kit.client(), kit.client()
    line = line_of(client)
    await met(client)
    claim = Claim(name, token_of(client), 20.0, Place(1000, await line.open_inbox(WITHIN), 0.5))
    holder = await take(other, name)
    assert isinstance(await line.claim(claim, WITHIN), Refused)
    await let_go(other, holder)
    await kit.sleep(0.51)
    another = await take(other, name)
    assert isinstance(await line.claim(claim, WITHIN), Refused)
    await told(client, claim)
    assert await leave(client, claim) is False
    await let_go(other, another)
    await free_and_empty(other, name)


@case
async def a_name_whose_holder_vanished_goes_to_whoever_claims_it(kit: Kit) -> None:
    name, client = fresh("vanished"), kit.client()
    await line_of(client).open_inbox(WITHIN)
    await take(client, name, ttl=0.5)
    waiting = await join(client, name, 1000)
    await kit.sleep(0.51)
    passing = await take(client, name)
    await unserved(client, 0.05)
    await let_go(client, passing)
    assert (await served(client, waiting)).fence > passing.fence, "it kept its place meanwhile"
    await leave(client, waiting)


@case
async def those_who_left_are_not_served(kit: Kit) -> None:
    name, client = fresh("left"), kit.client()
    holder = await take(client, name)
    released, undone, stays = [await join(client, name, arrival) for arrival in (1000, 2000, 3000)]
    assert await leave(client, released) is False
    assert await line_of(client).undo(name, undone.token, WITHIN) is True
    assert await line_of(client).undo(name, undone.token, WITHIN) is False, "there is nothing more to undo"
    await let_go(client, holder)
    await served(client, stays)
    await leave(client, stays)
    await free_and_empty(client, name)


@case
async def names_have_lines_of_their_own(kit: Kit) -> None:
    base, client = fresh("lines"), kit.client()
    names = [base, base + ":line", base + " 名前", base + " 7"]
    holders = [await take(client, name) for name in names]
    claims = [await join(client, name, 1000) for name in names]
    for holder, claim in reversed(list(zip(holders, claims, strict=True))):
        await let_go(client, holder)
        await served(client, claim)
    for claim in claims:
        assert await leave(client, claim) is True
        await free_and_empty(client, claim.name)


# --- being served -------------------------------------------------------------------------------------------------------


@case
async def an_announcement_says_what_was_granted(kit: Kit) -> None:
    name, client, other = fresh("announced"), kit.client(), kit.client()
    holder = await take(client, name)
    claim = await join(other, name, 1000)
    now = other._context.runtime.now
    asked_at, before = now(), await line_of(other).claim(claim, WITHIN)
    await kit.sleep(0.05)
    await let_go(client, holder)
    released_at, announced = now(), await served(other, claim)
    assert announced.fence > holder.fence
    assert announced.ttl == GRANT
    assert isinstance(before, Refused)
    assert announced.fence > before.fence, "it was granted after that answer"
    assert asked_at <= announced.at <= released_at, "on our clock, and never later than it was"
    remaining = (await line_of(other).inspect(name, WITHIN)).remaining
    assert 0 < (remaining or 0) <= GRANT


@case
async def whoever_is_served_holds_it(kit: Kit) -> None:
    name, client, other = fresh("holds"), kit.client(), kit.client()
    holder = await take(client, name)
    claim = await join(other, name, 1000)
    await let_go(client, holder)
    announced = await served(other, claim)
    line = line_of(other)
    assert isinstance(await line.claim(Claim(name, token_of(client), 5.0), WITHIN), Refused)
    still(await line.claim(claim, WITHIN), announced.fence, claim.ttl)  # a lost announcement costs nothing
    still(await line.extend(name, claim.token, 30.0, WITHIN), announced.fence, 30.0)
    assert await line.release(name, holder.token, WITHIN) is False
    assert await leave(other, claim) is True
    await free_and_empty(other, name)


@case
async def whoever_is_served_and_does_not_want_it_passes_it_on(kit: Kit) -> None:
    name, client, other = fresh("passed"), kit.client(), kit.client()
    holder = await take(client, name)
    first, second = await join(client, name, 1000), await join(other, name, 2000)
    await let_go(client, holder)
    assert await leave(client, first) is True  # its announcement is still unheard
    await served(other, second)
    assert {one.token for one in await hear(client, 0.1)} <= {first.token}, "it may be told of what it does not want any more"
    await leave(other, second)
    await free_and_empty(client, name)


@case
async def a_dead_inbox_is_passed_over(kit: Kit) -> None:
    name, client, dead, alive = fresh("dead"), kit.client(), kit.client(), kit.client()
    holder = await take(client, name)
    for arrival in (1000, 2000):
        await join(dead, name, arrival)
    waiting = await join(alive, name, 3000)
    await join(dead, name, 4000)
    await dead.close()
    await let_go(client, holder)
    await served(alive, waiting)
    await leave(alive, waiting)
    await free_and_empty(alive, name)


@case
async def everybody_hears_of_their_own_only(kit: Kit) -> None:
    name, clients = fresh("own"), [kit.client() for _ in range(3)]
    holder = await take(clients[0], name)
    claims = [await join(client, name, 1000 + n) for n, client in enumerate(clients)]
    assert len({claim.place.inbox for claim in claims if claim.place is not None}) == 3
    await let_go(clients[0], holder)
    for client, claim in zip(clients, claims, strict=True):
        await served(client, claim)
        for each in clients:
            await unserved(each, 0.01)
        await leave(client, claim)


@case
async def hearing_ends_in_time_and_an_inbox_is_opened_once(kit: Kit) -> None:
    client = kit.client()
    line = line_of(client)
    inbox = await line.open_inbox(WITHIN)
    began = client._context.runtime.now()
    assert await hear(client, 0.1) == []
    assert await hear(client, -1.0) == []
    assert 0.1 <= client._context.runtime.now() - began < 2
    assert await line.open_inbox(WITHIN) == inbox


@case
async def an_announcement_wakes_whoever_hears(kit: Kit) -> None:
    name, client, other = fresh("wakes"), kit.client(), kit.client()
    holder = await take(client, name)
    claim = await join(other, name, 1000)
    took: list[float] = []

    async def listen() -> None:
        began = other._context.runtime.now()
        await served(other, claim)
        took.append(other._context.runtime.now() - began)

    async def release() -> None:
        await kit.sleep(0.1)
        await let_go(client, holder)

    await kit.together(listen(), release())
    assert took[0] < 2
    await leave(other, claim)


@case
async def a_hundred_in_line_are_served_one_by_one(kit: Kit) -> None:
    name, client = fresh("hundred"), kit.client()
    holder = await take(client, name, ttl=30.0)
    claims = [await join(client, name, 1000 + n) for n in range(100)]
    await let_go(client, holder)
    for claim in claims:
        await served(client, claim)
        assert await leave(client, claim) is True
    await free_and_empty(client, name)


# --- handing over -------------------------------------------------------------------------------------------------------


def heir_of(client: AsyncClient, name: str, arrival: int, inbox: str) -> Claim:
    """Somebody of the same client who is to have it next."""
    return Claim(name, token_of(client), 20.0, Place(arrival, inbox, GRANT))


@case
async def a_hand_over_gives_it_to_the_heir(kit: Kit) -> None:
    name, client, other = fresh("heir"), kit.client(), kit.client()
    line = line_of(client)
    holder = await take(client, name)
    heir = heir_of(client, name, 1000, await line.open_inbox(WITHIN))
    waiting = await join(other, name, 1000)  # not earlier than the heir
    handed = await line.hand_over(name, holder.token, heir, 1000, WITHIN)
    assert isinstance(handed.heir, Granted)
    assert handed == Handed(True, Granted(handed.heir.fence, heir.ttl))
    assert handed.heir.fence > holder.fence
    entry = await line.inspect(name, WITHIN)
    assert entry.fence == handed.heir.fence
    assert GRANT < (entry.remaining or 0) <= heir.ttl, "for the whole of its ttl"
    assert await line.release(name, holder.token, WITHIN) is False
    still(await line.claim(heir, WITHIN), handed.heir.fence, heir.ttl)
    assert await leave(client, heir) is True
    await served(other, waiting)
    await leave(other, waiting)
    await free_and_empty(client, name)


@case
async def a_hand_over_serves_whoever_came_before_the_heir(kit: Kit) -> None:
    name, client, other = fresh("before"), kit.client(), kit.client()
    line = line_of(client)
    holder = await take(client, name)
    heir = heir_of(client, name, 1500, await line.open_inbox(WITHIN))
    late, early = await join(other, name, 2000), await join(other, name, 1000)
    handed = await line.hand_over(name, holder.token, heir, 1500, WITHIN)
    assert handed.held is True
    assert isinstance(handed.heir, Refused)
    assert 0 < (handed.heir.retry_after or 0) <= GRANT
    assert handed.heir.at > 0
    assert (await served(other, early)).fence > holder.fence
    await leave(other, early)
    await served(client, heir)
    await leave(client, heir)
    await served(other, late)
    await leave(other, late)
    await free_and_empty(client, name)


@case
async def a_hand_over_passes_over_the_dead(kit: Kit) -> None:
    name, client, dead = fresh("dead-before"), kit.client(), kit.client()
    line = line_of(client)
    holder = await take(client, name)
    heir = heir_of(client, name, 3000, await line.open_inbox(WITHIN))
    for arrival in (1000, 2000, 4000):
        await join(dead, name, arrival)
    await dead.close()
    handed = await line.hand_over(name, holder.token, heir, 3000, WITHIN)
    assert isinstance(handed.heir, Granted)
    await leave(client, heir)
    await free_and_empty(client, name)


@case
async def an_heir_may_come_before_everybody(kit: Kit) -> None:
    name, client, other = fresh("everybody"), kit.client(), kit.client()
    line = line_of(client)
    holder = await take(client, name)
    heir = heir_of(client, name, 5000, await line.open_inbox(WITHIN))
    waiting = await join(other, name, 1)
    assert isinstance((await line.hand_over(name, holder.token, heir, 0, WITHIN)).heir, Granted)
    await unserved(other, 0.05)
    await leave(client, heir)
    await served(other, waiting)
    await leave(other, waiting)


@case
async def an_heir_that_stands_in_line_leaves_it(kit: Kit) -> None:
    name, client = fresh("standing"), kit.client()
    line = line_of(client)
    holder = await take(client, name)
    heir = await join(client, name, 1000)
    handed = await line.hand_over(name, holder.token, heir, 2000, WITHIN)
    assert isinstance(handed.heir, Granted)
    assert handed.heir.ttl == heir.ttl
    assert ((await line.inspect(name, WITHIN)).remaining or 0) > GRANT
    await unserved(client, 0.05, "it knows by the answer")
    assert await leave(client, heir) is True
    await free_and_empty(client, name)


@case
async def an_heir_without_a_place_does_not_wait(kit: Kit) -> None:
    name, client, other = fresh("no-place-heir"), kit.client(), kit.client()
    holder = await take(client, name)
    waiting, heir = await join(other, name, 1000), Claim(name, token_of(client), 20.0)
    handed = await line_of(client).hand_over(name, holder.token, heir, 2000, WITHIN)
    assert isinstance(handed.heir, Refused)
    await served(other, waiting)
    assert await leave(other, waiting) is True
    await free_and_empty(client, name)


@case
async def a_hand_over_by_somebody_else_is_a_claim(kit: Kit) -> None:
    name, client = fresh("not-mine"), kit.client()
    line = line_of(client)
    inbox = await line.open_inbox(WITHIN)
    first, second = heir_of(client, name, 2000, inbox), heir_of(client, name, 1000, inbox)
    handed = await line.hand_over(name, token_of(client), first, 0, WITHIN)
    assert handed.held is False
    assert isinstance(handed.heir, Granted)
    refused = await line.hand_over(name, token_of(client), second, 0, WITHIN)
    assert refused.held is False
    assert isinstance(refused.heir, Refused)
    assert (refused.heir.retry_after or 0) > GRANT
    await leave(client, first)
    await served(client, second)
    await leave(client, second)
    await free_and_empty(client, name)
