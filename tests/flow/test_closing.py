"""Closing a client: everybody is let out, clean-up included, before the connections go; and what stays is named."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import interlock
from interlock import AsyncClient, Client, Unavailable, UsageError
from interlock.backends.redis.scripts import RELEASE
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body

PATIENCE = 20.0
REQUEST = 0.4


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def proxy(valkey_node: Node) -> Iterator[FaultProxy]:
    with FaultProxy(valkey_node.port) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    return f"closing:{uuid4().hex[:8]}"


def wait_for(true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.002)


def held(node: Node, name: str) -> bool:
    return bool(node.command("EXISTS", name))


def notes(error: BaseException) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", [])])


def refused(client: Client, name: str) -> None:
    with pytest.raises(UsageError, match="is closed"):
        client.lock(name).acquire()


# --- amid each verb ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["acquire", "try_acquire"])
def test_a_grant_that_is_on_its_way_is_given_back(
    proxy: FaultProxy, valkey_node: Node, name: str, colour: str, verb: str
) -> None:
    """The reply of the claim is slow, and the client is closed meanwhile."""

    async def body(kit: Kit) -> None:
        client = kit.client(store=proxy.url, renew=True, ttl=30)
        async with client.lock("warm"):
            pass
        said: list[BaseException] = []

        async def ask() -> None:
            try:
                await getattr(client.lock(name), verb)()
            except interlock.InterlockError as error:
                said.append(error)

        async def close() -> None:
            while not held(valkey_node, name):
                await kit.sleep(0.001)
            await client.close()
            assert not held(valkey_node, name), "closed, and it is still there"

        proxy.delay(0.2)
        await kit.together(ask(), close())
        assert [type(error) for error in said] == [UsageError]
        assert "is closed" in str(said[0])

    run_body(body, proxy.url, colour)


def test_a_release_that_is_on_its_way_comes_to_its_end(proxy: FaultProxy, valkey_node: Node, name: str, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(store=proxy.url, ttl=30)
        lease = await client.lock(name).acquire()
        outcome: list[bool] = []

        async def release() -> None:
            outcome.append(await lease.release())

        async def close() -> None:
            while lease.state == "held":
                await kit.sleep(0.001)
            await client.close()

        proxy.delay(0.2)
        await kit.together(release(), close())
        assert outcome == [True]
        assert not held(valkey_node, name)

    run_body(body, proxy.url, colour)


def test_an_extension_that_is_on_its_way_comes_to_its_end(proxy: FaultProxy, name: str, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(store=proxy.url, ttl=30)
        lease = await client.lock(name).acquire()

        async def close() -> None:
            while not lease._hold.in_flight:
                await kit.sleep(0.001)
            await client.close()

        proxy.delay(0.2)
        await kit.together(lease.extend(60), close())
        assert lease.remaining() > 50

    run_body(body, proxy.url, colour)


def test_whoever_stands_in_line_has_left_it_when_the_client_is_closed(
    proxy: FaultProxy, valkey_node: Node, name: str, colour: str
) -> None:
    """Its leaving takes a while: replies are slow."""

    async def body(kit: Kit) -> None:
        with Client(valkey_node.url, renew=False, ttl=30) as holder, holder.lock(name):
            client = kit.client(store=proxy.url, ttl=30)

            async def wait() -> None:
                with pytest.raises(UsageError, match="is closed"):
                    await client.lock(name).acquire()

            async def close() -> None:
                while not holder.inspect(name).waiters:
                    await kit.sleep(0.002)
                proxy.delay(0.2)
                await client.close()
                assert holder.inspect(name).waiters == 0, "closed, and it still stands in line"

            await kit.together(wait(), close())
            assert holder.inspect(name).waiters == 0

    run_body(body, proxy.url, colour)


def test_an_heir_that_leaves_is_passed_over_before_the_connections_go(
    proxy: FaultProxy, valkey_node: Node, name: str, colour: str
) -> None:
    """One of the client's own releases, and hands over to another of its own, which gives up since the client is closed."""

    async def body(kit: Kit) -> None:
        client = kit.client(store=proxy.url, renew=True, ttl=30)
        lease = await client.lock(name).acquire()
        said: list[str] = []

        async def wait() -> None:
            try:
                await client.lock(name).acquire()
            except UsageError as error:
                said.append(notes(error))

        async def release() -> None:
            while (first := _first(client, name)) is None or not lease._context.queue.is_next(first):
                await kit.sleep(0.002)
            while not lease._context.listener._inbox:
                await kit.sleep(0.002)
            proxy.delay(0.2)
            assert await lease.release()

        async def close() -> None:
            while lease.state == "held":
                await kit.sleep(0.001)
            await kit.sleep(0.02)
            await client.close()
            assert not held(valkey_node, name)

        await kit.together(wait(), release(), close())
        assert len(said) == 1

    run_body(body, proxy.url, colour)


def _first(client: Any, name: str) -> Any:
    door = client._context.queue._queues.get(name)
    return door.waiters[0] if door is not None and door.waiters else None


def test_tasks_that_are_cancelled_clean_up_before_the_connections_go(proxy: FaultProxy, valkey_node: Node, name: str) -> None:
    async def main() -> None:
        client = AsyncClient(proxy.url, ttl=30, renew=False)
        async with client.lock("warm"):
            pass
        proxy.delay(0.2)
        tasks = [asyncio.create_task(client.lock(f"{name}:{number}").acquire()) for number in range(5)]
        while not held(valkey_node, f"{name}:4"):
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await client.close()
        assert [held(valkey_node, f"{name}:{number}") for number in range(5)] == [False] * 5
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(main())


def test_a_close_that_is_cancelled_still_waits_and_hangs_up(proxy: FaultProxy, valkey_node: Node, name: str) -> None:
    async def main() -> None:
        client = AsyncClient(proxy.url, ttl=30, renew=False)
        async with client.lock("warm"):
            pass
        proxy.delay(0.3)
        task = asyncio.create_task(client.lock(name).acquire())
        while not held(valkey_node, name):
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert task.done()
        assert not held(valkey_node, name)
        with pytest.raises(UsageError, match="is closed"):
            await client.inspect(name)

    asyncio.run(main())


# --- from everywhere --------------------------------------------------------------------------------------------------------


def test_two_threads_close_at_once(proxy: FaultProxy, valkey_node: Node, name: str) -> None:
    client = Client(proxy.url, ttl=30, renew=False)
    client.lock("warm").acquire().release()
    proxy.delay(0.2)
    threads = [threading.Thread(target=refused, args=(client, name))]
    threads[0].start()
    wait_for(lambda: held(valkey_node, name))
    left: list[bool] = []

    def close() -> None:
        client.close()
        left.append(held(valkey_node, name))

    threads += [threading.Thread(target=close) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert left == [False] * 3
    client.close()


@pytest.mark.parametrize("waits", [False, True])
def test_a_signal_handler_that_closes_amid_an_acquire(proxy: FaultProxy, valkey_node: Node, name: str, waits: bool) -> None:
    """The interrupted verb goes on when the handler has returned: it cleans up, and the connections go after that."""
    client, rival = Client(proxy.url, ttl=30, renew=False), Client(valkey_node.url, ttl=30, renew=False)
    client.lock("warm").acquire().release()
    lease = rival.lock(name).acquire() if waits else None
    before, main = signal.getsignal(signal.SIGUSR1), threading.get_ident()

    def strike() -> None:
        wait_for(lambda: rival.inspect(name).waiters if waits else held(valkey_node, name))
        signal.pthread_kill(main, signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, lambda *_: client.close())
    try:
        proxy.delay(0.05 if waits else 0.3)
        striker = threading.Thread(target=strike)
        striker.start()
        with pytest.raises(UsageError, match="is closed") as caught:
            client.lock(name).acquire()
        striker.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not getattr(caught.value, "__notes__", []), "something was left"
    if lease is not None:
        assert rival.inspect(name).waiters == 0
        lease.release()
    assert not held(valkey_node, name)
    wait_for(lambda: not client._context.backend._transport._idle)  # type: ignore[attr-defined]
    wait_for(lambda: all(thread.name != "interlock-close" for thread in threading.enumerate()))
    rival.close()


def test_a_callback_that_closes(colour: str) -> None:
    """`on_lost` closes the client while another waits."""
    store = f"memory://{uuid4().hex}"

    async def body(kit: Kit) -> None:
        client, rival = kit.client(ttl=0.3, renew=True), kit.client(ttl=30)
        inner: Any = getattr(client, "_inner", client)
        closed: list[Any] = []

        def close(lease: Any) -> None:
            closed.append(asyncio.ensure_future(inner.close()) if kit.colour == "asyncio" else True)
            if kit.colour != "asyncio":
                inner.close()

        lease = await client.lock("x", renew=False, on_lost=close).acquire()
        other = await rival.lock("y").acquire()

        async def wait() -> None:
            with pytest.raises(UsageError, match="is closed"):
                await client.lock("y").acquire()

        await kit.together(wait())
        assert lease.lost
        assert closed
        assert (await rival.inspect("y")).waiters == 0
        await other.release()

    run_body(body, store, colour)


def test_in_a_forked_child_nothing_is_waited_for(name: str, valkey_node: Node) -> None:
    with Client(valkey_node.url, ttl=30, renew=False) as holder, holder.lock(name):
        client = Client(valkey_node.url, ttl=30, request_timeout=30)
        thread = threading.Thread(target=refused, args=(client, name))
        thread.start()
        wait_for(lambda: holder.inspect(name).waiters)
        child = os.fork()
        if child == 0:
            began = time.monotonic()
            try:
                client.close()
            finally:
                os._exit(0 if time.monotonic() - began < 20 else 1)
        assert os.waitpid(child, 0)[1] == 0
        client.close()
        thread.join()


# --- what cannot be cleaned up ----------------------------------------------------------------------------------------------


def test_what_no_answer_comes_for_is_named(proxy: FaultProxy, name: str, colour: str, caplog: pytest.LogCaptureFixture) -> None:
    """The store falls silent, amid an acquire. Close gives up after two request timeouts, and says what may stay."""

    async def body(kit: Kit) -> None:
        client = kit.client(store=proxy.url, ttl=30, request_timeout=REQUEST)
        async with client.lock("warm"):
            pass
        proxy.drop_replies()
        said: list[str] = []

        async def ask() -> None:
            try:
                await client.lock(name).acquire()
            except interlock.InterlockError as error:
                said.append(notes(error) + notes(error.__cause__ or error))

        async def close() -> None:
            await kit.sleep(REQUEST * 0.9)
            await client.close()

        with caplog.at_level(logging.WARNING, "interlock"):
            await kit.together(ask(), close())
        assert f"'{name}' may stay locked for up to 30 s" in said[0]

    run_body(body, proxy.url, colour)


@pytest.mark.parametrize("verb", ["acquire", "try_acquire"])
def test_a_refusal_because_of_the_close_itself_says_what_may_stay(name: str, colour: str, verb: str) -> None:
    """Close has given up waiting, in the middle of a vote: some nodes have granted, and the rest says that it is closed."""

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30)
        context = client._context

        async def claim(*_: object) -> Any:
            context.queue.close()
            raise context.closed()

        context.backend.claim = claim  # type: ignore[method-assign]
        with pytest.raises(UsageError, match="is closed") as caught:
            await getattr(client.lock(name), verb)()
        assert f"'{name}' may stay locked for up to 30 s" in notes(caught.value)

    run_body(body, f"memory://{uuid4().hex}", colour)


def test_leases_that_are_held_are_named(name: str, colour: str, caplog: pytest.LogCaptureFixture) -> None:
    store = f"memory://{uuid4().hex}"

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=30)
        kept = await client.lock(f"{name}:kept", renew=True).acquire()
        fixed = await client.lock(f"{name}:fixed", lock_delay=5).try_acquire()
        await (await client.lock(f"{name}:released").acquire()).release()
        with caplog.at_level(logging.WARNING, "interlock"):
            await client.close()
        said = "\n".join(record.getMessage() for record in caplog.records)
        assert f"it holds '{name}:kept': it is not renewed any more and ends by itself within 30 s" in said
        assert f"it holds '{name}:fixed': it is not renewed any more and ends by itself within 35 s" in said
        assert "released" not in said
        assert kept.state == fixed.state == "held"
        with pytest.raises(UsageError, match="closed") as caught:
            await kept.release()
        assert f"'{name}:kept' was not released: it ends with its ttl" in notes(caught.value)
        with pytest.raises(UsageError, match="closed") as caught:
            await fixed.extend(60)
        assert f"'{name}:fixed' was not extended: it ends by itself within 35 s" in notes(caught.value)

    run_body(body, store, colour)


def test_a_time_out_does_not_say_that_nothing_is_left_if_something_is(
    proxy: FaultProxy, valkey_node: Node, name: str, colour: str
) -> None:
    """It waited in line, gave up, and its leaving has no answer."""

    async def body(kit: Kit) -> None:
        with Client(valkey_node.url, renew=False, ttl=30) as holder, holder.lock(name):
            client = kit.client(store=proxy.url, ttl=30, request_timeout=REQUEST)
            async with client.lock("warm"):
                pass
            said: list[str] = []

            async def wait() -> None:
                with pytest.raises(interlock.AcquireTimeout) as caught:
                    await client.lock(name).acquire(timeout=0.5)
                said.append(notes(caught.value))

            async def cut() -> None:
                while not holder.inspect(name).waiters:
                    await kit.sleep(0.002)
                proxy.drop_requests(containing=RELEASE.sha.encode())

            await kit.together(wait(), cut())
            assert f"'{name}' may stay locked for up to 30 s" in said[0]
            assert "Nothing is left behind" not in said[0]

    run_body(body, proxy.url, colour)


def test_what_a_keeper_has_still_to_give_back_is_given_back_at_the_close(
    proxy: FaultProxy, valkey_node: Node, name: str, colour: str
) -> None:
    """Lost while the answer to its extension was missing: the store would keep it for that ttl."""

    async def body(kit: Kit) -> None:
        client = kit.client(store=proxy.url, ttl=0.5, renew=True, request_timeout=0.2)
        lease = await client.lock(name).acquire()
        with pytest.raises(Unavailable):
            proxy.drop_replies()
            await lease.extend(60)
        assert await lease.wait_lost(PATIENCE)
        await kit.sleep(max(lease._hold.deadline - lease._context.runtime.now(), 0) + 0.001)
        proxy.heal()
        await client.close()
        assert not held(valkey_node, name)

    run_body(body, proxy.url, colour)


def test_what_is_asked_while_a_client_is_being_closed_is_told_that(proxy: FaultProxy, colour: str, name: str) -> None:
    """After the close has seen that nobody is at anything, before the connections are gone. An extension was cut off there: a
    store kept the lock for as long as that said, and the warning named a shorter time. A look heard of a broken connection."""

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=5)
        lease = await client.lock(name).acquire()
        client._context.queue.close()  # as far as the close has come
        with pytest.raises(UsageError, match="is closed"):
            await lease.extend(600)
        assert (await client.inspect(name)).remaining <= 5
        proxy.cut_on_request()
        with pytest.raises(UsageError, match="is closed"):
            await client.inspect(name)

    run_body(body, proxy.url, colour)


def test_a_client_can_be_closed_though_its_loop_is(store: str) -> None:
    """With leases held, and somebody who waits and never will again. It was "Event loop is closed", and what came after the
    first connection stayed open."""
    client = AsyncClient(store, ttl=2, request_timeout=0.1)
    name, loop = uuid4().hex, asyncio.new_event_loop()

    async def leave(client: AsyncClient) -> list[Any]:
        held = await client.lock(name).acquire()
        waits = asyncio.ensure_future(client.lock(name).acquire())
        while (door := client._context.queue._queues[name]).waiters == [] or door.waiters[0].bell is None:
            await asyncio.sleep(0.002)
        return [held, waits]

    left = loop.run_until_complete(leave(client))
    loop.close()
    asyncio.run(client.close())
    asyncio.run(client.close())
    with pytest.raises(UsageError):
        asyncio.run(client.inspect(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of asyncio's: its loop did not close the connections
        del client, left
        gc.collect()
