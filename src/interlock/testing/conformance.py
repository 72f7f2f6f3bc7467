"""The conformance suite: what every store must do, each case written once, run in both colours.

For a store of your own:

    import pytest
    from interlock.testing.conformance import CASES, run_case

    @pytest.mark.parametrize("colour", ["blocking", "asyncio"])
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_my_store(case, colour):
        run_case(case, "mystore://…", colour)

Needs no pytest itself. Each case uses names of its own, so one store can serve all of them. The contract that the cases
mirror is in `interlock.backends.port`. A case that needs a capability runs where the store declares it; `cases_for` says which.

This file is long because it is a list.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..api.aclient import AsyncClient
from ..backends.port import Backend, Capabilities
from ..core.claim import Claim, Gone, Granted, Refused, Renewal
from ..errors import AcquireTimeout, InterlockError, LeaseLost, UsageError
from .faces import Body, Kit, run_body

CASES: list[Case] = []
_count = itertools.count()


class Case(NamedTuple):
    """One thing that a store must do. `needs` names the capability without which it does not apply."""

    name: str
    body: Body
    needs: str = ""

    def __str__(self) -> str:
        return self.name


def cases_for(capabilities: Capabilities) -> list[Case]:
    """The cases that apply to a store with these capabilities."""
    return [case for case in CASES if not case.needs or getattr(capabilities, case.needs)]


def run_case(case: Case, store: Any, colour: str) -> None:
    """Run one case on one store in one colour. Raises AssertionError, or whatever went wrong."""
    run_body(case.body, store, colour)


def case(body: Body) -> Body:
    """Adds a body to the suite."""
    CASES.append(Case(body.__name__, body))
    return body


def fresh(what: str) -> str:
    """A name that no other case uses, in this process or another."""
    return f"conformance:{what}:{os.getpid()}:{next(_count)}"


def backend_of(client: AsyncClient) -> Backend:
    """The port below a client: some promises can only be seen there."""
    return client._context.backend


def token_of(client: AsyncClient) -> str:
    """A fresh token, as a flow would mint it."""
    return client._context.runtime.token()


async def met(*clients: AsyncClient) -> None:
    """They have a connection to every node of a quorum. Without one a claim may be won before the last node hears of it, and
    what that node was to do is done by the next renewal only: fine for a lock, no ground to count votes on."""
    for client in clients:
        if client.address.startswith("quorum"):
            await client.inspect(fresh("met"))


async def raises(kind: type[BaseException], awaitable: Any) -> Any:
    """The error of the wanted kind that awaiting raised."""
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


# --- having it or not ---------------------------------------------------------------------------------------------------


@case
async def a_lock_excludes_and_lets_go(kit: Kit) -> None:
    name, one, two = fresh("excludes"), kit.client(), kit.client()
    lease = await one.lock(name).acquire(timeout=1)
    assert await two.lock(name).try_acquire() is None
    assert await one.lock(name).try_acquire() is None, "the same client is no exception"
    assert await lease.release() is True
    again = await two.lock(name).try_acquire()
    assert again is not None
    assert again.token != lease.token
    await again.release()


@case
async def names_do_not_touch_each_other(kit: Kit) -> None:
    client, base = kit.client(), fresh("independent")
    names = [
        base,
        base + "x",
        base.upper(),
        base + ":fence",
        base + " ",
        base + "*",
        base + "?",
        base + "[a]",
        base + "%",
        base + "'",
    ]
    names += [
        base + '"',
        base + "\\",
        base + "~",
        base + "ß",
        base + "ss",
        base + "名前",
        base + "/../x",
        base + "--",
        base + ";",
    ]
    leases = [await client.lock(name).acquire(timeout=0) for name in names]
    for name, lease in zip(names, leases, strict=True):
        assert lease.name == name
        assert (await client.inspect(name)).fence == lease.fence
        assert await lease.release() is True


@case
async def acquire_gives_up_in_time(kit: Kit) -> None:
    name, client = fresh("timeout"), kit.client()
    lease = await client.lock(name, ttl=30).acquire()
    error = await raises(AcquireTimeout, client.lock(name).acquire(timeout=0.15))
    assert TimeoutError in type(error).__mro__
    assert error.name == name
    assert error.waited >= 0.15
    assert str(os.getpid()) in error.owner, "the error says who has it"
    assert lease.token not in str(error)
    await raises(AcquireTimeout, client.lock(name, timeout=0).acquire())
    await raises(AcquireTimeout, client.lock(name, timeout=0.01).__aenter__())
    await lease.release()
    assert (await client.inspect(name)).held is False, "the ones who gave up left nothing"


@case
async def a_waiter_gets_it_after_release(kit: Kit) -> None:
    name, client = fresh("waiter"), kit.client()
    lease = await client.lock(name, ttl=30).acquire()
    order: list[str] = []

    async def holder() -> None:
        await kit.sleep(0.1)
        order.append("released")
        await lease.release()

    async def waiter() -> None:
        async with client.lock(name, timeout=10) as mine:
            order.append("acquired")
            assert mine.fence > lease.fence

    await kit.together(holder(), waiter())
    assert order == ["released", "acquired"]


@case
async def a_waiter_gets_it_after_expiry(kit: Kit) -> None:
    name, client = fresh("expiry"), kit.client()
    first = await client.lock(name, ttl=0.5).acquire()
    second = await client.lock(name, ttl=10).acquire(timeout=10)
    assert first.lost, "the first holder knew before the second had it"
    assert second.fence > first.fence
    await second.release()


@case
async def a_block_holds_and_releases(kit: Kit) -> None:
    name, client = fresh("block"), kit.client()
    async with client.lock(name) as lease:
        assert (lease.state, lease.lost) == ("held", False)
        lease.check()
        assert await client.lock(name).try_acquire() is None
    assert (lease.state, lease.lost, lease.remaining()) == ("released", False, 0.0)
    assert (await client.inspect(name)).held is False


@case
async def a_block_passes_on_what_the_body_raises(kit: Kit) -> None:
    name, client = fresh("body"), kit.client()

    async def body() -> None:
        async with client.lock(name):
            raise KeyError("mine")

    error = await raises(KeyError, body())
    assert error.args == ("mine",)
    assert (await client.inspect(name)).held is False


@case
async def a_lease_is_a_block_too(kit: Kit) -> None:
    name, client = fresh("lease-block"), kit.client()
    lease = await client.lock(name).try_acquire()
    assert lease is not None
    async with lease as same:
        assert same.fence == lease.fence
    assert (await client.inspect(name)).held is False
    await raises(UsageError, lease.__aenter__())


@case
async def a_lock_is_shared_and_used_again(kit: Kit) -> None:
    lock = kit.client().lock(fresh("shared"), timeout=10)
    inside: list[int] = []

    async def enter() -> None:
        for _ in range(5):
            async with lock as lease:
                inside.append(lease.fence)
                assert inside[-1] == lease.fence, "alone in here"

    await kit.together(*(enter() for _ in range(4)))
    assert len(inside) == 20
    assert inside == sorted(set(inside))


@case
async def contenders_never_overlap(kit: Kit) -> None:
    name, clients = fresh("contention"), [kit.client() for _ in range(3)]
    counter = 0
    fences: list[int] = []

    async def count(client: AsyncClient) -> None:
        nonlocal counter
        for _ in range(15):
            async with client.lock(name, timeout=30) as lease:
                seen = counter
                await kit.sleep(0.0005)
                counter = seen + 1
                fences.append(lease.fence)

    await kit.together(*(count(client) for client in clients for _ in range(2)))
    assert counter == 90
    assert fences == sorted(set(fences)), "strictly increasing in the order of the grants"


@case
async def a_decorated_function_runs_under_its_lock(kit: Kit) -> None:
    client, base = kit.client(), fresh("decorated")

    @client.locked(base + ":{order_id}", ttl=5)
    async def pay(order_id: int, *, amount: int = 1) -> tuple[int, bool, bool]:
        mine = await client.inspect(f"{base}:{order_id}")
        other = await client.inspect(f"{base}:{order_id + 1}")
        return amount, mine.held, other.held

    assert await pay(7, amount=3) == (3, True, False)
    assert await pay(order_id=7) == (1, True, False)
    assert (await client.inspect(f"{base}:7")).held is False


# --- the end of a lease -------------------------------------------------------------------------------------------------


@case
async def release_is_harmless_when_repeated(kit: Kit) -> None:
    name, client = fresh("twice"), kit.client()
    lease = await client.lock(name).acquire()
    assert await lease.release() is True
    assert await lease.release() is False
    other = await client.lock(name).acquire(timeout=0)
    assert await lease.release() is False
    assert (await client.inspect(name)).fence == other.fence, "the next holder is untouched"
    await other.release()


@case
async def an_expired_lease_knows_it(kit: Kit) -> None:
    name, client = fresh("expired"), kit.client()
    lease = await client.lock(name, ttl=0.25).acquire()
    assert 0 < lease.remaining() < 0.25
    await kit.sleep(0.26)
    assert (lease.lost, lease.state, lease.remaining()) == (True, "lost", 0.0)
    error = await raises(LeaseLost, _call(lease.check))
    assert (error.reason, error.name) == ("expired", name)
    assert lease.token not in str(error)
    await raises(LeaseLost, lease.extend(10))
    assert await lease.release() is False
    assert lease.lost, "it never comes back"


@case
async def a_late_holder_does_not_hurt_the_next(kit: Kit) -> None:
    name, client = fresh("late"), kit.client()
    late = await client.lock(name, ttl=0.25).acquire()
    await kit.sleep(0.26)
    now = await client.lock(name, ttl=30).acquire(timeout=5)
    assert await late.release() is False
    await raises(LeaseLost, late.extend(10))
    backend = backend_of(client)
    assert await backend.release(name, late.token, 1.0) is False, "nor with the flow's own caution out of the way"
    assert (await client.inspect(name)).fence == now.fence
    assert await now.release() is True


@case
async def a_block_that_outlives_its_lease_says_so(kit: Kit) -> None:
    name, client = fresh("outlived"), kit.client()

    async def silent() -> None:
        async with client.lock(name, ttl=0.25):
            await kit.sleep(0.26)

    async def failing() -> None:
        async with client.lock(name, ttl=0.25):
            try:
                await kit.sleep(0.26)
            finally:  # in asyncio the body is stopped at loss
                raise KeyError("mine")

    assert (await raises(LeaseLost, silent())).reason == "expired"
    error = await raises(KeyError, failing())
    assert any("lost" in note for note in error.__notes__), "the loss is a note on the body's exception"


@case
async def extend_sets_what_is_left(kit: Kit) -> None:
    name, client = fresh("extend"), kit.client()
    lease = await client.lock(name, ttl=5).acquire()
    fence = lease.fence
    await lease.extend(60)
    assert 55 < lease.remaining() < 60
    assert 55 < ((await client.inspect(name)).remaining or 0) <= 60
    await lease.extend(2)
    assert 1.5 < lease.remaining() < 2, "absolute, not added"
    assert ((await client.inspect(name)).remaining or 0) <= 2
    await lease.extend()
    assert 1.5 < lease.remaining() < 2
    assert lease.fence == fence
    await lease.release()
    await raises(UsageError, lease.extend(5))


@case
async def extend_says_when_the_store_let_go(kit: Kit) -> None:
    name, client = fresh("gone"), kit.client()
    lease = await client.lock(name, ttl=30).acquire()
    assert await backend_of(client).release(name, lease.token, 1.0) is True  # behind the lease's back
    other = await client.lock(name).acquire(timeout=0)
    error = await raises(LeaseLost, lease.extend(30))
    assert error.reason == "taken"
    assert lease.lost
    await other.release()


# --- fences and identity ------------------------------------------------------------------------------------------------


@case
async def fences_grow_with_every_grant(kit: Kit) -> None:
    name, clients = fresh("fences"), [kit.client(), kit.client()]
    fences = []
    for turn in range(20):
        lock = clients[turn % 2].lock(name, ttl=0.15 if turn % 5 == 4 else 10)
        lease = await lock.acquire(timeout=5)
        fences.append(lease.fence)
        if turn % 5 != 4:  # every fifth is left to expire
            await lease.release()
    assert fences == sorted(set(fences))
    assert fences[0] > 0
    assert fences[-1] < 2**53


@case
async def tokens_are_fresh_and_hidden(kit: Kit) -> None:
    client, name = kit.client(), fresh("token")
    tokens = set()
    for _ in range(3):
        async with client.lock(name) as lease:
            tokens.add(lease.token)
            secret = lease.token[:32]
            entry = await client.inspect(name)
            assert secret not in repr(entry) + repr(lease) + repr(client.lock(name)) + repr(client)
    assert len(tokens) == 3


@case
async def inspect_tells_who(kit: Kit) -> None:
    name, client, other = fresh("inspect"), kit.client(), kit.client()
    entry = await client.inspect(name)
    assert (entry.name, entry.held, entry.owner) == (name, False, "")
    lease = await client.lock(name, ttl=20).acquire()
    entry = await other.inspect(name)
    assert entry.held
    assert entry.fence == lease.fence
    assert entry.owner.endswith(f":{os.getpid()}")
    assert entry.remaining is not None
    assert 15 < entry.remaining <= 20
    await lease.release()
    assert (await other.inspect(name)).held is False


@case
async def a_lease_can_be_handed_over(kit: Kit) -> None:
    name, client = fresh("handed"), kit.client()
    lease = await client.lock(name).acquire()

    async def elsewhere() -> None:
        lease.check()
        await lease.extend(20)
        assert await lease.release() is True

    await kit.together(elsewhere())
    assert lease.state == "released"


# --- the port's own promises --------------------------------------------------------------------------------------------


@case
async def a_repeated_claim_answers_the_same(kit: Kit) -> None:
    client, name = kit.client(), fresh("idempotent")
    await met(client)
    backend, token = backend_of(client), token_of(client)
    first = await backend.claim(Claim(name, token, 5.0), 1.0)
    again = await backend.claim(Claim(name, token, 50.0), 1.0)
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    if client.address.startswith("quorum"):  # a node that was late for the first claim mints when it hears the second
        assert again.fence >= first.fence
    else:
        assert again.fence == first.fence
    assert ((await backend.inspect(name, 1.0)).remaining or 0) > 40, "the ttl is set anew"
    refused = await backend.claim(Claim(name, token_of(client), 5.0), 1.0)
    assert isinstance(refused, Refused)
    assert refused.retry_after is not None
    assert 40 < refused.retry_after <= 50
    assert await backend.release(name, token, 1.0) is True
    assert await backend.release(name, token, 1.0) is False
    third = await backend.claim(Claim(name, token, 5.0), 1.0)
    assert isinstance(third, Granted)
    assert third.fence > first.fence, "given back and taken again is a new grant"
    await backend.release(name, token, 1.0)


@case
async def a_stranger_changes_nothing(kit: Kit) -> None:
    client, name = kit.client(), fresh("stranger")
    backend, stranger = backend_of(client), token_of(client)
    expect([await backend.extend(name, stranger, 5.0, 1.0)], Gone(taken=False))
    lease = await client.lock(name).acquire()
    expect([await backend.extend(name, stranger, 5.0, 1.0)], Gone(taken=True))
    assert await backend.release(name, stranger, 1.0) is False
    await backend.undo(name, stranger, 1.0)
    entry = await backend.inspect(name, 1.0)
    assert (entry.held, entry.fence) == (True, lease.fence)
    await lease.release()


@case
async def a_fence_can_be_raised_and_stays(kit: Kit) -> None:
    client, name = kit.client(), fresh("raised")
    await met(client)
    backend = backend_of(client)
    lease = await client.lock(name).acquire()
    higher = lease.fence + 1000
    assert await backend.extend(name, lease.token, 10.0, 1.0, fence=higher) == Granted(higher, 10.0)
    assert await backend.extend(name, lease.token, 10.0, 1.0, fence=lease.fence) == Granted(higher, 10.0), "never down"
    repeated = await backend.claim(Claim(name, lease.token, 10.0), 1.0)
    assert isinstance(repeated, Granted)
    assert repeated.fence == higher
    await lease.release()
    async with client.lock(name) as following:
        assert following.fence > higher


@case
async def an_undo_leaves_nothing_of_its_token(kit: Kit) -> None:
    client, name = kit.client(), fresh("undo")
    backend, token = backend_of(client), token_of(client)
    await backend.undo(name, token, 1.0)
    assert (await client.inspect(name)).held is False
    async with client.lock(name):
        pass


# --- many leases at once -------------------------------------------------------------------------------------------------


async def take(client: AsyncClient, name: str, ttl: float = 5.0) -> Renewal:
    """Claim a name below the flow; what would renew it for a minute."""
    await met(client)
    token = token_of(client)
    granted = await backend_of(client).claim(Claim(name, token, ttl), 5.0)
    assert isinstance(granted, Granted), f"{name} was free"
    return Renewal(name, token, 60.0, granted.fence)


def expect(answers: Sequence[Granted | Gone | None], *expected: Renewal | Gone) -> None:
    """Each answer is the one for the lease in its place: extended for its own ttl under its fence, or gone."""
    assert len(answers) == len(expected)
    for answer, wanted in zip(answers, expected, strict=True):
        if isinstance(wanted, Gone):
            assert isinstance(answer, Gone)
            assert answer.taken == wanted.taken  # whether something is left depends on how many nodes of a quorum were heard
        else:
            assert isinstance(answer, Granted)
            assert answer.ttl == wanted.ttl
            assert answer.fence >= wanted.fence, "a quorum's node that was healed may have minted a higher one"


async def let_go(client: AsyncClient, *leases: Renewal) -> None:
    """Release them below the flow."""
    for lease in leases:
        await backend_of(client).release(lease.name, lease.token, 5.0)


@case
async def a_batch_is_renewed_and_answered_in_its_order(kit: Kit) -> None:
    client, base = kit.client(), fresh("batch")
    backend = backend_of(client)
    leases = [await take(client, f"{base}:{n}") for n in range(5)]
    # Every lease with a ttl of its own and in another order than they were taken, so that mixed-up answers show.
    batch = [lease._replace(ttl=20.0 + 10 * n) for n, lease in enumerate(reversed(leases))]
    expect(await backend.renew(batch, 5.0), *batch)
    for lease in batch:
        entry = await backend.inspect(lease.name, 5.0)
        assert entry.held
        assert lease.ttl - 5 < (entry.remaining or 0) <= lease.ttl
    shorter = [batch[0]._replace(ttl=2.0), batch[1]]
    expect(await backend.renew(shorter, 5.0), *shorter)
    assert ((await backend.inspect(batch[0].name, 5.0)).remaining or 0) <= 2, "absolute, not added"
    await let_go(client, *leases)


@case
async def a_lost_lease_in_a_batch_does_not_disturb_its_neighbours(kit: Kit) -> None:
    client, base = kit.client(), fresh("neighbours")
    backend = backend_of(client)
    expired = await take(client, f"{base}:expired", ttl=0.25)
    late = await take(client, f"{base}:late", ttl=0.25)
    await kit.sleep(0.26)
    next_one = await take(client, late.name)
    released, first, middle, last = [await take(client, f"{base}:{n}") for n in range(4)]
    await let_go(client, released)
    stranger = middle._replace(token=token_of(client))
    never = Renewal(f"{base}:never", token_of(client), 60.0, 1)
    answers = await backend.renew([first, released, late, middle, stranger, expired, never, last], 5.0)
    free, taken = Gone(taken=False), Gone(taken=True)
    expect(answers, first, free, taken, middle, taken, free, free, last)
    for lease in (first, middle, last):
        assert ((await backend.inspect(lease.name, 5.0)).remaining or 0) > 50
    entry = await backend.inspect(late.name, 5.0)
    assert (entry.held, entry.fence) == (True, next_one.fence), "the next holder is untouched"
    assert (entry.remaining or 0) <= 5
    await let_go(client, first, middle, last, next_one)


@case
async def a_renewal_never_revives(kit: Kit) -> None:
    client, base = kit.client(), fresh("revived")
    backend = backend_of(client)
    expired = await take(client, f"{base}:expired", ttl=0.25)
    released = await take(client, f"{base}:released")
    await let_go(client, released)
    await kit.sleep(0.26)
    for _ in range(2):
        expect(await backend.renew([expired, released], 5.0), Gone(taken=False), Gone(taken=False))
    for lease in (expired, released):
        assert (await backend.inspect(lease.name, 5.0)).held is False
        following = await take(client, lease.name)
        assert following.fence > lease.fence
        await let_go(client, following)


@case
async def a_renewal_raises_a_fence_and_never_lowers_it(kit: Kit) -> None:
    client, base = kit.client(), fresh("fenced-batch")
    backend = backend_of(client)
    low, high = await take(client, f"{base}:low"), await take(client, f"{base}:high")
    raised = high._replace(fence=high.fence + 1000)
    expect(await backend.renew([low._replace(fence=0), raised], 5.0), low, raised)
    expect(await backend.renew([high, low], 5.0), raised, low)
    await let_go(client, low, high)
    following = await take(client, high.name)
    assert following.fence > raised.fence
    await let_go(client, following)


@case
async def an_empty_batch_is_harmless(kit: Kit) -> None:
    client = kit.client()
    assert list(await backend_of(client).renew([], 5.0)) == []
    async with client.lock(fresh("empty")):
        assert list(await backend_of(client).renew([], 5.0)) == []


@case
async def three_hundred_leases_are_one_batch(kit: Kit) -> None:
    client, base = kit.client(), fresh("many")
    backend = backend_of(client)
    leases = [(await take(client, f"{base}:{n}", ttl=30.0))._replace(ttl=100.0 + n) for n in range(300)]
    await let_go(client, leases[150])
    expect(await backend.renew(leases, 5.0), *leases[:150], Gone(taken=False), *leases[151:])
    for lease in (leases[0], leases[149], leases[151], leases[299]):
        assert ((await backend.inspect(lease.name, 5.0)).remaining or 0) > 50
    await let_go(client, *leases)


# --- wrong use ----------------------------------------------------------------------------------------------------------

BAD_NAMES = [
    "",
    " ",
    "x" * 10_240,
    "a\0b",
    "a\nb",
    "a\x7fb",
    "order:{id}",
    "}{",
    "🔒",
    "a\u200bb",
    "e\u0301",
    "\ud800",
    None,
    7,
    b"x",
]
BAD_TTLS = [0, -1, float("nan"), float("inf"), 1e-9, 366 * 86_400, 10**400, True, "10", None]
BAD_TIMEOUTS = [-1, float("nan"), float("inf"), -1e-9, 10**400, True, "10"]


@case
async def wrong_arguments_are_refused_at_once(kit: Kit) -> None:
    client, name = kit.client(), fresh("arguments")
    bad: Any
    for bad in BAD_NAMES:
        await raises(UsageError, _call(lambda bad=bad: client.lock(bad)))
        await raises(UsageError, client.inspect(bad))
    for bad in BAD_TTLS:
        await raises(UsageError, _call(lambda bad=bad: client.lock(name, ttl=bad)))
    for bad in BAD_TIMEOUTS:
        await raises(UsageError, _call(lambda bad=bad: client.lock(name, timeout=bad)))
        await raises(UsageError, client.lock(name).acquire(timeout=bad))
    lease = await client.lock(name).acquire(timeout=0)
    for bad in BAD_TTLS[:-1]:  # None is extend's default
        await raises(UsageError, lease.extend(bad))
    assert lease.state == "held"
    assert lease.remaining() > 5, "a refused extend changes nothing"
    await lease.release()


@case
async def a_closed_client_says_so(kit: Kit) -> None:
    name, client = fresh("closed"), kit.client()
    lock = client.lock(name, ttl=0.5)
    lease = await lock.acquire()
    await client.close()
    await client.close()
    await raises(UsageError, lock.acquire())
    await raises(InterlockError, lease.release())


async def _call(function: Any) -> None:
    """A plain call as a coroutine."""
    function()
