"""Ways to a node: a request and the connection it needs end at one moment, whatever takes time; each address has its chance."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import trustme
import valkey
import valkey.asyncio

import interlock
from interlock.backends.redis import aio_dial, connecting
from interlock.backends.redis.dial import Attempts, dial
from interlock.runtime.base import now
from interlock.testing import FaultProxy, Node
from interlock.testing.conformance import take
from interlock.testing.faces import COLOURS, Kit, run_body
from interlock.testing.lines import join, line_of
from interlock.testing.nodes import TLS

HOST = "locks.example"  # known to the resolvers below only


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def guarded(fresh_node: Callable[..., Node]) -> Node:
    """A node that wants to know who we are."""
    return fresh_node(config=["requirepass secret"], password="secret")


# --- one moment for all steps ---------------------------------------------------------------------------------------------


def test_a_handshake_of_many_steps_is_one_round_trip(guarded: Node, colour: str) -> None:
    """Each step would take its time: on a slow line three of them are three times as slow."""
    with FaultProxy(guarded.port) as proxy:

        async def body(kit: Kit) -> None:
            await kit.client(request_timeout=5).inspect("x")

        proxy.delay(0.4)
        begin = now()
        run_body(body, f"redis://:secret@127.0.0.1:{proxy.port}/3?client_name=me", colour)
        assert now() - begin < 1.6, "one for the handshake and one for the question"


@contextmanager
def slow_handshake(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """The node's URL, and what makes it slow: whoever connects from then on gets each answer late."""
    with FaultProxy(node.port) as proxy:

        def slow() -> None:
            proxy.delay(1.7)
            proxy.cut(reset=True)

        yield f"redis://:secret@127.0.0.1:{proxy.port}/3?client_name=me", slow


@contextmanager
def slow_name(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """As above: its name cannot be looked up any more, and nobody says so."""
    asleep, awake = threading.Event(), threading.Event()
    ask = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        if host != HOST:
            return ask(host, *args, **options)
        if options.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if asleep.is_set():
            awake.wait(8)
        return ask("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with FaultProxy(node.port) as proxy:

        def slow() -> None:
            asleep.set()
            proxy.cut(reset=True)

        try:
            yield f"redis://:secret@{HOST}:{proxy.port}/3", slow
        finally:
            awake.set()


WAYS = {"handshake": slow_handshake, "name": slow_name}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_with_its_handshake_takes_no_longer_than_it_may(
    way: str, guarded: Node, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WAYS[way](guarded, monkeypatch) as (url, slow):

        async def body(kit: Kit) -> None:
            client = kit.client(request_timeout=2.0)
            await client.inspect("x")
            slow()
            for _ in range(2):
                begin = now()
                with pytest.raises(interlock.Unavailable) as caught:
                    while True:  # the first may still go down the old connection
                        await client.inspect("x")
                assert now() - begin < 3.5, "three steps of 1.7 s, or the patience of a resolver"
                if caught.value.cause == "timeout":
                    return
            assert caught.value.cause == "timeout"

        run_body(body, url, colour)


@pytest.mark.parametrize("way", WAYS)
def test_a_holder_is_told_in_time_though_its_keeper_connects(
    way: str, guarded: Node, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    with WAYS[way](guarded, monkeypatch) as (url, slow):

        async def body(kit: Kit) -> None:
            client = kit.client(request_timeout=5.0)
            lease = await client.lock("x", ttl=6.0, renew=True, on_lost=lambda _: told.append(now())).acquire()
            slow()
            assert await lease.wait_lost(20)
            until = now() + 10
            while not told and now() < until:
                await kit.sleep(0.01)
            assert told[0] - lease._hold.deadline < 0.8, "on time, but for a busy machine"  # type: ignore[attr-defined]

        run_body(body, url, colour)


def test_an_undo_of_several_requests_has_one_moment_too(valkey_node: Node, colour: str) -> None:
    """The node has forgotten its scripts: what makes a waiter leave is refused, and sent again with the text."""
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client()
            async with client.lock("warm", timeout=0):
                pass
            await take(client, "x", 60.0)
            waiting = await join(client, "x", 1000)
            valkey_node.command("SCRIPT", "FLUSH")
            proxy.delay(1.5)
            begin = now()
            with pytest.raises(interlock.Unavailable):
                await line_of(client).undo("x", waiting.token, 2.0)
            assert now() - begin < 2.8

        run_body(body, proxy.url, colour)


def test_names_that_cannot_be_looked_up_do_not_pile_up_threads(guarded: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "GRACE", 0.0)
    with slow_name(guarded, monkeypatch) as (url, slow), interlock.Client(url, request_timeout=0.005) as client:
        slow()
        for _ in range(3 * connecting.CROWD):
            with pytest.raises(interlock.Unavailable) as caught:
                client.inspect("x")
            assert caught.value.cause == "timeout"
        under_way = [thread for thread in threading.enumerate() if thread.name == "interlock-connecting"]
        assert connecting.CROWD < len(under_way) <= connecting.CROWD + 1


def test_a_connection_that_was_opened_is_not_looked_at_again(valkey_node: Node) -> None:
    """A quorum asks for the lag of each node at every question."""
    with interlock.Client(valkey_node.url) as client:
        client.inspect("x")
        transport: Any = client._context.backend._transport  # type: ignore[attr-defined]
        (one,) = transport._connector.under_way
        one.thread.join()
        assert transport.lag() == 0.0
        assert transport._connector.under_way == []
        reaped, transport._reap = [], lambda: reaped.append(1)
        assert transport.lag() == 0.0
        assert not reaped


def test_no_descriptor_left_for_connecting_is_unavailable(valkey_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def bell() -> None:
        raise error

    monkeypatch.setattr(connecting, "ThreadBell", bell)
    with interlock.Client(valkey_node.url) as client:
        error: OSError = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with pytest.raises(interlock.Unavailable, match="Too many open files"):
            client.inspect("x")
        error = TimeoutError("a signal's handler")
        with pytest.raises(TimeoutError, match="handler"):
            client.inspect("x")


def test_a_name_that_cannot_be_looked_up_takes_no_thread_of_the_loops(guarded: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the program's, and few; and a loop that ends waits for them."""
    with slow_name(guarded, monkeypatch) as (url, slow):

        async def main() -> None:
            client = interlock.AsyncClient(url, request_timeout=0.005)
            slow()
            for _ in range(20):
                with pytest.raises(interlock.Unavailable) as caught:
                    await client.inspect("x")
                assert caught.value.cause == "timeout"
            await client.close()
            assert [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio_")] == []
            assert [thread.name for thread in threading.enumerate()].count("interlock-look-up") == aio_dial.LOOK_UPS

        asyncio.run(main())
        threads = [thread for thread in threading.enumerate() if thread.name == "interlock-look-up"]
        assert all(thread.daemon for thread in threads)
    for thread in threads:
        thread.join()
    assert aio_dial._looking == {}, "nor does what ended with a loop stay on record"


def test_a_name_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = socket.getaddrinfo, []

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        if host != HOST:
            return ask(host, *args, **options)
        asked.append(options)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def main() -> None:
        async with interlock.AsyncClient(f"redis://{HOST}:1") as client:
            for _ in range(2):
                with pytest.raises(interlock.Unavailable, match="no such name"):
                    await client.inspect("x")

    asyncio.run(main())
    assert len(asked) == 4, "each time, the address first"
    assert aio_dial._looking == {}


def test_many_threads_may_connect_at_once(valkey_node: Node) -> None:
    with FaultProxy(valkey_node.port) as proxy, interlock.Client(f"{proxy.url}/1", request_timeout=20) as client:
        proxy.delay(0.5)  # so that each takes its time to connect
        together, wrong = threading.Barrier(3 * connecting.CROWD), []

        def work(number: int) -> None:
            together.wait()
            try:
                with client.lock(f"x{number}", timeout=0):
                    pass
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3 * connecting.CROWD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_user_of_an_old_server_is_greeted_by_the_password_alone(colour: str) -> None:
    """Before version 6 AUTH takes one argument."""
    heard: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                while data := peer.recv(65_536):
                    heard.append(data)
                    if b"worker" in data:
                        peer.sendall(
                            b"-ERR wrong number of arguments for 'auth' command\r\n-NOAUTH Authentication required.\r\n"
                        )
                    elif b"AUTH" in data:
                        peer.sendall(b"+OK\r\n+OK\r\n")
                    else:
                        peer.sendall(b"-ERR no scripts here\r\n")

    async def body(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match="no scripts here"):
            await kit.client().inspect("x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        run_body(body, f"redis://worker:secret@127.0.0.1:{listener.getsockname()[1]}/3", colour)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert heard[0].count(b"AUTH") == heard[0].count(b"SELECT") == 1
    assert heard[1].count(b"AUTH") == heard[1].count(b"SELECT") == 1


CLIENTS = {
    "blocking": (redis.Redis, valkey.Valkey),
    "asyncio": (redis.asyncio.Redis, valkey.asyncio.Valkey),
}


@pytest.mark.parametrize("library", [0, 1], ids=["redis-py", "valkey-py"])
def test_both_libraries_say_hello_in_our_way(library: int, guarded: Node, colour: str) -> None:
    """With credentials from a provider, over TCP and a unix socket. One write: the node sees the commands come together."""
    package = (redis, valkey)[library]

    class Provider(package.CredentialProvider):  # type: ignore[name-defined,misc]
        def get_credentials(self) -> tuple[str, ...]:
            return "default", "secret"

        async def get_credentials_async(self) -> tuple[str, ...]:
            return self.get_credentials()

    make = CLIENTS[colour][library]
    path = guarded.unix_url.partition("@")[2] or guarded.unix_url.removeprefix("unix://")
    where: list[dict[str, Any]] = [{"port": guarded.port}, {"unix_socket_path": "/" + path.lstrip("/")}]
    for options in where:

        async def body(kit: Kit, options: dict[str, Any] = options) -> None:
            client = kit.client(store=make(credential_provider=Provider(), db=2, client_name="borrowed", **options))
            async with client.lock("x", timeout=0):
                assert "name=borrowed" in guarded.command("CLIENT", "LIST").decode()
                assert "db=2" in guarded.command("CLIENT", "LIST").decode()

        run_body(body, guarded.url, colour)
    bad = make(port=guarded.port, password="wrong", db=2)

    async def refused(kit: Kit) -> None:
        with pytest.raises(interlock.Unavailable, match="refuses the credentials") as caught:
            await kit.client(store=bad).inspect("x")
        assert caught.value.cause == "auth"

    run_body(refused, guarded.url, colour)


@pytest.mark.parametrize("raised", [KeyError("a secret"), OSError("a secret"), redis.RedisError("a secret")], ids=type)
def test_a_provider_that_fails_is_a_store_that_cannot_be_had(raised: Exception, guarded: Node, colour: str) -> None:
    """What it raises is nobody's business but as a cause: whoever releases or renews counts on errors of ours."""

    class Provider(redis.CredentialProvider):
        bad = False

        def get_credentials(self) -> tuple[str, ...]:
            if self.bad:
                raise raised
            return "default", "secret"

        async def get_credentials_async(self) -> tuple[str, ...]:
            return self.get_credentials()

    provider = Provider()

    async def body(kit: Kit) -> None:
        client = kit.client(store=CLIENTS[colour][0](port=guarded.port, credential_provider=provider))
        lease = await client.lock("x", ttl=5).try_acquire()
        provider.bad = True
        guarded.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(interlock.Unavailable):
            await lease.release()
        with pytest.raises(interlock.Unavailable, match=f"the credential provider raised {type(raised).__name__}") as caught:
            await client.inspect("y")
        assert "a secret" not in str(caught.value)

    run_body(body, guarded.url, colour)


# --- several addresses ----------------------------------------------------------------------------------------------------


@contextmanager
def swallowing() -> Iterator[tuple[str, int]]:
    """An address whose packets nobody answers: its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.2", 0))
        listener.listen(0)
        where = listener.getsockname()
        for _ in range(8):
            crowd = stack.enter_context(socket.socket())
            crowd.settimeout(0.2)
            try:
                crowd.connect(where)
            except TimeoutError:
                yield where
                return
    raise AssertionError("its queue has no end")


@pytest.fixture
def refusing() -> tuple[str, int]:
    with socket.create_server(("127.0.0.3", 0)) as listener:
        return listener.getsockname()[:2]  # type: ignore[no-any-return]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What HOST's addresses are."""
    addresses: list[tuple[str, int]] = []
    ask = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != HOST:
            return ask(host, port, *args, **options)
        if options.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where) for where in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return addresses


@pytest.mark.parametrize("patience", [5.0, 1.0])
@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_an_address_that_swallows_packets_does_not_keep_the_others_from_their_turn(
    patience: float,
    secure: bool,
    valkey_node: Node,
    fresh_node: Callable[..., Node],
    resolver: list[tuple[str, int]],
    refusing: tuple[str, int],
    tmp_path: Path,
    colour: str,
) -> None:
    node, url = valkey_node, f"redis://{HOST}:1"
    port = node.port
    if secure:
        authority = trustme.CA()
        paths = [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
        certificate = authority.issue_cert(HOST)  # it is the host's name that the certificate is for
        certificate.cert_chain_pems[0].write_to_path(paths[0])
        certificate.private_key_pem.write_to_path(paths[1])
        authority.cert_pem.write_to_path(paths[2])
        node = fresh_node(kind="redis", tls=TLS(*map(str, paths)), config=["tls-auth-clients no"])
        port, url = int(node.tls_url.rpartition(":")[2]), f"rediss://{HOST}:1?ssl_ca_certs={paths[2]}"

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=patience if not secure else 5.0)
        async with client.lock("x", timeout=0):
            pass

    with swallowing() as silent:
        resolver[:] = [silent, ("127.0.0.1", port)]
        run_body(body, url, colour)
        resolver[:] = [refusing, silent, refusing, ("127.0.0.1", port)]
        run_body(body, url, colour)


def test_when_no_address_answers_the_error_says_which_kind_of_silence(
    resolver: list[tuple[str, int]], refusing: tuple[str, int], colour: str
) -> None:
    def cause() -> str:
        caught: list[interlock.Unavailable] = []

        async def body(kit: Kit) -> None:
            begin = now()
            with pytest.raises(interlock.Unavailable) as error:
                await kit.client(request_timeout=0.5).inspect("x")
            assert now() - begin < 5
            caught.append(error.value)

        run_body(body, f"redis://{HOST}:1", colour)
        return caught[0].cause

    with swallowing() as silent:
        resolver[:] = [silent, refusing]
        assert cause() == "timeout"
    resolver[:] = [refusing, refusing]
    assert cause() == "refused"
    resolver[:] = []
    assert cause() == "closed"


def test_addresses_of_both_families_take_turns_and_what_loses_is_closed(valkey_node: Node) -> None:
    six = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", n, 0, 0)) for n in (1, 2, 3)]
    four = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", n)) for n in (4, 5)]
    attempts = Attempts([*six, *four], now() + 1)
    assert [one[4][1] for one in attempts._ahead] == [1, 4, 2, 5, 3]
    with swallowing() as silent:
        info = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        attempts = Attempts([(*info, silent), (*info, silent)], now() + 60)
        assert attempts.turn([]) is None
        attempts._next_at = 0.0
        assert attempts.turn([]) is None
        some = list(attempts.under_way.values())
        assert len(some) == 2
        attempts.close()
        assert all(sock.fileno() == -1 for sock in some)
        with dial([(*info, silent), (*info, ("127.0.0.1", valkey_node.port))], now() + 5) as sock:
            assert sock.getpeername()[1] == valkey_node.port
        with pytest.raises(OSError, match="refused") as caught:
            dial([(*info, ("127.0.0.3", 1))], now() + 5)
        assert caught.value.errno == errno.ECONNREFUSED
        with pytest.raises(TimeoutError):
            dial([(*info, silent)], now() + 0.1)


# --- descriptors that somebody else closes --------------------------------------------------------------------------------


def test_a_connection_whose_number_means_another_file_by_now_is_forgotten_not_closed(valkey_node: Node, tmp_path: Path) -> None:
    """A program closes all descriptors without a fork. That breaks our connections, and must not break its files."""
    with interlock.Client(valkey_node.url) as client:
        client.inspect("x")
        transport: Any = client._context.backend._transport  # type: ignore[attr-defined]
        (wire,) = transport._idle
        number = wire.fileno()
        with open(tmp_path / "file", "w+b") as file:
            os.dup2(file.fileno(), number)  # closes ours
            client.inspect("x")  # it is readable, so it is given up
            assert wire.dead
            assert wire not in transport._idle
            assert os.write(number, b"mine") == 4, "it is open"
            os.close(number)
    assert (tmp_path / "file").read_bytes() == b"mine"
