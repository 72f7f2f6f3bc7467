"""`interlock run`: what comes at a bad moment, between the grant and the command or between a renewal and the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import interlock
from interlock.cli.run.watch import beat
from interlock.core.lease import drift, margin

from .run_support import PATIENCE, Background, changed, state, until, written
from .support import environment

# The runner stops, or is stopped, as soon as it has the lock.
STOPS = changed(
    "import os, signal; from interlock.cli.run.signals import Signals; real = Signals.hand_on\n"
    "Signals.hand_on = lambda self: (real(self), os.kill(os.getpid(), signal.SIGSTOP))"
)

# A supervisor that stands still while messages arrive; says what it makes of them. Arguments: the moments, as seconds from now.
STANDS_STILL = """
import os, select, signal, sys
from interlock.cli.run import link
from interlock.cli.run.channel import Orders
from interlock.cli.run.signals import Signals
from interlock.runtime.base import now
supervisor = link.fork(Orders("job", "/bin/sh", ["sh", "-c", "exit 3"], 0.1, 0.1, "kill", True))
with Signals() as signals:
    supervisor.await_ready(signals)
    os.kill(supervisor.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, supervisor.pid, os.WSTOPPED)
    start, *later = [now() + float(word) for word in sys.argv[1:]]
    supervisor.channel.send("start", {}, start)
    for moment in later:
        supervisor.channel.send("deadline", moment)
    os.kill(supervisor.pid, signal.SIGCONT)
    heard = []
    while not {"late", "ended"} & set(heard):
        select.select([supervisor.channel], [], [])
        heard += [verb for verb, *_ in supervisor.channel.receive()]
supervisor.close()
print(*heard)
"""

# --- between a renewal and the supervisor -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0.5, 1.0, 10.0, 30.0, 60.0, 3600.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.5])
def test_the_supervisor_hears_of_a_renewal_before_it_would_send_sigterm(ttl: float, share: float) -> None:
    """With the longest grace that is allowed, too: it was told too late, and stopped a command whose lock was renewed."""
    usable, grace = ttl - drift(ttl), ttl * share
    told, renewed = usable - margin(ttl) - grace, usable / 3
    time_to_answer = told - renewed - beat(ttl, grace)
    assert time_to_answer >= 0.04 * ttl
    assert 0.005 <= beat(ttl, grace) <= 5.0


# --- between the grant and the command ------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_lost", ["term", "kill", "warn"])
def test_a_runner_that_was_stopped_before_its_command_began_does_not_start_it(tmp_path: Path, on_lost: str) -> None:
    """Somebody else has the lock by then."""
    url, ran = f"sqlite:///{tmp_path}/locks.db", tmp_path / "ran"
    options = ("--ttl", "500ms", "--on-lost", on_lost, "--url", url)
    with Background("job", *options, "--", "touch", str(ran), program=STOPS) as job:
        until(lambda: state(job.pid) == "T", "it to stop")
        with interlock.Client(url) as client, client.lock("job", timeout=PATIENCE):
            job.send(signal.SIGCONT)
            code, _, err = job.end()
    assert code == 79
    assert err == "interlock: lost job (paused) before the command was started\n"
    assert not ran.exists()


@pytest.mark.parametrize(
    ("moments", "heard"),
    [
        (["-1"], "late"),
        (["0.05"], "late"),  # less than the margin
        (["60"], "started ended"),
        (["-1", "30", "60"], "started ended"),
        (["60", "-1"], "late"),
    ],
)
def test_a_supervisor_that_stood_still_starts_what_has_the_lock_and_nothing_else(moments: list[str], heard: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STANDS_STILL, *moments], env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == (f"{heard}\n", "")


# --- between the end of the command and its supervisor ------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the start", "before the end"])
def test_a_supervisor_that_stands_still_does_not_keep_the_lock_for_nobody(url: str, tmp_path: Path, when: str) -> None:
    ready, over = tmp_path / "ready", tmp_path / "over"
    script = f"echo $$ > {ready}; while [ ! -e {over} ]; do sleep 0.05; done; exit 3"
    options = ("--ttl", "1s", "--url", url)
    with (
        interlock.Client(url) as client,
        client.lock("job") as holder,
        Background("job", *options, "--", "sh", "-c", script) as job,
    ):
        until(lambda: client.inspect("job").waiters == 1, "it to stand in line")
        if when == "before the start":
            os.kill(job.supervisor, signal.SIGSTOP)
        holder.release()
        until(written(ready), "the command to run")
        if when == "before the end":
            os.kill(job.supervisor, signal.SIGSTOP)
        over.touch()
        assert job.end()[0] == 3


def test_a_signal_reaches_the_command_though_its_supervisor_stands_still(url: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with Background("job", "--url", url, "--", "sh", "-c", f"echo $$ > {ready}; exec sleep 100") as job:
        until(written(ready))
        supervisor = job.supervisor
        os.kill(supervisor, signal.SIGSTOP)
        until(lambda: state(supervisor) == "T", "it to stop")
        job.send(signal.SIGTERM)
        assert job.end()[0] == 143
