"""The public types, as a user's type checker sees them. Never run: `test_typing.py` checks it with mypy --strict.

A line that must be an error carries an ignore with the code of that error; an ignore that is not needed fails the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

import interlock
from interlock import (
    AcquireTimeout,
    AsyncClient,
    AsyncLease,
    AsyncLock,
    Client,
    Entry,
    InterlockError,
    Lease,
    LeaseLost,
    Lock,
    NoQuorum,
    NotAcquired,
    StaleFence,
    Unavailable,
    Unsupported,
    UsageError,
)


def making_clients(anything: object) -> None:
    assert_type(Client(), Client)
    Client("redis://localhost", ttl=10, timeout=timedelta(seconds=5), renew=False, request_timeout=0.5)
    Client("memory://", timeout=None)
    Client(anything)
    Client("memory://", 10)  # type: ignore[call-arg]
    Client("memory://", ttl="10")  # type: ignore[arg-type]
    Client("memory://", ttl=None)  # type: ignore[arg-type]
    Client("memory://", tll=10)  # type: ignore[call-arg]
    assert_type(interlock.__version__, str)
    assert_type(interlock.lock("x", ttl=5), Lock)
    interlock.nothing  # type: ignore[attr-defined]  # noqa: B018


def blocking(client: Client) -> None:
    assert_type(client.address, str)
    assert_type(client.inspect("x"), Entry)
    client.close()
    with client as same:
        assert_type(same, Client)
    lock = client.lock("x", ttl=timedelta(seconds=1), timeout=None, renew=False)
    assert_type(lock, Lock)
    assert_type(lock.name, str)
    with client.lock("x") as lease:
        assert_type(lease, Lease)
    assert_type(lock.acquire(), Lease)
    assert_type(lock.acquire(timeout=3), Lease)
    assert_type(lock.acquire(timeout=None), Lease)
    assert_type(lock.try_acquire(), Lease | None)
    lock.try_acquire().release()  # type: ignore[union-attr]
    lock.acquire(timeout="3")  # type: ignore[arg-type]
    client.lock(7)  # type: ignore[arg-type]
    client.lock("x", 10)  # type: ignore[call-arg]
    client.lock("x", ttl=None)  # type: ignore[arg-type]
    client.lock("x", tll=10)  # type: ignore[call-arg]
    client.lock("x", on_lost=print, on_doubtful=None, note="me", fair=True, max_hold=60, progress=5, lock_delay=1)
    client.lock("x", fair="yes")  # type: ignore[arg-type]
    client.locked("x", tll=10)  # type: ignore[call-arg]
    interlock.lock("x", tll=10)  # type: ignore[call-arg]


def a_lease(lease: Lease) -> None:
    assert_type(lease.name, str)
    assert_type(lease.fence, int)
    assert_type(lease.token, str)
    assert_type(lease.ttl, float)
    assert_type(lease.lost, bool)
    assert_type(lease.state, str)
    assert_type(lease.remaining(), float)
    assert_type(lease.release(), bool)
    lease.check()
    lease.extend()
    lease.extend(30)
    lease.extend(timedelta(minutes=1))
    with lease as same:
        assert_type(same, Lease)
    lease.fence = 3  # type: ignore[misc]
    lease.extend("30")  # type: ignore[arg-type]


def decorated(client: Client) -> None:
    @client.locked("order:{order_id}", ttl=60)
    def pay(order_id: int, *, amount: float = 1.0) -> str:
        return f"{order_id} {amount}"

    assert_type(pay(1), str)
    assert_type(pay(order_id=1, amount=2.5), str)
    pay("1")  # type: ignore[arg-type]
    pay()  # type: ignore[call-arg]
    pay(1, 2.5)  # type: ignore[call-arg]
    pay(1, cents=3)  # type: ignore[call-arg]
    takes: Callable[[int], str] = pay
    takes(1)

    class Account:
        number = 1

        @client.locked("account:{self.number}")
        def close(self, day: str) -> int:
            return len(day)

    assert_type(Account().close("mon"), int)
    Account().close(1)  # type: ignore[arg-type]
    client.locked(pay)  # type: ignore[arg-type]


async def asynchronous(client: AsyncClient) -> None:
    assert_type(client.address, str)
    assert_type(await client.inspect("x"), Entry)
    async with client as same:
        assert_type(same, AsyncClient)
    assert_type(client.lock("x", ttl=5), AsyncLock)
    async with client.lock("x") as lease:
        assert_type(lease, AsyncLease)
        assert_type(lease.fence, int)
        assert_type(lease.lost, bool)
        await lease.extend(10)
        assert_type(await lease.release(), bool)
    assert_type(await client.lock("x").acquire(timeout=1), AsyncLease)
    assert_type(await client.lock("x").try_acquire(), AsyncLease | None)
    client.lock("x").acquire()  # type: ignore[unused-coroutine]
    client.lock("x", tll=10)  # type: ignore[call-arg]
    with client.lock("x"):  # type: ignore[attr-defined]
        pass


async def decorated_async(client: AsyncClient) -> None:
    @client.locked("order:{order_id}")
    async def pay(order_id: int, *, amount: float = 1.0) -> str:
        return f"{order_id} {amount}"

    assert_type(await pay(1), str)
    assert_type(await pay(order_id=1, amount=2.5), str)
    await pay("1")  # type: ignore[arg-type]
    await pay(1, 2.5)  # type: ignore[call-arg]
    # A decorated coroutine function still is one: it goes wherever a coroutine goes.
    work: Coroutine[Any, Any, str] = pay(1)
    assert_type(await asyncio.create_task(work), str)
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(pay(2)), asyncio.Task[str])

    @client.locked("x")  # type: ignore[arg-type]
    def plain() -> int:
        return 1


def run_it(client: AsyncClient) -> None:
    @client.locked("main")
    async def main() -> int:
        return 1

    assert_type(asyncio.run(main()), int)


def entries(entry: Entry) -> None:
    assert_type(entry.name, str)
    assert_type(entry.held, bool)
    assert_type(entry.owner, str)
    assert_type(entry.remaining, float | None)
    assert_type(entry.fence, int | None)


def errors(client: Client) -> None:
    try:
        client.lock("x").acquire(timeout=1)
    except AcquireTimeout as error:
        assert_type(error.name, str)
        assert_type(error.owner, str)
        assert_type(error.waited, float)
        late: TimeoutError = error
        print(late)
    except LeaseLost as error:
        assert_type(error.reason, str)
    except StaleFence as error:
        assert_type(error.fence, int)
        assert_type(error.newest, int | None)
    except NoQuorum as error:
        assert_type(error.backend, str)
    except Unavailable as error:
        assert_type(error.cause, str)
    except Unsupported as error:
        wrong: UsageError = error
        print(wrong)
    except NotAcquired as error:
        assert_type(error.owner, str)
    except InterlockError as error:
        error.name  # type: ignore[attr-defined]  # noqa: B018
