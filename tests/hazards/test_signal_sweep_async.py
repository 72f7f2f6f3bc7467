"""A signal's handler raises wherever Python lets it in the code of an AsyncClient. See `test_signal_sweep`.

An Exception ends the task, or is logged by the loop if a callback is struck, and the loop goes on. A KeyboardInterrupt ends the
loop, and asyncio.run() cancels all tasks. Either way nothing is held longer than one request timeout, and nothing is renewed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from interlock import AsyncClient, Client, Unavailable
from interlock.testing import Node

from .strikes import ERRORS, Strike, Tally, struck
from .support import LIMIT, SCALE

pytestmark = pytest.mark.filterwarnings("ignore")  # of coroutines that were struck before anybody awaited them

STEP = max(1, round(60 / SCALE))
TTL = 30.0
SOON = 5.0


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/locks.db"
    node: Node = request.getfixturevalue("valkey_node")
    return node.url


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The loop complains of callbacks that were struck, and of tasks that nobody asks for their errors any more."""
    logger = logging.getLogger("asyncio")
    before, logger.disabled = logger.disabled, True
    yield
    gc.collect()
    logger.disabled = before


def left(observer: Client, name: str, within: float) -> bool:
    """Whether it is held, or somebody stands in its line, so long afterwards."""
    until = time.monotonic() + within
    while (entry := observer.inspect(name)).held or entry.waiters:
        if time.monotonic() > until:
            return True
        time.sleep(0.002)
    return False


async def trial(url: str, observer: Client, scene: str, name: str, n: int, error: BaseException, strike: list[Strike]) -> Tally:
    """What is left after one strike. Raises what ends the loop."""
    tally = Tally()
    async with AsyncClient(url, ttl=TTL) as client:
        async with client.lock("warm"):
            pass
        over = threading.Event()

        async def work() -> None:
            async with client.lock(name):
                await asyncio.sleep(0)

        def release() -> None:
            while not client._context.queue.in_line and not over.wait(0.001):
                pass
            lease.release()

        if scene == "contended":  # held by somebody else, who releases it once we wait: in a thread, where nothing strikes
            lease = observer.lock(name, ttl=TTL).acquire()
            threading.Thread(target=release).start()
        task = asyncio.create_task(work())
        try:
            with struck(n, error, only_ours=True) as here:
                strike.append(here)
                await asyncio.wait([task], timeout=SOON)
        finally:
            over.set()
            await asyncio.wait([task], timeout=SOON)  # as a TaskGroup would: nobody closes a client that is in use
        if not task.done():
            tally.stuck.append(str(here))
        elif task.exception() not in (None, error) and not isinstance(task.exception(), Unavailable):
            tally.dropped.append(f"{here}: {task.exception()!r}")  # (struck in a callback, the loop closes the connection)
        until = time.monotonic() + 1.5
        while (entry := observer.inspect(name)).held or entry.waiters:
            if time.monotonic() > until:
                tally.held.append(str(here))
                break
            await asyncio.sleep(0.002)
        if any(hold.name == name and hold.kept and not hold.over for hold in client._keeper._schedule.everybody()):
            tally.kept.append(str(here))
        return tally


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("scene", ["block", "contended"])
@pytest.mark.parametrize("kind", ERRORS)
def test_struck_in_a_loop(url: str, scene: str, kind: str) -> None:
    whole, n = Tally(), random.randint(1, STEP)
    with Client(url) as observer:
        while True:
            strikes: list[Strike] = []
            name = f"{scene}:{n}:{time.monotonic_ns()}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    tally = asyncio.run(trial(url, observer, scene, name, n, ERRORS[kind]("struck"), strikes))
                except KeyboardInterrupt:
                    tally = Tally()
                    if left(observer, name, 0.5):  # no loop runs any more
                        tally.held.append(str(strikes[0]))
            (strike,) = strikes
            if not strike.where:
                break
            n += STEP
            whole.tried += not strike.elsewhere
            for what in ("held", "kept", "stuck", "dropped"):
                getattr(whole, what).extend(getattr(tally, what))
    print(f"{scene} {kind}: {whole}")
    assert whole.clean, f"{whole}\n{whole.places()}"
    assert whole.tried > 5
