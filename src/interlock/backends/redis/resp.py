"""The wire format, without any wire: bytes in, replies out. Both colours use it.

RESP 2 only, and only what our own scripts answer. A parser of this size is as fast as hiredis on replies this short
(docs/adr/0004), and lets one connection be shared by many tasks with a deadline for each.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

INCOMPLETE: Final = object()
MAX_DEPTH = 8
# Two or three numbers and a mark, which nearly all replies are: read in one go. Anything else, or half of it, is `_parse`'s.
_PLAIN = re.compile(rb"\*(?:4\r\n:(\d+)|3)\r\n:(\d+)\r\n:(\d+)\r\n\$(\d)\r\n([0-9a-f]+)\r\n").match


class ErrorReply(NamedTuple):
    """An error that the server answered. It is data: the server is alive and has said no."""

    text: str

    @property
    def code(self) -> str:
        """The first word, as in NOSCRIPT."""
        return self.text.partition(" ")[0]


Reply = int | bytes | None | ErrorReply | list["Reply"]


def answers(reply: Reply, mark: bytes) -> bool:
    """Whether this is the answer to the request with that mark: our scripts echo it at the end of their replies."""
    return isinstance(reply, list) and bool(reply) and reply[-1] == mark


class ProtocolError(Exception):
    """The peer does not speak RESP. The connection is of no use any more."""


def bulk(value: bytes) -> bytes:
    """One argument of a command."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


class Parser:
    """Feed it bytes in any pieces; `next` gives whole replies in order, or INCOMPLETE."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Add what has come in."""
        self._data = data if self._at >= len(self._data) else self._data[self._at :] + data
        self._at = 0

    def next(self) -> Reply | object:
        """The next whole reply, or INCOMPLETE. Raises ProtocolError on anything that is not RESP."""
        if self._at >= len(self._data):
            return INCOMPLETE
        if plain := _PLAIN(self._data, self._at):
            first, second, third, size, mark = plain.groups()
            if len(mark) == int(size):
                self._at = plain.end()
                return [int(second), int(third), mark] if first is None else [int(first), int(second), int(third), mark]
        reply, end = self._parse(self._at, 0)
        if reply is not INCOMPLETE:
            self._at = end
        return reply

    def _parse(self, at: int, depth: int) -> tuple[Reply | object, int]:
        data = self._data
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > 65_536:
                raise ProtocolError("a reply line without an end")
            return INCOMPLETE, at
        kind, line, after = data[at : at + 1], data[at + 1 : end], end + 2
        if kind == b":":
            return _number(line), after
        if kind == b"$":
            size = _number(line)
            if size < 0:
                return None, after
            if len(data) < after + size + 2:
                return INCOMPLETE, at
            return data[after : after + size], after + size + 2
        if kind == b"+":
            return line, after
        if kind == b"-":
            return ErrorReply(line.decode("utf-8", "replace")), after
        if kind == b"*" and depth < MAX_DEPTH:
            items: list[Reply] = []
            for _ in range(max(_number(line), 0)):
                item, after = self._parse(after, depth + 1)
                if item is INCOMPLETE:
                    return INCOMPLETE, at
                items.append(item)  # type: ignore[arg-type]  # INCOMPLETE is excluded above
            return items, after
        raise ProtocolError(f"a reply that begins with {data[at : at + 16]!r}")


def _number(line: bytes) -> int:
    try:
        return int(line)
    except ValueError:
        raise ProtocolError(f"{line[:16]!r} where a number should be") from None
