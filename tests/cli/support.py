"""What the tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = (sys.executable, "-W", "error::ResourceWarning", "-m", "interlock")
Run = Callable[..., "subprocess.CompletedProcess[str]"]

HOLD = """
import sys, interlock
with interlock.Client(sys.argv[1]) as client, client.lock(sys.argv[2], ttl=30) as lease:
    print(lease.fence, lease.token, flush=True)
    sys.stdin.read()
"""


def environment(**more: str) -> dict[str, str]:
    """This one, without what steers the command line."""
    source = str(Path(__file__).parents[2] / "src")
    ours = ("INTERLOCK_URL", "NO_COLOR", "COLUMNS", "LINES")
    env = {key: value for key, value in os.environ.items() if key not in ours}
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")]))} | more


class Holder:
    """Another process that holds a lock until it is closed."""

    def __init__(self, url: str, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, url, name],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        fence, self.token = self._process.stdout.readline().split()
        self.fence = int(fence)
        self.pid = self._process.pid

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)
        assert self._process.returncode == 0
