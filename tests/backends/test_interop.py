"""On one key with redis-py's own Lock, in both directions: each excludes the other, neither releases the other's."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError

import interlock
from interlock.testing import Node


@pytest.fixture(params=["valkey", "redis"])
def node(request: pytest.FixtureRequest) -> Node:
    return request.getfixturevalue(f"{request.param}_node")


def test_we_exclude_redis_py(node: Node) -> None:
    with interlock.Client(node.url) as ours, redis.Redis(port=node.port) as theirs:
        with ours.lock("shared", ttl=20) as lease:
            assert theirs.lock("shared", timeout=20).acquire(blocking=False) is False
            intruder = theirs.lock("shared", timeout=20)
            intruder.local.token = b"not the holder"
            with pytest.raises(LockError):
                intruder.release()
            with pytest.raises(LockError):
                intruder.extend(30)
            assert theirs.get("shared") == lease.token.encode()
            lease.check()
            assert ours.inspect("shared").fence == lease.fence
        taken = theirs.lock("shared", timeout=20)
        assert taken.acquire(blocking=False) is True
        taken.release()


def test_redis_py_excludes_us(node: Node) -> None:
    with interlock.Client(node.url) as ours, redis.Redis(port=node.port) as theirs:
        expired = ours.lock("shared", ttl=0.2, renew=False).acquire()
        time.sleep(0.21)
        with theirs.lock("shared", timeout=20) as held:
            assert ours.lock("shared").try_acquire() is None
            entry = ours.inspect("shared")
            assert (entry.held, entry.owner, entry.fence) == (True, "", None)
            assert entry.remaining is not None
            assert 15 < entry.remaining <= 20
            assert expired.release() is False
            assert ours._context.backend  # and past the flow's caution: the script itself compares
            from interlock.runtime.blocking import run

            assert run(ours._context.backend.release("shared", expired.token, 1.0)) is False
            run(ours._context.backend.undo("shared", expired.token, 1.0))
            assert held.owned()
        with ours.lock("shared", timeout=0) as lease:
            assert lease.fence > expired.fence


def test_a_waiter_of_each_kind_gets_it_from_the_other(node: Node) -> None:
    with interlock.Client(node.url) as ours, redis.Redis(port=node.port) as theirs:
        theirs.lock("shared", timeout=0.3).acquire()
        with ours.lock("shared", ttl=0.3, timeout=5, renew=False) as lease:
            assert theirs.lock("shared", timeout=1, sleep=0.01, blocking_timeout=5).acquire() is True
            assert lease.lost, "redis-py got it only after our lease was over"
            lease._hold.released = True  # it is lost, as it should be; the block need not say so here


def test_asyncio_twin(node: Node) -> None:
    async def main() -> None:
        theirs = redis.asyncio.Redis(port=node.port)
        async with interlock.AsyncClient(node.url) as ours:
            async with ours.lock("shared", ttl=20):
                assert await theirs.lock("shared", timeout=20).acquire(blocking=False) is False
            async with theirs.lock("shared", timeout=20):
                assert await ours.lock("shared").try_acquire() is None
            async with ours.lock("shared", timeout=0):
                pass
        await theirs.aclose()

    asyncio.run(main())
