"""Where a flow takes place: the store, the world, and how long one question may take."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ..backends.port import Backend
from ..core.claim import Entry
from ..core.lease import DRIFT_RATE
from ..errors import InterlockError, Unavailable, UsageError
from ..runtime.base import Runtime
from .inside import Inside
from .notes import NOTHING_LEFT, tell
from .waiting.listener import Listener
from .waiting.queue import LocalQueue


class Undone(Enum):
    """How taking something back ended."""

    CONFIRMED = "the store is rid of the token"
    NEVER_ASKED = "nothing of the token was on its way, so nothing was done"
    SILENCE = "no answer to that either"


class Context(NamedTuple):
    """A backend and a runtime of one colour, and who of this client waits there."""

    backend: Backend
    runtime: Runtime
    request_timeout: float
    drift: float
    queue: LocalQueue
    listener: Listener
    inside: Inside

    @classmethod
    def of(cls, backend: Backend, runtime: Runtime, request_timeout: float, drift: float = DRIFT_RATE) -> Context:
        """A new one, where nobody waits yet."""
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
        """The error of whoever asks, or waits, while the client is closed."""
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

    async def undo(
        self,
        name: str,
        token: str,
        ttl: float,
        error: BaseException,
        held: bool = False,
        then: Callable[[bool], None] = lambda confirmed: None,
    ) -> Undone:
        """After `error` left an outcome unknown: see to it that nothing stays behind, whoever cancels meanwhile.

        `held`: the token had the lock before. What is left is said on the error, which the caller raises; nothing else is
        raised here but a cancellation: so what must follow the store's answer is done by `then`.
        """

        async def take_back() -> bool:
            confirmed = await self.backend.undo(name, token, self.request_timeout)
            then(confirmed)
            return confirmed

        try:
            confirmed = await self.runtime.shield(take_back)
        except InterlockError as failure:
            said = str(failure).rstrip()
            why = f" ({said})" if said not in str(error) else ""  # once is enough
            tell(error, f"The clean-up got no answer either, so '{name}' may stay locked for up to {ttl:g} s{why}")
            return Undone.SILENCE
        if held and not confirmed:
            tell(error, f"So '{name}' was not released: it ends with its ttl, within {ttl:g} s; release may be called again")
        elif isinstance(error, Unavailable):
            error.tell(NOTHING_LEFT)
        return Undone.CONFIRMED if confirmed else Undone.NEVER_ASKED
