"""How cost grows: with nodes, with waiters, with leases that are held, with names that were used once."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

from interlock.testing import Node

from .runner import Child, Turn, our_command, take_turns
from .stage import Stage
from .waiting import Race, floor_tasks, our_tasks
from .waiting_floors import GrantTasks

Curve = dict[str, list[list[float]]]  # label → points


class Growth(NamedTuple):
    """Up to where."""

    nodes: tuple[int, ...] = (1, 3, 5, 7, 9)
    waiters: tuple[int, ...] = (1, 10, 100, 300, 1000)
    leases: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 100_000)
    names: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
    rounds: int = 5
    holding: float = 12.0
    budget: float = 300.0  # seconds to take leases, or names: what cannot be reached in that is left out


QUICK = Growth(nodes=(1, 3), waiters=(1, 10), leases=(1, 100), names=(1, 1000), rounds=1, holding=0.5)


def nodes(stage: Stage, size: Growth) -> dict[str, Any]:
    """Microseconds for acquire and release, by the number of nodes; blocking."""
    curve: Curve = {"floor": [], "interlock": []}
    for many in size.nodes:
        stage.tell(f"growth: {many} nodes")
        setup = {"ports": stage.ports(many)}
        floor = Child(our_command("floors:Socket" if many == 1 else "floors:Poll", setup))
        ours = Child(our_command("ours:Blocking", setup))
        try:
            rows = take_turns([Turn("floor", floor), Turn("interlock", ours)], size.rounds, stage.size.cycles, lambda _: None)
        finally:
            floor.close()
            ours.close()
        for label, row in rows.items():
            curve[label].append([many, round(median(row.medians), 1)])
    return {"title": "Cost by nodes", "x": "nodes", "y": "us for acquire and release, p50", "curves": curve}


def waiters(stage: Stage, size: Growth) -> dict[str, Any]:
    """Microseconds from a release to the next grant, by the number of tasks that wait; and commands of the server for each."""
    curve: Curve = {"floor": [], "interlock": []}
    commands: Curve = {"floor": [], "interlock": []}
    (node,) = stage.nodes(1)
    for many in size.waiters:
        seen: dict[str, list[Any]] = {"floor": [], "interlock": []}
        rounds = size.rounds * (3 if many < 100 else 1)  # each has but few hand-overs
        for turn in range(rounds + 1):
            stage.tell(f"growth: {many} waiters, round {turn} of {rounds}")
            for label in seen:
                race = Race([node], many)
                work = floor_tasks(GrantTasks, race) if label == "floor" else our_tasks(race, node.url)
                result = asyncio.run(work)
                if turn:
                    seen[label].append(result)
        for label, results in seen.items():
            gaps = [gap for result in results for gap in result.gaps]
            curve[label].append([many, round(median(gaps) * 1e6, 1)])
            commands[label].append([many, round(median(result.commands for result in results), 2)])
    return {
        "title": "A hand-over by waiters",
        "x": "tasks that wait",
        "y": "us from a release to the next grant, p50",
        "curves": curve,
        "commands": commands,
    }


def leases(stage: Stage, size: Growth) -> dict[str, Any]:
    """Bytes of each lease that is held and renewed, and the share of a core that renewal takes."""
    curve: Curve = {"interlock": []}
    facts = []
    for many in size.leases:
        if facts and facts[-1]["taking"] * many > 2 * size.budget:
            break
        stage.tell(f"growth: {many:,} leases")
        child = Child(our_command("ours:Held", {"ports": stage.ports(1)}))
        try:
            seen = child.ask(call="hold", **{"with": {"leases": many, "seconds": size.holding, "within": size.budget}})
        finally:
            child.close()
        facts.append(seen)
        if many >= 100:  # below, a page of memory is more than all of them
            curve["interlock"].append([seen["leases"], round(seen["bytes"])])
    return {"title": "Memory of a lease", "x": "leases held", "y": "bytes of memory for each", "curves": curve, "facts": facts}


def names(stage: Stage, size: Growth) -> dict[str, Any]:
    """What a name that was used and given back costs the server until its fence counter expires, an hour later."""
    curve: Curve = {"server memory": []}
    took, done = 0.0, 0
    with ExitStack() as stack:
        node = stack.enter_context(Node())
        child = Child(our_command("ours:Names", {"ports": [node.port]}))
        stack.callback(child.close)
        child.ask(call="use", **{"with": {"first": 9_000_000, "many": 100}})  # scripts and buffers are there
        node.flush()
        before = _memory(node)
        for many in size.names:
            if took * many / max(done, 1) > size.budget:
                break
            began = time.perf_counter()
            while done < many:
                step = min(20_000, many - done)
                child.ask(call="use", **{"with": {"first": done, "many": step}})
                done += step
                stage.tell(f"growth: {done:,} names")
            took += time.perf_counter() - began
            if many >= 1000:  # below, the buffers of a connection are more than all of them
                curve["server memory"].append([many, round((_memory(node) - before) / many)])
        keys = int(node.command("DBSIZE"))
    return {
        "title": "What an idle name costs the server",
        "x": "names that were used once",
        "y": "bytes of the server for each",
        "curves": curve,
        "keys": keys,
        "per_second": round(done / max(took, 0.001)),
    }


def _memory(node: Node) -> int:
    time.sleep(0.2)  # it grows and shrinks its tables between commands
    return int(node.info("memory")["used_memory"])


PARTS = {"nodes": nodes, "waiters": waiters, "leases": leases, "names": names}
