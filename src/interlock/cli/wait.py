"""`interlock wait NAME`: until a lock is free. Takes nothing and stands in no line.

So no store tells it when to look: it looks again after a pause that grows to a second, or when the holder's lease ends.
"""

from __future__ import annotations

import argparse
import math
import time

from ..api.client import Client
from ..core import checks
from ..core.claim import Entry
from ..errors import UsageError
from . import exits
from .exits import complain
from .reading import command_line, duration
from .status import holder_of

FIRST = 0.02
LONGEST = 1.0


def run(arguments: argparse.Namespace) -> int:
    """0 once the lock is free, 75 when the time is over before. Raises what `inspect` raises, at the first question."""
    with command_line():
        name = checks.name(arguments.name)
        timeout = math.inf if arguments.timeout is None else duration(arguments.timeout, "--timeout")
    with Client(arguments.url) as client:
        if client.address.startswith("memory:"):
            raise UsageError("memory:// lives in one process; there is nothing to wait for from here")
        entry = _look(client, name, timeout)
    if not entry.held:
        return exits.OK
    if arguments.quiet:
        return exits.BUSY
    return complain(f"{name} is still held by {holder_of(entry)}; waited {timeout:g} s", exits.BUSY)


def _look(client: Client, name: str, timeout: float) -> Entry:
    """Look until it is free or the time is over: what was seen last."""
    until, pause = time.monotonic() + timeout, FIRST
    while True:
        entry = client.inspect(name)
        left = until - time.monotonic()
        if not entry.held or left <= 0:
            return entry
        ends = math.inf if entry.remaining is None else entry.remaining + 0.001
        time.sleep(max(min(pause, ends, left), 0.0))
        pause = min(2 * pause, LONGEST)
