"""What `interlock sim` does and prints."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from ...testing.history import to_jsonl
from ...testing.sim import Plan, simulate
from ...testing.sim.mutants import MUTANTS, planted
from ...testing.sim.plan import faults_of
from .. import exits
from ..exits import complain
from .many import GROUPS, Batch, Tally, judge_all

SHOWN = 10  # histories that broke a promise, of each group, whose violation is told; of the others, only what replays them
PROGRESS = 10.0  # seconds between two lines that say how far it is


def run(arguments: argparse.Namespace) -> int:
    """`interlock sim`: the exit code."""
    if arguments.mutant == "list":
        for name, mutant in MUTANTS.items():
            print(f"{name:<22} {mutant.what}; shows with --nodes {mutant.nodes} --faults {','.join(mutant.faults)}")
        return exits.OK
    each = arguments.faults.strip() == "each"
    try:
        faults = [] if each else faults_of(arguments.faults)
    except ValueError as error:
        return complain(f"{error}. Try 'interlock sim --help'", exits.USAGE)
    if arguments.mutant is not None and arguments.mutant not in MUTANTS:
        return complain(f"no such mutant: {arguments.mutant}. Try 'interlock sim --mutant list'", exits.USAGE)
    if not 1 <= arguments.nodes <= 9 or arguments.histories < 1 or arguments.jobs < 1:
        return complain("--nodes is 1 to 9, --histories and --jobs 1 or more. Try 'interlock sim --help'", exits.USAGE)
    if arguments.jsonl and (arguments.histories > 1 or each or arguments.json):
        return complain("--jsonl shows one history: not with --histories, --json or each", exits.USAGE)
    if arguments.histories > 1 or each or arguments.json:
        return _many(arguments, GROUPS if each else [arguments.faults])
    with planted(arguments.mutant):
        return _one(Plan.of(arguments.seed, faults, arguments.nodes), arguments.jsonl)


def _one(plan: Plan, jsonl: bool) -> int:
    outcome = simulate(plan, timeline=not jsonl)
    if jsonl:
        print(to_jsonl(outcome.history), end="")
    else:
        _title(plan)
        print("\n".join(outcome.timeline))
        for violation in outcome.counted:
            print(f"not promised here: {violation.rule}: {violation.text}")
        for violation in outcome.failures:
            print(f"VIOLATED: {violation.rule}: {violation.text}")
        if not outcome.failures:
            print("all promises were kept")
    return exits.BROKEN if outcome.failures else exits.OK


def _title(plan: Plan) -> None:
    cluster = "one node" if plan.nodes == 1 else f"{plan.nodes} nodes"
    print(
        f"seed {plan.seed}: {cluster}, {plan.clients} clients, ttl {plan.ttl:g} s, request_timeout {plan.request_timeout:g} s; "
        f"faults until {plan.span:.3f} s: {', '.join(sorted(plan.faults)) or 'none'}"
    )


def _many(arguments: argparse.Namespace, groups: Sequence[str]) -> int:
    began = time.monotonic()
    asked = Batch("", arguments.nodes, arguments.seed, arguments.histories, arguments.mutant)
    tallies = judge_all(groups, asked, arguments.jobs, _progress(arguments.histories * len(groups)))
    took, whole = time.monotonic() - began, Tally("all")
    for tally in tallies:
        whole.add(tally)
    if arguments.json:
        about = {"nodes": arguments.nodes, "seed": arguments.seed, "mutant": arguments.mutant, "seconds": round(took, 3)}
        every = whole.as_json()
        del every["broken"]  # they are with their groups
        print(json.dumps(about | {"groups": [tally.as_json() for tally in tallies], "all": every}, indent=2))
        return exits.BROKEN if whole.broken else exits.OK
    if len(tallies) > 1:
        _table([*tallies, whole])
    else:
        print(f"{whole.seen['kept']} renewals, {whole.seen['told']} losses told, {whole.struck} faults struck")
    for rule, number in sorted(whole.counted.items()):
        print(f"not promised under these faults, counted: {rule} {number} times, in {whole.affected[rule]} histories")
    for tally in tallies:
        for place, broken in enumerate(tally.broken):
            if place < SHOWN:
                print(f"VIOLATED: {broken.rule}: {broken.text}")
            print(f"  replay: {broken.replay}")
    print(
        f"{whole.histories} histories, {whole.speed:.0f} per second of one core: {whole.seen['got']} leases, "
        f"{whole.counted['overlap']} overlaps that are allowed, {len(whole.broken)} histories broke a promise"
    )
    if not whole.broken:
        print("all promises were kept")
    return exits.BROKEN if whole.broken else exits.OK


def _table(tallies: Sequence[Tally]) -> None:
    print(f"{'faults':<10} {'histories':>9} {'leases':>9} {'struck':>8} {'allowed':>8} {'broken':>7} {'per second':>11}")
    for tally in tallies:
        numbers = f"{tally.histories:>9} {tally.seen['got']:>9} {tally.struck:>8} {sum(tally.counted.values()):>8}"
        print(f"{tally.faults:<10} {numbers} {len(tally.broken):>7} {tally.speed:>11.0f}")


def _progress(wanted: int) -> Callable[[Tally], None]:
    """How far it is, on stderr: what takes long should show that it goes on."""
    began = said = time.monotonic()

    def progress(whole: Tally) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= PROGRESS and sys.stderr is not None:
            said = now
            left = (now - began) * (wanted - whole.histories) / whole.histories
            done = f"{whole.histories} of {wanted} histories, {len(whole.broken)} broke a promise"
            complain(f"{done}, some {left:.0f} s to go", exits.OK)

    return progress
