"""What a client or a lock is configured with, checked once, then carried as plain values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, Final, NamedTuple, TypedDict

from ..backends.port import Backend
from ..backends.registry import open_backend
from ..core import checks
from ..core.checks import Duration
from ..core.lease import DRIFT_RATE, Policy
from ..errors import UsageError
from ..runtime.base import Runtime

_NEXT_URL = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*:)", re.IGNORECASE)  # a comma may also stand in a password
URL_VARIABLE = "INTERLOCK_URL"


class Unset(Enum):
    """The type of UNSET: "as the client says". None has a meaning of its own for `timeout`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


Callback = Callable[[Any], object]
"""Called with the lease."""


class Settings(TypedDict, total=False):
    """What `lock` and `locked` can be told; see `Client.lock`."""

    ttl: Duration | Unset
    timeout: Duration | Unset | None
    renew: bool | Unset
    max_hold: Duration | None
    progress: Duration | None
    lock_delay: Duration
    on_lost: Callback | None
    on_doubtful: Callback | None
    note: str
    fair: bool


class Options(NamedTuple):
    """The settings of a lock."""

    ttl: float
    timeout: float | None
    policy: Policy
    drift: float = DRIFT_RATE
    floor: float = 0.0  # a ttl must be longer: the time that a quorum's nodes were given to answer, if it was given
    on_lost: Callback | None = None
    on_doubtful: Callback | None = None
    note: str = ""
    fair: bool = False

    @classmethod
    def checked(cls, ttl: Duration, timeout: Duration | None, renew: bool, drift: float, floor: float) -> Options:
        """Raises UsageError on values out of range."""
        rate = checks.drift_rate(drift)
        policy = Policy(renew=_flag(renew, "renew"))
        return cls(_checked_ttl(ttl, rate, floor), checks.timeout(timeout), policy, rate, floor)

    def but(
        self,
        ttl: Duration | Unset = UNSET,
        timeout: Duration | Unset | None = UNSET,
        renew: bool | Unset = UNSET,
        max_hold: Duration | None = None,
        progress: Duration | None = None,
        lock_delay: Duration = 0.0,
        on_lost: Callback | None = None,
        on_doubtful: Callback | None = None,
        note: str = "",
        fair: bool = False,
    ) -> Options:
        """These, with what was given put in. Raises UsageError on values out of range or that do not fit together."""
        if (
            (ttl is UNSET and timeout is UNSET and renew is UNSET)
            and max_hold is None
            and progress is None
            and on_lost is None
            and on_doubtful is None
            and (note == "" and fair is False and type(lock_delay) is float and lock_delay == 0.0)
        ):
            return self  # most locks: nothing to check, and one policy for all their leases
        period = self.ttl if ttl is UNSET else _checked_ttl(ttl, self.drift, self.floor)
        renewing = self.policy.renew if renew is UNSET else _flag(renew, "renew")
        if not renewing and (max_hold is not None or progress is not None):
            raise UsageError(
                "max_hold and progress limit renewal, and renew=False has none; nothing was done. Drop one of them"
            )
        return self._replace(
            ttl=period,
            timeout=self.timeout if timeout is UNSET else checks.timeout(timeout),
            policy=Policy(
                renewing,
                inf if max_hold is None else checks.max_hold(max_hold, period),
                inf if progress is None else checks.progress(progress),
                checks.lock_delay(lock_delay, period),
            ),
            on_lost=_callback(on_lost, "on_lost"),
            on_doubtful=_callback(on_doubtful, "on_doubtful"),
            note=checks.note(note),
            fair=_flag(fair, "fair"),
        )


def _checked_ttl(value: Duration, rate: float, floor: float) -> float:
    number = checks.ttl(value, rate)
    if number <= floor:
        raise UsageError(
            f"ttl={number:g} s is no longer than the request_timeout of {floor:g} s that each node of the quorum was given: a "
            "grant could be over before it is complete; nothing was written. Use a longer ttl or a shorter request_timeout"
        )
    return number


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{what} is True or False, not {type(value).__name__}")
    return value


def _callback(function: Callback | None, what: str) -> Callback | None:
    if function is None:
        return None
    if not callable(function):
        raise UsageError(f"{what} is a function that takes the lease, not {type(function).__name__}")
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80:  # a coroutine function; `inspect` costs too much
        raise UsageError(f"{what} is called, not awaited: give a plain function (it may create a task, or set an event)")
    return function


def where(store: Any) -> Any:
    """What was configured: the argument, else INTERLOCK_URL, else the embedded SQLite file. A list is a quorum's nodes.

    Raises UsageError on an empty list.
    """
    if store is None:
        store = os.environ.get(URL_VARIABLE) or "sqlite:"
    if isinstance(store, str) and len(nodes := _NEXT_URL.split(store)) > 1:
        store = nodes
    if isinstance(store, list | tuple) and not store:
        raise UsageError("the list of stores is empty; give a URL such as 'redis://localhost:6379'")
    return store


def opened(url: Any, nodes: Any, runtime: Runtime) -> Backend:
    """The store at `nodes`, which is `where(url)`. What is wrong with INTERLOCK_URL is said of INTERLOCK_URL."""
    try:
        return open_backend(nodes, runtime)
    except UsageError as error:
        if url is not None or not os.environ.get(URL_VARIABLE):
            raise
        raise type(error)(f"{URL_VARIABLE}: {error}") from None
