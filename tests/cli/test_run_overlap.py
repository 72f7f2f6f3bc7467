"""Two runs of one name, and the first is cut off from the store, or something befalls one of its processes: the intervals in
which their commands live never overlap.

Each trial is a pair of real runs. The first one's command is deaf to SIGTERM, has a grandchild in a session of its own, and
both write a CLOCK_MONOTONIC stamp every few milliseconds; the second one's command writes one when it starts. The number here
is that of every commit; INTERLOCK_CHAOS multiplies it (docs/run.md has the figures of a long run).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import interlock
from interlock.testing import FaultProxy, Node

from .run_support import STUBBORN, Background, alive, full_pipe, stamps, until, written

SCALE = float(os.environ.get("INTERLOCK_CHAOS", "1"))
PAIRS = 4  # at a time
ROUNDS = max(3, round(3 * SCALE))

# Notes its process id and what the wall clock reads. A Python would start too slowly for that.
STARTED = 'date +"$$%n%s.%6N%n" > "$1"'


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
    files = files_of(tmp_path, turn)
    names = list(files)
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
                Background(name, *options, "--url", direct, "--", "sh", "-c", STARTED, "sh", str(files[name][2]))
            )
            for name in names
        ]
        fault(proxy)
        assert [run.end()[0] for run in second] == [0] * PAIRS
        assert [run.end()[0] for run in first] == [79] * PAIRS
    return gaps_between(files)


def files_of(tmp_path: Path, turn: int) -> dict[str, list[Path]]:
    """The locks of one turn, and for each the files of the command, of its grandchild and of the next command."""
    names = [f"job-{turn}-{number}" for number in range(PAIRS)]
    return {name: [tmp_path / f"{name}-{who}.stamps" for who in ("command", "grandchild", "heir")] for name in names}


def gaps_between(files: dict[str, list[Path]]) -> list[float]:
    """How long after the last sign of life of the first command the second one began."""
    gaps, wall = [], time.time() - time.monotonic()  # the heir's stamp is of the wall clock: a shell has no finer one
    for command, grandchild, heir in files.values():
        assert not alive(stamps(command)[0])
        assert not alive(stamps(grandchild)[0])
        gaps.append(stamps(heir)[1][0] - wall - max(stamps(command)[1][-1], stamps(grandchild)[1][-1]))
    return gaps


# --- something befalls the processes of the first run -----------------------------------------------------------------------


def kill_runner(job: Background) -> None:
    job.send(signal.SIGKILL)


def stop_runner(job: Background) -> None:
    job.send(signal.SIGSTOP)


def kill_supervisor(job: Background) -> None:
    os.kill(job.supervisor, signal.SIGKILL)


def stop_runner_kill_supervisor(job: Background) -> None:
    supervisor = job.supervisor
    stop_runner(job)
    os.kill(supervisor, signal.SIGKILL)


def stop_supervisor_kill_runner(job: Background) -> None:
    os.kill(job.supervisor, signal.SIGSTOP)
    kill_runner(job)


Blow = Callable[[Background], None]
BLOWS: dict[str, list[Blow]] = {
    "runner killed": [kill_runner],
    "supervisor killed": [kill_supervisor],
    "runner stopped": [stop_runner],
    "stderr full": [kill_runner, stop_runner, kill_supervisor],
    "stdout full": [kill_runner, stop_runner, kill_supervisor],
    "one stopped, one killed": [stop_runner_kill_supervisor, stop_supervisor_kill_runner],
}
TURNS = max(1, round(SCALE))  # of PAIRS trials each


@pytest.mark.timeout(60 + 30 * TURNS)
@pytest.mark.parametrize("blow", BLOWS)
def test_whatever_befalls_its_processes(
    valkey_node: Node, tmp_path: Path, blow: str, record_property: Callable[[str, object], None]
) -> None:
    gaps = []
    for turn in range(TURNS):
        gaps += struck(tmp_path, turn, valkey_node.url, blow)
    print(f"{blow}: {len(gaps)} trials; the shortest gap was {min(gaps):.3f} s, the longest {max(gaps):.3f} s")
    record_property("shortest_gap", min(gaps))
    assert min(gaps) > 0


def struck(tmp_path: Path, turn: int, url: str, blow: str) -> list[float]:
    options = ("--ttl", "1s", "--grace", "300ms", "--on-lost", "kill" if turn % 2 else "term", "--url", url)
    files = files_of(tmp_path, turn)
    with ExitStack() as stack:
        streams = {}
        if blow.endswith("full"):
            streams[blow.split()[0]] = stack.enter_context(full_pipe())[1]
        talker = ("sh", "-c", 'yes & exec "$@"', "sh") if blow == "stdout full" else ()  # stuck in its first word
        first = []
        for name, (mine, grandchild, _) in files.items():
            command = (*talker, sys.executable, "-c", STUBBORN, str(mine), str(grandchild))
            first.append(stack.enter_context(Background(name, *options, "--", *command, **streams)))
        for mine, grandchild, _ in files.values():
            until(lambda mine=mine, grandchild=grandchild: written(mine)() and written(grandchild)(), "the commands to write")
        second = [
            stack.enter_context(Background(name, *options, "--", "sh", "-c", STARTED, "sh", str(heir)))
            for name, (_, _, heir) in files.items()
        ]
        with interlock.Client(url) as client:
            for name in files:
                until(lambda name=name: client.inspect(name).waiters == 1, "the next ones to stand in line")
        for number, job in enumerate(first):
            BLOWS[blow][(turn + number) % len(BLOWS[blow])](job)
        assert [run.end()[0] for run in second] == [0] * PAIRS
        for job in first:
            with suppress(ProcessLookupError):
                job.send(signal.SIGCONT)
            job.end()
        return gaps_between(files)
