"""What is measured: each subject does one uncontended acquire and release per call, and belongs to a group with one floor.

A floor is what the machine and the server cost with no library at all: hand-written bytes on a bare socket, a bare statement.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.lock import Lock as RedisPyLock

import interlock
from interlock.testing import Node

RELEASE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"
SHA = hashlib.sha1(RELEASE).hexdigest().encode()


def pack(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Group(NamedTuple):
    """Subjects that are compared; the first is the floor. A blocking subject is a function, an asyncio one a coroutine."""

    title: str
    subjects: dict[str, Callable[[], Any]]


# --- one node, blocking -------------------------------------------------------------------------------------------------


def raw_socket(port: int, stack: ExitStack) -> Callable[[], None]:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(pack(b"SCRIPT", b"LOAD", RELEASE))
    sock.recv(4096)

    def cycle() -> None:
        token = os.urandom(16).hex().encode()
        sock.sendall(pack(b"SET", b"floor", token, b"NX", b"PX", b"10000"))
        assert sock.recv(4096) == b"+OK\r\n"
        sock.sendall(pack(b"EVALSHA", SHA, b"1", b"floor", token))
        assert sock.recv(4096) == b":1\r\n"

    return cycle


def redis_py_connection(port: int, stack: ExitStack) -> Callable[[], None]:
    connection = redis.Connection(port=port)
    connection.connect()
    stack.callback(connection.disconnect)

    def cycle() -> None:
        token = os.urandom(16).hex().encode()
        connection.send_packed_command([pack(b"SET", b"conn", token, b"NX", b"PX", b"10000")])
        connection.read_response()
        connection.send_packed_command([pack(b"EVALSHA", SHA, b"1", b"conn", token)])
        connection.read_response()

    return cycle


def redis_py_lock(port: int, stack: ExitStack) -> Callable[[], None]:
    client = stack.enter_context(redis.Redis(port=port))

    def cycle() -> None:
        lock = RedisPyLock(client, "redis-py", timeout=10)
        lock.acquire()
        lock.release()

    return cycle


def ours(url: str | list[str], stack: ExitStack) -> Callable[[], None]:
    lock = stack.enter_context(interlock.Client(url)).lock("interlock")

    def cycle() -> None:
        lock.acquire().release()

    return cycle


def blocking_node(port: int, stack: ExitStack) -> Group:
    subjects = {
        "raw socket (floor)": raw_socket(port, stack),
        "redis-py Connection, by hand": redis_py_connection(port, stack),
        "redis-py Lock": redis_py_lock(port, stack),
        "interlock": ours(f"redis://127.0.0.1:{port}", stack),
    }
    return Group("One node, blocking: acquire + release", subjects)


# --- one node, asyncio --------------------------------------------------------------------------------------------------


class Floor(asyncio.Protocol):
    """A shared connection by hand: futures in order, replies split at line ends."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[bytes]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n")):
            self.waiting.pop(0).set_result(data)

    def ask(self, request: bytes) -> Awaitable[bytes]:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.transport.write(request)
        return future


async def asyncio_node(port: int, closing: list[Callable[[], Awaitable[Any]]]) -> Group:
    _, floor = await asyncio.get_running_loop().create_connection(Floor, "127.0.0.1", port)
    client = redis.asyncio.Redis(port=port)
    mine = interlock.AsyncClient(f"redis://127.0.0.1:{port}")
    lock = mine.lock("interlock-aio")

    async def by_hand() -> None:
        token = os.urandom(16).hex().encode()
        await floor.ask(pack(b"SET", b"floor-aio", token, b"NX", b"PX", b"10000"))
        await floor.ask(pack(b"EVALSHA", SHA, b"1", b"floor-aio", token))

    async def redis_py() -> None:
        theirs = client.lock("redis-py-aio", timeout=10)
        await theirs.acquire()
        await theirs.release()

    async def interlock_() -> None:
        await (await lock.acquire()).release()

    async def close() -> None:
        floor.transport.close()
        await client.aclose()
        await mine.close()

    closing.append(close)
    subjects = {"asyncio protocol (floor)": by_hand, "redis.asyncio Lock": redis_py, "interlock": interlock_}
    return Group("One node, asyncio: acquire + release", subjects)


# --- SQLite -------------------------------------------------------------------------------------------------------------


def sqlite_file(directory: str, stack: ExitStack) -> Group:
    db = sqlite3.connect(f"{directory}/floor.db", isolation_level=None)
    stack.callback(db.close)
    db.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        "CREATE TABLE locks (name TEXT PRIMARY KEY, owner TEXT, expires REAL, fence INTEGER NOT NULL)"
    )

    def bare() -> None:
        token = os.urandom(16).hex()
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

    subjects = {"bare BEGIN IMMEDIATE (floor)": bare, "interlock": ours(f"sqlite://{directory}/ours.db", stack)}
    return Group("SQLite: acquire + release", subjects)


# --- five nodes ---------------------------------------------------------------------------------------------------------


def five_sockets(ports: list[int], stack: ExitStack) -> Callable[[], None]:
    """A quorum by hand: the same bytes to five sockets, then one poll loop until all have answered."""
    socks = []
    for port in ports:
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(pack(b"SCRIPT", b"LOAD", RELEASE))
        sock.recv(4096)
        socks.append(sock)
    poll = select.poll()
    by_fd = {sock.fileno(): sock for sock in socks}
    for sock in socks:
        poll.register(sock.fileno(), select.POLLIN)

    def round_trip(request: bytes) -> None:
        for sock in socks:
            sock.sendall(request)
        missing = len(socks)
        while missing:
            for fd, _ in poll.poll():
                by_fd[fd].recv(4096)
                missing -= 1

    def cycle() -> None:
        token = os.urandom(16).hex().encode()
        round_trip(pack(b"SET", b"floor5", token, b"NX", b"PX", b"10000"))
        round_trip(pack(b"EVALSHA", SHA, b"1", b"floor5", token))

    return cycle


def five_blocking(nodes: list[Node], stack: ExitStack) -> Group:
    subjects = {
        "five sockets and poll (floor)": five_sockets([node.port for node in nodes], stack),
        "interlock": ours([node.url for node in nodes], stack),
    }
    return Group("Five nodes, blocking: acquire + release", subjects)
