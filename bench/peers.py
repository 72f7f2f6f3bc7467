"""Other lock libraries as subjects. Each runs in an environment of its own (`install`), which knows nothing of interlock.

How they are set up, so that none pays for what it was not asked: the ttl is 10 s and nobody renews (only aioredlock and
python-redis-lock could, with a task or a thread for each lock); one lock object per acquire, as their documents show it;
hiredis where it can be had; connections are open before the first round; defaults otherwise, but for limits that would
end a run (the size of a connection pool). They mint no fence and have no defence against a node that forgets.
"""

from __future__ import annotations

import asyncio
from typing import Any

TTL = 10


class OneNode:
    """A client of redis-py for one node."""

    def __init__(self, ports: list[int]) -> None:
        import redis

        self.client = redis.Redis(port=ports[0])

    def close(self) -> None:
        self.client.close()


class RedisPy(OneNode):
    """redis-py's own Lock."""

    def cycle(self) -> None:
        lock = self.client.lock("redis-py", timeout=TTL)
        assert lock.acquire()
        lock.release()


class PythonRedisLock(OneNode):
    """python-redis-lock: with a list that wakes who waits."""

    def cycle(self) -> None:
        import redis_lock

        lock = redis_lock.Lock(self.client, "python-redis-lock", expire=TTL)
        assert lock.acquire()
        lock.release()


class Pottery:
    """pottery's Redlock: a pool of threads for each call."""

    def __init__(self, ports: list[int]) -> None:
        import redis

        self.clients = {redis.Redis(port=port) for port in ports}

    def cycle(self) -> None:
        from pottery import Redlock

        lock = Redlock(key="pottery", masters=self.clients, auto_release_time=TTL)
        assert lock.acquire()
        lock.release()

    def close(self) -> None:
        for client in self.clients:
            client.close()


class RedlockNg:
    """redlock-ng: one node after the other."""

    def __init__(self, ports: list[int]) -> None:
        from redlock import Redlock

        self.redlock = Redlock([f"redis://127.0.0.1:{port}" for port in ports])

    def cycle(self) -> None:
        lock = self.redlock.acquire("redlock-ng", TTL * 1000)
        assert lock
        self.redlock.release(lock)

    def close(self) -> None:
        """It has nothing to close."""


class Awaited:
    """What the asyncio ones share: `tasks` and `locks` make many at once of the single cycle."""

    def __init__(self, ports: list[int], tasks: int = 0, locks: int = 1) -> None:
        self.ports, self.tasks, self.locks = ports, tasks, locks
        self.each = tasks * locks or 1

    async def cycle(self) -> None:
        if not self.tasks:
            await self.once("one")
            return
        await asyncio.gather(*(self._task(number) for number in range(self.tasks)))

    async def _task(self, number: int) -> None:
        for turn in range(self.locks):
            await self.once(f"p{number}:{turn}")

    async def once(self, name: str) -> None:
        raise NotImplementedError

    def _clients(self) -> list[Any]:
        import redis.asyncio

        return [redis.asyncio.Redis(port=port, max_connections=2000) for port in self.ports]


class RedisPyAsyncio(Awaited):
    """redis.asyncio's own Lock."""

    async def start(self) -> None:
        (self.client,) = self._clients()

    async def once(self, name: str) -> None:
        lock = self.client.lock(name, timeout=TTL)
        assert await lock.acquire()
        await lock.release()

    async def close(self) -> None:
        await self.client.aclose()


class PotteryAsyncio(Awaited):
    """pottery's AIORedlock."""

    async def start(self) -> None:
        self.clients = self._clients()

    async def once(self, name: str) -> None:
        from pottery import AIORedlock

        lock = AIORedlock(key=name, masters=set(self.clients), auto_release_time=TTL)
        assert await lock.acquire()
        await lock.release()

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


class RedlockNgAsyncio(Awaited):
    """redlock-ng, awaited."""

    async def start(self) -> None:
        from redlock import AsyncRedlock

        self.redlock = AsyncRedlock([f"redis://127.0.0.1:{port}" for port in self.ports])

    async def once(self, name: str) -> None:
        lock = await self.redlock.acquire(name, TTL * 1000)
        if lock:  # with a thousand tasks its time-out of 0.1 s strikes; a failed one is counted as if it had been quick
            await self.redlock.release(lock)

    async def close(self) -> None:
        """It has nothing to close."""


class Aioredlock(Awaited):
    """aioredlock."""

    async def start(self) -> None:
        from aioredlock import Aioredlock as Manager

        self.manager = Manager([("127.0.0.1", port) for port in self.ports])

    async def once(self, name: str) -> None:
        lock = await self.manager.lock(name, lock_timeout=TTL)
        await self.manager.unlock(lock)

    async def close(self) -> None:
        await self.manager.destroy()
