"""How many bytecode instructions of ours one acquire and release executes, with the server replaced by a few lines here.

The same on every machine and under any load, so it can have a budget that a few lines too much exceed. Only code of this
package is counted, each file by itself. Versions of Python differ in how many instructions the same line is: `scale` says by
how much, from a piece of code that is counted the same way.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import interlock
from interlock.backends.redis import aio, connecting, wire

SOURCE = str(Path(interlock.__file__).parent) + "/"
ROUNDS = 7  # the least of so many: now and then a cycle rings for the keeper, or the clock has to be read once more
REFERENCE = 556  # instructions of `_reference` in Python 3.11, in which the budgets were written down

Counts = Counter[str]  # by file


@contextmanager
def counted(prefix: str = SOURCE) -> Iterator[Counts]:
    """What this thread executes inside, of files with that prefix."""
    counts: Counts = Counter()
    with _monitored(counts, prefix) if sys.version_info >= (3, 12) else _traced(counts, prefix):
        yield counts


@contextmanager
def _traced(counts: Counts, prefix: str) -> Iterator[None]:
    def trace(frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(prefix):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            counts[file.removeprefix(prefix)] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(counts: Counts, prefix: str) -> Iterator[None]:
    """From 3.12 on tracing has no say in single instructions that are under way, and monitoring has."""
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - a name that 3.11 does not have
    tool, events, me = 4, monitoring.events.INSTRUCTION, get_ident()

    def executed(code: CodeType, offset: int) -> None:
        if code.co_filename.startswith(prefix) and get_ident() == me:
            counts[code.co_filename.removeprefix(prefix)] += 1

    monitoring.use_tool_id(tool, "the guard of the hot path")
    monitoring.register_callback(tool, events, executed)
    monitoring.set_events(tool, events)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, events, None)
        monitoring.free_tool_id(tool)


# --- a server in a few lines --------------------------------------------------------------------------------------------


def _answer(requests: bytes) -> bytes:
    """What a server on which every name is free would say: granted, or released. The mark is the last word."""
    lines, at, said = requests.split(b"\r\n"), 0, b""
    while lines[at].startswith(b"*"):
        words = lines[at + 2 : at + 2 * int(lines[at][1:]) + 1 : 2]
        claim = words[2] == b"2"  # it names two keys, a release three
        said += b"*3\r\n:1\r\n:246000000000000\r\n" if claim else b"*3\r\n:1\r\n:0\r\n"
        said += b"$%d\r\n%b\r\n" % (len(words[-1]), words[-1])
        at += 2 * len(words) + 1
    return said


class _Socket:
    """Ours, and the server at the other end of a pair: it answers before `send` returns."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self.fileno, self.recv = self._here.fileno, self._here.recv

    def settimeout(self, seconds: float) -> None: ...

    def send(self, request: bytes) -> int:
        self._there.send(_answer(request))
        return len(request)

    def close(self) -> None:
        self._here.close()
        self._there.close()


class _Transport:
    """asyncio's, and the server behind it: it answers in the loop's next turn."""

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def write(self, request: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._protocol.data_received, _answer(request))

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None: ...

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None: ...


class _Connection:
    """As redis-py hands it over."""

    def __init__(self, colour: str) -> None:
        if colour == "asyncio":
            self._reader, self._writer = None, self
            self.transport = _Transport()
        else:
            self._sock = _Socket()

    def close(self) -> None:
        self.transport.close()


@contextmanager
def no_server() -> Iterator[None]:
    """Connections lead to the few lines above."""

    async def connect(self: aio.AsyncTransport, until: float) -> Any:
        return _Connection("asyncio")

    saved = connecting.Connector._open, aio.AsyncTransport._connect
    connecting.Connector._open = lambda self, until: wire.Wire(_Connection("blocking"))  # type: ignore[method-assign]
    aio.AsyncTransport._connect = connect  # type: ignore[method-assign]
    try:
        yield
    finally:
        connecting.Connector._open, aio.AsyncTransport._connect = saved  # type: ignore[method-assign]


# --- what is counted ----------------------------------------------------------------------------------------------------


def _least(cycle: Callable[[], object]) -> Counts:
    for _ in range(3):  # connects, sends the scripts' texts, starts the keeper
        cycle()
    runs = []
    for _ in range(ROUNDS):
        with counted() as counts:
            cycle()
        runs.append(counts)
    return min(runs, key=Counter.total)


def in_threads(url: str) -> Counts:
    """One cycle of a `Client`."""
    with no_server(), interlock.Client(url) as client:
        lock = client.lock("guard")
        return _least(lambda: lock.acquire().release())


def in_tasks(url: str) -> Counts:
    """One cycle of an `AsyncClient`."""

    async def main() -> Counts:
        async with interlock.AsyncClient(url) as client:
            lock = client.lock("guard")
            runs = []
            for turn in range(3 + ROUNDS):
                with counted() as counts:
                    await (await lock.acquire()).release()
                if turn >= 3:
                    runs.append(counts)
            return min(runs, key=Counter.total)

    with no_server():
        return asyncio.run(main())


PATHS: dict[str, Callable[[], Counts]] = {
    "redis-blocking": lambda: in_threads("redis://localhost:1"),
    "redis-asyncio": lambda: in_tasks("redis://localhost:1"),
    "memory-blocking": lambda: in_threads("memory://guard"),
    "memory-asyncio": lambda: in_tasks("memory://guard"),
}


class _Thing:
    __slots__ = ("name", "value")

    def __init__(self, name: str, value: float) -> None:
        self.name = name
        self.value = value

    async def later(self, by: float) -> float:
        return self.value + by


def _reference() -> None:
    """Things that the hot path is made of: calls, attributes, coroutines, small tests, formatting."""

    async def chain(thing: _Thing) -> float:
        try:
            return await thing.later(1.0)
        finally:
            thing.value = 0.0

    things = {}
    for number in range(5):
        thing = _Thing(f"x{number}", 1.5)
        things[thing.name] = thing
        work: Coroutine[Any, Any, float] = chain(thing)
        try:
            work.send(None)
        except StopIteration as stop:
            if stop.value > 2.0 and thing.name in things:
                first, *rest = b"%d:%b" % (number, b"word"), thing.value
                things[thing.name] = thing if first and rest else things[thing.name]
        if thing.value is None or not things or (number > 10 and thing.value < 0):
            break


def scale() -> float:
    """How many instructions this Python needs for one of 3.11's."""
    with counted(str(Path(__file__))) as counts:
        _reference()
    return counts.total() / REFERENCE
