"""The shipped suite on quorums: of Valkey nodes, of Redis and Valkey mixed, of SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.conformance import CASES, Case, run_case
from interlock.testing.lines import LINE_CASES

from .conftest import urls


@pytest.fixture(scope="module")
def mixed() -> Iterator[list[Node]]:
    nodes = start_nodes(3) + start_nodes(2, "redis")
    yield nodes
    stop_nodes(nodes)


@pytest.fixture(scope="module")
def three() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    yield nodes
    stop_nodes(nodes)


@pytest.mark.parametrize("case", CASES + LINE_CASES, ids=str)
def test_three_valkey_nodes(case: Case, colour: str, three: list[Node]) -> None:
    run_case(case, urls(three), colour)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_five_mixed_nodes(case: Case, colour: str, mixed: list[Node]) -> None:
    run_case(case, urls(mixed), colour)


@pytest.mark.parametrize("case", CASES + LINE_CASES, ids=str)
def test_three_sqlite_files(case: Case, colour: str, tmp_path: Path) -> None:
    run_case(case, [f"sqlite://{tmp_path}/{n}.db" for n in range(3)], colour)
