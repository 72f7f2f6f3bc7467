"""What the hazard tests share: the scale, the clock that all processes agree on, worker processes that talk in JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

SCALE = float(os.environ.get("INTERLOCK_CHAOS", "1"))
HERE = Path(__file__).parent
LIMIT = 120.0 + 60.0 * SCALE  # seconds for a test: a bound against hangs, far above what it takes


def scaled(number: float) -> int:
    """How many, at the scale of this run."""
    return max(1, round(number * SCALE))


def now() -> float:
    """The boot clock: one for all processes of the machine, and the one that leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Worker:
    """A process that runs a file of this directory and talks in JSON, a line each way. Killed at the end if it still runs."""

    def __init__(self, file: str, *args: Any) -> None:
        self.name = f"{file} {args[0] if args else ''}"
        command = [sys.executable, str(HERE / file), *map(str, args)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.errors = ""
        self._said: Queue[str | None] = Queue()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._note)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put(None)

    def _note(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def say(self, what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self, timeout: float = 60.0) -> Any:
        try:
            line = self._said.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"{self.name} said nothing for {timeout:g} s; its errors: {self.errors}") from None
        assert line is not None, f"{self.name} ended; its errors: {self.errors}"
        return json.loads(line)

    def ask(self, what: Any, timeout: float = 60.0) -> Any:
        self.say(what)
        return self.hear(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # the end of what is asked of it: it leaves
        try:
            code = self.process.wait(20 if kind is None else 1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        if kind is None:
            assert (code, self.errors) == (0, ""), f"{self.name} left with {code}: {self.errors}"


def heard() -> Any:
    """In a worker: what the test says next; None once there is nothing more to do."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def tell(what: Any) -> None:
    """In a worker: answer."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
