"""How a task reaches a host: as `dial` does for threads. The time is bounded by whoever awaits it.

A look-up of a name cannot be ended. So it has a thread of its own, up to LOOK_UPS for a name: the loop's own pool is the
program's, which would find it full, and is waited for when the loop ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from errno import EAGAIN
from importlib import import_module
from typing import Any

from ...runtime import forks
from ...runtime.base import now
from .dial import READ, Address, Attempts
from .greeting import Greeting, NoCredentials, credentials_of

LOOK_UPS = 4


async def dial(host: str, port: int, until: float) -> socket.socket:
    """A connection to one of the host's addresses. Raises OSError; TimeoutError when there is none in time."""
    loop = asyncio.get_running_loop()
    attempts = Attempts(await _addresses(loop, host, port), until)
    ready: list[int] = []
    try:
        while (sock := attempts.turn(ready)) is None:
            ready = await _writable(loop, list(attempts.under_way), attempts.look_at())
        return sock
    finally:
        attempts.close()


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Address]:
    try:  # an address needs no look-up, hence no thread
        return list(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV)
        )
    except socket.gaierror:
        pass
    where = loop, host, port
    others = [one for one, its in list(_looking.items()) if its == where]
    if len(others) < LOOK_UPS:  # those that hang say nothing about a new one
        looking = loop.create_future()
        _looking[looking] = where
        thread = threading.Thread(target=_look_up, args=(looking, where), name="interlock-look-up", daemon=True)
        try:
            thread.start()
        except BaseException as error:
            _looking.pop(looking, None)
            if isinstance(error, RuntimeError):  # no more threads, or the interpreter ends
                raise OSError(EAGAIN, str(error)) from error
            raise
    else:
        looking = others[-1]
    return await asyncio.shield(looking)  # others may wait for it


_Where = tuple[asyncio.AbstractEventLoop, str, int]
_looking: dict[asyncio.Future[list[Address]], _Where] = {}  # threads take theirs out, each in one step


def _look_up(looking: asyncio.Future[list[Address]], where: _Where) -> None:
    """In a thread."""
    loop, host, port = where
    try:
        outcome: list[Address] | Exception = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except Exception as error:  # noqa: BLE001 - raised by whoever waits for it
        outcome = error
    _looking.pop(looking, None)  # here: the loop may have ended
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_looked_up, looking, outcome)


def _looked_up(looking: asyncio.Future[list[Address]], outcome: list[Address] | Exception) -> None:
    if isinstance(outcome, Exception):
        looking.set_exception(outcome)
        looking.exception()  # nobody may be waiting any more, which is nothing to complain of
    else:
        looking.set_result(outcome)


async def _writable(loop: asyncio.AbstractEventLoop, numbers: list[int], until: float) -> list[int]:
    """Those of them that have become writable; none when the moment has come."""
    ready: list[int] = []
    over = loop.create_future()

    def wake(*number: int) -> None:
        ready.extend(number)
        if not over.done():
            over.set_result(None)

    alarm = loop.call_later(max(until - now(), 0.0), wake)
    for number in numbers:
        loop.add_writer(number, wake, number)
    try:
        await over
    finally:
        alarm.cancel()
        for number in numbers:
            loop.remove_writer(number)
    return list(dict.fromkeys(ready))


class AsyncBounded:
    """Goes before redis-py's class: see `dial.Bounded`."""

    until: float
    _reader: Any
    _writer: Any
    _parser: Any
    credential_provider: Any
    _greeted: Any = None

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Redis-py's name for it, since version 6."""
        await self.on_connect()

    async def on_connect(self) -> None:
        """The greeting. Raises OSError, `greeting.Unwelcome`, `greeting.NoCredentials`, `resp.ProtocolError`."""
        if self._greeted is self._writer:  # a unix socket: redis-py asks twice
            return
        self._parser.on_connect(self)  # others may go on with its own ways: Sentinel, and functions of the user's
        sock = getattr(self._writer.get_extra_info("socket"), "_sock", None)  # asyncio's own; another loop has none to give
        if sock is not None:  # a unix socket is known to nobody yet
            forks.close_in_child(sock)
        greeting = Greeting(self, await self._credentials())
        request: bytes | None = greeting.request()
        while request:
            self._writer.write(request)
            request = None
            while request is None:
                if not (data := await self._reader.read(READ)):
                    raise ConnectionResetError("the peer closed the connection")
                request = greeting.heard(data)
        self._greeted = self._writer

    async def _credentials(self) -> Any:
        provider = self.credential_provider
        if not provider:
            return credentials_of(self)
        ask = getattr(provider, "get_credentials_async", None)
        try:
            return await ask() if ask else provider.get_credentials()
        except Exception as error:
            raise NoCredentials(error) from error


class AsyncDialling:
    """Goes before redis-py's class for TCP, or for TLS over it: opens the socket."""

    until: float
    host: Any
    port: Any
    _dialled: socket.socket | None = None

    async def _connect(self) -> None:
        self._dialled = sock = await dial(self.host, self.port, self.until)
        try:
            await super()._connect()  # type: ignore[misc]  # redis-py's
        finally:
            if self._dialled is not None:  # it was not taken
                self._dialled = None
                sock.close()

    def _connection_arguments(self) -> dict[str, Any]:
        arguments = dict(super()._connection_arguments())  # type: ignore[misc]  # redis-py's
        sock, self._dialled = self._dialled, None
        if sock is not None:
            host = arguments.pop("host")
            del arguments["port"]
            arguments["sock"] = sock
            if arguments.get("ssl"):
                arguments["server_hostname"] = host
        return arguments


def bounded(connection_class: type[Any], package: str) -> type[Any]:
    """The class of redis-py or valkey-py, with our way to an address and our greeting."""
    tcp = import_module(f"{package}.asyncio.connection").Connection
    ways = (AsyncBounded, AsyncDialling) if issubclass(connection_class, tcp) else (AsyncBounded,)
    return type(connection_class.__name__, (*ways, connection_class), {})
