"""How bytes get to the node and back: what each colour's transport must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..unanswered import Undo
from .resp import Reply
from .scripts import Request


class Subscription(Protocol):
    """A connection of its own, on which things arrive that nobody asked for."""

    async def say(self, request: bytes, until: float) -> None:
        """Put a request on the wire. Raises Unavailable when that cannot be done."""

    async def hear(self, until: float) -> list[Reply]:
        """Whatever has come in; nothing when the moment `until` has come. Raises Unavailable when the connection broke."""

    def close(self) -> None:
        """Hang up, also on whoever hears at this moment: that raises Unavailable."""


class Transport(Protocol):
    """How bytes get to the node and back; one file per colour.

    Which requests are *unanswered*, and what follows from that, is the rule of `backends.unanswered`.

    A request carries a mark that its reply echoes. So a reply that some middlebox swallowed cannot make the next one pass for
    the answer to another question, and several tasks can share a connection without trusting that replies are complete.
    """

    age: int
    """Grows with a new connection: the node may be another one by now."""

    def elect(self, is_live: Callable[[str], bool]) -> None:
        """Other nodes are asked at the same time from now on: they must not wait until this one is connected to. `is_live` says
        whether a token has the lock: what it was not answered is not undone then, and its connection is kept."""

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

    def lag(self) -> float:
        """For how many seconds the node has owed an answer to a request that was abandoned; 0 when it owes none."""

    async def subscribe(self, within: float) -> Subscription:
        """A new connection to hear on. Raises Unavailable when there is none within `within` seconds."""

    async def close(self) -> None:
        """Close every connection."""
