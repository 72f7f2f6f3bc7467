"""Test equipment that ships with interlock: real servers, faults between you and them, and pytest fixtures.

    Node, start_nodes, stop_nodes   real Valkey and Redis servers as child processes on free loopback ports
    FaultProxy                      a TCP proxy that delays, drops and cuts what passes, on command
    interlock.testing.sim           a deterministic simulator: what ships, on virtual nodes and time; `interlock sim`
    interlock.testing.history       what is wrong with the history of a run, simulated or real
    interlock.testing.plugin        pytest fixtures; opt in: `pytest_plugins = ["interlock.testing.plugin"]`

Rules of the package: importing it is cheap and needs neither pytest nor a client library (names load on first use);
nothing outlives the test that made it: no process, thread, socket or file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nodes import Node as Node
    from .nodes import ServerMissing as ServerMissing
    from .nodes import start_nodes as start_nodes
    from .nodes import stop_nodes as stop_nodes
    from .proxy import FaultProxy as FaultProxy

_HOMES = {
    "FaultProxy": "proxy",
    "Node": "nodes",
    "ServerMissing": "nodes",
    "start_nodes": "nodes",
    "stop_nodes": "nodes",
}

__all__ = ["FaultProxy", "Node", "ServerMissing", "start_nodes", "stop_nodes"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
