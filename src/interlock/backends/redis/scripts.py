"""The scripts, read once, with the two ways to call them packed ahead of time.

A connection carries the whole text of a script once (EVAL) and its hash from then on (EVALSHA): the node works off a connection
in order, so it has the one when it comes to the other, answered or not. A node that lost its scripts answers NOSCRIPT, has
done nothing, and gets the text again; with any error, read by somebody or not, a connection starts over with texts.

So what piles up on a connection to a node that is frozen stays small. That matters: a server reads some 16 kB at a time, and if
the client has hung up by then, it drops what is left after its next attempt to answer, be it an undo.

The price: if scripts are flushed while a claim is under way whose reply some middlebox swallows, its undo fails, is reported
as such, and the key stays until its ttl. Errors carry no mark, so NOSCRIPT is taken for the answer to the claim.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from .resp import bulk


class Script:
    """One .lua file, or several in a row."""

    def __init__(self, *parts: str) -> None:
        self.set(b"".join(map(_text, parts)))

    def set(self, text: bytes) -> None:
        """What it says, with the two ways to call it."""
        self.text = text
        self.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        self.by_sha = bulk(b"EVALSHA") + bulk(self.sha.encode())
        self.by_text = bulk(b"EVAL") + bulk(text)

    def __call__(self, keys: tuple[bytes, ...], *arguments: bytes) -> Request:
        """A call of it."""
        return Request(self, 1 + len(keys) + len(arguments), b"".join(map(bulk, (b"%d" % len(keys), *keys, *arguments))))


class Request(NamedTuple):
    """A call of a script, but for how it is called."""

    script: Script
    size: int  # how many words are in `rest`
    rest: bytes
    full: bool = False  # with the text, whatever the connection has carried

    def pack(self, carried: set[str]) -> bytes:
        """The bytes for a connection that has carried the texts of these scripts. From now on it has carried this one."""
        script, size, rest, full = self
        if script.sha in carried and not full:
            return b"*%d\r\n%b%b" % (size + 2, script.by_sha, rest)
        carried.add(script.sha)
        return b"*%d\r\n%b%b" % (size + 2, script.by_text, rest)


def _text(part: str) -> bytes:
    """The file without its comments and indentation, which are half of it."""
    lines = (Path(__file__).parent / f"{part}.lua").read_text().splitlines()
    code = (line.partition(" -- ")[0].strip() for line in lines if not line.lstrip().startswith("--"))
    return "".join(f"{line}\n" for line in code if line).encode()


CLAIM = Script("refused", "note", "preflight", "claim", "stand", "refuse")
LOOK = Script("refused", "preflight", "looked")
EXTEND = Script("refused", "note", "extend")
RELEASE = Script("refused", "release", "note", "serve", "pass_on")
HAND_OVER = Script("refused", "stand", "note", "serve", "hand_over", "claim", "refuse")
RETREAT = Script("refused", "note", "stand", "retreat")
INSPECT = Script("inspect")
ROLL = Script("standing", "roll")
ENROLL = Script("standing", "enroll")
