"""The port is a contract: what a flow, a face or a quorum asks of a backend is declared there, not looked for at run time."""

from __future__ import annotations

import ast
import re

from .source import Complaints, called, check_rules, everywhere, obey, parsed

LAYERS = ("flow/", "api/", "backends/")
PORTS = re.compile(r"(^|[._])(backend|member|line|voter|store|transport|node|inner)s?(\[.*\])?$")
"""What a backend is called, as the last word of an expression: `backend`, `self._backend`, `member`, `members[0]`."""

# Attributes that are not declared in `backends/port.py` and are looked for today. This set may only shrink.
STILL_LOOKED_FOR = {"allow_for", "rely", "settled", "vote"}


def looked_for(source: str) -> list[tuple[int, str]]:
    """Where `getattr` or `hasattr` with a literal name is asked of a backend: the line and the name."""
    return [
        (call.lineno, str(call.args[1].value))
        for call in ast.walk(parsed(source))
        if isinstance(call, ast.Call)
        and called(call) in ("getattr", "hasattr")
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
        and PORTS.search(ast.unparse(call.args[0]))
    ]


def port_rule(path: str, source: str) -> Complaints:
    if not path.startswith(LAYERS):
        return []
    return [
        f"{path}:{line} looks for {name!r} on a backend: declare it in backends/port.py"
        for line, name in looked_for(source)
        if name not in STILL_LOOKED_FOR
    ]


def test_nothing_is_looked_for_on_a_backend() -> None:
    obey(port_rule)


def test_the_set_of_what_is_looked_for_only_shrinks() -> None:
    found = everywhere(lambda path, source: [name for _, name in looked_for(source)] if path.startswith(LAYERS) else [])
    assert set(found) >= STILL_LOOKED_FOR, f"take these off STILL_LOOKED_FOR: {STILL_LOOKED_FOR - set(found)}"


def test_the_rules_are_able_to_fail() -> None:
    check_rules(
        [
            (port_rule, "flow/x.py", 'getattr(self.backend, "fast", None)', "x.py:1 looks for 'fast'"),
            (port_rule, "flow/x.py", 'if hasattr(backend, "fast"): pass', "'fast'"),
            (port_rule, "api/x.py", 'getattr(self._context.backend, "fast")', "'fast'"),
            (port_rule, "backends/x.py", 'any(getattr(member, "fast", 0) for member in members)', "'fast'"),
            (port_rule, "backends/x.py", 'getattr(members[0], "fast", 0)', "'fast'"),
        ],
        [
            (port_rule, "flow/x.py", 'getattr(error, "__notes__", ())'),
            (port_rule, "flow/x.py", "getattr(backend, name)"),
            (port_rule, "testing/x.py", 'getattr(backend, "fast")'),
            (port_rule, "backends/x.py", 'hasattr(client, "connection_pool")'),
        ],
    )
