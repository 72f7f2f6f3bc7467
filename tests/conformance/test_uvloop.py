"""The shipped suite on uvloop, which some run asyncio on. Nothing in interlock knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.conformance import CASES, Case, run_case
from interlock.testing.lines import LINE_CASES


@pytest.fixture(autouse=True)
def on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(main: Coroutine[Any, Any, Any]) -> Any:
        async def seen() -> Any:
            assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
            return await main

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(seen())

    monkeypatch.setattr(asyncio, "run", run)  # what the suite runs its cases with


@pytest.fixture(scope="module")
def three() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    yield nodes
    stop_nodes(nodes)


@pytest.mark.parametrize("case", CASES + LINE_CASES, ids=str)
def test_one_node(case: Case, valkey_node: Node) -> None:
    run_case(case, valkey_node.url, "asyncio")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_quorum(case: Case, three: list[Node]) -> None:
    run_case(case, [node.url for node in three], "asyncio")
