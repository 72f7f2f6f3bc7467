"""How a thread reaches a host: its name looked up, its addresses tried side by side, the first words said, all by one moment.

redis-py knows how to make a connection (TLS, Sentinel, credentials); its time-outs are for one step each, and one address after
the other. So its class is derived from (`bounded`): the addresses are tried here, the greeting is ours, and whatever it does in
between has what is left of the time.

A look-up of a name cannot be bounded, nor can a credential provider: who waits for a connection does so for a thread that
makes it (`blocking.Hello`), and not beyond the moment.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from itertools import chain, zip_longest
from math import ceil
from typing import Any

from ...runtime import forks
from ...runtime.base import now
from .greeting import Greeting, NoCredentials, credentials_of

NEXT = 0.25  # seconds that an address has for itself, before the next one is tried as well
READ = 16_384

Address = tuple[Any, ...]  # as getaddrinfo gives it


class Attempts:
    """Connections to the addresses of one host, begun one after the other; the first that is there wins.

    An address that swallows packets costs a moment, not all the time there is; one that refuses costs nothing.
    """

    def __init__(self, addresses: Iterable[Address], until: float) -> None:
        kinds: dict[int, list[Address]] = {}
        for address in addresses:
            kinds.setdefault(address[0], []).append(address)
        # In turns, the resolver's favourite first: all addresses of one family may be out of reach.
        self._ahead = [one for one in chain.from_iterable(zip_longest(*kinds.values())) if one is not None]
        self._pause = min(NEXT, max(until - now(), 0.0) / (len(self._ahead) + 1))
        self._until = until
        self._next_at = 0.0
        self._error: OSError = OSError("the name has no address")
        self.under_way: dict[int, socket.socket] = {}  # by descriptor: to be looked at once they are writable

    def turn(self, ready: Iterable[int]) -> socket.socket | None:
        """Look at those that are writable, and begin what is due. The connection, once there is one.

        Raises TimeoutError when the moment has come, or the last OSError when no address is left.
        """
        for number in ready:
            tried = self.under_way.pop(number)
            if not (error := tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                return tried
            self._failed(tried, OSError(error, os.strerror(error)))
        moment = now()
        if moment >= self._until:
            raise TimeoutError("no address answered in time")
        while self._ahead and (moment >= self._next_at or not self.under_way):
            self._next_at = moment + self._pause
            if (sock := self._begin(self._ahead.pop(0))) is not None:
                return sock
        if not self.under_way:
            raise self._error
        return None

    def look_at(self) -> float:
        """When to take the next turn, if none becomes writable."""
        return min(self._next_at, self._until) if self._ahead else self._until

    def close(self) -> None:
        """Give up those that are under way."""
        for sock in self.under_way.values():
            sock.close()
        self.under_way.clear()

    def _begin(self, address: Address) -> socket.socket | None:
        family, kind, protocol, _, where = address
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            self._error = error
            return None
        forks.close_in_child(sock)
        try:
            sock.setblocking(False)
            sock.connect(where)
        except BlockingIOError:
            self.under_way[sock.fileno()] = sock
            return None
        except OSError as error:
            self._failed(sock, error)
            return None
        return sock

    def _failed(self, sock: socket.socket, error: OSError) -> None:
        self._error = error
        self._next_at = 0.0  # the next one at once
        sock.close()


def dial(addresses: Iterable[Address], until: float) -> socket.socket:
    """A connection to one of the addresses. It does not block. Raises OSError; TimeoutError when there is none in time."""
    attempts = Attempts(addresses, until)
    ready: list[int] = []
    try:
        while (sock := attempts.turn(ready)) is None:
            poll = select.poll()
            for number in attempts.under_way:
                poll.register(number, select.POLLOUT)
            ready = [number for number, _ in poll.poll(max(ceil((attempts.look_at() - now()) * 1000), 0))]
        return sock
    finally:
        attempts.close()


def left(until: float) -> float:
    """Seconds. Raises TimeoutError when there are none."""
    if (seconds := until - now()) <= 0:
        raise TimeoutError("no time is left")
    return seconds


class Number:
    """A socket by its number, while TLS is being put around it: the object that was known has lost it, and the new one is not
    known before the handshake is over. In a forked child the number stays taken, since that object has it there."""

    def __init__(self, sock: socket.socket) -> None:
        self._number = sock.fileno()
        self._found = os.fstat(self._number)
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. Nothing is done to another file of that number, or to none."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._number), self._found):
                forks.sever(self._number)


class Bounded:
    """Goes before redis-py's class: what it connects is known here, and greeted by us."""

    until: float
    number: Number | None = None
    _sock: Any
    _parser: Any
    credential_provider: Any

    def _connect(self) -> Any:
        sock = super()._connect()  # type: ignore[misc]  # redis-py's
        forks.close_in_child(sock)
        self.number = None
        return sock

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Redis-py's name for it, since version 6."""
        self.on_connect()

    def on_connect(self) -> None:
        """The greeting. Raises OSError, `greeting.Unwelcome`, `greeting.NoCredentials`, `resp.ProtocolError`."""
        self._parser.on_connect(self)  # others may go on with its own ways: Sentinel, and functions of the user's
        sock = self._sock
        greeting = Greeting(self, self._credentials())
        request: bytes | None = greeting.request()
        while request:
            sock.settimeout(left(self.until))
            sock.sendall(request)
            request = None
            while request is None:
                sock.settimeout(left(self.until))
                if not (data := sock.recv(READ)):
                    raise ConnectionResetError("the peer closed the connection")
                request = greeting.heard(data)
        sock.settimeout(left(self.until))  # for what others may still have to say

    def _credentials(self) -> Any:
        provider = self.credential_provider
        try:
            return provider.get_credentials() if provider else credentials_of(self)
        except Exception as error:
            raise NoCredentials(error) from error


class Dialling:
    """Stands behind redis-py's class for TCP, or for TLS over it, and before its base: opens the socket."""

    until: float

    def _connect(self: Any) -> Any:
        kind = getattr(self, "socket_type", 0)
        sock = dial(socket.getaddrinfo(self.host, self.port, kind, socket.SOCK_STREAM), self.until)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.socket_keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in (self.socket_keepalive_options or {}).items():
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.settimeout(left(self.until))
            self.number = Number(sock)
        except BaseException:
            sock.close()
            raise
        return sock


def bounded(connection_class: type[Any], package: str) -> type[Any]:
    """The class of redis-py or valkey-py, with `until` instead of time-outs."""
    tcp = import_module(f"{package}.connection").Connection
    bases: tuple[type[Any], ...] = (Bounded, connection_class)
    if issubclass(connection_class, tcp):
        dialling = type("Dialling", (Dialling, tcp), {})
        bases = (Bounded, dialling) if connection_class is tcp else (Bounded, connection_class, dialling)
    return type(connection_class.__name__, bases, {})
