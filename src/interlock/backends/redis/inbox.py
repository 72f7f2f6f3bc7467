"""Where announcements arrive: one subscription for a whole client, on a connection of its own.

Rules of the file
- An announcement may be lost with the connection, and a connection may be dead without anybody noticing. So whoever hears makes
  sure, every few seconds, that the other side is still there.
- Anybody who may publish can write to an inbox. What is not to the letter an announcement is ignored, whatever it is: numbers
  that are no numbers of ours, tokens and names that cannot be any, strings of any size. Nothing of the kind ends the hearing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from os import urandom

from ...core import checks
from ...core.claim import Announced
from ...core.token import is_ours
from ...errors import Unavailable, UsageError
from ...runtime import forks
from .refusals import refusal
from .resp import ErrorReply, Reply, bulk
from .transport import Subscription, Transport

PREFIX = "interlock:inbox:"
SILENCE = 3.0  # seconds after which the peer is asked whether it is there
PATIENCE = 0.5  # seconds that it has for the answer, at least: it may have been opened in a hurry
PING = b"*1\r\n" + bulk(b"PING")
EXACT = 2**53  # a fence is below it: numbers of the scripts are exact up to there
_WHOLE = rb"(0|[1-9][0-9]{0,%d})\n"
_ANNOUNCED = re.compile(_WHOLE % 15 + _WHOLE % 10 + rb"([^\n]{1,2048})\n([^\n]{1,512})").fullmatch


class Inbox:
    """A channel and the subscription that it is heard by."""

    def __init__(
        self, subscription: Subscription, channel: str, patience: float, now: Callable[[], float], address: str
    ) -> None:
        self._subscription = subscription
        self._channel = channel.encode()
        self._patience = max(patience, PATIENCE)  # seconds for an answer
        self._now = now
        self._address = address
        self._heard_at = now()
        self._asked_at: float | None = None

    async def subscribe(self, until: float) -> ErrorReply | None:
        """From here on nothing is missed. The error that the server answers instead. Raises Unavailable."""
        await self._subscription.say(b"*2\r\n" + bulk(b"SUBSCRIBE") + bulk(self._channel), until)
        while replies := await self._subscription.hear(until):
            for reply in replies:
                if isinstance(reply, ErrorReply) or reply == [b"subscribe", self._channel, 1]:
                    return reply if isinstance(reply, ErrorReply) else None
            if self._now() >= until:  # others may go on coming for ever
                break
        raise self._silent()

    async def hear(self, until: float) -> list[Announced]:
        """See `port.Line.hear`."""
        while True:
            due = self._heard_at + SILENCE if self._asked_at is None else self._asked_at + self._patience
            replies = await self._subscription.hear(min(until, due))  # at least one look, however late it is
            now = self._now()
            if replies:
                self._heard_at, self._asked_at = now, None
                if announced := [one for one in map(self._announced, replies) if one is not None]:
                    return announced
            elif now >= due:
                if self._asked_at is not None:
                    raise self._silent()
                self._asked_at = now
                await self._subscription.say(PING, now + self._patience)
            if now >= until:
                return []

    def close(self) -> None:
        """Nobody listens any more."""
        self._subscription.close()

    def _announced(self, reply: Reply) -> Announced | None:
        match reply:
            case [b"message", self._channel, bytes(text)]:
                return read(text)
        return None

    def _silent(self) -> Unavailable:
        where = self._address
        return Unavailable(f"{where} is silent: is it overloaded, frozen or cut off?", backend=where, cause="timeout")


class Mailbox:
    """The inbox of a client: opened when it is needed, and again under the same name after it broke."""

    def __init__(self, address: str, transport: Transport, now: Callable[[], float]) -> None:
        self._address = address
        self._transport = transport
        self._now = now
        self._channel = ""
        self._inbox: Inbox | None = None
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. The connection is the transport's to let go of; the channel is the parent's."""
        self._channel, self._inbox = "", None

    async def open(self, within: float) -> str:
        """See `port.Line.open_inbox`."""
        if self._inbox is None:
            if not self._channel:
                self._channel = PREFIX + urandom(8).hex()
            until = self._now() + within
            subscription = await self._transport.subscribe(within)
            inbox = Inbox(subscription, self._channel, within, self._now, self._address)
            try:
                if (error := await inbox.subscribe(until)) is not None:
                    raise refusal(self._address, error, "")
            except BaseException:
                inbox.close()
                raise
            self._replace(inbox)
        return self._channel

    async def hear(self, until: float) -> list[Announced]:
        """See `port.Line.hear`."""
        inbox = self._inbox
        if inbox is None:
            raise Unavailable(f"no inbox is open at {self._address}", backend=self._address, cause="closed")
        try:
            return await inbox.hear(until)
        except Unavailable:
            if self._inbox is inbox:
                self._inbox = None
            inbox.close()
            raise

    def _replace(self, inbox: Inbox) -> None:
        before, self._inbox = self._inbox, inbox
        if before is not None:  # two opened it at once
            before.close()


def read(message: bytes) -> Announced | None:
    """The announcement that serve.lua wrote; None if this is anything else. Neither tokens nor names have line breaks.

    The backend dates it.
    """
    if (parts := _ANNOUNCED(message)) is None:
        return None
    fence, ms = map(int, parts.groups()[:2])
    try:
        token, name = parts[3].decode(), checks.name(parts[4].decode())
    except (UnicodeDecodeError, UsageError):
        return None
    if fence >= EXACT or not is_ours(token):
        return None
    return Announced(name, token, fence, ms / 1000, -inf)
