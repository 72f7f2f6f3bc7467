"""Eight processes, five hundred increments each, of a counter that nothing protects but the lock."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from interlock.testing import Node

from .conftest import store_url

PROCESSES, TURNS = 8, 500

WORKER = """
import sys, interlock
url, counter, journal, turns = sys.argv[1:]
client = interlock.Client(url, ttl=30, timeout=100, request_timeout=20)
lock = client.lock("counter")
for _ in range(int(turns)):
    with lock as lease:
        with open(counter) as file:
            seen = int(file.read())
        with open(counter, "w") as file:
            file.write(str(seen + 1))
        with open(journal, "a") as file:  # in the order of the grants
            file.write(f"{lease.fence}\\n")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_the_total_is_exact(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = store_url(request, kind)
    counter, journal = tmp_path / "counter", tmp_path / "journal"
    counter.write_text("0")
    arguments = [sys.executable, "-c", WORKER, url, str(counter), str(journal), str(TURNS)]
    workers = [subprocess.Popen(arguments) for _ in range(PROCESSES)]
    assert [worker.wait() for worker in workers] == [0] * PROCESSES
    assert int(counter.read_text()) == PROCESSES * TURNS
    fences = [int(line) for line in journal.read_text().splitlines()]
    assert len(fences) == PROCESSES * TURNS
    assert fences == sorted(set(fences)), "strictly increasing in the order of the grants"
    assert leftovers(kind, request, tmp_path) == []


def leftovers(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """What stays in the store and does not expire by itself."""
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "locks.db")) as db:
            return [json.dumps(row) for row in db.execute("SELECT name, token FROM entries")]
    node: Node = request.getfixturevalue("valkey_node")
    return [str(key) for key in node.command("KEYS", "*") if node.command("PTTL", key) <= 0 or not key.endswith(b":fence")]
