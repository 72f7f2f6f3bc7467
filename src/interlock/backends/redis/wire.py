"""One connection of a thread: bytes out, replies in, told apart by their marks; or subscribed, and only heard."""

from __future__ import annotations

import select
from _thread import RLock  # threading itself is forbidden to backends: it invites waiting
from collections.abc import Callable
from contextlib import suppress
from errno import ECONNRESET
from socket import SHUT_RDWR
from typing import Any, cast
from weakref import finalize

from ...errors import Unavailable
from ...runtime.base import now
from ...runtime.blocking import Wait
from .resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, Reply, answers

FULL = 0.001  # seconds between two looks at whether a peer that is slow to read has made room


class Late(Exception):
    """Our own time-out, told from one that a signal handler raises."""


class Wire:
    """One connection. `owed` counts the replies that are still to come."""

    __slots__ = ("__weakref__", "_again", "_close", "_parser", "_sock", "carried", "dead", "owed", "torn")

    def __init__(self, connection: Any) -> None:
        self._sock = connection._sock
        # For those who forget to close: a socket that is collected before its owner complains. What is called must not know
        # this object. Not at exit: a daemon thread may be using it (see `BlockingTransport.rest`).
        self._close = finalize(self, _close, self._sock, connection)
        self._close.atexit = False
        self._sock.settimeout(0)
        self._parser = Parser()
        self._again: tuple[type[BaseException], ...] = (BlockingIOError,)
        if hasattr(self._sock, "pending"):
            import ssl

            self._again = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.owed = 0
        self.dead = False
        self.torn = False
        self.carried: set[str] = set()  # the scripts whose texts it has carried: see `scripts`

    def readable(self) -> bool:
        """Whether something has come in: a reply, or the peer's goodbye."""
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def send(self, request: bytes, until: float) -> None:
        """Put a request on the wire. From here on its reply is owed. Raises OSError when the peer is gone, Late.

        A batch may be more than the peer takes at once: in a race the other nodes get theirs meanwhile.
        """
        self.owed += 1
        self.torn = True  # until all of it is out: nothing may follow half a request
        rest = self._push(memoryview(request))
        while rest:
            if now() >= until:
                raise Late
            await Wait(None, now() + FULL)
            rest = self._push(rest)
        self.torn = False

    def _push(self, rest: memoryview) -> memoryview:
        """Send what there is room for. What is left."""
        try:
            while rest:
                rest = rest[self._sock.send(rest) :]
        except self._again:
            pass
        return rest

    async def reply(self, mark: bytes, until: float) -> Reply:
        """The reply to the last request; those owed before it are dropped. Raises OSError, Late, ProtocolError."""
        while True:
            reply = self._parser.next()
            if reply is INCOMPLETE:
                pending = getattr(self._sock, "pending", None)
                if not (pending and pending()) and not await Wait(self._sock.fileno(), until):
                    raise Late
                self._read()
                continue
            self.owed -= 1
            self._note(reply)
            # Replies come in order: with ours here, an older one that is still missing will never come.
            if answers(cast(Reply, reply), mark) or (isinstance(reply, ErrorReply) and self.owed == 0):
                self.owed = 0
                return cast(Reply, reply)
            if self.owed == 0:
                raise ProtocolError("the reply belongs to another request")

    def drain(self) -> None:
        """Take in what has come, without waiting. Raises OSError, ProtocolError."""
        while self.owed and self.readable():
            self._read()
            while self.owed and (reply := self._parser.next()) is not INCOMPLETE:
                self.owed -= 1
                self._note(reply)

    def _note(self, reply: object) -> None:
        if isinstance(reply, ErrorReply):
            self.carried.clear()

    async def heard(self, until: float) -> list[Reply]:
        """What has come in unasked, on a connection that is subscribed; nothing at `until`. Raises OSError, ProtocolError."""
        heard: list[Reply] = []
        while True:
            while (reply := self._parser.next()) is not INCOMPLETE:
                heard.append(cast(Reply, reply))
            if heard:
                return heard
            pending = getattr(self._sock, "pending", None)
            if not (pending and pending()) and not await Wait(self._sock.fileno(), until):
                return heard
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(65_536)
        except self._again:
            return
        if not data:
            raise ConnectionResetError(ECONNRESET, "the peer closed the connection")
        self._parser.feed(data)

    def say_last(self, request: bytes) -> None:
        """Send what there is room for: the wire is closed behind it. Raises OSError when the peer is gone."""
        self._push(memoryview(request))

    def hang_up(self) -> None:
        """Wake whoever waits for this connection: there is nothing more to come."""
        with suppress(OSError):
            self._sock.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Close it. What was sent before still reaches the peer."""
        self.dead = True
        self._close()


def _close(sock: Any, _: object) -> None:
    sock.close()


class Listener:
    """See `transport.Ear`."""

    def __init__(self, wire: Wire, broken: Callable[[BaseException], Unavailable]) -> None:
        self._wire = wire
        self._broken = broken
        self._guard = RLock()  # a descriptor that was closed may be somebody else's by now
        self._hearing = False
        self.closed = False

    async def say(self, request: bytes, until: float) -> None:
        """See `Ear.say`."""
        try:
            await self._wire.send(request, until)
        except (OSError, Late) as error:
            raise self._broken(error) from error

    async def hear(self, until: float) -> list[Reply]:
        """See `Ear.hear`."""
        with self._guard:
            if self.closed:
                raise self._broken(ConnectionResetError("it was closed"))
            self._hearing = True
        try:
            return await self._wire.heard(until)
        except (OSError, ProtocolError) as error:
            raise self._broken(error) from error
        finally:
            self._heard()

    def _heard(self) -> None:
        with self._guard:
            self._hearing = False
            if self.closed:  # meanwhile
                self._wire.close()

    def close(self) -> None:
        """See `Ear.close`. Whoever hears at this moment is woken, and closes it."""
        with self._guard:
            self.closed = True
            if self._hearing:
                self._wire.hang_up()
            else:
                self._wire.close()
