"""A quorum on uvloop: tasks that are cancelled amid connecting."""

from __future__ import annotations

import subprocess
import sys

from interlock.testing import Node

from .conftest import urls

PROGRAM = """
import asyncio, random, sys
import interlock, uvloop

async def once(client):
    try:
        async with asyncio.timeout(random.choice([0.0, 0.001, 0.005])), client.lock("x", timeout=0.2):
            await asyncio.sleep(0.001)
    except (TimeoutError, interlock.InterlockError):
        pass

async def main():
    for _ in range(15):
        async with interlock.AsyncClient(sys.argv[1:], ttl=2) as client:
            await asyncio.gather(*(once(client) for _ in range(8)))

for _ in range(3):
    uvloop.run(main())
"""


def test_cancelled_while_it_connects(five: list[Node]) -> None:
    """A race that is over throws into whoever still connects. The interpreter died of that, inside uvloop."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *urls(five[:3])], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
