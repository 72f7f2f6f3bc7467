"""Five real nodes for a module, emptied for each test, and what a test needs to look behind the client's back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.faces import COLOURS


@pytest.fixture(scope="module")
def _five() -> Iterator[list[Node]]:
    nodes = start_nodes(5)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture
def five(_five: list[Node]) -> list[Node]:
    """Five Valkey nodes, all up and empty."""
    for node in _five:
        if not node.running:
            node.restart()
        node.resume()
        node.flush()
    return _five


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


def urls(nodes: list[Node]) -> list[str]:
    return [node.url for node in nodes]


def holders(nodes: list[Node], name: str) -> list[int]:
    """On which nodes the lock's key is."""
    return [index for index, node in enumerate(nodes) if node.command("EXISTS", name)]
