"""`interlock quorum`: the nodes shown, their list changed, whatever ends the command in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

import interlock
from interlock.testing import Node, start_nodes, stop_nodes

from .support import COMMAND, Run, environment


@pytest.fixture(scope="module")
def _five() -> Iterator[list[Node]]:
    nodes = start_nodes(5)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture
def five(_five: list[Node]) -> list[Node]:
    for node in _five:
        if not node.running:
            node.restart()
        node.flush()
    return _five


def urls(nodes: list[Node]) -> str:
    return ",".join(node.url for node in nodes)


def take(nodes: list[Node], name: str = "x") -> int:
    with interlock.Client([node.url for node in nodes], ttl=0.5, renew=False) as client:
        lease = client.lock(name).acquire(timeout=10)
        lease.release()
        return lease.fence


def states(run: Run, nodes: list[Node]) -> list[str]:
    done = run("quorum", "show", "--json", "--url", urls(nodes))
    assert done.returncode == 0, done.stderr
    return [node["state"] for node in json.loads(done.stdout)["nodes"]]


def test_grow(run: Run, five: list[Node]) -> None:
    first = take(five[:3])
    lists = "--from", urls(five[:3]), "--to", urls(five)
    dry = run("quorum", "change", *lists, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout.startswith("next: closing: ")
    assert states(run, five) == ["open"] * 3 + ["new"] * 2, "nothing was done"
    done = run("quorum", "change", *lists)
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [word for word in words if word.startswith(("closing", "draining", "committing", "opening"))] == (
        ["closing:", "closing:", "draining,", "committing:", "opening"]
    )
    assert "the list is changed" in done.stdout
    assert states(run, five) == ["open"] * 5
    assert take(five) > first
    again = run("quorum", "change", *lists)
    assert (again.returncode, again.stderr) == (0, "")
    assert run("quorum", "change", *lists, "--abort").returncode == 78, "too late"
    assert states(run, five) == ["open"] * 5


def test_show(run: Run, five: list[Node]) -> None:
    fence = take(five[:3])
    five[4].kill()
    text = run("quorum", "show", "--url", urls(five))
    assert (text.returncode, text.stderr) == (0, "")
    lines = text.stdout.splitlines()
    for node, state in zip(five, ["open", "open", "open", "new", "silent"], strict=True):
        assert [line for line in lines if line.startswith(f"redis://127.0.0.1:{node.port}") and f"  {state}" in line]
    nodes = json.loads(run("quorum", "show", "--json", env={"INTERLOCK_URL": urls(five)}).stdout)["nodes"]
    assert [node["state"] for node in nodes] == ["open", "open", "open", "new", "silent"]
    assert nodes[0]["list"] == sorted(f"redis://127.0.0.1:{node.port}" for node in five[:3])
    assert nodes[0]["fence"] >= fence
    assert (nodes[0]["held"], nodes[3]["held"], nodes[3]["list"]) == (0.5, 0, None)
    five[0].kill()
    assert run("quorum", "show", "--url", five[0].url).returncode == 69


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "quorum", "change", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], word: str) -> None:
    """Until it says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return
    raise AssertionError(f"it ended without {word}")


@pytest.mark.parametrize(
    ("how", "code"), [("timeout", 75), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_given_up_while_a_lock_is_held(run: Run, five: list[Node], how: Any, code: int) -> None:
    with interlock.Client([node.url for node in five[:3]], ttl=1) as client, client.lock("kept"):
        timeout = ["--timeout", "2s"] if how == "timeout" else []
        process = started("--from", urls(five[:3]), "--to", urls(five), *timeout)
        until(process, "draining")
        assert states(run, five) == ["leaving"] * 3 + ["closed"] * 2 or how == "timeout"
        if how != "timeout":
            process.send_signal(how)
        out, err = process.communicate(timeout=30)
        assert process.returncode == code, err
        assert "given up: the old list is open" in out
        assert ("still held after 2 s" in err) == (how == "timeout")
        assert states(run, five) == ["open"] * 3 + ["retired"] * 2
    assert take(five[:3]) > 0


def test_killed_and_run_again_or_given_up(run: Run, five: list[Node]) -> None:
    lists = "--from", urls(five[:3]), "--to", urls(five)
    with interlock.Client([node.url for node in five[:3]], ttl=1) as client, client.lock("kept") as lease:
        process = started(*lists)
        until(process, "draining")
        process.kill()
        process.communicate()
        assert states(run, five) == ["leaving"] * 3 + ["closed"] * 2
        back = run("quorum", "change", *lists, "--abort")
        assert (back.returncode, back.stderr) == (0, "")
        assert take(five[:3]) > 0
        process = started(*lists)
        until(process, "draining")
        process.kill()
        process.communicate()
    done = run("quorum", "change", *lists)
    assert (done.returncode, done.stderr) == (0, "")
    assert take(five, "kept") > lease.fence


@pytest.mark.parametrize("how", ["closed", "full"])
def test_nobody_reads_what_it_says(five: list[Node], how: str) -> None:
    """The nodes are closed meanwhile: it must not wait for a reader, nor end for want of one."""
    take(five[:3])
    for_us, for_it = os.pipe()
    if how == "full":
        os.set_blocking(for_it, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(for_it, b"x" * 4096)
        os.set_blocking(for_it, True)
    else:
        os.close(for_us)
    process = subprocess.Popen(
        [*COMMAND, "quorum", "change", "--from", urls(five[:3]), "--to", urls(five)], env=environment(), stdout=for_it
    )
    os.close(for_it)
    try:
        assert process.wait(30) in (0, 141)
    finally:
        if how == "full":
            os.close(for_us)
    assert take(five) > 0


def test_secrets_and_escapes_are_not_printed(run: Run) -> None:
    nodes = start_nodes(4, password="hunter2")
    try:
        take(nodes[:3])
        shown = run("quorum", "show", env={"INTERLOCK_URL": urls(nodes)})
        assert shown.returncode == 0, shown.stderr
        nodes[0].command("HSET", "interlock:roll", "nodes", "\x1b[31mred\nb")
        said = [shown, run("quorum", "show", env={"INTERLOCK_URL": urls(nodes)})]
        assert "\\x1b[31mred" in said[-1].stdout
        env = {"INTERLOCK_URL": urls(nodes[:3]), "INTERLOCK_TO": urls(nodes[1:])}
        said.append(run("quorum", "change", env=env))
        assert said[-1].returncode == 78
        assert "red" in said[-1].stderr
        for done in said:
            assert "hunter2" not in done.stdout + done.stderr
            assert "\x1b" not in done.stdout + done.stderr
            assert done.stderr.count("\n") <= 1
    finally:
        stop_nodes(nodes)


def test_what_is_missing_or_refused(run: Run, five: list[Node]) -> None:
    take(five[:3])
    five[3].kill()
    missing = run("quorum", "change", "--from", urls(five[:3]), "--to", urls(five), "--request-timeout", "500ms")
    assert (missing.returncode, missing.stdout.count("closing")) == (69, 0)
    assert "nothing was changed" in missing.stderr
    assert str(five[3].port) in missing.stderr
    same = run("quorum", "change", "--from", urls(five[:3]), "--to", urls(five[2::-1]))
    assert (same.returncode, same.stdout) == (78, "")
    assert "same" in same.stderr
    one = run("quorum", "change", "--from", urls(five[:3]), "--to", five[0].url)
    assert (one.returncode, "no quorum" in one.stderr) == (78, True)
    assert states(run, five) == ["open"] * 3 + ["silent", "new"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["quorum"], 64, "ACTION"),
        (["quorum", "frobnicate"], 64, "frobnicate"),
        (["quorum", "change"], 64, "--from"),
        (["quorum", "change", "--from", "redis://a,redis://b"], 64, "--to"),
        (["quorum", "change", "--from", "redis://a", "--to", "redis://b", "--timeout", "soon"], 64, "not a duration"),
        (["quorum", "show", "--request-timeout", "1h", "--url", "redis://a"], 64, "request_timeout"),
        (["quorum", "show", "--url", "nonsense://a"], 78, "nonsense"),
        (["quorum", "change", "--from", "nonsense://a", "--to", "redis://b"], 78, "nonsense"),
        (["quorum", "change", "--from", "redis://a,redis://a", "--to", "redis://b,redis://c,redis://d"], 78, "twice"),
    ],
)
def test_what_cannot_be(run: Run, arguments: list[str], code: int, says: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("action", ["show", "change"])
def test_every_action_has_help_with_an_example(run: Run, action: str) -> None:
    done = run("quorum", action, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"interlock quorum {action}" in done.stdout.partition("example")[2]
    assert max(map(len, done.stdout.splitlines())) < 80


def test_how_long_it_takes_is_bounded_by_what_is_asked(five: list[Node]) -> None:
    """A node that does not answer costs one request, not the whole of it."""
    take(five[:3])
    five[2].pause()
    began = time.monotonic()
    try:
        process = started("--from", urls(five[:3]), "--to", urls([*five[:2], five[3]]), "--request-timeout", "300ms")
        process.communicate(timeout=30)
    finally:
        five[2].resume()
    assert process.returncode == 0
    assert time.monotonic() - began < 25
