"""What may go in: names, durations. Everything wrong is refused here, before anything reaches a store.

A name is what people read in logs, errors and `interlock status`. Two names that look alike must be the same lock, hence
the rule for text outside ASCII: composed letters, digits and punctuation only. Emoji are refused for that reason: the same
picture can be spelled with and without invisible selectors and joiners, and would be two locks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..errors import UsageError
from .lease import DRIFT_RATE, drift

MAX_NAME_BYTES = 512
MIN_TTL = 0.01
MAX_TTL = 7 * 86_400.0
MAX_TIMEOUT = 366 * 86_400.0
MAX_NOTE = 100
RESERVED = "interlock:"  # what interlock itself keeps in a store is named so

# Letters and marks that show nothing: joiners, fillers, variation selectors.
INVISIBLE = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)

Duration = float | int | timedelta
Callback = Callable[[Any], object]  # called with the lease


def name(value: object) -> str:
    """The name itself, if it may be one.

    Raises UsageError: not a string, empty, over 512 bytes, control or invisible characters, braces, emoji, or one that begins
    with `interlock:`.
    """
    if not isinstance(value, str):
        raise UsageError(f"a lock's name is a string, not {type(value).__name__}; nothing was written")
    if not value or value.isspace():
        raise UsageError("a lock's name may not be empty; nothing was written. Name what is shared, as in 'order:123'")
    if value.isascii():
        size = len(value)
        printable = value.isprintable()
    else:
        size = _utf8_size(value)
        printable = size > MAX_NAME_BYTES or _readable(value)
    if size > MAX_NAME_BYTES:
        raise UsageError(
            f"a lock's name may have {MAX_NAME_BYTES} bytes, this one has {size} ({value[:40]!a}…); nothing was written. "
            "Use an identifier, or a hash of the long part"
        )
    if not printable:
        raise UsageError(
            f"{value[:80]!a} has characters that cannot be read or told apart (control, invisible, decomposed, emoji); "
            "nothing was written. Use letters, digits and punctuation"
        )
    if "{" in value or "}" in value:
        raise UsageError(
            f"{value[:80]!r} has a brace in it; nothing was written. A template such as 'order:{{id}}' must be filled in "
            "first (client.locked does that); braces also choose the slot in a Redis Cluster"
        )
    return unreserved(value)


def unreserved(value: str) -> str:
    """The name, or the template of names. Raises UsageError if it is one of interlock's own."""
    if value.startswith(RESERVED):
        raise UsageError(
            f"{value[:80]!r} begins with '{RESERVED}', as what interlock itself keeps in a store does: a lock of such a name "
            "could stop all others; nothing was written. Use another name"
        )
    return value


def _utf8_size(value: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{value[:80]!a} is not valid text (a lone surrogate); nothing was written") from None


def _readable(value: str) -> bool:
    import unicodedata  # 3 ms that a program with ASCII names never pays

    if not unicodedata.is_normalized("NFC", value):
        return False
    for char in value:
        if char.isascii():
            if not char.isprintable():
                return False
        elif unicodedata.category(char)[0] not in "LMNP" or any(low <= ord(char) <= high for low, high in INVISIBLE):
            return False
    return True


def seconds(value: Duration, what: str) -> float:
    """A duration as float seconds. Raises UsageError for anything that is not a finite number or a timedelta."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{what} is seconds (a number) or a timedelta, not {type(value).__name__}; nothing was written")
    if isinstance(value, int):
        value = max(min(value, 10**12), -(10**12))  # a huge int would overflow the conversion
    number = float(value)
    if not math.isfinite(number):
        raise UsageError(f"{what} must be a finite number, not {number}; nothing was written")
    return number


def ttl(value: Duration, rate: float = DRIFT_RATE) -> float:
    """How long a store keeps an unrenewed lease. Raises UsageError outside 10 ms … 7 days, or if the drift eats half of it."""
    number = seconds(value, "ttl")
    if number < MIN_TTL or number <= 2 * drift(number, rate):
        raise UsageError(
            f"ttl={number:g} s is too short: a lease must outlast a round trip and the clock allowance, so at least "
            f"{MIN_TTL:g} s; nothing was written. ttl is how long the store keeps the lock if you vanish"
        )
    if number > MAX_TTL:
        raise UsageError(
            f"ttl={number:g} s is too long (the limit is {MAX_TTL:g} s, 7 days): a crashed holder would block everyone for "
            "that time; nothing was written. ttl is in seconds"
        )
    return number


def max_hold(value: Duration, period: float) -> float:
    """For how long a lease is renewed at most. Raises UsageError if that is shorter than its ttl, or absurd."""
    why = (
        f" must be at least the ttl, {period:g} s, and less than a year: it is how long a lease is renewed at most; nothing "
        "was written. Use a shorter ttl as well"
    )
    return _within(value, "max_hold", period, MAX_TIMEOUT, why)


def progress(value: Duration) -> float:
    """How often `lease.progress()` must be called at least. Raises UsageError unless it is between 10 ms and a year."""
    why = f": give the longest time between two calls of lease.progress(), {MIN_TTL:g} s at least; nothing was written"
    return _within(value, "progress", MIN_TTL, MAX_TIMEOUT, why)


def lock_delay(value: Duration, period: float) -> float:
    """How long a name stays closed after a lease that was not released. Raises UsageError if negative or, with the ttl, over
    7 days."""
    why = (
        f" must be 0 or more, and with the ttl no more than {MAX_TTL:g} s (7 days): for so long a crash keeps everybody out; "
        "nothing was written"
    )
    return _within(value, "lock_delay", 0.0, MAX_TTL - period, why)


def _within(value: Duration, what: str, least: float, most: float, why: str) -> float:
    number = seconds(value, what)
    if not least <= number <= most:
        raise UsageError(f"{what}={number:g} s{why}")
    return number


def note(value: object) -> str:
    """What a holder wants to be known by. Raises UsageError unless it is a line of text of at most 100 characters."""
    if not isinstance(value, str) or len(value) > MAX_NOTE or not value.isprintable():
        shown = f"{value[:40]!a}" if isinstance(value, str) else type(value).__name__
        raise UsageError(
            f"a note is one line of printable text, {MAX_NOTE} characters at most, not {shown}; nothing was written. Anybody "
            "who can see the lock can read it"
        )
    return value


def timeout(value: Duration | None) -> float | None:
    """How long the caller is ready to wait; None is for ever. Raises UsageError for negative or absurd values."""
    if value is None:
        return None
    number = seconds(value, "timeout")
    if number < 0:
        raise UsageError(f"timeout={number:g} s is negative; nothing was written. 0 asks once, None waits for ever")
    if number > MAX_TIMEOUT:
        raise UsageError(
            f"timeout={number:g} s is over a year; nothing was written. timeout is in seconds, None waits for ever"
        )
    return number


def request_timeout(value: Duration) -> float:
    """How long one question to the store may take. Raises UsageError outside 1 ms … 60 s."""
    number = seconds(value, "request_timeout")
    if not 0.001 <= number <= 60:
        raise UsageError(f"request_timeout={number:g} must lie between 0.001 and 60: it is in seconds; nothing was written")
    return number


def drift_rate(value: object) -> float:
    """By which share clocks may run apart. Raises UsageError outside 0 … 0.4."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 0.4:
        raise UsageError(f"drift is the share by which clocks may run apart, from 0 to 0.4, as in 0.01; not {value!r}")
    return float(value)


def flag(value: object, what: str) -> bool:
    """True or False. Raises UsageError for anything else."""
    if not isinstance(value, bool):
        raise UsageError(f"{what} is True or False, not {type(value).__name__}")
    return value


def callback(function: Callback | None, what: str) -> Callback | None:
    """A plain function, or None. Raises UsageError for anything else, a coroutine function included."""
    if function is None:
        return None
    if not callable(function):
        raise UsageError(f"{what} is a function that takes the lease, not {type(function).__name__}")
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80:  # a coroutine function; `inspect` costs too much
        raise UsageError(f"{what} is called, not awaited: give a plain function (it may create a task, or set an event)")
    return function
