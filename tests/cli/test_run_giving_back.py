"""What `interlock run` was granted and cannot use is given back: lost replies, signals, a system that is short of all."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import cast

import pytest

import interlock
from interlock.backends.redis.scripts import EXTEND
from interlock.cli.run.signals import Interrupted, Signals
from interlock.testing import FaultProxy, Node

from .run_support import PATIENCE, STUBBORN, Background, alive, changed, stamps, until, written
from .support import COMMAND, Holder

PYTHON = sys.executable
HOUR = ("--ttl", "1h")

# A signal's handler at the AT-th boundary of two instructions of the runner's own code, once the lock is granted.
STRUCK = """
import os, signal
from interlock.api.client import Lock
at, seen, granted, real = int(os.environ["AT"]), 0, False, Lock.acquire
def acquire(self):
    global granted
    lease = real(self)
    granted = True
    return lease
def trace(frame, event, _):
    global seen
    if not frame.f_code.co_filename.endswith("runner.py"):
        return None
    frame.f_trace_opcodes = True
    if event == "opcode" and granted:
        seen += 1
        if seen == at:
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, frame)
    return trace
Lock.acquire = acquire
sys.settrace(trace)
"""


def free(url: str, name: str = "job") -> bool:
    with interlock.Client(url) as client:
        return not client.inspect(name).held


def waiters(url: str, name: str = "job") -> int:
    with interlock.Client(url) as client:
        return client.inspect(name).waiters


def asleep_in_line(url: str, name: str = "job") -> bool:
    """Somebody stands in line, and for long enough to be told and not to ask."""
    with interlock.Client(url) as client:
        return any(one.since > 0.5 for one in client.inspect(name).waiting)


# --- granted after a wait, for a short time first -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost reply", "SIGTERM"])
def test_an_extension_that_goes_wrong_after_a_wait_leaves_nothing(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], how: str
) -> None:
    proxy = fault_proxy(valkey_node)
    with Holder(valkey_node.url, "job"):
        job = Background("job", *HOUR, "--url", proxy.url, "--", "echo", "ran")
        until(lambda: asleep_in_line(valkey_node.url), "it to stand in line")
        proxy.drop_reply_to(EXTEND.by_text)
    with job:
        proxy.wait_for(lambda proxy: proxy.dropped == 1, PATIENCE)
        if how == "SIGTERM":
            job.send(signal.SIGTERM)
        code, out, err = job.end()
    assert (code, out) == (143 if how == "SIGTERM" else 69, "")
    assert err.endswith("job is held; it was given back\n") or how == "SIGTERM"
    assert free(valkey_node.url)


@pytest.mark.parametrize("how", ["lost reply", "SIGTERM"])
def test_an_extension_that_goes_wrong_and_a_store_that_is_gone_are_told(
    valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy], how: str
) -> None:
    """It said that the lock is held for another second, and the store had it for an hour."""
    proxy = fault_proxy(valkey_node)
    with Holder(valkey_node.url, "job"):
        job = Background("job", *HOUR, "--url", proxy.url, "--", "echo", "ran")
        until(lambda: asleep_in_line(valkey_node.url), "it to stand in line")
        proxy.drop_reply_to(EXTEND.by_text)
    with job:
        proxy.wait_for(lambda proxy: proxy.dropped == 1, PATIENCE)
        proxy.blackhole()
        if how == "SIGTERM":
            job.send(signal.SIGTERM)
        code, out, err = job.end()
    assert (code, out) == (143 if how == "SIGTERM" else 69, "")
    assert err.endswith("; it may stay locked for up to 3600 s\n")


def test_a_signal_right_after_the_extension_leaves_nothing(url: str) -> None:
    program = changed(
        "import os, signal; from interlock.api.client import Lease; real = Lease.extend\n"
        "Lease.extend = lambda self, *rest: (real(self, *rest), os.kill(os.getpid(), signal.SIGTERM))"
    )
    with Holder(url, "job"):
        job = Background("job", *HOUR, "--url", url, "--", "echo", "ran", program=program)
        until(lambda: asleep_in_line(url), "it to stand in line")
    with job:
        assert job.end()[:2] == (143, "")
    assert free(url)


@pytest.mark.timeout(180)
def test_a_signal_at_any_moment_between_the_grant_and_the_command_leaves_nothing(tmp_path: Path) -> None:
    url, at, code = f"sqlite:///{tmp_path}/locks.db", 0, 143
    while code == 143:
        at += 1
        with Background("job", *HOUR, "--url", url, "--", "true", program=changed(STRUCK), AT=str(at)) as job:
            code = job.end()[0]
        assert free(url), f"at boundary {at}"
    assert code == 0, "past the last one, it is the command that hears of signals"
    assert at > 10


def test_many_signals_at_one_who_waits_leave_no_place_in_the_line(url: str) -> None:
    with Holder(url, "job"):
        for pause in (0.0, 0.001, 0.005):
            with Background("job", "--url", url, "--", "true") as job:
                until(lambda: waiters(url) == 1, "it to stand in line")
                bombard(job, pause)
                assert job.end()[0] in (143, -signal.SIGTERM), "a shell calls both of them 143"
            assert waiters(url) == 0


def test_signals_that_come_fast_and_at_random_leave_no_place_in_the_line(valkey_node: Node) -> None:
    """The class of the test above: on 0ff027a one run in eight left a place, and only if the gaps were this short."""
    with Holder(valkey_node.url, "job"):
        for _ in range(16):
            with Background("job", "--url", valkey_node.url, "--", "true") as job:
                until(lambda: waiters(valkey_node.url) == 1, "it to stand in line")
                time.sleep(random.random() * 0.3)
                gap = random.choice((0.0001, 0.0003, 0.0006, 0.001, 0.002))
                for _ in range(random.choice((2, 3, 6, 12))):
                    with suppress(ProcessLookupError):
                        job.send(signal.SIGTERM)
                    moment = time.perf_counter() + gap * random.random() * 2
                    while time.perf_counter() < moment:
                        pass
                assert job.end()[0] in (143, -signal.SIGTERM)
            assert waiters(valkey_node.url) == 0


def test_signals_while_it_leaves_the_line_change_nothing(valkey_node: Node, fault_proxy: Callable[[Node], FaultProxy]) -> None:
    proxy = fault_proxy(valkey_node)
    with Holder(valkey_node.url, "job"), Background("job", "--url", proxy.url, "--", "true") as job:
        until(lambda: asleep_in_line(valkey_node.url), "it to stand in line")
        proxy.delay(0.4, "requests")
        bombard(job, 0.01)
        assert job.end()[0] in (143, -signal.SIGTERM)
        proxy.heal()
        time.sleep(0.5)  # for what is still on its way
        assert waiters(valkey_node.url) == 0


def test_a_signal_raises_once_and_inside_the_library_only() -> None:
    """Seen from the handler: who runs when it comes decides, and what it did to the last one."""
    library, our_own = frame("interlock.flow.waiting.wait"), frame("interlock.cli.run.runner")
    with Signals() as signals:
        signals._interrupt(signal.SIGTERM, our_own)
        assert signals.came == signal.SIGTERM
        with pytest.raises(Interrupted):
            signals._interrupt(signal.SIGINT, library)
        for _ in range(3):  # while it cleans up
            signals._interrupt(signal.SIGTERM, library)
        assert signals.came == signal.SIGTERM, "the first one counts"
        with pytest.raises(Interrupted):
            signals.hand_on()


@pytest.mark.parametrize("where", ["interlock.runtime.blocking __del__", "weakref remove", "threading wait"])
def test_a_signal_that_would_be_swallowed_raises_a_moment_later(where: str) -> None:
    """A finaliser ignores it, and the waiter would go on waiting; a lock of `threading` makes a RuntimeError of it."""
    library = frame("interlock.flow.waiting.wait")
    with Signals() as signals:
        signals._interrupt(signal.SIGTERM, frame(*where.split(), library))
        assert signals.came == signal.SIGTERM
        with pytest.raises(Interrupted):
            wait_like_the_library()


def frame(module: str, function: str = "wait", back: FrameType | None = None) -> FrameType:
    code = SimpleNamespace(co_name=function)
    return cast(FrameType, SimpleNamespace(f_globals={"__name__": module}, f_code=code, f_back=back))


def wait_like_the_library() -> None:
    select.poll().poll(PATIENCE * 1000)


def bombard(job: Background, pause: float) -> None:
    with suppress(ProcessLookupError):
        for _ in range(30):
            job.send(signal.SIGTERM)
            time.sleep(pause)


# --- short of processes, threads, descriptors -----------------------------------------------------------------------------


def blames_nobody(err: str) -> bool:
    return not any(words in err for words in ("bug", "Traceback", "supervisor", "boot", "Let user"))


@pytest.mark.timeout(180)
def test_no_descriptors(url: str) -> None:
    """However few there are: it runs, or it says what is missing. Either way nothing is left."""
    codes = []
    for limit in range(5, 19):
        limited = ("/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *COMMAND)
        with Background("job", *HOUR, "--url", url, "--", "sh", "-c", "exit 5", program=limited) as job:
            code, _, err = job.end()
        codes.append(code)
        assert code in (5, 69, 71), f"{limit}: {err}"
        assert code == 5 or "descriptor" in err or "Too many open files" in err, f"{limit}: {err}"
        assert blames_nobody(err), f"{limit}: {err}"
        assert free(url)
    assert codes[0] == 71
    assert codes[-1] == 5


@pytest.mark.timeout(180)
def test_the_supervisor_is_killed_and_the_runner_has_no_descriptors(tmp_path: Path) -> None:
    """To look at /proc. However few it was started with: nothing of the command is left when it ends."""
    url, codes = f"sqlite:///{tmp_path}/locks.db", []
    for limit in range(12, 21):
        files = tmp_path / f"{limit}-command.stamps", tmp_path / f"{limit}-grandchild.stamps"
        limited = ("/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *COMMAND)
        command = (PYTHON, "-c", STUBBORN, *map(str, files))
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with Background("job", *HOUR, "--url", url, "--", *command, program=limited, **streams) as job:
            until(lambda job=job, files=files: not job.running() or all(written(path)() for path in files), "both to write")
            if job.running():
                os.kill(job.supervisor, signal.SIGKILL)
            codes.append(job.end()[0])
        assert codes[-1] in (69, 71) or not any(alive(stamps(path)[0]) for path in files), f"with {limit}"
        assert free(url)
    assert codes[-1] == 137


@pytest.mark.parametrize("at", [1, 2])
def test_no_process_for_the_supervisor_or_for_the_command(url: str, at: int) -> None:
    program = changed(
        "import errno, os; real, calls = os.fork, []\n"
        "def fork():\n"
        "    calls.append(1)\n"
        f"    if len(calls) == {at}:\n"
        "        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "    return real()\n"
        "os.fork = fork"
    )
    with Background("job", *HOUR, "--url", url, "--", "echo", "ran", program=program) as job:
        code, out, err = job.end()
    assert (code, out, err.count("\n")) == (71, "", 1)
    assert "short of processes or threads" in err
    assert blames_nobody(err)
    assert free(url)


def test_no_thread_for_the_keeper_nor_for_the_voice(url: str) -> None:
    program = changed(
        "import _thread, threading\n"
        'def no(*_, **__): raise RuntimeError("can\'t start new thread")\n'
        "_thread.start_new_thread = threading._start_new_thread = threading._start_joinable_thread = no"
    )
    with Background("job", *HOUR, "--url", url, "--", "echo", "ran", program=program) as job:
        code, out, err = job.end()
    assert (code, out, err.count("\n")) == (71, "", 1)
    assert "short of processes or threads" in err
    assert blames_nobody(err)
    assert free(url)


def test_a_defect_of_the_runner_leaves_neither_the_command_nor_the_lock(url: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = changed("from interlock.cli.run import watch; watch.Watch._stopped = lambda self, number: 1 / 0")
    script = f"echo $$ > {pid}; sleep 100"
    with Background("job", *HOUR, "--grace", "1s", "--url", url, "--", "sh", "-c", script, program=program) as job:
        until(written(pid))
        job.send(signal.SIGTSTP)
        assert job.end()[0] == 70
    assert not alive(int(pid.read_text()))
    assert free(url)


def test_a_defect_of_the_supervisor_leaves_nothing_of_the_command(url: str, tmp_path: Path) -> None:
    """Though the runner is gone and nobody else is there to end it."""
    files = tmp_path / "command.stamps", tmp_path / "grandchild.stamps"
    program = changed("from interlock.cli.run import supervisor; supervisor.Supervisor._tell = lambda self: 1 / 0")
    command = (PYTHON, "-c", STUBBORN, *map(str, files))
    with Background("job", *HOUR, "--url", url, "--", *command, program=program) as job:
        until(lambda: all(written(path)() for path in files), "both to write")
        job.send(signal.SIGKILL)
        until(lambda: not any(alive(stamps(path)[0]) for path in files), "both to end")
