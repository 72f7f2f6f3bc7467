"""`python -m bench`: interleaved rounds, medians, ratios to the floor of the same run."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import interlock
from interlock.testing import Node, start_nodes, stop_nodes

from .subjects import Group, asyncio_node, blocking_node, five_blocking, sqlite_file

Result = dict[str, float]  # subject → median microseconds of one cycle


def blocking_rounds(group: Group, rounds: int, cycles: int) -> Result:
    times: dict[str, list[float]] = {name: [] for name in group.subjects}
    for turn in range(rounds + 1):
        for name, cycle in group.subjects.items():
            sample = []
            for _ in range(cycles):
                began = time.perf_counter_ns()
                cycle()
                sample.append(time.perf_counter_ns() - began)
            if turn:  # the first round is for warming up
                times[name].append(statistics.median(sample) / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


async def asyncio_rounds(group: Group, rounds: int, cycles: int) -> Result:
    times: dict[str, list[float]] = {name: [] for name in group.subjects}
    for turn in range(rounds + 1):
        for name, cycle in group.subjects.items():
            sample = []
            for _ in range(cycles):
                began = time.perf_counter_ns()
                await cycle()
                sample.append(time.perf_counter_ns() - began)
            if turn:
                times[name].append(statistics.median(sample) / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


async def with_a_node_less(rounds: int, cycles: int, colour: str) -> Result:
    """Five nodes, one of them frozen or killed, a new client each time with its first call included. The floor is healthy.

    In turns. Killed is last in a round, and the round after it begins with new nodes that have been used once: neither the
    birth of a cluster nor a node in quarantine is in any figure.
    """
    kinds = ("all healthy", "one frozen (SIGSTOP)", "one killed (SIGKILL)")
    medians: dict[str, list[float]] = {what: [] for what in kinds}
    firsts: dict[str, list[float]] = {what: [] for what in kinds}
    for _ in range(rounds):
        nodes = start_nodes(5)
        urls = [node.url for node in nodes]
        with interlock.Client(urls) as client, client.lock("less"):
            pass
        for what in kinds:
            if "frozen" in what:
                nodes[1].pause()
            elif "killed" in what:
                nodes[1].kill()
            sample = await _sample(urls, cycles, colour)
            if "frozen" in what:
                nodes[1].resume()
            medians[what].append(statistics.median(sample) / 1000)
            firsts[what].append(sample[0] / 1e6)
        stop_nodes(nodes)
    for what in kinds:
        print(f"  {what}: first call {statistics.median(firsts[what]):.1f} ms (median of {rounds})")
    return {what: statistics.median(medians[what]) for what in kinds}


async def _sample(urls: list[str], cycles: int, colour: str) -> list[int]:
    sample = []
    if colour == "asyncio":
        async with interlock.AsyncClient(urls) as client:
            for _ in range(cycles):
                began = time.perf_counter_ns()
                await (await client.lock("less").acquire()).release()
                sample.append(time.perf_counter_ns() - began)
        return sample
    with interlock.Client(urls) as blocking:
        for _ in range(cycles):
            began = time.perf_counter_ns()
            blocking.lock("less").acquire().release()
            sample.append(time.perf_counter_ns() - began)
    return sample


def imports(rounds: int) -> Result:
    """Microseconds that an interpreter runs; the floor is one that does nothing."""
    programs = {
        "bare interpreter (floor)": "pass",
        "import interlock": "import interlock",
        "… and a Client('memory://')": "import interlock; interlock.Client('memory://')",
        "import redis": "import redis",
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            began = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", program], check=True)
            times[name].append((time.perf_counter_ns() - began) / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def show(title: str, result: Result, added: bool = False) -> None:
    floor = next(iter(result.values()))
    print(f"\n{title}")
    for name, value in result.items():
        compared = f"+{(value - floor) / 1000:7.1f} ms" if added else f"{value / floor:7.2f} x"
        print(f"  {name:<34}{value:>12,.1f} us  {compared}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--cycles", type=int, default=500, help="cycles of each subject in a round (default 500)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    results: dict[str, Result] = {}

    def record(title: str, result: Result, added: bool = False) -> None:
        results[title] = result
        show(title, result, added)

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        node = stack.enter_context(Node(kind="valkey"))
        print(
            f"{platform.python_implementation()} {platform.python_version()}, {node.kind} {node.version}, ratios to the floor"
        )
        group = blocking_node(node.port, stack)
        record(group.title, blocking_rounds(group, options.rounds, options.cycles))
        asyncio.run(in_asyncio(node.port, options, record))
        nodes = start_nodes(5)
        stack.callback(stop_nodes, nodes)
        group = five_blocking(nodes, stack)
        record(group.title, blocking_rounds(group, options.rounds, options.cycles))
        for colour in ("blocking", "asyncio"):
            print()
            less = asyncio.run(with_a_node_less(options.rounds, options.cycles, colour))
            record(f"Five nodes, {colour}, one less", less)
        group = sqlite_file(directory, stack)
        record(group.title, blocking_rounds(group, options.rounds, options.cycles))
        record("Start of a process, over a bare interpreter", imports(options.rounds + 4), added=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=2))


async def in_asyncio(port: int, options: argparse.Namespace, record: Callable[..., Any]) -> None:
    closing: list[Callable[[], Awaitable[Any]]] = []
    group = await asyncio_node(port, closing)
    record(group.title, await asyncio_rounds(group, options.rounds, options.cycles))
    for close in closing:
        await close()


if __name__ == "__main__":
    main()
