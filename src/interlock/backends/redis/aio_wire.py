"""One connection of a loop: shared by all its tasks, replies told apart by their marks; or subscribed, and only heard."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple, cast

from ...errors import Unavailable
from ...runtime import forks
from ...runtime.aio import TaskBell
from ...runtime.base import now
from .refusals import broken
from .resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, Reply, answers

UNHEARD = 1_048_576  # bytes that a subscription takes in before somebody hears: what anybody may publish must not pile up here
LATE: Final = object()
BROKEN: Final = object()


class Asked(NamedTuple):
    """A request on the wire."""

    mark: bytes
    future: asyncio.Future[Any]
    at: float
    until: float
    tokens: Sequence[str]


class Stream(asyncio.Protocol):
    """One connection. redis-py opened it and did the handshake; from then on its bytes come here."""

    def __init__(self, connection: Any) -> None:
        # The writer is kept alive: it closes the connection when it is collected.
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # ours now: redis-py would close it with its object
        self._transport = cast(asyncio.Transport, self._writer.transport)
        self._transport.set_protocol(self)
        self._parser = Parser()
        sock = self._transport.get_extra_info("socket")
        self._socket = getattr(sock, "_sock", None)  # asyncio's own; another loop has none to give
        if self._socket is not None:
            forks.close_in_child(self._socket)
        forks.watch(self)
        self.gone = asyncio.get_running_loop().create_future()  # until the close is done
        self.dead = False
        self.why = ""  # it broke, if there is more to say than that

    def disown(self) -> None:
        """See `forks`. To close it by the loop's means would take it out of the parent's epoll set as well."""
        self.dead = True
        forks.keep(self._writer)
        if self._socket is None:
            forks.sever(self.fileno())

    def eof_received(self) -> None:
        """The peer has closed it. `connection_lost` comes a turn later; who asks meanwhile must not be sent here again."""
        self.dead = True

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self.dead = True
        self.why = self.why or str(error or "")
        if not self.gone.done():
            self.gone.set_result(None)

    def close(self, last: bytes = b"") -> None:
        """Close it, after one last thing to send. What was sent before still reaches the peer."""
        if last and not self.dead:
            self._transport.write(last)
        self.dead = True
        try:
            self._writer.close()
        except RuntimeError:  # its loop is closed: nobody would come to it
            if self._socket is not None:
                self._socket.close()
            self.connection_lost(None)

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        sock = self._transport.get_extra_info("socket")
        return -1 if sock is None else cast(int, sock.fileno())

    def abort(self) -> None:
        """No goodbye. Harmless when it is closed."""
        self._transport.abort()


class SharedWire(Stream):
    """One connection for requests and their replies.

    What is asked while others wait for theirs goes out at the end of the loop's turn, all in one write. One alarm, at the
    earliest moment at which anybody gives up, serves all.
    """

    def __init__(self, connection: Any, late: Callable[[Sequence[str], object], None] = lambda tokens, future: None) -> None:
        super().__init__(connection)
        self._late = late  # told of a reply that nobody waits for any more
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Asked] = deque()
        self._joined: list[bytes] = []  # what goes out with the next write
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self.carried: set[str] = set()  # the scripts whose texts it has carried: see `scripts`
        self.users = 0  # requests whose callers do not have their answers yet

    def send(self, request: bytes, mark: bytes, until: float, tokens: Sequence[str] = ()) -> asyncio.Future[Any]:
        """Put a request on the wire. The future becomes its reply, or BROKEN; or LATE at the moment `until`."""
        future = self._loop.create_future()
        if self.dead or self._transport.is_closing():
            self.dead = True  # also if it broke while something was written, and `connection_lost` is still to come
            future.set_result(BROKEN)
            return future
        alone = not self._waiting
        self._waiting.append(Asked(mark, future, now(), until, tokens))
        if until < self._alarm_at:
            self._set_alarm(until)
        if self._joined:
            self._joined.append(request)
        elif alone:
            self._transport.write(request)
        else:
            self._joined.append(request)
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        joined, self._joined = self._joined, []
        if joined and not self._transport.is_closing():
            self._transport.write(b"".join(joined))

    def close(self, last: bytes = b"") -> None:
        """See `Stream.close`."""
        self._flush()
        super().close(last)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(at - now(), 0.0), self._look)

    def _look(self) -> None:
        """Tell those whose time is up, and see when the next one's will be."""
        moment, self._alarm, self._alarm_at = now(), None, inf
        for asked in self._waiting:
            if asked.until <= moment:
                settle(asked.future, LATE)
        ahead = [asked.until for asked in self._waiting if not asked.future.done()]
        if ahead:
            self._set_alarm(min(ahead))

    def data_received(self, data: bytes) -> None:
        """Give each reply to the request whose mark it carries; one whose caller has left is dropped. Who waits is on record
        until it has been told: what a signal's handler raises here closes the connection, and then everybody is told."""
        self._parser.feed(data)
        waiting, next_reply = self._waiting, self._parser.next
        try:
            while (reply := next_reply()) is not INCOMPLETE:
                mark, future, _, _, _ = waiting[0]
                # Replies come in order: when one is missing it will never come, and its request stays unanswered.
                while not (answers(cast(Reply, reply), mark) or isinstance(reply, ErrorReply)):
                    settle(future, BROKEN)
                    waiting.popleft()
                    mark, future, _, _, _ = waiting[0]
                if type(reply) is ErrorReply:
                    self.carried.clear()
                if not future.done():
                    future.set_result(reply)
                else:
                    self._late(waiting[0].tokens, future)
                waiting.popleft()
        except (ProtocolError, IndexError) as error:
            self.why = str(error) if isinstance(error, ProtocolError) else "a reply to nothing that was asked"
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who waits."""
        for asked in self._waiting:
            settle(asked.future, BROKEN)
        self._waiting.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        super().connection_lost(error)

    def on_way(self) -> list[str]:
        """The tokens of requests whose callers still wait."""
        return [token for asked in self._waiting if not asked.future.done() for token in asked.tokens]

    def lag(self) -> float:
        """For how long the oldest request has been without a reply."""
        return now() - self._waiting[0].at if self._waiting and not self.dead else 0.0


class AsyncSubscription(Stream):
    """See `transport.Subscription`."""

    def __init__(self, connection: Any, address: str) -> None:
        super().__init__(connection)
        self._address = address
        self._heard: list[Reply] = []
        self._unheard = 0  # bytes
        self._bell = TaskBell()

    async def say(self, request: bytes, until: float) -> None:
        """See `Subscription.say`."""
        if self.dead or self._transport.is_closing():
            raise self._broken()
        self._transport.write(request)

    async def hear(self, until: float) -> list[Reply]:
        """See `Subscription.hear`. What came before the connection broke counts."""
        while not self._heard:
            if self.dead:
                raise self._broken()
            self._take_in()  # it may be one message, larger than that, which is passed over
            if not await self._bell.wait(until):
                break
        heard, self._heard = self._heard, []
        self._take_in()
        return heard

    def _take_in(self) -> None:
        """Somebody hears: there is room again."""
        if self._unheard > UNHEARD and not self.dead:
            self._transport.resume_reading()
        self._unheard = 0

    def data_received(self, data: bytes) -> None:
        """Keep it for whoever hears. If nobody does, the rest stays with the server, which hangs up at last."""
        if self._unheard <= UNHEARD < self._unheard + len(data):
            self._transport.pause_reading()
        self._unheard += len(data)
        self._parser.feed(data)
        try:
            while (reply := self._parser.next()) is not INCOMPLETE:
                self._heard.append(cast(Reply, reply))
        except ProtocolError as error:
            self.why = str(error)
            self.close()
        self._bell.ring()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever hears."""
        super().connection_lost(error)
        self._bell.ring()

    def close(self, last: bytes = b"") -> None:
        """See `Subscription.close`."""
        super().close(last)
        self._bell.ring()

    def _broken(self) -> Unavailable:
        return broken("the inbox's connection", self._address, self.why)


def settle(future: asyncio.Future[Any], outcome: object) -> None:
    """Wake whoever waits, if somebody still does."""
    if not future.done():
        future.set_result(outcome)
