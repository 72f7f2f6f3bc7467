"""Pytest fixtures for real servers and faults. Opt in from the top conftest.py:

    pytest_plugins = ["interlock.testing.plugin"]

    valkey_node, redis_node   one server for the whole session, empty at the start of each test
    fresh_node(kind, ...)     a server of this test's own, to kill, pause and restart; options as for `Node`
    make_nodes(n, kind, ...)  several, started side by side
    fault_proxy(node)         a `FaultProxy` in front of a node, or of a port

Rules of the file: a missing server *fails* the tests that need it and says what to install, because a suite that skips
its servers proves nothing; `--interlock-allow-missing` turns that into a skip, but never where the variable CI is set.
Whatever a factory made is gone when the test is over, whether or not the test stopped it. The shared nodes are emptied
(keys and scripts) before each test, so what a fixture of wider scope has stored there is lost; one that a test left dead
or paused is started anew, empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ..errors import InterlockError
from .nodes import Node, ServerMissing, start_nodes, stop_nodes
from .proxy import FaultProxy

__all__ = ["fault_proxy", "fresh_node", "make_nodes", "redis_node", "valkey_node"]

_shared = pytest.StashKey[list[Node]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("interlock").addoption(
        "--interlock-allow-missing",
        action="store_true",
        help="skip tests whose server (Valkey, Redis) is not installed, instead of failing them; ignored where CI is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_shared] = []


def _start(config: pytest.Config, n: int, kind: str, options: dict[str, Any]) -> list[Node]:
    try:
        return start_nodes(n, kind, **options)
    except ServerMissing as error:
        in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        if config.getoption("--interlock-allow-missing") and not in_ci:
            pytest.skip(str(error))
        pytest.fail(str(error), pytrace=False)


def _share(config: pytest.Config, kind: str) -> Iterator[Node]:
    (node,) = _start(config, 1, kind, {})
    config.stash[_shared].append(node)
    try:
        yield node
    finally:
        config.stash[_shared].remove(node)
        node.stop()


@pytest.fixture(scope="session")
def valkey_node(pytestconfig: pytest.Config) -> Iterator[Node]:
    """A Valkey server shared by the session and empty at the start of each test. Do not kill it: see `fresh_node`."""
    yield from _share(pytestconfig, "valkey")


@pytest.fixture(scope="session")
def redis_node(pytestconfig: pytest.Config) -> Iterator[Node]:
    """A Redis server shared by the session and empty at the start of each test. Do not kill it: see `fresh_node`."""
    yield from _share(pytestconfig, "redis")


@pytest.fixture(autouse=True)
def _empty_shared_nodes(pytestconfig: pytest.Config) -> None:
    for node in pytestconfig.stash[_shared]:
        try:
            node.flush()
        except (OSError, InterlockError):  # dead, paused or crippled by the test before
            node.restart()


@pytest.fixture
def make_nodes(pytestconfig: pytest.Config) -> Iterator[Callable[..., list[Node]]]:
    """`make_nodes(n, kind="valkey", **options)`: that many nodes of this test's own, started side by side."""
    made: list[Node] = []

    def make(n: int, kind: str = "valkey", **options: Any) -> list[Node]:
        nodes = _start(pytestconfig, n, kind, options)
        made.extend(nodes)
        return nodes

    try:
        yield make
    finally:
        stop_nodes(made)


@pytest.fixture
def fresh_node(make_nodes: Callable[..., list[Node]]) -> Callable[..., Node]:
    """`fresh_node(kind="valkey", **options)`: a node of this test's own, running."""

    def make(kind: str = "valkey", **options: Any) -> Node:
        return make_nodes(1, kind, **options)[0]

    return make


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[Node | int], FaultProxy]]:
    """`fault_proxy(node)`: a running `FaultProxy` in front of a node or a port."""
    with ExitStack() as stack:
        yield lambda target: stack.enter_context(FaultProxy(target if isinstance(target, int) else target.port))
