"""`python -m bench`: ratios to floors that are measured in the same run; interleaved rounds, medians.

`python -m bench waiting` and `python -m bench keeper` have tables of their own: hundreds who wait, thousands of leases.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import growth, layers, report, stage, workloads
from .compare import worktree
from .install import PEERS, install
from .runner import SubjectFailed
from .stage import Size, Stage

SCHEMA = 1
PARTS = ("targets", "growth", "layers")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    option = options.add_argument
    option("--quick", action="store_true", help="everything, but little of it: under a minute, and rough")
    option("--only", metavar="KEYS", help="these workloads, as in A,B-aio,C,G,import")
    option("--part", choices=PARTS, action="append", help="default: targets; with --write, all of them")
    option("--peers", action="store_true", help="install other lock libraries below .bench/ and measure them as well")
    option("--compare", metavar="REV", help="measure the source of this revision in turns with the working tree")
    option("--free", action="store_true", help="let client and servers use all cores; default: one core for all")
    option("--rounds", type=int, metavar="N", help=f"default {Size().rounds}")
    option("--cycles", type=int, metavar="N", help=f"of each subject in a round; default {Size().cycles}")
    option("--locks", type=int, metavar="N", help=f"of each of the many tasks; default {Size().locks}")
    option("--json", type=Path, metavar="FILE", help="write the figures there")
    option("--write", type=Path, metavar="DOCS", help="write plots and the tables of performance.md there; also results.json")
    option(
        "--from",
        type=Path,
        metavar="FILE",
        dest="source",
        help="take the figures of a file, and measure only what --part or --only say",
    )
    return options


class Progress:
    """One line on stderr that says what is going on; without a terminal, one every ten seconds."""

    def __init__(self) -> None:
        self._terminal, self._last = sys.stderr.isatty(), time.monotonic()

    def tell(self, text: str) -> None:
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            print(f"… {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main() -> int:
    if sys.argv[1:2] == ["waiting"]:
        from .waiting import main as waiting

        waiting(sys.argv[2:])
        return 0
    if sys.argv[1:2] == ["keeper"]:
        from .keeper import main as keeper

        return keeper(sys.argv[2:])
    options = parser().parse_args()
    if options.source is None:
        facts = measured(options)
    else:
        facts = json.loads(options.source.read_text())
        if options.part or options.only:
            facts = merged(facts, measured(options))
    if facts["results"]:
        print(f"\n{report.summary(facts)}")
    for section in ("layers", "growth"):  # as in the documents: they are read there, too
        if text := report.sections(facts).get(section):
            print(f"\n{text}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    if options.write:
        report.write(options.write, facts)
        (options.write / "plots" / "results.json").write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What is new, and of what is old the rest. Only for figures of the same code: there is one machine and one revision."""
    results = {result["key"]: result for result in old["results"]} | {result["key"]: result for result in new["results"]}
    return new | {
        "results": list(results.values()),
        "peers": new["peers"] or old["peers"],
        "growth": old["growth"] | new["growth"],
        "layers": old["layers"] | new["layers"],
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for."""
    size = stage.QUICK if options.quick else Size()
    rounds, cycles, locks = options.rounds or size.rounds, options.cycles or size.cycles, options.locks or size.locks
    size = size._replace(rounds=rounds, cycles=cycles, locks=locks, bulk_rounds=min(size.bulk_rounds, rounds))
    parts = options.part or (PARTS if options.write else PARTS[:1])
    progress = Progress()
    with ExitStack() as stack:
        set_ = Stage(size, stack, progress.tell, pinned=not options.free)
        if options.compare:
            set_.sources[f"at {options.compare}"] = stack.enter_context(worktree(options.compare))
        if options.peers:
            for peer in PEERS:
                progress.tell(f"installing {peer.name}")
                set_.peers.append(install(peer))
        facts: dict[str, Any] = {
            "schema": SCHEMA,
            "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": set_.machine(),
            "size": size._asdict(),
            "against": options.compare,
            "peers": [{"name": one.peer.name, "version": one.version, "problem": one.problem} for one in set_.peers],
            "results": [],
            "growth": {},
            "layers": {},
        }
        set_.peers = [peer for peer in set_.peers if not peer.problem]
        progress.clear()
        print(report.machine(facts), flush=True)
        if "targets" in parts:
            targets(set_, options.only, facts["results"], progress)
        if "layers" in parts:
            facts["layers"] = layers.profile(set_, size.looking)
        for name, part in growth.PARTS.items() if "growth" in parts else ():
            try:
                facts["growth"][name] = part(set_, growth.QUICK if options.quick else growth.Growth())
            except SubjectFailed as error:  # the rest is worth having
                print(f"growth by {name} could not be measured: {error}", file=sys.stderr)
        facts["machine"]["load"].append(round(os.getloadavg()[0], 2))
        progress.clear()
    return facts


def targets(set_: Stage, only: str | None, results: list[dict[str, Any]], progress: Progress) -> None:
    """Every workload, each printed as soon as it is done."""
    works: dict[str, Any] = {work.key: lambda work=work: [workloads.measure(work, set_)] for work in workloads.WORKLOADS}
    works["C"] = lambda: [workloads.hung(set_, "blocking")]
    works["C-aio"] = lambda: [workloads.hung(set_, "asyncio")]
    works["G"] = lambda: workloads.held(set_)
    works["import"] = lambda: [workloads.start(set_)]
    wanted = only.split(",") if only else list(works)
    if unknown := set(wanted) - works.keys():
        raise SystemExit(f"bench: no workload {', '.join(sorted(unknown))}; there are {', '.join(works)}")
    for key in wanted:
        for result in works[key]():
            results.append(result)
            progress.clear()
            print(f"\n{report.as_text(result)}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SubjectFailed as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
