"""The public names and their signatures are those that are pinned in tests/public_names.txt."""

from __future__ import annotations

import difflib
from typing import Any

from .signatures import class_lines, public_lines
from .source import ROOT, Complaints, report

PINNED = ROOT / "tests" / "public_names.txt"


def pin_rule(pinned: list[str], found: list[str]) -> Complaints:
    return list(difflib.unified_diff(pinned, found, "pinned in tests/public_names.txt", "found in interlock", lineterm="", n=0))


def test_the_public_names_are_the_pinned_ones() -> None:
    diff = pin_rule(PINNED.read_text().splitlines(), public_lines())
    assert not diff, report([*diff, "If this change is wanted: python -m tests.rules --write, and say so in the changelog"])


def test_public_names_are_all_listed() -> None:
    import interlock
    from interlock import errors

    assert sorted(interlock.__all__) == sorted({*interlock._HOME, *errors.__all__, "__version__"} - {"Vote"})


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
