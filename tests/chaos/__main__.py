"""The command line: see the package."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .controller import Plan, Run
from .journal import PARENT
from .mutants import MUTANTS
from .promises import KINDS, kinds_of
from .report import LEGEND, Figures, judge_file, table

EVERY = "kill,empty,stop,drop,pause,jump,partition,mixed,mixed+jump"
OWN_NETWORK = "INTERLOCK_CHAOS_OWN_NETWORK"
MEMORY = "/dev/shm"
TTL = {"empty": 0.15}  # a node that comes back without its memory waits for longer than this


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Real nodes under fault, judged by their history."
    )
    parser.add_argument(
        "--kind", default=EVERY, help=f"one run for each, joined by commas; a mixture by +: {', '.join(KINDS)}, mixed"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all runs together, at most")
    parser.add_argument("--faults", type=int, help="end a run when it has so many of each of its kinds")
    parser.add_argument("--grants", type=int, default=0, help="and so many grants")
    parser.add_argument("--nodes", type=int, default=5, help="of a quorum; 1: one node alone, for jump, back and pause")
    parser.add_argument("--ttl", type=float, help="of the leases, in seconds")
    parser.add_argument("--seed", default="1", help="of the dice; processes that race decide the rest")
    parser.add_argument("--mutant", default="", choices=list(MUTANTS), help="a mistake to plant in the clients")
    parser.add_argument("--counters", action="store_true", help="fences get no help from clocks: their counters alone")
    parser.add_argument("--out", type=Path, default=Path("chaos"), help="the directory for the histories")
    parser.add_argument("--check", nargs="+", type=Path, metavar="FILE", help="judge these histories again, and run nothing")
    options = parser.parse_args()
    if options.check:
        return report([judge_file(path) for path in options.check], [])
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        runs = [(text, kinds_of(text)) for text in options.kind.split(",")]
    except ValueError as error:
        parser.error(str(error))
    files: list[Path] = []
    missing: list[str] = []
    for text, kinds in runs:
        seconds = options.minutes * 60 / len(runs)
        why = cannot_partition() if "partition" in kinds else ""
        if why:
            missing.append(f"partition in the run '{text}': {why}")
            kinds = tuple(kind for kind in kinds if kind != "partition")
            if not kinds:
                continue
        ttl = options.ttl or TTL.get(text, 0.3)
        plan = Plan(kinds, seconds, options.faults, options.grants, ttl, options.seed, options.mutant, options.counters)
        plan = plan._replace(nodes=options.nodes)
        files.append(options.out / f"{text}{'-' if options.mutant else ''}{options.mutant}.jsonl")
        files[-1].unlink(missing_ok=True)
        one_run(plan, files[-1])
        print(f"{text}: done", file=sys.stderr, flush=True)
    code = report([judge_file(path) for path in files], missing)
    print(f"\njudge them again: {sys.executable} -m tests.chaos --check {' '.join(map(str, files))}")
    return code


def one_run(plan: Plan, history: Path) -> None:
    """In this process, or in a network of its own if the faults need one."""
    if "partition" in plan.kinds and OWN_NETWORK not in os.environ:
        subprocess.run(
            [*namespace(), sys.executable, "-m", "tests.chaos.alone", json.dumps(plan._asdict()), str(history)],
            check=True,
            env={**os.environ, OWN_NETWORK: "1", PARENT: str(os.getpid())},
        )
        return
    if os.access(MEMORY, os.W_OK):  # a process that is killed loses nothing that it wrote, wherever; and no power is cut here
        tempfile.tempdir = MEMORY
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        Run(plan, history).go(Path(directory))


def namespace() -> list[str]:
    """What begins a command that shall run in a network namespace of its own, where only the loopback is, and up."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", "--net", *user, "sh", "-c", 'ip link set lo up && exec "$@"', "chaos"]


def cannot_partition() -> str:
    """Why this machine does not allow one-way partitions; "" if it does."""
    if absent := [tool for tool in ("unshare", "ip", "nft") if shutil.which(tool) is None]:
        return f"{', '.join(absent)} not found (Debian: util-linux, iproute2, nftables)"
    tried = subprocess.run(
        [*namespace(), "nft", "add table inet chaos"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"no network namespace: {tried.stderr.strip() or tried.returncode}"


def report(figures: list[Figures], missing: list[str]) -> int:
    """Print what was found. 0 if every promise was kept."""
    for line in sorted({run.on for run in figures}):
        print(f"\n{line}")
    print(f"\n{table(figures)}")
    print(f"\n{LEGEND}")
    for line in missing:
        print(f"\nNOT DONE: {line}")
    failures = [(run.kind, violation) for run in figures for violation in run.failures]
    for kind, violation in failures[:50]:
        print(f"\nFAILURE under {kind}: {violation.rule} at {violation.at:.6f}: {violation.text}")
    print(f"\n{len(failures)} failures" if failures else "\nevery promise was kept")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
