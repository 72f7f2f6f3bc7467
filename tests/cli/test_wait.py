"""`interlock wait`: until it is free, taking nothing."""

from __future__ import annotations

import subprocess
import time

import pytest

from interlock import Client

from .support import COMMAND, Holder, Run, environment


def test_a_free_lock_is_not_waited_for(run: Run, url: str) -> None:
    done = run("wait", "order:1", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_until_it_is_released(url: str) -> None:
    with Holder(url, "order:1"):
        waiter = subprocess.Popen([*COMMAND, "--url", url, "wait", "order:1", "--timeout", "1m"], env=environment())
        time.sleep(1)
        assert waiter.poll() is None, "it is held"
        with Client(url) as client:
            assert client.inspect("order:1").waiters == 0, "it stands in no line"
    assert waiter.wait(30) == 0


def test_until_it_expires(url: str, run: Run) -> None:
    with Client(url, renew=False) as client:
        lease = client.lock("order:1", ttl=1.5).acquire()
        assert run("wait", "order:1", "--url", url).returncode == 0
        assert lease.lost


def test_the_time_is_over(run: Run, url: str) -> None:
    with Holder(url, "order:1") as holder:
        done = run("wait", "order:1", "--url", url, "--timeout", "300ms")
        quiet = run("wait", "order:1", "--url", url, "--timeout", "0", "--quiet")
    assert (done.returncode, done.stdout) == (75, "")
    assert f":{holder.pid}" in done.stderr
    assert "0.3 s" in done.stderr
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (75, "", "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["wait"], 64, "NAME"),
        (["wait", ""], 64, "name"),
        (["wait", "x", "--timeout", "soon"], 64, "not a duration"),
        (["--url", "redis://127.0.0.1:1", "wait", "x"], 69, "127.0.0.1:1"),
        (["--url", "nonsense://x", "wait", "x"], 78, "nonsense"),
        (["--url", "memory://x", "wait", "x"], 78, "one process"),
    ],
)
def test_what_cannot_be(run: Run, arguments: list[str], code: int, says: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
