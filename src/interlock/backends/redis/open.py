"""The opener: a URL or a client object in, a backend of the right colour out."""

from __future__ import annotations

from typing import Any

from ...runtime.base import Runtime
from ..port import Backend
from .backend import RedisBackend
from .connect import recipe
from .transport import Transport


def open_redis(where: Any, runtime: Runtime) -> Backend:
    """A backend on one node. Connects at the first verb, not here.

    Raises UsageError for a wrong URL, a missing redis package or a client object of the other colour.
    """
    how = recipe(where, runtime.colour)
    transport: Transport
    if runtime.colour == "asyncio":
        from .aio import AsyncTransport

        transport = AsyncTransport(how)
    else:
        from .blocking import BlockingTransport

        transport = BlockingTransport(how)
    return RedisBackend(how.address, transport, runtime)
