"""What code may do: the wall clock, tokens, async generators and `__del__`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch

from .source import Complaints, Rule, called, check_rules, imports_of, obey, parsed, sources

MINT = "runtime/base.py"  # the one place where tokens are made
WALL_CLOCK = {"cli/*": {"time", "time_ns"}, "runtime/base.py": {"time_ns"}}


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
        f"{path}:{call.lineno} calls {called(call)} in __del__, where a face may only warn"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "__del__"
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and called(call) not in ("getattr", "getpid", "warn")
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


def test_the_wall_clock_is_read_in_one_place() -> None:
    obey(clock_rule)


def test_no_flow_is_an_async_generator() -> None:
    obey(generator_rule)


def test_no_face_does_magic_when_it_is_collected() -> None:
    obey(del_rule)


def test_tokens_are_minted_in_one_place_from_the_kernel() -> None:
    obey(mint_rule)
    assert "compose(" in sources()[MINT], "the rule looks at the right file"


CAUGHT: list[tuple[Rule, str, str, str]] = [
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
]
PASSED: list[tuple[Rule, str, str]] = [
    (clock_rule, "runtime/base.py", "import time\ntime.time_ns()\ntime.monotonic()"),
    (clock_rule, "cli/status.py", "import time\ntime.time()"),
    (clock_rule, "flow/x.py", "self.time()\nruntime.time_ns()"),
    (generator_rule, "flow/x.py", "async def f():\n    def g():\n        yield 1\n    return [x async for x in y]"),
    (mint_rule, "runtime/base.py", "from os import urandom\ntoken.compose(urandom(16).hex(), 'b')"),
]


def test_the_rules_are_able_to_fail() -> None:
    check_rules(CAUGHT, PASSED)
