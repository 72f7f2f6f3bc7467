"""The simulator: a seed decides everything, what ships keeps its promises, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import interlock
from interlock.cli import texts
from interlock.testing.sim import FAULTS, Plan, simulate
from interlock.testing.sim.holes import BY_HAND
from interlock.testing.sim.mutants import MUTANTS, hunt, planted
from interlock.testing.sim.plan import faults_of

SOURCE = str(Path(interlock.__file__).parents[1])


@pytest.mark.parametrize("nodes", [3, 1])
def test_the_same_seed_gives_the_same_history(nodes: int) -> None:
    for seed in range(5):
        plan = Plan.of(seed, ["mixed"], nodes)
        first, second = simulate(plan, timeline=True), simulate(plan, timeline=True)
        assert first == second
        assert first.timeline


def test_a_timeline_changes_nothing() -> None:
    for seed in range(5):
        plan = Plan.of(seed, ["mixed"])
        assert simulate(plan).history == simulate(plan, timeline=True).history


def test_another_process_gives_the_same_timeline_to_the_byte() -> None:
    def printed(hash_seed: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-m", "interlock", "sim", "--seed", "12", "--faults", "delay,cut,pause,cancel"],
            env=os.environ | {"PYTHONPATH": SOURCE, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout

    first = printed("1")
    assert first == printed("2")
    assert first.startswith(b"seed 12: ")
    assert first.count(b"\n") > 50


def test_another_seed_gives_another_history() -> None:
    assert len({tuple(simulate(Plan.of(seed, ["delay"])).history) for seed in range(10)}) == 10


@pytest.mark.parametrize("nodes", [3, 1])
@pytest.mark.parametrize("fault", [*FAULTS, "none", "mixed"])
def test_what_ships_keeps_its_promises(fault: str, nodes: int) -> None:
    got = struck = 0
    for seed in range(10_000, 10_015):
        plan = Plan.of(seed, faults_of(fault), nodes)
        outcome = simulate(plan)
        assert not outcome.failures, f"replay: interlock sim {plan.arguments}\n{outcome.failures}"
        got += sum(event.what == "got" for event in outcome.history)
        struck += sum(event.what in ("fault", "pause") for event in outcome.history)
    assert got > 30, "nothing was shown"
    quiet = "delay", "reorder", "loss", "duplicate", "cancel", "drift", "skew", "brief", "none"
    assert (struck > 5) == (fault not in quiet), "the fault did not strike"


@pytest.mark.parametrize("fault", ["jump", "amnesia"])
def test_what_is_not_promised_is_seen_to_happen(fault: str) -> None:
    """Else the promise elsewhere would prove nothing: the same workload does show overlaps where they are possible."""
    outcomes = [simulate(Plan.of(seed, [fault], 1)) for seed in range(60)]
    assert any(violation.rule == "overlap" for outcome in outcomes for violation in outcome.counted)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    outcome = hunt(name, 1000)
    assert outcome is not None, "it survived"
    plan = outcome.plan
    assert not simulate(plan).failures, "the bug is not what was found"
    with planted(name):
        assert simulate(plan).failures == outcome.failures


def test_a_planted_bug_is_taken_out_again() -> None:
    makes = {name: mutant.patches for name, mutant in MUTANTS.items()} | BY_HAND
    before = {name: [(where, what, getattr(where, what)) for where, what, _ in make()] for name, make in makes.items()}
    for name in makes:
        with pytest.raises(ZeroDivisionError), planted(name):
            assert any(getattr(where, what) != old for where, what, old in before[name])
            raise ZeroDivisionError
        assert all(getattr(where, what) == old for where, what, old in before[name])


def test_the_help_names_every_fault_and_no_other() -> None:
    table = texts.SIM.partition("faults (")[2].partition("what is checked")[0]
    named = {word for line in table.splitlines()[1:] for word in (line[2:13].strip(), line[43:52].strip()) if word}
    assert named == set(FAULTS)
