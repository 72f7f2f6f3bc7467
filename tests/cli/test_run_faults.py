"""`interlock run` when things go wrong: signals, lost locks, killed runners and supervisors. Nothing may outlive the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import interlock
from interlock.testing import FaultProxy, Node

from .run_support import PATIENCE, POLITE, STUBBORN, Background, alive, children, stamps, until, written
from .support import COMMAND, Holder, environment

PYTHON = sys.executable
SHORT = ("--ttl", "1500ms", "--grace", "400ms")

# A shell that waits for a real child, both of which write their process ids: what `consul lock` used to leave behind.
FAMILY = "sleep 100 & echo $$ $! > {0}.new; mv {0}.new {0}; wait"


@pytest.fixture
def here(tmp_path: Path) -> str:
    """For what has nothing to do with the kind of store."""
    return f"sqlite:///{tmp_path}/locks.db"


def free(url: str, name: str = "job") -> bool:
    with interlock.Client(url) as client:
        return not client.inspect(name).held


def cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def stubborn(tmp_path: Path, name: str = "a") -> tuple[list[str], Path, Path]:
    """A command that only SIGKILL ends, and its two files."""
    files = tmp_path / f"{name}-command.stamps", tmp_path / f"{name}-grandchild.stamps"
    return [PYTHON, "-c", STUBBORN, *map(str, files)], *files


# --- signals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_reaches_the_command_and_its_children(here: str, tmp_path: Path, number: int) -> None:
    """consul#2022, consul#797, consul#1210."""
    pids = tmp_path / "pids"
    # A shell ignores SIGINT and SIGQUIT in what it starts with `&`, so the child is made by Python.
    script = (
        "import os, subprocess, sys; child = subprocess.Popen(['sleep', '100'])\n"
        "with open(sys.argv[1] + '.new', 'w') as file: file.write(f'{os.getpid()} {child.pid}\\n')\n"
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1]); child.wait()"
    )
    with Background("job", "--url", here, "--", PYTHON, "-c", script, str(pids)) as job:
        until(written(pids))
        shell, child = map(int, pids.read_text().split())
        job.send(number)
        assert job.end() == (128 + number, "", "")
    until(lambda: not alive(shell) and not alive(child), "both to end")
    assert free(here)


def test_a_shells_own_child_hears_it_too(here: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with Background("job", "--url", here, "--", "sh", "-c", FAMILY.format(pids)) as job:
        until(written(pids))
        job.send(signal.SIGTERM)
        assert job.end()[0] == 143
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), "both to end")


def test_the_command_may_answer_signals(here: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    heard = [signal.SIGUSR1, signal.SIGWINCH, signal.SIGUSR2, signal.SIGTERM]
    with Background("job", "--url", here, "--", PYTHON, "-c", POLITE, str(ready)) as job:
        until(written(ready))
        for number in heard:
            job.send(number)
            time.sleep(0.2)
        assert job.end() == (4, "".join(f"{number.name}\n" for number in heard), "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2])
def test_a_signal_ends_the_wait(here: str, number: int) -> None:
    with Holder(here, "job") as holder, Background("job", "--url", here, "--", "echo", "ran") as job:
        until(lambda: children(job.pid), "the supervisor")
        supervisor = job.supervisor
        time.sleep(0.3)
        job.send(number)
        assert job.end() == (128 + number, "", "")
        assert not alive(supervisor)
        with interlock.Client(here) as client:
            assert client.inspect("job").fence == holder.fence


# --- the lock is lost -----------------------------------------------------------------------------------------------------


def test_a_store_that_goes_away_the_command_is_told_in_time_and_may_tidy_up(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path
) -> None:
    proxy = fault_proxy(valkey_node)
    ready = tmp_path / "ready"
    options = ("--ttl", "3s", "--grace", "1500ms")
    with Background("job", *options, "--url", proxy.url, "--", PYTHON, "-c", POLITE, str(ready)) as job:
        until(written(ready))
        proxy.blackhole()
        code, out, err = job.end()
    assert (code, out) == (79, "SIGTERM\n")
    first, last = err.splitlines()
    assert first == "interlock: job is about to be lost (not renewed in time); the command was sent SIGTERM"
    assert last.startswith("interlock: lost job (")


@pytest.mark.parametrize("how", ["blackhole", "refuse"])
@pytest.mark.parametrize("on_lost", ["term", "kill"])
def test_a_command_that_ignores_sigterm_is_killed_with_all_it_started(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path, how: str, on_lost: str
) -> None:
    proxy = fault_proxy(valkey_node)
    command, mine, grandchild = stubborn(tmp_path)
    with Background("job", *SHORT, "--on-lost", on_lost, "--url", proxy.url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        if how == "blackhole":
            proxy.blackhole()
        else:
            proxy.refuse()
            proxy.cut()
        code, out, err = job.end()
    assert (code, out) == (79, "")
    assert ("SIGTERM" in err) == (on_lost == "term")
    assert "interlock: lost job (" in err
    assert not alive(stamps(mine)[0])
    assert not alive(stamps(grandchild)[0])


def test_a_lock_that_somebody_took_ends_the_command_at_once(valkey_node: Node, tmp_path: Path) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    with Background("job", "--ttl", "6s", "--grace", "2s", "--url", valkey_node.url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        valkey_node.command("SET", "job", "stranger")
        began = time.monotonic()
        code, _, err = job.end()
        assert time.monotonic() - began < 4.5, "found out at a renewal, not at the end of the ttl"
    assert (code, err) == (79, "interlock: lost job (taken); the command was stopped\n")
    assert not alive(stamps(grandchild)[0])
    assert valkey_node.command("GET", "job") == b"stranger"


def test_on_lost_warn_lets_it_run(valkey_node: Node, tmp_path: Path) -> None:
    ready, over = tmp_path / "ready", tmp_path / "over"
    script = f"echo > {ready}; while [ ! -e {over} ]; do sleep 0.05; done; echo finished"
    with Background(
        "job", "--ttl", "600ms", "--grace", "0", "--on-lost", "warn", "--url", valkey_node.url, "--", "sh", "-c", script
    ) as job:
        until(written(ready))
        valkey_node.command("SET", "job", "stranger")
        time.sleep(1.5)
        assert job.running()
        used = cpu_ticks(job.pid)
        time.sleep(1.0)
        assert cpu_ticks(job.pid) - used < 8, "there is nothing to do, of a hundred ticks"
        over.touch()
        assert job.end() == (79, "finished\n", "interlock: lost job (taken); the command goes on (--on-lost warn)\n")


def test_quiet_says_nothing_of_a_loss(valkey_node: Node, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with Background("job", *SHORT, "--quiet", "--url", valkey_node.url, "--", "sh", "-c", f"echo > {ready}; sleep 100") as job:
        until(written(ready))
        valkey_node.command("DEL", "job")
        assert job.end() == (79, "", "")


def test_a_loss_that_shows_only_at_the_end_is_a_loss(valkey_node: Node, tmp_path: Path) -> None:
    over = tmp_path / "over"
    ready = tmp_path / "ready"
    script = f"echo > {ready}; while [ ! -e {over} ]; do sleep 0.02; done"
    with Background("job", "--url", valkey_node.url, "--", "sh", "-c", script) as job:  # the next renewal is 10 s away
        until(written(ready))
        valkey_node.command("DEL", "job")
        over.touch()
        code, _, err = job.end()
    assert code == 79
    assert err.startswith("interlock: job was lost before the command ended")


def test_a_store_that_is_away_when_the_command_ends_is_no_loss(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path
) -> None:
    proxy = fault_proxy(valkey_node)
    over, ready = tmp_path / "over", tmp_path / "ready"
    script = f"echo > {ready}; while [ ! -e {over} ]; do sleep 0.02; done; exit 3"
    with Background("job", "--url", proxy.url, "--", "sh", "-c", script) as job:
        until(written(ready))
        proxy.refuse()
        proxy.cut()
        over.touch()
        code, _, err = job.end()
    assert code == 3
    assert err.startswith("interlock: the command has ended; job could not be given back and ends by itself")
    assert err.count("\n") == 1


def test_a_renewal_that_comes_back_in_time_is_no_loss(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path
) -> None:
    proxy = fault_proxy(valkey_node)
    over, ready = tmp_path / "over", tmp_path / "ready"
    script = f"echo > {ready}; while [ ! -e {over} ]; do sleep 0.02; done; exit 3"
    with Background("job", "--ttl", "6s", "--grace", "500ms", "--url", proxy.url, "--", "sh", "-c", script) as job:
        until(written(ready))
        proxy.blackhole()
        time.sleep(3)
        proxy.heal()
        time.sleep(4)
        over.touch()
        assert job.end() == (3, "", "")


def test_after_a_loss_the_lock_stays_shut_for_the_lock_delay(valkey_node: Node, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    options = ("--ttl", "600ms", "--grace", "100ms", "--url", valkey_node.url)
    with Background("job", *options, "--lock-delay", "1h", "--", "sh", "-c", f"echo $$ > {pid}; exec sleep 100") as job:
        until(written(pid))
        job.send(signal.SIGKILL)
        until(lambda: not alive(int(pid.read_text())), "the command to end")
        time.sleep(1.0)
        assert not free(valkey_node.url)


# --- standby --------------------------------------------------------------------------------------------------------------


def test_standby_waits_for_the_store_and_starts_again_after_a_loss(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path
) -> None:
    proxy = fault_proxy(valkey_node)
    proxy.refuse()
    starts = tmp_path / "starts"
    script = f"echo $INTERLOCK_FENCE >> {starts}; [ $(wc -l < {starts}) -lt 2 ] || exit 5; sleep 100"
    words = tmp_path / "stderr"
    with (
        words.open("wb") as file,
        Background("job", *SHORT, "--standby", "--url", proxy.url, "--", "sh", "-c", script, stderr=file.fileno()) as job,
    ):
        until(lambda: "Standing by" in words.read_text(), "it to stand by")
        proxy.heal()
        until(written(starts))
        proxy.blackhole()
        until(lambda: not any(children(job.supervisor)), "the command to be stopped")
        assert job.running()
        proxy.heal()
        code, out, _ = job.end()
    err = words.read_text()
    assert (code, out) == (5, "")
    first, second = map(int, starts.read_text().split())
    assert first < second
    assert "Standing by" in err.splitlines()[0]
    assert sum("interlock: lost job (" in line for line in err.splitlines()) == 1


def test_a_standby_that_was_told_to_end_does_not_start_again(valkey_node: Node, tmp_path: Path) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    with Background("job", *SHORT, "--standby", "--url", valkey_node.url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        job.send(signal.SIGTERM)  # which it ignores
        time.sleep(0.2)
        valkey_node.command("DEL", "job")
        assert job.end()[0] == 79


# --- the runner or the supervisor is killed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("on_lost", ["term", "kill"])
def test_the_runner_is_killed(url: str, tmp_path: Path, on_lost: str) -> None:
    """Everything below it is dead before the next one begins."""
    command, mine, grandchild = stubborn(tmp_path)
    heir_command, heir, _ = stubborn(tmp_path, "heir")
    options = ("--ttl", "2s", "--grace", "500ms", "--on-lost", on_lost, "--url", url)
    with Background("job", *options, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        with Background("job", *SHORT, "--url", url, "--", *heir_command) as next_one:
            job.send(signal.SIGKILL)
            until(written(heir), "the next one to begin")
            began = stamps(heir)[1][0]
            next_one.send(signal.SIGKILL)
        _, _, err = job.end()
    fate = "is being stopped" if on_lost == "term" else "was killed"
    assert err == f"interlock: the runner that held job is gone, so its command {fate}\n"
    for path in (mine, grandchild):
        pid, times = stamps(path)
        assert not alive(pid)
        assert times[-1] < began


def test_the_runners_group_is_killed(here: str, tmp_path: Path) -> None:
    """`kill -9 %1`: the supervisor is not of that group."""
    command, mine, grandchild = stubborn(tmp_path)
    with Background("job", "--url", here, "--grace", "200ms", "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        os.killpg(job.pid, signal.SIGKILL)
        job.end()
    until(lambda: not alive(stamps(mine)[0]) and not alive(stamps(grandchild)[0]), "both to end")


def test_the_runner_is_killed_and_the_command_may_tidy_up(url: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with Background("job", "--url", url, "--", PYTHON, "-c", POLITE, str(ready)) as job:
        until(written(ready))
        supervisor = job.supervisor
        job.send(signal.SIGKILL)
        assert job.end()[1] == "SIGTERM\n"
        until(lambda: not alive(supervisor), "the supervisor to end")


def test_the_runner_is_killed_and_the_command_may_go_on(here: str, tmp_path: Path) -> None:
    ready, over = tmp_path / "ready", tmp_path / "over"
    script = f"echo > {ready}; while [ ! -e {over} ]; do sleep 0.05; done; echo finished"
    options = ("--ttl", "600ms", "--grace", "100ms", "--on-lost", "warn", "--url", here)
    with Background("job", *options, "--", "sh", "-c", script) as job:
        until(written(ready))
        job.send(signal.SIGKILL)
        time.sleep(1.5)
        over.touch()
        _, out, err = job.end()
    assert out == "finished\n"
    assert err == "interlock: the runner that held job is gone, so its command goes on (--on-lost warn)\n"


def test_what_cannot_be_killed_keeps_the_lock(valkey_node: Node, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import sys; from interlock.cli.run import tree, supervisor; from interlock.cli.main import main\n"
        "supervisor.DYING = 0.2; tree.tell = tree._chase = lambda *_, **__: None; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [PYTHON, "-c", script, "run", "job", *SHORT, "--", "sh", "-c", f"echo $$ > {pid}; exec sleep 100"],
        env=environment(INTERLOCK_URL=valkey_node.url),
        stderr=subprocess.PIPE,
        text=True,
    )
    until(written(pid))
    os.kill(process.pid, signal.SIGSTOP)  # so that the supervisor gives up on the command, and not the runner on the supervisor
    (supervisor,) = children(process.pid)
    time.sleep(2.5)
    assert alive(supervisor)
    os.kill(process.pid, signal.SIGCONT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 79
    assert f"job is not given back, because these processes could not be killed: {pid.read_text().strip()}." in err
    until(lambda: not alive(int(pid.read_text())), "the kernel, when the supervisor has gone")


def test_the_runner_is_killed_while_it_waits(url: str) -> None:
    with Holder(url, "job"), Background("job", "--url", url, "--", "true") as job:
        supervisor = job.supervisor
        job.send(signal.SIGKILL)
        until(lambda: not alive(supervisor), "the supervisor to end")


def test_a_runner_that_stands_still_does_not_keep_the_command_alive(url: str, tmp_path: Path) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    heir_command, heir, _ = stubborn(tmp_path, "heir")
    with Background("job", *SHORT, "--url", url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        with Background("job", *SHORT, "--url", url, "--", *heir_command) as next_one:
            job.send(signal.SIGSTOP)
            until(written(heir), "the next one to begin")
            began = stamps(heir)[1][0]
            next_one.send(signal.SIGKILL)
        assert not alive(stamps(mine)[0])
        job.send(signal.SIGCONT)
        assert job.end()[0] == 79
    assert max(stamps(mine)[1][-1], stamps(grandchild)[1][-1]) < began


def test_the_supervisor_is_killed(url: str, tmp_path: Path) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    with Background("job", "--url", url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        os.kill(job.supervisor, signal.SIGKILL)
        assert job.end() == (137, "", "interlock: the supervisor of job is gone, and the command with it\n")
    assert not alive(stamps(mine)[0])
    assert not alive(stamps(grandchild)[0])
    assert free(url), "it was sure that nothing is left, so it let go"


def test_a_supervisor_that_stands_still_does_not_keep_the_command_alive(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], tmp_path: Path
) -> None:
    proxy = fault_proxy(valkey_node)
    command, mine, grandchild = stubborn(tmp_path)
    heir_command, heir, _ = stubborn(tmp_path, "heir")
    with Background("job", *SHORT, "--url", proxy.url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        os.kill(job.supervisor, signal.SIGSTOP)
        with Background("job", *SHORT, "--url", valkey_node.url, "--", *heir_command) as next_one:
            proxy.blackhole()
            until(written(heir), "the next one to begin")
            began = stamps(heir)[1][0]
            next_one.send(signal.SIGKILL)
        code, _, err = job.end()
    assert code == 79
    assert err == "interlock: lost job (unreachable); the command was stopped\n"
    assert max(stamps(mine)[1][-1], stamps(grandchild)[1][-1]) < began


@pytest.mark.parametrize(("stopped", "killed"), [("runner", "supervisor"), ("supervisor", "runner")])
def test_one_is_stopped_and_the_other_killed(url: str, tmp_path: Path, stopped: str, killed: str) -> None:
    """The kernel continues the one that is stopped, and it does what is to be done."""
    command, mine, grandchild = stubborn(tmp_path)
    heir_command, heir, _ = stubborn(tmp_path, "heir")
    with Background("job", "--ttl", "3s", "--grace", "400ms", "--url", url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        pids = {"runner": job.pid, "supervisor": job.supervisor}
        with Background("job", *SHORT, "--url", url, "--", *heir_command) as next_one:
            os.kill(pids[stopped], signal.SIGSTOP)
            os.kill(pids[killed], signal.SIGKILL)
            until(written(heir), "the next one to begin")
            began = stamps(heir)[1][0]
            next_one.send(signal.SIGKILL)
        assert not alive(stamps(mine)[0])
        assert not alive(stamps(grandchild)[0])
    assert max(stamps(mine)[1][-1], stamps(grandchild)[1][-1]) < began


def test_both_are_killed_and_the_kernel_ends_the_command(url: str, tmp_path: Path) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    with Background("job", "--url", url, "--", *command) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        for pid in (job.pid, job.supervisor):  # neither shall act
            os.kill(pid, signal.SIGSTOP)
        supervisor = job.supervisor
        job.send(signal.SIGKILL)  # which would continue the supervisor in a moment
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not alive(stamps(mine)[0]), "the kernel")
        # What is not promised: docs/run.md says so.
        assert alive(stamps(grandchild)[0])
        os.kill(stamps(grandchild)[0], signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_outer_run_takes_the_inner_one_with_it(url: str, tmp_path: Path, number: int) -> None:
    command, mine, grandchild = stubborn(tmp_path)
    inner = [*COMMAND, "run", "inner", "--url", url, "--", *command]
    with Background("outer", "--ttl", "2s", "--grace", "500ms", "--url", url, "--", *inner) as job:
        until(lambda: written(mine)() and written(grandchild)(), "both to write")
        (inner_runner,) = children(job.supervisor)
        (inner_supervisor,) = children(inner_runner)
        job.send(signal.SIGKILL)
        job.end()
    everybody = [inner_runner, inner_supervisor, stamps(mine)[0], stamps(grandchild)[0]]
    until(lambda: not any(map(alive, everybody)), "all of them to end")


def test_a_stopped_command_hears_that_it_must_end(here: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with Background("job", "--url", here, "--", PYTHON, "-c", POLITE, str(ready)) as job:
        until(written(ready))
        (command,) = children(job.supervisor)
        os.kill(command, signal.SIGSTOP)
        job.send(signal.SIGKILL)
        assert job.end()[1] == "SIGTERM\n"


def test_a_stopped_command_is_said_and_still_ended_in_time(valkey_node: Node, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with Background("job", *SHORT, "--url", valkey_node.url, "--", "sh", "-c", f"echo $$ > {pid}; exec sleep 100") as job:
        until(written(pid))
        os.kill(int(pid.read_text()), signal.SIGSTOP)
        time.sleep(2.0)
        assert job.running(), "held and renewed meanwhile"
        valkey_node.command("DEL", "job")
        code, _, err = job.end()
    assert code == 79
    assert err.splitlines()[0] == "interlock: the command that holds job was stopped (SIGSTOP); the lock stays held"
    assert not alive(int(pid.read_text()))
