"""Two runs of one name, and the first is cut off from the store: the intervals in which their commands live never overlap.

Each trial is a pair of real runs. The first one's command is deaf to SIGTERM, has a grandchild in a session of its own, and
both write a CLOCK_MONOTONIC stamp every few milliseconds; the second one's command writes one when it starts. The number here
is that of every commit; INTERLOCK_CHAOS multiplies it (docs/run.md has the figures of a long run).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from interlock.testing import FaultProxy, Node

from .run_support import STUBBORN, Background, alive, stamps, until, written

SCALE = float(os.environ.get("INTERLOCK_CHAOS", "1"))
PAIRS = 4  # at a time
ROUNDS = max(3, round(3 * SCALE))

STARTED = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n{time.monotonic():.6f}\\n')"


def cut(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.cut()


FAULTS: list[Callable[[FaultProxy], None]] = [FaultProxy.blackhole, cut, FaultProxy.drop_replies]


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_the_intervals_never_overlap(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    gaps = []
    for turn in range(ROUNDS):
        gaps += trial(tmp_path, turn, valkey_node.url, fault_proxy(valkey_node), FAULTS[turn % len(FAULTS)])
    print(f"{len(gaps)} trials; the shortest gap was {min(gaps):.3f} s, the longest {max(gaps):.3f} s")
    record_property("shortest_gap", min(gaps))
    assert min(gaps) > 0


def trial(tmp_path: Path, turn: int, direct: str, proxy: FaultProxy, fault: Callable[[FaultProxy], None]) -> list[float]:
    """How long after the end of the first command the second one began, for each pair."""
    options = ("--ttl", "1s", "--grace", "300ms", "--on-lost", "kill" if turn % 2 else "term")
    names = [f"job-{turn}-{number}" for number in range(PAIRS)]
    files = {name: [tmp_path / f"{name}-{who}.stamps" for who in ("command", "grandchild", "heir")] for name in names}
    with ExitStack() as stack:
        first = [
            stack.enter_context(
                Background(name, *options, "--url", proxy.url, "--", sys.executable, "-c", STUBBORN, *map(str, files[name][:2]))
            )
            for name in names
        ]
        for name in names:
            until(lambda name=name: all(written(path)() for path in files[name][:2]), "the commands to write")
        second = [
            stack.enter_context(
                Background(name, *options, "--url", direct, "--", sys.executable, "-c", STARTED, str(files[name][2]))
            )
            for name in names
        ]
        fault(proxy)
        assert [run.end()[0] for run in second] == [0] * PAIRS
        assert [run.end()[0] for run in first] == [79] * PAIRS
    gaps = []
    for command, grandchild, heir in files.values():
        assert not alive(stamps(command)[0])
        assert not alive(stamps(grandchild)[0])
        gaps.append(stamps(heir)[1][0] - max(stamps(command)[1][-1], stamps(grandchild)[1][-1]))
    return gaps
