"""A server that is broken or hostile: whatever it sends, and however slowly, the caller hears `Unavailable`, and in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import interlock
from interlock.backends.redis.backend import RedisBackend
from interlock.backends.redis.inbox import Inbox
from interlock.backends.redis.resp import ErrorReply
from interlock.backends.redis.wire import Late, Wire
from interlock.core.claim import Claim, Place, Renewal
from interlock.core.quorum import Marker
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import Node
from interlock.testing.conformance import backend_of, token_of
from interlock.testing.faces import COLOURS, Kit, run_body

PATIENCE = 0.4  # what a request may take
SOON = 5.0  # what it takes here at most, on a machine that is busy; without a limit it would be for ever


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[socket.socket]]]:
    """Listens, and has `answer` called, in a thread, for each connection from which something came. Its port, and its peers."""
    peers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def work(peer: socket.socket) -> None:
        try:
            if peer.recv(65_536):
                answer(peer)
        except OSError:  # it hung up
            pass

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            peers.append(peer)
            threads.append(threading.Thread(target=work, args=(peer,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1], peers
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for peer in peers:
                hang_up(peer)
            for thread in threads:
                thread.join()


def hang_up(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
    peer.close()


def asked(port: int, colour: str, stage: str, patience: float = PATIENCE) -> interlock.Unavailable:
    """What a claim raises. The server speaks first at the handshake, or as its answer to the claim."""
    caught: list[interlock.Unavailable] = []

    async def body(kit: Kit) -> None:
        begin = now()
        with pytest.raises(interlock.Unavailable) as error:
            await kit.client(request_timeout=patience).lock("x").try_acquire()
        assert now() - begin < SOON
        caught.append(error.value)

    where = f"127.0.0.1:{port}"
    run_body(body, f"redis://:secret@{where}/1?client_name=me" if stage == "handshake" else f"redis://{where}", colour)
    return caught[0]


STAGES = ["handshake", "answer"]
WRONG: dict[str, bytes] = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "many digits": b":" + b"7" * 5000 + b"\r\n",
    "many digits in an array": b"*3\r\n:1\r\n:" + b"7" * 5000 + b"\r\n$1\r\n0\r\n",
    "a size of many digits": b"$" + b"7" * 5000 + b"\r\n",
    "a size that nothing has": b"$99999999999\r\n",
    "deep": b"*1\r\n" * 5000,
    "a line without an end": b"+" + b"x" * 200_000,
    "no text": b"\xff\x1b[2J\r\n",
    "a string that does not end": b"$2\r\nabcdef\r\n",
    "many items": b"*90000\r\n" + b":1\r\n" * 90_000,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_reply_is_told_as_such(what: str, stage: str, colour: str) -> None:
    def answer(peer: socket.socket) -> None:
        peer.sendall(WRONG[what])
        peer.recv(65_536)  # until it hangs up

    with server(answer) as (port, peers):
        error = asked(port, colour, stage, patience=SOON / 2)
        assert error.cause == "closed", error
        assert str(error).isprintable()
        assert "secret" not in str(error)
        assert len(str(error)) < 300
        assert peers


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", ["a line", "a string", "an array"])
def test_bytes_that_keep_coming_do_not_keep_a_request_waiting(what: str, stage: str, colour: str) -> None:
    head, piece = {"a line": (b"+", b"x"), "a string": (b"$500000000\r\n", b"x"), "an array": (b"*50000\r\n", b"*0\r\n")}[what]

    def answer(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(head)
        while True:
            peer.sendall(piece)
            time.sleep(0.002)  # it is slow, that is the point

    with server(answer) as (port, _):
        assert asked(port, colour, stage).cause == "timeout"


@pytest.mark.parametrize("size", [16_384, 4_000_000])
def test_a_stream_without_an_end_does_not_keep_a_request_waiting(size: int, colour: str) -> None:
    """As fast as it can: whoever reads finds something each time."""

    def answer(peer: socket.socket) -> None:
        peer.sendall(b"*1000\r\n")
        piece = b"$%d\r\n" % size + b"x" * size + b"\r\n"
        while True:
            peer.sendall(piece)

    with server(answer) as (port, _):
        assert asked(port, colour, "answer").cause in ("timeout", "closed")


@pytest.mark.parametrize("what", ["others' messages", "a message without an end", "messages, once it listens"])
def test_an_inbox_does_not_wait_for_a_server_that_talks_of_something_else(what: str, colour: str) -> None:
    other = b"*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n"

    def answer(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if what != "others' messages":
            channel = channels[-1].encode()
            peer.sendall(b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:1\r\n" % (len(channel), channel))
        while True:
            peer.sendall(b"$500000000\r\n" if what == "a message without an end" else other)
            time.sleep(0.0005)

    channels: list[str] = []

    async def body(kit: Kit) -> None:
        backend: Any = backend_of(kit.client())
        mailbox = backend._mailbox
        mailbox._channel = "interlock:inbox:here"
        channels.append(mailbox._channel)
        begin = now()
        if what == "others' messages":
            with pytest.raises(interlock.Unavailable):
                await backend.open_inbox(PATIENCE)
        else:
            await backend.open_inbox(5.0)
            for _ in range(3):
                assert await backend.hear(now() + PATIENCE) == []
        assert now() - begin < SOON

    with server(answer) as (port, _):
        run_body(body, f"redis://127.0.0.1:{port}", colour)


class Endless:
    """A socket with something to read each time, for ever: a peer need only be fast enough."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._there.send(b"x")
        self.fileno, self.settimeout = self._here.fileno, self._here.settimeout
        self.reads = 0
        self.end = now() + SOON

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, size: int) -> bytes:
        self.reads += 1
        assert now() < self.end
        return b"x" if self.reads > 1 else b"$500000000\r\n"

    def close(self) -> None:
        self._here.close()
        self._there.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    connection: Any = type("Connection", (), {"_sock": Endless()})
    wire = Wire(connection)
    yield wire
    wire.close()


def test_a_look_at_what_has_come_ends_though_more_comes(wire: Wire) -> None:
    wire.owed = 1
    wire.drain()
    assert wire.owed == 1


def test_a_question_and_a_listener_end_at_their_moment_though_there_is_more_to_read(wire: Wire) -> None:
    with pytest.raises(Late):
        run(wire.ask(b"?", b"m", now() + 0.1))
    assert run(wire.heard(now() + 0.1)) == []


class Talker:
    """An ear that hears something else each time."""

    async def say(self, request: bytes, until: float) -> None: ...

    async def hear(self, until: float) -> list[Any]:
        assert now() < self.end
        return [[b"message", b"x", b"y"]]

    def __init__(self) -> None:
        self.end = now() + SOON

    def close(self) -> None: ...


def test_a_subscription_ends_at_its_moment_though_there_is_more_to_hear() -> None:
    inbox = Inbox(Talker(), "here", 1.0, now, "redis://example")
    with pytest.raises(interlock.Unavailable):
        run(inbox.subscribe(now() + 0.1))
    assert run(inbox.hear(now() + 0.1)) == []


def test_what_nobody_hears_does_not_pile_up(valkey_node: Node, colour: str) -> None:
    """Anybody may publish to an inbox, also while nobody waits."""
    node = valkey_node

    async def body(kit: Kit) -> None:
        client = kit.client()
        backend: Any = backend_of(client)
        inbox, much = await backend.open_inbox(5.0), b"x" * 60_000
        for _ in range(1000):
            assert node.command("PUBLISH", inbox, much) == 1
            await kit.sleep(0)
            if _unsent(node) > 100_000:
                break
        else:
            raise AssertionError("there was always room for more")
        begin = now()
        assert node.command("PUBLISH", inbox, b"x" * 20_000_000) == 1  # a server hangs up on who leaves 32 MB unread
        assert node.command("PUBLISH", inbox, f"7\n3000\n{token_of(client)}\nn") == 1
        heard = []
        while not heard:
            assert now() < begin + 10.0, "one that is large is passed over as fast as it comes"
            heard = await backend.hear(now() + 2.0)
        assert heard[0].fence == 7, "whoever hears again hears all of it"

    run_body(body, node.url, colour)


def _unsent(node: Node) -> int:
    """Bytes that the server keeps for subscribers."""
    return sum(int(part[5:]) for part in node.command("CLIENT", "LIST", "TYPE", "pubsub").split() if part.startswith(b"omem="))


def test_a_value_of_somebody_else_may_be_as_large_as_it_likes(valkey_node: Node, colour: str) -> None:
    """A lock's key with a large string in it: that name cannot be had, and nobody else is disturbed."""
    node = valkey_node
    node.command("SET", "large", b"0" * 32 + b"~" + b"x" * 3_000_000)

    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("small", timeout=0):
            with pytest.raises(interlock.Unavailable):
                await client.lock("large").try_acquire()
            assert (await client.inspect("small")).held
        live = node.info("clients")["connected_clients"]
        assert int(live) <= 3, "nothing was hung up on for that"

    run_body(body, node.url, colour)


HUGE = b"9" * 5000
SPOILT: dict[str, list[tuple[bytes, ...]]] = {
    "a counter of many digits": [(b"SET", b"interlock:{n}:fence", HUGE)],
    "a counter that is no text": [(b"SET", b"interlock:{n}:fence", b"\xff")],
    "a counter that is a list": [(b"RPUSH", b"interlock:{n}:fence", b"x")],
    "a line without an end of time": [
        (b"ZADD", b"interlock:{n}:line", b"-inf", b"x"),
        (b"ZADD", b"interlock:{n}:line", b"inf", b"y"),
    ],
    "a line of anything": [(b"ZADD", b"interlock:{n}:line", b"1", b"\xff\x00 interlock:inbox:1 " + HUGE)],
    "a line of much": [(b"ZADD", b"interlock:{n}:line", b"%d" % n, b"%d" % n + b"x" * 60_000) for n in range(40)],
    "a line that is a hash": [(b"HSET", b"interlock:{n}:line", b"x", b"y")],
    "a roll of many digits": [(b"HSET", b"interlock:roll", b"longest", HUGE, b"high", HUGE, b"seed", HUGE)],
    "a roll that is no text": [(b"HSET", b"interlock:roll", b"longest", b"\xff", b"high", b"\xff", b"seed", b"x")],
    "a roll that is a list": [(b"RPUSH", b"interlock:roll", b"x")],
    "a loss that is no text": [(b"SET", b"interlock:loss", b"\xff\xfe")],
}


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("what", SPOILT)
def test_whatever_stands_under_our_keys_each_verb_answers_or_raises_an_error_of_ours(
    what: str, held: bool, valkey_node: Node, colour: str
) -> None:
    """Whoever may write to the store may have written anything there."""

    async def body(kit: Kit) -> None:
        client = kit.client(ttl=5)
        backend: Any = backend_of(client)
        first, second = token_of(client), token_of(client)
        if held:
            await backend.claim(Claim("n", first, 5.0), 5.0)
        for command in SPOILT[what]:
            valkey_node.command("DEL", command[1])
        for command in SPOILT[what]:
            valkey_node.command(*command)
        place = Place(1, await backend.open_inbox(5.0), 3.0)

        async def elect() -> None:
            backend.elect([valkey_node.url], lambda token: False)

        verbs = [
            lambda: backend.inspect("n", 5.0),
            lambda: backend.claim(Claim("n", second, 5.0), 5.0),
            lambda: backend.claim(Claim("n", second, 5.0, place), 5.0),
            lambda: backend.renew([Renewal("n", first, 5.0, 1)], 5.0),
            lambda: backend.hand_over("n", first, Claim("n", second, 5.0, place), 2, 5.0),
            lambda: backend.hear(now()),
            elect,  # from here on it is a node of a quorum
            lambda: backend.vote(Claim("n", second, 5.0), 0, 5.0),
            lambda: backend.vote(Claim("n", second, 5.0, place), 0, 5.0),
            lambda: backend.retreat(Claim("n", second, 5.0, place), 5.0, 5.0),
            lambda: backend.roll(5.0, mark=True),
            lambda: backend.undo("n", second, 5.0),
            lambda: backend.release("n", first, 5.0),
            lambda: backend.inspect("n", 5.0),
        ]
        for verb in verbs:
            with suppress(interlock.InterlockError):
                await verb()

    run_body(body, valkey_node.url, colour)


@pytest.mark.parametrize("quorum", [False, True], ids=["alone", "quorum"])
@pytest.mark.parametrize("key", ["n", "interlock:{n}:fence", "interlock:{n}:line", "interlock:roll", "interlock:roll:long"])
def test_the_error_names_the_key_that_was_spoilt(key: str, quorum: bool, valkey_node: Node, colour: str) -> None:
    """Not the lock, if the lock is all right: its owner would be told to remove that."""
    ours = key.startswith("interlock:roll")

    async def body(kit: Kit) -> None:
        client = kit.client()
        backend: Any = backend_of(client)
        said, claim = "", Claim("n", token_of(client), 20.0)
        try:
            await backend.claim(claim._replace(name="warm"), 5.0)
            if quorum:
                backend.elect(("a", "b", "c"), lambda token: False)
                roll = await backend.roll(5.0, mark=True)
                assert await backend.enroll(Marker(("a", "b", "c")), roll.loss, 5.0)
                await backend.vote(claim._replace(name="warm"), 0, 5.0)
            valkey_node.command("DEL", key)
            valkey_node.command("RPUSH", key, "x")
            await (backend.vote(claim, 0, 5.0) if quorum else backend.claim(claim, 5.0))
        except interlock.UsageError as error:
            said = str(error)
        if key == "interlock:{n}:line" or (ours and not quorum):
            assert said == ""
        else:
            assert f"'{key}'" in said or (ours and f"{key}, " in said), said
            assert valkey_node.command("EXISTS", "n") == (key == "n")
        if key.endswith("fence"):
            valkey_node.command("SET", "n", claim.token)
            assert (await backend.inspect("n", 5.0)).held, "who holds it can be told"
        if key == "interlock:roll":
            with pytest.raises(interlock.UsageError, match=key):
                await backend.roll(5.0)

    run_body(body, valkey_node.url, colour)


class Liar:
    """A transport that answers what it was told to, with the right mark if it is a list."""

    age = 0

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def call(self, request: Any, mark: bytes, tokens: Any, until: float, undo: Any = None) -> Any:
        return [*self.reply, mark] if isinstance(self.reply, list) else self.reply

    async def follow(self, request: Any, mark: bytes, token: str, within: float) -> Any:
        return await self.call(request, mark, (token,), 0.0)

    def elect(self, is_live: Any) -> None: ...


integers = st.one_of(st.integers(-3, 3), st.integers(-(10**19) + 1, 10**19 - 1))
strings = st.one_of(st.binary(max_size=8), st.integers(0, 10**17).map(lambda n: b"%d" % n), st.just(b"9" * 5000), st.just(b""))
items = st.one_of(integers, strings, st.none(), st.builds(ErrorReply, st.text(max_size=9)), st.lists(strings, max_size=3))
shapes = st.sampled_from(
    ["i", "ii", "iii", "iis", "isi", "iisi", "iisiss", "s", "iissil", "iisssisssss", "iissssisssss", "iisssssisssss", "iiiii"]
)


def shaped(shape: str) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*({"i": integers, "s": strings, "l": st.lists(strings, max_size=5)}[kind] for kind in shape)).map(list)


@settings(max_examples=200, deadline=None)
@given(st.one_of(items, st.lists(items, max_size=12), shapes.flatmap(shaped)))
def test_whatever_a_server_answers_each_verb_answers_or_raises_an_error_of_ours(reply: Any) -> None:
    runtime = BlockingRuntime()
    backend: Any = RedisBackend("redis://example", Liar(reply), runtime)  # type: ignore[arg-type]  # it lies
    first, second = runtime.token(), runtime.token()
    place = Place(1, "interlock:inbox:1", 3.0)
    for elected in (False, True):
        if elected:
            backend.elect(("a", "b", "c"), lambda token: False)
        for verb in (
            backend.inspect("n", 5.0),
            backend.claim(Claim("n", second, 5.0), 5.0),
            backend.claim(Claim("n", second, 5.0, place), 5.0),
            backend.vote(Claim("n", second, 5.0), 0, 5.0),
            backend.vote(Claim("n", second, 5.0, place), 0, 5.0),
            backend.extend("n", first, 5.0, 5.0),
            backend.renew([Renewal("n", first, 5.0, 1), Renewal("m", second, 5.0, 1)], 5.0),
            backend.hand_over("n", first, Claim("n", second, 5.0, place), 2, 5.0),
            backend.retreat(Claim("n", second, 5.0, place), 5.0, 5.0),
            backend.roll(5.0, mark=True),
            backend.undo("n", second, 5.0),
            backend.release("n", first, 5.0),
        ):
            with suppress(interlock.InterlockError):
                run(verb)
