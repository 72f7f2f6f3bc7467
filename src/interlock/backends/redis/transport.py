"""How bytes get to the node and back: what each colour's transport must do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Protocol

from ...runtime.base import now
from .resp import Reply
from .scripts import Request

Undo = Callable[[], list[Request]] | None
"""Makes the requests that take back what an unanswered one may have done."""


class Astray:
    """Tokens of which one request had no answer and a later one went down another connection, for as long as that matters."""

    def __init__(self, lasts: float) -> None:
        self._since: dict[str, float] = {}
        self._lasts = lasts

    def update(self, tokens: Iterable[str]) -> None:
        """These, from now on."""
        for token in tokens:
            moment = now()
            for other, since in list(self._since.items()):
                if moment - since >= self._lasts:
                    self._since.pop(other, None)
            self._since[token] = moment

    def __contains__(self, token: str) -> bool:
        return bool(self._since) and now() - self._since.get(token, -inf) < self._lasts


class Ear(Protocol):
    """A connection of its own, on which things arrive that nobody asked for."""

    async def say(self, request: bytes, until: float) -> None:
        """Put a request on the wire. Raises Unavailable when that cannot be done."""

    async def hear(self, until: float) -> list[Reply]:
        """Whatever has come in; nothing when the moment `until` has come. Raises Unavailable when the connection broke."""

    def close(self) -> None:
        """Hang up, also on whoever hears at this moment: that raises Unavailable."""


class Transport(Protocol):
    """How bytes get to the node and back; one file per colour.

    A request is *unanswered* from the moment its first byte may have left until its caller has the reply in hand, not merely
    until the reply has arrived. It is so for each of its tokens: one or, when a lock is handed over, two.

    A request carries a mark that its reply echoes. So a reply that some middlebox swallowed cannot make the next one pass for
    the answer to another question, and several tasks can share a connection without trusting that replies are complete.
    """

    age: int
    """Grows with a new connection: the node may be another one by now."""

    def side_by_side(self) -> None:
        """Other nodes are asked at the same time: they must not wait until this one has said hello."""

    async def call(self, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo = None) -> Reply:
        """One request, one reply. Goes down the connection that still owes one of the tokens an answer, if there is one.

        Raises Unavailable when there is no reply at the moment `until`. Without tokens it is not tracked. `undo` is sent when
        the transport gives up on a connection on which the answer to this request is long overdue.
        """

    async def follow(self, request: Request, mark: bytes, token: str, within: float) -> Reply:
        """Send `request` behind this token's unanswered ones, down the same connection, or a new one if that is dead.

        None at once when nothing of the token is unanswered. Afterwards nothing is remembered of the token.
        """

    def settled(self, token: str) -> bool:
        """Whether all of the token went down one connection, or so long ago on another that it will not arrive any more."""

    def keep(self, token: str) -> None:
        """The token is alive: an unanswered request of it is not undone, and its connection is kept, until it is dropped."""

    def drop(self, token: str) -> None:
        """Nothing more will be asked for this token."""

    def lag(self) -> float:
        """For how many seconds the node has owed an answer to a request that was abandoned; 0 when it owes none."""

    async def listen(self, within: float) -> Ear:
        """A new connection to hear on. Raises Unavailable when there is none within `within` seconds."""

    async def close(self) -> None:
        """Close every connection."""
