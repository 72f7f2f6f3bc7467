"""The line of the embedded store: who is served when, what dead waiters leave, and what its files and sockets do."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from interlock.backends.registry import open_backend
from interlock.backends.sqlite import database, inbox, line
from interlock.backends.sqlite.boot import Boot
from interlock.backends.sqlite.file_lock import Budget
from interlock.backends.sqlite.inbox import BUFFER, Inbox, listens, send
from interlock.backends.sqlite.location import Location as Where
from interlock.backends.sqlite.open import open_sqlite
from interlock.backends.sqlite.store import Store
from interlock.core.claim import Announced, Claim, Granted, Handed, Place, Refused, Renewal
from interlock.core.fence import MAX_FENCE
from interlock.errors import Unavailable, UsageError
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing.faces import COLOURS, Kit, run_body

from .test_sqlite import Clock, hear, owe, rows, tell, worker

SCALE = float(os.environ.get("INTERLOCK_CHAOS", "1"))
SHORT = 2.0  # of a grant that finds its waiter in line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture(params=COLOURS)
def both(request: pytest.FixtureRequest, path: Path) -> Callable[[Callable[[Kit], Any]], None]:
    """Runs a body in one colour after the other."""
    return lambda body: run_body(body, f"sqlite://{path}", request.param)


Both = Callable[[Callable[[Kit], Any]], None]


class Someone:
    """A client at the port, with an inbox."""

    def __init__(self, kit: Kit) -> None:
        self.client: Any = kit.client()
        self.backend: Any = self.client._context.backend
        self.inbox = ""

    def token(self) -> str:
        return str(self.client._context.runtime.token())

    async def claim(self, token: str, arrival: int = 0, name: str = "x", ttl: float = 30.0) -> Any:
        """With an arrival: waits in line."""
        place = None
        if arrival:
            self.inbox = await self.backend.open_inbox(5.0)
            place = Place(arrival, self.inbox, SHORT)
        return await self.backend.claim(Claim(name, token, ttl, place), 5.0)

    async def waits(self, arrival: int, token: str = "", name: str = "x") -> str:
        """The token that waits in line now."""
        token = token or self.token()
        assert isinstance(await self.claim(token, arrival, name), Refused)
        return token

    async def release(self, token: str, name: str = "x") -> Any:
        return await self.backend.release(name, token, 5.0)

    async def hear(self, seconds: float = 5.0) -> Any:
        return await self.backend.hear(now() + seconds)

    async def told(self) -> Announced:
        """The one announcement that is there."""
        (announced,) = await self.hear()
        return announced  # type: ignore[no-any-return]

    async def holder(self, name: str = "x") -> Any:
        return await self.backend.inspect(name, 5.0)


def in_line(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT name, arrival, token FROM line ORDER BY name, arrival, token").fetchall()


def nothing_left(path: Path) -> None:
    assert (rows(path), in_line(path)) == ([], [])


# --- who is served --------------------------------------------------------------------------------------------------------


def test_the_first_is_served_in_the_step_of_the_release(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a = one.token()
        first = await one.claim(a)
        before = now()
        refused = await two.claim(b := two.token(), 10)
        assert refused.retry_after == pytest.approx(30, abs=1)
        assert before <= refused.at <= now(), "the store's clock is the machine's"
        assert await one.release(a) is True
        entry = await one.holder()
        assert (entry.held, entry.owner) == (True, b.partition("~")[2]), "before anybody was told"
        assert entry.remaining <= SHORT
        told = await two.told()
        assert told == Announced("x", b, entry.fence, SHORT, told.at)
        assert told.fence > first.fence
        assert refused.at <= told.at <= now()
        assert isinstance(await one.claim(one.token()), Refused)
        assert await two.claim(b) == Granted(told.fence, 30.0), "its own claim again: same fence"
        assert await two.hear(0.05) == []
        assert await two.release(b) is True
        nothing_left(path)

    both(body)


def test_order_is_arrival_then_token_and_claiming_again_keeps_the_place(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a = one.token()
        await one.claim(a)
        low, high = sorted((two.token(), two.token()))
        late = await two.waits(30)
        await two.waits(20, high)
        await two.waits(20, low)
        early = await two.waits(10)
        await two.waits(99, early)
        await two.waits(1, late)
        assert [token for _, _, token in in_line(path)] == [early, low, high, late]
        holding = a
        for turn in (early, low, high, late):
            assert await one.release(holding) is True
            holding = (await two.told()).token
            assert holding == turn
        await two.release(late)
        nothing_left(path)

    both(body)


def test_claiming_again_tells_anew_where_to_find_it(both: Both, path: Path) -> None:
    """A client whose inbox broke opens another, and claims again for those who wait."""

    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, b = one.token(), two.token()
        await one.claim(a)
        place = Place(10, "gone", SHORT)
        assert isinstance(await two.backend.claim(Claim("x", b, 30.0, place), 5.0), Refused)
        await two.waits(10, b)
        assert await one.release(a) is True
        assert (await two.told()).token == b

    both(body)


def test_a_free_name_goes_to_whoever_claims_it(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        await one.claim(one.token(), ttl=0.2)  # and vanishes
        b = await two.waits(10)
        await kit.sleep(0.25)
        c = one.token()
        assert isinstance(await one.claim(c, 20), Granted), "line or no line"
        assert isinstance(await two.claim(b, 10), Refused)
        await one.release(c)
        assert (await two.told()).token == b
        await two.release(b)
        nothing_left(path)

    both(body)


def test_whoever_is_granted_leaves_the_line(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        await one.claim(one.token(), ttl=0.2)
        b, c = await two.waits(10), await two.waits(20)
        await kit.sleep(0.25)
        assert isinstance(await two.claim(b), Granted), "with or without a place"
        assert [token for _, _, token in in_line(path)] == [c]
        assert await two.release(b) is True
        assert (await two.told()).token == c

    both(body)


def test_leaving_the_line(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a = one.token()
        await one.claim(a)
        b, c, d = await two.waits(10), await two.waits(20), await two.waits(30)
        assert await two.release(b) is False, "it held nothing"
        assert await two.release(b) is False
        assert await two.backend.undo("x", c, 5.0) is True, "though its claim was answered"
        assert await two.backend.undo("x", c, 5.0) is False
        owe(two.backend, c)  # as if its answer had never come
        assert await two.backend.undo("x", c, 5.0) is True
        assert [token for _, _, token in in_line(path)] == [d]
        await one.release(a)
        assert (await two.told()).token == d
        assert await two.hear(0.05) == []

    both(body)


def test_one_that_is_served_and_gives_up_passes_it_on(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two, three = Someone(kit), Someone(kit), Someone(kit)
        a = one.token()
        await one.claim(a)
        b, c = await two.waits(10), await three.waits(20)
        await one.release(a)
        owe(two.backend, b)  # it never looked into its inbox
        assert await two.backend.undo("x", b, 5.0) is True
        assert (await three.told()).token == c
        await three.release(c)
        nothing_left(path)

    both(body)


def test_names_do_not_touch_each_other(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, b = one.token(), two.token()
        await one.claim(a, name="x")
        await one.claim(a, name="y")
        await two.waits(10, b, "x")
        await two.waits(20, b, "y")
        assert await one.release(a, "y") is True
        assert (await two.told())[:2] == ("y", b)
        assert (await two.holder("x")).owner == (await two.holder("y")).owner, "all in this process, so look at the line:"
        assert in_line(path) == [("x", 10, b)]
        assert await one.release(a, "x") is True
        assert (await two.told())[:2] == ("x", b)

    both(body)


def test_the_release_of_an_expired_lease_serves_nobody(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a = one.token()
        await one.claim(a, ttl=0.1)
        b = await two.waits(10)
        await kit.sleep(0.15)
        assert await one.release(a) is False
        assert await two.hear(0.05) == []
        assert rows(path) == []
        assert [token for _, _, token in in_line(path)] == [b]

    both(body)


# --- those who cannot be told ---------------------------------------------------------------------------------------------


def test_an_inbox_that_is_gone_is_passed_over(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, dead, two = Someone(kit), Someone(kit), Someone(kit)
        a = one.token()
        first = await one.claim(a)
        await one.claim(a, name="y")
        await dead.waits(10)
        await dead.waits(11)
        other = await dead.waits(12, name="y")
        b = await two.waits(20)
        await dead.client.close()
        assert await one.release(a) is True
        assert (await two.told())[:3] == ("x", b, first.fence + 2), "no fence was spent on the dead ('y' had one)"
        assert in_line(path) == [("y", 12, other)]
        await one.release(a, "y")
        assert (await one.holder("y")).held is False, "nobody could be told"
        await two.release(b)
        nothing_left(path)

    both(body)


def test_an_inbox_out_of_reach_is_passed_over_but_keeps_its_place(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, far = one.token(), two.token()
        await one.claim(a)
        there = Place(1, f"{'0' * 32}@1", SHORT)  # a network namespace that is not ours
        assert isinstance(await two.backend.claim(Claim("x", far, 30.0, there), 5.0), Refused)
        b = await two.waits(20)
        await one.release(a)
        assert (await two.told()).token == b
        assert in_line(path) == [("x", 1, far)]
        assert await two.release(b) is True
        assert (await one.holder()).held is False, "free for whoever claims it"
        assert isinstance(await two.claim(far), Granted)
        await two.release(far)
        nothing_left(path)

    both(body)


def test_a_waiter_that_sleeps_holds_up_nobody_and_learns_that_it_missed_something(both: Both, path: Path) -> None:
    room = int(Path(BUFFER).read_text()) + 1

    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, b = one.token(), two.token()
        names = [f"n{number}" for number in range(room + 3)]
        for name in names:
            await one.claim(a, name=name)
            await two.waits(10, b, name)
        for name in names:
            began = time.monotonic()
            assert await one.release(a, name) is True
            assert time.monotonic() - began < 1
        heard = await two.hear()
        assert [announced.name for announced in heard] == names[:room]
        for _ in range(2):
            with pytest.raises(Unavailable, match="may be lost") as caught:
                await two.hear()
            assert caught.value.cause == "error"
        assert await two.backend.open_inbox(5.0) == two.inbox
        assert await two.hear(0.05) == []
        for name in names[room:]:
            assert isinstance(await two.claim(b, 10, name), Granted), "it was served, and finds out when it claims"

    both(body)


def test_a_waiter_with_room_to_spare_missed_nothing(both: Both) -> None:
    room = int(Path(BUFFER).read_text())

    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, b = one.token(), two.token()
        for number in range(room):
            await one.claim(a, name=f"n{number}")
            await two.waits(10, b, f"n{number}")
        for number in range(room):
            await one.release(a, f"n{number}")
        assert len(await two.hear()) == room
        assert await two.hear(0.05) == []

    both(body)


# --- handing over ---------------------------------------------------------------------------------------------------------


def test_the_heir_has_it_when_nobody_came_earlier(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, heir = one.token(), one.token()
        first = await one.claim(a)
        waiting = await two.waits(20)
        handed = await one.backend.hand_over("x", a, Claim("x", heir, 7.0), 0, 5.0)
        assert handed == Handed(True, Granted(first.fence + 1, 7.0)), "before everybody"
        last = one.token()
        handed = await one.backend.hand_over("x", heir, Claim("x", last, 7.0), 20, 5.0)
        assert handed == Handed(True, Granted(first.fence + 2, 7.0)), "earlier is earlier, not at the same time"
        assert in_line(path) == [("x", 20, waiting)]
        assert await one.release(heir) is False
        assert await one.release(last) is True
        assert (await two.told()).token == waiting

    both(body)


def test_whoever_came_earlier_is_served_before_the_heir(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, dead, two = Someone(kit), Someone(kit), Someone(kit)
        a, heir = one.token(), one.token()
        first = await one.claim(a)
        await dead.waits(10)
        await dead.client.close()
        waiting, later = await two.waits(20), await two.waits(40)
        place = Place(30, await one.backend.open_inbox(5.0), SHORT)
        handed = await one.backend.hand_over("x", a, Claim("x", heir, 7.0, place), 21, 5.0)
        assert handed.held is True
        assert handed.heir._replace(fence=0) == Refused(SHORT, waiting.partition("~")[2], (), handed.heir.at)
        told = await two.told()
        assert (told.token, told.fence, told.at) == (waiting, first.fence + 1, handed.heir.at)
        assert in_line(path) == [("x", 30, heir), ("x", 40, later)], "at its own place"
        await two.release(waiting)
        assert (await one.told()).token == heir

    both(body)


def test_handing_over_what_is_not_ours_is_a_claim(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a, heir = one.token(), two.token()
        handed = await one.backend.hand_over("x", a, Claim("x", heir, 7.0), 0, 5.0)
        assert handed.held is False
        assert isinstance(handed.heir, Granted)
        place = Place(30, await two.backend.open_inbox(5.0), SHORT)
        b = two.token()
        handed = await two.backend.hand_over("x", a, Claim("x", b, 7.0, place), 0, 5.0)
        assert handed.held is False
        assert isinstance(handed.heir, Refused)
        assert in_line(path) == [("x", 30, b)], "and waits, as a claim does"
        handed = await two.backend.hand_over("x", a, Claim("x", two.token(), 7.0), 0, 5.0)
        assert isinstance(handed.heir, Refused)
        assert in_line(path) == [("x", 30, b)]

    both(body)


def test_an_heir_that_waits_leaves_the_line(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        a = one.token()
        await one.claim(a)
        heir = await two.waits(20)
        handed = await one.backend.hand_over("x", a, Claim("x", heir, 7.0), 0, 5.0)
        assert isinstance(handed.heir, Granted)
        await two.release(heir)
        nothing_left(path)

    both(body)


def test_a_hand_over_without_an_answer_is_owed_for_both(path: Path) -> None:
    async def body() -> None:
        client: Any = open_sqlite(f"sqlite://{path}", AsyncioRuntime())
        a, heir = "a" * 32 + "~h:1", "b" * 32 + "~h:2"
        await client.claim(Claim("x", a, 60.0), 5.0)
        with worker("sit", path) as process:
            assert hear(process) == "inside"
            task = asyncio.create_task(client.hand_over("x", a, Claim("x", heir, 60.0), 0, 30.0))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert sorted(client._ledger.records) == [a, heir]
            with pytest.raises(Unavailable):
                await client.hand_over("x", "c" * 32 + "~h:3", Claim("x", "d" * 32 + "~h:4", 60.0), 0, 0.05)
            assert sorted(client._ledger.records) == [a, heir], "what never got inside is not owed"
            tell(process)
        assert await client.undo("x", heir, 5.0) is True
        assert list(client._ledger.records) == [a]
        assert await client.undo("x", a, 5.0) is True
        assert not client._ledger.records
        nothing_left(path)
        await client.close()

    asyncio.run(body())


# --- as the specification has it ------------------------------------------------------------------------------------------


class Subject:
    """A store with three clients, one of which is gone: its answers, with fences replaced by their ranks."""

    def __init__(self, url: str) -> None:
        self.clients: list[Any] = [open_backend(url, BlockingRuntime()) for _ in range(3)]
        self.inboxes = [run(client.open_inbox(5.0)) for client in self.clients]
        run(self.clients.pop().close())
        self.fences: list[int] = []

    def plain(self, answer: Any) -> Any:
        match answer:
            case Granted(fence, ttl):
                if fence not in self.fences:
                    assert fence > max(self.fences, default=0)
                    self.fences.append(fence)
                return "granted", self.fences.index(fence), ttl
            case Refused(after, owner):
                return "refused", round(after, -2), owner
            case Handed(held, heir):
                return held, self.plain(heir)
            case Announced(name, token, fence, ttl):
                return name, token, self.plain(Granted(fence, ttl))
        return answer

    def heard(self) -> list[Any]:
        return [[self.plain(announced) for announced in run(client.hear(now() - 1))] for client in self.clients]

    def close(self) -> None:
        for client in self.clients:
            run(client.close())


@pytest.mark.parametrize("seed", range(int(10 * SCALE)))
def test_the_line_is_that_of_memory(seed: int, path: Path) -> None:
    """The same hundreds of steps here and there, answer by answer and announcement by announcement."""
    dice = random.Random(seed)
    subjects = [Subject(f"memory://line-{os.getpid()}-{seed}"), Subject(f"sqlite://{path}")]
    tokens = [f"{dice.getrandbits(128):032x}~host:{number}" for number in range(5)]
    places = {token: (dice.randrange(1, 6), dice.choice([0, 0, 1, 1, 2])) for token in tokens}

    def claim(subject: Subject, name: str, token: str, waits: bool) -> Claim:
        arrival, box = places[token]
        return Claim(name, token, 1000.0, Place(arrival, subject.inboxes[box], 500.0) if waits else None)

    served = 0
    for _ in range(400):
        name, token, heir, waits = dice.choice("xy"), dice.choice(tokens), dice.choice(tokens), dice.random() < 0.8
        verb = dice.choice(["claim", "claim", "release", "release", "hand_over"])
        before, client = dice.randrange(6), dice.randrange(2)
        answers = []
        for subject in subjects:
            backend = subject.clients[client]
            if verb == "claim":
                work = backend.claim(claim(subject, name, token, waits), 5.0)
            elif verb == "release":
                work = backend.release(name, token, 5.0)
            else:
                work = backend.hand_over(name, token, claim(subject, name, heir, waits), before, 5.0)
            answers.append((subject.plain(run(work)), subject.heard()))
        assert answers[0] == answers[1], (verb, name, tokens.index(token), tokens.index(heir), before)
        served += sum(map(len, answers[0][1]))
    assert served
    for subject in subjects:
        subject.close()


# --- the inbox ------------------------------------------------------------------------------------------------------------


def test_hearing_waits_without_a_busy_loop(both: Both) -> None:
    async def body(kit: Kit) -> None:
        one = Someone(kit)
        with pytest.raises(Unavailable, match="open it first"):
            await one.hear(0.1)
        name = await one.backend.open_inbox(5.0)
        assert await one.backend.open_inbox(5.0) == name
        began, used = time.monotonic(), time.process_time()
        assert await one.hear(0.5) == []
        assert time.monotonic() - began >= 0.49
        assert time.process_time() - used < 0.1
        assert await one.hear(-1.0) == []

    both(body)


def test_closing_wakes_the_listener_and_ends_the_inbox(both: Both) -> None:
    async def body(kit: Kit) -> None:
        one = Someone(kit)
        name = await one.backend.open_inbox(5.0)
        assert listens(name)
        began = time.monotonic()

        async def listen() -> None:
            assert await one.hear(30.0) == []

        async def close() -> None:
            await kit.sleep(0.2)
            await one.client.close()

        await kit.together(listen(), close())
        assert time.monotonic() - began < 5
        assert listens(name) is False
        for verb in (one.hear(), one.backend.open_inbox(5.0)):
            with pytest.raises(UsageError, match="closed"):
                await verb

    both(body)


def test_a_forgotten_client_takes_its_inbox_along(path: Path) -> None:
    backend: Any = open_sqlite(f"sqlite://{path}", BlockingRuntime())
    name = run(backend.open_inbox(5.0))
    assert not path.exists(), "no file is needed for it"
    del backend
    gc.collect()
    assert listens(name) is False


def test_strangers_are_not_believed_and_do_no_harm(both: Both) -> None:
    async def body(kit: Kit) -> None:
        one = Someone(kit)
        name = await one.backend.open_inbox(5.0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            for rubbish in (
                b"",
                b"\xff",
                b"1\n2\n3",
                b"1\nx\n3\nt\nn",
                b"1\nnan\n3.0\nt\nn",
                b"1\n2.0\ninf\nt\nn",
                b"x" * 9000,
            ):
                stranger.sendto(rubbish, f"\0interlock-{name}")
            send(name, announced := Announced("ein name\nin zwei Zeilen", "tö~ken", 7, 0.1, 1234.000001))
        assert await one.hear() == [announced]
        assert await one.hear(0.05) == []

    both(body)


def test_many_threads_open_one_inbox(path: Path) -> None:
    backend: Any = open_sqlite(f"sqlite://{path}", BlockingRuntime())
    names: set[str] = set()
    threads = [threading.Thread(target=lambda: names.add(run(backend.open_inbox(5.0)))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 1
    run(backend.close())


def test_no_descriptor_left_for_an_inbox_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    backend: Any = open_sqlite(f"sqlite://{path}", BlockingRuntime())
    box = Inbox(BlockingRuntime())
    gone = box.open()
    box.close()
    assert listens(gone) is False
    monkeypatch.setattr(inbox, "socket", none_left)
    with pytest.raises(Unavailable, match="Too many open files"):
        run(backend.open_inbox(5.0))
    assert listens(gone) is None, "not known to be gone, even if it is"
    run(backend.close())


def test_a_forked_child_has_an_inbox_of_its_own(path: Path) -> None:
    with worker("fork_inbox", path) as process:
        assert hear(process) == "heard"
        assert hear(process) == "False", "the dead parent's inbox is gone although its child lives"
        assert process.wait(10) == -signal.SIGKILL


def test_an_idle_child_does_not_keep_its_parents_inbox_alive(path: Path) -> None:
    with worker("fork_idle", path) as process:
        assert hear(process) == "False"


# --- the file -------------------------------------------------------------------------------------------------------------


def store_on(path: Path, clock: Clock) -> Store:
    return Store(Where(str(path)), clock.now, lambda: clock.wall, lambda: Boot(clock.boot, clock.ahead))


@pytest.fixture
def store(path: Path) -> Iterator[tuple[Store, Clock]]:
    clock = Clock()
    store = store_on(path, clock)
    yield store, clock
    store.close()


def claimed(store: Store, name: str, token: str, ttl: float, inbox: str = "") -> Any:
    return store.claim(Claim(name, token, ttl, Place(1, inbox, SHORT) if inbox else None), Budget(5))


def test_who_is_not_heard_of_any_more_is_swept(store: tuple[Store, Clock], path: Path) -> None:
    locks, clock = store
    claimed(locks, "x", "holder", 100.0)
    for token in ("silent", "faithful"):
        claimed(locks, "x", token, 100.0, "nowhere")
    clock.time += 99
    locks.extend(Renewal("x", "holder", 50.0, 0), Budget(5))
    claimed(locks, "x", "faithful", 100.0, "nowhere")

    def passing_by() -> None:  # whose grants do the sweeping
        for _ in range(3):
            claimed(locks, "y", "z", 0.5)
            clock.time += 0.6
            claimed(locks, "y", "z", 0.5)
            locks.release("y", "z", Budget(5))

    clock.time = 1000.0 + 100.0 + line.LINGER - 10
    passing_by()
    assert [token for *_, token in in_line(path)] == ["faithful", "silent"], "a moment before"
    clock.time = 1000.0 + 100.0 + line.LINGER
    passing_by()
    assert [token for *_, token in in_line(path)] == ["faithful"]
    clock.time = 1000.0 + 149.0 + line.LINGER
    passing_by()
    assert in_line(path) == [], "and nothing stays for ever"
    clock.time += 1
    claimed(locks, "y", "z", 1000.0)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT horizon FROM clock").fetchone()[0] > clock.time + 900, "and nobody looks for nothing"


def test_who_waits_alone_in_a_quiet_file_is_swept_in_time(store: tuple[Store, Clock], path: Path) -> None:
    locks, clock = store
    claimed(locks, "x", "holder", 100.0)
    claimed(locks, "x", "silent", 100.0, "nowhere")
    clock.time += 101
    for _ in range(3):  # finds the dead lease, and no other that ends soon
        locks.release("y", "z", Budget(5))
        claimed(locks, "y", "z", 10_000.0)
    assert len(in_line(path)) == 1
    clock.time += line.LINGER
    claimed(locks, "z", "z", 10_000.0)
    assert in_line(path) == []


def test_a_long_lease_keeps_its_waiters_in_line(store: tuple[Store, Clock], path: Path) -> None:
    locks, clock = store
    claimed(locks, "x", "holder", 7 * 86_400.0)
    claimed(locks, "x", "patient", 10.0, "nowhere")
    for _ in range(5):
        clock.time += 86_400.0
        claimed(locks, "y", "z", 0.5)
        locks.release("y", "z", Budget(5))
    assert [token for *_, token in in_line(path)] == ["patient"], "it need not claim again before that lease ends"


def test_grants_in_line_do_their_share_of_sweeping(store: tuple[Store, Clock], path: Path) -> None:
    """Where everybody waits, nobody is granted by a claim."""
    locks, clock = store
    box = Inbox(BlockingRuntime())
    name = box.open()
    for number in range(20):
        claimed(locks, f"dead {number}", "dead", 1.0)
    claimed(locks, "x", "0", 1000.0)
    clock.time += 2.0
    for turn in range(10):
        claimed(locks, "x", str(turn + 1), 1000.0, name)
        assert locks.release("x", str(turn), Budget(5))
    assert [row[0] for row in rows(path)] == ["x"]
    box.close()


def test_a_new_boot_empties_the_line(store: tuple[Store, Clock], path: Path) -> None:
    locks, clock = store
    claimed(locks, "x", "a", 100.0)
    claimed(locks, "x", "b", 100.0, "nowhere")
    locks.close()
    clock.boot, clock.time = "second", 5.0
    later = store_on(path, clock)
    claimed(later, "y", "c", 100.0)
    assert in_line(path) == []
    later.close()


def test_without_waiters_a_release_is_one_statement(store: tuple[Store, Clock]) -> None:
    locks, _ = store
    claimed(locks, "y", "a", 100.0)
    claimed(locks, "y", "b", 100.0, "nowhere")
    claimed(locks, "x", "a", 100.0)
    assert locks._database is not None
    assert locks._database._connection is not None
    said: list[str] = []
    locks._database._connection.set_trace_callback(said.append)
    assert locks.release("x", "a", Budget(5))
    assert len(said) == 1
    said.clear()
    claimed(locks, "x", "a", 100.0)
    assert [statement.split()[0] for statement in said] == ["BEGIN", "SELECT", "UPDATE", "INSERT", "COMMIT"]


def test_a_lock_is_given_back_even_when_no_fence_is_left(store: tuple[Store, Clock], path: Path) -> None:
    locks, _ = store
    box = Inbox(BlockingRuntime())
    claimed(locks, "x", "a", 100.0)
    claimed(locks, "x", "b", 100.0, box.open())
    locks.extend(Renewal("x", "a", 100.0, MAX_FENCE), Budget(5))
    assert locks.release("x", "a", Budget(5)) is True
    assert rows(path) == []
    box.close()


def test_nothing_is_announced_that_was_not_committed(
    store: tuple[Store, Clock], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, _ = store
    box = Inbox(BlockingRuntime())
    claimed(locks, "x", "a", 100.0)
    claimed(locks, "x", "b", 100.0, box.open())
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TRIGGER no BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(Unavailable):
        locks.release("x", "a", Budget(5))
    assert run(box.hear(now() + 0.05, "")) == []
    assert [token for _, token, _ in rows(path)] == ["a"], "as it was"
    assert [token for *_, token in in_line(path)] == ["b"]
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER no")
    states: list[Any] = []
    monkeypatch.setattr(inbox, "send", lambda *_: states.append((rows(path), in_line(path))))
    assert locks.release("x", "a", Budget(5)) is True
    assert [[token for _, token, _ in held] for held, _ in states] == [["b"]], "told when everybody could see it"
    box.close()


# --- files of other versions ----------------------------------------------------------------------------------------------


def first_version(path: Path) -> sqlite3.Connection:
    """A file as the first version made it, with a lease in it, and open in a process of that version."""
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(Path(database.__file__).with_name("schema.sql").read_text())
    db.execute("PRAGMA journal_mode = WAL")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    db.execute("UPDATE clock SET boot = ?, counter = 500, horizon = ?, low = ?", (boot, now() + 60, now() + 60))
    db.execute("INSERT INTO entries VALUES ('x', 500, 'old', 500, ?)", (now() + 60,))
    return db


def version_on_disk(path: Path) -> int:
    """What a process reads that looks at the main file alone, as `_probe` does in every version."""
    return int.from_bytes(path.read_bytes()[60:64], "big")


@pytest.mark.parametrize("open_elsewhere", [True, False])
def test_a_file_of_the_first_version_is_brought_up_to_date(both: Both, path: Path, open_elsewhere: bool) -> None:
    old = first_version(path)
    if not open_elsewhere:
        old.close()

    async def body(kit: Kit) -> None:
        one, two = Someone(kit), Someone(kit)
        b = one.token()
        refused = await one.claim(b, 10)
        assert refused.retry_after == pytest.approx(60, abs=5), "its leases stand"
        assert version_on_disk(path) == database.VERSION, "an older interlock will refuse it, whatever is still in the log"
        assert await two.release("old") is True
        assert (await one.told())[:3] == ("x", b, 501)
        if open_elsewhere:  # it goes on as it was, and knows no line
            c = await two.waits(20)
            old.execute("DELETE FROM entries WHERE name = 'x' AND token = ?", (b,))
            assert await two.hear(0.05) == []
            assert isinstance(await two.claim(c, 20), Granted), "who waits finds it by claiming again"

    both(body)
    old.close()


def test_a_file_of_a_later_version_is_left_alone(path: Path) -> None:
    backend: Any = open_sqlite(f"sqlite://{path}", BlockingRuntime())
    run(backend.claim(Claim("x", "a", 60.0), 5.0))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA user_version = {database.VERSION + 1}")  # in the log only
        assert version_on_disk(path) == database.VERSION
        other: Any = open_sqlite(f"sqlite://{path}", BlockingRuntime())
        with pytest.raises(UsageError, match=f"format {database.VERSION + 1}"):
            run(other.claim(Claim("x", "b", 60.0), 5.0))
        run(other.close())
    run(backend.close())


# --- processes ------------------------------------------------------------------------------------------------------------


def test_a_killed_waiter_is_passed_over_at_once(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one = Someone(kit)
        a = one.token()
        await one.claim(a)
        with worker("wait", path, 10) as victim, worker("wait", path, 20) as second:
            assert [hear(victim), hear(second)] == ["waiting", "waiting"]
            victim.kill()
            victim.wait()
            began = time.monotonic()
            assert await one.release(a) is True
            assert int(hear(second)) > 0
            assert time.monotonic() - began < 1
            tell(second)
            assert hear(second) == "True"
        nothing_left(path)

    both(body)


def test_nobody_sleeps_past_the_end_of_a_killed_holder(both: Both, path: Path) -> None:
    async def body(kit: Kit) -> None:
        one = Someone(kit)
        with worker("hold", path, 1.0) as holder:
            fence = int(hear(holder))
            b = one.token()
            refused = await one.claim(b, 10)
            holder.kill()
            assert await one.hear(refused.retry_after) == []
            granted = await one.claim(b, 10)
            assert isinstance(granted, Granted)
            assert granted.fence > fence

    both(body)


def test_a_lost_announcement_costs_no_lock(both: Both, path: Path) -> None:
    """The releaser is killed after the commit and before it told anybody."""

    async def body(kit: Kit) -> None:
        one = Someone(kit)
        with worker("die_before_telling", path) as holder:
            assert hear(holder) == "holding"
            b = await one.waits(10)
            tell(holder)
            assert holder.wait(10) == -signal.SIGKILL
            assert await one.hear(0.1) == []
            entry = await one.holder()
            assert entry.owner == b.partition("~")[2], "it has the lock and does not know"
            assert await one.claim(b, 10) == Granted(entry.fence, 30.0)
            await one.release(b)
        nothing_left(path)

    both(body)


def stopped_holder(looking: Any, crowd: dict[int, Any]) -> int:
    """A process that was stopped while it had the lock; 0 if none was caught."""
    for _ in range(50):
        pid = int(run(looking.inspect("x", 5.0)).owner.partition(":")[2] or 0)
        if pid in crowd:
            os.kill(pid, signal.SIGSTOP)
            with suppress(Unavailable):  # it was stopped inside the gate
                if run(looking.inspect("x", 0.1)).owner.endswith(f":{pid}"):
                    return pid
            os.kill(pid, signal.SIGCONT)
    return 0


@pytest.mark.timeout(600)
def test_twenty_processes_and_a_killer(tmp_path: Path, path: Path) -> None:
    """Whoever dies, holder or waiter: the lock is in use again within a ttl, one holder at a time, and fences grow."""
    ttl, seconds, dice = 0.5, 6.0 * SCALE, random.Random(7)
    journals: list[Path] = []
    killed = {"holder": 0, "all": 0}
    with ExitStack() as stack:

        def start(left: float) -> subprocess.Popen[str]:
            journals.append(tmp_path / f"journal{len(journals)}")
            return stack.enter_context(worker("contend", path, journals[-1], left, ttl))

        until = now() + seconds + 3.0  # the first three seconds are for starting
        crowd = {process.pid: process for process in (start(until - now()) for _ in range(20))}
        looking: Any = open_sqlite(f"sqlite://{path}", BlockingRuntime())
        while until - now() > 2 * ttl:
            time.sleep(3 * ttl)  # so that no two deaths are one gap
            pid = dice.choice(list(crowd))
            if dice.random() < 0.7 and (holder := stopped_holder(looking, crowd)):
                pid = holder
                killed["holder"] += 1
            victim = crowd.pop(pid)
            victim.kill()
            victim.wait()
            killed["all"] += 1
            replacement = start(until - now())
            crowd[replacement.pid] = replacement
        assert [process.wait(30) for process in crowd.values()] == [0] * 20
    grants: dict[int, dict[str, float]] = {}
    for journal in journals:
        for entry in journal.read_text().splitlines() if journal.exists() else []:
            what, fence, moment = entry.split()
            assert what not in grants.setdefault(int(fence), {}), "a fence of two holders"
            grants[int(fence)][what] = float(moment)
    in_order = [grants[fence] for fence in sorted(grants)]
    assert all(earlier.get("out", earlier["in"]) < later["in"] for earlier, later in pairwise(in_order)), "two holders"
    gaps = sorted(later["in"] - earlier.get("out", earlier["in"]) for earlier, later in pairwise(in_order))
    print(f"{len(in_order)} grants, killed {killed}, longest gaps {[round(gap, 3) for gap in gaps[-5:]]}")
    assert killed["holder"] >= 1
    assert len(in_order) > 100
    assert gaps[-1] < ttl + 0.5, "lost for longer than a ttl"
    # What the dead left is gone with the next release.
    while not isinstance(run(looking.claim(Claim("x", "last", 5.0), 5.0)), Granted):
        time.sleep(0.05)
    assert run(looking.release("x", "last", 5.0))
    nothing_left(path)
    run(looking.close())
    for journal in journals:
        journal.unlink(missing_ok=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["locks.db", "locks.db-gate"]
