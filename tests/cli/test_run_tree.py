"""How `interlock run` ends processes: only its own, and all of its own. What the numbers of processes may be taken for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from interlock.cli.run import tree
from interlock.testing import Node

from .run_support import PATIENCE, Background, alive, changed, children, until, written
from .support import COMMAND, environment

PYTHON = sys.executable

# The command ends at SIGTERM at once; what it leaves in a session of its own does not.
LEAVES = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(sys.argv[1], "w") as file:
        file.write(f"{os.getppid()} {os.getpid()}\\n")
    time.sleep(100)
    os._exit(0)
time.sleep(100)
"""

# Each generation goes into a session of its own, forks and exits; it notes itself, so that it can be seen to go on.
FOR_EVER = """
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
int main(int count, char **arguments) {
    signal(SIGTERM, SIG_IGN);
    if (fork()) { pause(); return 0; }
    int file = open(arguments[1], O_WRONLY | O_CREAT, 0600);
    for (;;) {
        setsid();
        pid_t pid = getpid();
        pwrite(file, &pid, sizeof pid, 0);
        if (fork() > 0) _exit(0);
    }
}
"""


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


def last_pid() -> Path:
    return Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture
def innocent() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def with_number(number: int, started: list[subprocess.Popen[bytes]]) -> bool:
    """Start a process outside of the run that has this number, and its group as well."""
    for _ in range(50):
        last_pid().write_text(str(number - 1))
        process = subprocess.Popen(["sleep", "100"], start_new_session=True)
        started.append(process)
        if process.pid == number:
            return True
        process.kill()
        process.wait()
        started.remove(process)
    return False


def test_the_commands_number_is_nobody_elses_until_nothing_of_it_is_left(
    here: str, tmp_path: Path, innocent: list[subprocess.Popen[bytes]]
) -> None:
    """The command has ended at SIGTERM, its grace is not over, and something of it still runs."""
    if not os.access(last_pid(), os.W_OK):
        pytest.skip("needs the right to say which number the next process gets")
    pids = tmp_path / "pids"
    options = ("--ttl", "30s", "--grace", "2s", "--url", here)
    with Background("job", *options, "--", PYTHON, "-c", LEAVES, str(pids)) as job:
        until(written(pids))
        command, left = map(int, pids.read_text().split())
        job.send(signal.SIGKILL)
        until(lambda: not alive(command), "the command to end")
        assert alive(left), "the grace is not over"
        with_number(command, innocent)
        until(lambda: not alive(left), "the rest to be killed")
        assert all(process.poll() is None for process in innocent)
    assert not innocent, "the number was not free"


def test_a_group_that_is_not_ours_is_left_alone(innocent: list[subprocess.Popen[bytes]]) -> None:
    """By a runner whose supervisor has buried the command meanwhile."""
    innocent.append(subprocess.Popen(["sleep", "100"], start_new_session=True))
    group = innocent[0].pid
    script = "import sys, signal; from interlock.cli.run import tree; tree.tell(int(sys.argv[1]), signal.SIGKILL)"
    subprocess.run([PYTHON, "-c", script, str(group)], env=environment(), check=True, timeout=PATIENCE)
    assert innocent[0].poll() is None


@pytest.mark.parametrize("how", ["taken", "supervisor killed"])
def test_children_that_it_had_before_are_left_alone(valkey_node: Node, tmp_path: Path, how: str) -> None:
    """A script starts something in the background and becomes the runner, as the first process of a container does."""
    before, pid = tmp_path / "before", tmp_path / "pid"
    script = f'sleep 100 >/dev/null 2>&1 & echo $! > {before}; exec "$@"'
    options = ("--ttl", "1500ms", "--grace", "300ms", "--url", valkey_node.url)
    command = ("sh", "-c", f"setsid sleep 100 & echo $! > {pid}; exec sleep 100")
    with Background("job", *options, "--", *command, program=("/bin/sh", "-c", script, "sh", *COMMAND)) as job:
        until(written(pid))
        stranger = int(before.read_text())
        (supervisor,) = [child for child in children(job.pid) if child != stranger]
        if how == "taken":
            valkey_node.command("SET", "job", "stranger")
        else:
            os.kill(supervisor, signal.SIGKILL)
        code, _, err = job.end()
        spared = alive(stranger)
        with suppress(ProcessLookupError):
            os.kill(stranger, signal.SIGKILL)
    assert code == (79 if how == "taken" else 137), err
    assert "not given back" not in err
    assert spared
    assert not alive(int(pid.read_text()))


def test_a_process_whose_number_has_become_another_ones_is_left_alone() -> None:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    try:
        (seen,) = [seen for seen in tree.descendants() if seen.pid == child]
        tree._tell(seen._replace(born=seen.born + 1), signal.SIGKILL)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        tree._tell(seen, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_process_whose_main_thread_has_ended_is_killed_as_well(here: str, tmp_path: Path) -> None:
    """/proc calls it a zombie; it works on."""
    ready = tmp_path / "ready"
    script = (
        "import ctypes, os, signal, sys, threading, time\n"
        "if os.fork():\n    time.sleep(100)\n"
        "os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def work():\n"
        "    while 'Z' not in open(f'/proc/{os.getpid()}/stat').read().rpartition(')')[2].split()[0]: time.sleep(0.01)\n"
        "    open(sys.argv[1], 'w').write(f'{os.getpid()}\\n')\n"
        "    while True: open(sys.argv[1] + '.beat', 'w').write(str(time.monotonic())); time.sleep(0.02)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit of this thread alone
    )
    if os.uname().machine != "x86_64":
        pytest.skip("the number of a system call is that of x86-64")
    with Background("job", "--ttl", "30s", "--grace", "200ms", "--url", here, "--", PYTHON, "-c", script, str(ready)) as job:
        until(written(ready))
        supervisor = job.supervisor
        job.send(signal.SIGKILL)
        until(lambda: not alive(supervisor), "the supervisor to end")
        last = Path(f"{ready}.beat").read_text()
        time.sleep(0.3)
        with suppress(ProcessLookupError):
            os.kill(int(ready.read_text()), signal.SIGKILL)
        assert Path(f"{ready}.beat").read_text() == last


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_process_that_forks_and_exits_for_ever(here: str, tmp_path: Path) -> None:
    source, program, note = tmp_path / "forever.c", tmp_path / "forever", tmp_path / "note"
    source.write_text(FOR_EVER)
    subprocess.run(["cc", "-O1", "-w", "-o", str(program), str(source)], check=True)
    with Background("job", "--ttl", "30s", "--grace", "200ms", "--url", here, "--", str(program), str(note)) as job:
        until(lambda: note.exists() and note.stat().st_size, "it to begin")
        supervisor = job.supervisor
        job.send(signal.SIGKILL)
        until(lambda: not alive(supervisor), "the supervisor to end")
        seen = note.read_bytes()
        time.sleep(0.3)
        went_on = note.read_bytes() != seen
        while went_on and note.read_bytes() != seen:  # leave nothing
            seen = note.read_bytes()
            with suppress(ProcessLookupError):
                os.kill(int.from_bytes(seen, sys.byteorder), signal.SIGKILL)
        assert not went_on


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a pid namespace")
def test_in_a_pid_namespace_with_the_outer_proc_nobody_else_is_signalled(here: str, tmp_path: Path) -> None:
    """The numbers in /proc are others' there. The command's group is ended; what left it cannot be found, which is said."""
    pid = tmp_path / "pid"
    outside = subprocess.Popen(["sleep", "100"], start_new_session=True)
    script = f"echo $$ > {pid}; setsid sleep 100 & exec sleep 100"
    options = ("--ttl", "1500ms", "--grace", "200ms", "--max-hold", "2s", "--url", here)
    program = (
        "/usr/bin/env",
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        *changed("from interlock.cli.run import supervisor; supervisor.DYING = 1.0"),
    )
    try:
        with Background("job", *options, "--", "sh", "-c", script, program=program) as job:
            code, _, err = job.end()
        assert code == 79
        assert "some that cannot be seen from here" in err
        assert outside.poll() is None
        assert int(pid.read_text()) < 20, "it was in a namespace of its own"
    finally:
        outside.kill()
        outside.wait()
