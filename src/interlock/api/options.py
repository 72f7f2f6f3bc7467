"""What a client or a lock is configured with, checked once, then carried as plain values."""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import Any, Final, NamedTuple

from ..core import checks
from ..core.checks import Duration
from ..core.lease import DRIFT_RATE
from ..errors import Unsupported, UsageError

_NEXT_URL = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+.-]*:)", re.IGNORECASE)  # a comma may also stand in a password
URL_VARIABLE = "INTERLOCK_URL"


class Unset(Enum):
    """The type of UNSET: "as the client says". None has a meaning of its own for `timeout`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class Options(NamedTuple):
    """The settings of a lock."""

    ttl: float
    timeout: float | None
    drift: float = DRIFT_RATE
    floor: float = 0.0  # a ttl must be longer: the time that a quorum's nodes were given to answer, if it was given

    @classmethod
    def checked(cls, ttl: Duration, timeout: Duration | None, renew: bool, drift: float, floor: float) -> Options:
        """Raises UsageError on values out of range, Unsupported for `renew=True`."""
        _check_renew(renew)
        rate = checks.drift_rate(drift)
        return cls(_checked_ttl(ttl, rate, floor), checks.timeout(timeout), rate, floor)

    def but(self, ttl: Duration | Unset, timeout: Duration | Unset | None, renew: bool | Unset) -> Options:
        """These, with what was given put in. Raises as `checked` does."""
        if renew is not UNSET:
            _check_renew(renew)
        return self._replace(
            ttl=self.ttl if ttl is UNSET else _checked_ttl(ttl, self.drift, self.floor),
            timeout=self.timeout if timeout is UNSET else checks.timeout(timeout),
        )


def _checked_ttl(value: Duration, rate: float, floor: float) -> float:
    number = checks.ttl(value, rate)
    if number <= floor:
        raise UsageError(
            f"ttl={number:g} s is no longer than the request_timeout of {floor:g} s that each node of the quorum was given: a "
            "grant could be over before it is complete; nothing was written. Use a longer ttl or a shorter request_timeout"
        )
    return number


def _check_renew(renew: object) -> None:
    if not isinstance(renew, bool):
        raise UsageError(f"renew is True or False, not {type(renew).__name__}")
    if renew:
        raise Unsupported(
            "renew=True: this version has fixed leases only and will not pretend otherwise. Use renew=False with a ttl that "
            "outlasts the work, call lease.extend() in time, and let the resource check lease.fence"
        )


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
