"""Connections for threads: one request at a time on each, idle ones kept for the next.

Rules of the file: a connection that owes replies is never given to another token's request. The request that follows an
unanswered one goes down the same connection, behind it, so it cannot overtake it (`_owing`).
"""

from __future__ import annotations

import os
import select
from typing import Any, cast

from ...errors import Unavailable, UsageError
from ...runtime.base import now
from ...runtime.blocking import Wait
from .connect import Recipe
from .resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, Reply, answers

MAX_IDLE = 32
MAX_OWING = 4096  # leases whose last answer was lost and which their program then forgot; far above any burst of failures


class Wire:
    """One connection. `owed` counts the replies that are still to come."""

    __slots__ = ("_again", "_connection", "_parser", "_sock", "dead", "owed")

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # kept: it closes the socket when it is collected
        self._sock = connection._sock
        self._sock.settimeout(0)
        self._parser = Parser()
        self._again: tuple[type[BaseException], ...] = (BlockingIOError,)
        if hasattr(self._sock, "pending"):
            import ssl

            self._again = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.owed = 0
        self.dead = False

    def fresh(self) -> bool:
        """Whether nothing has come in unasked: neither a stray byte nor the peer's goodbye."""
        if self.dead or self.owed:
            return False
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, request: bytes, until: float) -> None:
        """Put a request on the wire. From here on its reply is owed. Raises OSError when the peer is gone."""
        self.owed += 1
        view = memoryview(request)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except self._again:
                poll = select.poll()
                poll.register(self._sock.fileno(), select.POLLOUT)
                if not poll.poll(max(0.0, until - now()) * 1000):
                    raise TimeoutError("the connection takes no more bytes") from None

    async def reply(self, mark: bytes, until: float) -> Reply:
        """The reply to the last request; those owed before it are dropped. Raises OSError, TimeoutError, ProtocolError."""
        while True:
            reply = self._parser.next()
            if reply is INCOMPLETE:
                await self._read(until)
                continue
            self.owed -= 1
            # Replies come in order: with ours here, an older one that is still missing will never come.
            if answers(cast(Reply, reply), mark) or (isinstance(reply, ErrorReply) and self.owed == 0):
                self.owed = 0
                return cast(Reply, reply)
            if self.owed == 0:
                raise ProtocolError("the reply belongs to another request")

    async def _read(self, until: float) -> None:
        pending = getattr(self._sock, "pending", None)
        if not (pending and pending()) and not await Wait(self._sock.fileno(), until):
            raise TimeoutError("no reply in time")
        try:
            data = self._sock.recv(65_536)
        except self._again:
            return
        if not data:
            raise ConnectionResetError("the peer closed the connection")
        self._parser.feed(data)

    def close(self) -> None:
        """Close it. What was sent before still reaches the peer."""
        self.dead = True
        self._sock.close()


class BlockingTransport:
    """See `backend.Transport`."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._idle: list[Wire] = []
        self._owing: dict[str, Wire] = {}  # token → where its unanswered requests went
        self._pid = os.getpid()
        self._closed = False

    async def call(self, request: bytes, mark: bytes, token: str, within: float) -> Reply:
        """See `backend.Transport.call`."""
        self._enter()
        until = now() + within
        wire = self._owing.get(token)
        if wire is None or wire.dead:
            wire = self._take(until)
        reply = await self._exchange(wire, request, mark, token, until)
        self._settle(wire, token)
        return reply

    async def follow(self, request: bytes, mark: bytes, token: str, within: float) -> Reply:
        """See `backend.Transport.follow`."""
        self._enter()
        until = now() + within
        wire = self._owing.get(token)
        if wire is None:
            return None
        try:
            if not wire.dead:
                try:
                    reply = await self._exchange(wire, request, mark, token, until)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
                else:
                    self._settle(wire, token)
                    return reply
            wire = self._take(until)
            reply = await self._exchange(wire, request, mark, token, until)
            self._settle(wire, token)
            return reply
        finally:
            if owing := self._owing.pop(token, None):  # no answer: the bytes are out, and nobody waits for it any more
                owing.close()

    async def close(self) -> None:
        """See `backend.Transport.close`."""
        self._closed = True
        if self._pid == os.getpid():
            for wire in [*self._idle, *self._owing.values()]:
                wire.close()
        self._idle.clear()
        self._owing.clear()

    def _enter(self) -> None:
        if self._closed:
            raise UsageError(f"the client for {self._recipe.address} is closed; make a new one")
        if self._pid != os.getpid():  # after a fork the sockets are the parent's: forget them, say nothing on them
            self._pid = os.getpid()
            self._idle, self._owing = [], {}

    def _take(self, until: float) -> Wire:
        """An idle connection that is still good, or a new one. Raises Unavailable: then nothing was sent."""
        while True:
            try:
                wire = self._idle.pop()  # another thread may take the last one: no test before the pop
            except IndexError:
                return self._connect(until)
            if wire.fresh():
                return wire
            wire.close()

    def _connect(self, until: float) -> Wire:
        connection = self._recipe.make(max(until - now(), 0.001))
        try:
            connection.connect()
            return Wire(connection)
        except BaseException as error:
            connection.disconnect()
            if (ours := self._recipe.explain(error)) is not None:
                raise ours from error
            raise

    async def _exchange(self, wire: Wire, request: bytes, mark: bytes, token: str, until: float) -> Reply:
        try:
            wire.send(request, until)
            return await wire.reply(mark, until)
        except BaseException as error:
            if not token or not isinstance(error, TimeoutError | KeyboardInterrupt | SystemExit):
                wire.close()  # nothing more can be learned or sent on it
            if token:
                self._owe(token, wire)
            if isinstance(error, OSError | ProtocolError):
                raise self._broken(error) from error
            raise

    def _owe(self, token: str, wire: Wire) -> None:
        self._owing[token] = wire
        while len(self._owing) > MAX_OWING:
            self._owing.pop(next(iter(self._owing))).close()

    def _settle(self, wire: Wire, token: str) -> None:
        """The caller has its reply and the connection owes nothing."""
        self._owing.pop(token, None)
        if len(self._idle) < MAX_IDLE and not self._closed:
            self._idle.append(wire)
        else:
            wire.close()

    def _broken(self, error: Exception) -> Unavailable:
        where = self._recipe.address
        if isinstance(error, TimeoutError):
            return Unavailable(
                f"{where} did not answer in time: is it overloaded, frozen or cut off?", backend=where, cause="timeout"
            )
        return Unavailable(
            f"the connection to {where} broke: {str(error) or type(error).__name__}", backend=where, cause="closed"
        )
