"""`interlock bench`: on one node, on several, on a file; what it leaves behind, and what it says when it cannot."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from interlock import Client
from interlock.testing import Node, start_nodes, stop_nodes

from .support import COMMAND, Run, environment

DEAD = "redis://127.0.0.1:1"
SHORT = ("--seconds", "200ms")


@pytest.fixture(scope="module")
def three() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    with Client([node.url for node in nodes]) as client, client.lock("birth"):
        pass
    for node in nodes:
        node.command("DEL", "interlock:{birth}:fence")
    yield nodes
    stop_nodes(nodes)


def urls(nodes: list[Node]) -> list[str]:
    return [word for node in nodes for word in ("--url", node.url)]


def keys(node: Node) -> set[bytes]:
    return set(node.command("KEYS", "*"))


def checked(facts: dict[str, object], nodes: int, reached: int) -> None:
    assert facts.keys() == {
        *("store", "nodes", "reached", "version", "rounds", "cycles", "floor", "interlock", "added", "ratio"),
    }
    assert (facts["nodes"], facts["reached"]) == (nodes, reached)
    floor, ours = facts["floor"], facts["interlock"]
    assert isinstance(floor, dict)
    assert isinstance(ours, dict)
    assert 0 < floor["p50"] <= floor["p99"] < 5
    assert 0 < ours["p50"] <= ours["p99"] < 5
    assert isinstance(facts["ratio"], float)
    assert facts["ratio"] > 0
    assert facts["added"] == pytest.approx(ours["p50"] - floor["p50"], abs=1e-8)


def test_one_node(run: Run, node: Node) -> None:
    node.flush()
    node.command("SET", "somebody's", "value")
    done = run("bench", "--url", node.url, *SHORT, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    checked(json.loads(done.stdout), 1, 1)
    assert keys(node) == {b"somebody's"}, "it takes away what it brought, and nothing else"
    text = run("bench", *SHORT, env={"INTERLOCK_URL": node.url})
    assert (text.returncode, text.stderr) == (0, "")
    assert "times the floor" in text.stdout.splitlines()[-1]


def test_several_nodes(run: Run, three: list[Node]) -> None:
    done = run("bench", *urls(three), *SHORT, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    checked(json.loads(done.stdout), 3, 3)
    assert [keys(node) for node in three] == [{b"interlock:roll"}] * 3
    joined = run("--url", ",".join(node.url for node in three), "bench", *SHORT, "--json")
    checked(json.loads(joined.stdout), 3, 3)


def test_with_a_node_dead_it_goes_on_and_says_so(run: Run, three: list[Node]) -> None:
    three[1].kill()
    try:
        facts = json.loads(run("bench", *urls(three), *SHORT, "--json").stdout)
        text = run("bench", *urls(three), *SHORT)
    finally:
        three[1].start()
    checked(facts, 3, 2)
    assert text.returncode == 0
    assert "1 of 3 nodes cannot be reached" in text.stdout


def test_a_file_is_left_as_it_was(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with Client(url) as client, client.lock("mine"):
        pass
    before = (tmp_path / "locks.db").read_bytes()
    files = sorted(tmp_path.iterdir())
    done = run("bench", "--url", url, *SHORT, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    checked(json.loads(done.stdout), 1, 1)
    assert sorted(tmp_path.iterdir()) == files
    assert (tmp_path / "locks.db").read_bytes() == before


def test_a_prefix_for_those_with_access_rules(run: Run) -> None:
    rule = "bench on >s3cret ~app:* ~interlock:{app:* resetchannels &interlock:* +@all"
    with Node(users=["default off", rule]) as node:
        url = f"redis://bench:s3cret@{node.host}:{node.port}"
        refused = run("bench", *SHORT, env={"INTERLOCK_URL": url})
        allowed = run("bench", "--prefix", "app:", *SHORT, "--json", env={"INTERLOCK_URL": url})
        left = keys(node)
    assert refused.returncode in (69, 78)
    assert len(refused.stderr.splitlines()) == 1
    assert (allowed.returncode, allowed.stderr) == (0, "")
    assert not left
    assert "s3cret" not in allowed.stdout + refused.stderr


def test_over_tls(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    nodes = start_nodes(3, kind="redis", tls=(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"))
    try:
        addresses = [f"{node.tls_url}?ssl_ca_certs={tmp_path}/ca.pem" for node in nodes]
        one = run("bench", "--url", addresses[0], *SHORT, "--json")
        left = keys(nodes[0])
        all_ = run("bench", *(word for url in addresses for word in ("--url", url)), *SHORT, "--json")
        roll = [keys(node) for node in nodes]
    finally:
        stop_nodes(nodes)
    assert (one.returncode, one.stderr, left) == (0, "", set())
    assert (all_.returncode, all_.stderr, roll) == (0, "", [{b"interlock:roll"}] * 3)
    checked(json.loads(one.stdout), 1, 1)
    checked(json.loads(all_.stdout), 3, 3)


def test_nobody_there(run: Run, three: list[Node]) -> None:
    for words in (["--url", DEAD], [*urls(three[:1]), "--url", DEAD, "--url", "redis://127.0.0.1:2"]):
        done = run("bench", *words, *SHORT)
        assert (done.returncode, done.stdout) == (69, "")
        assert done.stderr.startswith("interlock: ")
        assert DEAD in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--url", "memory://"], 78, "no network to measure"),
        (["--url", "sqlite:a.db", "--url", DEAD], 78, "not a quorum that has files in it"),
        (["--url", "nonsense"], 78, "not a URL"),
        (["--seconds", "soon"], 64, "--seconds soon: not a duration"),
        (["--seconds", "0"], 64, "a tenth of a second to an hour"),
        (["--prefix", "a{b"], 64, "{"),
        (["--frobnicate"], 64, "unrecognized arguments: --frobnicate"),
    ],
)
def test_what_cannot_be_meant(run: Run, words: list[str], code: int, said: str) -> None:
    done = run("bench", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help(run: Run) -> None:
    done = run("bench", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "interlock bench --url redis://cache:6379" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_interrupted_it_cleans_up(node: Node) -> None:
    node.flush()
    command = [*COMMAND, "bench", "--url", node.url, "--seconds", "60s"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 30
        while not keys(node):
            assert time.monotonic() < until, "it never began"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")
    assert keys(node) == set()
