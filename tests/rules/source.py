"""What the rules share: the source of the package, parsed, and who imports what."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "interlock"

Complaints = list[str]
Rule = Callable[[str, str], Complaints]
"""From the path of a file below src/interlock and its source to what is wrong with it."""


class Import(NamedTuple):
    line: int
    target: str  # absolute and dotted: "interlock.core.checks", "os.path", "interlock.errors.UsageError"


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def sources() -> dict[str, str]:
    """Every file of the package by its path below src/interlock."""
    return {str(path.relative_to(SRC).as_posix()): path.read_text() for path in sorted(SRC.rglob("*.py"))}


def everywhere(rule: Rule) -> Complaints:
    return [complaint for path, source in sources().items() for complaint in rule(path, source)]


def obey(rule: Rule) -> None:
    """The package obeys this rule."""
    complaints = everywhere(rule)
    assert not complaints, report(complaints)


def report(complaints: Complaints) -> str:
    return "\n" + "\n".join(complaints)


def check_rules(caught: Sequence[tuple[Rule, str, str, str]], passed: Sequence[tuple[Rule, str, str]]) -> None:
    """Each rule catches what breaks it, and does not complain about what is right."""
    for rule, path, source, expected in caught:
        complaints = rule(path, source)
        assert any(expected in complaint for complaint in complaints), (rule.__name__, path, source, complaints)
    for rule, path, source in passed:
        assert rule(path, source) == [], (rule.__name__, path, source)
    assert {rule for rule, *_ in caught} >= {rule for rule, *_ in passed}, "a rule that was never seen to fail"


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
        elif isinstance(node, ast.Call) and node.args and called(node) in ("import_module", "__import__"):
            first = node.args[0]
            choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            texts = [choice.value for choice in choices if isinstance(choice, ast.Constant)]
            found += [Import(node.lineno, text) for text in texts if isinstance(text, str)]
    return found


def called(call: ast.Call) -> str:
    """The name of what is called: `f` of `f()` and of `a.f()`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
