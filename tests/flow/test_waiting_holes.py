"""Interleavings of waiting, one by one: an answer, an announcement or a cancellation comes in the worst moment.

Each was a hole: a lease given away while it was held, a grant that nobody used, a wake-up that nobody heard, a place in line
that was never left. The store is real (memory answers at once, so what is slow here is made slow by the test).

This file is long because it is a list.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

import interlock
from interlock import AsyncClient, Client
from interlock.backends.memory import backend as memories
from interlock.core.claim import Announced, Refused
from interlock.core.lease import Hold, Policy
from interlock.errors import Unavailable, UsageError
from interlock.flow.attempt import Attempt
from interlock.flow.waiting import listener as listeners
from interlock.flow.waiting import name_queue as name_queues
from interlock.flow.waiting import queue as queues
from interlock.flow.waiting.queue import LocalQueue
from interlock.flow.waiting.waiter import LEFT, Waiter
from interlock.testing import Node

SOON = 3.0  # seconds: far more than it takes, far less than the leases here


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@asynccontextmanager
async def clients(url: Any, number: int = 2, **options: Any) -> AsyncIterator[list[Any]]:
    made = [AsyncClient(url, **options) for _ in range(number)]
    try:
        yield made
    finally:
        for client in made:
            await client.close()


def line_of(url: str) -> dict[str, Any]:
    return memories._memories[url.removeprefix("memory://")].lines


async def true(check: Callable[[], Any], within: float = SOON) -> None:
    async with asyncio.timeout(within):
        while not check():
            await asyncio.sleep(0.002)


async def in_line(client: Any, number: int = 1) -> None:
    await true(lambda: sum(waiter.after is not None for waiter in client._context.queue.in_line.values()) == number)


class Slow:
    """Holds back what a verb of a client's store answers, from when `hold` is called until `let_go`."""

    def __init__(self, client: Any, verb: str, only: Callable[..., bool] = lambda *args: True) -> None:
        self.real = getattr(client._context.backend, verb)
        self.only = only
        self.held = 0  # answers that were held back
        self._open = asyncio.Event()
        self._open.set()
        setattr(client._context.backend, verb, self._answer)

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    async def _answer(self, *args: Any, **kwargs: Any) -> Any:
        answer = await self.real(*args, **kwargs)
        if self.only(answer, *args) and not self._open.is_set():
            self.held += 1
            await self._open.wait()
        return answer


def waiter(client: Any, name: str = "x") -> Waiter:
    found: Waiter = client._context.queue._queues[name].waiters[0]
    return found


async def holds(client: Any, lease: Any) -> bool:
    entry = await client.inspect(lease.name)
    return entry.held and entry.fence == lease.fence


# --- what is held is not given away ---------------------------------------------------------------------------------------


def test_an_announcement_that_comes_after_the_answer_takes_nothing_away(url: str) -> None:
    """The waiter asked for itself and was told that it had been served. Whoever then hears of that must not pass it on."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            ear = Slow(two, "hear", lambda answer, *_: bool(answer))
            job = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await in_line(two)
            ear.hold()
            await held.release()
            await true(lambda: ear.held)
            two._context.queue.ask_again(waiter(two))
            lease = await asyncio.wait_for(job, SOON)
            ear.let_go()
            await asyncio.sleep(0.05)
            assert await holds(one, lease), "it was given away"
            await lease.extend(30)
            assert await lease.release()

    asyncio.run(main())


def test_an_announcement_without_anything_to_tell_its_age_by_is_not_believed(url: str) -> None:
    """It comes before the answer that put its waiter in line. The waiter asks again, and does not sleep by that answer."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            claim = Slow(two, "claim", lambda answer, claim, *_: claim.place is not None)
            claim.hold()
            believed = []
            real = two._context.listener._believed

            def noted(who: Waiter, announced: Announced) -> Hold | None:
                believed.append(real(who, announced))
                return believed[-1]

            two._context.listener._believed = noted
            job = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await true(lambda: claim.held)
            await held.release()
            await true(lambda: believed)
            assert believed == [None]
            (stranger,) = two._context.queue.in_line.values()
            unix = Announced("x", stranger.token, 1, 3.0, 1.7e9)  # on a clock that reads more than ours
            assert real(stranger, unix) is None
            claim.let_go()
            lease = await asyncio.wait_for(job, SOON)
            assert await holds(one, lease)
            await lease.release()

    asyncio.run(main())


@pytest.mark.parametrize("late", [0.0, 0.4])
def test_an_announcement_is_believed_no_longer_than_the_store_keeps_it(url: str, late: float) -> None:
    async def main() -> None:
        async with clients(url, ttl=0.6, renew=False) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            ear = Slow(two, "hear", lambda answer, *_: bool(answer))
            job = asyncio.create_task(two.lock("x").acquire())
            await in_line(two)
            ear.hold()
            await held.release()
            await true(lambda: ear.held)
            await asyncio.sleep(late)
            ear.let_go()
            lease = await asyncio.wait_for(job, SOON)
            left = (await one.inspect("x")).remaining
            assert lease.remaining() <= left + 0.001

    asyncio.run(main())


# --- nobody sleeps on ------------------------------------------------------------------------------------------------------


def test_an_heir_that_is_served_from_the_line_before_the_answer_of_the_hand_over(url: str) -> None:
    """The announcement overtakes the answer. The heir must not lose its turn."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            early = asyncio.create_task(two.lock("x", ttl=30, renew=False).acquire())
            await in_line(two)
            late = asyncio.create_task(one.lock("x", ttl=30, fair=True).acquire())
            await true(lambda: one._context.queue._queues["x"].waiters)
            hand = Slow(one, "hand_over")
            hand.hold()
            release = asyncio.create_task(held.release())
            await true(lambda: hand.held)
            other = await asyncio.wait_for(early, SOON)  # it came earlier, so it was served
            await other.release()  # and now the heir is
            await asyncio.sleep(0.05)
            hand.let_go()
            assert await release
            lease = await asyncio.wait_for(late, SOON)
            assert await holds(two, lease)
            assert await lease.release()
            assert not line_of(url)
            assert not one._context.queue._queues
            assert not one._context.queue.in_line

    asyncio.run(main())


def test_an_heir_that_was_served_keeps_its_grant_though_the_answer_of_the_hand_over_is_lost(url: str) -> None:
    """The announcement has come, the answer never does. Whoever handed over took back what the heir held."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            early = asyncio.create_task(two.lock("x", ttl=30, renew=False).acquire())
            await in_line(two)
            late = asyncio.create_task(one.lock("x", ttl=30, fair=True).acquire())
            await true(lambda: one._context.queue._queues["x"].waiters)
            waiter(one).after = 0  # as of one that stood in line before, with another token
            backend = one._context.backend
            hand_over, served = backend.hand_over, asyncio.Event()

            async def silent(*args: Any) -> Any:
                await hand_over(*args)
                await served.wait()
                raise Unavailable("no answer", backend="memory", cause="timeout")

            async def undo(name: str, token: str, within: float) -> bool:  # as a store does that has not answered
                await backend.release(name, token, within)
                return True

            backend.hand_over, backend.undo = silent, undo
            release = asyncio.create_task(held.release())
            other = await asyncio.wait_for(early, SOON)  # it came earlier, so it was served
            await other.release()  # and now the heir is
            lease = await asyncio.wait_for(late, SOON)
            served.set()
            assert await release
            assert lease.state == "held"
            assert await holds(two, lease)
            assert await lease.release()

    asyncio.run(main())


def test_told_to_ask_again_while_an_answer_is_on_its_way(url: str) -> None:
    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            claim = Slow(two, "claim", lambda answer, claim, *_: claim.place is not None)
            claim.hold()
            job = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await true(lambda: claim.held)
            line_of(url).clear()  # it was passed over: its inbox was broken
            two._context.queue.alarm()
            claim.let_go()
            await true(lambda: line_of(url))  # back in line
            await held.release()
            await (await asyncio.wait_for(job, SOON)).release()

    asyncio.run(main())


def test_whoever_waits_asks_again_when_the_inbox_broke(url: str) -> None:
    """While it was broken they were passed over, or told in vain. They must not wait for the end of the holder's lease."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            job = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await in_line(two)
            real = two._context.backend.hear

            async def broken(until: float) -> Any:
                two._context.backend.hear = real
                line_of(url).clear()
                raise Unavailable("it broke", backend="x", cause="closed")

            two._context.backend.hear = broken
            await true(lambda: two._context.backend.hear is real)
            await true(lambda: line_of(url))
            await held.release()
            await (await asyncio.wait_for(job, SOON)).release()

    asyncio.run(main())


@pytest.mark.parametrize("handed", [True, False], ids=["handed over", "asked for"])
def test_a_lease_that_was_dropped_keeps_nobody_waiting_for_ever(url: str, handed: bool) -> None:
    """Those of the same client wait for its end, which the keeper tells; and it does not keep what nobody has."""

    async def main() -> None:
        async with clients(url, 1) as (client,):
            first = await client.lock("x", ttl=0.5).acquire()

            async def forgets() -> None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ResourceWarning)
                    lease: Any = await client.lock("x", ttl=0.5).acquire()
                    await asyncio.sleep(0.1)
                    del lease
                    gc.collect()

            if not handed:
                await first.release()
            jobs = [asyncio.create_task(forgets()), asyncio.create_task(client.lock("x", ttl=30).acquire())]
            await asyncio.sleep(0.01)
            if handed:
                await first.release()
            await jobs[0]
            await (await asyncio.wait_for(jobs[1], SOON)).release()

    asyncio.run(main())


def test_one_that_is_not_first_looks_around_by_itself() -> None:
    """Whoever is before it may be gone without a word: a thread that died in between."""
    queue = LocalQueue()
    one, two = (Waiter(Attempt("x", 10), token, 0.0) for token in "ab")
    queue.enter(one)
    queue.enter(two)
    look_at = queue.turn(two, 100.0, last=False)
    assert look_at is not None
    assert 100.0 < look_at <= 100.0 + name_queues.LOOK


def test_the_hub_does_not_end_between_the_opening_and_the_standing_in_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-over was on its way for longer than the hub stays without anybody in line."""
    monkeypatch.setattr(listeners, "LINGER", 0.05)
    monkeypatch.setattr(listeners, "TICK", 0.02)

    async def main() -> None:
        async with clients(url, request_timeout=2) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            early = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await in_line(two)
            late = asyncio.create_task(one.lock("x", ttl=30, fair=True).acquire())
            await true(lambda: one._context.queue._queues["x"].waiters)
            hand = Slow(one, "hand_over")
            hand.hold()
            release = asyncio.create_task(held.release())
            await true(lambda: hand.held)
            one._context.queue.in_line.clear()  # as if nobody were to be told
            await asyncio.sleep(0.5)
            assert one._context.listener._spawned is not None
            hand.let_go()
            assert await release
            await (await asyncio.wait_for(early, SOON)).release()
            await (await asyncio.wait_for(late, SOON)).release()
            for client in (one, two):
                client._context.listener._request_timeout = 0.1
            await true(lambda: one._context.listener._spawned is None and two._context.listener._spawned is None)

    asyncio.run(main())


# --- nothing is left -------------------------------------------------------------------------------------------------------


def test_whoever_asks_for_itself_is_not_handed_over_to_as_well(url: str) -> None:
    """It would stand in line under two tokens, of which it forgets one."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            claim = Slow(two, "claim", lambda answer, claim, *_: isinstance(answer, Refused))
            claim.hold()
            job = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await true(lambda: claim.held)  # it was refused and does not know it
            await held.release()
            passing = await two.lock("x", ttl=30).try_acquire()
            assert passing is not None
            release = asyncio.create_task(passing.release())
            await asyncio.sleep(0.02)
            claim.let_go()
            await release
            lease = await asyncio.wait_for(job, SOON)
            assert not line_of(url)
            assert not two._context.queue.in_line
            assert await holds(one, lease)
            await lease.release()
            assert not two._context.queue._queues
            assert not (await one.inspect("x")).held

    asyncio.run(main())


def test_what_is_granted_to_an_heir_that_left_is_passed_on_even_by_one_that_held_nothing(url: str) -> None:
    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            heir = asyncio.create_task(one.lock("x", ttl=30).acquire())
            await true(lambda: one._context.queue._queues["x"].waiters)
            hand = Slow(one, "hand_over")
            hand.hold()
            memories._memories[url.removeprefix("memory://")].held.clear()  # somebody removed it
            release = asyncio.create_task(held.release())
            await true(lambda: hand.held)
            heir.cancel()
            await asyncio.gather(heir, return_exceptions=True)
            hand.let_go()
            assert not await release
            assert not (await two.inspect("x")).held

    asyncio.run(main())


def test_cancelled_while_it_takes_back_what_an_heir_does_not_need(url: str) -> None:
    """The lease itself was released by then, and says so."""

    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            early = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await in_line(two)
            heir = asyncio.create_task(one.lock("x", ttl=30, fair=True).acquire())
            await true(lambda: one._context.queue._queues["x"].waiters)
            hand, back = Slow(one, "hand_over"), Slow(one, "release")
            hand.hold()
            back.hold()
            release = asyncio.create_task(held.release())
            await true(lambda: hand.held)
            heir.cancel()
            await asyncio.gather(heir, return_exceptions=True)
            hand.let_go()
            await true(lambda: back.held)
            release.cancel()
            await asyncio.sleep(0.01)
            assert held.state == "released"
            back.let_go()
            await asyncio.gather(release, return_exceptions=True)
            assert held.state == "released"
            await (await asyncio.wait_for(early, SOON)).release()
            assert not line_of(url)
            assert not (await two.inspect("x")).held

    asyncio.run(main())


def test_whoever_is_next_opens_the_inbox_so_that_the_release_need_not(url: str) -> None:
    async def main() -> None:
        async with clients(url, 1) as (client,):
            held = await client.lock("x", ttl=30).acquire()
            assert not client._context.listener._inbox, "nobody waits"
            jobs = [asyncio.create_task(client.lock("x", ttl=30).acquire()) for _ in range(3)]
            await true(lambda: client._context.listener._inbox)
            assert not client._context.queue.in_line, "they wait here, not in the store's line"
            await held.release()
            for job in jobs:
                await (await asyncio.wait_for(job, SOON)).release()

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["no inbox", "refused", "answered with an error"])
def test_a_release_does_not_fail_for_the_sake_of_somebody_who_waits(url: str, fault: str) -> None:
    async def main() -> None:
        async with clients(url, 1) as (client,):
            backend = client._context.backend

            async def fails(*args: Any) -> Any:
                if fault == "refused":
                    raise UsageError("the fence counter is spoilt")
                raise Unavailable("no", backend="x", cause="error")

            setattr(backend, "open_inbox" if fault == "no inbox" else "hand_over", fails)
            held = await client.lock("x", ttl=30).acquire()
            job = asyncio.create_task(client.lock("x", ttl=30).acquire())
            await true(lambda: client._context.queue._queues["x"].waiters)
            assert await held.release()
            lease = await asyncio.wait_for(job, SOON)
            assert not client._context.queue.in_line
            await lease.release()
            assert not client._context.queue._queues

    asyncio.run(main())


def test_an_interrupted_hand_over_leaves_no_grant(url: str) -> None:
    """Ctrl-C, with the answer in hand and nobody told of it yet."""
    with Client(url) as client:
        held = client.lock("x", ttl=30).acquire()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(client.lock("x", ttl=30).acquire(timeout=20)))
        thread.start()
        until = time.monotonic() + SOON
        while not client._context.queue._queues["x"].waiters and time.monotonic() < until:
            time.sleep(0.002)
        real = client._context.queue.handed

        def interrupted(*args: Any) -> bool:
            client._context.queue.handed = real  # type: ignore[method-assign]
            raise KeyboardInterrupt

        client._context.queue.handed = interrupted  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            held.release()
        thread.join(SOON)
        assert got, "the heir waits for a grant that nobody uses"
        got[0].release()
        assert not client._context.queue._queues


def test_a_long_lease_is_not_watched_again_by_everybody_who_comes_and_goes(url: str) -> None:
    async def main() -> None:
        async with clients(url, 1) as (client,):
            held = await client.lock("x", ttl=30).acquire()
            for _ in range(20):
                with pytest.raises(interlock.AcquireTimeout):
                    await client.lock("x").acquire(timeout=0.001)
            assert len(held._hold.watchers or ()) <= 1
            await held.release()

    asyncio.run(main())


def test_names_that_were_tried_and_never_released_are_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SWEEP", 16)

    async def main() -> None:
        async with clients(url, 1, renew=False) as (client,):
            for number in range(200):
                lease = await client.lock(f"x{number}", ttl=0.3).try_acquire()
                assert lease is not None
                if number % 40 == 0:
                    await asyncio.sleep(0.35)
            assert len(client._context.queue._queues) < 120

    asyncio.run(main())


# --- many, and the end -----------------------------------------------------------------------------------------------------


def test_many_who_come_at_once_open_one_inbox(url: str) -> None:
    async def main() -> None:
        async with clients(url) as (one, two):
            leases = [await one.lock(f"x{n}", ttl=30).acquire() for n in range(30)]
            opening = Slow(two, "open_inbox")
            real, asked = opening.real, []

            async def counted(within: float) -> Any:
                asked.append(within)
                return await real(within)

            opening.real = counted
            opening.hold()
            jobs = [asyncio.create_task(two.lock(f"x{n}", ttl=30).acquire()) for n in range(30)]
            await true(lambda: opening.held)
            await asyncio.sleep(0.05)
            opening.let_go()
            await in_line(two, 30)
            assert len(asked) == 1
            for lease in leases:
                await lease.release()
            for job in jobs:
                await (await asyncio.wait_for(job, SOON)).release()

    asyncio.run(main())


def test_an_inbox_that_cannot_be_opened_is_told_to_all_at_once(url: str) -> None:
    """Not to one after the other, each after its own time."""

    async def main() -> None:
        async with clients(url, request_timeout=0.3) as (one, two):
            leases = [await one.lock(f"x{n}", ttl=30).acquire() for n in range(20)]

            async def fails(within: float) -> str:
                await asyncio.sleep(within)
                raise Unavailable("not allowed", backend="x", cause="auth")

            two._context.backend.open_inbox = fails
            began = time.monotonic()
            jobs = [asyncio.create_task(two.lock(f"x{n}", ttl=30).acquire()) for n in range(20)]
            for outcome in await asyncio.gather(*jobs, return_exceptions=True):
                assert isinstance(outcome, Unavailable)
            assert time.monotonic() - began < SOON
            assert not two._context.queue._queues
            for lease in leases:
                await lease.release()

    asyncio.run(main())


def test_a_release_does_not_start_a_listener_that_was_cancelled(url: str) -> None:
    """At the end of a loop everything is cancelled, and what is started then is left: "Task was destroyed but it is …"."""

    async def main() -> None:
        async with clients(url, 1) as (client,):
            held = await client.lock("x", ttl=30).acquire()
            heir = asyncio.create_task(client.lock("x", ttl=30).acquire())
            await true(lambda: client._context.listener._spawned is not None)
            listener = client._context.listener._spawned._task
            await asyncio.sleep(0)
            listener.cancel()
            await asyncio.wait([listener])
            heir.cancel()
            assert await held.release()
            assert client._context.listener._spawned is None
            await asyncio.wait([heir])
            assert heir.cancelled()
            assert not (await client.inspect("x")).held
            assert [task.get_name() for task in asyncio.all_tasks()].count("interlock-listener") == 0

    asyncio.run(main())


def test_without_a_thread_that_listens_it_is_asked_for_again_and_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a plain RuntimeError for whoever waits, and for whoever releases."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "interlock-listener":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Client(url, ttl=30) as client, ThreadPoolExecutor(1) as pool:
        held = client.lock("x").acquire()
        waits = pool.submit(client.lock("x", timeout=20).acquire)
        until = time.monotonic() + SOON
        while not client._context.queue._queues["x"].waiters and time.monotonic() < until:
            time.sleep(0.002)
        assert held.release()
        waits.result().release()


def test_without_an_inbox_it_is_asked_for_again_and_again(url: str) -> None:
    async def main() -> None:
        async with clients(url) as (one, two):
            held = await one.lock("x", ttl=30).acquire()
            real, tried = two._context.backend.open_inbox, []

            async def fails(within: float) -> str:
                tried.append(within)
                raise Unavailable("silent", backend="x", cause="timeout")

            two._context.backend.open_inbox = fails
            job = asyncio.create_task(two.lock("x", ttl=30).acquire())
            await true(lambda: len(tried) > 2)
            two._context.backend.open_inbox = real
            await in_line(two)
            await held.release()
            await (await asyncio.wait_for(job, SOON)).release()

    asyncio.run(main())


def test_one_that_is_cancelled_while_it_opens_the_inbox_leaves_that_to_another(url: str) -> None:
    async def main() -> None:
        async with clients(url) as (one, two):
            leases = [await one.lock(f"x{n}", ttl=30).acquire() for n in range(2)]
            opening = Slow(two, "open_inbox")
            opening.hold()
            jobs = [asyncio.create_task(two.lock(f"x{n}", ttl=30).acquire()) for n in range(2)]
            await true(lambda: opening.held)
            jobs[0].cancel()
            opening.let_go()
            await in_line(two, 1)
            for lease in leases:
                await lease.release()
            await (await asyncio.wait_for(jobs[1], SOON)).release()

    asyncio.run(main())


def test_whoever_waits_when_the_client_is_closed_leaves_the_line(store: str) -> None:
    async def main() -> None:
        async with AsyncClient(store) as one, AsyncClient(store) as three:
            held = await one.lock("x", ttl=30).acquire()
            two = AsyncClient(store)
            jobs = [asyncio.create_task(two.lock("x", ttl=30).acquire()) for _ in range(3)]
            await in_line(two)
            await two.close()
            for outcome in await asyncio.gather(*jobs, return_exceptions=True):
                assert isinstance(outcome, UsageError), repr(outcome)
            if store.startswith("memory:"):
                assert not line_of(store)
            elif store.startswith("sqlite:"):
                with closing(sqlite3.connect(store.removeprefix("sqlite://"))) as file:
                    assert file.execute("SELECT count(*) FROM line").fetchone() == (0,)
            else:
                import redis

                with redis.Redis.from_url(store) as server:
                    assert server.exists("interlock:{x}:line") == 0
            with pytest.raises(UsageError, match="closed"):
                await two.lock("x").acquire()
            await held.release()
            await (await three.lock("x").acquire(timeout=1)).release()

    asyncio.run(main())


def test_closing_a_client_that_has_waited_wakes_its_hub(store: str) -> None:
    """It listens for a while after the last one has left, and would be waited for until it looks around by itself."""
    with Client(store) as one:
        two = Client(store)
        two._context.listener._line.hear  # noqa: B018 - it keeps a line
        held = one.lock("x", ttl=30).acquire()
        thread = threading.Thread(target=lambda: two.lock("x", ttl=30).acquire(timeout=20).release())
        thread.start()
        until = time.monotonic() + SOON
        while not two._context.queue.in_line and time.monotonic() < until:
            time.sleep(0.002)
        held.release()
        thread.join()
        hub = two._context.listener._spawned
        assert hub is not None
        slept = listeners.TICK
        listeners.TICK = 60.0  # type: ignore[misc]
        try:
            time.sleep(slept + 0.1)  # it listens with the new one by now
            began = time.monotonic()
            two.close()
            assert time.monotonic() - began < SOON
        finally:
            listeners.TICK = slept  # type: ignore[misc]
        assert not hub._thread.is_alive()


def test_in_a_forked_child_nobody_waits_any_more(url: str) -> None:
    """A signal handler may fork while its thread waits. The child must not claim by the parent's token, nor take its place."""
    with Client(url) as one, Client(url) as two:
        held = one.lock("x", ttl=30).acquire()
        thread = threading.Thread(target=lambda: two.lock("x", ttl=30).acquire(timeout=20).release())
        thread.start()
        until = time.monotonic() + SOON
        while not two._context.queue.in_line and time.monotonic() < until:
            time.sleep(0.002)
        me = waiter(two)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            left = False
            try:
                left = me.state is LEFT and not me.in_line and not two._context.queue._queues and not line_of(url)
                held._context.backend._memory.held.clear()
            finally:  # whatever is raised: it must not go on as a second pytest
                os._exit(0 if left else 1)
        assert os.waitpid(pid, 0)[1] == 0
        used = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - used < 0.2, "the child rang at the parent's inbox"
        held.release()
        thread.join(SOON)
        assert not thread.is_alive()


def test_turns_of_one_that_was_given_it_in_this_instant() -> None:
    """Between two looks of its thread, another one gives it the lease: there is nobody at the queue any more."""
    queue = LocalQueue()
    me = Waiter(Attempt("x", 10), "a", 0.0)
    assert queue.enter_and_ask(me)
    assert queue.line_up(me)
    queue.asked(me, 120.0)
    hold = Hold("x", "a", 10, 1, 110.0, 0.01, 100.0, Policy(renew=False))
    assert queue.serve(me, hold)
    assert queue.turn(me, 100.0, last=False) == 100.0
    assert queue.turn(me, 100.0, last=True) == 100.0


@pytest.mark.parametrize("offered", [False, True], ids=["in line", "handed over to"])
def test_whoever_leaves_while_its_announcement_is_read_is_given_nothing(offered: bool) -> None:
    queue = LocalQueue()
    me = Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(me)
    assert queue.offer(me, "b") if offered else queue.line_up(me)
    token = "b" if offered else "a"
    assert queue.in_line.get(token) is me
    assert queue.leave(me) is None
    assert not queue.serve(me, Hold("x", token, 10, 1, 110.0, 0.01, 100.0, Policy(renew=False)))
    assert not queue.has("x", token)
    assert not queue._queues


def test_what_is_announced_while_it_asks_is_left_to_the_answer() -> None:
    """A quorum that refuses the question may be giving back just what was announced: two would have the lock."""
    queue = LocalQueue()
    me = Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(me)
    assert queue.turn(me, 100.0, last=False) is None, "it asks"
    assert queue.line_up(me)
    assert queue.serve(me, Hold("x", "a", 10, 1, 110.0, 0.01, 100.0, Policy(renew=False))), "it is nobody else's"
    assert me.hold is None
    queue.asked(me, 120.0)
    assert queue.turn(me, 100.0, last=False) is None, "refused, it asks again at once"
    assert queue.serve(me, Hold("x", "a", 10, 1, 110.0, 0.01, 100.0, Policy(renew=False)))
    queue.asked(me, 120.0)
    assert queue.serve(me, hold := Hold("x", "a", 10, 2, 120.0, 0.01, 110.0, Policy(renew=False)))
    assert me.hold is hold, "between its questions it is given what is announced"


# --- order -----------------------------------------------------------------------------------------------------------------


def test_a_wrong_wall_clock_does_not_change_the_order(valkey_node: Node) -> None:
    """Whoever comes from a machine an hour ahead waits no hour longer, and one an hour behind goes before nobody."""

    async def main() -> None:
        async with clients(valkey_node.url, 4) as (holder, ahead, right, behind):
            order: list[str] = []

            async def work(client: Any, who: str) -> None:
                async with client.lock("skew", ttl=30, timeout=20):
                    order.append(who)

            for client, skew in ((ahead, 3_600), (behind, -3_600)):
                real = client._context.runtime.wall_ahead
                client._context.runtime.wall_ahead = lambda real=real, skew=skew: real() + skew
            async with holder.lock("skew", ttl=30):
                jobs = []
                for client, who in ((ahead, "first"), (right, "second"), (behind, "third")):
                    jobs.append(asyncio.create_task(work(client, who)))
                    await in_line(client)
                    await asyncio.sleep(0.02)
            await asyncio.gather(*jobs)
            assert order == ["first", "second", "third"]

    asyncio.run(main())


def test_sixteen_in_a_row_stay_here_then_the_oldest_goes_first(valkey_node: Node) -> None:
    """And then sixteen more: only every seventeenth hand-over has to look who waits elsewhere."""

    async def main() -> None:
        async with clients(valkey_node.url, 2, ttl=30) as (here, there):
            order: list[str] = []

            async def work(client: Any, who: str) -> None:
                async with client.lock("streak", timeout=20):
                    order.append(who)

            async with here.lock("streak"):
                jobs = [asyncio.create_task(work(here, "here")) for _ in range(5)]
                await asyncio.sleep(0.02)
                jobs.append(asyncio.create_task(work(there, "there")))
                await in_line(there)
                await asyncio.sleep(0.02)
                jobs += [asyncio.create_task(work(here, "here")) for _ in range(95)]
                await asyncio.sleep(0.02)
                before = valkey_node.info("commandstats")
            await asyncio.gather(*jobs)
            looks = calls(valkey_node.info("commandstats"), "zpopmin") - calls(before, "zpopmin")
            assert len(order) == 101
            assert order.index("there") == 16
            assert looks <= 101 / 17 + 2, "all that a streak has to ask"

    def calls(stats: dict[str, str], verb: str) -> int:
        return int(stats.get(f"cmdstat_{verb}", "calls=0").partition("calls=")[2].partition(",")[0])

    asyncio.run(main())


def test_the_wall_clock_is_asked_now_and_then_and_not_for_each(valkey_node: Node) -> None:
    async def main() -> None:
        async with clients(valkey_node.url, 1) as (client,):
            hub, runtime = client._context.listener, client._context.runtime
            looks: list[float] = []
            at = real = runtime.now()
            runtime.wall_ahead = lambda: looks.append(at) or 1000.0 + len(looks)
            runtime.now = lambda: at
            for moment, guess in ((0.0, 1001.0), (0.5, 1001.0), (1.5, 1002.0), (2.0, 1002.0), (3600.0, 1003.0)):
                at = 0.1 + moment
                assert hub.clock().offset == guess
            runtime.now = lambda: real

    asyncio.run(main())


def test_what_is_known_of_the_stores_clock_is_changed_no_more_than_need_be(url: str) -> None:
    async def main() -> None:
        async with clients(url, 1) as (client,):
            hub, now = client._context.listener, client._context.runtime.now
            assert hub.clock().offset == 0.0, "its clock is ours"
            hub.set_clock(now() - 1.0, now() - 0.2)  # a slow answer
            assert hub.clock().offset == 0.0
            hub.set_clock(now(), now() + 5.0)
            assert 4.9 < hub.clock().offset <= 5.0
            hub.set_clock(now() - 1.0, now() + 4.5)
            assert 4.9 < hub.clock().offset <= 5.0
            hub.set_clock(now(), now() + 3.0)
            assert 2.9 < hub.clock().offset < 3.1

    asyncio.run(main())


# --- too late -------------------------------------------------------------------------------------------------------------


def test_what_is_over_before_its_waiter_came_to_it_is_not_handed_out(url: str) -> None:
    """It was given while the waiter did not run for longer than it lasts. The waiter is first once more, and asks."""

    async def main() -> None:
        async with clients(url, ttl=20) as (one, two):
            first = await one.lock("x").acquire()
            task = asyncio.create_task(two.lock("x").acquire(timeout=SOON))
            await in_line(two)
            queue = two._context.queue
            (waiter,) = queue.in_line.values()
            now = two._context.runtime.now()
            assert queue.serve(waiter, Hold("x", waiter.token, 3.0, 1, now - 1.0, began=now - 4.0))
            await in_line(two)
            assert not task.done(), "it was handed a lease that is over"
            await first.release()
            second = await task
            assert second.state == "held"
            assert second.fence > first.fence
            await second.release()

    asyncio.run(main())


def test_how_long_it_took_is_told(url: str) -> None:
    with Client(url, ttl=20) as one, Client(url, ttl=20) as two:
        first = one.lock("x").acquire()
        assert 0.0 <= first.waited < SOON
        threading.Timer(0.3, first.release).start()
        began = time.monotonic()
        second = two.lock("x").acquire()
        assert 0.2 < second.waited <= time.monotonic() - began
        second.release()
        lease = two.lock("x").try_acquire()
        assert lease is not None
        assert lease.waited == 0.0, "it did not wait"
        lease.release()


@pytest.mark.parametrize("end", ["withdraw", "stands"])
def test_an_offer_that_ends_amid_a_signal_leaves_nothing_in_the_line(end: str) -> None:
    """The handler raises while the token is taken off; whoever handed over takes it back once more."""

    class Struck(dict[str, Waiter]):
        armed = True

        def pop(self, *args: Any) -> Any:
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt
            return super().pop(*args)

    queue = LocalQueue()
    me = Waiter(Attempt("x", 10), "a", 0.0)
    queue.enter(me)
    assert queue.offer(me, "b")
    queue.in_line = Struck(queue.in_line)
    if end == "stands":
        me.state = LEFT
    with pytest.raises(KeyboardInterrupt):
        queue.withdraw(me, "b") if end == "withdraw" else queue.stands(me, Refused(1.0, "somebody"), 0.0)
    queue.withdraw(me, "b")
    assert not queue.in_line
