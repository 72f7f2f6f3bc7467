"""The connection for tasks: one, shared by all of them, replies told apart by their marks.

Rules of the file
- A request is unanswered until its caller has the answer, whether or not the reply has arrived; until then its token is on
  record (`_owing`), and what follows goes down the same connection.
- A connection on which a reply is overdue is *retired*: new requests go elsewhere, those that must follow an unanswered one
  still go down it. It is closed when nobody is owed anything on it, or long after, with undos as the last things sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple, cast

from ...errors import Unavailable, UsageError
from ...runtime import forks
from .backend import Undo
from .connect import Recipe
from .resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, Reply, answers

OVERDUE = 5.0  # seconds after which an answer that nobody waits for is not expected any more
CLOSING = 1.0  # seconds for the goodbyes of connections
LATE: Final = object()
BROKEN: Final = object()


class Asked(NamedTuple):
    """A request on the wire."""

    mark: bytes
    future: asyncio.Future[Any]
    at: float


class Wire(asyncio.Protocol):
    """One connection. redis-py opened it and did the handshake; from then on its bytes come here."""

    def __init__(self, connection: Any) -> None:
        # The writer is kept alive: it closes the connection when it is collected.
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # ours now: redis-py would close it with its object
        self._transport = cast(asyncio.Transport, self._writer.transport)
        self._transport.set_protocol(self)
        self._waiting: deque[Asked] = deque()
        self._parser = Parser()
        self.gone = asyncio.get_running_loop().create_future()  # until the close is done
        self.dead = False
        self.forgetful = False  # an error came that nobody read: the node may have lost its scripts
        self.users = 0  # requests whose callers do not have their answers yet

    def send(self, request: bytes, mark: bytes) -> asyncio.Future[Any]:
        """Put a request on the wire. The future becomes its reply, or BROKEN."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self.dead or self._transport.is_closing():
            future.set_result(BROKEN)
        else:
            self._waiting.append(Asked(mark, future, loop.time()))
            self._transport.write(request)
        return future

    def data_received(self, data: bytes) -> None:
        """Give each reply to the request whose mark it carries; one whose caller has left is dropped."""
        self._parser.feed(data)
        try:
            while (reply := self._parser.next()) is not INCOMPLETE:
                mark, future, _ = self._waiting.popleft()
                # Replies come in order: when one is missing it will never come, and its request stays unanswered.
                while not (answers(cast(Reply, reply), mark) or isinstance(reply, ErrorReply)):
                    _settle(future, BROKEN)
                    mark, future, _ = self._waiting.popleft()
                if future.done() and isinstance(reply, ErrorReply):
                    self.forgetful = True
                _settle(future, reply)
        except (ProtocolError, IndexError):  # not RESP, or a reply to nothing that was asked
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who waits."""
        self.dead = True
        for asked in self._waiting:
            _settle(asked.future, BROKEN)
        self._waiting.clear()
        if not self.gone.done():
            self.gone.set_result(None)

    def lag(self, now: float) -> float:
        """For how long the oldest request has been without a reply."""
        return now - self._waiting[0].at if self._waiting and not self.dead else 0.0

    def close(self, last: bytes = b"") -> None:
        """Close it, after one last thing to send. What was sent before still reaches the peer."""
        if last and not self.dead:
            self._transport.write(last)
        self.dead = True
        self._writer.close()

    def abort(self) -> None:
        """No goodbye. Harmless when it is closed."""
        self._transport.abort()


class AsyncTransport:
    """See `backend.Transport`."""

    def __init__(self, recipe: Recipe) -> None:
        self.age = 0
        self._recipe = recipe
        self._wire: Wire | None = None
        self._connecting: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owing: dict[str, tuple[Wire, Undo, float]] = {}  # and since when
        self._closed = False
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. To close a connection here would take it out of the parent's epoll set as well."""
        forks.keep((self._wire, list(self._owing.values())))
        self._wire, self._closed = None, True
        self._owing.clear()

    async def call(self, request: bytes, mark: bytes, token: str, within: float, undo: Undo = None) -> Reply:
        """See `backend.Transport.call`."""
        until = self._enter() + within
        wire = self._owed_on(token) or await self._take(until)
        reply = await self._exchange(wire, request, mark, token, until, undo)
        self.drop(token)
        return reply

    async def follow(self, request: bytes, mark: bytes, token: str, within: float) -> Reply:
        """See `backend.Transport.follow`."""
        until = self._enter() + within
        if token not in self._owing:
            return None
        try:
            wire = self._owed_on(token)
            if wire is not None:
                try:
                    return await self._exchange(wire, request, mark, token, until, None)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
            return await self._exchange(await self._take(until), request, mark, token, until, None)
        finally:
            self.drop(token)

    def drop(self, token: str) -> None:
        """See `backend.Transport.drop`."""
        if (owing := self._owing.pop(token, None)) is not None:
            self._sweep(owing[0])

    def lag(self) -> float:
        """See `backend.Transport.lag`."""
        return self._wire.lag(self._enter()) if self._wire is not None else 0.0

    async def close(self) -> None:
        """See `backend.Transport.close`."""
        self._closed = True
        wires = {wire for wire, *_ in self._owing.values()} | ({self._wire} if self._wire is not None else set())
        self._wire = None
        self._owing.clear()
        for wire in wires:
            wire.close()
        if wires:
            await asyncio.wait([wire.gone for wire in wires], timeout=CLOSING)
        for wire in wires:
            wire.abort()  # a TLS goodbye that a frozen peer does not answer is not waited for

    def _enter(self) -> float:
        """The loop's time, once it is clear that this client may be used here."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise UsageError(f"the client for {self._recipe.address} is closed; make a new one")
        if self._loop is None:
            self._loop, self._connecting = loop, asyncio.Lock()
        elif self._loop is not loop:
            raise UsageError("this AsyncClient belongs to another event loop; make one client in each loop")
        return loop.time()

    async def _take(self, until: float) -> Wire:
        """The shared connection, opened if need be. Raises Unavailable: then nothing was sent."""
        now = asyncio.get_running_loop().time()
        if self._owing:
            self._prune(now)
        if self._wire is not None and self._wire.lag(now) > OVERDUE:
            self._give_up(self._wire)
        if self._wire is not None and not self._wire.dead:
            if self._wire.forgetful:
                self._wire.forgetful = False
                self.age += 1
            return self._wire
        assert self._connecting is not None  # noqa: S101 - set by _enter
        try:
            async with asyncio.timeout_at(until), self._connecting:
                if self._wire is None or self._wire.dead:
                    wire = await self._connect(until)
                    if self._closed:  # meanwhile
                        wire.close()
                        self._enter()
                    self._wire = wire
                return self._wire
        except TimeoutError as error:
            raise self._recipe.explain(error) or error from error

    async def _connect(self, until: float) -> Wire:
        connection = self._recipe.make(max(until - asyncio.get_running_loop().time(), 0.001))
        try:
            await connection.connect()
            self.age += 1
            return Wire(connection)
        except BaseException as error:
            connection._close()  # at once, and not awaited: the caller may be cancelled
            if (ours := self._recipe.explain(error)) is not None:
                raise ours from error
            raise

    async def _exchange(self, wire: Wire, request: bytes, mark: bytes, token: str, until: float, undo: Undo) -> Reply:
        loop = asyncio.get_running_loop()
        where = self._recipe.address
        wire.users += 1
        future = wire.send(request, mark)
        alarm = loop.call_at(until, _settle, future, LATE)
        try:
            reply = await future
            if reply is BROKEN:
                raise Unavailable(f"the connection to {where} broke", backend=where, cause="closed")
            if reply is LATE:
                if wire is self._wire:
                    self._wire = None  # retired
                raise Unavailable(
                    f"{where} did not answer in time: is it overloaded, frozen or cut off?", backend=where, cause="timeout"
                )
        except BaseException:
            if token:
                before = self._owing.pop(token, None)
                self._owing[token] = wire, undo, loop.time()
                if before is not None and before[0] is not wire:
                    self._sweep(before[0])
            raise
        finally:
            alarm.cancel()
            wire.users -= 1
            self._sweep(wire)
        return cast(Reply, reply)

    def _owed_on(self, token: str) -> Wire | None:
        """The connection that this token's unanswered requests went down, if it is alive."""
        owing = self._owing.get(token)
        return owing[0] if owing is not None and not owing[0].dead else None

    def _prune(self, now: float) -> None:
        """Forget the oldest records once whoever was to follow has done so, or never will."""
        while self._owing:
            token, (wire, _, since) = next(iter(self._owing.items()))
            if now - since < OVERDUE:
                return
            if wire.lag(now) > OVERDUE:
                self._give_up(wire)
            self.drop(token)

    def _sweep(self, wire: Wire) -> None:
        """Close a retired connection that nobody needs."""
        if wire is self._wire or wire.dead or wire.users:
            return
        if all(other is not wire for other, *_ in self._owing.values()):
            wire.close()

    def _give_up(self, wire: Wire) -> None:
        """Nothing will come any more. What was asked may still happen: undo it as the last thing, and close."""
        if wire is self._wire:
            self._wire = None
        undos = [undo() for other, undo, _ in self._owing.values() if other is wire and undo is not None]
        wire.close(b"".join(undos))


def _settle(future: asyncio.Future[Any], outcome: object) -> None:
    """Wake whoever waits, if somebody still does."""
    if not future.done():
        future.set_result(outcome)
