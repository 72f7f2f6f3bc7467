"""Floors for waiting: what a hand-made queue costs on bare sockets, with no library, no fence rules and no clean-up.

- *grant*: those who wait stand in a list on the server; a release pops the next one, writes the lock for it and publishes that.
- *pub/sub*: those who wait stand in a list of the process; a release publishes, and the first asks again. On five nodes too.

Both in threads and in tasks. They time out at nothing and survive nothing: they are here to be compared with.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections import deque
from contextlib import ExitStack
from typing import Any

from interlock.cli.bench.floors import pack

TTL = b"20000"
ENTER = b"""
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('incr', KEYS[2]) end
redis.call('rpush', KEYS[3], ARGV[1]) return 0"""
PASS_ON = b"""
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
local heir = redis.call('lpop', KEYS[3])
if not heir then return redis.call('del', KEYS[1]) end
redis.call('set', KEYS[1], heir, 'PX', ARGV[2])
redis.call('publish', ARGV[3], heir .. ' ' .. redis.call('incr', KEYS[2]))
return 1"""
SHOUT = b"""
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('publish', ARGV[2], '1') return redis.call('del', KEYS[1])"""
KEYS = (b"3", b"floor", b"floor:fence", b"floor:line")


def sha(script: bytes) -> bytes:
    return hashlib.sha1(script).hexdigest().encode()


def enter(me: bytes) -> bytes:
    return pack(b"EVALSHA", sha(ENTER), *KEYS, me, TTL)


def pass_on(me: bytes) -> bytes:
    return pack(b"EVALSHA", sha(PASS_ON), *KEYS, me, TTL, b"inbox")


def take(me: bytes) -> bytes:
    return pack(b"SET", b"floor", me, b"NX", b"PX", TTL)


def shout(me: bytes) -> bytes:
    return pack(b"EVALSHA", sha(SHOUT), b"1", b"floor", me, b"inbox")


# --- threads ------------------------------------------------------------------------------------------------------------


def connected(port: int, stack: ExitStack) -> socket.socket:
    link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


class Threads:
    """One connection to ask by, one to listen to, and a thread that listens."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self.link, self.ear, self.turn = connected(port, stack), connected(port, stack), threading.Lock()
        for script in (ENTER, PASS_ON, SHOUT):
            self.ask(pack(b"SCRIPT", b"LOAD", script))
        self.ask(pack(b"DEL", b"floor", b"floor:line"))
        self.ear.sendall(pack(b"SUBSCRIBE", b"inbox"))
        self.ear.recv(4096)
        self.waiting: dict[bytes, threading.Lock] = {}
        self.line: deque[threading.Lock] = deque()
        self.guard = threading.Lock()
        listener = threading.Thread(target=self._listen, daemon=True)
        listener.start()
        stack.callback(listener.join)
        stack.callback(self.ear.shutdown, socket.SHUT_RDWR)

    def ask(self, request: bytes) -> bytes:
        with self.turn:
            self.link.sendall(request)
            return self.link.recv(4096)

    def _listen(self) -> None:
        while data := self.ear.recv(65536):
            for part in data.split(b"\r\n")[6::7]:
                self.heard(part)

    def heard(self, what: bytes) -> None:
        raise NotImplementedError


class GrantThreads(Threads):
    """The grant in the push."""

    def acquire(self, me: bytes) -> None:
        bell = self.waiting[me] = threading.Lock()
        bell.acquire()
        if self.ask(enter(me)) == b":0\r\n":
            bell.acquire()

    def release(self, me: bytes) -> None:
        self.ask(pass_on(me))

    def heard(self, what: bytes) -> None:
        self.waiting[what.partition(b" ")[0]].release()


class PubsubThreads(Threads):
    """A push, then a question."""

    def acquire(self, me: bytes) -> None:
        bell = threading.Lock()
        bell.acquire()
        with self.guard:
            self.line.append(bell)
            first = self.line[0] is bell
        if not first:
            bell.acquire()
        while self.ask(take(me)) != b"+OK\r\n":
            bell.acquire()

    def release(self, me: bytes) -> None:
        with self.guard:
            self.line.popleft()
        self.ask(shout(me))

    def heard(self, what: bytes) -> None:
        with self.guard:
            if self.line and self.line[0].locked():
                self.line[0].release()


# --- tasks --------------------------------------------------------------------------------------------------------------


class Wire(asyncio.Protocol):
    """Replies of one line each, in order; and pushes."""

    def __init__(self, heard: Any = None) -> None:
        self.asked: deque[asyncio.Future[bytes]] = deque()
        self.heard = heard

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.heard is not None:
            for part in data.split(b"\r\n")[6::7]:
                self.heard(part)
            return
        for line in data.splitlines():
            if line[:1] != b"$" and self.asked:
                self.asked.popleft().set_result(line)

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        self.transport.write(request)
        return future


class Tasks:
    """Two connections to each node."""

    def __init__(self) -> None:
        self.links: list[Wire] = []
        self.ears: list[Wire] = []
        self.waiting: dict[bytes, asyncio.Future[None]] = {}
        self.line: deque[asyncio.Event] = deque()

    async def connect(self, ports: list[int]) -> None:
        loop = asyncio.get_running_loop()
        for port in ports:
            _, link = await loop.create_connection(Wire, "127.0.0.1", port)
            for script in (ENTER, PASS_ON, SHOUT):
                await link.ask(pack(b"SCRIPT", b"LOAD", script))
            await link.ask(pack(b"DEL", b"floor", b"floor:line"))
            _, ear = await loop.create_connection(lambda: Wire(lambda _: None), "127.0.0.1", port)
            ear.transport.write(pack(b"SUBSCRIBE", b"inbox"))
            await asyncio.sleep(0.05)
            ear.heard = self.heard
            self.links.append(link)
            self.ears.append(ear)

    def close(self) -> None:
        for wire in self.links + self.ears:
            wire.transport.close()

    def heard(self, what: bytes) -> None:
        raise NotImplementedError


class GrantTasks(Tasks):
    """The grant in the push, on one node."""

    async def acquire(self, me: bytes) -> None:
        grant = self.waiting[me] = asyncio.get_running_loop().create_future()
        if await self.links[0].ask(enter(me)) == b":0":
            await grant

    async def release(self, me: bytes) -> None:
        await self.links[0].ask(pass_on(me))

    def heard(self, what: bytes) -> None:
        self.waiting[what.partition(b" ")[0]].set_result(None)


class PubsubTasks(Tasks):
    """A push from a majority, then a question to all."""

    told = 0

    async def acquire(self, me: bytes) -> None:
        bell = asyncio.Event()
        self.line.append(bell)
        if self.line[0] is not bell:
            await bell.wait()
        while True:
            bell.clear()
            answers = await asyncio.gather(*(link.ask(take(me)) for link in self.links))
            if 2 * answers.count(b"+OK") > len(answers):
                return
            await bell.wait()

    async def release(self, me: bytes) -> None:
        self.line.popleft()
        self.told = 0
        await asyncio.gather(*(link.ask(shout(me)) for link in self.links))

    def heard(self, what: bytes) -> None:
        self.told += 1
        if self.line and 2 * self.told > len(self.links):
            self.line[0].set()
