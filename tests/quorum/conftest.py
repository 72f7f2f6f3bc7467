"""Five real nodes for a module, emptied for each test, and what a test needs to look behind the client's back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interlock.backends.quorum.ticket import UNDER_WAY
from interlock.runtime.base import now
from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.conformance import backend_of
from interlock.testing.faces import COLOURS, Kit


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


async def all_ears(*clients: Any) -> str:
    """They can be told by every node, not only by a quorum of them. The inbox of the last one."""
    inbox = ""
    for client in clients:
        backend: Any = backend_of(client)
        inbox = await backend.open_inbox(5.0)
        for _ in range(50):
            if all(ear.open for ear in backend.inboxes.subscriptions):
                break
            await backend.hear(now() + 0.05)  # which opens those that are shut
    return inbox


async def well(kit: Kit, client: Any) -> None:
    """Once no node rests: one that was slow a moment ago, and one that is silent from now on, would be two."""
    nodes = backend_of(client).poller.nodes  # type: ignore[attr-defined]
    for _ in range(50):
        if all(node.health.retry_at <= now() for node in nodes):
            return
        await kit.sleep(0.1)


def none_under_way(backend: Any) -> bool:
    """Whether no token waits, asks or leaves, and the listener has nothing to be told."""
    tickets = backend.tickets
    return not tickets._due and not [one for one in tickets._tickets.values() if one.state in UNDER_WAY]


def members_of(backend: Any) -> list[Any]:
    """Its nodes, each as a backend."""
    return [node.member for node in backend.nodes]
