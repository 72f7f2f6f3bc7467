"""One test body, both colours.

A body is an `async def` written against the asyncio face. For the blocking colour it gets the blocking objects in asyncio
dress and is stepped in a thread: `await lease.release()` then calls `Lease.release()` and never suspends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol

from ..api.aclient import AsyncClient, AsyncLease, AsyncLock
from ..api.client import Client, Lease, Lock
from ..runtime.blocking import run

COLOURS = ("blocking", "asyncio")
PATIENCE = 5.0  # seconds for which the others of a body that has failed are waited for, each
LOOK = 0.1  # how often it is looked whether one has
Body = Callable[["Kit"], Coroutine[Any, Any, None]]


class Kit(Protocol):
    """What a body is given."""

    colour: str

    def client(self, **options: Any) -> AsyncClient:
        """A new client on the store under test, or on another `store`; closed when the body ends. Its leases are not renewed
        unless asked for."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def together(self, *bodies: Coroutine[Any, Any, None]) -> None:
        """Run bodies side by side, in threads or in tasks, to their ends. Raises the first error."""


def run_body(body: Body, store: Any, colour: str) -> None:
    """Run a body in one colour. `store` is what a client is made with."""
    if colour == "asyncio":
        asyncio.run(_run_asyncio(body, store))
    else:
        kit = _BlockingKit(store)
        try:
            run(body(kit))
        finally:
            kit.close()


async def _run_asyncio(body: Body, store: Any) -> None:
    kit = _AsyncioKit(store)
    try:
        await body(kit)
    finally:
        for client in kit.clients:
            await client.close()


class _AsyncioKit:
    colour = "asyncio"

    def __init__(self, store: Any) -> None:
        self._store = store
        self.clients: list[AsyncClient] = []

    def client(self, **options: Any) -> AsyncClient:
        client = AsyncClient(options.pop("store", self._store), **{"renew": False, **options})
        self.clients.append(client)
        return client

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, *bodies: Coroutine[Any, Any, None]) -> None:
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(body)


class _BlockingKit:
    colour = "blocking"

    def __init__(self, store: Any) -> None:
        self._store = store
        self._clients: list[Client] = []

    def client(self, **options: Any) -> AsyncClient:
        client = Client(options.pop("store", self._store), **{"renew": False, **options})
        self._clients.append(client)
        return _DressedClient(client)  # type: ignore[return-value]  # the same words, which is what the parity test is for

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - stepped in a thread, no loop to block

    async def together(self, *bodies: Coroutine[Any, Any, None]) -> None:
        errors: list[BaseException] = []

        def work(body: Coroutine[Any, Any, None]) -> None:
            try:
                run(body)
            except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(body,), daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        while not errors and any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(LOOK)
        for thread in threads:  # a task would be cancelled; a thread may wait for ever for the one that failed
            thread.join(PATIENCE)
        if errors:
            raise errors[0]

    def close(self) -> None:
        for client in self._clients:
            client.close()


class _Dressed:
    """A blocking object in asyncio dress: what is not asked for below is the object's own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class _DressedLease(_Dressed):
    _inner: Lease

    async def extend(self, *args: Any, **kwargs: Any) -> None:
        self._inner.extend(*args, **kwargs)

    async def release(self) -> bool:
        return self._inner.release()

    async def wait_lost(self, *args: Any, **kwargs: Any) -> bool:
        return self._inner.wait_lost(*args, **kwargs)

    async def __aenter__(self) -> AsyncLease:
        self._inner.__enter__()
        return self  # type: ignore[return-value]


class _DressedLock(_Dressed):
    _inner: Lock

    async def acquire(self, *args: Any, **kwargs: Any) -> AsyncLease:
        return _DressedLease(self._inner.acquire(*args, **kwargs))  # type: ignore[return-value]

    async def try_acquire(self) -> AsyncLease | None:
        lease = self._inner.try_acquire()
        return None if lease is None else _DressedLease(lease)  # type: ignore[return-value]

    async def __aenter__(self) -> AsyncLease:
        return _DressedLease(self._inner.__enter__())  # type: ignore[return-value]


class _DressedClient(_Dressed):
    _inner: Client

    def lock(self, *args: Any, **kwargs: Any) -> AsyncLock:
        return _DressedLock(self._inner.lock(*args, **kwargs))  # type: ignore[return-value]

    def locked(self, *args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a coroutine function that never suspends, as a blocking one would be."""
        decorate = self._inner.locked(*args, **kwargs)

        def dressed(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
            from functools import wraps

            @wraps(function)
            def plain(*a: Any, **k: Any) -> Any:
                return run(function(*a, **k))

            guarded = decorate(plain)

            async def call(*a: Any, **k: Any) -> Any:
                return guarded(*a, **k)

            return call

        return dressed

    async def inspect(self, name: str) -> Any:
        return self._inner.inspect(name)

    async def close(self) -> None:
        self._inner.close()

    async def __aenter__(self) -> AsyncClient:
        return self  # type: ignore[return-value]
