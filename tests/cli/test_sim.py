from __future__ import annotations

import json
from typing import Any

from interlock.testing.history import check, from_jsonl
from interlock.testing.sim import FAULTS
from interlock.testing.sim.mutants import MUTANTS

from .support import Run


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
    *_, counts, last = done.stdout.splitlines()
    assert counts.startswith("20 histories, ")
    assert counts.endswith(" 0 histories broke a promise")
    assert last == "all promises were kept"


def test_several_processes_find_what_one_does(run: Run) -> None:
    def found(*more: str) -> dict[str, Any]:
        done = run("sim", "--faults", "pause,delay", "--histories", "120", "--mutant", "plain-del", "--json", *more)
        assert done.returncode == 1
        assert all(line.startswith("interlock: ") for line in done.stderr.splitlines()), "progress, on a slow machine"
        summary: dict[str, Any] = json.loads(done.stdout)
        (group,) = summary["groups"]
        assert group["broken_histories"] == len(group["broken"]) == summary["all"]["broken_histories"] > 0
        assert group["histories"] == 120
        return {key: value for key, value in group.items() if "cpu" not in key}

    assert found() == found("--jobs", "2")


def test_each_fault_is_a_line_of_a_table(run: Run) -> None:
    done = run("sim", "--faults", "each", "--nodes", "1")
    assert (done.returncode, done.stderr) == (0, "")
    first, *rows = done.stdout.splitlines()
    assert first.split()[:3] == ["faults", "histories", "leases"]
    groups = *FAULTS, "none", "mixed"
    expected = [[name, "1"] for name in groups] + [["all", str(len(groups))]]
    assert [row.split()[:2] for row in rows[: len(expected)]] == expected


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


def test_a_warning_is_a_line_of_ours(run: Run) -> None:
    done = run("sim", "--nodes", "2", "--faults", "delay")
    assert done.returncode == 0
    assert done.stderr.startswith("interlock: a quorum of 2 nodes")
    assert done.stderr.count("\n") == 1


def test_a_wrong_command_line(run: Run) -> None:
    for arguments in (
        ["--faults", "rain"],
        ["--mutant", "rain"],
        ["--nodes", "0"],
        ["--histories", "0"],
        ["--seed", "x"],
        ["--jobs", "0"],
        ["--faults", "mixed,delay"],
        ["--jsonl", "--histories", "2"],
    ):
        done = run("sim", *arguments)
        assert (done.returncode, done.stdout) == (64, ""), arguments
        assert done.stderr.startswith("interlock: ")
        assert done.stderr.count("\n") == 1
