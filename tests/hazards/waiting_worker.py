"""One of those who contend in test_waiting_chaos.py: `waiting_worker.py STORES LOG`. Reads what to do, then works until it is
told to stop, or killed. What it did is in LOG, a line for each step, written at once: it may be the last."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import threading
import time
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from support import heard, now, tell

import interlock

logging.disable(logging.CRITICAL)


class Log:
    """`+ fence arrived began` when a lease begins, `- fence ended` before it is released, `! error` for the rest."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.errors: dict[str, int] = {}

    def write(self, *what: object) -> None:
        os.write(self._file, (" ".join(map(str, what)) + "\n").encode())

    def began(self, lease: Any, arrived: float) -> None:
        self.write("+", lease.fence, repr(arrived), repr(now()))

    def ended(self, lease: Any) -> None:
        self.write("-", lease.fence, repr(min(now(), lease._hold.deadline)))

    def failed(self, error: BaseException) -> None:
        self.write("!", type(error).__name__, error)


def threads(order: dict[str, Any], log: Log, stop: threading.Event) -> None:
    dice = random.Random()

    def work() -> None:
        while not stop.is_set():
            arrived = now()
            try:
                with client.lock("chaos", timeout=dice.choice(order["timeouts"]), fair=order["fair"]) as lease:
                    log.began(lease, arrived)
                    time.sleep(dice.random() * order["hold"])
                    log.ended(lease)
            except interlock.NotAcquired:
                continue
            except interlock.InterlockError as error:
                log.failed(error)
                time.sleep(0.02)

    with interlock.Client(order["stores"], ttl=order["ttl"]) as client:
        client.inspect("chaos")  # to import what it needs takes longest
        tell("ready")
        jobs = [threading.Thread(target=work) for _ in range(order["each"])]
        for job in jobs:
            job.start()
        stop.wait()
        for job in jobs:
            job.join()


async def tasks(order: dict[str, Any], log: Log, stop: threading.Event) -> None:
    dice = random.Random()

    async def work() -> None:
        while not stop.is_set():
            arrived = now()
            try:
                async with client.lock("chaos", timeout=dice.choice(order["timeouts"]), fair=order["fair"]) as lease:
                    log.began(lease, arrived)
                    await asyncio.sleep(dice.random() * order["hold"])
                    log.ended(lease)
            except interlock.NotAcquired:
                continue
            except interlock.InterlockError as error:
                log.failed(error)
                await asyncio.sleep(0.02)

    async with interlock.AsyncClient(order["stores"], ttl=order["ttl"]) as client:
        await client.inspect("chaos")
        tell("ready")
        async with asyncio.TaskGroup() as group:
            for _ in range(order["each"]):
                group.create_task(work())


def main() -> None:
    order, log, stop = heard(), Log(sys.argv[2]), threading.Event()

    def listen() -> None:
        heard()  # the end of what is asked
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    if order["colour"] == "asyncio":
        asyncio.run(tasks(order, log, stop))
    else:
        threads(order, log, stop)
    tell("done")


if __name__ == "__main__":
    main()
