"""Many histories: judged in one process or several, summed up by fault group."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...testing.sim import FAULTS, Plan, simulate
from ...testing.sim.mutants import planted
from ...testing.sim.plan import faults_of

BATCH = 50  # histories that a process judges at a time
GROUPS = (*FAULTS, "none", "mixed")  # what `--faults each` stands for


class Broken(NamedTuple):
    """A history that broke a promise, the first that it broke, and what repeats it."""

    seed: int
    rule: str
    text: str
    replay: str


class Batch(NamedTuple):
    """Some seeds of one group: what a process is given to do."""

    faults: str  # as on the command line
    nodes: int
    first: int
    histories: int
    mutant: str | None = None


class Tally:
    """What came of the histories of a group."""

    def __init__(self, faults: str) -> None:
        self.faults = faults
        self.histories = 0
        self.cpu = 0.0  # seconds that they took, in whichever process
        self.seen: Counter[str] = Counter()  # events, by what they are
        self.counted: Counter[str] = Counter()  # violations of what was not promised, by rule
        self.affected: Counter[str] = Counter()  # histories with such
        self.broken: list[Broken] = []

    def add(self, other: Tally) -> None:
        """What another process has found."""
        self.histories += other.histories
        self.cpu += other.cpu
        self.seen += other.seen
        self.counted += other.counted
        self.affected += other.affected
        self.broken = sorted(self.broken + other.broken)

    @property
    def struck(self) -> int:
        """How often a fault struck."""
        return self.seen["fault"] + self.seen["pause"]

    @property
    def speed(self) -> float:
        """Histories per second of one core."""
        return self.histories / max(self.cpu, 0.001)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "faults": self.faults,
            "histories": self.histories,
            "leases": self.seen["got"],
            "renewals": self.seen["kept"],
            "losses_told": self.seen["told"],
            "faults_struck": self.struck,
            "counted": {
                rule: {"violations": number, "histories": self.affected[rule]} for rule, number in sorted(self.counted.items())
            },
            "broken_histories": len(self.broken),
            "broken": [broken._asdict() for broken in self.broken],
            "cpu_seconds": round(self.cpu, 3),
            "histories_per_cpu_second": round(self.speed, 1),
        }


def judge(batch: Batch) -> Tally:
    """Run some histories and judge them."""
    tally, faults = Tally(batch.faults), faults_of(batch.faults)
    began = time.process_time()
    with planted(batch.mutant):
        for seed in range(batch.first, batch.first + batch.histories):
            outcome = simulate(Plan.of(seed, faults, batch.nodes))
            tally.seen.update([event.what for event in outcome.history])
            tally.counted.update([violation.rule for violation in outcome.counted])
            tally.affected.update({violation.rule for violation in outcome.counted})
            if outcome.failures:
                replay = f"interlock sim {outcome.plan.arguments}{f' --mutant {batch.mutant}' if batch.mutant else ''}"
                tally.broken.append(Broken(seed, outcome.failures[0].rule, outcome.failures[0].text, replay))
    tally.histories = batch.histories
    tally.cpu = time.process_time() - began
    return tally


def judge_all(groups: Sequence[str], asked: Batch, jobs: int, progress: Callable[[Tally], None]) -> list[Tally]:
    """Judge what was `asked` for each group. `progress` is called with all that has been judged, every now and then."""
    batches = [
        asked._replace(faults=faults, first=asked.first + done, histories=min(BATCH, asked.histories - done))
        for faults in groups
        for done in range(0, asked.histories, BATCH)
    ]
    tallies, whole = {faults: Tally(faults) for faults in groups}, Tally("all")
    for tally in map(judge, batches) if jobs == 1 else _beside_each_other(batches, jobs):
        tallies[tally.faults].add(tally)
        whole.add(tally)
        progress(whole)
    return list(tallies.values())


def _beside_each_other(batches: Sequence[Batch], jobs: int) -> Iterator[Tally]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # Not a fork: nothing of this process is wanted there. Ctrl-C is for this one, which ends the others.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        for future in as_completed([pool.submit(judge, batch) for batch in batches]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
