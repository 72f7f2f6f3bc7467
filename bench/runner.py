"""Subjects as child processes that take turns. One runs at a time; each has its turn in a round, and rounds are compared."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from interlock.cli.bench.measure import percentile, quotient

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PATIENCE = 600.0  # seconds for one turn


class SubjectFailed(Exception):
    """A subject could not be started, or did not do what it was asked."""


def our_command(adapter: str, setup: dict[str, Any]) -> list[str]:
    """The command line of a subject of this repository."""
    return [sys.executable, "-m", "bench.child", f"bench.{adapter}", json.dumps(setup)]


class Child:
    """A running subject."""

    def __init__(self, command: list[str], source: Path = SOURCE) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        env = os.environ | {"PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
        )
        try:
            used = self._answer()["ready"].get("interlock")
            if used and not Path(used).is_relative_to(source):  # another one is installed, and this one has no __init__
                raise SubjectFailed(f"it runs {used}, not the source in {source}")
        except BaseException:
            self.close()
            raise

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its last words are read below
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer()
        return answer if "ns" in answer else answer["value"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        if not ready:
            self._process.kill()
            raise SubjectFailed(f"no answer in {PATIENCE:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise SubjectFailed(f"it ended (code {self._process.returncode}): {''.join(last)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SubjectFailed(answer["error"])
        return answer

    def close(self) -> None:
        """Have it end. One that does not in ten seconds is killed: it is ours."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


class Turn(NamedTuple):
    """A row of a table: a child, and what has to be done before and after its turn."""

    label: str
    child: Child
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    rounds: int = 1000  # takes part in the first so many only


class Row:
    """What was seen of one subject: microseconds, by round. NaN: it did not take part.

    Two more figures hardly depend on who else uses the machine: the ratio of tenth percentiles, which is that of cycles that
    nobody disturbed, and the processor time of the client.
    """

    def __init__(self) -> None:
        self.medians: list[float] = []
        self.all: list[float] = []
        self.lows: list[float] = []
        self.cpu: list[float] = []
        self.problem = ""

    def add(self, times: list[float], cpu: float) -> None:
        self.cpu.append(cpu / 1000)
        micros = [taken / 1000 for taken in times]
        self.medians.append(median(micros))
        self.lows.append(percentile(micros, 0.1))
        self.all += micros

    def skip(self) -> None:
        self.medians.append(math.nan)
        self.lows.append(math.nan)
        self.cpu.append(math.nan)

    def figures(self, floor: Row) -> dict[str, Any]:
        """For the table and for the file. Nothing but the problem, if it has one."""
        if self.problem or not self.all:
            return {"problem": self.problem or "it never ran"}
        return {
            "p50": round(median(one for one in self.medians if not math.isnan(one)), 3),
            "p99": round(percentile(self.all, 0.99), 3),
            "ratio": round(quotient(self.medians, floor.medians), 4),
            "low": round(quotient(self.lows, floor.lows), 4),
            "cpu": round(median(one for one in self.cpu if not math.isnan(one)), 3),
            "rounds": [None if math.isnan(one) else round(one, 3) for one in self.medians],
        }


def take_turns(turns: list[Turn], rounds: int, cycles: int, tell: Callable[[str], None]) -> dict[str, Row]:
    """All of them in turns, the first round for warming up. One that fails is out, and its row says why."""
    rows = {turn.label: Row() for turn in turns}
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}")
        for turn in turns:
            row = rows[turn.label]
            if row.problem or number > turn.rounds:
                row.skip()
                continue
            try:
                if turn.before:
                    turn.before()
                seen = turn.child.ask(cycles=cycles)
            except SubjectFailed as error:
                row.problem = str(error)
                continue
            finally:
                if turn.after:
                    turn.after()
            if number:
                row.add(seen["ns"], seen["cpu"])
    return rows
