"""The worker processes, seen from the play: start, give orders, hear reports, freeze one, send all home."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

Report = dict[str, Any]

TICK = 0.08  # how often the picture is drawn anew


class Worker:
    """One process, `interlock.cli.demo.worker`. `report` is None from an order until its answer."""

    def __init__(self, number: int, directory: str) -> None:
        self.number = number
        self.report: Report | None = None
        self._heard = b""
        self._process = subprocess.Popen(  # noqa: S603 - our own module in our own interpreter
            [sys.executable, "-m", "interlock.cli.demo.worker", str(number), directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is for the play, which then ends the workers
        )

    @property
    def pid(self) -> int:
        """The process id, which the lock store knows as well."""
        return self._process.pid

    def fileno(self) -> int:
        """For select: readable when it has something to report."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        return self._process.stdout.fileno()

    def order(self, **order: Any) -> None:
        """Tell it what to do. A dead worker hears nothing and has reported trouble already."""
        if self._process.poll() is None and self._process.stdin is not None:
            self.report = None
            with contextlib.suppress(BrokenPipeError):  # it has just died: `hear` will say so
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()

    def hear(self) -> None:
        """Read what select has promised. The end of its output is the end of the process."""
        data = os.read(self.fileno(), 65_536)
        self._heard += data
        if b"\n" in self._heard:
            line, _, self._heard = self._heard.partition(b"\n")
            self.report = json.loads(line)
        elif not data:
            self.report = {"end": "trouble", "why": "the process ended"}

    def freeze(self) -> None:
        """SIGSTOP: it does not run until `thaw`, as in a long garbage collection or on an overloaded host."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill it and reap it, frozen or not. It has nothing that the play does not clean up."""
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(BrokenPipeError):  # an order was cut short
                pipe.close()


class Crew:
    """All workers. A context manager: afterwards no process is left."""

    def __init__(self, size: int, directory: str) -> None:
        self.workers: list[Worker] = []
        try:
            for number in range(1, size + 1):
                self.workers.append(Worker(number, directory))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()

    def number_of(self, owner: str) -> int | None:
        """Which worker a lock store means by `host:pid`."""
        pid = owner.rpartition(":")[2]
        return next((worker.number for worker in self.workers if str(worker.pid) == pid), None)


def wait(workers: Sequence[Worker], seconds: float, each_tick: Callable[[], None]) -> bool:
    """Until all have reported, at most `seconds`, calling `each_tick` a dozen times a second. False if time ran out."""
    until = time.monotonic() + seconds
    while waiting := [worker for worker in workers if worker.report is None]:
        if time.monotonic() > until:
            return False
        for worker in select.select(waiting, [], [], TICK)[0]:
            worker.hear()
        each_tick()
    return True
