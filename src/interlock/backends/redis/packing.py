"""What goes to the scripts: keys, arguments, durations in milliseconds.

Requests that matter for speed have a shorter way of being packed, to the same bytes. Which way it is, is decided here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ...core import fence as fences
from ...core.claim import Claim, Place
from ...core.membership import digest, lineage, with_lineage
from ...core.quorum import Marker
from ...core.waits import Wait
from .resp import bulk
from .scripts import CLAIM, HAND_OVER, RELEASE, Request

# How long an unused fence counter is kept. Longer than any plausible step back of a server's clock: within this time the
# counter, not the clock, decides. Short enough that a million names do not leave a million counters for long.
IDLE_COUNTER_MS = b"3600000"
EPOCH_MS = b"%d" % fences.EPOCH_MS
ROLL_KEY = b"interlock:roll"
LOSS_KEY = b"interlock:loss"
WAITS_KEY = b"interlock:waits"
CLOSED = b"closed"
_marks = itertools.count()


def fence_key(name: str) -> bytes:
    """Where the fence counter of a name is."""
    return b"interlock:{%b}:fence" % name.encode()


def first_claim(name: str) -> bytes:
    """What preflight.lua is told: a key that does not exist."""
    return b"interlock:{%b}:none" % name.encode()


def fresh_mark() -> bytes:
    """A fresh one, to be echoed by the reply."""
    return b"%x" % next(_marks)


def text(raw: bytes) -> str:
    """What somebody wrote, whatever it is."""
    return raw.decode("utf-8", "replace")


def number(raw: bytes) -> int | None:
    """What somebody wrote as a number that we would write; None if it is anything else, as are more than 18 digits."""
    return int(raw) if len(raw) <= 18 and raw.isdigit() else None


def lock_keys(name: str) -> tuple[bytes, ...]:
    """The lock and its counter. Names have no braces, so both hash to the same slot."""
    return name.encode(), fence_key(name)


def line_keys(name: str) -> tuple[bytes, ...]:
    """The lock, its counter and its line."""
    return *lock_keys(name), b"interlock:{%b}:line" % name.encode()


def claiming(claim: Claim, proposal: int) -> tuple[bytes, ...]:
    """What claim.lua is told of a claim, whatever its place."""
    return claim.token.encode(), b"%d" % ms(claim.ttl), IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal


def place_of(token: str, place: Place) -> bytes:
    """How a token stands in line."""
    return f"{token} {place.inbox} {max(ms(place.ttl), 1)}".encode()


def leaving(token: str, member: bytes, proposal: int = 0) -> tuple[bytes, ...]:
    """What release.lua is told."""
    return token.encode(), member, IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal


class Ballot(NamedTuple):
    """What goes with every request to a node of a quorum; nothing of it to one that is none."""

    roll: tuple[bytes, ...] = ()  # its key
    nodes: tuple[bytes, ...] = ()  # a hash of the list of nodes: a roll is good for one list


def ballot_of(nodes: Sequence[str]) -> Ballot:
    """The ballot for the quorum of these nodes."""
    return Ballot((ROLL_KEY,), (list_hash(nodes),))


def list_hash(nodes: Sequence[str]) -> bytes:
    """What a roll and a vote name the list of nodes by."""
    return digest(nodes).encode()


def words_of(roll: Marker) -> tuple[bytes, ...]:
    """What enroll.lua is told of a roll."""
    listed = CLOSED if roll.closed else list_hash(roll.nodes)
    return "\n".join(roll.nodes).encode(), listed, b"%d" % roll.high, b"%d" % roll.seed, lineage(roll).encode()


def roll_of(words: Sequence[object]) -> Marker:
    """What roll.lua tells of one. What is no number there counts as none: somebody spoilt it, and the list will not fit."""
    nodes, high, seed, listed, window, more = (word if isinstance(word, bytes) else b"" for word in words)
    used = number(high) or (0 if nodes else 1)  # one that names no nodes is of an older interlock: somebody has voted under it
    roll = Marker(tuple(text(nodes).splitlines()), used, number(seed) or 0, listed == CLOSED, (number(window) or 0) / 1000)
    return with_lineage(roll, text(more))


def words_of_waits(waits: Sequence[Wait]) -> list[bytes]:
    """What roll.lua is told of waits: never older, nor nearer to their end, than they are."""
    words: list[bytes] = []
    for loss, age, left in waits:
        words += loss.encode(), b"%d" % (age * 1000), b"-1" if left is None else b"%d" % ceil(left * 1000)
    return words


def waits_of(words: Sequence[object]) -> tuple[Wait, ...]:
    """What roll.lua tells of them. What is no wait is left out."""
    triples = zip(words[::3], words[1::3], words[2::3], strict=False)
    return tuple(
        Wait(text(loss), max(age, 0) / 1000, None if left < 0 else left / 1000)
        for loss, age, left in triples
        if isinstance(loss, bytes) and isinstance(age, int) and isinstance(left, int)
    )


# --- requests -----------------------------------------------------------------------------------------------------------

Spot = tuple[bytes, bytes, bytes]
"""How a claim stands in line if it is refused: how, since when, and b"1" if it stands there already."""


def claim_request(claim: Claim, spot: Spot | None, proposal: int, ballot: Ballot, first: bool, mark: bytes) -> Request:
    """A claim. `first`: it looks whether this user may do all that is needed, for which one with a spot has no room."""
    name, token, ttl = claim[:3]
    if spot is None and not first:
        if ballot.roll:
            return Request(CLAIM, 11, _vote(name, token, ttl, proposal, ballot.nodes) + bulk(mark))
        key, word = name.encode(), token.encode()
        size = len(key)
        rest = size, key, size + 18, key, len(word), word, _packed_ttl(ttl), len(mark), mark
        return Request(CLAIM, 9, _CLAIM % rest)
    more = spot or (first_claim(name),)
    keys = lock_keys(name) if spot is None else line_keys(name)
    return CLAIM(keys + ballot.roll, *claiming(claim, proposal), *more, *ballot.nodes, mark)


def release_request(name: str, token: str, member: bytes, proposal: int, ballot: Ballot, mark: bytes) -> Request:
    """A release of a token that may stand in line as `member`."""
    if not member:
        if ballot.roll:
            return Request(RELEASE, 12, _leave(name, token, proposal, ballot.nodes) + bulk(mark))
        if not proposal:
            key, word = name.encode(), token.encode()
            size = len(key)
            rest = size, key, size + 18, key, size + 17, key, len(word), word, len(mark), mark
            return Request(RELEASE, 10, _RELEASE % rest)
    return RELEASE(line_keys(name) + ballot.roll, *leaving(token, member, proposal), *ballot.nodes, mark)


def hand_over_request(
    name: str, token: str, own: bytes, heir: Claim, spot: Spot, before: int, proposal: int, ballot: Ballot, mark: bytes
) -> Request:
    """A hand-over by a token that may stand in line as `own`."""
    member, arrival, known = spot
    if own or not member or known == b"1" or heir.token == token or proposal or ballot.roll:
        words = *claiming(heir, proposal), *spot, token.encode(), b"%d" % before, own, *ballot.nodes, mark
        return HAND_OVER(line_keys(name) + ballot.roll, *words)
    key, word, old, size, who = name.encode(), heir.token.encode(), token.encode(), len(name.encode()), b"%d" % before
    keys = size, key, size + 18, key, size + 17, key
    rest = len(word), word, _packed_ttl(heir.ttl), len(member), member, len(arrival), arrival
    return Request(HAND_OVER, 16, _HAND_OVER % (*keys, *rest, len(old), old, len(who), who, len(mark), mark))


def undo_request(name: str, ballot: Ballot, member: bytes, token: str, mark: bytes = b"-") -> Request:
    """What takes back whatever the token may have, which may stand in line as `member`."""
    return RELEASE(line_keys(name) + ballot.roll, *leaving(token, member), *ballot.nodes, mark)


def undo_of_either(name: str, ballot: Ballot, members: dict[str, bytes], token: str) -> Request:
    """`undo_request` for one of several tokens."""
    return undo_request(name, ballot, members[token], token)


def _packed(*words: bytes) -> bytes:
    return b"".join(map(bulk, words))


@lru_cache(64)
def _packed_ttl(ttl: float) -> bytes:
    return _packed(b"%d" % ms(ttl), IDLE_COUNTER_MS, EPOCH_MS, b"0")


_WORD, _FENCE, _LINE = b"$%d\r\n%b\r\n", b"$%d\r\ninterlock:{%b}:fence\r\n", b"$%d\r\ninterlock:{%b}:line\r\n"
_CLAIM = bulk(b"2") + _WORD + _FENCE + _WORD + b"%b" + _WORD
_RELEASE = bulk(b"3") + _WORD + _FENCE + _LINE + _WORD + _packed(b"", IDLE_COUNTER_MS, EPOCH_MS, b"0") + _WORD
_HAND_OVER = bulk(b"3") + _WORD + _FENCE + _LINE + _WORD + b"%b" + 2 * _WORD + bulk(b"0") + 2 * _WORD + bulk(b"") + _WORD


# One question to many nodes is packed once: all but what is each node's own.


@lru_cache(8)
def _vote(name: str, token: str, ttl: float, proposal: int, nodes: tuple[bytes, ...]) -> bytes:
    return _packed(b"3", *lock_keys(name), ROLL_KEY, *claiming(Claim(name, token, ttl), proposal), *nodes)


@lru_cache(8)
def _leave(name: str, token: str, proposal: int, nodes: tuple[bytes, ...]) -> bytes:
    return _packed(b"4", *line_keys(name), ROLL_KEY, *leaving(token, b"", proposal), *nodes)


# ------------------------------------------------------------------------------------------------------------------------


def ms(ttl: float) -> int:
    """A duration as the server takes it."""
    return int(ttl * 1000 + 1e-6)  # 0.57 * 1000 is a little less than 570


@lru_cache(64, typed=True)
def given(ttl: float) -> float:
    """What the server makes of a duration. The very same object if it is the same: thousands of leases may have it."""
    rounded = ms(ttl) / 1000
    return ttl if rounded == ttl else rounded


def seconds(left: int) -> float | None:
    """What is left of a lease; None if it has no end."""
    return None if left < 0 else left / 1000
