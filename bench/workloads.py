"""What is measured. A workload is a floor, interlock, the peers that can do it, and a target; most are a line in `WORKLOADS`.

To add a subject, write an adapter (see `child`) and name it here, or in `install.PEERS` if it needs an environment.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from interlock.cli.bench.measure import quotient

from .runner import SOURCE, Child, Row, SubjectFailed, Turn, our_command, take_turns
from .stage import Stage

Result = dict[str, Any]


class Target(NamedTuple):
    """What a figure of the row `interlock` has to be. `what`: ratio (at most), share of the floor's speed (at least), …"""

    what: str
    bound: float

    def judge(self, value: float) -> bool:
        return value >= self.bound if self.what == "share" else value <= self.bound


class Workload(NamedTuple):
    """Acquire and release that nobody contends for, by a floor and by subjects."""

    key: str
    title: str
    kind: str  # which adapters of peers can do it
    nodes: int  # 0: a file
    floor: tuple[str, str]  # label, adapter
    ours: str
    target: Target
    delay: float = 0.0  # seconds that a round trip of the network takes
    bulk: bool = False  # many tasks at once: a turn is one cycle


SOCKET = ("raw socket", "floors:Socket")
POLL = ("five sockets and poll", "floors:Poll")
SHARED = ("asyncio protocol, shared", "floors:Shared")
JOINED = ("asyncio protocol, writes joined", "floors:SharedTasks")
FILE = ("bare BEGIN IMMEDIATE", "floors:Sqlite")
BLOCKING, ASYNCIO, TASKS = "ours:Blocking", "ours:Asyncio", "ours:Tasks"
BY_HAND = "our requests, by hand"  # a subject for each floor: see `by_hand`
ON_UVLOOP = "interlock on uvloop"
MS = 0.001

WORKLOADS = [
    Workload("A", "One node, blocking", "one", 1, SOCKET, BLOCKING, Target("ratio", 1.5)),
    Workload("A-aio", "One node, asyncio", "one-aio", 1, SHARED, ASYNCIO, Target("ratio", 1.3)),
    Workload("B", "Five nodes, blocking", "five", 5, POLL, BLOCKING, Target("ratio", 1.3)),
    Workload("B-aio", "Five nodes, asyncio", "five-aio", 5, SHARED, ASYNCIO, Target("ratio", 1.35)),
    Workload("B-1ms", "Five nodes 1 ms away, blocking", "five", 5, POLL, BLOCKING, Target("ratio", 1.07), MS),
    Workload("B-1ms-aio", "Five nodes 1 ms away, asyncio", "five-aio", 5, SHARED, ASYNCIO, Target("ratio", 1.07), MS),
    Workload("F", "Many tasks, one node", "tasks-one", 1, JOINED, TASKS, Target("share", 0.60), bulk=True),
    Workload("F5", "Many tasks, five nodes", "tasks-five", 5, JOINED, TASKS, Target("share", 0.55), bulk=True),
    Workload("SQLite", "SQLite, blocking", "file", 0, FILE, BLOCKING, Target("ratio", 1.6)),
]


def measure(work: Workload, stage: Stage) -> Result:
    """The table of one workload."""
    size = stage.size
    bulk = {"tasks": size.tasks, "locks": size.locks} if work.bulk else {}
    setup: dict[str, Any] = {"ports": stage.ports(work.nodes, work.delay)} | bulk if work.nodes else {"file": stage.file()}
    turns: list[Turn] = []
    problems: dict[str, str] = {}

    def enter(label: str, command: list[str], source: Path = SOURCE, rounds: int = 1000) -> None:
        stage.tell(f"{work.title}: {label} starts")
        try:
            turns.append(Turn(label, Child(command, source), rounds=rounds))
        except SubjectFailed as error:
            problems[label] = str(error)

    try:
        enter(work.floor[0], our_command(work.floor[1], setup))
        enter(BY_HAND, our_command(work.floor[1].replace("floors", "by_hand"), setup if work.nodes else {"file": stage.file()}))
        for label, source in stage.sources.items():
            mine = setup if work.nodes else {"file": stage.file()}
            enter(label, our_command(work.ours, mine), source)
        if work.ours != BLOCKING:
            enter(ON_UVLOOP, our_command(work.ours.replace("ours", "on_uvloop"), setup))
        for peer in stage.peers:
            if work.kind in peer.peer.adapters:
                # A few hundred locks a second: fewer of them, and three rounds.
                theirs = setup | {"locks": 1} if bulk else setup
                enter(peer.peer.name, peer.command(work.kind, theirs), rounds=3 if bulk else 1000)
        cycles = 1 if work.bulk else max(size.cycles // (4 if work.delay else 1), 5)
        rows = take_turns(turns, size.bulk_rounds if work.bulk else size.rounds, cycles, stage.teller(work.title))
    finally:
        for turn in turns:
            turn.child.close()
    if work.floor[0] in problems or not rows[work.floor[0]].all:
        raise SubjectFailed(f"{work.title}: the floor failed: {problems or rows[work.floor[0]].problem}")
    table = _figures(rows) | {label: {"problem": text} for label, text in problems.items()}
    return _result(work.key, work.title, table, work.target, stage)


def hung(stage: Stage, colour: str) -> Result:
    """Five nodes, one of them stopped (SIGSTOP) during every second turn. The floor is the same client with all healthy."""
    ports, nodes = stage.ports(5), stage.nodes(5)
    title = f"Five nodes, one hung, {colour}"
    stage.tell(f"{title}: starts")
    turns: list[Turn] = []
    problems: dict[str, str] = {}
    try:
        for label, source in stage.sources.items():
            try:
                child = Child(our_command(BLOCKING if colour == "blocking" else ASYNCIO, {"ports": ports}), source)
            except SubjectFailed as error:
                problems[label] = str(error)
                continue
            turns += [
                Turn(f"{label}, all healthy", child),
                Turn(label, child, nodes[1].pause, lambda: _thaw(nodes[1])),
            ]
        rows = take_turns(turns, stage.size.rounds, stage.size.cycles, stage.teller(title))
    finally:
        for turn in turns[::2]:
            turn.child.close()
    table = {label: {"problem": text} for label, text in problems.items()}
    for label in [label for label in stage.sources if label not in problems]:  # each against its own health
        healthy = f"{label}, all healthy"
        table |= {healthy: rows[healthy].figures(rows[healthy]), label: rows[label].figures(rows[healthy])}
    return _result("C" if colour == "blocking" else "C-aio", title, table, Target("ratio", 1.2), stage)


def _thaw(node: Any) -> None:
    node.resume()
    node.command("PING", timeout=30)  # it has worked off what was sent to it meanwhile
    time.sleep(0.02)


def held(stage: Stage) -> list[Result]:
    """Many leases, held and renewed by one client: bytes and threads."""
    many, seconds = stage.size.leases, stage.size.holding
    title = f"{many:,} leases held and renewed"
    stage.tell(title)
    table: dict[str, Any] = {}
    for label, source in stage.sources.items():
        try:
            child = Child(our_command("ours:Held", {"ports": stage.ports(1)}), source)
            try:
                table[label] = child.ask(call="hold", **{"with": {"leases": many, "seconds": seconds}})
            finally:
                child.close()
        except SubjectFailed as error:
            table[label] = {"problem": str(error)}
    return [
        _result("G", f"{title}: memory of each", table, Target("bytes", 1000), stage),
        _result("G-threads", f"{title}: threads", table, Target("threads", 1), stage),
    ]


def start(stage: Stage) -> Result:
    """Milliseconds of processor time that an interpreter runs; the floor is one that does nothing."""
    bare = "bare interpreter"
    programs = [(bare, "pass", next(iter(stage.sources.values())))]
    programs += [(label, "import interlock", source) for label, source in stage.sources.items()]
    programs += [
        (f"{label}, with a Client", "import interlock; interlock.Client('memory://')", s) for label, s in stage.sources.items()
    ]
    rows = {label: Row() for label, _, _ in programs}
    for number in range(2 * stage.size.rounds + 1):
        stage.tell(f"start of a process, round {number} of {2 * stage.size.rounds}")
        for label, program, source in programs:
            began, used = time.perf_counter_ns(), _children()
            subprocess.run([sys.executable, "-c", program], check=True, env=stage.environment(source))
            if number:
                rows[label].add([time.perf_counter_ns() - began], (_children() - used) * 1e9)
    table = _figures(rows)
    for label, row in rows.items():
        pairs = zip(row.cpu, rows[bare].cpu, strict=True)
        table[label]["added"] = round(median(one - other for one, other in pairs) / 1000, 2)
    return _result("import", "import interlock, over bare Python", table, Target("added", 30), stage)


def _children() -> float:
    """Seconds of processor time that ended children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figures(rows: dict[str, Row]) -> dict[str, Any]:
    floor = next(iter(rows.values()))
    return {label: row.figures(floor) for label, row in rows.items()}


def _result(key: str, title: str, table: dict[str, Any], target: Target, stage: Stage) -> Result:
    """A table, and whether the row `interlock` is as it should be. With another revision: the quotient of the two."""
    mine, other = (*(table[label] for label in stage.sources), None)[:2]
    value = 1 / mine["ratio"] if target.what == "share" and "ratio" in mine else mine.get(target.what)
    result: Result = {"key": key, "title": title, "rows": table, "target": {"what": target.what, "bound": target.bound}}
    result["value"] = None if value is None else round(value, 4)
    result["met"] = value is not None and target.judge(value) and not mine.get("lost")  # what was lost costs nothing
    if other is not None:
        result["quotient"] = compared(mine, other, target.what)
        result["cpu_quotient"] = compared(mine, other, "cpu")
    return result


def compared(mine: dict[str, Any], other: dict[str, Any], what: str) -> float | None:
    """The working tree divided by the other revision: below 1 it has become faster, or smaller. None: it cannot be told."""
    if what in ("ratio", "share"):
        rounds = zip(mine.get("rounds", ()), other.get("rounds", ()), strict=False)
        pairs = [(one, two) for one, two in rounds if one and two]
        return round(quotient([one for one, _ in pairs], [two for _, two in pairs]), 4) if pairs else None
    return round(mine[what] / other[what], 4) if mine.get(what) and other.get(what) else None
