"""Where announcements arrive: one datagram socket per client, and how others reach it.

Its name is an abstract one: it lives in the kernel, belongs to no directory, and ends with the last descriptor. So a waiter
that was killed leaves nothing behind, and whoever asks for its inbox learns at once that it is gone.

Invariants
- Nobody ever waits for a listener: a datagram is taken at once, or it is lost.
- A buffer that may have overflowed is reported, by `hear`, as an inbox that broke. (It may be as short as ten datagrams.)
- A forked child closes its copy at once: it must not read what is the parent's, nor keep a dead parent's inbox alive.
- The name is public (/proc/net/unix), so anybody on the machine may send. An announcement is believed for its token, which is
  secret. Whoever takes the name of a dead process can make it look alive, for one short grant, and learns a token that is worth
  nothing without write access to the file.
- Abstract names are those of a network namespace. From another one, an inbox can neither be reached nor be known to be gone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ECONNREFUSED
from math import isfinite
from socket import AF_UNIX, SHUT_RDWR, SOCK_DGRAM, socket

from ...core.claim import Announced
from ...errors import Unavailable
from ...runtime import forks
from ...runtime.base import Runtime, by_a_handler

NAMESPACE = "/proc/self/ns/net"
BUFFER = "/proc/sys/net/unix/max_dgram_qlen"
LARGEST = 4096  # bytes: a name has 512 at most, a token a few hundred


class Inbox:
    """The inbox of one client. `open` and `close` are called one at a time, `hear` beside them."""

    def __init__(self, runtime: Runtime) -> None:
        """Opens nothing yet."""
        self._runtime = runtime
        self._socket: socket | None = None
        self._name = ""
        self._pid = 0
        self._room = 0
        self._missed = False
        self._heard: socket | None = None  # that somebody listens to at this moment
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`."""
        ear, self._socket = self._socket, None
        if ear is not None:
            ear.close()

    def open(self) -> str:
        """Its name; opened if need be. Raises OSError."""
        if self._pid != os.getpid():
            self.disown()
        if self._socket is None:
            ear = socket(AF_UNIX, SOCK_DGRAM)
            try:
                ear.setblocking(False)
                name = f"{os.urandom(16).hex()}@{_namespace()}"
                ear.bind(_address(name))
                self._room = _room()
            except BaseException:
                ear.close()
                raise
            self._name, self._pid, self._socket = name, os.getpid(), ear
        self._missed = False
        return self._name

    async def hear(self, until: float, address: str) -> list[Announced]:
        """See `port.Line.hear`. `address` is the store's, for the error."""
        ear = self._heard = self._socket
        try:
            if ear is None or ear is not self._socket or self._pid != os.getpid():
                raise Unavailable("no inbox is open; open it first", backend=address, cause="closed")
            if self._missed:
                raise Unavailable(
                    f"more was announced than a buffer of {self._room} datagrams holds, so some may be lost. Claim again; "
                    f"a larger {BUFFER} makes this rarer",
                    backend=address,
                    cause="error",
                )
            if not await self._runtime.readable(ear.fileno(), until):
                return []
            return self._take(ear)
        finally:
            self._heard = None
            if ear is not None and ear is not self._socket:
                ear.close()  # `close` left that to us

    def _take(self, ear: socket) -> list[Announced]:
        taken: list[Announced] = []
        for number in range(self._room + 1):
            try:
                datagram = ear.recv(LARGEST)
            except OSError:  # nothing more is there; or it was closed meanwhile
                break
            self._missed = number == self._room  # it was full, or almost
            with suppress(ValueError):  # a stranger's
                taken.append(_unpacked(datagram))
        return taken

    def close(self) -> None:
        """Nobody waits here any more. Wakes whoever listens."""
        if self._pid != os.getpid():
            self.disown()
        ear, self._socket = self._socket, None
        if ear is not None:
            with suppress(OSError):
                ear.shutdown(SHUT_RDWR)
            if self._heard is not ear:  # else the listener does it: its number must not mean another file meanwhile
                ear.close()

    def __del__(self) -> None:
        self.disown()  # for those who forget to close


def listens(name: str) -> bool | None:
    """Whether somebody listens there. False: it is gone, for ever. None: from here it cannot be told."""
    try:
        with socket(AF_UNIX, SOCK_DGRAM) as voice:
            voice.connect(_address(name))
    except OSError as error:
        if by_a_handler(error):
            raise
        return False if error.errno == ECONNREFUSED and name.partition("@")[2] in ("", _namespace()) else None
    return True


def send(name: str, announced: Announced) -> None:
    """Tell, without waiting and without a promise. To a listener that sleeps, or died just now, it is lost."""
    try:
        with socket(AF_UNIX, SOCK_DGRAM) as voice:
            voice.setblocking(False)
            voice.sendto(_packed(announced), _address(name))
    except OSError as error:
        if by_a_handler(error):
            raise


def _address(name: str) -> str:
    return f"\0interlock-{name}"


def _namespace() -> str:
    return os.readlink(NAMESPACE).strip("net:[]")


def _room() -> int:
    with open(BUFFER, encoding="ascii") as file:
        return int(file.read())


def _packed(announced: Announced) -> bytes:
    name, token, fence, ttl, at = announced
    return f"{fence}\n{ttl!r}\n{at!r}\n{token}\n{name}".encode()


def _unpacked(datagram: bytes) -> Announced:
    """Raises ValueError for anything that `_packed` did not make."""
    fence, ttl, at, token, name = datagram.decode().split("\n", 4)
    announced = Announced(name, token, int(fence), float(ttl), float(at))
    if not (isfinite(announced.ttl) and isfinite(announced.at)):
        raise ValueError(datagram)
    return announced
