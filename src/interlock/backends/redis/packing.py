"""What goes to the scripts: keys, arguments, durations in milliseconds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...core import fence as fences
from ...core.claim import Claim, Waiting
from .scripts import RELEASE, Request

# How long an unused fence counter is kept. Longer than any plausible step back of a server's clock: within this time the
# counter, not the clock, decides. Short enough that a million names do not leave a million counters for long.
IDLE_COUNTER_MS = b"3600000"
EPOCH_MS = b"%d" % fences.EPOCH_MS
ROLL_KEY = b"interlock:roll"
LOSS_KEY = b"interlock:loss"
_marks = itertools.count()


def fence_key(name: str) -> bytes:
    """Where the fence counter of a name is."""
    return b"interlock:{%b}:fence" % name.encode()


def fresh_mark() -> bytes:
    """A fresh one, to be echoed by the reply."""
    return b"%x" % next(_marks)


def text(raw: bytes) -> str:
    """What somebody wrote, whatever it is."""
    return raw.decode("utf-8", "replace")


def queue(line: Sequence[object]) -> tuple[Waiting, ...]:
    """What inspect.lua tells of a line: public facts and microseconds, in turns."""
    pairs = zip(line[::2], line[1::2], strict=True)
    return tuple(
        Waiting(text(who), int(since) / 1e6) for who, since in pairs if isinstance(who, bytes) and isinstance(since, bytes)
    )


def lock_keys(name: str) -> tuple[bytes, ...]:
    """The lock and its counter. Names have no braces, so both hash to the same slot."""
    return name.encode(), fence_key(name)


def line_keys(name: str) -> tuple[bytes, ...]:
    """The lock, its counter and its line."""
    return *lock_keys(name), b"interlock:{%b}:line" % name.encode()


def claiming(claim: Claim, proposal: int) -> tuple[bytes, ...]:
    """What claim.lua is told of a claim, whatever its place."""
    return claim.token.encode(), b"%d" % ms(claim.ttl), IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal


def leaving(token: str, member: bytes, at: int = 0, proposal: int = 0) -> tuple[bytes, ...]:
    """What release.lua is told."""
    return token.encode(), member, b"%d" % at, IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal


def undoing(name: str, token: str, member: bytes, roll: tuple[bytes, ...], mark: bytes = b"-") -> Request:
    """The request that takes back whatever the token may have."""
    return RELEASE(line_keys(name) + roll, *leaving(token, member), mark)


def ms(ttl: float) -> int:
    """A duration as the server takes it."""
    return int(ttl * 1000 + 1e-6)  # 0.57 * 1000 is a little less than 570


def seconds(left: int) -> float | None:
    """What is left of a lease; None if it has no end."""
    return None if left < 0 else left / 1000
