"""The fault proxy against a real server, and its RESP splitter against arbitrary streams."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.errors import UsageError
from interlock.testing import FaultProxy, Node
from interlock.testing.nodes import _pack, _read_reply
from interlock.testing.proxy import Splitter


class Wire:
    """A client of raw bytes: what it sends and what it gets are exactly what the test says."""

    def __init__(self, proxy: FaultProxy, timeout: float = 5.0) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), timeout)
        self.stream = self.socket.makefile("rb")

    def send(self, *commands: str) -> None:
        self.socket.sendall(b"".join(_pack(command.split()) for command in commands))

    def get(self) -> Any:
        return _read_reply(self.stream)

    def ask(self, command: str) -> Any:
        self.send(command)
        return self.get()

    def silent(self, seconds: float = 0.05) -> bool:
        """Nothing has come. Used after the proxy has confirmed the fault, so it can only fail for a reason."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b"never"
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5.0)
            self.stream = self.socket.makefile("rb")

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


@pytest.fixture
def proxy(node: Node) -> Iterator[FaultProxy]:
    node.flush()
    with FaultProxy(node.port) as proxy:
        yield proxy


@pytest.fixture
def dial(proxy: FaultProxy) -> Iterator[Any]:
    with ExitStack() as stack:

        def dial() -> Wire:
            wire = Wire(proxy)
            stack.callback(wire.close)
            return wire

        yield dial


@pytest.fixture
def wire(dial: Any) -> Wire:
    return dial()


# The splitter


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def line(kind: str) -> st.SearchStrategy[bytes]:
    return st.text(st.characters(codec="latin-1", exclude_characters="\r\n")).map(lambda t: f"{kind}{t}\r\n".encode("latin-1"))


def many(kind: bytes, values: list[bytes], per: int = 1) -> bytes:
    return b"%b%d\r\n" % (kind, len(values) // per) + b"".join(values)


def pairs(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.tuples(inner, inner), max_size=3).map(lambda rows: [value for row in rows for value in row])


SCALARS = st.one_of(
    line("+"),
    line("-"),
    st.integers().map(lambda n: b":%d\r\n" % n),
    st.binary().map(bulk),
    st.binary().map(lambda b: b"!" + bulk(b)[1:]),
    st.binary().map(lambda b: b"=" + bulk(b"txt:" + b)[1:]),
    st.sampled_from(
        [b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"#t\r\n", b",3.5\r\n", b",inf\r\n", b"(123456789\r\n", b"*0\r\n", b"%0\r\n"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([b"*", b"~", b">"]), st.lists(inner, max_size=4)).map(lambda t: many(*t)),
        pairs(inner).map(lambda values: many(b"%", values, 2)),
        st.tuples(pairs(inner), inner).map(lambda t: many(b"|", t[0], 2) + t[1]),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=6), st.data())
def test_the_splitter_finds_each_message_wherever_the_stream_is_cut(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    splitter = Splitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == messages


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_the_splitter_gives_a_message_with_its_last_byte_and_not_before(messages: list[bytes]) -> None:
    splitter = Splitter()
    for message in messages:
        *early, last = [splitter.feed(bytes([byte])) for byte in message]
        assert not any(early)
        assert last == [message]


@pytest.mark.parametrize("stream", [b"PING\r\n", b"\x16\x03\x01", b"$3\r\nabcde", b"*x\r\n", b"\r\n"])
def test_the_splitter_refuses_what_is_no_resp(stream: bytes) -> None:
    with pytest.raises(ValueError):
        Splitter().feed(stream)


# Passing


def test_it_passes_everything_and_counts(proxy: FaultProxy, wire: Wire) -> None:
    assert wire.ask("SET a 1") == b"OK"
    wire.send("GET a", "INCR a", "get a", "LPUSH list x y", "LRANGE list 0 -1")
    assert [wire.get() for _ in range(5)] == [b"1", 2, b"2", 2, [b"y", b"x"]]
    assert (proxy.connections, proxy.requests, proxy.replies, proxy.pushes, proxy.dropped) == (1, 6, 6, 0, 0)
    assert proxy.commands == [b"SET", b"GET", b"INCR", b"GET", b"LPUSH", b"LRANGE"]


def test_a_large_message_in_many_pieces_passes_whole(proxy: FaultProxy, wire: Wire) -> None:
    value = "x" * 3_000_000
    assert wire.ask(f"SET big {value}") == b"OK"
    assert wire.ask("GET big") == value.encode()
    assert (proxy.requests, proxy.replies) == (2, 2)


def test_a_client_library_works_through_it(proxy: FaultProxy) -> None:
    with redis.Redis.from_url(proxy.url, protocol=3, retry=None) as client:
        client.set("a", 1)
        assert client.get("a") == b"1"
    assert proxy.commands.count(b"SET") == 1
    proxy.wait_for(lambda p: p.live == 0)


def test_an_asyncio_client_works_through_it(proxy: FaultProxy) -> None:
    async def main() -> None:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        proxy.drop_replies(1)
        writer.write(_pack(["SET", "a", "1"]))
        await asyncio.to_thread(proxy.wait_for, lambda p: p.dropped == 1)
        writer.write(_pack(["GET", "a"]))
        assert await reader.readexactly(7) == b"$1\r\n1\r\n"
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


# Delay


def test_delayed_replies_come_in_order_and_not_before_their_time(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    proxy.delay(0.1)
    start = time.monotonic()
    wire.send("SET a 1", "GET a", "GET nothing")
    proxy.wait_for(lambda p: p.replies == 3)
    assert node.command("GET", "a") == b"1"  # the server was not delayed
    assert [wire.get() for _ in range(3)] == [b"OK", b"1", None]
    assert time.monotonic() - start >= 0.1


def test_held_replies_come_when_it_heals(proxy: FaultProxy, wire: Wire) -> None:
    proxy.delay(math.inf)
    wire.send("SET a 1", "GET a")
    proxy.wait_for(lambda p: p.held == 2)
    assert wire.silent()
    proxy.heal()
    assert [wire.get(), wire.get(), wire.ask("PING")] == [b"OK", b"1", b"PONG"]
    assert proxy.held == 0


def test_a_held_request_arrives_after_its_sender_has_gone(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    proxy.delay(math.inf, "requests")
    wire.send("SET ghost 1")
    proxy.wait_for(lambda p: p.held == 1)
    wire.close()
    assert node.command("EXISTS", "ghost") == 0
    proxy.heal()
    proxy.wait_for(lambda p: p.live == 0 and p.replies == 1)
    assert node.command("GET", "ghost") == b"1"


def test_later_messages_do_not_overtake_held_ones(proxy: FaultProxy, wire: Wire) -> None:
    proxy.delay(math.inf)
    wire.send("INCR a")
    proxy.wait_for(lambda p: p.held == 1)
    proxy.delay(0)
    wire.send("INCR a")
    proxy.wait_for(lambda p: p.held == 2)
    proxy.heal()
    assert [wire.get(), wire.get()] == [1, 2]


# Dropping


def test_the_next_replies_vanish_and_the_server_has_done_the_work(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    proxy.drop_replies(2)
    wire.send("SET a 1", "SET b 2", "GET a")
    assert wire.get() == b"1"  # a client that waited for the reply to SET would take this for it
    assert node.command("GET", "b") == b"2"
    assert (proxy.dropped, proxy.replies) == (2, 3)


def test_all_replies_and_pushes_vanish_until_it_heals(proxy: FaultProxy, dial: Any, node: Node) -> None:
    caller, listener = dial(), dial()
    assert listener.ask("SUBSCRIBE news") == [b"subscribe", b"news", 1]
    proxy.drop_replies()
    caller.send("PING", "PING")
    assert node.command("PUBLISH", "news", "lost") == 1
    proxy.wait_for(lambda p: p.dropped == 3 and p.pushes == 1)
    assert caller.silent()
    assert listener.silent()
    proxy.heal()
    assert caller.ask("ECHO x") == b"x"
    assert node.command("PUBLISH", "news", "found") == 1
    assert listener.get() == [b"message", b"news", b"found"]


def test_only_the_reply_to_the_named_request_vanishes(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    sha = node.command("SCRIPT", "LOAD", "return 7").decode()
    proxy.drop_reply_to(sha.encode())
    wire.send("SET a 1", f"EVALSHA {sha} 0", "GET a", f"EVALSHA {sha} 0")
    assert [wire.get(), wire.get(), wire.get()] == [b"OK", b"1", 7]
    assert (proxy.dropped, proxy.commands.count(b"EVALSHA")) == (1, 2)


def test_a_reply_is_paired_with_its_own_connection(proxy: FaultProxy, dial: Any) -> None:
    one, two = dial(), dial()
    proxy.drop_reply_to(b"INCR")
    one.send("BLPOP never 0")
    two.send("PING", "INCR a", "GET a")
    assert [two.get(), two.get()] == [b"PONG", b"1"]
    proxy.drop_reply_to(b"BLPOP")
    assert two.ask("LPUSH never x") == 1
    proxy.wait_for(lambda p: p.dropped == 2)
    assert one.ask("PING") == b"PONG"


def test_dropped_requests_never_reach_the_server(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    proxy.drop_requests(1, containing=b"secret")
    wire.send("SET a 1", "SET secret 1", "SET b 1")
    assert [wire.get(), wire.get()] == [b"OK", b"OK"]
    assert sorted(node.command("KEYS", "*")) == [b"a", b"b"]
    proxy.drop_requests()
    wire.send("SET c 1")
    proxy.wait_for(lambda p: p.dropped == 2)
    proxy.heal()
    assert wire.ask("EXISTS c") == 0


# Cutting


@pytest.mark.parametrize("reset", [False, True])
def test_the_connection_ends_instead_of_the_reply(proxy: FaultProxy, wire: Wire, node: Node, reset: bool) -> None:
    proxy.cut_on_reply(reset=reset)
    wire.send("SET a 1", "GET a")
    with pytest.raises(ConnectionResetError if reset else ConnectionError, match="reset" if reset else "closed"):
        wire.get()
    assert node.command("GET", "a") == b"1"
    proxy.wait_for(lambda p: p.live == 0 and p.cuts == 1)


def test_the_cut_hits_only_the_named_request_and_once(proxy: FaultProxy, dial: Any, node: Node) -> None:
    proxy.cut_reply_to(b"INCR")
    wire = dial()
    wire.send("SET a 1", "INCR a")
    assert wire.get() == b"OK"
    with pytest.raises(ConnectionError):
        wire.get()
    assert dial().ask("INCR a") == 3
    assert proxy.connections == 2


def test_the_connection_ends_before_the_server_sees_the_request(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    proxy.cut_on_request(containing=b"SET")
    wire.send("PING", "SET a 1")
    with pytest.raises(ConnectionError):
        [wire.get() for _ in range(2)]
    proxy.wait_for(lambda p: p.live == 0)
    assert node.command("EXISTS", "a") == 0


@pytest.mark.parametrize("reset", [False, True])
def test_cut_ends_all_connections_at_once_and_new_ones_are_welcome(proxy: FaultProxy, dial: Any, reset: bool) -> None:
    wires = [dial() for _ in range(3)]
    proxy.cut(reset=reset)
    assert (proxy.cuts, proxy.live) == (3, 0)
    for wire in wires:
        with pytest.raises(ConnectionError):
            wire.get()
    assert dial().ask("PING") == b"PONG"


def test_refused_connections_are_refused_and_old_ones_go_on(proxy: FaultProxy, wire: Wire, dial: Any) -> None:
    assert wire.ask("PING") == b"PONG"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    assert wire.ask("PING") == b"PONG"
    proxy.refuse()
    proxy.heal()
    assert dial().ask("PING") == b"PONG"


# Blackhole


def test_in_a_blackhole_connecting_works_and_nothing_else(proxy: FaultProxy, wire: Wire, dial: Any, node: Node) -> None:
    assert wire.ask("PING") == b"PONG"
    proxy.blackhole()
    late = dial()
    wire.send("SET a 1")
    late.send("SET b 1")
    assert wire.silent()
    assert late.silent()
    assert node.command("DBSIZE") == 0
    proxy.heal()
    assert [wire.get(), late.get()] == [b"OK", b"OK"]
    assert node.command("DBSIZE") == 2


def test_a_one_way_blackhole_lets_requests_through(proxy: FaultProxy, wire: Wire, node: Node) -> None:
    assert wire.ask("PING") == b"PONG"
    proxy.blackhole("replies")
    wire.send("LPUSH a 1")
    assert node.command("BLPOP", "a", 5) == [b"a", b"1"]
    assert wire.silent()
    proxy.heal()
    assert wire.get() == 1


def test_in_a_blackhole_the_death_of_the_server_is_not_noticed() -> None:
    with Node() as node, FaultProxy(node.port) as proxy:
        old = Wire(proxy)
        assert old.ask("PING") == b"PONG"
        proxy.blackhole()
        node.kill()
        new = Wire(proxy)
        assert old.silent()
        assert new.silent()
        proxy.heal()
        for wire in (old, new):
            with pytest.raises(ConnectionError):
                wire.ask("PING")
            wire.close()


# Pub/sub: who answers what


@pytest.mark.parametrize("protocol", [2, 3])
def test_pushes_answer_no_request(proxy: FaultProxy, wire: Wire, node: Node, protocol: int) -> None:
    wire.send(f"HELLO {protocol}", "SUBSCRIBE a b", "PING")
    splitter, messages = Splitter(), []
    while len(messages) < 4:
        messages += splitter.feed(wire.socket.recv(65536))
    assert (proxy.replies, proxy.pushes) == (4, 0)
    proxy.drop_reply_to(b"PING")
    wire.send("PING")
    proxy.wait_for(lambda p: p.dropped == 1)
    proxy.delay(math.inf, "requests")
    wire.send("UNSUBSCRIBE")
    proxy.wait_for(lambda p: p.held == 1)
    node.command("PUBLISH", "a", "1")
    proxy.wait_for(lambda p: p.pushes == 1)  # and not the reply to the request that is on its way
    proxy.heal()
    seen = b""
    while seen.count(b"unsubscribe") < 2:
        seen += wire.socket.recv(65536)
    assert b"message" in seen
    assert b"PONG" not in seen.upper()


def test_an_error_answers_a_subscription(proxy: FaultProxy) -> None:
    with Node(users=["default off", "mute on nopass ~* resetchannels +@all"]) as node, FaultProxy(node.port) as proxy:
        wire = Wire(proxy)
        wire.send("AUTH mute x", "SUBSCRIBE a b", "ECHO x")
        proxy.wait_for(lambda p: p.replies == 3)
        assert [wire.get(), str(wire.get())[:6], wire.get()] == [b"OK", "NOPERM", b"x"]
        wire.close()


# Edges


def test_a_dead_server_ends_the_connection(proxy: FaultProxy) -> None:
    with Node() as node, FaultProxy(node.port) as proxy:
        wire = Wire(proxy)
        assert wire.ask("PING") == b"PONG"
        node.kill()
        with pytest.raises(ConnectionError):
            wire.get()
        wire.close()
        wire = Wire(proxy)
        with pytest.raises(ConnectionError):
            wire.get()
        wire.close()


def test_what_is_no_resp_is_cut_and_told(proxy: FaultProxy, wire: Wire) -> None:
    wire.socket.sendall(b"\x16\x03\x01 a TLS client")
    assert wire.socket.recv(1) == b""
    assert "no RESP" in proxy.errors[0]


def test_waiting_in_vain_tells_the_counters(proxy: FaultProxy) -> None:
    with pytest.raises(TimeoutError, match="connections 0, live 0, requests 0"):
        proxy.wait_for(lambda p: p.requests == 1, timeout=0.01)


def test_wrong_use_is_refused(proxy: FaultProxy, node: Node) -> None:
    for wrong in (
        lambda: proxy.delay(-1),
        lambda: proxy.delay(math.nan),
        lambda: proxy.drop_replies(0),
        lambda: proxy.blackhole("sideways"),  # type: ignore[arg-type]
        proxy.start,
        lambda: FaultProxy(node.port).cut(),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_a_connection_that_is_only_just_accepted_is_closed_too(node: Node) -> None:
    for _ in range(20):
        proxy = FaultProxy(node.port).start()
        wires = [Wire(proxy) for _ in range(3)]
        proxy.close()
        assert proxy.live == 0
        for wire in wires:
            with pytest.raises(ConnectionError):
                wire.get()
            wire.close()
    gc.collect()  # a forgotten socket would complain here, and fail the test


@pytest.mark.parametrize("mode", ["pass", "held", "dark", "refused", "cut"])
def test_close_leaves_no_thread_and_no_socket(node: Node, mode: str) -> None:
    threads = set(threading.enumerate())
    proxy = FaultProxy(node.port).start()
    wire = Wire(proxy)
    assert wire.ask("PING") == b"PONG"
    change = {"held": lambda: proxy.delay(math.inf), "dark": proxy.blackhole, "refused": proxy.refuse, "cut": proxy.cut}
    change.get(mode, lambda: None)()
    if mode == "held":
        wire.send("PING")
        proxy.wait_for(lambda p: p.held == 1)
    if mode == "dark":
        wire.send("PING")
        Wire(proxy).close()
    proxy.close()
    proxy.close()
    assert set(threading.enumerate()) == threads
    with pytest.raises(ConnectionError):
        wire.get()
    with pytest.raises(ConnectionRefusedError):
        Wire(proxy)
    wire.close()


def test_pushes_alone_vanish(proxy: FaultProxy, dial: Any, node: Node) -> None:
    listener, other = dial(), dial()
    listener.ask("SUBSCRIBE news")
    proxy.drop_pushes(2)
    for number in range(3):
        assert other.ask(f"PUBLISH news {number}") == 1
    proxy.wait_for(lambda p: p.pushes == 3)
    assert proxy.dropped == 2
    assert listener.get()[-1] == b"2"
    with pytest.raises(UsageError):
        proxy.drop_pushes(0)


def test_those_who_subscribed_are_cut_and_nobody_else(proxy: FaultProxy, dial: Any, node: Node) -> None:
    listener, other = dial(), dial()
    listener.ask("SUBSCRIBE news")
    assert other.ask("PING") == b"PONG"
    proxy.cut_subscribers()
    proxy.wait_for(lambda p: p.live == 1)
    assert (proxy.cuts, other.ask("PING")) == (1, b"PONG")
