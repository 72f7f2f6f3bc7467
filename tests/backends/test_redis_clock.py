"""The wall clock of a server is set back, and forward: a lease is never believed for longer than the server keeps it.

The clock is that of a shim (`tests/chaos/skew.c`), the waiter a process that is stopped while it is served.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import interlock
from interlock.testing import Node

from ..chaos import clock

# Waits for the lock, and says until when it believes in it, by the boot clock.
WAITER = """
import json, sys, time, interlock
url, ttl, renew, drift = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "renewed", float(sys.argv[4])
with interlock.Client(url, drift=drift) as client:
    lease = client.lock("n", ttl=ttl, renew=renew).acquire()
    print(json.dumps([time.clock_gettime(time.CLOCK_BOOTTIME) + lease.remaining(), lease.fence]), flush=True)
    sys.stdin.readline()
"""

# Holds the lock until it is told to release it. Its clock runs at another rate.
HOLDER = """
import sys, time
url, rate, drift = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
true = time.clock_gettime
begin = true(time.CLOCK_BOOTTIME)
time.clock_gettime = lambda which: begin + (true(which) - begin) * rate if which == time.CLOCK_BOOTTIME else true(which)
import interlock
with interlock.Client(url, drift=drift) as client:
    lease = client.lock("n", ttl=60, renew=False).acquire()
    print("held", flush=True)
    sys.stdin.readline()
    lease.release()
    print("released", flush=True)
    sys.stdin.readline()
"""


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clock.build(tmp_path_factory.mktemp("skew"))


@pytest.fixture(params=["valkey", "redis"])
def skewed(
    request: pytest.FixtureRequest, fresh_node: Callable[..., Node], shim: Path, tmp_path: Path
) -> tuple[Node, clock.Clock]:
    hand = clock.Clock(shim, tmp_path / "clock")
    return fresh_node(request.param, env=hand.environment), hand


@contextmanager
def process(script: str, node: Node, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, node.url, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.send_signal(signal.SIGCONT)
            started.kill()


@contextmanager
def waiter(node: Node, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that stands in line."""
    with process(WAITER, node, *arguments) as started:
        while not node.command("ZCARD", "interlock:{n}:line"):
            assert started.poll() is None
            time.sleep(0.005)
        yield started


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def set_clock(node: Node, hand: clock.Clock, seconds: float) -> None:
    """Set the server's clock, and wait until the server goes by it: expiry follows a reading that is up to 0.1 s old."""
    hand.set(seconds)
    for wait in range(1000):
        node.command("SET", "probe", "", "PX", "10000")
        now, rest = (int(part) for part in node.command("TIME"))
        if abs(int(node.command("PEXPIRETIME", "probe")) - now * 1000 - rest // 1000 - 10_000) < 50:
            return
        time.sleep(0.001 * min(wait, 10))
    raise AssertionError("the server does not go by its clock")


def stop(process: subprocess.Popen[str]) -> None:
    """Stop it, all of its threads."""
    process.send_signal(signal.SIGSTOP)
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        while (task / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)


def kept_until(node: Node) -> float:
    """When the server lets go of the lock, if its clock runs on as it does."""
    return boot() + float(node.command("PTTL", "n")) / 1000


@pytest.mark.parametrize("way", ["back", "forward"])
@pytest.mark.parametrize("renewed", ["fixed", "renewed"])
def test_a_stopped_waiter_does_not_take_its_grant_for_younger_than_it_is(
    skewed: tuple[Node, clock.Clock], way: str, renewed: str
) -> None:
    node, hand = skewed
    set_clock(node, hand, 5.0 if way == "back" else 0.0)
    with interlock.Client(node.url) as client:
        lease = client.lock("n", ttl=60, renew=False).acquire()
        if way == "back":
            set_clock(node, hand, 0.0)
        with waiter(node, 5.0, renewed, 0.01) as waits:
            if way == "forward":
                set_clock(node, hand, 2.0)  # much less than the holder has left: nobody loses anything by it
            stop(waits)
            lease.release()
            until = kept_until(node)
            time.sleep(2.2)
            waits.send_signal(signal.SIGCONT)
            believed, fence = json.loads(said(waits))
            until = max(until, kept_until(node))  # it may have asked for more
            assert fence > lease.fence
            assert believed <= until, f"believed for {believed - until:.2f} s longer than the server keeps it"


def test_a_fast_clock_of_whoever_releases_is_within_the_drift_that_all_allow_for(valkey_node: Node) -> None:
    node, drift = valkey_node, 0.3
    with process(HOLDER, node, 1.25, drift) as holds:
        assert said(holds) == "held\n"
        time.sleep(6.0)  # its clock is ahead by more than what the waiter allows for
        with waiter(node, 2.0, "fixed", drift) as waits:
            stop(waits)
            say(holds)
            assert said(holds) == "released\n"
            until = kept_until(node)
            time.sleep(1.2)
            waits.send_signal(signal.SIGCONT)
            believed, _ = json.loads(said(waits))
            until = max(until, kept_until(node))
            assert believed <= until, f"believed for {believed - until:.2f} s longer than the server keeps it"


@pytest.mark.parametrize("newer", [False, True])
def test_what_is_announced_is_believed_only_if_it_was_granted_after_the_last_answer(valkey_node: Node, newer: bool) -> None:
    """An announcement may lie in a buffer until the grant is over and the waiter, which asked meanwhile, was refused."""
    node = valkey_node
    with interlock.Client(node.url) as client, interlock.Client(node.url) as other, ThreadPoolExecutor(1) as pool:
        lease = client.lock("n", ttl=60, renew=False).acquire()
        waits = pool.submit(lambda: other.lock("n", ttl=20).acquire(timeout=0.5 if not newer else 10))
        while not any(waiter.after is not None for waiter in list(other._context.queue.in_line.values())):
            time.sleep(0.005)
        (member,) = node.command("ZRANGE", "interlock:{n}:line", 0, -1)
        token, inbox, _ = member.decode().rsplit(" ", 2)
        assert node.command("PUBLISH", inbox, f"{lease.fence + newer}\n3000\n{token}\nn") == 1
        if newer:
            assert waits.result().fence == lease.fence + 1, "the test's own forgery, which shows that it would be believed"
            return
        with pytest.raises(interlock.AcquireTimeout):
            waits.result()
        lease.release()
