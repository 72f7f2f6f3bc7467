"""Where a flow takes place: the store, the world, and how long one question may take."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ..backends.port import Backend
from ..core.lease import DRIFT_RATE
from ..errors import InterlockError, Unavailable
from ..runtime.base import Runtime
from .gate import Gate
from .hub import Hub


class Undone(Enum):
    """How taking something back ended."""

    CONFIRMED = "the store is rid of the token"
    NEVER_ASKED = "nothing of the token was on its way, so nothing was done"
    SILENCE = "no answer to that either"


class Site(NamedTuple):
    """A backend and a runtime of one colour, and who of this client waits there."""

    backend: Backend
    runtime: Runtime
    request_timeout: float
    drift: float
    gate: Gate
    hub: Hub

    @classmethod
    def of(cls, backend: Backend, runtime: Runtime, request_timeout: float, drift: float = DRIFT_RATE) -> Site:
        """A new one, where nobody waits yet."""
        gate = Gate()
        gate.rely = max(gate.rely, getattr(backend, "rely", 0.0))
        return cls(backend, runtime, request_timeout, drift, gate, Hub(backend, runtime, request_timeout, drift, gate))

    def within(self, ttl: float) -> float:
        """How long a question about a lease of `ttl` may take: an answer later than the ttl is of no use."""
        bound = self.request_timeout
        return bound if bound < ttl else ttl

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
            _tell(error, f"The clean-up got no answer either, so '{name}' may stay locked for up to {ttl:g} s{why}")
            return Undone.SILENCE
        if held and not confirmed:
            _tell(error, f"So '{name}' was not released: it ends with its ttl, within {ttl:g} s; release may be called again")
        elif isinstance(error, Unavailable):
            error.tell("Nothing is left behind")
        return Undone.CONFIRMED if confirmed else Undone.NEVER_ASKED


def _tell(error: BaseException, text: str) -> None:
    if isinstance(error, Unavailable):
        error.tell(text)
    else:
        error.add_note(f"interlock: {text}")
