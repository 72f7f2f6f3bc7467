"""The examples in the documents: all of them compile, and those that can run do, against real servers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import pytest

import interlock
from interlock.testing import Node

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
SERVER = "redis://localhost:6379"
# What the README takes for granted: a database with an order in it, and that `await` is allowed.
AROUND = """
import asyncio, contextlib, sqlite3
db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE orders (id INTEGER, fence INTEGER)")
db.execute("INSERT INTO orders VALUES (123, {fence})")
async def main():
{body}
with contextlib.closing(db):
    asyncio.run(main())
"""


def blocks(document: str | Path, language: str = "python") -> list[str]:
    text = (ROOT / document).read_text()
    return [dedent(block) for block in re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)]


def run(code: str, home: Path, server: Node, fence: int = 0, quorum: tuple[Node, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run an example as a program of its own, on these servers and in this home."""
    assert SERVER in code
    code = code.replace(SERVER, server.url)
    for name, node in zip("abc", quorum, strict=False):
        assert f"redis://{name}:6379" in code
        code = code.replace(f"redis://{name}:6379", node.url)
    script = AROUND.format(fence=fence, body=indent(code, "    "))
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(Path(interlock.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if blocks(path)], ids=lambda path: path.name)
def test_the_examples_compile(document: Path) -> None:
    for block in blocks(document):
        compile(block, str(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_readme_runs(tmp_path: Path, valkey_node: Node, make_nodes: Callable[[int], list[Node]]) -> None:
    done = run("\n".join(blocks("README.md")), tmp_path, valkey_node, quorum=tuple(make_nodes(3)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / ".local/state/interlock/locks.db").exists(), "where the lock without set-up is kept"


def test_the_first_example_turns_a_late_holder_away(tmp_path: Path, valkey_node: Node) -> None:
    done = run(blocks("README.md")[0], tmp_path, valkey_node, fence=2**53)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "interlock.errors.StaleFence: a newer holder was here"


def test_the_test_equipment_runs(pytester: pytest.Pytester) -> None:
    conftest, tests = blocks("docs/testing.md")
    pytester.makeconftest(conftest)
    pytester.makepyfile(tests)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_store_of_your_own_can_be_tested_as_described(pytester: pytest.Pytester) -> None:
    (tests,) = blocks("docs/extending.md")
    assert "mystore://localhost" in tests
    pytester.makepyfile(tests.replace("mystore://localhost", "memory://docs"))
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider").parseoutcomes()
    assert outcome.keys() == {"passed"}
    (settings,) = blocks("docs/extending.md", "toml")
    assert tomllib.loads(settings)["project"]["entry-points"].keys() == {"interlock.backends"}


def test_the_states_are_drawn_as_they_are() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "draw_states.py", "--check"], check=False)
    assert done.returncode == 0, "run python tools/draw_states.py"
