"""The holder of test_pause.py: `pause_worker.py COLOUR STORE RESOURCE FLAG FIFO`. It works under a lock until it is lost.

The resource is a list in Valkey behind a guard that knows the highest fence it has seen. FLAG is a byte that the test can read
while this process is stopped: 1 while the event loop waits for something to happen.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import redis
from support import heard, now, tell

import interlock

GUARD = """
local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < seen and ARGV[2] == 'checked' then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', math.max(seen, tonumber(ARGV[1]))), 'EX', '600')
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], '600')
return 1
"""


class Work:
    """What is done under the lock, and what became of it. Stale: begun after the deadline of the lease."""

    def __init__(self, order: dict[str, Any], resource: Any) -> None:
        self.order = order
        self.guard = resource.register_script(GUARD)
        self.lease: Any = None
        self.passed = 0.0  # when the last check that passed was begun
        self.stale = self.refused = 0
        self.reason = ""

    def begin(self, lease: Any) -> None:
        self.lease = lease
        self.write()  # sealed at first touch
        tell({"token": lease.token, "fence": lease.fence})

    def write(self) -> None:
        stale = now() >= self.lease._hold.deadline
        keys = (f"seal:{self.order['name']}", f"log:{self.order['name']}")
        accepted = self.guard(keys=keys, args=(self.lease.fence, self.order["fence"]))
        self.stale += stale
        self.refused += not accepted

    def report(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "deadline": self.lease._hold.deadline,
            "stale": self.stale,
            "refused": self.refused,
            "reason": self.reason,
            "lost": self.lease.lost,
        }


def blocking(store: str, resource: Any, flag: mmap.mmap, fifo: str) -> None:
    with interlock.Client(store) as client:
        while (order := heard()) is not None:
            work = Work(order, resource)
            lease = client.lock(order["name"], ttl=order["ttl"]).acquire(timeout=20)
            work.begin(lease)
            while True:
                began = now()
                try:
                    lease.check()
                except interlock.LeaseLost as error:
                    work.reason = error.reason
                    break
                work.passed = began
                time.sleep(order["gap"])  # between the check and the write, where no lock can help
                work.write()
                time.sleep(0.001)
            time.sleep(order["linger"])  # whatever the keeper still does, it does now
            assert not lease.release()
            tell(work.report())


def flagged(flag: mmap.mmap) -> asyncio.AbstractEventLoop:
    """A loop that shows from outside whether it is waiting: nothing is ready, and it has asked the kernel for more."""
    loop = asyncio.SelectorEventLoop()
    real = loop._selector.select  # type: ignore[attr-defined]

    def select(timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return real(timeout)
        flag[0] = 1
        try:
            return real(timeout)
        finally:
            flag[0] = 0

    loop._selector.select = select  # type: ignore[attr-defined]
    return loop


def asynchronous(store: str, resource: Any, flag: mmap.mmap, fifo: str) -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        async with interlock.AsyncClient(store) as client:
            while (order := await asyncio.to_thread(heard)) is not None:
                work = Work(order, resource)
                try:
                    async with client.lock(order["name"], ttl=order["ttl"], timeout=20) as lease:
                        work.begin(lease)
                        while True:
                            if order["wait"] == "sleep":
                                await asyncio.sleep(0.003)
                            elif order["wait"] == "read":
                                assert await reader.read(4096)
                            else:
                                await asyncio.sleep(0)
                                time.sleep(order["gap"])  # it should not, but people do: nothing can stop it here
                            work.write()
                except interlock.LeaseLost as error:
                    work.reason = error.reason
                await asyncio.sleep(order["linger"])
                tell(work.report())
        transport.close()

    with asyncio.Runner(loop_factory=lambda: flagged(flag)) as runner:
        runner.run(main())


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # here: a test imports this file, and others look at what is logged
    colour, store, url, path, fifo = sys.argv[1:]
    with open(path, "r+b") as file, redis.Redis.from_url(url) as client:
        (blocking if colour == "blocking" else asynchronous)(store, client, mmap.mmap(file.fileno(), 1), fifo)
