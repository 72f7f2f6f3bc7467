"""Everything public has a docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Complaints, Rule, check_rules, obey, parsed


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


def test_everything_public_has_a_docstring() -> None:
    obey(docstring_rule)


CAUGHT: list[tuple[Rule, str, str, str]] = [
    (docstring_rule, "api/x.py", "def f(): ...", "has no docstring"),
    (docstring_rule, "api/x.py", '"""Doc."""\ndef f(): ...', "f has no docstring"),
    (docstring_rule, "api/x.py", '"""Doc."""\nclass A:\n    """Doc."""\n    async def f(self): ...', "A.f has no docstring"),
    (docstring_rule, "api/x.py", '"""Doc."""\nif a:\n    def f(): ...', "f has no docstring"),
]
PASSED: list[tuple[Rule, str, str]] = [
    (docstring_rule, "api/x.py", '"""Doc."""\ndef _f(): ...\nclass _A:\n    def f(self): ...'),
    (docstring_rule, "testing/x.py", '"""Doc."""\n@case\nasync def a_thing_is_so(kit): ...'),
]


def test_the_rules_are_able_to_fail() -> None:
    check_rules(CAUGHT, PASSED)
