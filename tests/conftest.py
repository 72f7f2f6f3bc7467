"""Fixtures that every test may use: the stores, each as what a client is made with."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

pytest_plugins = ["interlock.testing.plugin", "pytester"]

STORES = ["memory", "sqlite", "valkey", "redis"]


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
