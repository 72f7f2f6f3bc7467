"""A TCP proxy in front of one server that delays, drops and cuts what passes, on command.

Rules of the file:

1. *A fault works from the moment its method returns,* so a test arms it, then sends; no sleep is needed. All state
   belongs to one event loop in one thread; the methods hand their change to it and wait until it is made.
2. *Faults hit whole messages.* Both streams are split into RESP messages and each reply is paired with its request, so a
   test can name the request whose reply shall vanish. Pushes (pub/sub messages) answer no request.
3. *What is held is not lost.* Order is kept in each direction; delayed or blackholed bytes arrive later, even when the
   sender has hung up meanwhile, as on a real network. Only `drop_*`, `cut*` and `close` lose anything.
4. *Messages are counted before faults are applied:* `replies == 1` means that the server has done its work, whether or
   not the client ever learns of it.
5. *Nothing is left after `close`:* no thread, no socket.

It understands clients that speak RESP2 or RESP3 in plain text. Not understood: TLS, inline commands, and CLIENT REPLY OFF
or SKIP (they break the pairing). A stream that is no RESP is cut, and `errors` says why.

This file is long because splitting, pairing and faults are one machine, whose parts know each other and nobody else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Self

from ..errors import UsageError

__all__ = ["FaultProxy", "Splitter"]

Way = Literal["requests", "replies", "both"]
Action = Literal["pass", "drop", "cut", "reset"]

_CALL_WITHIN = 10.0  # the loop answers in microseconds; this bound only turns a bug into an error
_CONFIRMED = {prefix + b"SUBSCRIBE" for prefix in (b"", b"P", b"S", b"UN", b"PUN", b"SUN")}
_PUSHED = {b"MESSAGE", b"PMESSAGE", b"SMESSAGE", b"INVALIDATE"}


class Splitter:
    """Cuts a RESP2 or RESP3 stream into whole messages, however the bytes arrive. Does no I/O."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._seen = 0  # what is before it has been looked at
        self._missing = 1  # values that the current message still lacks

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes, in order and byte for byte. `ValueError` when it is no RESP."""
        self._buffer += data
        messages = []
        while size := self._next_value():
            self._seen += size
            if self._missing == 0:
                messages.append(bytes(self._buffer[: self._seen]))
                del self._buffer[: self._seen]
                self._seen, self._missing = 0, 1
        return messages

    def _next_value(self) -> int:
        """Take one value into account (of an aggregate, its header): its size, or 0 while it is incomplete."""
        if self._seen == len(self._buffer):
            return 0
        kind = chr(self._buffer[self._seen])
        if kind not in "+-:_#,($!=*~>%|":
            raise ValueError(f"no RESP value begins with {kind!r}")
        end = self._buffer.find(b"\r\n", self._seen)
        if end < 0:
            return 0
        header = self._buffer[self._seen + 1 : end]
        size = end + 2 - self._seen
        inside = 0
        if kind in "$!=":
            length = int(header)
            if length >= 0:  # -1 is null and has no body
                size += length + 2
                if len(self._buffer) < self._seen + size:
                    return 0
                if not self._buffer.startswith(b"\r\n", self._seen + size - 2):
                    raise ValueError("a RESP string is not as long as it says")
        elif kind in "*~>":
            inside = max(int(header), 0)
        elif kind == "%":
            inside = 2 * int(header)
        elif kind == "|":
            inside = 2 * int(header) + 1  # attributes precede the value that they describe
        self._missing += inside - 1
        return size


def _head(message: bytes) -> tuple[int, bytes]:
    """Of an array: how many values it has, and the first if that is a string, in capitals."""
    count, size, first, *_ = (*message.split(b"\r\n", 3), b"", b"")
    return int(count[1:]), first.upper() if size[:1] in (b"$", b"=") else b""


@dataclass(slots=True)
class _Rule:
    """Do `action` to the next `left` messages of that way whose request contains `match`."""

    way: Way
    match: bytes
    left: float
    action: Action


@dataclass(slots=True)
class _Request:
    raw: bytes
    verb: bytes
    owed: int  # replies: one, or one per channel of a subscription


class _Direction:
    """What holds for one direction of all connections."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.swallow = False
        self.dark = False
        self.deaf: float = 0  # pushes that vanish


class _Lane:
    """One direction of one connection: a queue in front of the receiver's transport."""

    def __init__(self, proxy: FaultProxy, gate: _Direction) -> None:
        self.proxy, self.gate = proxy, gate
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.ended = False
        self._timer: asyncio.TimerHandle | None = None

    def put(self, message: bytes) -> None:
        if self.gate.delay == 0 and not self.gate.dark and not self.waiting:
            self._send(message)
        else:
            self.waiting.append((self.proxy._loop.time() + self.gate.delay, message))
            self.proxy._count(held=1)
            self.pump()

    def end(self) -> None:
        """The sender has hung up: the receiver is told after it has got what is on the way."""
        self.ended = True
        self.pump()

    def pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.proxy._loop.time()
        while self.waiting and not self.gate.dark and self.waiting[0][0] <= now:
            _, message = self.waiting.popleft()
            self.proxy._count(held=-1)
            self._send(message)
        if self.waiting:
            if not self.gate.dark and self.waiting[0][0] < math.inf:
                self._timer = self.proxy._loop.call_at(self.waiting[0][0], self.pump)
        elif self.ended and self.sink is not None:
            # The server is told by half a close and hangs up itself: a full one, with replies unread, would be a reset,
            # and a reset may destroy the requests before it.
            if self.gate is self.proxy._requests:
                self.sink.write_eof()
            else:
                self.sink.close()

    def _send(self, message: bytes) -> None:
        if self.sink is not None and not self.sink.is_closing():
            self.sink.write(message)

    def hurry(self) -> None:
        """Send what waits, now; go on reading."""
        self.waiting = deque((0.0, message) for _, message in self.waiting)
        if self.source is not None:
            self.source.resume_reading()
        self.pump()

    def clear(self) -> None:
        self.proxy._count(held=-len(self.waiting))
        self.waiting.clear()
        self.pump()


class _End(asyncio.Protocol):
    """One end of a connection. What it says goes to `hear`, and on through the lane `inward`."""

    def __init__(self, link: _Link, inward: _Lane, outward: _Lane, hear: Callable[[bytes], None]) -> None:
        self.link, self.inward, self.outward, self.hear = link, inward, outward, hear
        self.splitter = Splitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.link.transports.append(transport)
        self.inward.source = self.outward.sink = transport
        if self.link.gone:
            transport.abort()
        elif self.inward.gate.dark:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.splitter.feed(data):
                if not self.link.gone:
                    self.hear(message)
        except ValueError as error:
            self.link.proxy.errors.append(f"{error}: {data[:60]!r}")
            self.link.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.losses += 1
        self.inward.end()
        self.link.settle()


class _Link:
    """One client's connection and the one behind it."""

    def __init__(self, proxy: FaultProxy, accepted: socket.socket) -> None:
        self.proxy, self.accepted = proxy, accepted
        self.requests, self.replies = _Lane(proxy, proxy._requests), _Lane(proxy, proxy._replies)
        self.transports: list[asyncio.Transport] = []
        self.losses = 0
        self.gone = False
        self.settled = asyncio.Event()
        self.unanswered: deque[_Request] = deque()
        self.subscribed = False
        self.wiring = proxy._loop.create_task(self._wire())
        self.wiring.add_done_callback(self._wired)

    async def _wire(self) -> None:
        server = _End(self, self.replies, self.requests, self._from_server)
        client = _End(self, self.requests, self.replies, self._from_client)
        try:
            await self.proxy._lit.wait()  # in the dark a client must not notice that the server is dead
            await self.proxy._loop.create_connection(lambda: server, self.proxy.host, self.proxy._target)
            await self.proxy._loop.connect_accepted_socket(lambda: client, self.accepted)
        except OSError:
            self.close()

    def _wired(self, _: object) -> None:
        # Not in a `finally` of `_wire`: a task that is cancelled before its first step runs no line of it.
        if self.requests.source is None:
            self.accepted.close()  # else its transport does
        self.settle()

    def _from_client(self, raw: bytes) -> None:
        words, verb = _head(raw)
        self.proxy._count(requests=1, command=verb)
        action = self.proxy._decide("requests", raw)
        if action == "pass":
            confirmed = verb in _CONFIRMED
            self.subscribed |= confirmed
            if words > 0:  # an empty array is not answered
                self.unanswered.append(_Request(raw, verb, max(words - 1, 1) if confirmed else 1))
            self.requests.put(raw)
        elif action != "drop":
            self.cut(action)

    def _from_server(self, raw: bytes) -> None:
        request = self._answered_by(raw)
        self.proxy._count(replies=request is not None, pushes=request is None)
        action = self.proxy._decide("replies", None if request is None else request.raw)
        if action == "pass":
            self.replies.put(raw)
        elif action != "drop":
            self.cut(action)

    def _answered_by(self, raw: bytes) -> _Request | None:
        """The request that this message answers; None for a push."""
        if raw[:1] == b">" or (raw[:1] == b"*" and self.subscribed):
            _, word = _head(raw)
            if word in _CONFIRMED and self.unanswered and self.unanswered[0].verb in _CONFIRMED:
                self.unanswered[0].owed -= 1
                return self.unanswered[0] if self.unanswered[0].owed else self.unanswered.popleft()
            if raw[:1] == b">" or word in _CONFIRMED | _PUSHED:
                return None
        return self.unanswered.popleft() if self.unanswered else None

    def cut(self, how: Action) -> None:
        self.proxy._count(cuts=1)
        self.close(reset=how == "reset")

    def close(self, reset: bool = False) -> None:
        """Close both sides at once and lose what is on the way. The client sees an end of file, or a reset."""
        self.gone = True
        self.wiring.cancel()
        for lane in (self.requests, self.replies):
            lane.clear()
        with contextlib.suppress(OSError):  # the peer was faster
            if reset:
                self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.accepted.shutdown(socket.SHUT_RDWR)  # reaches the client even if a forked child has a copy
        for transport in self.transports:
            transport.abort()

    def settle(self) -> None:
        if self.wiring.done() and self.losses == len(self.transports):
            self.settled.set()
            self.proxy._links.discard(self)
            self.proxy._count()


class FaultProxy:
    """Stands between clients and the server at `port`; at first it passes everything.

        with Node() as node, FaultProxy(node.port) as proxy:
            client = connect(proxy.url)
            proxy.drop_reply_to(b"EVALSHA")     # the server will act, the client will not be told
            ...
            proxy.wait_for(lambda p: p.dropped == 1)
            assert proxy.commands.count(b"EVALSHA") == 1    # no hidden retry

    Counters, over all connections: `connections` accepted, `live` now (until both ends have hung up), `requests`,
    `replies`, `pushes`, `dropped` messages, `cuts` (connections), `held` messages now; `commands` lists the first word
    of each request in capitals; `errors` lists what was no RESP. Faults add up until `heal()`; of the counted ones the
    first armed wins.
    Every method may be called from any thread; `wait_for` blocks, so call it from asyncio through `asyncio.to_thread`.
    """

    host = "127.0.0.1"

    def __init__(self, port: int) -> None:
        self.port = 0
        self.connections = self.requests = self.replies = self.pushes = self.dropped = self.cuts = self.held = 0
        self.commands: list[bytes] = []
        self.errors: list[str] = []
        self._target = port
        self._requests, self._replies = _Direction(), _Direction()
        self._rules: list[_Rule] = []
        self._links: set[_Link] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where clients connect to. Without a password: add the node's, if it has one."""
        return f"redis://{self.host}:{self.port}"

    @property
    def live(self) -> int:
        """Connections that exist now: accepted, and not yet hung up on both sides."""
        return len(self._links)

    def start(self) -> Self:
        """Listen on a free port. `close` must follow; `with` does both."""
        if self._thread is not None:
            raise UsageError("this proxy is running already")
        # Bound and never listening: keeps the port ours while `refuse` has closed the listener beside it.
        self._reserved = self._bound(0)
        self.port = self._reserved.getsockname()[1]
        up: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(up,), name="fault-proxy", daemon=True)
        self._thread.start()
        try:
            up.result()
        except BaseException:
            self._thread = None
            raise
        return self

    def close(self) -> None:
        """Close every connection and end the thread. Harmless when closed."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(_CALL_WITHIN)
            if self._thread.is_alive():
                raise RuntimeError("the proxy's thread does not end: a bug in interlock.testing.proxy")
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Faults

    def heal(self) -> None:
        """Back to passing everything: faults are forgotten, what was held goes out now, new connections are welcome."""
        self._call(self._heal)

    def delay(self, seconds: float, way: Way = "replies") -> None:
        """Each message of that way arrives `seconds` late, in order; `math.inf` holds it until `heal`."""
        if not seconds >= 0:
            raise UsageError(f"a delay is 0 or more seconds, not {seconds!r}")
        self._call(lambda: self._set(way, delay=seconds))

    def blackhole(self, way: Way = "both") -> None:
        """Nothing of that way is read or forwarded, no end is noticed; connecting still works. `heal` lets it all go on."""
        self._call(lambda: self._darken(way))

    def drop_replies(self, n: int | None = None, to: bytes = b"") -> None:
        """Requests get through; the next `n` replies to requests that contain `to` vanish. All replies by default, and
        then pushes as well. The connection stays, one reply short."""
        self._arm("replies", n, to, "drop")

    def drop_pushes(self, n: int | None = None) -> None:
        """The next `n` pushes (all by default) vanish: the server believes that somebody was told. Replies get through."""
        if n is not None and n < 1:
            raise UsageError(f"n is 1 or more, or None for all, not {n!r}")
        self._call(lambda: self._set("replies", deaf=math.inf if n is None else n))

    def drop_reply_to(self, match: bytes) -> None:
        """The next reply to a request that contains these bytes vanishes."""
        self._arm("replies", 1, match, "drop")

    def drop_requests(self, n: int | None = None, containing: bytes = b"") -> None:
        """The next `n` such requests (all by default) vanish before the server sees them."""
        self._arm("requests", n, containing, "drop")

    def cut_on_reply(self, n: int = 1, to: bytes = b"", reset: bool = False) -> None:
        """The server does its work; instead of the reply the client gets an end of file or a reset. `n` times."""
        self._arm("replies", n, to, "reset" if reset else "cut")

    def cut_reply_to(self, match: bytes, reset: bool = False) -> None:
        """The connection is closed in place of the next reply to a request that contains these bytes."""
        self._arm("replies", 1, match, "reset" if reset else "cut")

    def cut_on_request(self, n: int = 1, containing: bytes = b"", reset: bool = False) -> None:
        """As `cut_on_reply`, but the server never sees the request: to the client the two look the same."""
        self._arm("requests", n, containing, "reset" if reset else "cut")

    def cut(self, reset: bool = False) -> None:
        """Close all connections now. New ones are welcome."""
        self._call(lambda: self._cut("reset" if reset else "cut"))

    def cut_subscribers(self, reset: bool = False) -> None:
        """Close all connections that have subscribed to something. The others go on."""
        self._call(lambda: self._cut("reset" if reset else "cut", subscribed=True))

    def refuse(self) -> None:
        """New connections are refused, as by a dead server, until `heal`. Those that exist go on; see `cut`."""
        self._call(self._stop_listening)

    def wait_for(self, happened: Callable[[Self], bool], timeout: float = 5.0) -> None:
        """Return as soon as `happened(proxy)`, a look at the counters, is true. `TimeoutError` after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: happened(self), timeout):
                names = ("connections", "live", "requests", "replies", "pushes", "dropped", "cuts", "held", "errors")
                raise TimeoutError(f"not within {timeout:g} s: " + ", ".join(f"{n} {getattr(self, n)}" for n in names))

    # Everything below runs in the loop's thread, except `_call`, `_arm` and `_bound`

    def _call(self, change: Callable[[], object]) -> None:
        async def settled() -> None:
            # Two turns before: what has arrived is handled under the old rules. Two turns after: closed is closed.
            for step in (None, None, change, None, None):
                if step is not None:
                    step()
                await asyncio.sleep(0)

        if self._thread is None:
            raise UsageError("this proxy is not running: use it in `with`, or start() it")
        asyncio.run_coroutine_threadsafe(settled(), self._loop).result(_CALL_WITHIN)

    def _arm(self, way: Way, n: int | None, match: bytes, action: Action) -> None:
        if n is not None and n < 1:
            raise UsageError(f"n is 1 or more, or None for all, not {n!r}")
        if n is None and not match:
            self._call(lambda: self._set(way, swallow=True))
        else:
            self._call(lambda: self._rules.append(_Rule(way, match, math.inf if n is None else n, action)))

    def _bound(self, port: int) -> socket.socket:
        bound = socket.socket()
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, port))
            bound.setblocking(False)
        except BaseException:
            bound.close()
            raise
        return bound

    def _run(self, up: Future[None]) -> None:
        try:
            asyncio.run(self._main(up))
        except BaseException as error:
            if up.done():
                raise
            up.set_exception(error)
        finally:
            self._reserved.close()

    async def _main(self, up: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over, self._lit = asyncio.Event(), asyncio.Event()
        self._listener: socket.socket | None = None
        self._heal()
        up.set_result(None)
        await self._over.wait()
        self._stop_listening()
        for link in list(self._links):
            link.close()
            await link.settled.wait()

    def _gates(self, way: Way) -> list[_Direction]:
        gates = {"requests": [self._requests], "replies": [self._replies], "both": [self._requests, self._replies]}
        if way not in gates:
            raise UsageError(f'the way is "requests", "replies" or "both", not {way!r}')
        return gates[way]

    def _heal(self) -> None:
        self._rules.clear()
        for gate in (self._requests, self._replies):
            gate.delay, gate.swallow, gate.dark, gate.deaf = 0.0, False, False, 0
        self._lit.set()
        for link in list(self._links):
            link.requests.hurry()
            link.replies.hurry()
        if self._listener is None:
            self._listener = self._bound(self.port)
            self._listener.listen(128)
            self._loop.add_reader(self._listener, self._accept)

    def _set(self, way: Way, **values: float) -> None:
        for gate in self._gates(way):
            for name, value in values.items():
                setattr(gate, name, value)

    def _cut(self, how: Action, subscribed: bool = False) -> None:
        for link in list(self._links):
            if link.subscribed or not subscribed:
                link.cut(how)

    def _darken(self, way: Way) -> None:
        self._set(way, dark=True)
        if self._requests.dark:
            self._lit.clear()
        for link in self._links:
            for lane in (link.requests, link.replies):
                if lane.gate.dark and lane.source is not None:
                    lane.source.pause_reading()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._links.add(_Link(self, accepted))
                self._count(connections=1)

    def _decide(self, way: Way, request: bytes | None) -> Action:
        """What to do with a request, or with the reply to it (None: a push, which no rule about requests can hit)."""
        action: Action = "pass"
        if self._gates(way)[0].swallow:
            action = "drop"
        elif request is None and self._replies.deaf:
            self._replies.deaf -= 1
            action = "drop"
        elif request is not None:
            for rule in self._rules:
                if rule.way == way and rule.match in request:
                    rule.left -= 1
                    if rule.left <= 0:
                        self._rules.remove(rule)
                    action = rule.action
                    break
        if action == "drop":
            self._count(dropped=1)
        return action

    def _count(self, command: bytes | None = None, **more: int) -> None:
        with self._changed:
            if command is not None:
                self.commands.append(command)
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)
            self._changed.notify_all()
