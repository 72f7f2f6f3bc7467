"""The embedded store: what the conformance suite cannot know. Files, processes, boots, forks, the gate."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.backends.sqlite import mounts
from interlock.backends.sqlite.aio import AsyncioTransport, _request
from interlock.backends.sqlite.backend import SqliteBackend
from interlock.backends.sqlite.blocking import BlockingTransport
from interlock.backends.sqlite.boot import Boot
from interlock.backends.sqlite.database import APPLICATION_ID, JUMP, Database
from interlock.backends.sqlite.file_lock import Budget, FileLock, Shut
from interlock.backends.sqlite.inbox import Inbox
from interlock.backends.sqlite.location import Location, parse, url_of
from interlock.backends.sqlite.open import open_sqlite
from interlock.backends.sqlite.presence import Presence
from interlock.backends.sqlite.session import CLOSE_PATIENCE
from interlock.backends.sqlite.store import Store
from interlock.backends.sqlite.sweep import STEP, Walk, walked
from interlock.core import fence as fences
from interlock.core.claim import Claim, Entry, Gone, Granted, Refused, Renewal, free
from interlock.errors import Unavailable, UsageError
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run

SRC = Path(interlock.__file__).parent.parent
WORKER = Path(__file__).with_name("sqlite_worker.py")
COLOURS = ["blocking", "asyncio"]
RUNTIME = BlockingRuntime()


def owe(backend: Any, token: str) -> None:
    """As if the answer to a request of this token had never come."""
    backend._ledger.owes((token,), backend._path, None, now())


def token(digit: str = "a", owner: str = "here:1") -> str:
    return f"{digit * 32}~{owner}"


class Clock:
    """A boot-time clock that moves when told, and the boot that it belongs to."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.boot = "first"
        self.ahead = 0.0
        self.wall = fences.EPOCH_MS + 1_000_000_000

    def now(self) -> float:
        return self.time


class Client:
    """A backend in one colour, used as if it were blocking."""

    def __init__(self, colour: str, path: Path, clock: Clock | None = None, **place: Any) -> None:
        self.runner = asyncio.Runner() if colour == "asyncio" else None
        self.step: Callable[[Coroutine[Any, Any, Any]], Any] = self.runner.run if self.runner else run
        if clock is None:
            self.store = Store(Location(str(path), **place), RUNTIME.now, RUNTIME.wall_ms)
        else:
            self.store = Store(
                Location(str(path), **place), clock.now, lambda: clock.wall, lambda: Boot(clock.boot, clock.ahead)
            )
        runtime = AsyncioRuntime() if self.runner else RUNTIME
        transport = AsyncioTransport(lambda: self.store.address) if self.runner else BlockingTransport()
        self.backend = SqliteBackend(self.store, transport, Inbox(runtime))

    def claim(self, name: str, token: str, ttl: float = 10.0, within: float = 5.0) -> Any:
        return self.step(self.backend.claim(Claim(name, token, ttl), within))

    def extend(self, name: str, token: str, ttl: float = 10.0, fence: int = 0) -> Any:
        return self.step(self.backend.extend(name, token, ttl, 5.0, fence))

    def renew(self, *leases: tuple[str, str, float, int]) -> Any:
        return self.step(self.backend.renew([Renewal(*lease) for lease in leases], 5.0))

    def release(self, name: str, token: str, within: float = 5.0) -> Any:
        return self.step(self.backend.release(name, token, within))

    def undo(self, name: str, token: str) -> Any:
        return self.step(self.backend.undo(name, token, 5.0))

    def inspect(self, name: str, within: float = 5.0) -> Any:
        return self.step(self.backend.inspect(name, within))

    def close(self) -> None:
        self.step(self.backend.close())
        if self.runner:
            self.runner.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients and closes them."""
    made: list[Client] = []

    def client(colour: str = "blocking", where: Path = path, clock: Clock | None = None, **place: Any) -> Client:
        made.append(Client(colour, where, clock, **place))
        return made[-1]

    yield client
    for one in made:
        one.close()


Make = Callable[..., Client]


def rows(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT name, token, fence FROM entries ORDER BY name").fetchall()


def counter(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        number: int = db.execute("SELECT counter FROM clock").fetchone()[0]
        return number


@contextmanager
def worker(*args: Any, under: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A process that does a job of sqlite_worker.py, started by the command `under`."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    process = subprocess.Popen(
        [*under, sys.executable, str(WORKER), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")


# --- the contract, on a clock that stands still ---------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_the_contract(colour: str, path: Path, make: Make, clock: Clock) -> None:
    client = make(colour, clock=clock)
    a, b = token("a", "web:1"), token("b", "web:2")
    assert client.inspect("x") == free("x")
    first = client.claim("x", a, 10.0)
    assert first == Granted(first.fence, 10.0)
    assert 0 < first.fence < 2**53
    assert client.inspect("x") == Entry("x", True, "web:1", 10.0, first.fence)

    clock.time += 4
    assert client.claim("x", b)._replace(fence=0) == Refused(6.0, "web:1", at=clock.time)
    assert client.claim("x", a, 20.0) == Granted(first.fence, 20.0), "the holder's own claim again: same fence, ttl anew"
    assert client.inspect("x").remaining == 20.0
    assert client.extend("x", a, 3.0) == Granted(first.fence, 3.0), "what is left is set, not added to"
    assert client.extend("x", b) == Gone(taken=True)
    assert client.release("x", b) is False
    assert client.release("x", a) is True
    assert client.release("x", a) is False
    assert client.extend("x", a) == Gone(taken=False)
    assert rows(path) == []

    second = client.claim("x", b)
    assert second.fence > first.fence
    clock.time += 10.0  # the very moment counts as over
    assert client.inspect("x") == free("x")
    assert client.extend("x", b) == Gone(taken=False)
    assert client.claim("x", b).fence > second.fence, "expired is expired, for its holder, too"
    clock.time += 11
    assert client.release("x", b) is False
    assert rows(path) == [], "an expired row goes with its release"


def test_a_quorums_fence_is_stored_and_the_counter_follows(path: Path, make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    low = client.claim("x", token()).fence
    assert client.extend("x", token(), fence=low - 1) == Granted(low, 10.0), "never lowered"
    assert client.extend("x", token(), fence=low + 1000) == Granted(low + 1000, 10.0)
    assert client.claim("x", token()).fence == low + 1000
    assert client.claim("y", token()).fence == low + 1001
    with pytest.raises(UsageError, match="2\\*\\*53"):
        client.extend("x", token(), fence=2**53)
    assert client.inspect("x").fence == low + 1000


@pytest.mark.parametrize("colour", COLOURS)
def test_a_batch_is_many_extensions(colour: str, path: Path, make: Make, clock: Clock) -> None:
    client, a, b = make(colour, clock=clock), token("a"), token("b")
    low, taken, over, _ = (client.claim(name, a, ttl).fence for name, ttl in [("l", 9.0), ("t", 9.0), ("o", 5.0), ("h", 9.0)])
    client.release("t", a)
    client.claim("t", b, 9.0)
    clock.time += 5.0  # the very moment counts as over
    top = client.claim("z", b, 100.0).fence
    assert client.renew(
        ("l", a, 20.0, low - 1), ("t", a, 20.0, taken), ("o", a, 20.0, over), ("none", a, 20.0, 1), ("h", a, 30.0, top + 1000)
    ) == [Granted(low, 20.0), Gone(taken=True), Gone(taken=False), Gone(taken=False), Granted(top + 1000, 30.0)]
    assert [client.inspect(name).remaining for name in "lth"] == [20.0, 4.0, 30.0]
    assert counter(path) == top + 1000, "the counter follows the highest fence of the batch"
    assert client.inspect("h").fence == top + 1000
    with pytest.raises(UsageError, match="2\\*\\*53"):
        client.renew(("l", a, 90.0, low), ("h", a, 90.0, 2**53))
    assert client.inspect("l").remaining == 20.0, "nothing was written"
    assert client.renew() == []


def test_a_batch_is_one_transaction(path: Path, make: Make) -> None:
    client = make()
    leases = [(f"{n:03}", token(), 60.0, client.claim(f"{n:03}", token(), 60.0).fence) for n in range(50)]
    database = client.store._database
    assert database is not None
    said: list[str] = []
    assert database._connection is not None
    database._connection.set_trace_callback(said.append)
    assert client.renew(*leases) == [Granted(fence, 60.0) for *_, fence in leases]
    assert [line for line in said if line in ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")] == ["BEGIN IMMEDIATE", "COMMIT"]
    assert len(said) < 2 * 50 + 6, "a look and a write for each, and a few for all"


def test_a_batch_that_fails_half_way_extends_nothing(path: Path, make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    leases = [(name, token(), 90.0, client.claim(name, token(), 10.0).fence) for name in "abc"]
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TRIGGER no BEFORE UPDATE ON entries WHEN old.name = 'c' BEGIN SELECT RAISE(ABORT, 'no'); END")
        db.commit()
    with pytest.raises(Unavailable):
        client.renew(*leases)
    assert [client.inspect(name).remaining for name in "abc"] == [10.0, 10.0, 10.0]
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER no")
    assert client.renew(*leases) == [Granted(fence, 90.0) for *_, fence in leases]


def test_nothing_is_owed_after_a_batch_that_was_given_up(path: Path) -> None:
    """A renewal that is late creates nothing, so nothing is remembered of it."""

    async def body() -> None:
        client: Any = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        fence = (await client.claim(Claim("x", token(), 60.0), 5.0)).fence
        with worker("sit", path) as process:
            assert hear(process) == "inside"
            task = asyncio.create_task(client.renew([Renewal("x", token(), 90.0, fence)], 30.0))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not client._ledger.records
            tell(process)
        assert await client.undo("x", token(), 5.0) is False
        await client.close()

    asyncio.run(body())


def test_names_share_one_counter_and_leave_no_row(path: Path, make: Make) -> None:
    client = make()
    last = 0
    for number in range(20):
        fence = client.claim(f"name {number}", token()).fence
        assert fence > last
        last = fence
        client.release(f"name {number}", token())
    assert rows(path) == []
    assert counter(path) == last


def test_undo_removes_what_is_owed_and_nothing_else(path: Path, make: Make) -> None:
    client = make()
    client.claim("x", token())
    client.undo("x", token())  # every answer came: nothing to undo
    assert rows(path)
    owe(client.backend, token())
    client.undo("x", token())
    assert rows(path) == []
    assert not client.backend._ledger.records


# --- expired rows ---------------------------------------------------------------------------------------------------------


def test_dead_rows_of_other_names_are_found(path: Path, make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    for number in range(50):
        client.claim(f"dead {number}", token(), 5.0)
    for number in range(20):
        client.claim(f"alive {number}", token(), 1000.0)
    clock.time += 6
    for _ in range(2 * 70 // STEP):
        client.claim("mine", token(), 1000.0)
        client.release("mine", token())
    assert len(rows(path)) == 20
    # The walk is over, so nobody pays for one until the next row can have expired.
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT horizon FROM clock").fetchone()[0] > clock.time + 900


def test_an_expiry_that_moves_forward_is_noticed(path: Path, make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    client.claim("x", token(), 1000.0)
    client.extend("x", token(), 5.0)
    client.claim("y", token(), 1000.0)
    client.claim("y", token(), 7.0)
    clock.time += 8
    client.claim("z", token(), 1000.0)
    assert [name for name, *_ in rows(path)] == ["z"]
    client.claim("w", token(), 1000.0)
    client.renew(("z", token(), 900.0, 0), ("w", token(), 5.0, 0))
    clock.time += 6
    client.claim("v", token(), 1000.0)
    assert [name for name, *_ in rows(path)] == ["v", "z"], "the soonest of a batch counts"


def test_a_walk_ends_at_the_end() -> None:
    full = [(str(number), 1, 50.0 + number) for number in range(STEP)]
    on, dead = walked(Walk(horizon=40.0, low=51.5), full, now=51.0)
    assert dead == [("0", 1), ("1", 1)]
    assert on == Walk(40.0, 51.5, str(STEP - 1), 1)
    over, dead = walked(on, full[:1], now=49.0)
    assert dead == []
    assert over == Walk(horizon=50.0)


# --- processes ------------------------------------------------------------------------------------------------------------


def test_eight_processes_count_without_a_slip(tmp_path: Path, path: Path) -> None:
    total, log = tmp_path / "total", tmp_path / "log"
    total.write_text("0")
    crowd = [worker("count", path, total, log, 500) for _ in range(8)]
    processes = [one.__enter__() for one in crowd]
    try:
        for process in processes:
            assert hear(process) == "ready"
        for process in processes:
            tell(process)
        assert [process.wait(60) for process in processes] == [0] * 8
    finally:
        for one in crowd:
            one.__exit__(None, None, None)
    assert int(total.read_text()) == 4000
    seen = [int(line) for line in log.read_text().split()]
    assert len(seen) == 4000
    assert all(earlier < later for earlier, later in pairwise(seen))
    assert rows(path) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["locks.db", "locks.db-gate", "log", "total"]


def test_death_inside_the_gate_opens_it(path: Path, make: Make) -> None:
    client = make()
    first = client.claim("x", token()).fence
    with worker("sit", path) as process:
        assert hear(process) == "inside"
        process.kill()
        process.wait()
        assert client.claim("y", token()).fence > first
        assert [name for name, *_ in rows(path)] == ["x", "y"], "half a transaction is none"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_stopped_process_inside_the_gate_costs_the_bound_and_no_more(colour: str, path: Path, make: Make) -> None:
    client, late = make(colour), make(colour)
    client.claim("mine", token())
    with worker("sit", path) as process:
        assert hear(process) == "inside"
        process.send_signal(signal.SIGSTOP)
        verbs: list[Callable[[], Any]] = [
            lambda: client.claim("x", token(), within=0.2),
            lambda: client.release("mine", token(), within=0.2),
            lambda: client.inspect("x", within=0.2),
            lambda: late.claim("x", token(), within=0.2),  # has to open the file yet
        ]
        for verb in verbs:
            started = time.monotonic()
            with pytest.raises(Unavailable, match="gate") as caught:
                verb()
            assert 0.19 <= time.monotonic() - started < 2
            assert caught.value.cause == "timeout"
            assert caught.value.backend == f"sqlite://{path}"
            assert "a" * 32 not in str(caught.value)
        client.undo("x", token())  # nothing is owed, so this returns although nobody can enter
        process.send_signal(signal.SIGCONT)
        tell(process)
        assert hear(process) == "outside"
        assert isinstance(client.claim("x", token()), Granted)
        assert isinstance(late.claim("z", token()), Granted)
        assert client.release("mine", token()) is True


def test_the_gate_lets_one_in_and_waits_no_longer_than_told(tmp_path: Path) -> None:
    one, other = (FileLock(str(tmp_path / "gate"), None) for _ in range(2))
    assert one.enter(Budget(0))
    other.leave()  # harmless: it is not inside
    with pytest.raises(Shut):
        other.enter(Budget(0.05))
    patient = Budget(60)
    threading.Timer(0.05, patient.cancel).start()
    with pytest.raises(Shut):
        other.enter(patient)
    threading.Timer(0.05, one.leave).start()
    assert other.enter(Budget(60))
    os.unlink(tmp_path / "gate")
    assert not other.enter(Budget(1)), "whoever comes now queues elsewhere"
    one.close()
    other.close()


def test_threads_share_one_client(tmp_path: Path, path: Path, make: Make) -> None:
    client = make()
    number = [0]

    def count(who: int) -> None:
        mine = token(str(who))
        for _ in range(50):
            while not isinstance(client.claim("number", mine), Granted):
                time.sleep(0.0005)
            seen = number[0]
            time.sleep(0)
            number[0] = seen + 1
            assert client.release("number", mine)

    threads = [threading.Thread(target=count, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number == [300]


def test_a_thread_waits_for_another_no_longer_than_told(make: Make) -> None:
    client = make()
    client.release("x", token())  # opens the file
    inside, leave = threading.Event(), threading.Event()

    def stay(budget: Budget) -> None:
        inside.set()
        leave.wait()

    thread = threading.Thread(target=lambda: run(client.backend._transport.run(stay, (), 5.0, False)))
    thread.start()
    inside.wait()
    with pytest.raises(Unavailable, match="other threads") as caught:
        client.claim("x", token(), within=0.1)
    assert caught.value.cause == "timeout"
    leave.set()
    thread.join()
    assert isinstance(client.claim("x", token()), Granted)


@pytest.mark.parametrize("job", ["fork", "fork_unnoticed", "fork_outlived", "fork_amid", "fork_busy", "frugal"])
def test_in_a_process_of_its_own(job: str, path: Path) -> None:
    with worker(job, path) as process:
        assert hear(process) == "fine"
        assert process.wait(10) == 0
    assert not path.with_name("locks.db-wal").exists(), "closed, by the interpreter's end if need be"


def test_a_child_of_a_dead_parent_does_not_keep_the_gate_shut(path: Path, make: Make) -> None:
    client = make()
    with worker("fork_inside", path) as process:
        child, outcome = hear(process).split()
        try:
            assert outcome == "refused", "the parent is inside, and its child must not open the gate for itself"
            with pytest.raises(Unavailable):
                client.claim("x", token(), within=0.1)
            process.kill()
            process.wait()
            assert isinstance(client.claim("x", token()), Granted)
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_what_a_child_inherited_is_never_finalised(path: Path) -> None:
    with worker("keep", path) as process:
        assert hear(process) == ""
        assert process.wait(10) == 0


# --- interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["claim", "extend", "renew", "inspect"])
def test_ctrl_c_inside_a_verb_leaves_no_gate_shut(verb: str, path: Path, make: Make, clock: Clock) -> None:
    client, other = make(clock=clock), make(clock=clock)
    client.claim("x", token())

    def interrupt() -> float:
        raise KeyboardInterrupt

    client.store._now = interrupt
    arguments = {"claim": ("y", token("b")), "extend": ("x", token()), "renew": (("x", token(), 9.0, 0),), "inspect": ("x",)}[
        verb
    ]
    with pytest.raises(KeyboardInterrupt):
        getattr(client, verb)(*arguments)
    client.store._now = clock.now
    assert isinstance(other.claim("z", token("c"), within=0.5), Granted)
    client.undo("y", token("b"))
    assert [name for name, *_ in rows(path)] == ["x", "z"]
    assert isinstance(client.claim("y", token()), Granted), "the transaction was ended, not left open"


def test_a_signal_handler_that_comes_back_in_is_refused(make: Make) -> None:
    client = make()
    caught: list[BaseException] = []

    def handler(budget: Budget) -> str:
        try:
            client.claim("x", token())
        except UsageError as error:
            caught.append(error)
        return "done"

    assert run(client.backend._transport.run(handler, (), 5.0, False)) == "done"
    assert "signal handler" in str(caught[0])
    assert isinstance(client.claim("x", token()), Granted)


def threads_of_ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("interlock-sqlite")]


def test_a_claim_cancelled_at_the_gate_is_withdrawn(path: Path) -> None:
    async def body() -> None:
        client = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        await client.release("x", token(), 5.0)  # opens the file
        with worker("sit", path) as process:
            assert hear(process) == "inside"
            task = asyncio.create_task(client.claim(Claim("x", token(), 60.0), 60.0))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(Unavailable, match="gate"):  # not "other tasks": the claim waits no longer
                await client.inspect("x", 0.3)
            undone = asyncio.create_task(client.undo("x", token(), 5.0))
            await asyncio.sleep(0.05)
            assert not undone.done()
            tell(process)
            assert hear(process) == "outside"
            await undone
            assert not (await client.inspect("x", 1.0)).held
        await client.close()

    asyncio.run(body())
    assert rows(path) == []
    assert threads_of_ours() == []


def test_a_cancellation_after_the_deed_still_counts(path: Path) -> None:
    """The store has granted, and the task is cancelled before it could see the answer."""

    async def body() -> None:
        client = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        await client.release("x", token(), 5.0)  # opens the file
        task = asyncio.create_task(client.claim(Claim("x", token(), 60.0), 5.0))
        await asyncio.sleep(0)
        while not rows(path):
            time.sleep(0.001)  # the loop stands still: the answer is there and not yet delivered
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rows(path)
        await client.undo("x", token(), 5.0)
        assert rows(path) == []
        await client.undo("x", token(), 0.0)  # nothing is owed any more
        await client.close()

    asyncio.run(body())
    assert threads_of_ours() == []


def test_an_undo_is_finished_though_cancelled(path: Path) -> None:
    async def body() -> None:
        client: Any = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        await client.claim(Claim("x", token(), 60.0), 5.0)
        owe(client, token())
        with worker("sit", path) as process:
            assert hear(process) == "inside"
            task = asyncio.create_task(client.undo("x", token(), 30.0))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done()
            tell(process)
            with pytest.raises(asyncio.CancelledError):
                await task
        assert rows(path) == []
        await client.close()

    asyncio.run(body())


def test_cancellations_at_any_moment_leave_nothing(path: Path) -> None:
    async def attempt(client: Any, number: int) -> None:
        mine = token(f"{number % 10}")
        try:
            answer = await client.claim(Claim("x", mine, 60.0), 5.0)
        except asyncio.CancelledError:
            await client.undo("x", mine, 5.0)
            raise
        if isinstance(answer, Granted):
            await client.release("x", mine, 5.0)

    async def body() -> None:
        client: Any = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        await client.release("x", token(), 5.0)  # opens the file
        for number in range(200):
            task = asyncio.create_task(attempt(client, number))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if number % 3 == 0:
                time.sleep(0.0003)
            task.cancel()
            await asyncio.wait({task})
            await client.undo("x", token(f"{number % 10}"), 5.0)
        assert not client._ledger.records
        await client.close()

    asyncio.run(body())
    assert rows(path) == []
    assert threads_of_ours() == []


def test_a_hung_disk_does_not_hang_the_loop(path: Path) -> None:
    async def body() -> None:
        client: Any = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        await client.release("x", token(), 5.0)  # opens the file
        hung = threading.Event()
        stuck = asyncio.create_task(client._transport.run(lambda budget: hung.wait(30), (), 0.1, False))
        with pytest.raises(Unavailable, match="may still happen") as caught:
            await stuck
        assert caught.value.cause == "timeout"
        with pytest.raises(Unavailable):
            await client.claim(Claim("x", token(), 60.0), 0.05)
        hung.set()
        await client.undo("x", token(), 5.0)
        assert not (await client.inspect("x", 5.0)).held
        await client.close()

    asyncio.run(body())
    assert threads_of_ours() == []


def test_a_request_that_waited_too_long_in_the_queue_is_not_run() -> None:
    with pytest.raises(Shut, match="other tasks"):
        _request(pytest.fail, ("it ran",), Budget(-1))


# --- closing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_closed_client_says_so_and_its_lease_stays(colour: str, path: Path, make: Make) -> None:
    client, other, unused = make(colour), make(colour), make(colour)
    client.claim("x", token())
    for closed in (client, unused):
        closed.step(closed.backend.close())
        closed.step(closed.backend.close())
        for verb, *arguments in (("claim", "x", token()), ("release", "x", token()), ("inspect", "x")):
            with pytest.raises(UsageError, match="closed"):
                getattr(closed, verb)(*arguments)
    with pytest.raises(UsageError, match="closed"):
        client.store.inspect("x", Budget(1))
    assert threads_of_ours() == []
    assert other.claim("x", token("b")).owner == "here:1"


def test_the_last_one_out_leaves_only_the_file_and_its_gate(path: Path) -> None:
    client = Client("blocking", path)
    client.claim("x", token())
    assert path.with_name("locks.db-wal").exists()
    del client
    gc.collect()  # nobody closed it
    assert sorted(file.name for file in path.parent.iterdir()) == ["locks.db", "locks.db-gate"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "tokens are in it"


def test_a_forgotten_client_is_closed_properly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = Database.close

    def noticed(database: Database, budget: Budget) -> None:
        closed.append("closed")
        close(database, budget)

    monkeypatch.setattr(Database, "close", noticed)
    client = Client("blocking", path)
    client.release("x", token())  # opens the file
    del client
    gc.collect()
    assert closed == ["closed"]


@pytest.mark.parametrize("make", ["interlock.Client(URL)", "interlock.AsyncClient(URL)"])
def test_a_client_that_nobody_closes_or_collects_is_closed_at_exit(path: Path, make: str) -> None:
    program = f"""
import asyncio, ctypes, inspect, sys, interlock
URL = sys.argv[1]
async def main():
    client = {make}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))  # somebody has it for ever
    lease = client.lock("x").acquire()
    lease = await lease if inspect.isawaitable(lease) else lease
asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    subprocess.run([sys.executable, "-c", program, f"sqlite://{path}"], env=env, timeout=30, check=True)
    assert sorted(file.name for file in path.parent.iterdir()) == ["locks.db", "locks.db-gate"]


class Amid:
    """A thread of its own that is amid a claim, until it is let go."""

    def __init__(self, client: Client) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.answer: Any = None
        self._client, self._now = client, client.store._now
        client.release("x", token())  # opens the file
        client.store._now = self._stuck
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        assert self.inside.wait(10)

    def _stuck(self) -> float:
        self.inside.set()
        self.go_on.wait(10)
        return self._now()

    def _work(self) -> None:
        self.answer = self._client.claim("x", token())

    def open(self) -> bool:
        database = self._client.store._database
        return database is not None and database.connected

    def end(self) -> Any:
        self.go_on.set()
        self.thread.join(10)
        return self.answer


def test_the_end_of_the_interpreter_leaves_a_file_open_that_a_thread_is_using(path: Path) -> None:
    client = Client("blocking", path)
    amid = Amid(client)
    client.backend.rest(0.05)
    assert amid.open(), "closed under a statement, it would crash the process"
    assert isinstance(amid.end(), Granted)
    client.backend.rest(0.05)
    assert not amid.open()
    assert not path.with_name("locks.db-wal").exists()
    said: list[str] = []

    def late() -> None:
        with pytest.raises(Unavailable) as refused:
            client.release("x", token(), within=0.1)
        said.append(str(refused.value))

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(10)
    assert "other threads" in said[0], "it would be frozen inside the gate"
    assert client.release("x", token()), "who ends the program may still use it"
    client.close()


def test_the_end_of_the_interpreter_waits_for_no_gate(path: Path) -> None:
    clients = [Client("blocking", path) for _ in range(3)]
    for client in clients:
        client.release("x", token())
    gate = FileLock(f"{path}-gate", None)
    gate.enter(Budget(1))  # as a process does that was stopped there
    before = time.monotonic()
    for client in clients:
        client.backend.rest(0.2)
    assert time.monotonic() - before < CLOSE_PATIENCE, "not even for one of them"
    assert [client.store._database for client in clients] == [None] * 3
    gate.leave()
    gate.close()
    for client in clients:
        client.close()


def test_the_finalizer_of_a_file_does_not_run_at_exit(path: Path) -> None:
    client = Client("blocking", path)
    client.release("x", token())
    assert client.store._closer is not None
    assert not client.store._closer.atexit, "a daemon thread may be inside"
    client.close()


def test_a_task_that_comes_after_the_end_of_the_workers_is_told_so(path: Path) -> None:
    program = """
import asyncio, atexit, sys, interlock
client = interlock.AsyncClient(sys.argv[1])
async def late():
    try:
        await client.lock("x").acquire()
    except interlock.Unavailable as error:
        print(error.cause, "the interpreter ends" in str(error), "locked" in str(error))
    await client.close()
async def main():
    async with client.lock("x"):
        pass
runner = asyncio.Runner()
runner.run(main())
atexit.register(runner.close)
atexit.register(lambda: runner.run(late()))
"""
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", program, f"sqlite://{path}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("closed True False\n", "")
    assert sorted(file.name for file in path.parent.iterdir()) == ["locks.db", "locks.db-gate"]


def test_a_close_that_cannot_wait_leaves_the_file_to_the_verb_that_is_under_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.backends.sqlite.blocking.CLOSE_PATIENCE", 0.05)
    client = Client("blocking", path)
    amid = Amid(client)
    client.close()
    assert amid.open()
    assert isinstance(amid.end(), Granted)
    assert not amid.open(), "closed by the last one out"
    assert not path.with_name("locks.db-wal").exists()
    with pytest.raises(UsageError, match="closed"):
        client.claim("x", token())


def test_a_close_that_cannot_wait_for_a_fork_leaves_the_file_to_the_end_of_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.backends.sqlite.blocking.CLOSE_PATIENCE", 0.05)
    client = Client("blocking", path)
    client.release("x", token())
    assert client.backend._transport.pause(1.0)
    thread = threading.Thread(target=client.close)
    thread.start()
    thread.join(10)
    assert client.store._database is not None
    client.backend.resume()
    assert client.store._database is None


def test_a_signal_handler_that_closes_the_client_amid_a_verb_lets_the_verb_end(path: Path) -> None:
    client = Client("blocking", path)
    client.release("x", token())
    now = client.store._now

    def struck() -> float:  # what a handler does, it does between two steps of the verb
        client.store._now = now
        client.close()
        return now()

    client.store._now = struck
    assert isinstance(client.claim("x", token()), Granted)
    assert client.store._database is None
    assert not path.with_name("locks.db-wal").exists()


def test_the_default_client_ends_quietly_with_the_interpreter(tmp_path: Path) -> None:
    """The finalizer of the file comes before the closing of the client, or after it: neither says a word."""
    env = {"PYTHONPATH": str(SRC), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    held = "import interlock\nwith interlock.lock('x'): pass"
    late = "import atexit\natexit.register(interlock.lock('y').acquire().release)"
    for script in (held, f"{held}\nlease = interlock.lock('x').acquire()", f"{held}\n{late}"):
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        directory = tmp_path / ".local/state/interlock"
        assert sorted(file.name for file in directory.iterdir()) == ["locks.db", "locks.db-gate"], "closed"


def test_closing_goes_through_the_gate(path: Path, make: Make) -> None:
    client = make()
    client.release("x", token())  # opens the file
    gate = FileLock(f"{path}-gate", None)
    gate.enter(Budget(1))
    left: list[float] = []

    def leave() -> None:
        left.append(time.monotonic())
        gate.leave()

    threading.Timer(0.1, leave).start()
    client.close()
    assert left
    gate.close()


def test_who_may_use_the_database_may_pass_its_gate(path: Path, make: Make) -> None:
    make().release("x", token())
    path.chmod(0o660)
    path.with_name("locks.db-gate").unlink()
    make().release("x", token())
    assert stat.S_IMODE(path.with_name("locks.db-gate").stat().st_mode) == 0o660


# --- boots and fences -----------------------------------------------------------------------------------------------------


def test_fences_start_at_the_wall_clock(make: Make, clock: Clock) -> None:
    assert make(clock=clock).claim("x", token()).fence == fences.floor(clock.wall) + 1


@pytest.mark.parametrize("clock_runs_on", [True, False])
def test_a_new_boot_frees_everything_and_lifts_the_fence(make: Make, clock: Clock, clock_runs_on: bool) -> None:
    client = make(clock=clock)
    before = client.claim("x", token(), 1000.0).fence
    client.claim("y", token(), 1000.0)
    client.close()
    clock.boot, clock.time = "second", 3.0
    if clock_runs_on:
        clock.wall += 10**8
    again = make(clock=clock)
    assert again.inspect("x") == free("x")
    assert again.extend("x", token()) == Gone(taken=False)
    after = again.claim("x", token("b")).fence
    assert after == max(before + 1 + JUMP, fences.floor(clock.wall)) + 1
    assert after < 2**53
    same = make(clock=clock)
    assert isinstance(same.claim("x", token()), Refused), "the second opener of a boot changes nothing"
    assert same.claim("z", token()).fence == after + 1


def test_the_adoption_is_fully_synchronous(path: Path, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may take back ordinary commits, but not the one that lifted the counter over them."""
    seen: list[str] = []

    class Spy(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql.startswith("UPDATE clock SET boot"):
                seen.append(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(sql, *args)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: real(*args, **{**named, "factory": Spy}))
    client = make(clock=clock)
    client.claim("x", token())
    assert seen == [2]
    assert client.store._database is not None
    assert client.store._database.execute("PRAGMA synchronous").fetchone() == (1,)
    assert client.store._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_two_kernels_on_one_file_are_noticed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Presence, "alone", lambda _: True)  # no kernel knows what another one has open
    one, two = Clock(), Clock()
    two.boot = "elsewhere"
    here, there = make(clock=one), make(clock=two)
    here.claim("x", token())
    there.claim("y", token())
    for verb in (lambda: here.claim("z", token()), lambda: here.extend("x", token()), lambda: here.inspect("x")):
        with pytest.raises(UsageError, match="do not share a clock"):
            verb()


def test_a_wall_clock_gone_mad_is_not_believed(make: Make, clock: Clock) -> None:
    clock.wall = fences.EPOCH_MS + (1 << 41)  # the year 2094
    assert make(clock=clock).claim("x", token()).fence == JUMP + 1


def test_no_fence_is_no_lock(path: Path, make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    client.claim("x", token())
    client.extend("x", token(), fence=fences.MAX_FENCE)
    with pytest.raises(Unavailable, match="no fence left"):
        client.claim("y", token())
    assert [name for name, *_ in rows(path)] == ["x"]


# --- a file that changes under an open client -----------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [[""], ["-gate"], ["", "-gate"], ["", "-wal", "-shm", "-gate"]], ids=str)
def test_a_deleted_file_is_not_locked_on(gone: list[str], path: Path, make: Make) -> None:
    old, new = make(), make()
    first = old.claim("x", token()).fence
    for ending in gone:
        os.unlink(f"{path}{ending}")
    second = new.claim("y", token("b"))
    assert old.claim("y", token("c"))[:2] == (pytest.approx(10, abs=1), "here:1"), "it sees what the others see"
    third = old.claim("z", token("c")).fence
    assert first < second.fence < third
    # Closing what is left of the old file must not take anything of the new one with it.
    assert make().claim("z", token("d")).owner == "here:1"
    if "" in gone:
        assert old.release("x", token()) is False, "whatever was in the file is lost, and nobody is told otherwise"


def test_a_new_file_does_not_share_memory_with_its_predecessor(path: Path, make: Make) -> None:
    old = make()
    old.claim("x", token())
    memory = path.with_name("locks.db-shm")
    before = memory.stat().st_ino
    keep = os.open(memory, os.O_RDONLY)  # so that the number is not given out again
    path.unlink()
    make().claim("x", token("b"))
    assert memory.stat().st_ino != before
    os.close(keep)


def test_a_deleted_file_continues_above_the_fences_it_gave(path: Path, make: Make, clock: Clock) -> None:
    client = make(clock=clock)
    client.claim("x", token())
    high = client.extend("x", token(), fence=2**52).fence
    for file in path.parent.iterdir():
        file.unlink()
    assert client.claim("x", token("b")).fence > high


def test_a_moved_directory_is_followed_by_name(tmp_path: Path, make: Make) -> None:
    place = tmp_path / "here"
    place.mkdir()
    client = make(where=place / "locks.db")
    client.claim("x", token())
    place.rename(tmp_path / "there")
    with pytest.raises(UsageError, match="does not exist"):
        client.claim("x", token("b"))
    place.mkdir()
    assert isinstance(client.claim("x", token("b")), Granted)
    assert rows(place / "locks.db")[0][1] == token("b")


def test_a_process_killed_while_making_the_file_leaves_no_riddle(path: Path, make: Make) -> None:
    path.touch()
    path.with_name("locks.db-wal").write_bytes(b"of an earlier life")
    assert isinstance(make().claim("x", token()), Granted)


# --- files that are not ours ----------------------------------------------------------------------------------------------


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE theirs (x)")
        db.commit()


def newer_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 99")
        db.execute("CREATE TABLE ours (x)")
        db.commit()


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        (lambda path: path.write_text("short"), "not a lock file"),
        (lambda path: path.write_bytes(b"something else" * 1000), "not a lock file"),
        (foreign_database, "not a lock file"),
        (newer_database, "format 99"),
    ],
    ids=["short", "long", "database", "newer"],
)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_foreign_file_is_refused_untouched(
    contents: Callable[[Path], Any], match: str, colour: str, path: Path, make: Make
) -> None:
    contents(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(UsageError, match=match):
        make(colour).claim("x", token())
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    with pytest.raises(UsageError, match=match):
        make(colour).inspect("x")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [file.name for file in path.parent.iterdir()] == ["locks.db"], "not even a gate beside it"


def test_a_damaged_file_is_unavailable(path: Path, make: Make) -> None:
    client = make()
    client.claim("x", token())
    client.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:1024] + b"\xff" * (len(whole) - 1024))
    with pytest.raises(Unavailable, match="damaged") as caught:
        make().claim("x", token())
    assert caught.value.cause == "error"


def test_somebody_outside_the_gate_costs_the_bound(path: Path, make: Make) -> None:
    client, late = make(), make()
    client.claim("mine", token())
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        for verb in (lambda: client.claim("x", token(), within=0.1), lambda: late.claim("x", token(), within=0.1)):
            started = time.monotonic()
            with pytest.raises(Unavailable, match="shell") as caught:
                verb()
            assert caught.value.cause == "timeout"
            assert time.monotonic() - started < 2
        with pytest.raises(Unavailable, match="shell"):
            client.release("mine", token(), within=0.1)
        shell.execute("ROLLBACK")
    assert isinstance(client.claim("x", token()), Granted)
    assert isinstance(late.claim("y", token()), Granted)


def test_a_full_disk_is_unavailable_and_heals(path: Path, make: Make) -> None:
    client = make()
    client.claim("x", token())
    assert client.store._database is not None
    client.store._database.execute("PRAGMA max_page_count = 1")  # SQLite cannot tell this from a full disk
    with pytest.raises(Unavailable, match="disk is full") as caught:
        for number in range(100):
            client.claim(f"{number} {'x' * 400}", token())
    assert caught.value.cause == "error"
    assert "a" * 32 not in str(caught.value)
    assert isinstance(client.claim("y" * 500, token()), Granted), "a new connection has no such limit"


def test_a_file_that_may_not_be_written_is_unavailable(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    try:
        with worker("unprivileged", closed / "locks.db") as process:
            answer = hear(process)
    finally:
        closed.chmod(0o755)
    assert answer.startswith("error: sqlite://")
    assert "Permission denied" in answer
    assert "nothing was written" in answer
    assert list(closed.iterdir()) == []


# --- places ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///srv/app/locks.db", "/srv/app/locks.db"),
        ("sqlite:////srv/app/locks.db", "/srv/app/locks.db"),
        ("sqlite:/srv/app/locks.db", "/srv/app/locks.db"),
        ("sqlite:////locks.db", "/locks.db"),
        ("sqlite:///srv/a%20b%3Fc%23d%25.db", "/srv/a b?c#d%.db"),
        ("sqlite:///srv/caf%C3%A9.db", "/srv/café.db"),
        ("sqlite:locks.db", "CWD/locks.db"),
        ("sqlite:deep/locks.db", "CWD/deep/locks.db"),
        ("SQLite:locks.db", "CWD/locks.db"),
        ("sqlite:", None),
        ("sqlite://", None),
    ],
)
def test_what_a_url_means(url: str, path: str | None) -> None:
    meant = parse(url)
    assert meant == (path and path.replace("CWD", os.getcwd()))
    if meant is not None:
        assert parse(url_of(meant)) == meant


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("sqlite:///locks.db", "'sqlite:locks.db'.*'sqlite:////locks.db'"),
        ("sqlite:///./locks.db", "'sqlite:locks.db'"),
        ("sqlite:///../locks.db", "root directory"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://:memory:", "memory://"),
        ("sqlite::memory:", "memory://"),
        ("sqlite://host/locks.db", "host"),
        ("sqlite://locks.db", "host"),
        ("sqlite:///", "names no file"),
        ("sqlite:///srv/app/", "names no file"),
        ("sqlite:///srv/a%zz.db", "%25"),
        ("sqlite:///srv/a%2", "%25"),
        ("sqlite:///srv/a%00b", "names no file"),
        ("sqlite:///srv/x.db?mode=ro", "no options"),
        ("sqlite:///srv/x.db#1", "no options"),
    ],
)
def test_urls_that_mean_nothing_good(url: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        open_sqlite(url, RUNTIME)
    assert "nothing was written" in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory in which nobody can make a file, not even root")
def test_a_file_that_cannot_be_made_is_said_once_and_nothing_else() -> None:
    """There is nothing to take back, so nobody may say that this failed."""
    with interlock.Client("sqlite:///proc/locks.db") as client, pytest.raises(Unavailable) as caught:
        client.lock("x").acquire(timeout=1)
    text = str(caught.value)
    assert text.count("nothing was written") == text.count("cannot be used") == 1
    assert "may stay locked" not in text
    assert text.endswith("Nothing is left behind")


def test_a_relative_path_is_taken_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = open_sqlite("sqlite:locks.db", RUNTIME)
    monkeypatch.chdir("/")
    run(client.claim(Claim("x", token(), 1.0), 5.0))
    assert (tmp_path / "locks.db").exists()
    assert client.address == f"sqlite://{tmp_path}/locks.db"
    run(client.close())


def test_places_that_cannot_be(tmp_path: Path, make: Make) -> None:
    with pytest.raises(UsageError, match=f"directory {tmp_path}/none does not exist"):
        make(where=tmp_path / "none" / "locks.db").claim("x", token())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, not a directory"):
        make(where=tmp_path / "file" / "locks.db").claim("x", token())
    with pytest.raises(UsageError, match="not a file"):
        make(where=tmp_path).claim("x", token())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file"]


def test_two_names_of_one_file_are_one_store(tmp_path: Path, path: Path, make: Make) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    assert isinstance(make(where=link).claim("x", token()), Granted)
    assert isinstance(make(where=path).claim("x", token("b")), Refused)
    assert not (tmp_path / "link.db-gate").exists()


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - autofs systemd-1 rw,fd=29
31 22 0:41 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
32 31 8:2 / /home/local\\040disk rw - xfs /dev/sdb1 rw
33 22 0:42 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
34 22 0:43 / /mnt/crypt rw - fuse.gocryptfs /x rw
35 22 8:1 /srv/locks.db /srv/locks.db rw - ext4 /dev/sda1 rw
36 22 0:44 / /mnt/win rw - cifs //server/share rw
37 22 0:45 / /mnt/host rw - virtiofs host rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x.db", "ext4"),
        ("/homeless/x.db", "ext4"),
        ("/home/me/x.db", "nfs4"),
        ("/home/local disk/x.db", "xfs"),
        ("/mnt/ssh/x.db", "fuse.sshfs"),
        ("/srv/locks.db", "ext4"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    mount = mounts.mount_of(path, MOUNTS)
    assert mount is not None
    assert mount.kind == kind


def test_which_file_systems_are_shared() -> None:
    shared = "nfs nfs4 cifs smb3 9p afs ceph lustre glusterfs fuse.sshfs fuse.glusterfs fuse.unknown fuse virtiofs vboxsf ocfs2"
    local = "ext4 xfs btrfs zfs tmpfs overlay fuseblk fuse.gocryptfs fuse.fuse-overlayfs bcachefs f2fs"
    assert [kind for kind in shared.split() if not mounts.is_shared(kind)] == []
    assert [kind for kind in local.split() if mounts.is_shared(kind)] == []
    assert mounts.mount_of("/", mounts.read_mountinfo()) is not None


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("50 22 0:60 / {dir} rw - nfs4 server:/x rw", "nfs4 file system"),
        ("50 22 0:60 / {dir} rw - fuse.sshfs me@host:/ rw", "fuse.sshfs file system"),
        ("50 22 8:1 /x {dir}/locks.db rw - ext4 /dev/sda1 rw", "mounted as a single file"),
    ],
)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_shared_file_system_is_refused(line: str, match: str, colour: str, tmp_path: Path, path: Path, make: Make) -> None:
    client = make(colour, mountinfo=lambda: MOUNTS + line.format(dir=tmp_path))
    with pytest.raises(UsageError, match=match):
        client.claim("x", token())
    assert list(tmp_path.iterdir()) == []
    assert isinstance(make(colour, mountinfo=lambda: MOUNTS).claim("x", token()), Granted)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a home and nothing else."""
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    home, temp = tmp_path / "home", tmp_path / "temp"
    home.mkdir()
    temp.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    return tmp_path


def used() -> str:
    """The address of the default store, once it has been used."""
    client = open_sqlite("sqlite:", RUNTIME)
    run(client.claim(Claim("x", token(), 1.0), 5.0))
    run(client.close())
    return client.address


def test_the_default_place(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_sqlite("sqlite://", RUNTIME).address == f"sqlite://{bare}/home/.local/state/interlock/locks.db"
    assert list((bare / "home").iterdir()) == [], "nothing before the first verb"
    assert used() == f"sqlite://{bare}/home/.local/state/interlock/locks.db"
    assert stat.S_IMODE((bare / "home/.local/state/interlock").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert used().startswith(f"sqlite://{bare}/home")
    monkeypatch.setenv("XDG_STATE_HOME", str(bare / "state"))
    assert used() == f"sqlite://{bare}/state/interlock/locks.db"


def test_the_default_place_comes_back_after_a_clean_up(bare: Path) -> None:
    client = open_sqlite("sqlite:", RUNTIME)
    run(client.claim(Claim("x", token(), 60.0), 5.0))
    place = bare / "home/.local/state/interlock"
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    assert isinstance(run(client.claim(Claim("x", token("b"), 60.0), 5.0)), Granted)
    run(client.close())


def test_the_fallbacks_warn(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "home/.local").write_text("in the way")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bare / "run"))
    (bare / "run").mkdir()
    with pytest.warns(RuntimeWarning, match="INTERLOCK_URL") as caught:
        assert used() == f"sqlite://{bare}/run/interlock/locks.db"
    assert len(caught) == 1
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with pytest.warns(RuntimeWarning, match="Not a directory"):
        assert used() == f"sqlite://{bare}/temp/interlock-{os.getuid()}/locks.db"
    assert stat.S_IMODE((bare / f"temp/interlock-{os.getuid()}").stat().st_mode) == 0o700


def test_a_fallback_is_shown_and_blamed_on_the_line_that_asked(bare: Path) -> None:
    (bare / "home/.local").write_text("in the way")
    client = interlock.Client("sqlite:")
    with pytest.warns(RuntimeWarning) as caught:
        client.inspect("x")
    assert caught[0].filename == __file__
    assert client.address == f"sqlite://{bare}/temp/interlock-{os.getuid()}/locks.db"
    client.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_looking_makes_nothing(colour: str, bare: Path, path: Path, make: Make) -> None:
    assert make(colour).inspect("x") == free("x")
    path.touch()
    assert make(colour).inspect("x") == free("x")
    path.unlink()
    store = Store(Location(None), RUNTIME.now, RUNTIME.wall_ms)
    assert store.inspect("x", Budget(5)) == free("x")
    assert store.address == f"sqlite://{bare}/home/.local/state/interlock/locks.db"
    assert sorted(bare.rglob("*")) == [bare / "home", bare / "temp"]
    with pytest.raises(UsageError, match="does not exist"):
        make(colour, bare / "typo/locks.db").inspect("x")
    assert isinstance(store.claim(Claim("x", token(), 60.0), Budget(5)), Granted)
    assert store.inspect("x", Budget(5)).held
    store.close()
    (bare / "home/.local/state/interlock/locks.db").unlink()
    assert Store(Location(None), RUNTIME.now, RUNTIME.wall_ms).inspect("x", Budget(5)) == free("x")


def test_looking_chooses_the_place_that_using_would_choose(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "home/.local").write_text("in the way")
    ours = bare / f"temp/interlock-{os.getuid()}"
    client = open_sqlite("sqlite:", RUNTIME)
    with pytest.warns(RuntimeWarning, match="Not a directory"):
        assert not run(client.inspect("x", 5.0)).held
    assert client.address == f"sqlite://{ours}/locks.db"
    assert not ours.exists()
    ours.mkdir()
    ours.chmod(0o777)  # somebody was faster
    with pytest.raises(Unavailable, match="not a private directory"):
        run(client.claim(Claim("x", token(), 1.0), 5.0))
    ours.rmdir()
    assert isinstance(run(client.claim(Claim("x", token(), 1.0), 5.0)), Granted)
    run(client.close())


def test_a_place_that_turns_out_not_to_be_one_is_chosen_anew(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "home/.local").write_text("in the way")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/self")
    monkeypatch.setattr(os, "access", lambda *_, **__: True)
    client = open_sqlite("sqlite:", RUNTIME)
    with pytest.warns(RuntimeWarning, match="in /proc/self"):
        run(client.inspect("x", 5.0))
    assert client.address == "sqlite:///proc/self/interlock/locks.db"
    with pytest.warns(RuntimeWarning, match="temp"):
        assert isinstance(run(client.claim(Claim("x", token(), 1.0), 5.0)), Granted)
    assert client.address == f"sqlite://{bare}/temp/interlock-{os.getuid()}/locks.db"
    run(client.close())


def test_a_home_on_a_network_falls_back(bare: Path) -> None:
    store = Store(
        Location(None, mountinfo=lambda: f"{MOUNTS}50 22 0:60 / {bare}/home rw - nfs4 s:/h rw"), RUNTIME.now, RUNTIME.wall_ms
    )
    with pytest.warns(RuntimeWarning, match="nfs4"):
        store.inspect("x", Budget(5))
    assert store.address == f"sqlite://{bare}/temp/interlock-{os.getuid()}/locks.db"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.inspect("x", Budget(5))  # said once
    store.close()


@pytest.mark.parametrize("trap", ["symlink", "open to all", "file", "somebody else's"])
def test_a_trap_in_the_temporary_directory_is_refused(trap: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "home/.local").write_text("in the way")
    if trap == "somebody else's":
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
        (bare / f"temp/interlock-{other}").mkdir(0o700)
    ours = bare / f"temp/interlock-{os.geteuid()}"
    if trap == "symlink":
        (bare / "elsewhere").mkdir(0o700)
        ours.symlink_to(bare / "elsewhere")
    elif trap == "file":
        ours.write_text("")
    elif trap == "open to all":
        ours.mkdir()
        ours.chmod(0o777)
    with pytest.raises(Unavailable, match="not a private directory") as caught:
        used()
    assert caught.value.cause == "error"
    assert "INTERLOCK_URL" in str(caught.value)


def test_a_child_starts_with_nothing_unanswered(path: Path, make: Make) -> None:
    """What the parent asked is the parent's to undo; and a lock that a thread of the parent had is nobody's in the child."""
    client = make()
    client.claim("x", token())
    owe(client.backend, token())
    pid = os.fork()
    if pid == 0:
        os._exit(1 if client.backend._ledger.records else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(client.backend._ledger.records) == [token()]
