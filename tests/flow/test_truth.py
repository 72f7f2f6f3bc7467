"""Where a lease could have claimed too much, or left something behind: one test for each hole that a review found."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import interlock
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_lease_is_not_held_once_its_release_is_out(valkey_node: Node, colour: str) -> None:
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(request_timeout=0.2)
            lease = await client.lock("x", ttl=10).acquire()
            proxy.drop_replies()
            with pytest.raises(interlock.Unavailable):
                await lease.release()
            assert valkey_node.command("EXISTS", "x") == 0, "the store has let go, and nobody told us"
            assert (lease.state, lease.remaining()) == ("released", 0.0)
            with pytest.raises(interlock.UsageError):
                lease.check()
            proxy.heal()
            await lease.release()

        run_body(body, proxy.url, colour)


def test_a_release_that_could_not_be_sent_is_not_taken_for_done(valkey_node: Node, colour: str) -> None:
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(request_timeout=0.5)
            lease = await client.lock("x", ttl=30).acquire()
            proxy.refuse()
            proxy.cut()
            await kit.sleep(0.05)
            with pytest.raises(interlock.Unavailable, match="was not released"):
                await lease.release()
            assert lease.state == "held", "nothing was sent, so it is still ours"
            proxy.heal()
            assert await lease.release() is True
            assert valkey_node.command("EXISTS", "x") == 0

        run_body(body, proxy.url, colour)


def test_an_error_in_answer_to_a_release_is_raised(fresh_node: Callable[..., Node], valkey_node: Node, colour: str) -> None:
    """The primary became a replica: it answers, but it does nothing."""
    node = fresh_node()

    async def body(kit: Kit) -> None:
        client = kit.client()
        lease = await client.lock("x", ttl=30).acquire()
        node.command("REPLICAOF", "127.0.0.1", str(valkey_node.port))
        with pytest.raises(interlock.Unavailable, match="was not released"):
            await lease.release()

    run_body(body, node.url, colour)


@pytest.mark.parametrize("kind", ["valkey", "sqlite"])
def test_a_forked_child_cannot_touch_the_parents_lease(kind: str, request: pytest.FixtureRequest) -> None:
    from ..conftest import store_url

    with interlock.Client(store_url(request, kind)) as client:
        lease = client.lock("x", ttl=30).acquire()
        pid = os.fork()
        if pid == 0:
            verdict = 1
            try:
                lost = lease.lost and lease.state == "lost" and lease.remaining() == 0.0
                released = lease.release()
                try:
                    lease.extend(5)
                except interlock.LeaseLost as error:
                    verdict = 0 if lost and not released and error.reason == "forked" else 2
            finally:
                os._exit(verdict)
        assert os.waitpid(pid, 0)[1] == 0
        assert lease.state == "held"
        assert client.inspect("x").fence == lease.fence
        lease.extend(20)
        assert lease.release()


def test_of_two_extends_at_once_the_shorter_is_believed(valkey_node: Node) -> None:
    """Which of them the store applied last cannot be known from here."""
    with FaultProxy(valkey_node.port) as proxy, interlock.Client(proxy.url) as client:
        lease = client.lock("x", ttl=5).acquire()
        lease.extend(5)
        proxy.delay(0.15)
        long = threading.Thread(target=lease.extend, args=(60,))
        long.start()
        time.sleep(0.03)
        lease.extend(2)
        long.join()
        assert lease.remaining() < 2
        proxy.heal()
        lease.extend(30)
        assert lease.remaining() > 25, "and alone it is believed again"


def test_a_shutdown_that_cancels_every_task_still_releases(valkey_node: Node) -> None:
    """The usual graceful end of a program cancels all it finds, the clean-up's own task too."""

    async def main() -> None:
        client = interlock.AsyncClient(valkey_node.url)

        async def work() -> None:
            async with client.lock("x", ttl=30):
                inside.set()
                await asyncio.sleep(60)

        inside = asyncio.Event()
        task = asyncio.create_task(work())
        await inside.wait()
        me = asyncio.current_task()
        for _ in range(3):
            for other in asyncio.all_tasks():
                if other is not me:
                    other.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        assert valkey_node.command("EXISTS", "x") == 0
        await client.close()

    asyncio.run(main())


def test_retired_connections_do_not_pile_up(valkey_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.backends.unanswered.OVERDUE", 0.3)

    async def main() -> None:
        with FaultProxy(valkey_node.port) as proxy:
            async with interlock.AsyncClient(proxy.url, request_timeout=0.05) as client:
                leases = [await client.lock(f"n:{n}", ttl=30).acquire() for n in range(8)]
                await leases[0].extend(30)
                for lease in leases:
                    proxy.drop_replies(1, to=lease.name.encode())  # by hash or by text, as the connection is old or new
                    with pytest.raises(interlock.Unavailable):
                        await lease.extend(30)
                proxy.heal()
                await asyncio.sleep(0.4)
                for _ in range(3):
                    async with client.lock("other"):
                        pass
                await asyncio.to_thread(proxy.wait_for, lambda p: p.live <= 2)

    asyncio.run(main())


@pytest.mark.timeout(120, method="thread")  # the other method needs the timer that this test uses
def test_an_exception_of_a_signal_handler_does_not_let_the_undo_overtake(valkey_node: Node) -> None:
    """A soft time limit, as task queues raise it: the undo must go down the same connection, behind the claim."""

    class SoftLimit(Exception):
        pass

    def handler(*_: Any) -> None:
        raise SoftLimit

    with FaultProxy(valkey_node.port) as proxy, interlock.Client(proxy.url, request_timeout=3) as client:
        with client.lock("x"):
            pass
        connections = proxy.connections
        proxy.delay(0.3, "requests")
        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(SoftLimit):
                client.lock("x", ttl=30).acquire()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        proxy.heal()
        assert valkey_node.command("EXISTS", "x") == 0
        assert proxy.connections == connections


@pytest.mark.timeout(120, method="thread")  # the other method needs the timer that this test uses
def test_a_time_limit_that_raises_timeout_error_stays_what_it_is(valkey_node: Node) -> None:
    def handler(*_: Any) -> None:
        raise TimeoutError("the caller's own")

    with FaultProxy(valkey_node.port) as proxy, interlock.Client(proxy.url, request_timeout=3) as client:
        client.inspect("x")
        proxy.delay(0.3)
        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(TimeoutError, match="the caller's own"):
                client.lock("x", ttl=30).acquire()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        proxy.heal()
    assert valkey_node.command("EXISTS", "x") == 0


@pytest.mark.parametrize("lost", ["AUTH", "EVAL"])
def test_what_a_server_echoes_is_not_passed_on(fresh_node: Callable[..., Node], colour: str, lost: str) -> None:
    """A server without the command answers with the arguments it was given: a password, a token."""
    node = fresh_node(config=[f'rename-command {lost} ""'])

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.InterlockError) as caught:
            await kit.client().lock("x").acquire(timeout=1)
        shown: BaseException | None = caught.value
        assert "hunter2" not in str(shown)
        assert "~" not in str(shown), "no token either"

    run_body(body, node.url.replace("://", "://:hunter2@") if lost == "AUTH" else node.url, colour)
