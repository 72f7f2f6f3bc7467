"""One connection of a thread: bytes out, replies in, told apart by their marks; or subscribed, and only heard."""

from __future__ import annotations

import select
from _thread import RLock  # threading itself is forbidden to backends: it invites waiting
from collections.abc import Callable
from contextlib import suppress
from errno import ECONNRESET
from os import fstat, getpid
from socket import SHUT_RDWR
from typing import Any, cast
from weakref import finalize

from ...errors import Unavailable
from ...runtime.base import by_a_handler, now
from ...runtime.blocking import Wait
from .resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, Reply

READ = 16_384  # bytes at a time: a reply is a hundred
AT_ONCE = 64  # reads without a look at the clock: a peer may go on sending for ever
NOTHING = memoryview(b"")
FULL = 0.001  # seconds between two looks at whether a peer that is slow to read has made room


class Late(Exception):
    """Our own time-out, told from one that a signal handler raises."""


class Wire:
    """One connection. `owed` counts the replies that are still to come."""

    __slots__ = (
        "__weakref__",
        "_again",
        "_close",
        "_parser",
        "_pending",
        "_sock",
        "_wait",
        "carried",
        "dead",
        "owed",
        "pid",
        "torn",
    )

    def __init__(self, connection: Any) -> None:
        self._sock = connection._sock
        # For those who forget to close: a socket that is collected before its owner complains. What is called must not know
        # this object. Not at exit: a daemon thread may be using it (see `BlockingTransport.rest`).
        self._close = finalize(self, _close, self._sock, _identity(self._sock), connection)
        self._close.atexit = False
        self._sock.settimeout(0)
        self._parser = Parser()
        self._again: tuple[type[BaseException], ...] = (BlockingIOError,)
        self._wait = Wait(self._sock.fileno(), 0.0)  # one for all: a connection has one user at a time
        self._wait.poll = select.poll()
        self._wait.poll.register(self._sock.fileno(), select.POLLIN)
        self._pending = getattr(self._sock, "pending", None)  # what TLS has read and not given out
        if self._pending is not None:
            import ssl

            self._again = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.owed = 0
        self.dead = False
        self.torn = False
        self.pid = getpid()  # whose it is
        self.carried: set[str] = set()  # the scripts whose texts it has carried: see `scripts`

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return cast(int, self._sock.fileno())

    @property
    def spoilt(self) -> bool:
        """Whether it was interrupted amid a request or a reply: nothing can follow."""
        return self.torn or self._parser.amid

    def readable(self) -> bool:
        """Whether something has come in: a reply, or the peer's goodbye."""
        return bool(self._wait.poll.poll(0))

    async def ask(self, request: bytes, mark: bytes, until: float) -> Reply:
        """Send a request and wait for its reply; those owed before it are dropped. Raises OSError, Late, ProtocolError."""
        self.owed += 1
        self.torn = True  # until all of it is out: nothing may follow half a request
        if rest := self._push(request):
            await self._push_on(rest, until)
        self.torn = False
        next_reply = self._parser.next
        while True:
            if not (self._pending and self._pending()):
                self._wait.until = until
                if not await self._wait:
                    raise Late
            self._read()
            while (reply := next_reply()) is not INCOMPLETE:
                self.owed -= 1
                # Replies come in order: with ours here, an older one that is still missing will never come.
                if type(reply) is list and reply and reply[-1] == mark:
                    self.owed = 0
                    return reply
                if type(reply) is ErrorReply:
                    self.carried.clear()
                    if self.owed == 0:
                        return reply
                if self.owed == 0:
                    raise ProtocolError("the reply belongs to another request")
            if now() >= until:  # bytes may go on coming for ever without becoming a reply
                raise Late

    async def send(self, request: bytes, until: float) -> None:
        """Put a request on the wire, on a connection that is subscribed. Raises OSError when the peer is gone, Late."""
        self.torn = True
        if rest := self._push(request):
            await self._push_on(rest, until)
        self.torn = False

    async def _push_on(self, rest: memoryview, until: float) -> None:
        """A batch may be more than the peer takes at once: in a race the other nodes get theirs meanwhile."""
        while rest:
            if now() >= until:
                raise Late
            await Wait(None, now() + FULL)
            rest = self._push(rest)

    def _push(self, request: bytes | memoryview) -> memoryview:
        """Send what there is room for. What is left."""
        sent, size = 0, len(request)
        try:
            sent = self._sock.send(request)
            while sent < size:
                sent += self._sock.send(memoryview(request)[sent:])
        except self._again:
            pass
        return NOTHING if sent == size else memoryview(request)[sent:]

    def drain(self) -> None:
        """Take in what has come, without waiting. Raises OSError, ProtocolError."""
        for _ in range(AT_ONCE):
            if not self.owed or not self.readable():
                return
            self._read()
            while self.owed and (reply := self._parser.next()) is not INCOMPLETE:
                self.owed -= 1
                if isinstance(reply, ErrorReply):
                    self.carried.clear()

    async def heard(self, until: float) -> list[Reply]:
        """What has come in unasked, on a connection that is subscribed; nothing at `until`. Raises OSError, ProtocolError."""
        heard: list[Reply] = []
        late = False
        while True:
            while (reply := self._parser.next()) is not INCOMPLETE:
                heard.append(cast(Reply, reply))
            if heard or late:
                return heard
            if not (self._pending and self._pending()):
                self._wait.until = until
                if not await self._wait:
                    return heard
            self._read()
            late = now() >= until  # bytes may go on coming for ever without becoming a message

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ)
        except self._again:
            return
        if not data:
            raise ConnectionResetError(ECONNRESET, "the peer closed the connection")
        self._parser.feed(data)

    def send_unawaited(self, request: bytes) -> None:
        """Send a request whose reply nobody waits for. Raises OSError when the peer is gone, or takes no more."""
        self.owed += 1
        if self._push(request):
            raise ConnectionResetError(ECONNRESET, "the peer takes no more")

    def send_final(self, request: bytes) -> None:
        """Send what there is room for: the wire is closed behind it. Raises OSError when the peer is gone."""
        self._push(request)

    def hang_up(self) -> None:
        """Wake whoever waits for this connection: there is nothing more to come."""
        with suppress(OSError):
            self._sock.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Close it. What was sent before still reaches the peer."""
        self.dead = True
        self._close()


def _close(sock: Any, identity: object, _: object) -> None:
    if sock.fileno() >= 0 and _identity(sock) != identity:  # somebody closed our descriptor, and it means another file by now
        sock.detach()
    sock.close()


def _identity(sock: Any) -> object:
    with suppress(OSError):
        found = fstat(sock.fileno())
        return found.st_dev, found.st_ino
    return None


class BlockingSubscription:
    """See `transport.Subscription`."""

    def __init__(self, wire: Wire, broken: Callable[[BaseException], Unavailable]) -> None:
        self._wire = wire
        self._broken = broken
        self._guard = RLock()  # a descriptor that was closed may be somebody else's by now
        self._hearing = False
        self.closed = False

    async def say(self, request: bytes, until: float) -> None:
        """See `Subscription.say`."""
        try:
            await self._wire.send(request, until)
        except (OSError, Late) as error:
            if by_a_handler(error):
                raise
            raise self._broken(error) from error

    async def hear(self, until: float) -> list[Reply]:
        """See `Subscription.hear`."""
        with self._guard:
            if self.closed:
                raise self._broken(ConnectionResetError("it was closed"))
            self._hearing = True
        try:
            return await self._wire.heard(until)
        except (OSError, ProtocolError) as error:
            if by_a_handler(error):
                raise
            raise self._broken(error) from error
        finally:
            self._heard()

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self._wire.fileno()

    def _heard(self) -> None:
        with self._guard:
            self._hearing = False
            if self.closed:  # meanwhile
                self._wire.close()

    def close(self) -> None:
        """See `Subscription.close`. Whoever hears at this moment is woken, and closes it."""
        with self._guard:
            self.closed = True
            if self._hearing:
                self._wire.hang_up()
            else:
                self._wire.close()
