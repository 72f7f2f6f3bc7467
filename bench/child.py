"""One subject in a process of its own, so that subjects of other environments, languages and revisions can take turns with it.

    python -m bench.child MODULE:CLASS '{"ports": [6379]}'

It reads requests and writes answers as lines of JSON (`peer.mjs` speaks the same):

    (at first)                                 {"ready": {facts}}
    {"cycles": 200}                            {"ns": [how long each took], "cpu": processor time of one}
    {"call": "method", "with": {arguments}}    {"value": what it gave back}
    (end of file: close, and leave)            {"error": text} to anything that goes wrong

An adapter is a class: the setup comes as keyword arguments, `cycle()` acquires and releases once (or `each` times: then a
time is divided by that), `close()` ends it. With `async def cycle` all its methods are coroutines, and `start()` comes first;
`loop_factory()`, if it has one, makes the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import resource
import sys
import time
from importlib import import_module
from typing import Any, TextIO


class Host:
    """Runs an adapter of either colour."""

    def __init__(self, adapter: type[Any], setup: dict[str, Any]) -> None:
        self.awaited = inspect.iscoroutinefunction(adapter.cycle)
        self.runner = asyncio.Runner(loop_factory=getattr(adapter, "loop_factory", None)) if self.awaited else None
        self.subject = adapter(**setup)
        self.each = getattr(self.subject, "each", 1)
        if self.runner is not None:
            self.runner.run(self.subject.start())

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "cycles" in request:
            cpu = time.process_time_ns()
            times = self.runner.run(self._awaited(request["cycles"])) if self.runner else self._called(request["cycles"])
            cpu = time.process_time_ns() - cpu
            return {"ns": [taken / self.each for taken in times], "cpu": cpu / self.each / len(times)}
        method = getattr(self.subject, request["call"])
        value = method(**request.get("with", {}))
        return {"value": self.runner.run(value) if self.runner else value}

    def _called(self, cycles: int) -> list[int]:
        cycle, clock, times = self.subject.cycle, time.perf_counter_ns, []
        for _ in range(cycles):
            began = clock()
            cycle()
            times.append(clock() - began)
        return times

    async def _awaited(self, cycles: int) -> list[int]:
        cycle, clock, times = self.subject.cycle, time.perf_counter_ns, []
        for _ in range(cycles):
            began = clock()
            await cycle()
            times.append(clock() - began)
        return times

    def close(self) -> None:
        closing = self.subject.close()
        if self.runner is not None:
            self.runner.run(closing)
            self.runner.close()


def serve(adapter: str, setup: dict[str, Any], answers: TextIO) -> None:
    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # some peers open a connection for each task
    try:
        module, _, name = adapter.partition(":")
        host = Host(getattr(import_module(module), name), setup)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    used = sys.modules.get("interlock")  # a peer's environment has none
    say({"ready": {"python": sys.version.split()[0], "interlock": getattr(used, "__file__", None)}})
    for line in sys.stdin:
        try:
            answer = host.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)
    host.close()


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    serve(sys.argv[1], json.loads(sys.argv[2]), out)
