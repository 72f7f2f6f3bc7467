"""Every error of the library, cut by what the caller does next.

    InterlockError
    ├── NotAcquired        you do not hold it and nothing is left behind   → try later
    │   └── AcquireTimeout     also a TimeoutError
    ├── LeaseLost          you held it; stop writing now                   → abort
    ├── StaleFence         the resource has seen a newer fence             → abort
    ├── Unavailable        the store did not answer                        → alert
    │   └── NoQuorum           too few nodes answered
    └── UsageError         wrong arguments or colour                       → fix the code
        └── Unsupported        this store or version cannot do that

Rules of the file: a message says what happened, what is left behind and what to do next. No message holds a token
or a password.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "AcquireTimeout",
    "InterlockError",
    "LeaseLost",
    "NoQuorum",
    "NotAcquired",
    "StaleFence",
    "Unavailable",
    "Unsupported",
    "UsageError",
    "Vote",
]


class Vote(NamedTuple):
    """What one node of a quorum had to say.

    `verdict` is a word: granted, held, free, refused (nobody listens), timeout, closed, auth, error, quarantined, silent or
    resting (not asked this time), late (the outcome was certain without it). `latency` is in seconds, if it answered.
    """

    node: str
    verdict: str
    latency: float | None = None
    detail: str = ""


class InterlockError(Exception):
    """The root of every error that this library raises on purpose. Can be pickled, so it gets out of a worker process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args), self.__dict__


def _revive(kind: type[InterlockError], args: tuple[Any, ...]) -> InterlockError:
    """An error without its `__init__`, whose keywords pickle cannot give; the attributes follow."""
    error = kind.__new__(kind)
    error.args = args
    return error


class NotAcquired(InterlockError):
    """You do not hold the lock and nothing of the attempt is left in the store. Try later.

    `name` is the lock; `owner` is what the holder says about itself in public (host and process), or "". It is as the holder
    wrote it, with control characters if it has any; in the message they are escaped.
    """

    def __init__(self, message: str, *, name: str, owner: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.owner = owner


class AcquireTimeout(NotAcquired, TimeoutError):
    """The lock was still held by someone else when `timeout` ran out.

    `waited` is how long that was, in seconds; `votes` is what each node of a quorum had to say at the end.
    """

    def __init__(self, message: str, *, name: str, owner: str = "", waited: float = 0.0, votes: tuple[Vote, ...] = ()) -> None:
        super().__init__(message, name=name, owner=owner)
        self.waited = waited
        self.votes = votes


class LeaseLost(InterlockError):
    """You held the lock and do not hold it any more: stop writing now.

    `reason` is a word, as in `lease.reason`: "expired", "taken", "forced", "unreachable", "paused" or "forked".
    """

    def __init__(self, message: str, *, name: str, reason: str) -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason


class StaleFence(InterlockError):
    """The resource has already been touched under a newer fence than yours: stop, you are the late one.

    Yours to raise. `fence` is yours, `newest` the one that the resource has seen, if you know it.
    """

    def __init__(self, message: str, *, fence: int, newest: int | None = None) -> None:
        super().__init__(message)
        self.fence = fence
        self.newest = newest


class Unavailable(InterlockError):
    """The store did not answer, or not with an answer that can be used.

    `backend` is its address without secrets. `cause` is a word: "refused", "timeout", "closed", "auth", "slow",
    "error", "quorum". What the attempt may have left behind is said in the message.
    """

    def __init__(self, message: str, *, backend: str, cause: str) -> None:
        super().__init__(message)
        self.backend = backend
        self.cause = cause

    def tell(self, more: str) -> None:
        """Add to the message what the layer that knows more has to say: what is left behind, what to do next."""
        said = self.args[0]
        self.args = (f"{said}{' ' if said.endswith(('.', '?')) else '' if said.endswith(chr(10)) else '. '}{more}",)


class NoQuorum(Unavailable):
    """Fewer nodes answered than a quorum needs. `votes` is what each of them had to say, and how long it took."""

    def __init__(self, message: str, *, backend: str, cause: str = "quorum", votes: tuple[Vote, ...] = ()) -> None:
        super().__init__(message, backend=backend, cause=cause)
        self.votes = votes


class UsageError(InterlockError):
    """The call is wrong and would be wrong again: fix the code or the configuration."""


class Unsupported(UsageError):
    """This store, or this version, cannot do what was asked."""
