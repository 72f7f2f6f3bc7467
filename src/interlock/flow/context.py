"""The context of a flow: the store, the world, how long one question may take, and what of this client is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..backends.port import Backend
from ..core.claim import Entry
from ..core.lease import DRIFT_RATE
from ..errors import Unavailable, UsageError
from ..runtime.base import Runtime
from .inside import Inside
from .waiting.listener import Listener
from .waiting.queue import LocalQueue


class Context(NamedTuple):
    """A backend and a runtime of one colour, with the waiters of one client and its verbs that are under way."""

    backend: Backend
    runtime: Runtime
    request_timeout: float
    drift: float
    queue: LocalQueue
    listener: Listener
    inside: Inside

    @classmethod
    def of(cls, backend: Backend, runtime: Runtime, request_timeout: float, drift: float = DRIFT_RATE) -> Context:
        """A new one, with no waiter."""
        queue = LocalQueue()
        queue.rely = max(queue.rely, getattr(backend, "rely", 0.0))
        if allow_for := getattr(backend, "allow_for", None):  # a quorum has waits of its own, by other clocks
            allow_for(drift)
        inside = Inside(runtime)
        listener = Listener(backend, runtime, request_timeout, drift, queue, inside)
        return cls(backend, runtime, request_timeout, drift, queue, listener, inside)

    def settled(self, token: str) -> bool:
        """See `Backend.settled`. A store that does not say so may let requests overtake each other."""
        settled: Callable[[str], bool] | None = getattr(self.backend, "settled", None)
        return settled is not None and settled(token)

    def closed(self) -> UsageError:
        """The error of a verb that asks, or waits, while the client is closed."""
        return UsageError(f"the client for {self.backend.address} is closed; make a new one")

    def within(self, ttl: float) -> float:
        """How long a question about a lease of `ttl` may take: an answer later than the ttl is of no use."""
        bound = self.request_timeout
        return bound if bound < ttl else ttl

    async def inspect(self, name: str) -> Entry:
        """See `Backend.inspect`. A close does not wait for it: it leaves nothing behind."""
        try:
            return await self.backend.inspect(name, self.request_timeout)
        except Unavailable as error:
            if self.queue.closed:  # it hung up on us
                raise self.closed() from error
            raise
