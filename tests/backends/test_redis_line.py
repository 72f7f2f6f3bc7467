"""The line on Redis and Valkey: what it costs, what is in the store, and what becomes of it when replies, connections, clients
and nodes fail. What every line must do is in `interlock.testing.lines`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

import interlock
from interlock.backends.redis import inbox
from interlock.backends.redis.backend import RedisBackend
from interlock.backends.redis.inbox import read
from interlock.backends.redis.packing import place_of
from interlock.backends.redis.resp import bulk
from interlock.core.claim import Announced, Claim, Granted, Handed, Place, Refused
from interlock.testing import FaultProxy, Node
from interlock.testing.conformance import Case, let_go, run_case, take, token_of
from interlock.testing.faces import COLOURS, Kit, run_body
from interlock.testing.lines import GRANT, LINE_CASES, WITHIN, free_and_empty, hear, heir_of, join, leave, line_of, served
from interlock.testing.nodes import TLS

LINE = "interlock:{n}:line"
FENCE = "interlock:{n}:fence"


@pytest.fixture(params=["valkey", "redis"])
def node(request: pytest.FixtureRequest) -> Node:
    return request.getfixturevalue(f"{request.param}_node")


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


def calls(node: Node) -> dict[str, int]:
    """How often the node has run each command, but for those by which tests look at it."""
    lines = node.info("commandstats").items()
    told = {name.removeprefix("cmdstat_"): int(said.partition("calls=")[2].partition(",")[0]) for name, said in lines}
    return {name: count for name, count in told.items() if name not in ("info", "ping", "hello", "auth", "select")}


def between(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


def micros(node: Node) -> int:
    seconds, rest = node.command("TIME")
    return int(seconds) * 1_000_000 + int(rest)


def redis_of(client: Any) -> RedisBackend:
    backend = line_of(client)
    assert isinstance(backend, RedisBackend)
    return backend


def nothing_is_remembered(client: Any) -> None:
    backend = redis_of(client)
    assert not backend._places
    assert not backend._places.told
    assert not cast(Any, backend._transport)._ledger.records


# --- what it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [1, 50])
def test_a_hand_off_is_six_commands_however_long_the_line(node: Node, colour: str, waiting: int) -> None:
    async def body(kit: Kit) -> None:
        client, other = kit.client(), kit.client()
        await let_go(client, await take(client, "warm"))
        holder = await take(client, "n")
        claims = [await join(other, "n", 1000 + n) for n in range(waiting)]
        before = calls(node)
        await let_go(client, holder)
        spent = between(before, calls(node))
        assert spent == {"evalsha": 1, "get": 1, "zpopmin": 1, "incr": 1, "publish": 1, "set": 1}
        await served(other, claims[0])

    run_body(body, node.url, colour)


def test_those_who_wait_in_no_line_cost_one_command_more_than_nothing(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        for _ in range(2):
            before = calls(node)
            holder = await take(client, "n")
            claimed = calls(node)
            await let_go(client, holder)
        assert between(before, claimed) == {"evalsha": 1, "set": 2, "get": 1, "time": 1}, "a plain claim as ever"
        assert between(claimed, calls(node)) == {"evalsha": 1, "get": 1, "zpopmin": 1, "del": 1}

    run_body(body, node.url, colour)


def test_what_a_hand_over_costs(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client, other = kit.client(), kit.client()
        line = line_of(client)
        box = await line.open_inbox(WITHIN)
        holder = await take(client, "n")
        await line.hand_over("elsewhere", holder.token, heir_of(client, "elsewhere", 1, box), 0, WITHIN)  # loads the script
        heirs = [heir_of(client, "n", arrival, box) for arrival in (1000, 1000, 3000)]
        waiting = await join(other, "n", 2000)

        async def spent(token: str, heir: Claim, before: int) -> dict[str, int]:
            first = calls(node)
            await line.hand_over("n", token, heir, before, WITHIN)
            return between(first, calls(node))

        plain = {"evalsha": 1, "get": 1, "incr": 1, "set": 1}
        assert await spent(holder.token, heirs[0], 0) == plain
        assert await spent(heirs[0].token, heirs[1], 1000) == {**plain, "zadd": 1, "zpopmin": 1}
        to_another = await spent(heirs[1].token, heirs[2], 3000)
        if to_another.pop("pexpire", 0):  # once in a while
            assert int(node.command("GET", FENCE)) % 64 == 0
        assert to_another == {**plain, "zadd": 1, "zpopmin": 1, "publish": 1, "time": 1}
        await served(other, waiting)
        assert node.command("PTTL", LINE) > 3_500_000, "the heir stands in a line that expires"

    run_body(body, node.url, colour)


def test_a_hand_over_leaves_nothing_behind_and_can_be_taken_back(node: Node, colour: str) -> None:
    """Both tokens: who gives it, and who gets it, with how that one may stand in line."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        line, transport = line_of(client), redis_of(client)._transport
        box, holder, call = await line.open_inbox(WITHIN), await take(client, "n"), transport.call
        undos: list[Any] = []

        def recorded(request: Any, mark: bytes, tokens: Any, until: float, undo: Any = None) -> Any:
            undos.append((tokens, undo))
            return call(request, mark, tokens, until, undo)

        transport.call = recorded  # type: ignore[method-assign]
        heir = heir_of(client, "n", 1000, box)
        assert isinstance((await line.hand_over("n", holder.token, heir, 0, WITHIN)).heir, Granted)
        ((tokens, undo),) = undos
        assert tokens == (heir.token, holder.token)
        first, second = undo(holder.token), undo(heir.token)
        assert bulk(heir.token.encode()) not in first.rest, "each for itself: the other may be alive by then"
        assert bulk(holder.token.encode()) in first.rest
        assert bulk(heir.token.encode()) + bulk(place_of(heir.token, heir.place)) in second.rest
        nothing_is_remembered(client)

    run_body(body, node.url, colour)


def test_a_hand_over_takes_the_fence_that_is_proposed(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        line = redis_of(client)
        box, holder = await line.open_inbox(WITHIN), await take(client, "n")
        proposal = int(node.command("GET", FENCE)) + 1000
        handed = await line.hand_over("n", holder.token, heir_of(client, "n", 1000, box), 0, WITHIN, proposal)
        assert isinstance(handed, Handed)
        assert isinstance(handed.heir, Granted)
        assert handed.heir.fence == proposal

    run_body(body, node.url, colour)


def test_a_line_that_lives_by_hand_overs_alone_does_not_expire(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        line = line_of(client)
        box = await line.open_inbox(WITHIN)
        holder, waiting = await take(client, "n"), await join(client, "n", 1000)
        token = holder.token
        node.command("PEXPIRE", LINE, 60_000)  # as if nobody had come for long
        for arrival in range(1001, 1066):
            heir = heir_of(client, "n", arrival, box)
            handed = await line.hand_over("n", token, heir, arrival, WITHIN)
            assert isinstance(handed.heir, Refused), "it goes back and forth"
            token, waiting = waiting.token, heir
        assert node.command("PTTL", LINE) > 3_500_000
        longest = Place(1100, box, 5 * 86_400.0)
        await line.claim(Claim("n", token_of(client), 20.0, longest), WITHIN)
        await line.hand_over("n", token, heir_of(client, "n", 1200, box), 1200, WITHIN)
        await line.hand_over("n", waiting.token, heir_of(client, "n", 1300, box), 1300, WITHIN)
        assert node.command("PTTL", LINE) > 9 * 86_400_000, "nor before a lease that is long"

    run_body(body, node.url, colour)


def test_a_refused_claim_with_a_place_is_seven_commands(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await take(client, "n")
        await join(client, "n", 1000)
        before = calls(node)
        await join(client, "n", 2000)
        assert between(before, calls(node)) == {"evalsha": 1, "get": 2, "pttl": 1, "zadd": 1, "pexpire": 1, "time": 1}

    run_body(body, node.url, colour)


@pytest.mark.parametrize("long", [False, True])
def test_who_asks_again_sees_to_the_line_once_in_a_while(node: Node, colour: str, long: bool) -> None:
    """In ten seconds of each minute; each time if the holder may stay for longer than the line is kept."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        await take(client, "n")
        if long:
            node.command("PEXPIRE", "n", 10_000_000)
        again = await join(client, "n", 1000)
        while True:  # a look at the clock on both sides, which agree
            due, before = micros(node) // 1_000_000 % 60 < 10, calls(node)
            assert isinstance(await line_of(client).claim(again, WITHIN), Refused)
            spent = between(before, calls(node))
            if due == (micros(node) // 1_000_000 % 60 < 10):
                break
        assert spent.pop("pexpire", 0) == (due or long)
        spent.pop("time")  # one is our own
        assert spent == {"evalsha": 1, "get": 2, "pttl": 1, "zadd": 1}

    run_body(body, node.url, colour)


def test_many_dead_ones_are_passed_over_a_bounded_number_at_a_time(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await let_go(client, await take(client, "warm"))
        holder = await take(client, "n")
        token = "0" * 32 + "~dead:1"
        for n in range(300):
            node.command("ZADD", LINE, n, f"{token}{n} interlock:inbox:dead 1000")
        waiting = await join(client, "n", 1000)
        before = calls(node)
        await let_go(client, holder)
        spent = between(before, calls(node))
        assert spent == {"evalsha": 1, "get": 1, "zpopmin": 128, "incr": 1, "set": 128, "publish": 128, "del": 1}
        assert node.command("EXISTS", "n") == 0, "free: the next claim gets it"
        for _ in range(2):
            await let_go(client, await take(client, "n"))
        await served(client, waiting)

    run_body(body, node.url, colour)


# --- what is in the store -----------------------------------------------------------------------------------------------


def test_the_line_shares_the_slot_and_expires(node: Node, colour: str, fresh_node: Callable[..., Node]) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await take(client, "n")
        claim = await join(client, "n", 1_700_000_000_123_456)
        assert claim.place is not None
        assert node.command("ZRANGE", LINE, 0, -1, "WITHSCORES") == [
            f"{claim.token} {claim.place.inbox} 3000".encode(),
            b"1700000000123456",
        ]
        assert 3_590_000 < node.command("PTTL", LINE) <= 3_600_000
        await take(client, "long", ttl=5 * 86_400.0)
        await join(client, "long", 1000)
        assert node.command("PTTL", "interlock:{long}:line") > 9 * 86_400_000

    run_body(body, node.url, colour)
    cluster = fresh_node(config=["cluster-enabled yes"])
    for name in ("order:1", "ünïcode 名前"):
        assert len({cluster.command("CLUSTER", "KEYSLOT", key) for key in (name, f"interlock:{{{name}}}:line")}) == 1


def test_a_client_has_one_subscription_whatever_it_waits_for(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        for n in range(20):
            await take(client, f"n:{n}")
            await join(client, f"n:{n}", 1000)
            await join(client, f"n:{n}", 2000)
        subscribed = [line for line in node.command("CLIENT", "LIST").splitlines() if b" sub=1 " in line]
        assert len(subscribed) == 1
        (channel,) = node.command("PUBSUB", "CHANNELS")
        assert channel == (await line_of(client).open_inbox(WITHIN)).encode()
        await client.close()
        deadline = time.monotonic() + 5
        while node.command("PUBSUB", "CHANNELS") and time.monotonic() < deadline:
            await kit.sleep(0.01)
        assert node.command("PUBSUB", "CHANNELS") == []

    run_body(body, node.url, colour)


@pytest.mark.parametrize("rubbish", [("SET", LINE, "x"), ("RPUSH", LINE, "x"), ("ZADD", LINE, "0", "not a member")])
def test_a_spoilt_line_is_put_right(node: Node, colour: str, rubbish: tuple[str, ...]) -> None:
    """The key is ours, and what it held was only ever a wish: better than to keep everybody from waiting."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        node.command(*rubbish)
        holder = await take(client, "n")
        await let_go(client, holder)
        assert node.command("EXISTS", "n") == 0, "a release does not mind"
        node.command("DEL", LINE)
        node.command(*rubbish)
        holder = await take(client, "n")
        claim = await join(client, "n", 1000)
        await let_go(client, holder)
        await served(client, claim)
        node.command("DEL", LINE)
        node.command("SET", LINE, "x")
        assert await leave(client, claim) is True

    run_body(body, node.url, colour)


@pytest.mark.parametrize("hand_over", [False, True])
@pytest.mark.parametrize(
    "lasts", ["0", "9" * 20, str(2**63 - 1), "1" * 400], ids=["no time", "20 digits", "an overflow", "400 digits"]
)
def test_somebody_in_line_for_a_time_that_cannot_be_is_nobody(node: Node, colour: str, lasts: str, hand_over: bool) -> None:
    """No server takes such an expiry: nobody must be told that it has the lock, and those behind are served."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        line = line_of(client)
        holder = await take(client, "n")
        inbox = await line.open_inbox(WITHIN)
        node.command("ZADD", LINE, "1", f"{'0' * 32} {inbox} {lasts}")
        claim = await join(client, "n", 1000)
        if hand_over:
            await line.hand_over("n", holder.token, heir_of(client, "n", 2000, inbox), 2000, WITHIN)
        else:
            assert await line.release("n", holder.token, WITHIN) is True
        assert node.command("GET", "n") == claim.token.encode()
        await served(client, claim)

    run_body(body, node.url, colour)


@pytest.mark.parametrize("rubbish", ["garbage", "-5", str(2**53), None], ids=str)
def test_a_spoilt_counter_serves_nobody_and_releases_all_the_same(node: Node, colour: str, rubbish: str | None) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        line = line_of(client)
        holder = await take(client, "n")
        claim = await join(client, "n", 1000)
        node.command("DEL", "interlock:{n}:fence")
        if rubbish is None:
            node.command("RPUSH", "interlock:{n}:fence", "x")
        else:
            node.command("SET", "interlock:{n}:fence", rubbish)
        if rubbish is not None:
            heir = heir_of(client, "n", 1, await line.open_inbox(WITHIN))
            with pytest.raises(interlock.UsageError, match="fence counter"):
                await line.hand_over("n", holder.token, heir, 0, WITHIN)
            assert node.command("GET", "n") == holder.token.encode()
        assert await line.release("n", holder.token, WITHIN) is True
        assert node.command("EXISTS", "n") == 0
        assert await hear(client, 0.05) == []
        with pytest.raises(interlock.UsageError):
            await line.claim(claim, WITHIN)

    run_body(body, node.url, colour)


def test_a_lost_counter_goes_on_from_the_clock(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        holder = await take(client, "n")
        claim = await join(client, "n", 1000)
        node.command("DEL", "interlock:{n}:fence")
        while micros(node) // 1000 - interlock.core.fence.EPOCH_MS <= holder.fence >> 12:
            pass
        await let_go(client, holder)
        announced = await served(client, claim)
        assert announced.fence > holder.fence
        assert 3_590_000 < node.command("PTTL", "interlock:{n}:fence") <= 3_600_000

    run_body(body, node.url, colour)


def test_a_counter_outlives_a_long_lease_that_was_handed_over(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        line = line_of(client)
        holder = await take(client, "n")
        heir = heir_of(client, "n", 1, await line.open_inbox(WITHIN))._replace(ttl=86_400.0)
        handed = await line.hand_over("n", holder.token, heir, 0, WITHIN)
        assert isinstance(handed.heir, Granted)
        assert handed.heir.fence > holder.fence
        assert node.command("PTTL", "interlock:{n}:fence") > node.command("PTTL", "n") > 80_000_000

    run_body(body, node.url, colour)


def test_a_full_server_still_serves(fresh_node: Callable[..., Node], colour: str) -> None:
    node = fresh_node(config=["maxmemory-policy noeviction"])

    async def body(kit: Kit) -> None:
        client = kit.client()
        holder = await take(client, "n")
        claim = await join(client, "n", 1000)
        node.command("CONFIG", "SET", "maxmemory", "1")
        await let_go(client, holder)
        assert (await served(client, claim)).fence > holder.fence
        node.command("CONFIG", "SET", "maxmemory", "0")

    run_body(body, node.url, colour)


# --- announcements ------------------------------------------------------------------------------------------------------


TOKEN = "0123456789abcdef" * 2 + "~web-7:42 (a b)"


def written(fence: object, ms: object, token: object, name: object) -> bytes:
    """As serve.lua writes it."""
    return f"{fence}\n{ms}\n{token}\n{name}".encode("utf-8", "surrogateescape")


def test_an_announcement_is_read_back() -> None:
    assert read(written(7, 3000, TOKEN, "name 名前")) == Announced("name 名前", TOKEN, 7, 3.0, -inf)
    for fence in (0, "+7", "-7", " 7", "7 ", "07", "1_0", "٧", "7.0", "1e3", 2**53, 10**400, "7" * 5000, ""):
        assert read(written(fence, 3000, TOKEN, "n")) is None or fence == 0  # small, but a number
    for ms in (-1, "1_0", 10**400, "9" * 5000, "x", "nan", "inf", 10**12):
        assert read(written(7, ms, TOKEN, "n")) is None
    for token in ("", "t", TOKEN[:32], TOKEN[:33], TOKEN.upper(), TOKEN + "x" * 100_000, TOKEN + "\udcff"):
        assert read(written(7, 3000, token, "n")) is None or token == TOKEN[:33]  # it says nothing of itself
    for name in ("", " ", "a{b}", "a\x00", "n" * 513, "\udcff", "a\r", "a\u202e"):
        assert read(written(7, 3000, TOKEN, name)) is None
    for garbage in (b"", b"hello", b"1\n2\nt", b"1\n2\nt\nn\nx", written(7, 3000, TOKEN, "n") + b"\n"):
        assert read(garbage) is None


numbers = st.one_of(st.integers(), st.integers(0, 2**53), st.text(max_size=5), st.integers(1, 6000).map(lambda n: "9" * n))
texts = st.one_of(st.just(TOKEN), st.just("n"), st.text(max_size=10), st.binary(max_size=10).map(lambda b: b.decode("latin-1")))


@given(st.one_of(st.binary(max_size=80), st.builds(written, numbers, numbers, texts, texts)))
def test_what_anybody_may_publish_is_exactly_an_announcement_or_nothing(message: bytes) -> None:
    announced = read(message)
    if announced is not None:
        name, token, fence, ttl, _ = announced
        assert written(fence, round(ttl * 1000), token, name) == message


def test_garbage_in_the_inbox_is_ignored(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        channel = await line_of(client).open_inbox(WITHIN)
        holder = await take(client, "n")
        claim = await join(client, "n", 1000)
        long, huge = b"9" * 400, b"9" * 5000
        hostile = [b"\n".join([number] * 2 + [TOKEN.encode(), b"n"]) for number in (long, huge)]
        for garbage in (b"", b"hello", b"\xff\xfe", b"1\n2\n3", *hostile, b"x" * 100_000, b"x" * 5_000_000):
            assert node.command("PUBLISH", channel, garbage) == 1
            assert await hear(client, 0.05) == []
        assert node.command("PUBSUB", "NUMSUB", channel)[1] == 1, "it is heard as before, on the same connection"
        await let_go(client, holder)
        await served(client, claim)

    run_body(body, node.url, colour)


@pytest.mark.parametrize("case", LINE_CASES, ids=str)
def test_the_whole_suite_with_an_idle_connection_that_pings(
    case: Case, colour: str, valkey_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "SILENCE", 0.002)
    run_case(case, valkey_node.url, colour)


def test_tls(fresh_node: Callable[..., Node], tmp_path: Path, colour: str) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("localhost", "127.0.0.1")
    paths = [tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"]
    cert.cert_chain_pems[0].write_to_path(paths[0])
    cert.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    node = fresh_node(kind="redis", tls=TLS(*map(str, paths)), config=["tls-auth-clients no"])
    for case in LINE_CASES:
        run_case(case, f"{node.tls_url}?ssl_ca_certs={paths[2]}", colour)


# --- when it was --------------------------------------------------------------------------------------------------------


def test_an_announcement_is_dated_by_the_last_question_that_was_answered(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client, listener = kit.client(), kit.client()
        holder = await take(client, "n")
        claim = await join(listener, "n", 1000)
        line, now = line_of(listener), redis_of(listener)._now
        before = now()
        assert isinstance(await line.claim(claim, WITHIN), Refused)
        after = now()
        await let_go(client, holder)
        (announced,) = await hear(listener)
        assert before <= announced.at <= after
        assert announced.fence > holder.fence
        assert isinstance(await line.claim(claim, WITHIN), Granted)
        stray = await join(client, "n", 1000)
        redis_of(client)._places.told.clear()
        await line.release("n", claim.token, WITHIN)
        (announced,) = await hear(client)
        assert announced.token == stray.token
        assert announced.at == -inf, "nobody knows since when"

    run_body(body, node.url, colour)


def test_a_refusal_says_how_far_the_fences_are(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        holder = await take(client, "n")
        place = Place(1000, await line_of(client).open_inbox(WITHIN), GRANT)
        for where in (None, place):
            answer = await line_of(client).claim(Claim("n", token_of(client), 5.0, where), WITHIN)
            assert isinstance(answer, Refused)
            assert answer.fence == holder.fence
        node.command("SET", FENCE, "rubbish")
        answer = await line_of(client).claim(Claim("n", token_of(client), 5.0), WITHIN)
        assert isinstance(answer, Refused)
        assert answer.fence == 0

    run_body(body, node.url, colour)


# --- nobody answers, nobody listens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drop", "cut"])
def test_the_answer_to_a_release_that_served_somebody_is_lost(node: Node, colour: str, fault: str) -> None:
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client, other = kit.client(), kit.client()
            holder = await take(client, "n")
            claim = await join(other, "n", 1000)
            (proxy.drop_reply_to if fault == "drop" else proxy.cut_reply_to)(holder.token.encode())
            line = line_of(client)
            with pytest.raises(interlock.Unavailable):
                await line.release("n", holder.token, 0.2)
            assert await line.undo("n", holder.token, WITHIN) is True
            announced = await served(other, claim)
            assert await line_of(other).extend("n", claim.token, 20.0, WITHIN) == Granted(announced.fence, 20.0), "untouched"
            await leave(other, claim)
            await free_and_empty(other, "n")
            nothing_is_remembered(client)

        run_body(body, proxy.url, colour)


@pytest.mark.parametrize("fault", ["drop", "cut", "cut before"])
@pytest.mark.parametrize("outcome", ["granted", "in line", "served meanwhile"])
def test_the_answer_to_a_claim_with_a_place_is_lost(node: Node, colour: str, fault: str, outcome: str) -> None:
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client, other = kit.client(), kit.client()
            line = line_of(client)
            box = await line.open_inbox(WITHIN)
            await let_go(client, await take(client, "warm"))
            holder = await take(other, "n") if outcome != "granted" else None
            claim = Claim("n", token_of(client), 20.0, Place(1000, box, GRANT))
            behind = None
            fail = {"drop": proxy.drop_reply_to, "cut": proxy.cut_reply_to}.get(fault)
            if fail is not None:
                fail(claim.token.encode())
            else:
                proxy.cut_on_request(1, containing=claim.token.encode())
            with pytest.raises(interlock.Unavailable):
                await line.claim(claim, 0.2)
            if holder is not None:
                behind = await join(other, "n", 2000)
            if outcome == "served meanwhile":
                assert holder is not None
                await let_go(other, holder)
            assert await line.undo("n", claim.token, WITHIN) is True
            if outcome == "in line":
                assert holder is not None
                await let_go(other, holder)
            if behind is not None:
                await served(other, behind)
                await leave(other, behind)
            assert node.command("EXISTS", "n", LINE) == 0, "nobody holds what nobody knows of"
            nothing_is_remembered(client)

        run_body(body, proxy.url, colour)


@pytest.mark.parametrize("first", ["heir", "token"])
@pytest.mark.parametrize("fault", ["drop", "cut", "cut before"])
@pytest.mark.parametrize("outcome", ["to the heir", "to another", "not held"])
def test_the_answer_to_a_hand_over_is_lost(node: Node, colour: str, outcome: str, fault: str, first: str) -> None:
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client, other = kit.client(), kit.client()
            line = line_of(client)
            heir = heir_of(client, "n", 1500, await line.open_inbox(WITHIN))
            await let_go(client, await take(client, "warm"))
            holder = await take(client, "n")
            token = holder.token
            if outcome == "not held":
                await let_go(client, holder)
                token = token_of(client)
            waiting = await join(other, "n", 1000) if outcome == "to another" else None
            fail = {"drop": proxy.drop_reply_to, "cut": proxy.cut_reply_to}.get(fault)
            if fail is not None:
                fail(heir.token.encode())
            else:
                proxy.cut_on_request(1, containing=heir.token.encode())
            with pytest.raises(interlock.Unavailable):
                await line.hand_over("n", token, heir, 1500, 0.2)
            both = [heir.token, token]
            for each in both if first == "heir" else reversed(both):
                assert await line.undo("n", each, WITHIN) is True
            if waiting is not None:
                await served(other, waiting)
                await leave(other, waiting)
            assert node.command("EXISTS", "n", LINE) == 0, "nobody holds what nobody knows of"
            nothing_is_remembered(client)
            await let_go(client, await take(client, "n"))

        run_body(body, proxy.url, colour)


@pytest.mark.parametrize("first", ["heir", "token"])
def test_both_undos_follow_a_hand_over_that_is_still_on_its_way(node: Node, colour: str, first: str) -> None:
    """The server is silent for the hand-over and for both undos: all three are on the same connection, in this order."""
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            line = line_of(client)
            heir = heir_of(client, "n", 1500, await line.open_inbox(WITHIN))
            holder = await take(client, "n")
            proxy.delay(float("inf"), "requests")
            with pytest.raises(interlock.Unavailable):
                await line.hand_over("n", holder.token, heir, 0, 0.05)
            both = [heir.token, holder.token]
            for each in both if first == "heir" else reversed(both):
                with pytest.raises(interlock.Unavailable):
                    await line.undo("n", each, 0.05)
            assert node.command("GET", "n") == holder.token.encode()
            proxy.heal()
            deadline = time.monotonic() + 5
            while node.command("EXISTS", "n") and time.monotonic() < deadline:
                await kit.sleep(0.01)
            assert node.command("EXISTS", "n", LINE) == 0
            assert node.command("PTTL", "n") == -2
            nothing_is_remembered(client)

        run_body(body, proxy.url, colour)


def test_nothing_is_remembered_of_those_who_came_to_nothing(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        line = line_of(client)
        box = await line.open_inbox(WITHIN)
        node.command("RPUSH", "list", "x")
        with pytest.raises(interlock.UsageError):
            await line.claim(heir_of(client, "list", 1, box), WITHIN)
        holder = await take(client, "n")
        waiting = await join(client, "n", 1000)
        heir = Claim("n", token_of(client), 5.0)
        assert isinstance((await line.hand_over("n", holder.token, heir, 2000, WITHIN)).heir, Refused)
        await served(client, waiting)
        await leave(client, waiting)
        nothing_is_remembered(client)

    run_body(body, node.url, colour)


def test_a_refused_connection_costs_no_second_question(node: Node, colour: str) -> None:
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            proxy.refuse()
            claim = Claim("n", token_of(client), 20.0, Place(1000, "nowhere", GRANT))
            with pytest.raises(interlock.Unavailable):
                await line_of(client).claim(claim, WITHIN)
            assert await line_of(client).undo("n", claim.token, WITHIN) is False
            nothing_is_remembered(client)

        run_body(body, proxy.url, colour)


def test_a_waiter_that_was_killed_costs_nothing(node: Node, colour: str) -> None:
    program = """
import sys, time, interlock
from interlock.core.claim import Claim, Place
from interlock.runtime.blocking import run
client = interlock.Client(sys.argv[1])
line, token = client._context.backend, client._context.runtime.token
for arrival in range(1, 6):
    run(line.claim(Claim("n", token(), 20.0, Place(arrival, run(line.open_inbox(5.0)), 3.0)), 5.0))
print("waiting", flush=True)
time.sleep(60)
"""

    async def body(kit: Kit) -> None:
        client, other = kit.client(), kit.client()
        holder = await take(client, "n", 60.0)  # longer than a process may take to start
        with subprocess.Popen([sys.executable, "-c", program, node.url], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            claim = await join(other, "n", 1000)
            assert node.command("ZCARD", LINE) == 6
            child.send_signal(signal.SIGKILL)
        while node.command("PUBSUB", "NUMSUB", claim.place.inbox)[1] and len(node.command("PUBSUB", "CHANNELS")) > 1:  # type: ignore[union-attr]
            await kit.sleep(0.001)
        await let_go(client, holder)
        began = time.monotonic()
        await served(other, claim)
        assert time.monotonic() - began < 1
        await leave(other, claim)
        await free_and_empty(client, "n")

    run_body(body, node.url, colour)


@pytest.mark.parametrize("how", ["cut", "reset", "kill", "restart"])
def test_a_broken_inbox_is_noticed_and_opened_again_under_its_name(
    fresh_node: Callable[..., Node], colour: str, how: str
) -> None:
    node = fresh_node()
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            line = line_of(client)
            channel = await line.open_inbox(WITHIN)
            holder = await take(client, "n", ttl=30.0)
            claim = await join(client, "n", 1000)

            async def break_it() -> None:
                await kit.sleep(0.1)
                if how == "kill":
                    node.command("CLIENT", "KILL", "TYPE", "pubsub")
                elif how == "restart":
                    node.restart()
                else:
                    proxy.cut(reset=how == "reset")

            async def listen() -> None:
                with pytest.raises(interlock.Unavailable):
                    await hear(client)

            await kit.together(listen(), break_it())
            with pytest.raises(interlock.Unavailable):
                await hear(client)
            if how == "restart":
                assert isinstance(await line.claim(claim, WITHIN), Granted), "the node forgot everything"
                await leave(client, claim)
                claim = claim._replace(token=token_of(client))
                holder = await take(client, "n", ttl=30.0)
                assert await line.open_inbox(WITHIN) == channel
                assert isinstance(await line.claim(claim, WITHIN), Refused)
            else:
                assert await line.open_inbox(WITHIN) == channel
            await let_go(client, holder)
            await served(client, claim)

        run_body(body, proxy.url, colour)


def test_while_the_inbox_is_gone_its_waiters_are_passed_over_and_come_back_to_their_place(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        holder = await take(client, "n")
        arrivals = {1000: "", 2000: ""}
        for arrival in arrivals:
            arrivals[arrival] = (await join(client, "n", arrival)).token
        node.command("CLIENT", "KILL", "TYPE", "pubsub")
        await let_go(client, holder)
        assert node.command("EXISTS", "n", LINE) == 0, "nobody could be told"
        with pytest.raises(interlock.Unavailable):
            await hear(client)
        holder = await take(client, "n")
        second, first = [await join(client, "n", arrival, arrivals[arrival]) for arrival in (2000, 1000)]
        await let_go(client, holder)
        for claim in (first, second):
            await served(client, claim)
            await leave(client, claim)

    run_body(body, node.url, colour)


def test_a_silent_peer_is_found_out_while_somebody_hears(node: Node, colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "SILENCE", 0.1)
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            channel = await line_of(client).open_inbox(0.3)
            assert await hear(client, 0.5) == [], "it pings, and is answered"
            pings = proxy.commands.count(b"PING")
            assert 2 <= pings <= 6
            proxy.blackhole()
            began = time.monotonic()
            with pytest.raises(interlock.Unavailable) as caught:
                await hear(client, 10.0)
            assert caught.value.cause == "timeout"
            assert time.monotonic() - began < 2
            with pytest.raises(interlock.Unavailable):
                await line_of(client).open_inbox(0.1)
            proxy.heal()
            assert await line_of(client).open_inbox(WITHIN) == channel

        run_body(body, proxy.url, colour)


def test_an_inbox_that_was_opened_in_a_hurry_is_patient_all_the_same(
    node: Node, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the opening may take says nothing about how soon a ping must be answered."""
    monkeypatch.setattr(inbox, "SILENCE", 0.1)
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            await line_of(client).open_inbox(WITHIN)
            proxy.cut()
            with pytest.raises(interlock.Unavailable):
                await hear(client)
            await line_of(client).open_inbox(0.15)
            proxy.delay(0.1, "both")
            assert await hear(client, 0.8) == [], "it is slow, not silent"

        run_body(body, proxy.url, colour)


def test_who_was_busy_elsewhere_for_long_is_not_mistaken_for_a_silent_peer(
    node: Node, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "SILENCE", 0.05)

    async def body(kit: Kit) -> None:
        client = kit.client()
        await line_of(client).open_inbox(0.2)
        for _ in range(3):
            assert await hear(client, 0.06) == []  # a ping is out when this ends
            await kit.sleep(0.3)  # longer than its answer may take
        holder = await take(client, "n")
        claim = await join(client, "n", 1000)
        await let_go(client, holder)
        await served(client, claim)

    run_body(body, node.url, colour)


def test_closing_the_client_wakes_whoever_hears(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await line_of(client).open_inbox(WITHIN)
        ended: list[float] = []

        async def listen() -> None:
            with pytest.raises(interlock.Unavailable):
                await hear(client, 30.0)
            ended.append(time.monotonic())

        async def close() -> None:
            await kit.sleep(0.1)
            await client.close()

        began = time.monotonic()
        await kit.together(listen(), close())
        assert ended[0] - began < 2
        with pytest.raises(interlock.InterlockError):
            await line_of(client).open_inbox(WITHIN)

    run_body(body, node.url, colour)


def test_a_forked_child_has_an_inbox_of_its_own(node: Node) -> None:
    from interlock.runtime.blocking import run

    with interlock.Client(node.url) as client:
        line: Any = client._context.backend
        mine = run(line.open_inbox(WITHIN))
        holder, waiter = (client._context.runtime.token() for _ in range(2))
        run(line.claim(Claim("n", holder, 20.0), WITHIN))
        run(line.claim(Claim("n", waiter, 20.0, Place(1000, mine, GRANT)), WITHIN))
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                with pytest.raises(interlock.Unavailable):
                    run(line.hear(client._context.runtime.now()))
                theirs = run(line.open_inbox(WITHIN))
                code = 0 if theirs != mine and run(line.hear(client._context.runtime.now() + 0.2)) == [] else 1
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert run(line.release("n", holder, WITHIN)) is True
        (announced,) = run(line.hear(client._context.runtime.now() + WITHIN))
        assert announced.token == waiter
        assert run(line.open_inbox(WITHIN)) == mine


def test_scripts_that_were_flushed_do_not_keep_anybody_in_line(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        await let_go(client, await take(client, "warm"))
        await take(client, "n")
        waiting = await join(client, "n", 1000)
        node.command("SCRIPT", "FLUSH")
        assert await line_of(client).undo("n", waiting.token, WITHIN) is True
        assert node.command("EXISTS", LINE) == 0

    run_body(body, node.url, colour)
