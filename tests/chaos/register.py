"""What the lock is for: counters that keep the highest fence they have seen. `python -m tests.chaos.register SOCKET HISTORY`.

Whoever touches a counter first seals it with its fence; who comes with a lower one is turned away. Beside each there is one
that no fence protects, written by everybody who believes in a lock: what is lost there is the control. A process of its own,
that does one thing at a time and writes it down itself, so that the history has the order in which it happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from .journal import Journal, die_with_parent


class Register:
    """The counters."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._value: dict[str, int] = {}
        self._newest: dict[str, int] = {}
        self._bare: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def answer(self, ask: dict[str, Any]) -> Any:
        if ask["do"] == "enter":
            return self._enter(ask["name"], ask["lease"], ask["fence"])
        if ask["do"] == "write":
            return self._write(ask["name"], ask["lease"], ask["fence"], ask["value"], ask["bare"], ask.get("force", False))
        return [self._value, self._written]

    def _enter(self, name: str, lease: str, fence: int) -> tuple[int | None, int]:
        stale = fence < self._newest.get(name, 0)
        value = self._value.get(name, 0)
        if not stale:
            self._newest[name] = fence
        self._journal(
            "register", "enter", name=name, lease=lease, fence=fence, value=0 if stale else value, note="stale" if stale else ""
        )
        return None if stale else value, self._bare.get(name, 0)

    def _write(self, name: str, lease: str, fence: int, value: int | None, bare: int, force: bool) -> bool:
        lost = self._bare.get(name, 0) != bare
        self._bare[name] = max(self._bare.get(name, 0), bare + 1)
        self._journal("register", "bare", name=name, lease=lease, value=bare + 1, note="lost" if lost else "")
        stale = (value is None or fence < self._newest.get(name, 0)) and not force
        if not stale:
            self._newest[name] = max(fence, self._newest.get(name, 0))
            self._value[name] = (value or 0) + 1
            self._written[name] = self._written.get(name, 0) + 1
        note = "stale" if stale else ""
        self._journal("register", "write", name=name, lease=lease, fence=fence, value=(value or 0) + 1, note=note)
        return not stale


async def main(socket: str, history: str) -> None:
    register = Register(Journal(Path(history)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(register.answer(json.loads(line))).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, f"{socket}.new")
    os.rename(f"{socket}.new", socket)  # there only when it listens: everybody else waits for that
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(main(*sys.argv[1:]))
