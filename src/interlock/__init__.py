"""Distributed locks for Python that tell the truth.

    import interlock

    with interlock.Client("redis://localhost:6379").lock("order:123", ttl=10, timeout=5) as lease:
        ...  # exactly one process is here; lease.fence goes into your WHERE clause

Names are loaded when first used: `import interlock` costs next to nothing, and asyncio is not touched by blocking programs.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` alone would cost more than all the rest here
if TYPE_CHECKING:
    from .api.aclient import AsyncClient, AsyncLease, AsyncLock
    from .api.client import Client, Lease, Lock
    from .api.default import lock
    from .core.claim import Entry
    from .errors import (
        AcquireTimeout,
        InterlockError,
        LeaseLost,
        NoQuorum,
        NotAcquired,
        StaleFence,
        Unavailable,
        Unsupported,
        UsageError,
    )

__version__ = "0.1.0"

_HOME = {  # of everything that is not in `errors`
    "AsyncClient": "api.aclient",
    "AsyncLease": "api.aclient",
    "AsyncLock": "api.aclient",
    "Client": "api.client",
    "Entry": "core.claim",
    "Lease": "api.client",
    "Lock": "api.client",
    "lock": "api.default",
}

__all__ = [
    "AcquireTimeout",
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "Client",
    "Entry",
    "InterlockError",
    "Lease",
    "LeaseLost",
    "Lock",
    "NoQuorum",
    "NotAcquired",
    "StaleFence",
    "Unavailable",
    "Unsupported",
    "UsageError",
    "__version__",
    "lock",
]


if not TYPE_CHECKING:  # a type checker shall flag a name that does not exist

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'interlock' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"interlock.{_HOME.get(name, 'errors')}"), name)
        globals()[name] = value  # the next look-up does not come here
        return value


def __dir__() -> list[str]:
    return __all__
