"""Floors: the least that a lock can cost with no library at all. Bytes by hand on bare sockets, bare statements in a file.

A floor takes a name and gives it back. It has no fence, no renewal, no deadline worth the name and no defence against
anything: it is here to be compared with.
"""

from __future__ import annotations

import os
import select
import socket
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha1
from typing import Any

from ...errors import Unavailable

COMPARE_AND_DELETE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"
SHA = sha1(COMPARE_AND_DELETE).hexdigest().encode()  # noqa: S324 (what the server calls the script by)
TTL_MS = b"10000"
FLOOR = "the floor"
PATIENCE = 5.0  # seconds for a node to answer


def pack(*words: bytes) -> bytes:
    """A command, as servers read it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def take(name: bytes, token: bytes) -> bytes:
    """The request that takes a lock."""
    return pack(b"SET", name, token, b"NX", b"PX", TTL_MS)


def give_back(name: bytes, token: bytes) -> bytes:
    """The request that gives it back."""
    return pack(b"EVALSHA", SHA, b"1", name, token)


def load() -> bytes:
    """The request after which `give_back` is understood."""
    return pack(b"SCRIPT", b"LOAD", COMPARE_AND_DELETE)


def fresh() -> bytes:
    """A token."""
    return os.urandom(16).hex().encode()


def accepted(reply: bytes) -> bytes:
    """The reply itself. Raises Unavailable if it is an error, or none."""
    if not reply or reply[:1] == b"-":
        words = reply.decode(errors="replace").strip() or "hung up"
        raise Unavailable(f"the floor was refused: {words}", backend=FLOOR, cause="closed")
    return reply


def say_last(socks: Iterable[Any], request: bytes) -> None:
    """Send it and hang up, but so that it is dealt with: to close while a reply is on its way may undo the request.

    The connections may be amid anything (Ctrl-C). A node that is silent gets a second.
    """
    left = []
    for sock in socks:
        with suppress(OSError):
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            left.append(sock)
    until = time.monotonic() + 1
    for sock in left:
        with suppress(OSError):
            while (rest := until - time.monotonic()) > 0:
                sock.settimeout(rest)
                if not sock.recv(4096):
                    break


class SocketFloor:
    """One node: two round trips on a socket that blocks."""

    def __init__(self, sock: Any, name: bytes) -> None:
        self._sock, self._name = sock, name
        sock.settimeout(PATIENCE)
        self.ask(load())

    def ask(self, request: bytes) -> bytes:
        """A request and its reply, which is short. Raises Unavailable when there is none."""
        try:
            self._sock.sendall(request)
            reply: bytes = self._sock.recv(4096)
        except OSError as error:
            raise Unavailable(f"the floor got no answer: {error}", backend=FLOOR, cause="timeout") from error
        return accepted(reply)

    def cycle(self) -> None:
        """Take it and give it back."""
        token = fresh()
        self.ask(take(self._name, token))
        self.ask(give_back(self._name, token))


class PollFloor:
    """Several nodes: the same bytes to each, then one poll loop until `enough` have answered."""

    def __init__(self, socks: list[Any], name: bytes, enough: int) -> None:
        self._name, self._enough = name, enough
        self._socks = {sock.fileno(): sock for sock in socks}
        self._late = dict.fromkeys(self._socks, 0)  # replies that are not waited for any more
        self._poll = select.poll()
        for sock in socks:
            sock.settimeout(PATIENCE)
            self._poll.register(sock.fileno(), select.POLLIN)
        self._encrypted = any(hasattr(sock, "pending") for sock in socks)
        self.ask(load(), enough, 2)

    def ask(self, request: bytes, enough: int, lines: int = 1) -> None:
        """A request to all, and replies of so many lines from enough of them. Raises Unavailable when too few answer."""
        late, missing = self._late, enough
        try:
            for sock in self._socks.values():
                sock.sendall(request)
            for fd in late:
                late[fd] += lines
            while missing > 0:
                ready = self._poll.poll(PATIENCE * 1000)
                if not ready:
                    raise Unavailable("too few nodes answered the floor", backend=FLOOR, cause="timeout")
                for fd, _ in ready:
                    late[fd] -= self._read(self._socks[fd])
                    missing -= late[fd] == 0
        except OSError as error:
            raise Unavailable(f"the floor got no answer: {error}", backend=FLOOR, cause="timeout") from error

    def _read(self, sock: Any) -> int:
        """How many lines have come."""
        data = sock.recv(4096)
        while self._encrypted and sock.pending():
            data += sock.recv(4096)
        return accepted(data).count(b"\n")

    def cycle(self) -> None:
        """Take it and give it back."""
        token = fresh()
        self.ask(take(self._name, token), self._enough)
        self.ask(give_back(self._name, token), self._enough)


class SqliteFloor:
    """A file: a bare upsert and a bare update, each in a transaction that takes the write lock at its beginning."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
            "CREATE TABLE locks (name TEXT PRIMARY KEY, owner TEXT, expires REAL, fence INTEGER NOT NULL)"
        )

    def cycle(self) -> None:
        """Take it and give it back."""
        token, db = os.urandom(16).hex(), self._db
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "INSERT INTO locks VALUES ('x', ?, 1, 1)"
            " ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = fence + 1",
            (token,),
        )
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE locks SET owner = NULL WHERE name = 'x' AND owner = ?", (token,))
        db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()
