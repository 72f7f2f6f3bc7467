"""interlock as a subject. Only what is public is used, so that older revisions can be compared with these adapters.

Nothing is switched off: fences, renewal, the plain key, and on five nodes the defence against a node that forgets.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import interlock

from .memory import resident


def where(ports: list[int]) -> Any:
    urls = [f"redis://127.0.0.1:{port}" for port in ports]
    return urls if len(urls) > 1 else urls[0]


class Blocking:
    """`lock.acquire().release()` on nodes, or on a file."""

    def __init__(self, ports: list[int] | None = None, file: str = "") -> None:
        self.client = interlock.Client(where(ports) if ports else f"sqlite://{file}")
        self.lock = self.client.lock("interlock")

    def cycle(self) -> None:
        self.lock.acquire().release()

    def close(self) -> None:
        self.client.close()


class Asyncio:
    """The same, awaited."""

    def __init__(self, ports: list[int]) -> None:
        self.store = where(ports)

    async def start(self) -> None:
        self.client = interlock.AsyncClient(self.store)
        self.lock = self.client.lock("interlock-aio")

    async def cycle(self) -> None:
        await (await self.lock.acquire()).release()

    async def close(self) -> None:
        await self.client.close()


class Tasks(Asyncio):
    """So many tasks, each of which takes so many locks that nobody else wants, one after the other."""

    def __init__(self, ports: list[int], tasks: int, locks: int) -> None:
        super().__init__(ports)
        self.tasks, self.locks, self.each = tasks, locks, tasks * locks

    async def start(self) -> None:
        # A thousand requests at once on a machine that has other things to do: not the store is late, this process is.
        self.client = interlock.AsyncClient(self.store, request_timeout=5)
        await (await self.client.lock("warm").acquire()).release()  # connected before the first round, as peers are

    async def cycle(self) -> None:
        await asyncio.gather(*(self._task(number) for number in range(self.tasks)))

    async def _task(self, number: int) -> None:
        for turn in range(self.locks):
            await (await self.client.lock(f"t{number}:{turn}").acquire()).release()


class Names(Asyncio):
    """Takes and gives back names that were never used before, a thousand at once."""

    async def use(self, first: int, many: int) -> None:
        for begin in range(first, first + many, 1000):
            await asyncio.gather(*(self._one(number) for number in range(begin, min(begin + 1000, first + many))))

    async def _one(self, number: int) -> None:
        await (await self.client.lock(f"name:{number:07d}").acquire()).release()


class Held:
    """Leases that are held and renewed; what they cost this process."""

    def __init__(self, ports: list[int]) -> None:
        self.client = interlock.Client(where(ports), ttl=10)
        with self.client.lock("warm", renew=False):
            pass

    def cycle(self) -> None:
        """Not used: see `hold`."""

    def hold(self, leases: int, seconds: float, within: float = 600.0) -> dict[str, float]:
        """Take them, keep them for so long (renewal included), give them back. Bytes include the Lock and the Lease objects.

        As many of them as can be had `within` so many seconds.
        """
        gc.collect()
        threads, before = threading.active_count(), resident()
        began = time.perf_counter()
        held = []
        while len(held) < leases and time.perf_counter() - began < within:
            held.append(self.client.lock(f"order:{len(held)}").acquire())
        leases, taking = len(held), time.perf_counter() - began
        gc.collect()
        acquired, kept, cpu, at = resident(), self.client.keeping(), time.process_time(), time.monotonic()
        time.sleep(seconds)
        gc.collect()
        now = self.client.keeping()
        facts = {
            "leases": leases,
            "lost": sum(lease.lost for lease in held),
            "threads": threading.active_count() - threads,
            "bytes": (max(resident(), acquired) - before) / leases,
            "renewals": now.renewals - kept.renewals,
            "requests": now.requests - kept.requests,
            "cpu": (time.process_time() - cpu) / (time.monotonic() - at),
            "taking": taking / leases,
        }
        for lease in held:
            if not lease.lost:
                lease.release()
        return facts

    def close(self) -> None:
        self.client.close()
