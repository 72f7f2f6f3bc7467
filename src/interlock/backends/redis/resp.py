"""The wire format, without any wire: bytes in, replies out. Both colours use it.

RESP 2 only, and only what our own scripts answer. A parser of this size is as fast as hiredis on replies this short
(docs/adr/0004), and lets one connection be shared by many tasks with a deadline for each.

What a server sends is not trusted
- Whatever it is, it is a reply, or not yet one, or a ProtocolError. No other exception.
- The work is in proportion to the bytes, however they are cut: what has been read is never read again.
- What is kept is bounded: the length of a line, the digits of a number, the depth of arrays, the size of a reply. A string that
  is too large (somebody else's value; what anybody may publish) is passed over: None stands in its place.
- What an error shows of it is short, has nothing in it that acts on a terminal, and no token.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ...core.shown import shown

INCOMPLETE: Final = object()
MAX_DEPTH = 8
MAX_LINE = 65_536  # bytes of a line of text
MAX_HEAD = 24  # of a line that is a number
MAX_BULK = 65_536  # of a string that is kept
MAX_REPLY = 1_048_576  # of all that is kept of a reply
MAX_SIZE = 536_870_912  # of what a server may announce: Redis's own limit
ITEM = 16  # what an item counts for, beside its bytes
SHOWN = 500  # characters of a server's error
# Two or three numbers and a mark, which nearly all replies are: read in one go. Anything else, or half of it, is `_parse`'s.
_PLAIN = re.compile(rb"\*(?:4\r\n:(\d{1,19})|3)\r\n:(\d{1,19})\r\n:(\d{1,19})\r\n\$(\d)\r\n([0-9a-f]{1,9})\r\n").match
_NUMBER = re.compile(rb"-?\d{1,19}").fullmatch
_SECRET = re.compile(rb"[0-9a-f]{8,}").sub  # a piece of a token, perhaps


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


class _Array:
    """An array of which some items may be missing."""

    __slots__ = ("items", "size")

    def __init__(self, size: int) -> None:
        self.items: list[Reply] = []
        self.size = size


class Parser:
    """Feed it bytes in any pieces; `next` gives whole replies in order, or INCOMPLETE."""

    __slots__ = ("_at", "_data", "_open", "_passing", "_room", "_searched", "amid")

    def __init__(self) -> None:
        self.amid = False  # something is being read. If it stays so, an exception struck: nothing that follows can be read
        self._data: bytes | bytearray = b""
        self._at = 0  # what stands before it has been read
        self._searched = 0  # bytes behind it in which no line ends
        self._passing = 0  # bytes of a string that is passed over, and of its end, that are still to come
        self._open: list[_Array] = []  # the arrays that the next item stands in, the innermost last
        self._room = MAX_REPLY  # for what is still to come of the reply

    def feed(self, data: bytes) -> None:
        """Add what has come in."""
        if self._at >= len(self._data):
            self._data = data
        else:
            if type(self._data) is bytearray:
                del self._data[: self._at]
            else:
                self._data = bytearray(self._data[self._at :])
            self._data += data
        self._at = 0

    def next(self) -> Reply | object:
        """The next whole reply, or INCOMPLETE. Raises ProtocolError on anything that is not RESP."""
        if self._at >= len(self._data):
            return INCOMPLETE
        if not self._open and (plain := _PLAIN(self._data, self._at)):
            first, second, third, size, mark = plain.groups()
            if len(mark) == int(size):
                self._at = plain.end()
                return [int(second), int(third), mark] if first is None else [int(first), int(second), int(third), mark]
        return self._parse()

    def _parse(self) -> Reply | object:
        """Read on, one item after the other, until the outermost is whole."""
        self.amid = True
        reply = self._put_together()
        self.amid = False
        return reply

    def _put_together(self) -> Reply | object:
        while (item := self._item()) is not INCOMPLETE:
            if type(item) is _Array:
                if len(self._open) == MAX_DEPTH:
                    raise ProtocolError("a reply with arrays in arrays in arrays, too deep")
                self._open.append(item)
            else:
                if not self._open:
                    self._room = MAX_REPLY
                    return item
                self._open[-1].items.append(item)  # type: ignore[arg-type]  # it is a Reply
            while (inner := self._open[-1]).size == len(inner.items):
                self._open.pop()
                if not self._open:
                    self._room = MAX_REPLY
                    return inner.items
                self._open[-1].items.append(inner.items)
        return INCOMPLETE

    def _item(self) -> Reply | _Array | object:
        """The next item: of an array its head alone."""
        if self._passing:
            return self._pass_over()
        data, at = self._data, self._at
        if at >= len(data):
            return INCOMPLETE
        kind = data[at]
        if kind not in b"+-:$*":
            raise _wrong("a reply that begins with", data, at)
        longest = MAX_LINE if kind in b"+-" else MAX_HEAD
        end = data.find(b"\r\n", at + self._searched, at + longest + 2)
        if end < 0:
            size = len(data) - at
            if size > longest + 1:
                raise _wrong("a line without an end, which begins with", data, at)
            self._searched = size - 1  # the last one may be the half of a line's end
            return INCOMPLETE
        self._searched = 0
        if kind in b"+-":
            text = bytes(data[at + 1 : end])
            self._take(end + 2, len(text))
            return text if kind == 0x2B else ErrorReply(shown(text[: 4 * SHOWN].decode("utf-8", "replace"), SHOWN))
        number = _number(data, at, end)
        if kind == 0x3A:
            self._take(end + 2, 0)
            return number
        if not -1 <= number <= MAX_SIZE:
            raise _wrong("no size that a reply can have:", data, at)
        if number == -1:
            self._take(end + 2, 0)
            return None
        if kind == 0x2A:
            self._take(end + 2, 0)
            return _Array(number)
        return self._string(end + 2, number)

    def _string(self, begin: int, size: int) -> bytes | object | None:
        data, end = self._data, begin + size
        if size > MAX_BULK or size + ITEM > self._room:
            self._take(begin, 0)
            self._passing = size + 2
            return self._pass_over()
        if len(data) < end + 2:
            return INCOMPLETE
        if data[end : end + 2] != b"\r\n":
            raise _wrong("a string that does not end where it should, but goes on with", data, end)
        self._take(end + 2, size)
        return bytes(data[begin:end])

    def _pass_over(self) -> object | None:
        gone = min(self._passing, len(self._data) - self._at)
        self._passing -= gone
        self._at += gone
        return INCOMPLETE if self._passing else None

    def _take(self, end: int, size: int) -> None:
        """An item that ends there was read; `size` bytes of it are kept."""
        self._at = end
        self._room -= size + ITEM
        if self._room < 0:
            raise ProtocolError("a reply that is too large")


def _number(data: bytes | bytearray, at: int, end: int) -> int:
    if (number := _NUMBER(data, at + 1, end)) is None:
        raise _wrong("no number where one should be:", data, at)
    return int(number.group())


def _wrong(what: str, data: bytes | bytearray, at: int) -> ProtocolError:
    """It shows a few bytes of what came."""
    return ProtocolError(f"{what} {_SECRET(b'...', bytes(data[at : at + 64]))[:16]!r}")
