"""Fixtures that every test may use: the stores, each as what a client is made with."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from interlock.backends.quorum import ticket

ticket.check = True  # a step of a ticket that its table does not have raises

pytest_plugins = ["interlock.testing.plugin", "pytester"]

STORES = ["memory", "sqlite", "valkey", "redis"]
# Most tests wait most of the time, so `make test` runs four of them at once. Not these: see the marker `alone`.
ALONE = (
    "chaos/",
    "cli/test_demo.py",
    "cli/test_run",
    "flow/test_keeper",
    "hazards/",
    "quorum/test_quorum_chaos.py",
    "test_import.py",
    "test_processes.py",
)


# Whoever is started in the background by a shell ignores Ctrl-C, and so would every child. These tests are about Ctrl-C too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for quiet in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(quiet, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and str(item.path.relative_to(here)).startswith(ALONE):
            item.add_marker("alone")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn. Nothing is skipped: a missing server fails."""
    return store_url(request, request.param)


def store_url(request: pytest.FixtureRequest, kind: str) -> str:
    if kind == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if kind == "sqlite":
        return f"sqlite://{request.getfixturevalue('tmp_path')}/locks.db"
    node: Any = request.getfixturevalue(f"{kind}_node")
    url: str = node.url
    return url
