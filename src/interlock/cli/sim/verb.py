"""What `interlock sim` does and prints."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from ...testing.history import to_jsonl
from ...testing.sim import Outcome, Plan, simulate
from ...testing.sim.mutants import MUTANTS, planted
from ...testing.sim.plan import faults_of
from .. import exits
from ..exits import complain

SHOWN = 5  # failing seeds that are named; the rest is counted


def run(arguments: argparse.Namespace) -> int:
    """`interlock sim`: the exit code."""
    if arguments.mutant == "list":
        for name, mutant in MUTANTS.items():
            print(f"{name:<22} {mutant.what}; shows with --nodes {mutant.nodes} --faults {','.join(mutant.faults)}")
        return exits.OK
    try:
        faults = faults_of(arguments.faults)
    except ValueError as error:
        return complain(f"{error}. Try 'interlock sim --help'", exits.USAGE)
    if arguments.mutant is not None and arguments.mutant not in MUTANTS:
        return complain(f"no such mutant: {arguments.mutant}. Try 'interlock sim --mutant list'", exits.USAGE)
    if not 1 <= arguments.nodes <= 9 or arguments.histories < 1:
        return complain("--nodes is 1 to 9, --histories 1 or more. Try 'interlock sim --help'", exits.USAGE)
    plans = [Plan.of(arguments.seed + number, faults, arguments.nodes) for number in range(arguments.histories)]
    with planted(arguments.mutant):
        if arguments.histories == 1:
            return _one(plans[0], arguments.jsonl)
        return _many(plans, arguments.mutant)


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


def _many(plans: list[Plan], mutant: str | None) -> int:
    seen, counted, failed = Counter[str](), Counter[str](), list[Outcome]()
    began = time.process_time()
    for plan in plans:
        outcome = simulate(plan)
        seen.update(event.what for event in outcome.history)
        counted.update({violation.rule for violation in outcome.counted})
        if outcome.failures:
            failed.append(outcome)
    took = max(time.process_time() - began, 0.001)
    print(f"{len(plans)} histories, {len(plans) / took:.0f} per second of CPU: {seen['got']} leases, {seen['kept']} renewals,")
    print(f"{seen['told']} losses told, {seen['fault'] + seen['pause']} faults struck")
    for rule, number in sorted(counted.items()):
        print(f"not promised under these faults, counted: {rule} in {number} histories")
    for outcome in failed[:SHOWN]:
        violation = outcome.failures[0]
        print(f"VIOLATED: {violation.rule}: {violation.text}")
        print(f"  replay: interlock sim {outcome.plan.arguments}{f' --mutant {mutant}' if mutant else ''}")
    print(f"{len(failed)} histories broke a promise" if failed else "all promises were kept")
    return exits.BROKEN if failed else exits.OK
