"""How every process of a run writes into the one history: whole lines, stamped with the clock that all of them share."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from interlock.testing.history import Event, from_jsonl, to_jsonl

PARENT = "INTERLOCK_CHAOS_PARENT"  # the process id of whoever started this one


def now() -> float:
    """The boot clock: one for all processes of the machine, and the one that leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Journal:
    """A line for each event. What one process writes is in order; `load` puts all of it in order."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._guard = threading.Lock()

    def __call__(self, who: str, what: str, at: float = 0.0, **fields: Any) -> None:
        with self._guard:
            line = to_jsonl([Event(at or now(), who, what, **fields)]).encode()
            os.write(self._file, line)  # one call, at the end of the file: lines of several processes do not mix


def load(path: Path) -> list[Event]:
    """The history in that file, in order of time. A line that was cut short by the end of its writer does not count."""
    whole = path.read_text().rpartition("\n")[0]
    return sorted(from_jsonl(whole), key=lambda event: event.at)


def die_with_parent() -> None:
    """Whoever started this process may be killed while this one is stopped: it must not stay behind."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        os._exit(1)
