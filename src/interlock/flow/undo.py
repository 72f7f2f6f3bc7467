"""Taking back what a token may have in the store: the one home of "release, else undo".

- *Release* says that the token gives back what it has. Any connection will do, if nothing of the token is on its way.
- *Undo* follows requests of the token that had no answer, down the path that they took (`Backend.undo`). It says False at once
  if there are none.

So a request without an answer is followed by an undo, and a release without an answer as well.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from ..backends.port import Backend
from ..errors import InterlockError, Unavailable
from .notes import NOTHING_LEFT, tell, tell_left

if TYPE_CHECKING:
    from .context import Context  # which has the listener, which drops tokens


class Undone(Enum):
    """How taking something back ended."""

    CONFIRMED = "the store is rid of the token"
    NEVER_ASKED = "nothing of the token was on its way, so nothing was done"
    SILENCE = "no answer to that either"


async def undo(
    context: Context,
    name: str,
    token: str,
    ttl: float,
    error: BaseException,
    held: bool = False,
    then: Callable[[bool], None] = lambda confirmed: None,
) -> Undone:
    """After `error` left an outcome unknown: see to it that nothing stays behind, though the caller is cancelled meanwhile.

    `held`: the token had the lock before. What is left is said on the error, which the caller raises; nothing else is
    raised here but a cancellation: so what must follow the store's answer is done by `then`.
    """

    async def take_back() -> bool:
        confirmed = await context.backend.undo(name, token, context.request_timeout)
        then(confirmed)
        return confirmed

    try:
        confirmed = await context.runtime.shield(take_back)
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


async def drop(backend: Backend, name: str, token: str, within: float, unanswered: bool = False) -> None:
    """The token is of no use any more: it leaves the line, or gives back what it has. To be shielded.

    `unanswered`: a request of it may be without an answer. Then that is followed, and nothing else is needed.
    Raises Unavailable if the store does not answer, UsageError if the client is closed: then its ttl ends it.
    """
    if unanswered and await backend.undo(name, token, within):
        return
    try:
        await backend.release(name, token, within)
    except Unavailable:
        if not await backend.undo(name, token, within):
            raise


async def drop_or_tell(context: Context, name: str, token: str, ttl: float, error: BaseException) -> bool:
    """`drop`, because of `error`. Whether that was answered; if not, what is left is said on the error."""
    try:
        await context.runtime.shield(lambda: drop(context.backend, name, token, context.request_timeout))
    except InterlockError as failure:
        tell_left(error, name, ttl, failure)
        return False
    return True
