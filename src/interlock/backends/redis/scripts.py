"""The scripts, read once, with the two ways to call them packed ahead of time.

A verb is sent as EVAL at first, with the whole text, and as EVALSHA from then on; a server that has lost the script answers
NOSCRIPT, has done nothing, and gets the text again. Not the other way round: in a quorum the answer NOSCRIPT may come too late
to be read, time after time. An undo is always sent as EVAL: its answer may never be read at all.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .resp import bulk


class Script:
    """One .lua file, or several in a row. `evalsha` and `eval` pack a call with its keys and arguments."""

    def __init__(self, *parts: str) -> None:
        text = b"".join((Path(__file__).parent / f"{part}.lua").read_bytes() for part in parts)
        self.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        self._by_sha = bulk(b"EVALSHA") + bulk(self.sha.encode())
        self._by_text = bulk(b"EVAL") + bulk(text)

    def evalsha(self, keys: tuple[bytes, ...], *arguments: bytes) -> bytes:
        """The call by hash."""
        return _pack(self._by_sha, keys, arguments)

    def eval(self, keys: tuple[bytes, ...], *arguments: bytes) -> bytes:
        """The call by text."""
        return _pack(self._by_text, keys, arguments)


def _pack(how: bytes, keys: tuple[bytes, ...], arguments: tuple[bytes, ...]) -> bytes:
    head = b"*%d\r\n%b%b" % (3 + len(keys) + len(arguments), how, bulk(b"%d" % len(keys)))
    return head + b"".join(map(bulk, keys)) + b"".join(map(bulk, arguments))


CLAIM = Script("stand", "claim")
EXTEND = Script("extend")
RELEASE = Script("serve", "release")
HAND_OVER = Script("stand", "serve", "hand_over", "claim")
RETREAT = Script("stand", "retreat")
INSPECT = Script("inspect")
ROLL = Script("roll")
ENROLL = Script("enroll")
