"""One run: five nodes, four client processes, the register, the faults; then calm, and a look at what is left."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from interlock.testing import FaultProxy, Node, start_nodes, stop_nodes

from . import clock, faults
from .faults import AT_ONCE, FAULTS, GAP, NAMES, Scene, Steps
from .journal import PARENT, Journal, now
from .worker import Order

ROOT = Path(__file__).resolve().parents[2]
COLOURS = ["blocking", "async", "blocking", "async"]
START_WITHIN, END_WITHIN = 60.0, 90.0


class Plan(NamedTuple):
    """What a run is to do. It ends when it has so many faults of each kind and so many grants, or at the limit."""

    kinds: tuple[str, ...]
    seconds: float
    faults: int | None = None  # None: until the limit
    grants: int = 0
    ttl: float = 0.3
    seed: str = "1"
    mutant: str = ""
    counters: bool = False
    nodes: int = 5  # one: not a quorum


class Run:
    """Drives one plan and writes its history."""

    def __init__(self, plan: Plan, history: Path) -> None:
        self.plan, self.history = plan, history
        self.journal = Journal(history)
        self.done = dict.fromkeys(plan.kinds, 0)
        self.grants = 0
        self._read = 0  # of the history, in bytes
        self._look_at = 0.0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def go(self, directory: Path) -> None:
        """All of it. What is wrong with it is in the history, for the report to find."""
        plan = self.plan
        with ExitStack() as stack:
            scene = self._build(stack, directory)
            node, system = scene.nodes[0], os.uname()
            on = f"{system.sysname} {system.release}"
            versions = f"{len(scene.nodes)} nodes {node.kind} {node.version}, Python {platform.python_version()}, {on}"
            facts = {"on": versions, **plan._asdict(), "kind": "+".join(plan.kinds)}
            self.journal("controller", "run", note=json.dumps(facts))
            self._hire(stack, scene, directory)
            self._torment(scene)
            self._calm(scene, directory)
            self._look_for_leftovers(scene)
            self.journal("controller", "end")

    def _build(self, stack: ExitStack, directory: Path) -> Scene:
        plan = self.plan
        clocks: list[clock.Clock] = []
        if "jump" in plan.kinds or "back" in plan.kinds:
            shim = clock.build(directory)
            clocks = [clock.Clock(shim, directory / f"clock{index}") for index in range(plan.nodes)]
            nodes = [Node(persist=True, env=each.environment) for each in clocks]
            stack.callback(stop_nodes, nodes)
            for node in nodes:
                node.start()
        else:
            nodes = start_nodes(plan.nodes, persist=True, config=faults.CONFIG.get(plan.kinds[0], ()))
            stack.callback(stop_nodes, nodes)
        if "partition" in plan.kinds:
            faults.network()
        proxies = [stack.enter_context(FaultProxy(node.port)) for node in nodes] if "drop" in plan.kinds else []
        scene = Scene(nodes, proxies, clocks, plan.ttl, plan.seed)
        scene.journal = self.journal
        return scene

    def _hire(self, stack: ExitStack, scene: Scene, directory: Path) -> None:
        plan, wire = self.plan, str(directory / "register")
        self._spawn(stack, "register", wire, str(self.history))
        for number, colour in enumerate(COLOURS):
            order = Order(
                name=f"client{number}",
                colour=colour,
                nodes=[each.url for each in scene.proxies or scene.nodes],
                names=NAMES,
                ttl=plan.ttl,
                actors=1,
                register=wire,
                history=str(self.history),
                calm=str(directory / "calm"),
                patience=30.0,
                seed=plan.seed,
                mutant=plan.mutant,
                counters=plan.counters,
            )
            self._workers[order.name] = self._spawn(stack, "worker", json.dumps(order._asdict()))
        scene.workers = {name: process.pid for name, process in self._workers.items()}

    def _spawn(self, stack: ExitStack, module: str, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tests.chaos.{module}", *args]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, PARENT: str(os.getpid())})
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    # --- the faults -----------------------------------------------------------------------------------------------------

    def _torment(self, scene: Scene) -> None:
        limit = now() + START_WITHIN
        while self._count() < 1:  # everybody is up
            self._see_that_they_live()
            if now() > limit:
                raise TimeoutError(f"nobody got a lock within {START_WITHIN:g} s, before any fault")
            time.sleep(0.02)
        end = now() + self.plan.seconds
        going: list[tuple[float, str, Steps]] = []
        next_at = {kind: 0.0 for kind in self.plan.kinds if kind in FAULTS}
        share = len(next_at)  # in a mixture each kind strikes more seldom, or none could take a node away but the quickest
        try:
            while now() < end and not self._enough():
                going = self._step(going)
                for kind, at in scene.dice.sample(list(next_at.items()), len(next_at)):
                    if now() >= at and sum(other == kind for _, other, _ in going) < AT_ONCE[kind]:
                        going += self._begin(kind, scene)
                        next_at[kind] = now() + scene.dice.uniform(0, 2 * GAP[kind] * share)
                time.sleep(0.002)
            limit = now() + 30.0
            while going and now() < limit:  # what has begun comes to its end: a node is let back in by those who still work
                going = self._step(going)
                time.sleep(0.002)
        finally:
            for _, _, steps in going:
                steps.close()

    def _begin(self, kind: str, scene: Scene) -> list[tuple[float, str, Steps]]:
        steps = FAULTS[kind](scene)
        try:
            return [(now() + next(steps), kind, steps)]
        except StopIteration:
            return []  # not now

    def _step(self, going: list[tuple[float, str, Steps]]) -> list[tuple[float, str, Steps]]:
        left = []
        for at, kind, steps in going:
            if at <= now():
                try:
                    at = now() + next(steps)
                except StopIteration:
                    continue
            left.append((at, kind, steps))
        return left

    def _enough(self) -> bool:
        if now() < self._look_at:
            return False
        self._look_at = now() + 0.1
        self._see_that_they_live()
        wanted, grants = self.plan.faults, self._count()
        done = [number for kind, number in self.done.items() if kind in FAULTS]
        return wanted is not None and grants >= self.plan.grants and all(number >= wanted for number in done)

    def _see_that_they_live(self) -> None:
        for name, process in self._workers.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode} in the middle of it")

    def _count(self) -> int:
        """Read on in the history: how many faults there were, and how many grants."""
        with self.history.open("rb") as file:
            file.seek(self._read)
            text = file.read().rpartition(b"\n")[0]
        self._read += len(text)
        self.grants += text.count(b'"what": "got"')
        for line in text.splitlines():
            if b'"what": "fault"' in line:
                event = json.loads(line)
                self.done[event["name"]] += event["value"]
        return self.grants

    # --- and after ------------------------------------------------------------------------------------------------------

    def _calm(self, scene: Scene, directory: Path) -> None:
        for proxy in scene.proxies:
            proxy.heal()
        if "jump" in self.plan.kinds:  # not otherwise: that is a step forward
            for index in range(len(scene.clocks)):
                faults.set_clock(scene, "jump", index, 0.0)
        if scene.proxies:
            faults.count_drops(scene)
        (directory / "calm").touch()
        self.journal("controller", "calm")
        for name, process in self._workers.items():
            try:
                code = process.wait(END_WITHIN)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                self.journal(name, "defect", note=f"{name} did not come to its end: {code}")
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(str(directory / "register"))
            wire.sendall(b'{"do": "totals"}\n')
            with wire.makefile("rb") as answers:
                values, written = json.loads(answers.readline())
        if values != written:
            self.journal("register", "defect", note=f"the counters are {values} after {written} accepted writes")

    def _look_for_leftovers(self, scene: Scene) -> None:
        """Locks that were not given back (their answers were lost) end with their ttl; nothing else stays but the roll."""
        limit = now() + 2 * self.plan.ttl + 1.0 + (2 * faults.JUMP if scene.clocks else 0.0)
        for index, node in enumerate(scene.nodes):
            while left := left_on(node):
                if now() > limit:
                    for key, why in left:
                        self.journal(f"node {index}", "holds", name=key, lease="somebody", note=why)
                    break
                time.sleep(0.05)


def left_on(node: Node) -> list[tuple[str, str]]:
    """What a node should have rid itself of: locks, and whatever does not expire."""
    found = []
    for key in node.command("KEYS", "*"):
        left = node.command("PTTL", key)
        if key.decode() in NAMES and left != -2:
            found.append((key.decode(), "a lock"))
        elif left == -1 and key != b"interlock:roll":
            found.append((key.decode(), "does not expire"))
    return found
