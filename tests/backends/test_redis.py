"""What is peculiar to Redis and Valkey: the wire format, fences and their counters, ways to connect, refusals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio
import trustme
import valkey
import valkey.asyncio

import interlock
from interlock.backends import unanswered
from interlock.backends.redis import packing
from interlock.backends.redis.aio import AsyncTransport
from interlock.backends.redis.backend import RedisBackend
from interlock.backends.redis.packing import undo_request
from interlock.backends.redis.resp import ErrorReply
from interlock.backends.redis.scripts import CLAIM, RELEASE
from interlock.backends.registry import open_backend
from interlock.core import fence as fences
from interlock.core.claim import Claim, Gone, Granted, Renewal
from interlock.core.quorum import Marker
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import run
from interlock.testing import FaultProxy, Node
from interlock.testing.conformance import backend_of, take
from interlock.testing.faces import COLOURS, Kit, run_body
from interlock.testing.nodes import TLS

from ..flow.test_waiting import finish, start

NODES = ("one", "two", "three")


@pytest.fixture(params=["valkey", "redis"])
def node(request: pytest.FixtureRequest) -> Node:
    return request.getfixturevalue(f"{request.param}_node")


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(node: Node) -> Iterator[interlock.Client]:
    with interlock.Client(node.url) as client:
        yield client


def works(store: Any, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("connects", ttl=5) as lease:
            await lease.extend(6)
            assert (await client.inspect("connects")).fence == lease.fence
        assert not (await client.inspect("connects")).held

    run_body(body, store, colour)


# --- what is in the store -----------------------------------------------------------------------------------------------


def test_the_lock_is_the_plain_key_with_the_token(node: Node, client: interlock.Client) -> None:
    with client.lock("order:1", ttl=20) as lease:
        assert node.command("GET", "order:1") == lease.token.encode()
        assert 19_000 < node.command("PTTL", "order:1") <= 20_000
        assert set(node.command("KEYS", "*")) == {b"order:1", b"interlock:{order:1}:fence"}
        assert int(node.command("GET", "interlock:{order:1}:fence")) == lease.fence
    assert node.command("KEYS", "*") == [b"interlock:{order:1}:fence"]
    assert 3_590_000 < node.command("PTTL", "interlock:{order:1}:fence") <= 3_600_000


def test_lock_and_counter_share_a_cluster_slot(fresh_node: Callable[..., Node]) -> None:
    node = fresh_node(config=["cluster-enabled yes"])
    for name in ("order:1", "ünïcode", "a b*c"):
        slots = {node.command("CLUSTER", "KEYSLOT", key) for key in (name, f"interlock:{{{name}}}:fence")}
        assert len(slots) == 1


def test_a_cluster_node_is_refused_clearly(fresh_node: Callable[..., Node]) -> None:
    node = fresh_node(config=["cluster-enabled yes"])
    with interlock.Client(node.url) as client, pytest.raises(interlock.Unsupported, match="Cluster"):
        client.lock("order:1").acquire(timeout=0)


# --- fences -------------------------------------------------------------------------------------------------------------


def server_ms(node: Node) -> int:
    seconds, micros = node.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def test_a_fence_is_at_least_the_servers_clock(node: Node, client: interlock.Client) -> None:
    before = fences.floor(server_ms(node))
    with client.lock("clock") as lease:
        assert before <= lease.fence <= fences.floor(server_ms(node) + 1)


def test_fences_go_on_after_the_memory_is_gone(node: Node, client: interlock.Client) -> None:
    seen = []
    for _ in range(5):
        with client.lock("flushed") as lease:
            seen.append(lease.fence)
        node.command("FLUSHALL")
        while fences.floor(server_ms(node)) <= seen[-1]:  # a millisecond at most
            pass
    assert seen == sorted(set(seen))


def test_a_counter_ahead_of_the_clock_is_kept_until_the_clock_has_overtaken_it(node: Node, client: interlock.Client) -> None:
    """A clock that once ran ahead must not let fences fall when the idle counter expires."""
    ahead = fences.floor(server_ms(node) + 5 * 3600 * 1000)
    node.command("SET", "interlock:{ahead}:fence", ahead)
    with client.lock("ahead", ttl=5) as lease:
        assert lease.fence == ahead + 1
        assert node.command("PTTL", "interlock:{ahead}:fence") > 5.9 * 3600 * 1000
        lease.extend(5)
        assert node.command("PTTL", "interlock:{ahead}:fence") > 5.9 * 3600 * 1000


def test_a_counter_outlives_a_long_lease(node: Node, client: interlock.Client) -> None:
    with client.lock("long", ttl=6 * 86_400) as lease:
        assert node.command("PTTL", "interlock:{long}:fence") > node.command("PTTL", "long")
        lease.extend(1)
        lease.extend(5 * 86_400)
        assert node.command("PTTL", "interlock:{long}:fence") > node.command("PTTL", "long")


def test_extend_teaches_a_lost_counter_its_fence(node: Node, client: interlock.Client) -> None:
    with client.lock("evicted") as lease:
        node.command("DEL", "interlock:{evicted}:fence")
        lease.extend(5)
        assert int(node.command("GET", "interlock:{evicted}:fence")) == lease.fence


def test_fences_are_exact_integers_up_to_the_end_of_their_range(node: Node, client: interlock.Client) -> None:
    node.command("SET", "interlock:{big}:fence", 2**53 - 3)
    with client.lock("big") as lease:
        assert lease.fence == 2**53 - 2
        assert int(node.command("GET", "interlock:{big}:fence")) == 2**53 - 2
    for spent in (2**53 - 2, 2**53, 2**60, "nan", "inf", -5):
        node.command("SET", "interlock:{big}:fence", spent)
        with pytest.raises(interlock.UsageError, match="fence counter"):
            client.lock("big").acquire(timeout=0)
        assert node.command("EXISTS", "big") == 0


# --- what else may be under the key -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [("RPUSH", "k", "x"), ("HSET", "k", "f", "v"), ("SADD", "k", "x"), ("ZADD", "k", "1", "x")])
def test_another_type_under_the_key_is_left_alone(node: Node, colour: str, make: tuple[str, ...]) -> None:
    node.command(*make)
    before = node.command("DUMP", "k")

    async def body(kit: Kit) -> None:
        client = kit.client()
        for question in (client.lock("k").acquire(timeout=1), client.lock("k").try_acquire(), client.inspect("k")):
            with pytest.raises(interlock.UsageError, match="not a lock"):
                await question

    run_body(body, node.url, colour)
    assert node.command("DUMP", "k") == before
    assert node.command("KEYS", "*") == [b"k"]


@pytest.mark.parametrize("make", [("RPUSH", "k", "x"), ("HSET", "k", "f", "v"), ("SET", "k", "somebody")])
def test_rubbish_under_one_key_does_not_stop_a_batch(node: Node, colour: str, make: tuple[str, ...]) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        first, spoilt, last = [await take(client, name) for name in ("first", "k", "last")]
        node.command("DEL", "k")
        node.command(*make)
        before = node.command("DUMP", "k")
        answers = await backend_of(client).renew([first, spoilt, last], 1.0)
        assert answers == [Granted(first.fence, 60.0), Gone(taken=True), Granted(last.fence, 60.0)]
        assert node.command("DUMP", "k") == before
        for name in ("first", "last"):
            assert node.command("PTTL", name) > 50_000
        assert node.command("PTTL", "k") == -1, "what is not ours gets no expiry"
        if make[0] != "SET":
            with pytest.raises(interlock.UsageError, match="not a lock"):
                await backend_of(client).extend("k", spoilt.token, 60.0, 1.0)

    run_body(body, node.url, colour)


def test_a_plain_string_is_a_foreign_holder(node: Node, client: interlock.Client) -> None:
    node.command("SET", "k", "somebody", "PX", "60000")
    assert client.lock("k").try_acquire() is None
    entry = client.inspect("k")
    assert (entry.held, entry.owner, entry.fence) == (True, "", None)
    node.command("PERSIST", "k")
    assert client.inspect("k").remaining is None
    with pytest.raises(interlock.AcquireTimeout, match="no expiry"):
        client.lock("k").acquire(timeout=0.02)
    assert node.command("GET", "k") == b"somebody"


def test_a_corrupt_counter_is_reported_and_nothing_is_granted(node: Node, client: interlock.Client) -> None:
    node.command("SET", "interlock:{k}:fence", "garbage")
    with pytest.raises(interlock.UsageError, match="fence counter"):
        client.lock("k").acquire(timeout=0)
    assert node.command("EXISTS", "k") == 0


@pytest.mark.parametrize("rubbish", ["garbage", "nan", "-5", str(2**60), None], ids=str)
def test_a_spoilt_counter_is_put_right_by_an_extension(node: Node, colour: str, rubbish: str | None) -> None:
    """Whoever holds the lock has the highest fence that was ever granted: no reason to lose the lease over that."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        leases = [await take(client, name) for name in ("a", "b", "c")]
        for name in ("a", "b"):
            node.command("DEL", f"interlock:{{{name}}}:fence")
            if rubbish is None:
                node.command("RPUSH", f"interlock:{{{name}}}:fence", "x")
            else:
                node.command("SET", f"interlock:{{{name}}}:fence", rubbish)
        backend, (a, b, c) = backend_of(client), leases
        assert await backend.extend("a", a.token, 60.0, 1.0, a.fence) == Granted(a.fence, 60.0)
        assert await backend.renew([b, c], 1.0) == [Granted(b.fence, 60.0), Granted(c.fence, 60.0)]
        for lease in leases:
            assert node.command("PTTL", lease.name) > 50_000
            assert int(node.command("GET", f"interlock:{{{lease.name}}}:fence")) == lease.fence
            await backend.release(lease.name, lease.token, 1.0)
            assert (await take(client, lease.name)).fence > lease.fence

    run_body(body, node.url, colour)


def test_a_spoilt_roll_does_not_stop_a_batch(node: Node, client: interlock.Client) -> None:
    lease = client.lock("x", ttl=5, renew=False).acquire()
    for make in (("SET", "interlock:roll", "rubbish"), ("HSET", "interlock:roll", "longest", "rubbish", "high", "0")):
        node.command("DEL", "interlock:roll")
        node.command(*make)
        lease.extend(60)
        assert node.command("PTTL", "x") > 50_000
        lease.extend(5)


# --- scripts ------------------------------------------------------------------------------------------------------------


def test_flushed_scripts_are_loaded_again(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        for _ in range(3):
            node.command("SCRIPT", "FLUSH")
            async with client.lock("s") as lease:
                node.command("SCRIPT", "FLUSH")
                await lease.extend(5)
                node.command("SCRIPT", "FLUSH")
                assert (await client.inspect("s")).held
                node.command("SCRIPT", "FLUSH")

    run_body(body, node.url, colour)


def test_after_any_error_a_connection_starts_over_with_texts(node: Node, colour: str) -> None:
    """Also when nobody reads the error, as that of an undo: the next request must not depend on what the node has lost."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("s"):
            pass
        node.command("SCRIPT", "FLUSH")
        transport = cast(RedisBackend, backend_of(client))._transport
        request = undo_request("s", packing.Ballot(), b"", "nobody", b"mark")
        assert isinstance(await transport.call(request, b"mark", (), now() + 5), ErrorReply)
        assert await transport.call(request, b"mark", (), now() + 5) == [0, 0, b"mark"]

    run_body(body, node.url, colour)


def test_an_uncontended_cycle_is_two_requests(node: Node, colour: str) -> None:
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            async with client.lock("two"):
                pass
            before = len(proxy.commands)
            async with client.lock("two"):
                pass
            assert proxy.commands[before:] == [b"EVALSHA", b"EVALSHA"]

        run_body(body, proxy.url, colour)


def calls(node: Node) -> dict[str, int]:
    """How often the node has run each command."""
    lines = node.info("commandstats").items()
    return {name.removeprefix("cmdstat_"): int(said.partition("calls=")[2].partition(",")[0]) for name, said in lines}


@pytest.mark.parametrize("size", [1, 7, 250])
def test_a_batch_is_one_request_however_many(node: Node, colour: str, size: int) -> None:
    node.command("HSET", "interlock:roll", "longest", "1000", "high", "0", "seed", "0")
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            leases = [await take(client, f"n:{n}", ttl=5.0) for n in range(size)]
            await backend_of(client).renew(leases, 5.0)
            leases = [lease._replace(ttl=9.0) for lease in leases]
            sent, before = len(proxy.commands), calls(node)
            assert await backend_of(client).renew(leases, 5.0) == [Granted(lease.fence, 9.0) for lease in leases]
            after = calls(node)
            assert proxy.commands[sent:] == [b"EVALSHA"]
            assert {name: after[name] - before[name] for name in ("evalsha", "time", "hmget", "hset", "pexpire", "get")} == {
                "evalsha": 1,
                "time": 1,
                "hmget": 1,
                "hset": 1,
                "pexpire": 2 * size,
                "get": 2 * size,
            }

        run_body(body, proxy.url, colour)


def test_a_lease_twice_in_a_batch_is_extended_twice_in_order(node: Node, colour: str) -> None:
    """What the first of the two stores, the second finds: a counter never goes down."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        lease = await take(client, "n")
        top = lease.fence + 5
        answers = await backend_of(client).renew([lease._replace(fence=top), lease, lease._replace(fence=top - 1)], 1.0)
        assert [answer.fence for answer in answers if isinstance(answer, Granted)] == [top, top, top]
        assert int(node.command("GET", "interlock:{n}:fence")) == top

    run_body(body, node.url, colour)


def test_a_batch_finds_its_script_gone(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        leases = [await take(client, f"n:{n}") for n in range(10)]
        for _ in range(3):
            node.command("SCRIPT", "FLUSH")
            answers = await backend_of(client).renew(leases, 5.0)
            assert answers == [Granted(lease.fence, 60.0) for lease in leases]

    run_body(body, node.url, colour)


def test_a_batch_that_gets_no_answer_leaves_nothing_to_follow(node: Node, colour: str) -> None:
    """An extension that is late creates nothing, so nothing is remembered of it; the same connection serves again."""
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            leases = [await take(client, f"n:{n}") for n in range(10)]
            proxy.drop_replies(1, to=b"n:3")
            with pytest.raises(interlock.Unavailable):
                await backend_of(client).renew(leases, 0.1)
            assert all(node.command("PTTL", lease.name) > 50_000 for lease in leases), "only the answer was lost"
            for lease in leases:
                assert await backend_of(client).undo(lease.name, lease.token, 1.0) is False
            backend = backend_of(client)
            assert isinstance(backend, RedisBackend)
            assert not cast(Any, backend._transport)._ledger.records
            assert await backend.renew(leases, 5.0) == [Granted(lease.fence, 60.0) for lease in leases]

        run_body(body, proxy.url, colour)


def test_a_late_batch_brings_nothing_back(node: Node, colour: str) -> None:
    with FaultProxy(node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            leases = [await take(client, f"n:{n}") for n in range(3)]
            backend = backend_of(client)
            proxy.blackhole("requests")
            with pytest.raises(interlock.Unavailable):
                await backend.renew(leases, 0.05)
            for lease in leases:
                node.command("DEL", lease.name)
            node.command("SET", "n:1", "the next one", "PX", "5000")
            proxy.heal()
            proxy.wait_for(lambda p: p.commands.count(b"EVAL") == 2)  # the claims', and the batch
            free, taken = Gone(taken=False), Gone(taken=True)
            assert await backend.renew(leases, 5.0) == [free, taken, free]
            assert node.command("EXISTS", "n:0", "n:2") == 0
            assert node.command("PTTL", "n:1") <= 5000

        run_body(body, proxy.url, colour)


def test_a_full_server_still_renews(fresh_node: Callable[..., Node], colour: str) -> None:
    """It takes no new locks, but those who hold one must not lose it over that. A counter that is gone is written, too."""
    node = fresh_node(config=["maxmemory-policy noeviction"])

    async def body(kit: Kit) -> None:
        client = kit.client()
        leases = [await take(client, f"n:{n}") for n in range(3)]
        node.command("DEL", "interlock:{n:1}:fence")
        node.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(interlock.Unavailable, match="OOM"):
            await client.lock("another").acquire(timeout=0)
        assert await backend_of(client).renew(leases, 5.0) == [Granted(lease.fence, 60.0) for lease in leases]
        assert int(node.command("GET", "interlock:{n:1}:fence")) == leases[1].fence

    run_body(body, node.url, colour)


def test_not_being_allowed_to_read_is_not_the_loss_of_a_lease(fresh_node: Callable[..., Node], colour: str) -> None:
    node = fresh_node(password="s3cret", users=["blind on >blind ~* +@all -get"])
    at = f"127.0.0.1:{node.port}"
    with interlock.Client(f"redis://:s3cret@{at}") as owner:
        held = owner.lock("x", ttl=30).acquire()
        lease = Renewal("x", held.token, 60.0, held.fence)

        async def body(kit: Kit) -> None:
            with pytest.raises(interlock.Unavailable, match=r"add to its ACL: \+get"):
                await backend_of(kit.client()).renew([lease, lease], 1.0)

        run_body(body, f"redis://blind:blind@{at}", colour)
        assert node.command("PTTL", "x") <= 30_000
        held.release()


# --- ways to connect ----------------------------------------------------------------------------------------------------


def test_tcp_unix_socket_and_database(node: Node, colour: str) -> None:
    works(node.url, colour)
    works(node.unix_url, colour)
    works(node.url.replace("redis:", "valkey:"), colour)

    async def body(kit: Kit) -> None:
        async with kit.client().lock("in five"):
            assert node.command("EXISTS", "in five") == 0, "not in database 0"

    run_body(body, node.url + "/5", colour)
    assert interlock.Client(node.url + "/5").address.endswith("/5")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_tls(fresh_node: Callable[..., Node], authority: trustme.CA, tmp_path: Path, colour: str) -> None:
    cert = authority.issue_cert("localhost", "127.0.0.1")
    paths = [tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"]
    cert.cert_chain_pems[0].write_to_path(paths[0])
    cert.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    node = fresh_node(kind="redis", tls=TLS(*map(str, paths)), config=["tls-auth-clients no"])
    works(f"{node.tls_url}?ssl_ca_certs={paths[2]}", colour)

    async def stranger(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable):
            await kit.client().lock("x").acquire(timeout=1)

    run_body(stranger, node.tls_url, colour)  # the certificate is signed by nobody we know


def test_user_and_password(fresh_node: Callable[..., Node], colour: str) -> None:
    node = fresh_node(
        password="s3cret-default",
        users=["worker on >s3cret-worker ~* &* +@all", "reader on >s3cret-reader ~* +@read +@connection"],
    )
    at = f"127.0.0.1:{node.port}"
    works(f"redis://:s3cret-default@{at}", colour)
    works(f"redis://worker:s3cret-worker@{at}/2", colour)

    for login in ("worker:wrong", "nobody:s3cret-worker", "reader:s3cret-reader"):

        async def refused(kit: Kit) -> None:
            client = kit.client()
            for question in (client.lock("x").acquire(timeout=5), client.inspect("x")):
                with pytest.raises(interlock.Unavailable) as caught:
                    await question
                assert caught.value.cause == "auth"
                assert "s3cret" not in str(caught.value) + repr(client)

        run_body(refused, f"redis://{login}@{at}", colour)

    async def anonymous(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match=r"NOAUTH|unauthenticated") as caught:
            await kit.client().lock("x").acquire(timeout=5)
        assert caught.value.cause == "auth"

    run_body(anonymous, f"redis://{at}", colour)
    assert node.command("KEYS", "x*") == []


def test_a_client_object_is_accepted(node: Node, colour: str) -> None:
    """Its address and its credentials, not its policy: retries and timeouts are ours."""
    kwargs: dict[str, Any] = {"port": node.port, "db": 3, "decode_responses": True, "protocol": 3}
    if colour == "blocking":
        clients: list[Any] = [redis.Redis(**kwargs), valkey.Valkey(**kwargs), redis.Redis.from_url(node.unix_url)]
        for client in clients:
            works(client, colour)
            client.ping()  # still its owner's
            client.close()
    else:

        async def main() -> None:
            clients = [
                redis.asyncio.Redis(**kwargs),
                valkey.asyncio.Valkey(**kwargs),
                redis.asyncio.Redis.from_url(node.unix_url),
            ]
            for client in clients:
                async with interlock.AsyncClient(client) as ours, ours.lock("object"):
                    pass
                await client.ping()
                await client.aclose()

        asyncio.run(main())


def test_a_client_object_of_the_wrong_kind_is_refused() -> None:
    with redis.Redis() as blocking, pytest.raises(interlock.UsageError, match="blocking"):
        interlock.AsyncClient(blocking)
    with pytest.raises(interlock.UsageError, match="asyncio"):
        interlock.Client(redis.asyncio.Redis())

    class Cluster:
        nodes_manager = None

        def execute_command(self) -> None: ...

    with pytest.raises(interlock.Unsupported, match="cluster"):
        interlock.Client(Cluster())


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "redis://localhost:port",
        "redis://localhost/abc",
        "unix://",
        "redis://localhost:99999",
        "redis://h?db=x",
    ],
)
def test_a_wrong_url_is_refused_at_once(url: str) -> None:
    for make in (interlock.Client, interlock.AsyncClient):
        with pytest.raises(interlock.UsageError):
            make(url)


@pytest.mark.parametrize("password", ["se/cret", "se:cret", "12/34cret", "se@cret", "se#cret", "se?cret"])
def test_a_password_that_is_not_encoded_is_never_shown(password: str) -> None:
    with pytest.raises(interlock.InterlockError) as caught:
        interlock.Client(f"redis://user:{password}@127.0.0.1:1").lock("x").acquire(timeout=0)
    assert "cret" not in str(caught.value)
    assert "34" not in str(caught.value)


def test_a_database_that_is_not_there(node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.UsageError, match="DB index"):
            await kit.client().lock("x").acquire(timeout=1)

    run_body(body, node.url + "/9999", colour)


def test_nobody_listens(colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        for question in (client.lock("x").acquire(timeout=5), client.lock("x").try_acquire(), client.inspect("x")):
            with pytest.raises(interlock.Unavailable) as caught:
                await question
            assert caught.value.cause == "refused"

    with FaultProxy(1) as proxy:
        proxy.refuse()
        run_body(body, proxy.url, colour)


def test_a_host_name_that_cannot_be_one(colour: str) -> None:
    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match="Is the address right"):
            await kit.client().lock("x", timeout=0).acquire()

    run_body(body, f"redis://{'a' * 80}.example:6379", colour)


def test_somebody_else_listens(colour: str) -> None:
    """A peer that does not speak RESP."""
    import socket
    import threading

    def serve() -> None:
        for _ in range(2):  # the claim and its undo
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable):
            await kit.client().lock("x").acquire(timeout=1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        run_body(body, f"redis://127.0.0.1:{listener.getsockname()[1]}", colour)
        thread.join()


# --- servers that say no ------------------------------------------------------------------------------------------------


def test_a_replica_says_no(fresh_node: Callable[..., Node], node: Node, colour: str) -> None:
    replica = fresh_node(config=[f"replicaof 127.0.0.1 {node.port}"])

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match=r"READONLY|MASTERDOWN|LOADING"):
            await kit.client().lock("x").acquire(timeout=1)

    run_body(body, replica.url, colour)


def test_a_full_server_says_no_and_keeps_nothing(fresh_node: Callable[..., Node], colour: str) -> None:
    node = fresh_node(config=["maxmemory 1", "maxmemory-policy noeviction"])

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match="OOM"):
            await kit.client().lock("x").acquire(timeout=1)

    run_body(body, node.url, colour)
    assert node.command("KEYS", "*") == []


def test_a_killed_server_is_reported_and_a_restarted_one_used(fresh_node: Callable[..., Node], colour: str) -> None:
    node = fresh_node()

    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("x"):
            pass
        node.kill()
        with pytest.raises(interlock.Unavailable):
            await client.lock("x").acquire(timeout=1)
        node.restart()
        async with client.lock("x", timeout=1):
            pass

    run_body(body, node.url, colour)


# --- processes ----------------------------------------------------------------------------------------------------------


def test_a_forked_child_leaves_the_parents_sockets_alone(node: Node) -> None:
    with interlock.Client(node.url) as client:
        lease = client.lock("parent", ttl=30).acquire()
        pid = os.fork()
        if pid == 0:
            try:
                ok = client.lock("parent").try_acquire() is None
                with client.lock("child"):
                    pass
                os._exit(0 if ok else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        lease.extend(20)
        for _ in range(20):
            assert client.inspect("parent").fence == lease.fence
        assert lease.release()


def test_an_inbox_is_let_go_of_once_not_in_every_generation(valkey_node: Node, tmp_path: Path) -> None:
    """A child closes all descriptors, as daemons do, and opens a file of its own, which gets the number of the inbox. A child
    of that one must not lose it."""
    log = tmp_path / "log"
    with interlock.Client(valkey_node.url) as client:
        backend: Any = client._context.backend
        run(backend.open_inbox(5.0))
        (subscription,) = backend._transport._subscriptions
        number = subscription.fileno()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
                if grandchild := os.fork():
                    os.waitpid(grandchild, 0)
                os.write(number, b"child " if grandchild else b"grandchild ")
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert subscription.fileno() == number
    assert log.read_text() == "grandchild child "


def test_ctrl_c_while_waiting_leaves_nothing(node: Node) -> None:
    """An interrupt arrives while the claim is on its way, and while the waiter pauses: both leave nothing."""
    program = """
import sys, interlock
client = interlock.Client(sys.argv[1], request_timeout=5)
client.inspect("x")
print("ready", flush=True)
try:
    client.lock("ghost", ttl=60).acquire()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with FaultProxy(node.port) as proxy:
        proxy.drop_replies(1, to=b"ghost")
        child = subprocess.Popen([sys.executable, "-c", program, proxy.url], stdout=subprocess.PIPE, text=True)
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            proxy.wait_for(lambda p: p.dropped == 1)
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            assert child.wait() == 0
    assert node.command("EXISTS", "ghost") == 0


def test_an_async_client_belongs_to_one_loop(node: Node) -> None:
    client = interlock.AsyncClient(node.url)

    async def use() -> None:
        async with client.lock("loop"):
            pass

    async def use_and_close() -> None:
        await use()
        await client.close()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(use())
        with pytest.raises(interlock.UsageError, match="another event loop"):
            second.run(use())
        first.run(use_and_close())


def test_what_follows_goes_behind_what_another_task_still_waits_for(node: Node) -> None:
    """Though the connection is one that new requests do not take any more: by another one it might overtake."""

    async def body() -> None:
        backend = cast(RedisBackend, open_backend(node.url, cast(Any, AsyncioRuntime())))
        transport, token = cast(AsyncTransport, backend._transport), "t" * 32
        try:
            await backend.inspect("followed", 5.0)
            wire = transport._wire
            assert wire is not None
            node.pause()
            try:
                claimed = asyncio.create_task(backend.claim(Claim("followed", token, 60.0), 5.0))
                with pytest.raises(interlock.Unavailable):
                    await backend.inspect("followed", 0.05)
                assert transport._wire is None
                released = asyncio.create_task(backend.release("followed", token, 5.0))
                await asyncio.sleep(0.05)
                assert wire.users == 2
            finally:
                node.resume()
            assert isinstance(await claimed, Granted)
            assert await released
        finally:
            await backend.close()

    asyncio.run(body())


def test_a_patient_task_is_not_hung_up_on_by_a_later_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stands still for longer than answers are usually expected; whoever waits longer gets theirs."""
    monkeypatch.setattr(unanswered, "OVERDUE", 0.2)

    async def body() -> None:
        async with interlock.AsyncClient(node.url, renew=False, request_timeout=10) as client:
            async with client.lock("warm"):
                pass
            node.pause()
            try:
                first = asyncio.ensure_future(client.lock("first").acquire())
                await asyncio.sleep(0.5)
                second = asyncio.ensure_future(client.lock("second").acquire())
                await asyncio.sleep(0.3)
                assert not first.done(), "its connection was closed"
            finally:
                node.resume()
            for lease in await asyncio.gather(first, second):
                assert await lease.release()

    asyncio.run(body())
    assert node.command("EXISTS", "first", "second") == 0


def test_what_follows_goes_down_a_connection_that_is_given_up_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that follows who finds out that answers are overdue. Seeds 5274 and 8498 of the simulator, `delay`."""
    monkeypatch.setattr(unanswered, "OVERDUE", 0.2)

    async def body() -> None:
        backend = cast(RedisBackend, open_backend(node.url, AsyncioRuntime()))
        transport = cast(AsyncTransport, backend._transport)
        token = "t" * 32
        try:
            await backend.inspect("followed", 5.0)
            wire = transport._wire
            assert wire is not None
            node.pause()
            try:
                claimed = asyncio.create_task(backend.claim(Claim("followed", token, 60.0), 5.0))
                await asyncio.sleep(0.3)
                released = asyncio.create_task(backend.release("followed", token, 5.0))
                await asyncio.sleep(0.05)
                assert wire.users == 2
                assert transport._wire is None, "others take a new one"
            finally:
                node.resume()
            assert isinstance(await claimed, Granted)
            assert await released
        finally:
            await backend.close()

    asyncio.run(body())


def test_what_is_packed_once_for_all_nodes_is_what_is_packed_for_each() -> None:
    claim, mark = Claim("a:b", "t" * 32 + "~host:1", 10.0), b"2a"
    ballot = packing.ballot_of(NODES)
    roll, nodes = ballot
    vote = CLAIM((*packing.lock_keys("a:b"), *roll), *packing.claiming(claim, 77), *nodes, mark)
    assert packing.claim_request(claim, None, 77, ballot, False, mark) == vote
    leave = RELEASE((*packing.line_keys("a:b"), *roll), *packing.leaving(claim.token, b"", 78), *nodes, mark)
    assert packing.release_request("a:b", claim.token, b"", 78, ballot, mark) == leave


def test_an_answer_to_an_earlier_request_does_not_settle_a_later_one(node: Node, colour: str) -> None:
    """Two requests of one token at once, as when a lease is extended while a renewal heals it. The first has its answer, the
    second has not: what follows must go behind that one, down the same connection. Seed 527509 of the simulator."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("warm"):
            pass
        backend = cast(RedisBackend, backend_of(client))
        backend.elect(NODES, lambda token: False)
        lease = await take(client, "x")
        transport = cast(Any, backend._transport)
        records = transport._ledger.records
        node.pause()
        try:
            answers: list[Any] = []

            async def patient() -> None:
                answers.append(await backend.extend("x", lease.token, 20.0, 10.0))

            job = start(kit, patient())
            await kit.sleep(0.1)
            with pytest.raises(interlock.Unavailable):
                await backend.vote(Claim("x", lease.token, 20.0), 0, 0.1)
            assert lease.token in records
        finally:
            node.resume()
        await finish(job)
        assert isinstance(answers[0], Granted)
        assert lease.token in records
        assert await backend.release("x", lease.token, 5.0)
        assert lease.token not in records

    run_body(body, node.url, colour)
    assert node.command("EXISTS", "x") == 0


def test_nothing_is_claimed_down_another_connection_while_a_claim_on_a_closed_one_may_arrive(node: Node, colour: str) -> None:
    """A vote had no answer, and its connection broke. Were the token to vote once more, by another one, the first, or its undo,
    might come after that and take back what it counts on. (What takes back may go there: it is for that.)"""

    async def body(kit: Kit) -> None:
        backend = cast(RedisBackend, backend_of(kit.client()))
        await backend.inspect("x", 5.0)
        with FaultProxy(node.port) as proxy:
            backend = cast(RedisBackend, backend_of(kit.client(store=proxy.url)))
            backend.elect(NODES, lambda token: False)
            await backend.enroll(Marker(NODES), (await backend.roll(5.0, True)).loss, 5.0)
            proxy.drop_replies(1)
            with pytest.raises(interlock.Unavailable) as caught:
                await backend.vote(Claim("x", "mine", 30.0), 0, 0.2)
            assert caught.value.cause == "timeout"
            proxy.cut()
            proxy.wait_for(lambda proxy: proxy.live == 0)
            await kit.sleep(0.05)
            before = len(proxy.commands)
            with pytest.raises(interlock.Unavailable) as caught:
                await backend.vote(Claim("x", "mine", 30.0), 0, 5.0)
            assert caught.value.cause == "closed"
            assert len(proxy.commands) == before, "it was sent all the same"
            assert isinstance(await backend.extend("x", "mine", 30.0, 5.0), Granted)  # by another connection
            with pytest.raises(interlock.Unavailable, match="broke"):
                await backend.vote(Claim("x", "mine", 30.0), 0, 5.0)
            proxy.drop_replies(1)
            with pytest.raises(interlock.Unavailable, match="in time"):
                await backend.extend("x", "mine", 30.0, 0.2)
            with pytest.raises(interlock.Unavailable, match="broke"):
                await backend.vote(Claim("x", "mine", 30.0), 0, 5.0)
            assert isinstance(await backend.vote(Claim("y", "another", 30.0), 0, 5.0), Granted)
            assert node.command("GET", "x") == b"mine"
            assert await backend.undo("x", "mine", 5.0)
            assert node.command("GET", "x") is None
            assert isinstance(await backend.vote(Claim("x", "mine", 30.0), 0, 5.0), Granted), "nothing is owed any more"
            assert await backend.release("x", "mine", 5.0)
            assert await backend.release("y", "another", 5.0)

    node.flush()
    run_body(body, node.url, colour)


def test_nothing_is_claimed_while_the_undo_of_what_was_given_up_may_arrive(
    node: Node, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vote is so long overdue that its connection is closed, with an undo as the last thing sent. It counts from there."""
    monkeypatch.setattr(unanswered, "OVERDUE", 1.0)

    async def body(kit: Kit) -> None:
        with FaultProxy(node.port) as proxy:
            backend = cast(RedisBackend, backend_of(kit.client(store=proxy.url)))
            backend.elect(NODES, lambda token: False)
            await backend.enroll(Marker(NODES), (await backend.roll(5.0, True)).loss, 5.0)
            transport: Any = backend._transport
            proxy.blackhole()
            with pytest.raises(interlock.Unavailable, match="in time"):
                await backend.vote(Claim("x", "mine", 30.0), 0, 0.2)
            await kit.sleep(1.2)
            if colour == "asyncio":
                transport._prune()
            else:
                transport._reap()
            proxy.heal()
            with pytest.raises(interlock.Unavailable, match="broke"):
                await backend.vote(Claim("x", "mine", 30.0), 0, 5.0)
            await kit.sleep(1.1)
            assert isinstance(await backend.vote(Claim("x", "mine", 30.0), 0, 5.0), Granted), "for no longer than it need be"
            assert await backend.release("x", "mine", 5.0)

    node.flush()
    run_body(body, node.url, colour)


@pytest.mark.parametrize("how", ["the peer closes it", "a write fails"])
def test_what_must_be_undone_is_not_sent_down_a_connection_that_is_closing(node: Node, how: str) -> None:
    """It is closed, and nobody has been told so yet: that comes a turn of the loop later. An undo that went there was lost, and
    the lock stayed for its whole ttl."""

    async def body() -> None:
        backend: Any = open_backend(node.url, AsyncioRuntime())
        await backend.inspect("x", 1.0)
        node.command("DEL", "x")
        node.pause()
        claim = asyncio.create_task(backend.claim(Claim("x", "mine", 30.0), 5.0))
        await asyncio.sleep(0.05)
        claim.cancel()
        await asyncio.wait([claim])
        node.resume()
        while not node.command("EXISTS", "x"):
            await asyncio.sleep(0.01)
        wire = backend._transport._wire
        if how == "the peer closes it":
            wire.eof_received()
        wire._transport.close()
        assert await backend.undo("x", "mine", 1.0)
        assert not node.command("EXISTS", "x")
        await backend.close()

    asyncio.run(body())


def test_a_connection_that_is_ready_when_nobody_takes_it_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it is cancelled in the turn of the loop in which it is ready."""
    closed: list[str] = []

    class Ready:
        def _close(self) -> None:
            closed.append("closed")

    async def body() -> None:
        transport = AsyncTransport(cast(Any, None))
        made = asyncio.get_running_loop().create_future()

        async def make(until: float) -> Any:
            await made
            return Ready()

        monkeypatch.setattr(transport, "_make", make)
        task = asyncio.ensure_future(transport._connect(0.0))
        await asyncio.sleep(0.01)
        made.set_result(None)
        await asyncio.sleep(0)  # the one that makes it ends in this turn
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert closed == ["closed"]
