"""The end of a lease: whoever waits for it hears when it comes nearer, and when it is lost, and only then."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, LeaseLost, Unavailable
from interlock.backends.redis.scripts import EXTEND
from interlock.core import missing
from interlock.core.lease import Hold
from interlock.flow.hold import run_out
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body

from ..conftest import STORES, store_url

PATIENCE = 20.0
NOISE = 2.0  # seconds, for a machine with other things to do
REQUEST = 0.3


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return store_url(request, request.param)


@pytest.fixture
def proxy(valkey_node: Node) -> Iterator[FaultProxy]:
    with FaultProxy(valkey_node.port) as proxy:
        yield proxy


def wait_for(true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.002)


async def eventually(kit: Kit, true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        await kit.sleep(0.002)


def asleep(client: Any, name: str, number: int = 1) -> bool:
    door = client._context.queue._queues.get(name)
    return door is not None and [waiter.bell is not None for waiter in door.waiters] == [True] * number


# --- the end comes nearer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renew", [False, True])
def test_whoever_waits_behind_a_lease_that_is_shortened_is_not_late(url: str, colour: str, renew: bool) -> None:
    name, waited = uuid4().hex, []

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30, renew=renew)
        lease = await client.lock(name, max_hold=30 if renew else None).acquire()
        end = 0.0

        async def wait() -> None:
            async with client.lock(name, timeout=PATIENCE):
                waited.append(time.monotonic() - end)

        async def shorten() -> None:
            nonlocal end
            await eventually(kit, lambda: asleep(client, name))
            await kit.sleep(0.05)  # asleep by now, until the end of the lease
            end = time.monotonic() + 0.5
            await lease.extend(0.5)
            lease._hold.kept = False  # as if its keeper were busy: it ends now

        await kit.together(wait(), shorten())

    run_body(body, url, colour)
    assert waited[0] < NOISE


def test_who_waits_for_a_loss_hears_of_an_end_that_comes_nearer(proxy: FaultProxy, colour: str) -> None:
    """Before the store has answered."""

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30)
        lease = await client.lock(uuid4().hex).acquire()
        heard: list[str] = []
        lease._hold.watch(heard.append)
        proxy.delay(0.2)
        await lease.extend(1)
        assert heard[:2] == ["nearer", "landed"]

    run_body(body, proxy.url, colour)


def test_the_body_of_a_block_is_stopped_at_an_end_that_came_nearer_by_itself() -> None:
    """An answer that is missing makes the end come nearer, without anybody who calls `extend` on this lease."""

    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=30, renew=False) as client:
            began = time.monotonic()
            with pytest.raises(LeaseLost):
                async with client.lock("x") as lease:
                    lease._hold.unconfirmed(lease._context.runtime.now(), 0.3)
                    await asyncio.sleep(PATIENCE)
            assert time.monotonic() - began < NOISE

    asyncio.run(main())


# --- an answer is missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renew", [False, True])
def test_a_confirmed_extension_supersedes_a_lost_one_down_the_same_connection(
    proxy: FaultProxy, colour: str, renew: bool
) -> None:
    name = uuid4().hex

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30, renew=renew, request_timeout=REQUEST)
        lease = await client.lock(name).acquire()
        await lease.extend(30)
        proxy.drop_reply_to(EXTEND.sha.encode())
        with pytest.raises(Unavailable):
            await lease.extend(2)
        assert lease.remaining() < 2
        await lease.extend(60)
        assert lease.remaining() > 55
        await kit.sleep(2)
        assert lease.state == "held"
        await lease.release()

    run_body(body, proxy.url, colour)


def test_down_another_connection_the_shorter_one_is_believed_until_the_other_cannot_arrive(
    proxy: FaultProxy, valkey_node: Node, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing, "LATEST", 1.0)
    name = uuid4().hex

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30, request_timeout=REQUEST)
        lease = await client.lock(name).acquire()
        await lease.extend(30)
        proxy.cut_reply_to(EXTEND.sha.encode())
        with pytest.raises(Unavailable):
            await lease.extend(2)
        await lease.extend(60)
        assert lease.remaining() < 2, "the first may arrive after the second"
        assert lease._hold.unsure, "the store keeps it for longer"
        await kit.sleep(1.1)
        await lease.extend(60)
        assert lease.remaining() > 55
        await lease.release()

    run_body(body, proxy.url, colour)


@pytest.mark.parametrize("renew", [False, True])
def test_a_lease_that_is_lost_while_the_store_would_keep_it_is_given_back(
    proxy: FaultProxy, valkey_node: Node, colour: str, renew: bool
) -> None:
    """It was confirmed for 60 seconds and could be believed for one."""
    name = uuid4().hex

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30, renew=renew, request_timeout=REQUEST)
        lease = await client.lock(name).acquire()
        await lease.extend(30)
        proxy.cut_reply_to(EXTEND.sha.encode())
        with pytest.raises(Unavailable):
            await lease.extend(1)
        lease._hold.policy = lease._hold.policy._replace(max_hold=0.1)  # no renewal any more
        await lease.extend(60)
        assert await lease.wait_lost(PATIENCE)
        assert await lease.release() is False
        await eventually(kit, lambda: not valkey_node.command("EXISTS", name))

    run_body(body, proxy.url, colour)


# --- nobody has it in hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
def test_an_extension_that_comes_through_after_the_loss_was_told_is_given_back(colour: str, lost: bool) -> None:
    """It was on its way when the holder was told, before the deadline; or its answer was being taken in. The store kept it
    for as long as that said, for nobody. `lost`: it has no answer."""
    store = f"memory://{uuid4().hex}"

    async def body(kit: Kit) -> None:
        client, other = kit.client(ttl=0.6, renew=True), kit.client()
        lease = await client.lock("x").acquire()
        backend, hold = client._context.backend, lease._hold
        extend = backend.extend

        async def late(*args: Any) -> Any:
            answer = await extend(*args)
            await eventually(kit, lambda: hold.told)
            if lost:
                raise Unavailable("no answer", backend="memory", cause="timeout")
            return answer

        backend.extend = late
        with pytest.raises(Unavailable if lost else LeaseLost):
            await lease.extend(600)
        await (await other.lock("x").acquire(timeout=PATIENCE)).release()

    run_body(body, store, colour)


def test_a_confirmation_does_not_move_the_end_of_a_lease_that_was_lost_a_moment_ago() -> None:
    """By another thread, after somebody saw that it was not. It would be given back at the new end only."""
    hold = Hold("x", "token", 1.0, 1, deadline=100.0)
    hold.gone = "unreachable"
    hold.renewed(99.9, 60.0)
    assert hold.unsure
    assert hold.deadline == 100.0


class Struck(BaseException):
    pass


def test_whoever_waits_behind_a_grant_that_nobody_got_is_not_late(
    url: str, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception strikes between the grant and the keeper, and nothing gives the grant back."""
    name, waited = uuid4().hex, []

    async def body(kit: Kit) -> None:
        client, rival = kit.client(ttl=0.6, renew=True), kit.client(ttl=30)
        inner: Any = getattr(client, "_inner", client)
        blocking = await rival.lock(name).acquire()

        def strike(*_: object) -> Any:
            raise Struck

        async def nothing(*_: object) -> None:
            pass

        lock = inner.lock(name)
        monkeypatch.setattr(lock, "_keeper", SimpleNamespace(keep=strike))
        monkeypatch.setattr(lock, "_return", nothing if kit.colour == "asyncio" else lambda *_: None)

        async def first() -> None:
            with pytest.raises(Struck):
                await (lock.acquire() if kit.colour == "asyncio" else _call(lock.acquire))

        async def second() -> None:
            await eventually(kit, lambda: asleep(client, name))
            async with client.lock(name, timeout=PATIENCE):
                waited.append(time.monotonic() - released)

        async def release() -> None:
            nonlocal released
            await eventually(kit, lambda: asleep(client, name, 2))
            await kit.sleep(0.05)
            released = time.monotonic()
            await blocking.release()

        released = 0.0
        await kit.together(first(), second(), release())

    run_body(body, url, colour)
    assert waited[0] < 0.6 + NOISE, "it slept for longer than the lease lasted that was in its way"


async def _call(function: Callable[[], Any]) -> Any:
    return function()


def test_a_large_drift_makes_no_storm(valkey_node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(ttl=1, renew=True, drift=0.4)
        async with client.lock("x") as lease:
            await kit.sleep(2)
            assert lease.state == "held"
        assert 5 <= client.keeping().requests <= 15

    run_body(body, valkey_node.url, colour)


# --- released, or lost, and not both ----------------------------------------------------------------------------------------


def test_two_threads_that_release_one_lease_are_told_of_no_loss(valkey_node: Node) -> None:
    """The second request overtakes the first on another connection, and its thread is slow to take in the answer."""
    told: list[str] = []
    with Client(valkey_node.url, ttl=30, renew=False) as client:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for number in range(100):
                lease = client.lock(f"twice:{number}", on_lost=lambda lease: told.append(lease.reason)).acquire()
                barrier, did = threading.Barrier(2), []

                def release(lease: Any = lease, barrier: threading.Barrier = barrier, did: list[bool] = did) -> None:
                    barrier.wait()
                    did.append(lease.release())

                threads = [threading.Thread(target=release) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert sorted(did) == [False, True]
                assert lease.state == "released"
        finally:
            sys.setswitchinterval(before)
    assert told == []


def test_a_release_that_is_overtaken_by_another_of_the_same_lease_is_no_loss(colour: str) -> None:
    """As above, step by step: the first is sent, the second begins, both are answered."""
    told: list[str] = []

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30)
        lease = await client.lock("x", on_lost=lambda lease: told.append(lease.reason)).acquire()
        backend, sent, did = lease._context.backend, [], []
        real = backend.release

        async def slow(name: str, token: str, within: float) -> bool:
            sent.append(name)
            held = await real(name, token, within)
            if kit.colour == "asyncio":
                await asyncio.sleep(0.1)
            else:
                time.sleep(0.1)
            return held

        backend.release = slow

        async def release() -> None:
            did.append(await lease.release())

        async def later() -> None:
            await eventually(kit, lambda: sent)
            await release()

        await kit.together(release(), later())
        assert sorted(did) == [False, True]
        assert sent == ["x"], "the second waits for what comes of the first"
        assert lease.state == "released"

    run_body(body, f"memory://{uuid4().hex}", colour)
    assert told == []


def test_the_second_releases_if_the_first_could_not(proxy: FaultProxy, valkey_node: Node, colour: str) -> None:
    name = uuid4().hex

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30, request_timeout=REQUEST)
        lease = await client.lock(name).acquire()
        did: list[object] = []
        proxy.drop_requests()

        async def release() -> None:
            try:
                did.append(await lease.release())
            except Unavailable as error:
                did.append(error.cause)

        async def later() -> None:
            await eventually(kit, lambda: lease._hold.leaving)
            await kit.sleep(REQUEST * 1.5)
            proxy.heal()
            await release()

        await kit.together(release(), later())
        assert not valkey_node.command("EXISTS", name)
        assert lease.state == "released"
        assert True in did

    run_body(body, proxy.url, colour)


def test_a_loss_that_is_told_while_a_release_begins_is_a_loss(colour: str) -> None:
    """The release has found that the lease is held; before its request goes out, the keeper says that it is lost."""
    told: list[str] = []

    class Late(dict[Any, Any]):
        def setdefault(self, key: Any, mark: Any = None) -> Any:
            run_out(context, key, context.runtime.now())
            return super().setdefault(key, mark)

    async def body(kit: Kit) -> None:
        nonlocal context
        client = kit.client(ttl=30)
        lease = await client.lock("x", on_lost=lambda lease: told.append(lease.name)).acquire()
        context = lease._context
        context.inside.busy = Late()
        assert await lease.release() is False
        await eventually(kit, lambda: told)
        assert (lease.state, told) == ("lost", ["x"]), "not released as well"
        context.inside.busy = {}

    context: Any = None
    run_body(body, f"memory://{uuid4().hex}", colour)


def test_a_loss_that_is_found_while_a_release_is_on_its_way_is_told_to_nobody(colour: str) -> None:
    told: list[str] = []

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30)
        lease = await client.lock("x", on_lost=lambda lease: told.append(lease.name)).acquire()
        context, real = lease._context, lease._context.backend.release

        async def slow(name: str, token: str, within: float) -> bool:
            run_out(context, lease._hold, context.runtime.now())
            return await real(name, token, within)

        context.backend.release = slow  # type: ignore[method-assign]
        assert await lease.release() is True
        assert lease.state == "released"

    run_body(body, f"memory://{uuid4().hex}", colour)
    assert told == []


def test_a_keeper_does_not_end_while_it_has_something_to_give_back() -> None:
    """A thread has just told of a loss, while the keeper, which has nothing else to do, was about to end."""
    with Client(f"memory://{uuid4().hex}", ttl=30) as client, client.lock("x") as lease:
        keeper = client._keeper
        mine = keeper._spawned
        keeper._returns.add(lease._hold)
        assert not keeper._may_end()
        assert keeper._spawned is mine
        keeper._returns._some.clear()


# --- asyncio ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("renew", [True, False])
def test_whoever_holds_a_lease_is_told_of_its_loss_though_the_keepers_task_was_cancelled(renew: bool, begun: bool) -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=0.5, renew=renew) as client:
            told: list[str] = []

            def on_lost(lease: Any) -> None:
                told.append(lease.reason)

            leases = [await client.lock(f"x:{ttl}", ttl=ttl, on_lost=on_lost).acquire() for ttl in (0.5, 0.8)]
            if begun:  # else nothing of the keeper's own has run yet
                await asyncio.sleep(0)
            for task in asyncio.all_tasks():
                if task.get_name() == "interlock-keeper":
                    task.cancel()
            for lease in leases:
                assert await lease.wait_lost(PATIENCE)
            await asyncio.sleep(0.1)
            assert told == ["expired"] * 2, "each was told, and once"
            async with client.lock("y", ttl=0.5, renew=True):  # the next lease starts another keeper
                await asyncio.sleep(1)

    asyncio.run(main())


def test_a_listener_that_was_cancelled_before_it_began_is_started_again() -> None:
    async def main() -> None:
        store = f"memory://{uuid4().hex}"
        async with AsyncClient(store, ttl=30) as client, AsyncClient(store, ttl=30) as other:
            lease, waiter = await other.lock("x").acquire(), asyncio.create_task(client.lock("x").acquire())
            hub = client._context.listener
            while hub._spawned is None:
                await asyncio.sleep(0)
            first: Any = hub._spawned
            first._task.cancel()
            while hub._spawned in (None, first):
                await asyncio.sleep(0)
            await lease.release()
            await (await waiter).release()

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


def test_each_task_inside_a_block_on_one_lease_is_stopped_at_its_loss() -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=0.5, renew=False) as client:
            lease = await client.lock("x").acquire()

            async def inside() -> str:
                try:
                    async with lease:
                        await asyncio.sleep(PATIENCE)
                except LeaseLost:
                    return "stopped"
                return "ran on"

            began = time.monotonic()
            assert await asyncio.gather(*(inside() for _ in range(3))) == ["stopped"] * 3
            assert time.monotonic() - began < NOISE

    asyncio.run(main())


def test_the_end_of_one_block_does_not_take_the_other_off_its_leash() -> None:
    """One task leaves, which releases; the other is not cancelled by that, nor by anything later."""

    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=0.4, renew=False) as client:
            lease = await client.lock("x").acquire()

            async def inside(seconds: float) -> str:
                async with lease:
                    await asyncio.sleep(seconds)
                return lease.state

            assert await asyncio.gather(inside(0.05), inside(0.6)) == ["released"] * 2
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    asyncio.run(main())
