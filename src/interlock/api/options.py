"""What a client or a lock is configured with, checked once, then carried as plain values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import Enum
from math import inf
from textwrap import dedent
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

from ..backends.port import Backend
from ..backends.registry import open_backend
from ..core import checks
from ..core.checks import Callback, Duration
from ..core.lease import DRIFT_RATE, Policy
from ..errors import UsageError
from ..runtime.base import Runtime

_NEXT_URL = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*:)", re.IGNORECASE)  # a comma may also stand in a password
URL_VARIABLE = "INTERLOCK_URL"
F = TypeVar("F", bound=Callable[..., Any])


class Unset(Enum):
    """The type of UNSET: nothing was said. None has a meaning of its own for `timeout`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class Settings(TypedDict, total=False):
    """The settings of a lock. Durations are seconds, or a timedelta.

    ttl          how long the store keeps the lock if you vanish. By default as the client has it: 10
    timeout      how long you are ready to wait for it. By default as the client has it: None, for ever
    renew        whether the lease is renewed in the background until it is released. False: it ends after one ttl
    max_hold     for how long it is renewed at most
    progress     it is renewed only while lease.progress() is called at least so often
    lock_delay   how long the name stays closed after the end of a lease that was not released
    on_lost      called with the lease when it is lost: in a thread of its own, or in the event loop, where it must not block
    on_doubtful  called likewise when renewal has failed for a third of the ttl
    note         a line of text, shown to everyone who looks at the lock
    fair         True: waiters are served in the order in which they came, strictly. Otherwise that is strict within a
                 process, and nearly so between processes
    """

    ttl: Duration
    timeout: Duration | None
    renew: bool
    max_hold: Duration | None
    progress: Duration | None
    lock_delay: Duration
    on_lost: Callback | None
    on_doubtful: Callback | None
    note: str
    fair: bool


def described(function: F) -> F:
    """Put the meaning of each setting below the docstring of a function that takes `**settings: Unpack[Settings]`."""
    if function.__doc__ and Settings.__doc__:  # python -OO has neither
        function.__doc__ = f"{_dedented(function.__doc__)}\n\n{_dedented(Settings.__doc__)}\n"
    return function


def _dedented(text: str) -> str:
    first, _, rest = text.partition("\n")  # `inspect.cleandoc` would do, at the price of importing `inspect`
    return f"{first}\n{dedent(rest)}".rstrip()


class Options(NamedTuple):
    """The settings of a lock, checked."""

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
        """Those of a client. Raises UsageError on values out of range."""
        rate = checks.drift_rate(drift)
        policy = Policy(renew=checks.flag(renew, "renew"))
        return cls(_checked_ttl(ttl, rate, floor), checks.timeout(timeout), policy, rate, floor)

    def but(self, settings: Settings) -> Options:
        """These, with `settings` put in.

        Raises TypeError for a setting that does not exist, UsageError for values out of range or that do not fit together.
        """
        if not settings:
            return self  # most locks: nothing to check, and one policy for all their leases
        for name in settings:
            if name not in Settings.__annotations__:
                known = ", ".join(Settings.__annotations__)
                raise TypeError(f"unexpected keyword argument {name!r}; the settings of a lock are {known}")
        ttl = _checked_ttl(settings["ttl"], self.drift, self.floor) if "ttl" in settings else self.ttl
        renew = checks.flag(settings.get("renew", self.policy.renew), "renew")
        max_hold, progress = settings.get("max_hold"), settings.get("progress")
        if not renew and (max_hold is not None or progress is not None):
            raise UsageError(
                "max_hold and progress limit renewal, and renew=False has none; nothing was done. Drop one of them"
            )
        return self._replace(
            ttl=ttl,
            timeout=checks.timeout(settings["timeout"]) if "timeout" in settings else self.timeout,
            policy=Policy(
                renew,
                inf if max_hold is None else checks.max_hold(max_hold, ttl),
                inf if progress is None else checks.progress(progress),
                checks.lock_delay(settings.get("lock_delay", 0.0), ttl),
            ),
            on_lost=checks.callback(settings.get("on_lost"), "on_lost"),
            on_doubtful=checks.callback(settings.get("on_doubtful"), "on_doubtful"),
            note=checks.note(settings.get("note", "")),
            fair=checks.flag(settings.get("fair", False), "fair"),
        )


def _checked_ttl(value: Duration, rate: float, floor: float) -> float:
    number = checks.ttl(value, rate)
    if number <= floor:
        raise UsageError(
            f"ttl={number:g} s is no longer than the request_timeout of {floor:g} s that each node of the quorum was given: a "
            "grant could be over before it is complete; nothing was written. Use a longer ttl or a shorter request_timeout"
        )
    return number


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
