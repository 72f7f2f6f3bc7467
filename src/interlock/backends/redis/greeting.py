"""The first words on a new connection: who we are, what it is called, which database. Without any wire; both colours use it.

All of them go out in one write, and their answers are read by our own parser: a handshake takes one round trip, not one for
each, and what a server sends there is bounded as everything is (`resp`). redis-py would take a step after the other, each with
the whole patience of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, Reply, bulk


class Unwelcome(Exception):
    """The server said no. `step` is what it said it to: AUTH, SETNAME or SELECT."""

    def __init__(self, step: str, reply: ErrorReply) -> None:
        super().__init__(reply.text)
        self.step = step
        self.code = reply.code


class NoCredentials(Exception):
    """The user's credential provider raised something. It is the cause; what it says may be secret."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the credential provider raised {type(error).__name__}")


class Greeting:
    """What is said on a connection, and what its answers mean."""

    def __init__(self, connection: Any, credentials: Sequence[Any] | None) -> None:
        self._credentials = tuple(credentials or ())
        self._name, self._database = connection.client_name, connection.db
        self._parser = Parser()
        self._replies: list[Reply] = []

    def request(self) -> bytes:
        """What is to be sent; b"" if there is nothing to say."""
        return b"".join(_packed(words) for _, words in self._steps())

    def heard(self, data: bytes) -> bytes | None:
        """Take in what came. None: there is more to come. b"": the connection is good. Else: what is to be sent now.

        Raises Unwelcome, ProtocolError.
        """
        self._parser.feed(data)
        while (reply := self._parser.next()) is not INCOMPLETE:
            self._replies.append(reply)  # type: ignore[arg-type]  # INCOMPLETE is excluded above
        steps = self._steps()
        if len(self._replies) < len(steps):
            return None
        if len(self._replies) > len(steps):
            raise ProtocolError("a reply to nothing that was asked")
        replies, self._replies = self._replies, []
        for (step, words), reply in zip(steps, replies, strict=True):
            if isinstance(reply, ErrorReply):
                if step == "AUTH" and len(words) == 3 and "wrong number of arguments" in reply.text:
                    self._credentials = self._credentials[1:]  # before version 6 there are no users
                    return self.request()
                raise Unwelcome(step, reply)
            if reply != b"OK":
                raise ProtocolError(f"an answer to {step} that is none")
        return b""

    def _steps(self) -> list[tuple[str, tuple[Any, ...]]]:
        steps: list[tuple[str, tuple[Any, ...]]] = []
        if self._credentials:
            steps.append(("AUTH", ("AUTH", *self._credentials)))
        if self._name:
            steps.append(("SETNAME", ("CLIENT", "SETNAME", self._name)))
        if self._database:
            steps.append(("SELECT", ("SELECT", self._database)))
        return steps


def credentials_of(connection: Any) -> tuple[Any, ...] | None:
    """A user and a password, or a password, or nothing; as they were given, if no provider is asked for them."""
    if connection.username:
        return connection.username, connection.password or ""
    return (connection.password,) if connection.password else None


def _packed(words: Sequence[Any]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(bulk(word if isinstance(word, bytes) else str(word).encode()) for word in words)
