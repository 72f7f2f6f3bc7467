"""The public types under mypy --strict: what is right passes, what is wrong is flagged."""

from __future__ import annotations

from pathlib import Path

import pytest

import interlock

API = Path(__file__).with_name("api.py")
SOURCE = str(Path(interlock.__file__).parents[1])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def mypy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    from mypy import api

    monkeypatch.setenv("MYPYPATH", SOURCE)
    flags = ["--strict", "--warn-unused-ignores", "--config-file=", f"--cache-dir={cache}", "--no-error-summary"]
    flags += ["--follow-imports=silent", "--python-version=3.11", "--no-pretty"]
    return lambda path: api.run([*flags, str(path)])


def test_the_public_types_are_what_they_should_be(mypy: object) -> None:
    found, trouble, _ = mypy(API)  # type: ignore[operator]
    assert (found, trouble) == ("", "")


def test_the_checker_is_able_to_complain(mypy: object, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from typing import assert_type\n"
        "from interlock import Client, Lease\n"
        'assert_type(Client().lock("x").try_acquire(), Lease)\n'
        'Client("memory://")  # type: ignore[arg-type]\n'
    )
    found, _, _ = mypy(wrong)  # type: ignore[operator]
    lines = found.splitlines()
    assert len(lines) == 2
    assert "wrong.py:3: error: Expression is of type" in lines[0]
    assert "wrong.py:4: error: Unused" in lines[1]
