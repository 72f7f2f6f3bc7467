"""What our stores alone cost: the very requests that interlock sends, sent as the floors send theirs, with no library around.

The difference to the floor is the price of fences, lines and rolls in the store; the difference to interlock is Python.
Subjects as in `floors`, of the working tree only: how requests are packed is nobody's business but ours.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time

import interlock
from interlock.backends.redis.packing import ROLL_KEY, Ballot, claim_request, release_request
from interlock.backends.sqlite import store
from interlock.core import fence as fences
from interlock.core.claim import Claim

from . import floors

NAME, TTL, MARK = "by-hand", 10.0, b"0"
CLAIM_LINES, RELEASE_LINES = 5, 5  # of a reply that says yes


def token() -> str:
    return f"{os.urandom(16).hex()}~by hand"


def _listed(port: int) -> bytes:
    """What a node calls the list of nodes: they may be reached through others here."""
    with socket.create_connection(("127.0.0.1", port), 5) as node:
        node.sendall(b"*3\r\n$4\r\nHGET\r\n$14\r\ninterlock:roll\r\n$4\r\nlist\r\n")
        return node.recv(100).split(b"\r\n")[1]


class Requests:
    """The two requests of a lock, for one node or as one of several. Texts of scripts go out once."""

    def __init__(self, ports: list[int]) -> None:
        self._carried: set[str] = set()
        self._ballot = Ballot() if len(ports) == 1 else Ballot((ROLL_KEY,), (_listed(ports[0]),))

    def pair(self, name: str) -> tuple[bytes, bytes]:
        mine, fence = token(), fences.floor(time.time_ns() // 1_000_000 + 50) if self._ballot.roll else 0
        claim = claim_request(Claim(name, mine, TTL), None, fence, self._ballot, False, MARK)
        release = release_request(name, mine, b"", fence and fence + 1, self._ballot, MARK)
        return claim.pack(self._carried), release.pack(self._carried)


class Socket(floors.Socket):
    """One node."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(ports)
        self._requests = Requests(ports[:1])

    def cycle(self) -> None:
        claim, release = self._requests.pair(NAME)
        self.ask(claim)
        self.ask(release)


class Poll(floors.Poll):
    """Several nodes."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(ports)
        self._requests = Requests(ports)

    def cycle(self) -> None:
        claim, release = self._requests.pair(NAME)
        self.ask(claim, self._enough, CLAIM_LINES)
        self.ask(release, self._enough, RELEASE_LINES)


class _Asked(floors.Shared):
    async def start(self) -> None:
        await super().start()
        self._requests = Requests(self.ports)
        await self.once(NAME.encode())  # with the texts

    def asked(self, request: bytes, lines: int) -> asyncio.Future[None]:
        done = self.loop.create_future()
        tally = floors.Tally(lines * len(self.wires), done)
        for wire in self.wires:
            wire.waiting.extend([tally] * (lines - 1))
            wire.ask(request, tally)
        return done

    async def once(self, name: bytes) -> None:
        claim, release = self._requests.pair(name.decode())
        await self.asked(claim, CLAIM_LINES)
        await self.asked(release, RELEASE_LINES)


class Shared(_Asked):
    """asyncio."""

    async def cycle(self) -> None:
        await self.once(NAME.encode())


class SharedTasks(_Asked, floors.SharedTasks):
    """Many tasks."""


class Sqlite:
    """A file of ours: our statements, without the gate and without looking whether the file is still there."""

    def __init__(self, file: str) -> None:
        with interlock.Client(f"sqlite://{file}") as client, client.lock(NAME):
            pass
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._execute = self._db.cursor().execute

    def cycle(self) -> None:
        execute, mine = self._execute, token()
        execute("BEGIN IMMEDIATE")
        fence = execute(store.LOOK, (NAME, NAME)).fetchone()[1] + 1
        execute(store.COUNT, (fence,))
        execute(store.GRANT, (NAME, fence, mine, fence, time.monotonic() + TTL))
        execute("COMMIT")
        execute(store.RELEASE, (NAME, mine, 0.0, NAME))

    def close(self) -> None:
        self._db.close()
