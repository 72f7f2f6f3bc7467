"""The formal model in spec/: it names code that exists, its page names configurations that exist, and it can fail.

The whole of it is checked by `make spec`; here only what takes a moment.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC, SRC = ROOT / "spec", ROOT / "src" / "interlock"

FILE = re.compile(r"\b((?:core|flow|backends)/[\w/]+\.(?:py|lua))(?:: ((?:[A-Z_a-z][\w.]*(?:, (?!\w+/))?)+))?")


@cache
def driver() -> ModuleType:
    found = importlib.util.spec_from_file_location("spec_check", SPEC / "check.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["spec_check"] = module
    found.loader.exec_module(module)
    return module


def named_in(text: str) -> list[tuple[str, list[str]]]:
    """Every file of the source that a text names, and the functions and classes of it, as in `flow/ask.py: ask, believe`."""
    return [(path, re.findall(r"[\w.]*\w", names or "")) for path, names in FILE.findall(text)]


def defined_in(path: Path) -> set[str]:
    """Every function, class and method of a Python file; every command of a script."""
    text = path.read_text()
    if path.suffix == ".lua":
        return set(re.findall(r"\w+", text))
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def strangers_in(text: str) -> list[str]:
    """What a text names and the source does not have."""
    found = []
    for path, names in named_in(text):
        if not (SRC / path).exists():
            found.append(path)
        else:
            found += [f"{path}: {name}" for name in names if name not in defined_in(SRC / path)]
    return found


@pytest.mark.parametrize("page", ["Quorum.tla", "Lists.tla", "Waits.tla", "fences.pml", "README.md"])
def test_what_the_model_names_exists(page: str) -> None:
    text = (SPEC / page).read_text()
    assert len(named_in(text)) >= 3
    assert strangers_in(text) == []


def test_a_name_that_is_gone_is_found() -> None:
    assert strangers_in("flow/ask.py: ask, askk") == ["flow/ask.py: askk"]
    assert strangers_in("backends/quorum/extension.py: Extending._heal, Extending.cure, flow/nowhere.py: x") == [
        "backends/quorum/extension.py: Extending.cure",
        "flow/nowhere.py",
    ]


@pytest.mark.parametrize(
    ("module", "first", "of", "least"),
    [("Quorum", "(* A claim *)", "a", 20), ("Lists", "(* A lease *)", "a", 8), ("Waits", "(* A wait *)", "c, l", 7)],
)
def test_every_action_says_what_it_models(module: str, first: str, of: str, least: int) -> None:
    """An action without the name of a function, in its own comment or in that of its section, is an idea and not the code."""
    text = (SPEC / f"{module}.tla").read_text()
    body = text[text.index(first) : text.index("\nNext ==")]
    own = {"HealAsk", "HealArrive", "HealAnswered"}  # in the heading of their section
    helpers = {"Clear", "Releasing", "LastFence", "Released"}  # no steps of the code
    actions = re.findall(rf"((?:^\\\*.*\n)*)^(\w+)\({of}(?:, n)?\) ==", body, re.MULTILINE)
    assert len(actions) >= least
    silent = {name for comment, name in actions if not FILE.search(comment)}
    assert silent - own - helpers == set()


def test_the_page_and_the_directory_name_the_same_configurations() -> None:
    known = {*driver().configurations(), *driver().TWINS}
    rows = set(re.findall(r"^\| `([\w-]+)`", (SPEC / "README.md").read_text(), re.MULTILINE))
    assert rows == known
    assert known >= driver().SLOW


@pytest.mark.parametrize(("module", "least"), [("Quorum", 30), ("Lists", 3), ("Waits", 9)])
def test_every_rule_is_left_out_somewhere(module: str, least: int) -> None:
    text = (SPEC / f"{module}.tla").read_text()
    rules = set(re.findall(r'^  "([\w ]+)",? *\\\*', text, re.MULTILINE))
    left_out = {
        rule
        for path in SPEC.glob("*.cfg")
        if driver().module_of(path.stem) == module
        for line in re.findall(r"^  Without = (.*)$", path.read_text(), re.MULTILINE)
        for rule in re.findall(r'"([\w ]+)"', line)
    }
    assert len(rules) >= least
    assert rules == left_out


def test_every_rule_is_used() -> None:
    """A rule that no step asks for could be left out unpunished, whatever a configuration says."""
    for module in driver().MODULES:
        text = (SPEC / f"{module}.tla").read_text()
        rules = set(re.findall(r'^  "([\w ]+)",? *\\\*', text, re.MULTILINE))
        assert rules == set(re.findall(r'Rule\("([\w ]+)"\)', text))


def test_every_expectation_is_an_invariant() -> None:
    for name, expected in driver().configurations().items():
        text = (SPEC / f"{driver().module_of(name)}.tla").read_text()
        invariants = re.search(r"^INVARIANTS (.*)$", (SPEC / f"{name}.cfg").read_text(), re.MULTILINE)
        assert invariants is not None
        for invariant in invariants[1].split():
            assert re.search(rf"^{invariant} ==", text, re.MULTILINE)
        assert expected in ("holds", *invariants[1].split())


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java: the model is checked by `make spec` where there is one")
def test_the_model_fails_where_it_must() -> None:
    check = driver()
    try:
        check.fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the checker cannot be had here: {error}")
    result = check.tlc("no-majority", "Exclusion")
    assert result.good, result.output
    assert check.tlc("no-majority", "holds").good is False
