"""A signal whose handler raises (Ctrl-C, a soft time limit) strikes between two steps of waiting or handing over.

Python looks for signals where a function begins, so that is where these strike. Whatever was interrupted, nobody who comes
later may find a waiter at the queue that is not there, or sleep for something that will not come.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import interlock
from interlock import AsyncClient, Client
from interlock.backends.redis import resp
from interlock.core.claim import Claim, Place, Refused
from interlock.flow.attempt import Attempt
from interlock.flow.waiting import name_queue
from interlock.flow.waiting import queue as queues
from interlock.flow.waiting.waiter import LEFT, Waiter
from interlock.runtime.blocking import run
from interlock.testing import Node

SOON = 3.0  # seconds: far more than it takes, far less than somebody sleeps who is not told


@pytest.fixture(params=["memory", "valkey", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/locks.db"
    node: Node = request.getfixturevalue("valkey_node")
    return node.url


@contextmanager
def struck(file: str, function: str, caller: str = "") -> Iterator[None]:
    """KeyboardInterrupt where this function of ours begins, once, in this thread; that it did is asserted."""
    times = 0

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal times
        code, back = frame.f_code, frame.f_back
        here = code.co_name == function and code.co_filename.endswith(f"interlock/{file}")
        if (
            here
            and not times
            and (not caller or (back is not None and back.f_code.co_filename.endswith(f"interlock/{caller}")))
        ):
            times += 1
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(before)
    assert times == 1, "it never came there"


class Waiting:
    """A thread that waits for the lock, without a limit."""

    def __init__(self, client: Client, name: str) -> None:
        self.waited: float | None = None
        self._client, self._name = client, name
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        with suppress(interlock.UsageError):  # the client was closed
            lease = self._client.lock(self._name).acquire(timeout=None)
            self.waited = time.monotonic() - self._began
            lease.release()

    def served(self) -> bool:
        self._thread.join(SOON)
        return self.waited is not None


def waiters(client: Client) -> int:
    return sum(len(queue.waiters) for queue in client._context.queue._queues.values())


def wait_for(check: Any) -> None:
    until = time.monotonic() + SOON
    while not check():
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("file", "function"),
    [("flow/waiting/name_queue.py", "remove"), ("flow/waiting/queue.py", "_give"), ("flow/waiting/queue.py", "got")],
)
def test_while_it_takes_a_free_lock(url: str, file: str, function: str) -> None:
    with Client(url, ttl=30) as client:
        with struck(file, function):
            client.lock("x").acquire()
        assert not waiters(client)
        assert Waiting(client, "x").served()


@pytest.mark.parametrize("deaf", [False, True])
def test_while_it_takes_a_lock_that_it_has_waited_for(url: str, deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_inbox() -> str:
        raise interlock.Unavailable("no inbox", backend=url, cause="closed")

    with Client(url) as holder, Client(url, ttl=30) as client:
        if deaf:
            monkeypatch.setattr(client._context.listener, "listen", no_inbox)
        holder.lock("x", ttl=0.3, renew=False).acquire()  # left to expire: the waiter gets it by its own question
        with struck("flow/waiting/queue.py", "got"):
            client.lock("x").acquire(timeout=SOON)
        assert not waiters(client)
        assert Waiting(client, "x").served()


@pytest.mark.parametrize(
    ("file", "function"),
    [("flow/waiting/wait.py", "_give_up"), ("flow/waiting/queue.py", "leave"), ("flow/waiting/name_queue.py", "leave")],
)
def test_while_it_gives_up(url: str, file: str, function: str) -> None:
    with Client(url, ttl=30) as holder, Client(url, ttl=30) as client:
        lease = holder.lock("x").acquire()
        with struck(file, function):
            client.lock("x").acquire(timeout=0.05)
        waiting = Waiting(client, "x")
        wait_for(lambda: waiters(client))
        lease.release()
        assert waiting.served()
        assert not waiters(client)


@pytest.mark.parametrize(
    ("file", "function", "caller"),
    [
        ("runtime/base.py", "now", "flow/waiting/handover.py"),
        ("flow/waiting/queue.py", "offer", ""),
        ("flow/ask.py", "believe", "flow/waiting/handover.py"),
        ("flow/waiting/queue.py", "handed", ""),
        ("flow/waiting/queue.py", "_give", ""),
        ("flow/waiting/name_queue.py", "remove", ""),
    ],
)
def test_while_it_hands_over(url: str, file: str, function: str, caller: str) -> None:
    told: list[str] = []
    with Client(url, ttl=30) as client:
        lease = client.lock("x", on_lost=lambda lease: told.append(lease.reason)).acquire()
        heard: list[str] = []
        lease._hold.watch(heard.append)
        waiting = Waiting(client, "x")
        wait_for(lambda: waiters(client))
        with struck(file, function, caller):
            lease.release()
        with suppress(interlock.InterlockError):
            lease.release()
        assert waiting.served()
        assert lease.state == "released", "it was given back, and nobody took it away"
        assert not told
        assert "released" in heard, "whoever waits for its end knows"
        wait_for(lambda: not waiters(client) and not client._context.queue.in_line)


@pytest.mark.parametrize("function", ["_open", "_opened"])
def test_while_it_opens_the_inbox(url: str, function: str) -> None:
    """The next who waits opens it."""
    with Client(url, ttl=30) as holder, Client(url, ttl=30) as client:
        lease = holder.lock("x").acquire()
        with struck("flow/waiting/listener.py", function):
            client.lock("x").acquire(timeout=1)
        waiting = Waiting(client, "x")
        wait_for(lambda: client._context.queue.in_line)
        assert client._context.listener._opening is None
        lease.release()
        assert waiting.served()


def test_one_that_left_in_a_hurry_is_shown_out_by_the_next() -> None:
    queue, now = queues.LocalQueue(), 100.0
    ghost, me = (Waiter(Attempt("x", 10), token, 0.0) for token in "ab")
    queue.enter(ghost)
    queue.enter(me)
    assert queue.turn(me, now, last=False) == now + name_queue.LOOK
    ghost.state = LEFT
    assert queue.turn(me, now, last=False) is None, "it asks"


def test_an_heir_that_stands_in_line_does_not_rely_on_that_for_long() -> None:
    queue, heir = queues.LocalQueue(), Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(heir)
    assert queue.offer(heir, "b")
    queue.withdraw(heir, "c")
    assert heir.offered == "b"
    assert queue.in_line.get("b") is heir, "another hand-over's failure is not this one's"
    assert queue.stands(heir, Refused(600.0, "h:1", at=5.0), 100.0)
    assert 100.0 < heir.until < 100.0 + queues.RELY + 0.1


def test_who_is_served_and_frozen_costs_those_behind_it_seconds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was left to the holder before it, although that is all that they were told."""
    monkeypatch.setattr(queues, "RELY", 0.3)
    with Client(url, ttl=600) as holder, Client(url) as frozen, Client(url) as client:
        lease, line = holder.lock("x").acquire(), frozen._context.backend
        inbox = run(line.open_inbox(1.0))  # type: ignore[attr-defined]
        claim = Claim("x", frozen._context.runtime.token(), 600, Place(1, inbox, 0.2))
        assert isinstance(run(line.claim(claim, 1.0)), Refused)
        waiting = Waiting(client, "x")
        wait_for(lambda: client._context.queue.in_line)
        began = time.monotonic()
        lease.release()
        wait_for(lambda: run(line.inspect("x", 1.0)).held)
        assert waiting.served()
        assert time.monotonic() - began >= 0.2 * 0.9, "it was served first"


def test_sqlite_an_extension_that_was_cancelled_is_not_on_record_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(f"sqlite://{tmp_path}/locks.db", renew=False) as client:
            for _ in range(5):
                lease = await client.lock("x").acquire()
                task = asyncio.create_task(lease.extend(10))
                await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert await lease.release()
            assert not client._context.backend._ledger.records  # type: ignore[attr-defined]

    asyncio.run(main())


def test_on_a_quorum_who_is_in_line_asks_half_as_often() -> None:
    """A question costs each node seven commands: a hundred who wait on five nodes may cost ten in a second, in all."""
    nodes = [f"memory://{uuid.uuid4().hex}" for _ in range(3)]
    with Client(nodes[0]) as one, Client(nodes) as several:
        assert (one._context.queue.rely, several._context.queue.rely) == (3.0, 6.0)


@pytest.mark.parametrize("after", ["BEGIN", "COMMIT"])
def test_sqlite_a_handlers_timeout_is_not_taken_for_the_files(tmp_path: Path, after: str) -> None:
    """A TimeoutError is an OSError. It is raised as it is, and the claim that it struck is undone."""
    with Client(f"sqlite://{tmp_path}/locks.db", ttl=60, renew=False) as client:
        with client.lock("warm"):
            pass
        database: Any = client._context.backend._store._database  # type: ignore[attr-defined]
        execute, times = database.execute, 0

        def struck(sql: str, *args: Any) -> Any:
            nonlocal times
            cursor = execute(sql, *args)
            if sql.startswith(after) and not times:
                times += 1
                raise TimeoutError("time is up")
            return cursor

        database.execute = struck
        with pytest.raises(TimeoutError, match="time is up") as caught:
            client.lock("x").try_acquire()
        assert type(caught.value) is TimeoutError
        assert times == 1
        assert not client.inspect("x").held
        assert client._context.backend._store._database is database, "there is nothing wrong with the file"  # type: ignore[attr-defined]
        with client.lock("x", timeout=0):
            pass


def test_a_grant_in_hand_is_given_back(url: str) -> None:
    with Client(url, ttl=60, renew=False) as client:
        with struck("flow/ask.py", "believe"):
            client.lock("x").try_acquire()
        assert not client.inspect("x").held


def test_whoever_comes_after_an_heir_that_left_is_told_although_a_signal_struck(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was handed over, the heir has given up meanwhile, and the one who did it was struck with the answer in hand. The
    next one must not wait until the lease would have ended."""

    def give_up() -> None:
        with suppress(interlock.AcquireTimeout):
            client.lock("x").acquire(timeout=0.3)

    async def slowly(*args: Any) -> Any:
        handed = await hand_over(*args)
        heir.join()
        return handed

    with Client(url, ttl=30) as client:
        backend: Any = client._context.backend
        hand_over = backend.hand_over
        monkeypatch.setattr(backend, "hand_over", slowly)
        lease = client.lock("x").acquire()
        heir = threading.Thread(target=give_up)
        heir.start()
        wait_for(lambda: waiters(client) == 1)
        waiting = Waiting(client, "x")
        wait_for(lambda: waiters(client) == 2)
        with struck("flow/waiting/queue.py", "handed"):
            lease.release()
        assert waiting.served()


@contextmanager
def late(runtime: Any, ended: list[threading.Thread]) -> Iterator[None]:
    """Whoever starts a thread hears of that when the thread has ended, if it fails at once."""
    spawn = runtime.spawn

    def slowly(*args: Any) -> Any:
        spawned = spawn(*args)
        ended.append(spawned._thread)
        spawned._thread.join(0.2)  # it goes on meanwhile
        return spawned

    runtime.spawn = slowly
    try:
        yield
    finally:
        runtime.spawn = spawn


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_listener_that_fails_at_once_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before whoever started it has noted that it did."""
    url, ended = f"memory://{uuid.uuid4().hex}", []  # type: ignore[var-annotated]
    with Client(url, ttl=30) as holder, Client(url, ttl=30) as client:
        line: Any = client._context.backend
        hear, lease = line.hear, holder.lock("x").acquire()

        async def fail(until: float) -> Any:
            monkeypatch.setattr(line, "hear", hear)
            raise RuntimeError("a defect")

        monkeypatch.setattr(line, "hear", fail)
        with late(client._context.runtime, ended):
            waiting = Waiting(client, "x")
            wait_for(lambda: len(ended) == 2)  # those in line were told to ask, and so it was started again
        lease.release()
        assert waiting.served()


def test_two_listeners_do_not_hear_at_once(url: str) -> None:
    """The start of one was interrupted, and it runs all the same: the next one waits until it has ended."""
    with Client(url, ttl=30) as holder, Client(url, ttl=30) as client:
        lease, hub, hearing, most = holder.lock("x").acquire(), client._context.listener, [0], [0]
        line: Any = client._context.backend
        hear = line.hear

        async def counted(until: float) -> Any:
            hearing[0] += 1
            most[0] = max(most[0], hearing[0])
            try:
                return await hear(until)
            finally:
                hearing[0] -= 1

        line.hear = counted
        with suppress(interlock.AcquireTimeout):
            client.lock("x").acquire(timeout=0.05)
        wait_for(lambda: hearing[0])
        hub._era, hub._spawned = hub._era + 1, None  # as a signal's handler leaves it that raises when the thread has begun
        waiting = Waiting(client, "x")
        wait_for(lambda: client._context.queue.in_line and hub._spawned is not None and hub._hearing == hub._era)
        lease.release()
        assert waiting.served()
        assert most == [1]


def test_nothing_follows_down_a_connection_amid_whose_reply_a_signal_struck(
    valkey_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came next would be taken for a part of it: no request would have an answer there any more."""
    times = []

    class Items(list[Any]):
        size = 0

        def append(self, item: Any) -> None:
            super().append(item)
            if len(self) == self.size and not times:
                times.append(item)
                raise KeyboardInterrupt

    def begin(array: Any, size: int) -> None:
        array.size, array.items = size, Items()
        array.items.size = size

    with Client(valkey_node.url, ttl=30, request_timeout=0.5) as client:
        lease = client.lock(f"half:{uuid.uuid4().hex}").acquire()
        monkeypatch.setattr(resp._Array, "__init__", begin)
        with pytest.raises(KeyboardInterrupt):
            lease.extend(40)
        assert times
        assert lease.release()


@pytest.mark.parametrize(("file", "function"), [("flow/renewing/keeper.py", "_halt"), ("runtime/blocking.py", "end")])
def test_a_close_that_was_struck_can_be_repeated(url: str, file: str, function: str) -> None:
    """The keeper sleeps until a lease is due, which may be hours: nothing else would wake it."""
    client = Client(url, ttl=3000)
    lease = client.lock("x").acquire()
    spawned: Any = client._keeper._spawned
    with struck(file, function):
        client.close()
    client.close()
    assert not spawned._thread.is_alive()
    assert lease.state == "held"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_listener_that_fails_before_somebody_is_in_line_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is about to stand in line was not told to ask again: nobody would hear what is announced to it."""
    url, ended = f"memory://{uuid.uuid4().hex}", []  # type: ignore[var-annotated]
    with Client(url, ttl=30) as holder, Client(url, ttl=30) as client:
        line: Any = client._context.backend
        queue, hear, lease = client._context.queue, line.hear, holder.lock("x").acquire()
        line_up = queue.line_up

        async def fail(until: float) -> Any:
            monkeypatch.setattr(line, "hear", hear)
            raise RuntimeError("a defect")

        def when_it_has_ended(waiter: Any) -> bool:
            wait_for(lambda: client._context.listener._spawned is None)
            monkeypatch.setattr(queue, "line_up", line_up)
            return bool(line_up(waiter))

        monkeypatch.setattr(line, "hear", fail)
        monkeypatch.setattr(queue, "line_up", when_it_has_ended)
        with late(client._context.runtime, ended):
            waiting = Waiting(client, "x")
            wait_for(lambda: len(ended) == 2)
        assert waiting._thread.is_alive()
        lease.release()
        assert waiting.served()
        assert waiting.waited is not None
