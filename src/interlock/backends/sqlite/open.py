"""From a URL to a backend."""

from __future__ import annotations

from ...runtime.base import Runtime
from ..port import Backend
from .backend import SqliteBackend
from .inbox import Inbox
from .location import Location, parse
from .store import Store
from .transport import Transport


def open_sqlite(url: str, runtime: Runtime) -> Backend:
    """The store in the file that the URL names; see `location` for what URLs mean. Touches no disk before the first verb.

    Raises UsageError for a URL that names no local file.
    """
    return open_place(Location(parse(url)), runtime)


def open_place(place: Location, runtime: Runtime) -> SqliteBackend:
    """The store at a place."""
    store = Store(place, runtime.now, runtime.wall_ms)
    transport: Transport
    if runtime.colour == "asyncio":
        from .aio import AsyncioTransport

        transport = AsyncioTransport(lambda: store.address)
    else:
        from .blocking import BlockingTransport

        transport = BlockingTransport()
    return SqliteBackend(store, transport, Inbox(runtime))
