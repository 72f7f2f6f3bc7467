"""Where the time goes: of one acquire and release, what the server and the kernel take, and what each layer of ours does.

A timer that counts only this process's time in Python (ITIMER_VIRTUAL) rings every few milliseconds, and whose code is then
running is counted. Nothing is slowed down by it, unlike with cProfile, which makes layers of many small functions look big.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import interlock

from . import ours
from .runner import Child, our_command
from .stage import Stage

PACKAGE = str(Path(interlock.__file__).parent) + os.sep
STANDARD = os.sep + "asyncio" + os.sep
LAYERS = ("api", "flow", "core", "runtime", "backends", "asyncio", "other")


def layer_of(frame: Any) -> str:
    """Whose code runs: the innermost frame that is ours or asyncio's. What we call outside counts as ours."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return path[len(PACKAGE) :].partition(os.sep)[0]
        if STANDARD in path:
            return "asyncio"
        frame = frame.f_back
    return "other"


class Sampled:
    """Samples while it is entered."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> Sampled:
        signal.signal(signal.SIGVTALRM, lambda _, frame: self.seen.update([layer_of(frame)]))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
        self.wall, self.times = time.perf_counter(), os.times()
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        after = os.times()
        self.wall = time.perf_counter() - self.wall
        self.user, self.system = after.user - self.times.user, after.system - self.times.system

    def facts(self, cycles: int) -> dict[str, Any]:
        """Microseconds of one cycle."""
        micros = 1e6 / cycles
        total = sum(self.seen.values()) or 1
        found = {layer: round(self.user * micros * self.seen[layer] / total, 1) for layer in LAYERS if self.seen[layer]}
        waiting = max(self.wall - self.user - self.system, 0.0)
        return {
            "whole": round(self.wall * micros, 1),
            "the server, and waiting for it": round(waiting * micros, 1),
            "the kernel, for us": round(self.system * micros, 1),
            "layers": found,
            "samples": total,
        }


class Blocking(ours.Blocking):
    """The subject, looked at while it works."""

    def look(self, seconds: float) -> dict[str, Any]:
        for _ in range(100):
            self.cycle()
        cycles, until = 0, time.perf_counter() + seconds
        with Sampled() as sampled:
            while time.perf_counter() < until:
                self.cycle()
                cycles += 1
        return sampled.facts(cycles)


class Asyncio(ours.Asyncio):
    """The same, awaited."""

    async def look(self, seconds: float) -> dict[str, Any]:
        for _ in range(100):
            await self.cycle()
        cycles, until = 0, time.perf_counter() + seconds
        with Sampled() as sampled:
            while time.perf_counter() < until:
                await self.cycle()
                cycles += 1
        return sampled.facts(cycles)


class Tasks(ours.Tasks):
    """Many tasks: what each of their locks takes."""

    async def look(self, seconds: float) -> dict[str, Any]:
        await self.cycle()
        cycles, until = 0, time.perf_counter() + seconds
        with Sampled() as sampled:
            while time.perf_counter() < until:
                await self.cycle()
                cycles += self.each
        return sampled.facts(cycles)


def profile(stage: Stage, seconds: float) -> dict[str, Any]:
    """What to look at, by title: one node and five, a file, many tasks."""
    many = {"tasks": stage.size.tasks, "locks": stage.size.locks}
    subjects: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, title in ((1, "one node"), (5, "five nodes")):
        nodes = {"ports": stage.ports(number)}
        subjects[f"{title}, blocking"] = "layers:Blocking", nodes
        subjects[f"{title}, asyncio"] = "layers:Asyncio", nodes
        subjects[f"{title}, many tasks"] = "layers:Tasks", nodes | many
    subjects["SQLite, blocking"] = "layers:Blocking", {"file": stage.file()}
    found = {}
    for title, (adapter, setup) in subjects.items():
        stage.tell(f"where the time goes: {title}")
        child = Child(our_command(adapter, setup))
        try:
            found[title] = child.ask(call="look", **{"with": {"seconds": seconds}})
        finally:
            child.close()
    return found
