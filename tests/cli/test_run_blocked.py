"""`interlock run` when somebody stands in its way: nobody reads stderr, the other process does not read the channel, a program
does not load, a terminal is stopped. The command never outlives the lock for that, and a healthy one does not suffer."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import interlock
from interlock.cli.run.channel import Channel
from interlock.testing import FaultProxy, Node

from .run_support import STUBBORN, Background, Screen, alive, changed, children, full_pipe, stamps, until, written
from .support import COMMAND

PYTHON = sys.executable
SHORT = ("--ttl", "1500ms", "--grace", "400ms")
LONG = ("--ttl", "10s", "--grace", "400ms")  # long enough to look whether the lock is still held after the grace
STARTED = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n{time.monotonic():.6f}\\n')"
SLOW_TO_LOAD = changed("from interlock.cli.run import tree; import time; tree.die_with = lambda parent: time.sleep(100)")


@pytest.fixture
def here(tmp_path: Path) -> str:
    """For what has nothing to do with the kind of store."""
    return f"sqlite:///{tmp_path}/locks.db"


def free(url: str, name: str = "job") -> bool:
    with interlock.Client(url) as client:
        return not client.inspect(name).held


def stubborn(tmp_path: Path) -> tuple[list[str], Path, Path]:
    files = tmp_path / "command.stamps", tmp_path / "grandchild.stamps"
    return [PYTHON, "-c", STUBBORN, *map(str, files)], *files


# --- nobody reads stderr --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_lost", ["term", "kill"])
def test_the_runner_is_killed_and_nobody_reads_what_the_supervisor_says(url: str, tmp_path: Path, on_lost: str) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    options = (*LONG, "--on-lost", on_lost, "--url", url)
    with full_pipe() as (_, stderr), Background("job", *options, "--", *command, stderr=stderr) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        supervisor = job.supervisor
        job.send(signal.SIGKILL)
        until(lambda: not alive(stamps(mine)[0]) and not alive(stamps(grandchild)[0]), "both to be killed")
        held = not free(url)
        until(lambda: not alive(supervisor), "the supervisor, which does not wait for a reader for ever")
    assert held, "they were dead before the lock was free"


def test_a_healthy_command_does_not_suffer_from_a_stderr_that_nobody_reads(url: str, tmp_path: Path) -> None:
    ready, over = tmp_path / "ready", tmp_path / "over"
    script = f"echo $$ > {ready}; while [ ! -e {over} ]; do sleep 0.05; done; exit 3"
    with full_pipe() as (_, stderr), Background("job", *SHORT, "--url", url, "--", "sh", "-c", script, stderr=stderr) as job:
        until(written(ready))
        for _ in range(3):
            job.send(signal.SIGTSTP)  # it has something to say about that
        time.sleep(2.5)  # longer than the ttl
        assert alive(int(ready.read_text())), "held, renewed, and left alone"
        assert not free(url)
        over.touch()
        assert job.end()[0] == 3
    assert free(url)


def test_a_loss_is_dealt_with_though_nobody_reads_stderr(valkey_node: Node, tmp_path: Path) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    options = (*SHORT, "--url", valkey_node.url)
    with full_pipe() as (_, stderr), Background("job", *options, "--", *command, stderr=stderr) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        job.send(signal.SIGTSTP)
        valkey_node.command("SET", "job", "stranger")
        assert job.end()[0] == 79
    assert not alive(stamps(mine)[0])
    assert not alive(stamps(grandchild)[0])


def test_who_finds_it_held_does_not_wait_for_a_reader(here: str) -> None:
    with (
        interlock.Client(here) as client,
        client.lock("job"),
        full_pipe() as (_, stderr),
        Background("job", "-n", "--url", here, "--", "true", stderr=stderr) as job,
    ):
        assert job.end()[0] == 75


def test_what_was_said_arrives_when_the_reader_comes_back(here: str, tmp_path: Path) -> None:
    """And stderr is left as it was: whoever shares it may rely on a write that waits."""
    ready, over = tmp_path / "ready", tmp_path / "over"
    script = f"echo > {ready}; while [ ! -e {over} ]; do sleep 0.05; done"
    with full_pipe() as (read, stderr), Background("job", "--url", here, "--", "sh", "-c", script, stderr=stderr) as job:
        until(written(ready))
        job.send(signal.SIGTSTP)
        assert os.get_blocking(stderr)
        heard = b""
        while b"\n" not in heard:
            heard += os.read(read, 65536)
        assert heard.strip(b".").startswith(b"interlock: Ctrl-Z would block everybody who waits for job")
        over.touch()
        assert job.end()[0] == 0


def test_the_runner_is_killed_on_a_terminal_that_ctrl_s_has_stopped(here: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 1; done"
    run = (*COMMAND, "run", "job", *SHORT, "--url", here, "--", "sh", "-c", script)
    with Screen("/bin/bash", "-c", '"$@" & read line; read line', "sh", *run) as screen:
        until(written(pid))
        runner = next(child for child in children(screen.pid) if children(child))
        (supervisor,) = children(runner)
        screen.type("\x13")
        until(screen.stopped, "the terminal to stop")
        os.kill(runner, signal.SIGKILL)
        until(lambda: not alive(int(pid.read_text())), "the command to be killed")
        until(lambda: not alive(supervisor), "the supervisor to end")


# --- the other one does not read ------------------------------------------------------------------------------------------


def test_a_message_to_somebody_who_does_not_read_takes_no_time() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    for number in range(5000):
        ours.send("deadline", number, replaces=True)
        ours.send("signal", number)
    ours.send("deadline", "last", replaces=True)
    heard = []
    while len(messages := theirs.receive()) or not heard:
        heard += messages
        ours.flush()
    signals = [rest[0] for verb, *rest in heard if verb == "signal"]
    assert [rest for verb, *rest in heard if verb == "deadline"][-1] == ["last"]
    assert signals == sorted(signals), "in order; the rest was dropped"
    assert len(heard) < 2000
    theirs.close()
    ours.send("signal", 1)
    assert ours.receive() == []
    assert ours.over
    ours.close()


def test_a_supervisor_that_stands_still_does_not_stop_the_runner(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path
) -> None:
    """The channel is full, and the lock is lost."""
    proxy = fault_proxy(valkey_node)
    command, mine, grandchild = stubborn(tmp_path)
    heir = tmp_path / "heir.stamps"
    options = ("--ttl", "3s", "--grace", "400ms")
    with Background("job", *options, "--url", proxy.url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        os.kill(job.supervisor, signal.SIGSTOP)
        for _ in range(500):
            job.send(signal.SIGWINCH)
            time.sleep(0.002)
        with Background("job", *options, "--url", valkey_node.url, "--", PYTHON, "-c", STARTED, str(heir)) as next_one:
            proxy.blackhole()
            assert next_one.end()[0] == 0
        assert job.end()[0] == 79
    assert max(stamps(mine)[1][-1], stamps(grandchild)[1][-1]) < stamps(heir)[1][0]


# --- a program that does not load -----------------------------------------------------------------------------------------


def test_a_program_that_does_not_load_is_ended_in_time(url: str) -> None:
    with Background("job", *LONG, "--url", url, "--", "true", program=SLOW_TO_LOAD) as job:
        until(lambda: children(job.supervisor), "the command to be")
        supervisor, (command,) = job.supervisor, children(job.supervisor)
        job.send(signal.SIGKILL)
        until(lambda: not alive(command), "it to be killed")
        held = not free(url)
        until(lambda: not alive(supervisor), "the supervisor to end")
    assert held, "it was dead before the lock was free"


def test_a_program_that_does_not_load_hears_signals(url: str) -> None:
    with Background("job", "--url", url, "--", "true", program=SLOW_TO_LOAD) as job:
        until(lambda: children(job.supervisor), "the command to be")
        time.sleep(0.3)
        job.send(signal.SIGINT)
        os.kill(children(job.supervisor)[0], signal.SIGKILL)
        assert job.end()[0] == 137
    assert free(url)
