"""The set: nodes, a network, how much of everything, who takes part. All of it is gone when the bench ends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import interlock
from interlock.testing import Node, start_nodes, stop_nodes

from .install import Installed
from .runner import ROOT, SOURCE


class Size(NamedTuple):
    """How much of everything."""

    rounds: int = 15
    cycles: int = 200
    bulk_rounds: int = 5
    tasks: int = 1000
    locks: int = 20
    leases: int = 10_000
    holding: float = 8.0
    looking: float = 8.0


QUICK = Size(rounds=3, cycles=40, bulk_rounds=2, tasks=200, locks=5, leases=1000, holding=1.0, looking=0.5)


class Stage:
    """What workloads play on."""

    def __init__(self, size: Size, stack: ExitStack, tell: Callable[[str], None], pinned: bool = True) -> None:
        self.size, self.tell, self._stack = size, tell, stack
        self.sources: dict[str, Path] = {"interlock": SOURCE}
        self.peers: list[Installed] = []
        self._nodes: dict[int, list[Node]] = {}
        self._relays: dict[tuple[int, float], list[int]] = {}
        self._files = 0
        self._directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-bench-"))
        self._cores = sorted(os.sched_getaffinity(0))
        self.pinned = pinned
        if pinned:  # nodes and subjects inherit it
            stack.callback(os.sched_setaffinity, 0, self._cores)
            os.sched_setaffinity(0, {self._cores[-1]})

    def nodes(self, many: int) -> list[Node]:
        """So many, which have been used once: the birth of a cluster is in no figure."""
        if many not in self._nodes:
            nodes = self._nodes[many] = start_nodes(many)
            self._stack.callback(stop_nodes, nodes)
            urls = [node.url for node in nodes]
            with interlock.Client(urls if many > 1 else urls[0]) as client, client.lock("birth"):
                pass
        return self._nodes[many]

    def ports(self, many: int, delay: float = 0.0) -> list[int]:
        """How to reach them, through a network with such round trips."""
        ports = [node.port for node in self.nodes(many)]
        return self._relayed(ports, delay) if delay else ports

    def _relayed(self, ports: list[int], delay: float) -> list[int]:
        key = (len(ports), delay)
        if key not in self._relays:
            command = [sys.executable, "-m", "bench.relay", str(delay), *map(str, ports)]
            relay = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._stack.callback(_end, relay)
            # The network is nobody's processor time: on a core of its own.
            os.sched_setaffinity(relay.pid, {self._cores[0]})
            assert relay.stdout is not None
            self._relays[key] = json.loads(relay.stdout.readline())
        return self._relays[key]

    def file(self) -> str:
        """Where a new file may be."""
        self._files += 1
        return f"{self._directory}/{self._files}.db"

    def teller(self, title: str) -> Callable[[str], None]:
        return lambda text: self.tell(f"{title}: {text}")

    def environment(self, source: Path) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(source)}

    def machine(self) -> dict[str, Any]:
        """What the figures were got on."""
        import redis

        node = self.nodes(1)[0]
        return {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "server": f"{node.kind} {node.version}",
            "redis-py": redis.__version__,
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": len(self._cores),
            "load": [round(os.getloadavg()[0], 2)],
            "regime": "pinned: client and servers on one core" if self.pinned else "free: all cores",
            "revision": revision(),
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def _processor() -> str:
    with open("/proc/cpuinfo") as info:
        return next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), platform.machine())


def revision() -> str:
    """Of the working tree, as git describes it."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
