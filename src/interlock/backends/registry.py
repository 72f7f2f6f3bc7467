"""From what the user configured to a backend: a URL's scheme, or the type of a client object, picks the opener.

Built-in schemes are a table, so that nothing is imported and no package metadata is read before it is needed; stores of
other packages register themselves under the entry point group `interlock.backends`.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, cast

from ..errors import Unsupported, UsageError
from ..runtime.base import Runtime
from .port import Backend, Member, Opener

_REDIS = "interlock.backends.redis.open:open_redis"
BUILT_IN = {
    "memory": "interlock.backends.memory:open_memory",
    "sqlite": "interlock.backends.sqlite.open:open_sqlite",
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
}
GROUP = "interlock.backends"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"[a-z0-9.-]+:\d{1,5}(/\d+)?", re.IGNORECASE)


def open_backend(where: Any, runtime: Runtime) -> Backend:
    """A backend for a URL or for a client object that the user already has. Touches no network.

    Raises UsageError for a URL that no store knows, Unsupported for what this version cannot do.
    """
    if isinstance(where, list | tuple):
        from .quorum import open_quorum

        return open_quorum([open_member(one, runtime) for one in where], runtime)
    if isinstance(where, str):
        return _opener(where)(where, runtime)
    if _is_redis_like(where):
        return _load(_REDIS)(where, runtime)
    raise UsageError(
        f"a store is a URL such as 'redis://localhost:6379', or a redis-py or valkey-py client, not {type(where).__name__}"
    )


def open_member(where: Any, runtime: Runtime) -> Member:
    """One node of a quorum. Touches no network. Raises Unsupported for a store that cannot be one."""
    if isinstance(where, list | tuple):
        raise UsageError("a quorum of quorums is not supported: give the nodes in one list")
    backend = open_backend(where, runtime)
    if not hasattr(backend, "vote"):
        raise Unsupported(f"{backend.address} cannot be a node of a quorum")
    return cast(Member, backend)


def scheme_of(url: str) -> str:
    """The scheme of a URL. Raises UsageError when there is none."""
    scheme, colon, _ = url.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise UsageError(f"the store is not a URL: it has no scheme, as in redis://localhost:6379. {_meant(url)}{_known()}")
    return scheme.lower()


def _opener(url: str) -> Opener:
    scheme = scheme_of(url)
    if target := BUILT_IN.get(scheme):
        return _load(target)
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=scheme):
        opener: Opener = point.load()
        return opener
    raise UsageError(f"no store is known for '{scheme}://'. {_meant(url)}{_known()}")


def _load(target: str) -> Opener:
    module, _, attribute = target.partition(":")
    opener: Opener = getattr(import_module(module), attribute)
    return opener


def _is_redis_like(where: Any) -> bool:
    return hasattr(where, "execute_command") and (hasattr(where, "connection_pool") or hasattr(where, "nodes_manager"))


def _meant(url: str) -> str:
    return f"Did you mean redis://{url}? " if _HOST_AND_PORT.fullmatch(url) else ""


def _known() -> str:
    from importlib.metadata import entry_points

    others = sorted(entry_points(group=GROUP).names - BUILT_IN.keys())
    return "Known are " + ", ".join(f"{scheme}://" for scheme in [*BUILT_IN, *others])
