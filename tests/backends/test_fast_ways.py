"""The fast ways through the Redis backend say and do what the general ones would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import interlock
from interlock.backends.redis import packing
from interlock.backends.redis.aio import AsyncTransport
from interlock.backends.redis.aio_wire import LATE, SharedWire
from interlock.backends.redis.node import ALONE
from interlock.backends.redis.resp import INCOMPLETE, Parser
from interlock.backends.redis.scripts import CLAIM, HAND_OVER, RELEASE
from interlock.core.claim import Claim, Place
from interlock.runtime.base import now
from tests.guard.counting import no_server


@pytest.mark.parametrize("name", ["x", "order:123", "käse 100%d", "a" * 512])
@pytest.mark.parametrize("token", ["ab" * 16 + "~host:1", "ab" * 16 + "~host:1 (größer %b)"])
def test_what_is_packed_at_once_is_what_would_be_packed_word_by_word(name: str, token: str) -> None:
    claim = CLAIM(packing.lock_keys(name), *packing.claiming(Claim(name, token, 10.0), 0), b"1f")
    assert packing.claim_request(Claim(name, token, 10.0), None, 0, ALONE, False, b"1f") == claim
    release = RELEASE(packing.line_keys(name), *packing.leaving(token, b"", 0), b"1f")
    assert packing.release_request(name, token, b"", 0, ALONE, b"1f") == release
    place = Place(1_700_000_000_000_000, "interlock:inbox:7", 3.0)
    heir, member = Claim(name, token[::-1], 10.0, place), packing.place_of(token[::-1], place)
    words = *packing.claiming(heir, 0), member, b"1700000000000000", b"0", token.encode(), b"12", b"", b"1f"
    spot = member, b"%d" % place.arrival, b"0"
    assert packing.hand_over_request(name, token, b"", heir, spot, 12, 0, ALONE, b"1f") == HAND_OVER(
        packing.line_keys(name), *words
    )


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        (b"*4\r\n:1\r\n:5\r\n:6\r\n$2\r\n1f\r\n", [1, 5, 6, b"1f"]),
        (b"*3\r\n:1\r\n:0\r\n$1\r\na\r\n", [1, 0, b"a"]),
        (b"*3\r\n:-1\r\n:0\r\n$1\r\na\r\n", [-1, 0, b"a"]),
        (b"*3\r\n:1\r\n:0\r\n$4\r\na\r\nb\r\n", [1, 0, b"a\r\nb"]),  # looks like a mark of one letter, and is not
        (b"*3\r\n:1\r\n:0\r\n$0\r\n\r\n", [1, 0, b""]),
    ],
)
def test_a_plain_reply_is_read_as_any_other(reply: bytes, meaning: list[Any]) -> None:
    for cut in range(len(reply)):
        parser = Parser()
        parser.feed(reply[:cut])
        assert parser.next() is INCOMPLETE
        parser.feed(reply[cut:] + reply)
        assert [parser.next(), parser.next(), parser.next()] == [meaning, meaning, INCOMPLETE]


class Recorder:
    """An asyncio transport that sends nothing."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.transport = self._writer = self
        self._reader = None

    def set_protocol(self, protocol: asyncio.Protocol) -> None: ...

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None: ...

    def close(self) -> None: ...


def test_what_is_asked_in_one_turn_of_the_loop_goes_out_in_one_write() -> None:
    async def main() -> None:
        there = Recorder()
        wire = SharedWire(there)
        wire.send(b"a", b"1", now() + 9)
        assert there.written == [b"a"], "alone, it waits for nobody"
        for word in (b"b", b"c", b"d"):
            wire.send(word, b"2", now() + 9)
        assert there.written == [b"a"]
        await asyncio.sleep(0)
        assert there.written == [b"a", b"bcd"]
        wire.send(b"e", b"3", now() + 9)
        wire.close(b"last")
        assert there.written == [b"a", b"bcd", b"e", b"last"], "in order, at the end as well"
        await asyncio.sleep(0)
        assert there.written[4:] == []

    asyncio.run(main())


def test_each_is_told_at_its_own_time_by_the_one_alarm() -> None:
    async def main() -> None:
        wire, began = SharedWire(Recorder()), now()
        futures = [wire.send(b"x", b"%d" % n, began + wait) for n, wait in enumerate([0.2, 0.05, 30.0, 0.1])]
        told = []
        for n, future in enumerate(futures):
            future.add_done_callback(lambda _, n=n: told.append((n, now() - began)))
        await asyncio.wait([futures[n] for n in (0, 1, 3)], timeout=20)
        assert [n for n, _ in told] == [1, 3, 0]
        assert all(at >= wait for (_, at), wait in zip(told, (0.05, 0.1, 0.2), strict=True))
        assert futures[0].result() is LATE
        assert not futures[2].done()
        wire.connection_lost(None)
        assert wire._alarm is not None
        assert wire._alarm.cancelled(), "nothing is left in the loop"

    asyncio.run(main())


def test_all_who_wait_for_the_connection_wake_together() -> None:
    """One after the other, each in a turn of the loop of its own, a thousand would wait longer than a request may take."""

    async def main() -> None:
        client = interlock.AsyncClient("redis://localhost:1")
        turns = 0

        async def one(n: int) -> int:
            await client.lock(f"x:{n}", renew=False).try_acquire()
            return turns

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        connect = AsyncTransport._connect
        opened_at = 0

        async def slow(self: AsyncTransport, until: float) -> Any:
            nonlocal opened_at
            await asyncio.sleep(0.05)
            opened_at = turns
            return await connect(self, until)

        patch.setattr(AsyncTransport, "_connect", slow)
        ticking = asyncio.ensure_future(tick())
        took = await asyncio.gather(*(one(n) for n in range(200)))
        ticking.cancel()
        await client.close()
        assert min(took) >= opened_at > 0
        assert max(took) - opened_at < 20

    with no_server(), pytest.MonkeyPatch.context() as patch:  # undone in turn: both put the same thing back
        asyncio.run(main())


def test_short_holds_do_not_wake_the_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = 0
    with interlock.Client("memory://short-holds") as client:
        ring = client._keeper._ring

        def counting() -> None:
            nonlocal rings
            rings += 1
            ring()

        monkeypatch.setattr(client._keeper, "_ring", counting)
        lock = client.lock("x")
        until, leases = now() + 0.5, 0
        while now() < until:
            lock.acquire().release()
            leases += 1
        assert rings < leases / 5, "the keeper was rung for nearly every lease"
