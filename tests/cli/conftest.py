"""Commands as real processes, against real stores."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from interlock.testing.nodes import Node

from .support import COMMAND, Run, environment


@pytest.fixture
def run() -> Run:
    """Run `interlock …` to its end."""

    def command(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], env=environment(**(env or {})), capture_output=True, text=True, timeout=60, check=False
        )

    return command


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    with Node() as running:
        yield running


@pytest.fixture(params=["valkey", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that other processes can see, empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db"
    running: Node = request.getfixturevalue("node")
    running.flush()
    return running.url
