"""What goes to the scripts: keys, arguments, durations in milliseconds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

from ...core import fence as fences
from ...core.claim import Claim, Place, Waiting
from .resp import bulk
from .scripts import CLAIM, HAND_OVER, RELEASE, Request

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


def standing(token: str, place: Place) -> bytes:
    """How a token stands in line."""
    return f"{token} {place.inbox} {max(ms(place.ttl), 1)}".encode()


def leaving(token: str, member: bytes, at: int = 0, proposal: int = 0) -> tuple[bytes, ...]:
    """What release.lua is told."""
    return token.encode(), member, b"%d" % at, IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal


def undoing(name: str, token: str, member: bytes, roll: tuple[bytes, ...], mark: bytes = b"-") -> Request:
    """The request that takes back whatever the token may have."""
    return RELEASE(line_keys(name) + roll, *leaving(token, member), mark)


# --- those that matter: a lock without waiters, and one that goes from hand to hand, packed with as few steps as can be --


def _packed(*words: bytes) -> bytes:
    return b"".join(map(bulk, words))


@lru_cache(64)
def _packed_ttl(ttl: int) -> bytes:
    return _packed(b"%d" % ttl, IDLE_COUNTER_MS, EPOCH_MS, b"0")


_WORD, _FENCE, _LINE = b"$%d\r\n%b\r\n", b"$%d\r\ninterlock:{%b}:fence\r\n", b"$%d\r\ninterlock:{%b}:line\r\n"
_CLAIM = bulk(b"2") + _WORD + _FENCE + _WORD + b"%b" + _WORD
_RELEASE = bulk(b"3") + _WORD + _FENCE + _LINE + _WORD + bulk(b"") + _WORD + _packed(IDLE_COUNTER_MS, EPOCH_MS, b"0") + _WORD


def plain_claim(name: str, token: str, ttl: int, mark: bytes) -> Request:
    """As `CLAIM(lock_keys(name), *claiming(...), mark)`, for a claim without a place."""
    key, word = name.encode(), token.encode()
    size = len(key)
    rest = size, key, size + 18, key, len(word), word, _packed_ttl(ttl), len(mark), mark
    return Request(CLAIM, 9, _CLAIM % rest)


def plain_release(name: str, token: str, at: int, mark: bytes) -> Request:
    """As `RELEASE(line_keys(name), *leaving(...), mark)`, for a token that stands in no line."""
    key, word, time = name.encode(), token.encode(), b"%d" % at
    size = len(key)
    rest = size, key, size + 18, key, size + 17, key, len(word), word, len(time), time, len(mark), mark
    return Request(RELEASE, 11, _RELEASE % rest)


_HAND_OVER = bulk(b"3") + _WORD + _FENCE + _LINE + _WORD + b"%b" + 2 * _WORD + bulk(b"0") + 3 * _WORD + bulk(b"") + _WORD


def plain_hand_over(
    name: str, token: str, heir: Claim, member: bytes, arrival: int, before: int, at: int, mark: bytes
) -> Request:
    """As `HAND_OVER(line_keys(name), *claiming(...), ...)`, by one that does not stand in line, to one that is new there."""
    key, word, old, when = name.encode(), heir.token.encode(), token.encode(), b"%d" % arrival
    size, who, time = len(key), b"%d" % before, b"%d" % at
    keys = size, key, size + 18, key, size + 17, key
    rest = len(word), word, _packed_ttl(ms(heir.ttl)), len(member), member, len(when), when
    return Request(HAND_OVER, 17, _HAND_OVER % (*keys, *rest, len(old), old, len(who), who, len(time), time, len(mark), mark))


# --- one question to many nodes is packed once: all but what is each node's own -----------------------------------------


@lru_cache(8)
def _voting(name: str, token: str, ttl: int, proposal: int) -> bytes:
    words = b"3", *lock_keys(name), ROLL_KEY, token.encode(), b"%d" % ttl, IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal
    return b"".join(map(bulk, words))


@lru_cache(8)
def _leaving(name: str, token: str, proposal: int) -> tuple[bytes, bytes]:
    before = b"4", *line_keys(name), ROLL_KEY, token.encode(), b""
    return b"".join(map(bulk, before)), b"".join(map(bulk, (IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal)))


def plain_vote(claim: Claim, proposal: int, mark: bytes) -> Request:
    """As `CLAIM(lock_keys(name) + (ROLL_KEY,), *claiming(...), mark)`, for a claim without a place."""
    name, token, ttl, _ = claim
    return Request(CLAIM, 10, _voting(name, token, ms(ttl), proposal) + bulk(mark))


def plain_leave(name: str, token: str, at: int, proposal: int, mark: bytes) -> Request:
    """As `RELEASE(line_keys(name) + (ROLL_KEY,), *leaving(...), mark)`, for a token that stands in no line."""
    before, after = _leaving(name, token, proposal)
    return Request(RELEASE, 12, before + bulk(b"%d" % at) + after + bulk(mark))


# ------------------------------------------------------------------------------------------------------------------------


def ms(ttl: float) -> int:
    """A duration as the server takes it."""
    return int(ttl * 1000 + 1e-6)  # 0.57 * 1000 is a little less than 570


def given(ttl: float) -> float:
    """What the server makes of a duration. The very same object if it is the same: thousands of leases may have it."""
    rounded = ms(ttl) / 1000
    return ttl if rounded == ttl else rounded


def seconds(left: int) -> float | None:
    """What is left of a lease; None if it has no end."""
    return None if left < 0 else left / 1000
