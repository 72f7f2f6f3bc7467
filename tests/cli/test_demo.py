"""The demo as people run it: to its end, in a pipe and in a terminal, and cut short."""

from __future__ import annotations

import fcntl
import inspect
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import textwrap
import time
from pathlib import Path

import pytest

from interlock.cli.demo import worker

from .support import COMMAND, environment

Run = tuple["subprocess.CompletedProcess[str]", list[Path]]  # the result, and what was left behind
ANSI = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run into a pipe. It bounds itself to 20 s; the rest of `timeout` is for the start on a busy machine."""
    temporary = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [*COMMAND, "demo"], env=environment(TMPDIR=str(temporary)), capture_output=True, text=True, timeout=30, check=False
    )
    return done, list(temporary.iterdir())


def test_it_tells_the_story(demo: Run) -> None:
    done, left = demo
    assert (done.returncode, done.stderr) == (0, "")
    verdict = done.stdout.partition("VERDICT")[2]
    without = re.search(r"without a lock: +60 umbrellas, (\d+) sold: OVERSOLD by (\d+)\.", verdict)
    assert without
    sold, too_many = map(int, without.groups())
    assert sold > 60
    assert sold - 60 == too_many
    for who in ("with the lock", "five nodes, two of them dead"):
        exact = re.search(who + r": +60 umbrellas, (\d+) sold(?:, (\d+) left)?: EXACT\.", verdict)
        assert exact
        assert sum(int(number or 0) for number in exact.groups()) == 60
    assert re.search(r"a late worker: +2 umbrellas, 1 sold, 1 left, late sale REFUSED\.", verdict)
    older, newer = map(int, re.findall(r"fence (\d+)", done.stdout.partition("ACT FOUR")[2].partition("VERDICT")[0]))
    assert older < newer
    assert left == []


def test_with_two_of_five_nodes_down_the_votes_are_shown_once_and_the_sale_goes_on(demo: Run) -> None:
    act = demo[0].stdout.partition("ACT THREE")[2].partition("ACT FOUR")[0]
    events = re.findall(r"after [\d.]+ s: (\d+) sold, and now node (\d) is (\w+)", act)
    assert [event[1:] for event in events] == [("3", "KILLED"), ("4", "FROZEN")]
    killed, frozen = (int(sold) for sold, *_ in events)
    assert killed <= frozen < 60
    nodes = re.findall(r"^    node (\d)  (\S+) +(.+)$", act, re.MULTILINE)
    assert [state for _, state, _ in nodes] == ["up", "up", "KILLED", "FROZEN", "up"]
    assert [vote for *_, vote in nodes][2:4] == ["no answer (refused)", "no answer (timeout)"]
    alive = [vote for _, state, vote in nodes if state == "up"]
    assert all(re.fullmatch(r"free|held by worker [1-6]|no answer \(timeout\)", vote) for vote in alive), alive
    after = re.search(r"EXACT\. .*?(\d+) of them were sold with 3 of 5 nodes alive\.", act)
    assert after
    assert 0 < int(after[1]) <= 60 - frozen


def test_plain_text_is_plain_and_short(demo: Run) -> None:
    done, _ = demo
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) < 70
    assert max(map(len, done.stdout.splitlines())) < 80


def test_the_code_that_is_shown_is_the_code_that_ran(
    demo: Run,
) -> None:
    shown = worker.shown_code()
    ran = inspect.getsource(worker.sell_with_lock)
    lines = [line for line in shown.splitlines() if line]
    assert len(lines) == 10
    assert [line for line in lines if f"    {line}\n" in ran] == lines[3:], "the function, below the three statements"
    assert [line.partition(" = ")[2].strip('"') for line in lines[:3]] == [worker.SEAL, worker.READ, worker.WRITE]
    assert textwrap.indent(shown, "  ") in demo[0].stdout


def test_in_a_terminal_it_redraws_and_ends(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    env = environment(TMPDIR=str(tmp_path), TERM="xterm-256color", PYTHONUTF8="1")
    process = subprocess.Popen([*COMMAND, "demo"], env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 65_536):
            seen += chunk
    except OSError:  # EIO: the last one has closed the terminal
        pass
    finally:
        os.close(master)
    assert process.wait(timeout=20) == 0
    text = seen.decode()
    assert text.count("\x1b[10F") > 20, "the picture of ten lines is drawn again and again over itself"
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h"), "the cursor is given back"
    assert "has the lock" in text
    assert "too many" in text
    assert "█" in text
    assert "lock runs out in" in text
    act = ANSI.sub("", text.partition("ACT THREE")[2].partition("ACT FOUR")[0])
    assert re.search(r"worker 1 .* node 1  up      held by worker [1-6]", act)
    assert re.search(r"worker 3 .* node 3  KILLED  no answer \(refused\)", act)
    assert re.search(r"worker 4 .* node 4  FROZEN  no answer \(timeout\)", act)
    assert max(len(ANSI.sub("", line)) for line in text.splitlines()) < 80, "a wrapped line would break the picture"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("when", "number", "code"),
    [("is FROZEN", signal.SIGINT, 130), ("is frozen", signal.SIGKILL, -9)],
    ids=["ctrl-c while a node is frozen", "killed while a worker and a node are frozen"],
)
def test_cut_short_it_leaves_nothing(tmp_path: Path, when: str, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo"], env=environment(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while when not in (line := process.stdout.readline()):
        assert line, "the demo ended before its time"
    family = descendants(process.pid)
    names = " ".join(family.values())
    assert names.count("interlock.cli.demo.worker") == 6
    assert names.count("valkey-server") >= 6, "seven, and one of them dead"
    assert list(tmp_path.iterdir()) != []
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (code, "")
    until = time.monotonic() + 10  # after SIGKILL the children have to find out by themselves
    while left := [family[pid] for pid in family if running(pid)] + [path.name for path in tmp_path.iterdir()]:
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.05)


def descendants(pid: int) -> dict[int, str]:
    """Process id → command line of the children of a process, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found: dict[int, str] = {}
    to_do = parents.get(pid, [])
    while to_do:
        child = to_do.pop()
        found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        to_do += parents.get(child, [])
    return found


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # dead; an init that buries late is not our business
