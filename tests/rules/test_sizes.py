"""Small files: 300 lines are the limit, not the norm. Test equipment may be longer where it says why."""

from __future__ import annotations

import ast

from .source import Complaints, check_rules, obey, parsed

MAX_LINES = 300
REASON = "long because"  # in the docstring of a file below testing/


def size_rule(path: str, source: str) -> Complaints:
    lines = len(source.splitlines())
    if lines <= MAX_LINES:
        return []
    if not path.startswith("testing/"):
        return [f"{path} has {lines} lines, {MAX_LINES} are allowed: split it"]
    if REASON in " ".join((ast.get_docstring(parsed(source)) or "").split()):
        return []
    return [f"{path} has {lines} lines: split it, or let its docstring say that it is {REASON} …"]


def test_files_are_small() -> None:
    obey(size_rule)


def test_the_rules_are_able_to_fail() -> None:
    check_rules(
        [
            (size_rule, "api/x.py", '"""Doc."""\n' + "x = 1\n" * 300, "301 lines"),
            (size_rule, "api/x.py", '"""Doc. It is long\nbecause it is a list."""\n' + "x = 1\n" * 300, "302 lines"),
            (size_rule, "testing/x.py", '"""Doc."""\n' + "x = 1\n" * 300, "301 lines"),
        ],
        [
            (size_rule, "testing/x.py", '"""Doc. It is long\nbecause it is a list."""\n' + "x = 1\n" * 300),
            (size_rule, "api/x.py", '"""Doc."""\n' + "x = 1\n" * 299),
        ],
    )
