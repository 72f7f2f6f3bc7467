from __future__ import annotations

import json

from interlock.testing.history import check, from_jsonl
from interlock.testing.sim.mutants import MUTANTS

from .cli_support import Run


def test_one_history_is_a_timeline(run: Run) -> None:
    done = run("sim", "--seed", "3", "--faults", "delay,crash")
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("seed 3: 3 nodes, ")
    assert last == "all promises were kept"
    assert "vote" in done.stdout
    assert "got client" in done.stdout


def test_many_are_summed_up(run: Run) -> None:
    done = run("sim", "--faults", "pause", "--nodes", "1", "--histories", "20")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("20 histories, ")
    assert done.stdout.endswith("all promises were kept\n")


def test_a_violation_is_exit_code_1_and_can_be_replayed(run: Run) -> None:
    done = run("sim", "--faults", "pause,delay", "--histories", "3", "--mutant", "plain-del")
    assert (done.returncode, done.stderr) == (1, "")
    (command, *_) = [line.partition("replay: interlock ")[2] for line in done.stdout.splitlines() if "replay: " in line]
    again = run(*command.split())
    assert again.returncode == 1
    assert "VIOLATED: overlap: " in again.stdout


def test_the_history_as_json(run: Run) -> None:
    done = run("sim", "--seed", "1", "--faults", "none", "--jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"ask", "got", "leave", "left"} <= {json.loads(line)["what"] for line in done.stdout.splitlines()}
    assert check(from_jsonl(done.stdout)) == []


def test_the_mutants_are_listed(run: Run) -> None:
    done = run("sim", "--mutant", "list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(MUTANTS)


def test_a_wrong_command_line(run: Run) -> None:
    for arguments in (["--faults", "rain"], ["--mutant", "rain"], ["--nodes", "0"], ["--histories", "0"], ["--seed", "x"]):
        done = run("sim", *arguments)
        assert (done.returncode, done.stdout) == (64, ""), arguments
        assert done.stderr.startswith("interlock: ")
        assert done.stderr.count("\n") == 1
