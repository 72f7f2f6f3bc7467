"""See the package. Exit code 1 if a mutant survives."""

from __future__ import annotations

import sys
import time

from interlock.testing.sim.mutants import MUTANTS, hunt


def main(seeds: int) -> int:
    survived = []
    for name, mutant in MUTANTS.items():
        began = time.process_time()
        outcome = hunt(name, seeds)
        took = time.process_time() - began
        if outcome is None:
            survived.append(name)
            print(f"{name:<22} SURVIVED {seeds} seeds ({took:.1f} s): {mutant.what}", flush=True)
        else:
            first = outcome.failures[0]
            print(f"{name:<22} seed {outcome.plan.seed:>4}  {first.rule:<8} {took:5.1f} s  {mutant.what}", flush=True)
            print(f"    interlock sim {outcome.plan.arguments} --mutant {name}", flush=True)
    print(f"{len(MUTANTS) - len(survived)} of {len(MUTANTS)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
