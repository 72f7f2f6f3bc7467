"""Where a lease could have been lost, kept or told of wrongly: one test for each hole that a review of the keeper found."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest

import interlock
from interlock import AsyncClient, Client, LeaseLost
from interlock.backends.memory import backend as memory
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body

PATIENCE = 30.0


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def angry_log() -> Iterator[None]:
    """A filter that raises, as those that look for the request do in a thread that has none."""

    def look(record: logging.LogRecord) -> bool:
        raise RuntimeError("working outside of request context")

    logger = logging.getLogger("interlock")
    logger.addFilter(look)
    yield
    logger.removeFilter(look)


def remove(store: str, name: str) -> None:
    del memory._memories[store].held[name]


@pytest.mark.usefixtures("angry_log")
def test_a_log_that_raises_costs_no_lease_and_hides_no_loss(colour: str) -> None:
    store = uuid4().hex

    async def body(kit: Kit) -> None:
        client, heard = kit.client(renew=True, ttl=0.6), []
        victim = await client.lock("victim", on_lost=lambda lease: heard.append(lease.reason)).acquire()
        healthy = [await client.lock(f"healthy:{n}").acquire() for n in range(3)]
        remove(store, "victim")
        assert await victim.wait_lost(PATIENCE)
        await kit.sleep(1.5)
        assert heard == ["forced"]
        assert [lease.state for lease in healthy] == ["held"] * 3
        for lease in healthy:
            await lease.release()

    run_body(body, f"memory://{store}", colour)


@pytest.mark.usefixtures("angry_log")
def test_a_log_that_raises_does_not_keep_a_body_running() -> None:
    async def main() -> None:
        store = uuid4().hex
        async with AsyncClient(f"memory://{store}", ttl=0.6) as client:
            with pytest.raises(LeaseLost):
                async with client.lock("x"):
                    remove(store, "x")
                    await asyncio.sleep(PATIENCE)

    asyncio.run(main())


def test_callbacks_are_called_though_there_are_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    store, heard = uuid4().hex, []
    with Client(f"memory://{store}", ttl=0.6) as client:
        victims = [client.lock(f"v:{n}", on_lost=lambda lease: heard.append(lease.name)).acquire() for n in range(3)]
        healthy = client.lock("healthy").acquire()
        start = threading.Thread.start

        def refused(thread: threading.Thread) -> None:
            if thread.name == "interlock-callback":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)
        for victim in victims:
            remove(store, victim.name)
        for victim in victims:
            assert victim.wait_lost(PATIENCE)
        time.sleep(1.0)
        assert sorted(heard) == ["v:0", "v:1", "v:2"]
        assert healthy.state == "held"
        healthy.release()


def test_a_grant_that_cannot_become_a_lease_is_given_back(monkeypatch: pytest.MonkeyPatch, colour: str) -> None:
    store = uuid4().hex

    async def body(kit: Kit) -> None:
        client, other = kit.client(renew=True), kit.client()

        def refused(*_: object) -> Any:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(client._context.runtime, "spawn", refused)
            with pytest.raises(interlock.Unavailable, match="gives no thread"):
                await client.lock("x", ttl=60).acquire()
            with pytest.raises(interlock.Unavailable, match="gives no thread"):
                await client.lock("x", ttl=60).try_acquire()
        assert not (await other.inspect("x")).held
        async with client.lock("x", ttl=0.3) as lease:
            await kit.sleep(0.6)
            assert lease.state == "held", "and the next one is kept"

    run_body(body, f"memory://{store}", colour)


def test_without_descriptors_nothing_is_left_and_the_error_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain OSError came out of `acquire` and `wait_lost`."""

    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    url = f"memory://{uuid4().hex}"
    with Client(url, ttl=60) as client, Client(url) as other:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", none_left)
            for ask in (client.lock("x").acquire, client.lock("x").try_acquire):
                with pytest.raises(interlock.Unavailable, match="gives no descriptor"):
                    ask()
                assert not other.inspect("x").held
        with client.lock("x") as lease:
            monkeypatch.setattr(os, "pipe", none_left)
            assert not lease.wait_lost(0.01)


def test_an_end_that_comes_nearer_is_told_in_time() -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}") as client:
            began = time.monotonic()
            with pytest.raises(LeaseLost):
                async with client.lock("x", ttl=20, renew=False) as lease:
                    await lease.extend(0.3)
                    await asyncio.sleep(PATIENCE)
            assert time.monotonic() - began < 10, "its new end, not its old one"

    asyncio.run(main())


def test_an_extend_whose_answer_was_lost_leaves_a_lease_that_is_kept(valkey_node: Node, colour: str) -> None:
    """It may have shortened the lease: the keeper looks at it at once, not at the time that was right before."""
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(renew=True, request_timeout=0.2)
            async with client.lock("x", ttl=15) as lease:
                proxy.drop_replies(1)
                with pytest.raises(interlock.Unavailable):
                    await lease.extend(2)
                await kit.sleep(3)
                assert not lease.lost
                assert valkey_node.command("PTTL", "x") > 0

        run_body(body, proxy.url, colour)


def test_a_lost_answer_does_not_make_the_keeper_busy(valkey_node: Node, colour: str) -> None:
    """What may be believed stays short after it, and the schedule must follow that, not what was asked for."""
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(renew=True, request_timeout=0.2)
            async with client.lock("x", ttl=2) as lease:
                proxy.drop_replies(1)
                until = time.monotonic() + PATIENCE
                while not client.keeping().failures:
                    assert time.monotonic() < until
                    await kit.sleep(0.01)
                await kit.sleep(0.5)
                await lease.extend(30)
                before = client.keeping().renewals
                await kit.sleep(2)
                assert client.keeping().renewals - before < 20
                assert lease.state == "held"

        run_body(body, proxy.url, colour)


def test_a_second_release_after_silence_is_no_loss(valkey_node: Node, colour: str) -> None:
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            heard: list[str] = []
            client = kit.client(renew=True, request_timeout=0.2)
            lease = await client.lock("x", ttl=30, on_lost=lambda lease: heard.append(lease.reason)).acquire()
            proxy.drop_replies()
            with pytest.raises(interlock.Unavailable):
                await lease.release()
            proxy.heal()
            await lease.release()
            assert (lease.state, lease.lost, lease.reason) == ("released", False, "")
            await kit.sleep(0.1)
            assert heard == []
            assert client.keeping().losses == 0

        run_body(body, proxy.url, colour)


def test_a_keeper_that_is_cancelled_with_everything_says_so() -> None:
    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=0.5) as client:
            lease = await client.lock("x").acquire()
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            assert await lease.wait_lost(PATIENCE)
            with pytest.raises(LeaseLost, match="the task that renews it was cancelled"):
                lease.check()
            async with client.lock("y") as other:  # and the next lease has a keeper again
                await asyncio.sleep(1)
                assert other.state == "held"

    asyncio.run(main())


def test_callbacks_that_cannot_work_are_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    async def awaited(lease: Any) -> None: ...

    def leave(lease: Any) -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR), Client(f"memory://{uuid4().hex}", ttl=0.2) as client:
        for n, callback in enumerate((lambda lease: awaited(lease), leave)):
            lease = client.lock(f"x:{n}", max_hold=0.2, on_lost=callback).acquire()
            assert lease.wait_lost(PATIENCE)
            until = time.monotonic() + PATIENCE
            while len(caplog.records) <= n:
                assert time.monotonic() < until
                time.sleep(0.01)
    assert "something to await" in caplog.text
    assert "SystemExit" in caplog.text


def test_a_callback_that_raises_a_cancellation_ends_no_renewal(caplog: pytest.LogCaptureFixture) -> None:
    """As `task.result()` does, of a task that was cancelled: it was taken for the keeper's own."""

    def look(lease: Any) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        store = uuid4().hex
        async with AsyncClient(f"memory://{store}", ttl=0.6) as client:
            healthy = await client.lock("healthy").acquire()
            victim = await client.lock("victim", on_lost=look).acquire()
            remove(store, "victim")
            assert await victim.wait_lost(PATIENCE)
            await asyncio.sleep(1.2)
            assert healthy.state == "held"

    asyncio.run(main())
    assert "on_lost of 'victim' raised" in caplog.text


def never_asks(client: Any, kit: Kit, until: float) -> None:
    """From now on a release cannot even be sent, and says so at that moment, not before."""
    backend, now = client._context.backend, client._context.runtime.now

    async def release(*_: object) -> bool:
        await kit.sleep(max(until - now(), 0.0))
        raise interlock.Unavailable("no connection", backend="memory", cause="refused")

    async def undo(*_: object) -> bool:
        return False

    backend.release, backend.undo = release, undo


@pytest.mark.parametrize("renew", [False, True])
def test_a_loss_is_told_though_a_release_that_failed_was_on_its_way_at_that_moment(colour: str, renew: bool) -> None:
    async def body(kit: Kit) -> None:
        told: list[str] = []
        client = kit.client(ttl=0.4, renew=renew)
        lease = await client.lock("x", on_lost=lambda lease: told.append(lease.reason)).acquire()
        never_asks(client, kit, lease._hold.deadline + 0.1)
        with pytest.raises(interlock.Unavailable, match="was not released"):
            await lease.release()
        assert lease.lost
        until = time.monotonic() + PATIENCE
        while not told:
            assert time.monotonic() < until, "nobody was told"
            await kit.sleep(0.002)
        assert len(told) == 1

    run_body(body, f"memory://{uuid4().hex}", colour)


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_a_body_is_stopped_though_a_release_that_failed_was_on_its_way_at_that_moment(renew: bool, early: bool) -> None:
    """`early`: it fails between the moment at which the holder is told and the deadline."""

    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=0.4, renew=renew) as client:
            kit: Any = SimpleNamespace(sleep=asyncio.sleep)
            with pytest.raises(LeaseLost):
                async with client.lock("x") as lease:
                    hold = lease._hold
                    never_asks(client, kit, hold.tell_at + 0.001 if early else hold.deadline + 0.1)
                    with pytest.raises(interlock.Unavailable, match="was not released"):
                        await lease.release()
                    await asyncio.sleep(PATIENCE)
                    raise AssertionError("it was not stopped")

    asyncio.run(main())


def test_a_lease_whose_release_failed_is_looked_at_at_once() -> None:
    """Not when its keeper would have looked whether the release has ended: that may be after the deadline."""
    with Client(f"memory://{uuid4().hex}", ttl=1000) as client:
        lease, seen = client.lock("x").acquire(), []  # type: ignore[var-annotated]
        never_asks(client, SimpleNamespace(sleep=AsyncMock()), 0.0)  # type: ignore[arg-type]
        client._context.queue.mind = seen.append
        with pytest.raises(interlock.Unavailable):
            lease.release()
        assert seen == [lease._hold]


def test_a_lease_whose_release_failed_is_not_renewed(colour: str) -> None:
    """The error says that it ends with its ttl. Whoever keeps the lease, as an attribute perhaps, kept the lock for ever."""

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=0.6, renew=True)
        lease = await client.lock("x").acquire()
        never_asks(client, kit, 0.0)
        with pytest.raises(interlock.Unavailable, match="was not released: it ends with its ttl"):
            await lease.release()
        backend: Any = client._context.backend
        del backend.release, backend.undo  # the store is back
        assert await lease.wait_lost(PATIENCE)
        assert lease.reason == "expired"
        await (await client.lock("x").acquire(timeout=PATIENCE)).release()

    run_body(body, f"memory://{uuid4().hex}", colour)


def test_a_signal_that_strikes_while_answers_are_judged_does_not_end_renewal() -> None:
    """In a loop its handler's exception may come anywhere. What has come back must not be taken for on its way for ever."""

    async def main() -> None:
        async with AsyncClient(f"memory://{uuid4().hex}", ttl=0.6) as client:
            requests, leases = client._keeper._requests, [await client.lock(f"x:{n}").acquire() for n in range(3)]
            judge, struck = requests._judge, []

            def strike(*answer: Any) -> None:
                if not struck:
                    struck.append(answer)
                    raise TimeoutError("struck")
                judge(*answer)

            requests._judge = strike  # type: ignore[method-assign]
            await asyncio.sleep(1.2)
            assert struck
            assert [lease.state for lease in leases] == ["held"] * 3

    asyncio.run(main())
