"""What clients and locks of both colours share: everything that needs no answer from a store.

A primitive costs each face a class below `BaseLock` and a factory of three lines; its settings are those of every lock
(`options.Settings`), and `options.described` explains them in its help.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from ..core import checks
from ..core.checks import Duration
from ..core.renewal import Keeping
from ..flow.attempt import Attempt
from ..flow.context import Context
from ..flow.renewing.keeper import Keeper
from ..runtime.base import Runtime
from .base import BaseLease
from .blocks import Entered
from .options import UNSET, Options, Unset, opened, where

L = TypeVar("L", bound=BaseLease)


class BaseLock(Generic[L]):
    """A name with options. Has no state of its own: share it between threads or tasks, use it again and again."""

    def __init__(self, context: Context, keeper: Keeper, name: str, options: Options) -> None:
        self._context = context
        self._keeper = keeper
        self._options = options
        self._name = checks.name(name)
        self._attempt = Attempt(self._name, options.ttl, options.policy, options.note, options.fair)
        self._entered: Entered[L] = Entered()

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} on {self._context.backend.address}>"


class BaseClient:
    """A set of locks on one store, of either colour."""

    _runtime: ClassVar[type[Runtime]]

    def __init__(
        self,
        url: Any = None,
        *,
        ttl: Duration = 10.0,
        timeout: Duration | None = None,
        renew: bool = True,
        request_timeout: Duration | Unset = UNSET,
        drift: float = 0.01,
    ) -> None:
        """Connects at the first use. Raises UsageError for settings that cannot work.

        `url` is a URL ("redis://…", "rediss://…", "unix://…", "valkey://…", "sqlite:///path", "memory://"), a client object of
        redis-py or valkey-py, or a list of these: a quorum of independent nodes (Redlock). Without it INTERLOCK_URL decides,
        and without that an SQLite file of this user. `ttl`, `timeout` and `renew` are the defaults of its locks.
        `request_timeout` bounds each question to a node (1 s unless given), `drift` is the share by which clocks may run apart.
        Durations are seconds, or a timedelta.
        """
        runtime = self._runtime()
        nodes = where(url)
        bound = checks.request_timeout(1.0 if request_timeout is UNSET else request_timeout)
        given = request_timeout is not UNSET and isinstance(nodes, list | tuple)
        self._options = Options.checked(ttl, timeout, renew, drift, bound if given else 0.0)
        self._context = Context.of(opened(url, nodes, runtime), runtime, bound, self._options.drift)
        self._keeper = Keeper(self._context)

    @property
    def address(self) -> str:
        """Where the store is, without secrets."""
        return self._context.backend.address

    def keeping(self) -> Keeping:
        """How renewal is doing: leases kept, round trips, failures, how late it ran. Asks no store."""
        return self._keeper.keeping()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.address}>"
