"""Floors as subjects: hand-written bytes on bare sockets, in both colours; bare statements in a file. See the CLI's floors."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

from interlock.cli.bench.floors import PollFloor, SocketFloor, SqliteFloor, fresh, give_back, load, take


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Socket(SocketFloor):
    """One node: two round trips on a bare socket."""

    def __init__(self, ports: list[int]) -> None:
        self._mine = connected(ports[0])
        super().__init__(self._mine, b"floor")
        self._mine.settimeout(None)  # a time-out costs a poll for each call

    def close(self) -> None:
        self._mine.close()


class Poll(PollFloor):
    """Several nodes: to all, then one poll loop until all have answered."""

    def __init__(self, ports: list[int]) -> None:
        self._mine = [connected(port) for port in ports]
        super().__init__(self._mine, b"floor", len(ports))
        for sock in self._mine:
            sock.settimeout(None)

    def close(self) -> None:
        for sock in self._mine:
            sock.close()


class Sqlite(SqliteFloor):
    """A file."""

    def __init__(self, file: str) -> None:
        super().__init__(file)


class Wire(asyncio.Protocol):
    """A connection that all tasks share: futures in order, a reply is a line. Nothing is looked at, so nothing is parsed."""

    def __init__(self, joined: bool) -> None:
        self.waiting: deque[Any] = deque()  # futures, or what looks like one (`Tally`)
        self.outgoing: list[bytes] = []
        self.joined = joined
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\n")):
            self.waiting.popleft().set_result(None)

    def ask(self, request: bytes, future: Any) -> None:
        """`future` is done when the reply is there. Joined: what one turn of the loop asks goes out as one write."""
        self.waiting.append(future)
        if not self.joined:
            self.transport.write(request)
            return
        if not self.outgoing:
            self.loop.call_soon(self._flush)
        self.outgoing.append(request)

    def _flush(self) -> None:
        self.transport.write(b"".join(self.outgoing))
        self.outgoing.clear()


class Tally:
    """Looks like a future to a wire: done when so many replies are there."""

    __slots__ = ("done", "missing")

    def __init__(self, missing: int, done: asyncio.Future[None]) -> None:
        self.missing, self.done = missing, done

    def set_result(self, _: None) -> None:
        self.missing -= 1
        if self.missing == 0:
            self.done.set_result(None)


class Shared:
    """asyncio: one connection to each node, whatever the number of tasks. With several nodes, all of them have to answer."""

    joined = False

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wires: list[Wire] = []
        for port in self.ports:
            _, wire = await self.loop.create_connection(lambda: Wire(self.joined), "127.0.0.1", port)
            done = self.loop.create_future()
            wire.ask(load(), Tally(2, done))  # a reply of two lines
            wire.waiting.append(wire.waiting[-1])
            await done
            self.wires.append(wire)

    def ask(self, request: bytes) -> asyncio.Future[None]:
        done = self.loop.create_future()
        if len(self.wires) == 1:
            self.wires[0].ask(request, done)
            return done
        tally = Tally(len(self.wires), done)
        for wire in self.wires:
            wire.ask(request, tally)
        return done

    async def once(self, name: bytes) -> None:
        token = fresh()
        await self.ask(take(name, token))
        await self.ask(give_back(name, token))

    async def cycle(self) -> None:
        await self.once(b"floor-aio")

    async def close(self) -> None:
        for wire in self.wires:
            wire.transport.close()


class SharedTasks(Shared):
    """So many tasks, so many locks each, all down the same connections; the writes of one turn of the loop are joined."""

    joined = True

    def __init__(self, ports: list[int], tasks: int, locks: int) -> None:
        super().__init__(ports)
        self.tasks, self.locks, self.each = tasks, locks, tasks * locks

    async def cycle(self) -> None:
        await asyncio.gather(*(self._task(number) for number in range(self.tasks)))

    async def _task(self, number: int) -> None:
        for turn in range(self.locks):
            await self.once(b"f%d:%d" % (number, turn))
