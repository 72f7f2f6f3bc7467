"""The scripts, read once, with the two ways to call them packed ahead of time.

A verb is sent as EVALSHA; a server that does not know the script (new, flushed) answers NOSCRIPT, has done nothing, and gets
the whole text by EVAL. An undo is always sent as EVAL: its answer may never be read, so there is no second chance.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .resp import bulk


class Script:
    """One .lua file. `evalsha` and `eval` pack a call with its keys and arguments."""

    def __init__(self, name: str, keys: int) -> None:
        text = (Path(__file__).parent / f"{name}.lua").read_bytes()
        self.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        self._keys = keys
        self._by_sha = bulk(b"EVALSHA") + bulk(self.sha.encode()) + bulk(b"%d" % keys)
        self._by_text = bulk(b"EVAL") + bulk(text) + bulk(b"%d" % keys)

    def evalsha(self, *arguments: bytes) -> bytes:
        """The call by hash."""
        return b"*%d\r\n%b" % (3 + len(arguments), self._by_sha) + b"".join(map(bulk, arguments))

    def eval(self, *arguments: bytes) -> bytes:
        """The call by text."""
        return b"*%d\r\n%b" % (3 + len(arguments), self._by_text) + b"".join(map(bulk, arguments))


CLAIM = Script("claim", keys=2)
EXTEND = Script("extend", keys=2)
RELEASE = Script("release", keys=1)
INSPECT = Script("inspect", keys=2)
