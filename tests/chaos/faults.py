"""The faults, each a generator: it does its damage, yields for how many seconds that stands, and repairs it.

Whoever drives one (`controller.Run`) closes or finishes it, so nothing stays broken. What is promised needs that at most two of
five nodes are away at a time, and that only one at a time has lost its memory: `Scene` keeps these accounts.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from interlock.testing import FaultProxy, Node

from .clock import Clock
from .journal import Journal, now

NAMES = ["stock:1", "stock:2"]  # of the locks
AWAY = 2  # of five
JUMP = 2.0
READMITTED_WITHIN = 20.0

Steps = Generator[float, None, None]


class Scene:
    """What there is to break, and what is broken just now."""

    def __init__(self, nodes: list[Node], proxies: list[FaultProxy], clocks: list[Clock], ttl: float, seed: str) -> None:
        self.nodes, self.proxies, self.clocks, self.ttl = nodes, proxies, clocks, ttl
        self.workers: dict[str, int] = {}  # by name, the process id
        self.dice = random.Random(seed)
        self.journal: Journal = None  # type: ignore[assignment]
        self.away: set[int] = set()
        self.forgetful = False
        self.stopped: set[str] = set()
        self.lost = 0  # messages and connections, that have been counted

    def note(self, kind: str, who: str, value: int = 1) -> None:
        """A fault has happened."""
        self.journal(who, "fault", name=kind, value=value)

    def take(self) -> int | None:
        """A node that may be taken away now."""
        free = [index for index in range(len(self.nodes)) if index not in self.away]
        if len(self.away) >= AWAY:
            return None
        index = self.dice.choice(free)
        self.away.add(index)
        return index


def kill(scene: Scene) -> Steps:
    """It dies and comes back with its data."""
    if (index := scene.take()) is None:
        return
    node = scene.nodes[index]
    try:
        killed = now()
        node.kill()
        scene.note("kill", f"node {index}")
        try:
            yield scene.dice.random() * 0.03
        finally:
            node.restart(empty=False)
        yield from _until_it_votes(scene, index, _good, killed)
    finally:
        scene.away.discard(index)


def empty(scene: Scene) -> Steps:
    """It dies and comes back without; over when somebody has let it vote again.

    Mostly two others stand still until then, so that leases stand on three nodes, of which this one is: the worst case.
    """
    if scene.forgetful:
        return
    scene.forgetful = True
    try:
        if not scene.away and scene.dice.random() < 0.7:
            yield from _two_stand_still(scene)
        if (index := scene.take()) is None:
            return
        try:
            yield from _forget(scene, index)
        finally:
            scene.away.discard(index)
    finally:
        scene.forgetful = False


def rdb(scene: Scene) -> Steps:
    """It dies and comes back with its last snapshot: what it voted for since then is gone. Over when it may vote again."""
    yield from _go_back(scene, "rdb", lambda node: node.command("SAVE"), lambda node, state: None)


def everysec(scene: Scene) -> Steps:
    """The power fails: of an append-only file that is synced every second, the end is gone."""

    def take(node: Node) -> Path:
        copy = Path(tempfile.mkdtemp(), "data")
        shutil.copytree(node._data, copy)
        return copy

    def put(node: Node, copy: Path) -> None:
        shutil.rmtree(node._data)
        shutil.move(copy, node._data)
        copy.parent.rmdir()

    yield from _go_back(scene, "everysec", take, put)


def _go_back(scene: Scene, kind: str, take: Callable[[Node], Any], put: Callable[[Node, Any], None]) -> Steps:
    if scene.forgetful or (index := scene.take()) is None:
        return
    scene.forgetful = True
    node = scene.nodes[index]
    try:
        state = take(node)
        if len(scene.away) == 1:
            yield from _two_stand_still(scene)
        yield scene.dice.random() * scene.ttl
        went_back = now()
        node.kill()
        put(node, state)
        scene.note(kind, f"node {index}")
        node.restart(empty=False)
        yield from _until_it_votes(scene, index, _good, went_back)
    finally:
        scene.away.discard(index)
        scene.forgetful = False


def _good(node: Node) -> bool:
    try:
        return node.command("HGET", "interlock:roll", "history") == node.info("replication")["master_replid"].encode()
    except OSError:
        return False


def _two_stand_still(scene: Scene) -> Steps:
    taken = {index for index in (scene.take(), scene.take()) if index is not None}
    for index in taken:
        scene.nodes[index].pause()
    try:
        yield scene.ttl * scene.dice.uniform(0.3, 1.0)
    finally:
        for index in taken:
            scene.nodes[index].resume()
        scene.away -= taken


def _forget(scene: Scene, index: int) -> Steps:
    node = scene.nodes[index]
    forgot = now()
    node.kill()
    scene.note("empty", f"node {index}")
    node.restart(empty=True)
    yield from _until_it_votes(scene, index, _enrolled, forgot)


def _until_it_votes(scene: Scene, index: int, votes: Callable[[Node], bool], forgot: float) -> Steps:
    node, limit = scene.nodes[index], now() + READMITTED_WITHIN
    known = _holders(node)
    while (holders := _holders(node)) is None or not votes(node):  # in this order: it did not vote yet when it was asked
        if holders is not None and known is not None and not holders <= known:
            scene.journal(f"node {index}", "defect", note=f"node {index} granted a lock before it may vote")
            return
        known = holders if known is None else known
        if now() > limit:
            scene.journal(f"node {index}", "defect", note=f"node {index} was not let back in")
            return
        yield 0.01
    if (waited := now() - forgot) < scene.ttl:  # rarely two holders come of it, but always of this
        scene.journal(f"node {index}", "defect", note=f"node {index} votes again after {waited:.3f} s: leases may be alive")


def _holders(node: Node) -> set[bytes] | None:
    """Who holds locks there; None if it does not say."""
    try:
        return {token for name in NAMES if (token := node.command("GET", name, timeout=1.0)) is not None}
    except OSError:
        return None


def _enrolled(node: Node) -> bool:
    try:
        return bool(node.command("EXISTS", "interlock:roll", timeout=1.0))
    except OSError:
        return False


def stop(scene: Scene) -> Steps:
    """It stands still and goes on."""
    if (index := scene.take()) is None:
        return
    node = scene.nodes[index]
    try:
        node.pause()
        scene.note("stop", f"node {index}")
        yield scene.ttl * scene.dice.choice((scene.dice.uniform(0.02, 0.3), scene.dice.uniform(0.3, 1.5)))
    finally:
        node.resume()
        scene.away.discard(index)


def drop(scene: Scene) -> Steps:
    """Replies vanish, or connections in their place; the node has done what it was asked."""
    proxy, dice = scene.proxies[scene.dice.randrange(len(scene.proxies))], scene.dice
    choices: list[Callable[[], None]] = [
        lambda: proxy.drop_replies(dice.randrange(1, 4), to=b"EVALSHA"),
        lambda: proxy.cut_on_reply(dice.randrange(1, 3), to=b"EVALSHA", reset=dice.random() < 0.5),
        lambda: proxy.cut_on_request(1, containing=b"EVALSHA", reset=dice.random() < 0.5),
        lambda: proxy.cut(reset=dice.random() < 0.5),
        proxy.heal,
    ]
    dice.choice(choices)()
    count_drops(scene)
    yield 0.02


def count_drops(scene: Scene) -> None:
    """The proxies know how many messages and connections they have really lost."""
    lost = sum(proxy.dropped + proxy.cuts for proxy in scene.proxies)
    if lost > scene.lost:
        scene.note("drop", "proxies", lost - scene.lost)
        scene.lost = lost
    for proxy in scene.proxies:
        proxy.commands.clear()


def pause(scene: Scene) -> Steps:
    """A client process stands still and goes on; one at least always runs."""
    free = [name for name in scene.workers if name not in scene.stopped]
    if len(free) < 2:
        return
    name = scene.dice.choice(free)
    pid = scene.workers[name]
    scene.stopped.add(name)
    try:
        os.kill(pid, signal.SIGSTOP)
        scene.note("pause", name)
        yield scene.ttl * scene.dice.choice((scene.dice.uniform(0.05, 0.5), scene.dice.uniform(0.5, 2.0)))
    finally:
        os.kill(pid, signal.SIGCONT)
        scene.stopped.discard(name)


def jump(scene: Scene) -> Steps:
    """The wall clock of a node is another; the next jump takes it elsewhere, or back."""
    dice, index = scene.dice, scene.dice.randrange(len(scene.clocks))
    set_clock(scene, "jump", index, dice.choice((0.0, dice.uniform(-JUMP, JUMP), dice.choice((-JUMP, JUMP)))))
    yield 0.0


def back(scene: Scene) -> Steps:
    """The wall clock of a node is set back, again and again; by less than passes meanwhile, or no lease would end."""
    dice, index = scene.dice, scene.dice.randrange(len(scene.clocks))
    step = scene.ttl * dice.choice((dice.uniform(0.02, 0.2), dice.uniform(0.2, 0.9)))
    set_clock(scene, "back", index, scene.clocks[index].off - step)
    yield 0.0


def set_clock(scene: Scene, kind: str, index: int, seconds: float) -> None:
    """Have the clock of a node be so many seconds off; by how much it went is written down."""
    step = seconds - scene.clocks[index].off
    scene.journal(f"node {index}", "fault", name=kind, value=1, note=f"{step:+.6f}")
    scene.clocks[index].set(seconds)


def partition(scene: Scene) -> Steps:
    """Packets to or from a node vanish, in a network of our own (see `network`)."""
    if (index := scene.take()) is None:
        return
    port, way = scene.nodes[index].port, scene.dice.choice(("deaf", "mute"))
    try:
        _nft(f"add element inet chaos {way} {{ {port} }}")
        scene.note("partition", f"node {index}")
        try:
            yield scene.ttl * scene.dice.choice((scene.dice.uniform(0.05, 0.5), scene.dice.uniform(0.5, 2.0)))
        finally:
            _nft(f"delete element inet chaos {way} {{ {port} }}")
    finally:
        scene.away.discard(index)


def network() -> None:
    """Rules for `partition`. To be called inside a network namespace that is ours alone."""
    _nft("""
        table inet chaos {
            set deaf { type inet_service; }
            set mute { type inet_service; }
            chain arriving {
                type filter hook input priority 0;
                tcp dport @deaf drop
                tcp sport @mute drop
            }
        }
    """)


def _nft(rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


FAULTS: dict[str, Callable[[Scene], Steps]] = {
    "kill": kill,
    "empty": empty,
    "rdb": rdb,
    "everysec": everysec,
    "stop": stop,
    "drop": drop,
    "pause": pause,
    "jump": jump,
    "back": back,
    "partition": partition,
}
AT_ONCE = {
    "kill": 2,
    "empty": 1,
    "rdb": 1,
    "everysec": 1,
    "stop": 2,
    "drop": 1,
    "pause": 3,
    "jump": 1,
    "back": 1,
    "partition": 2,
}
GAP = {
    "kill": 0.02,
    "empty": 0.01,
    "rdb": 0.01,
    "everysec": 0.01,
    "stop": 0.02,
    "drop": 0.0,
    "back": 0.12,
    "pause": 0.02,
    "jump": 0.03,
    "partition": 0.02,
}
"""How many of a kind go on at a time, and for how many seconds, on average, there is peace after one."""

CONFIG = {"rdb": ["appendonly no", 'save ""'], "everysec": ["appendfsync everysec"]}  # of the nodes; these two mix with nothing
