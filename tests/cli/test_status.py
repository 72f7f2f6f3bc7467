from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from interlock import Client
from interlock.testing.nodes import Node

from .support import COMMAND, Holder, Run, environment

SECRET = "sEcr3t-pa55"


def test_a_free_lock(run: Run, url: str) -> None:
    done = run("status", "order:1", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("order:1 is free\n")
    assert f"store  {url.partition('//')[0]}" in done.stdout


def test_a_free_lock_as_json(run: Run, url: str) -> None:
    done = run("--url", url, "status", "order:1", "--json")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    facts = json.loads(done.stdout)
    assert facts.pop("store")
    assert facts == {
        "name": "order:1",
        "held": False,
        "owner": None,
        "remaining": None,
        "fence": None,
        "waiters": 0,
        "waiting": [],
    }


def test_a_lock_that_another_process_holds(run: Run, url: str) -> None:
    with Holder(url, "order:1") as holder:
        text = run("status", "order:1", env={"INTERLOCK_URL": url})
        facts = json.loads(run("status", "order:1", "--json", env={"INTERLOCK_URL": url}).stdout)
        code = run("status", "order:1", "--exit-code", env={"INTERLOCK_URL": url})
    host = facts["owner"].rpartition(":")[0]
    assert facts["held"] is True
    assert facts["owner"] == f"{host}:{holder.pid}"
    assert facts["fence"] == holder.fence
    assert 0 < facts["remaining"] <= 30
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.startswith(f"order:1 is held by {host}:{holder.pid}\n")
    assert f"process {holder.pid} on host {host}" in text.stdout
    assert str(holder.fence) in text.stdout
    assert holder.token[:32] not in text.stdout + json.dumps(facts)
    assert code.returncode == 1
    assert run("status", "order:1", "--exit-code", "--url", url).returncode == 0, "released: free again"


def test_the_queue(run: Run, url: str) -> None:
    """Who waits, in order, and since when; a client once, however many of its threads wait."""
    clients = [Client(url) for _ in range(2)]
    threads = []
    with Holder(url, "order:1") as holder:
        for number in (0, 1, 1):
            threads.append(Thread(target=_wait_briefly, args=(clients[number], f"reason {number}")))
            threads[-1].start()
            time.sleep(0.4)
        facts = json.loads(run("status", "order:1", "--json", "--url", url).stdout)
        text = run("status", "order:1", "--url", url).stdout
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    me = f"{os.uname().nodename}:{os.getpid()}"
    assert facts["waiters"] == 2
    assert [(one["position"], one["owner"]) for one in facts["waiting"]] == [(1, f"{me} (reason 0)"), (2, f"{me} (reason 1)")]
    first, second = (one["since"] for one in facts["waiting"])
    assert first > second > 0.2
    assert "queue  2 waiting" in text
    assert f"1  {me} (reason 0)  for " in text
    assert holder.token[:32] not in text


def _wait_briefly(client: Client, note: str) -> None:
    with client.lock("order:1", timeout=30, note=note):
        pass


def test_the_url_of_the_command_line_wins(run: Run, node: Node) -> None:
    done = run("status", "order:1", "--url", node.url, env={"INTERLOCK_URL": "redis://127.0.0.1:1"})
    assert done.returncode == 0
    assert f"127.0.0.1:{node.port}" in done.stdout


def test_a_holder_that_is_not_interlock(run: Run, node: Node) -> None:
    node.command("SET", "foreign", SECRET, "NX", "PX", 30_000)
    text = run("status", "foreign", "--url", node.url, "--exit-code")
    facts = json.loads(run("status", "foreign", "--url", node.url, "--json").stdout)
    assert text.returncode == 1
    assert "held by a client that is not interlock" in text.stdout
    assert "fence" not in text.stdout
    assert SECRET not in text.stdout
    assert facts["held"] is True
    assert facts["owner"] is None
    assert facts["fence"] is None
    assert 0 < facts["remaining"] <= 30


def test_a_holder_without_expiry(run: Run, node: Node) -> None:
    node.command("SET", "forever", "x")
    text = run("status", "forever", "--url", node.url)
    assert "never by itself" in text.stdout
    assert json.loads(run("status", "forever", "--url", node.url, "--json").stdout)["remaining"] is None


def test_what_strangers_write_does_not_steer_the_terminal(run: Run, node: Node) -> None:
    node.command("SET", "evil", b"0" * 32 + b"~\x1b[31mhost\n:1", "PX", 30_000)
    done = run("status", "evil", "--url", node.url)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mhost\\n:1" in done.stdout


@pytest.mark.parametrize("name", ["", "   ", "a\x07", "a{b}", "x" * 600, "interlock:roll"])
def test_a_name_that_no_lock_can_have(run: Run, node: Node, name: str) -> None:
    done = run("status", name, "--url", node.url)
    assert done.returncode == 64
    assert_one_line(done)


@pytest.mark.parametrize("bad", ["nonsense", "http://x", "redis://", "redis://h:notaport", "redis://a,redis://a"])
def test_a_url_that_cannot_work(run: Run, bad: str) -> None:
    done = run("status", "order:1", env={"INTERLOCK_URL": bad})
    assert done.returncode == 78
    assert_one_line(done)


def test_a_key_that_is_no_lock(run: Run, node: Node) -> None:
    node.command("RPUSH", "list", "x")
    done = run("status", "list", "--url", node.url, "--exit-code")
    assert done.returncode == 78
    assert_one_line(done)
    assert "not a lock" in done.stderr
    assert "78 wrong URL, or the key is not a lock" in run("status", "--help").stdout


def test_there_is_nothing_to_see_in_the_memory_of_another_process(run: Run) -> None:
    done = run("status", "order:1", "--url", "memory://x")
    assert done.returncode == 78
    assert_one_line(done)
    assert "memory:// lives in one process" in done.stderr


@pytest.mark.parametrize("url", ["", "sqlite:locks.db"])
def test_looking_makes_no_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "INTERLOCK_URL": url}
    done = run("status", "order:1", "--exit-code", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"store  sqlite://{tmp_path}/" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_not_the_usual_one_is_named_and_warned_of_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / ".local").write_text("in the way")
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    done = run("status", "order:1", env=env)
    assert done.returncode == 0
    assert done.stdout == f"order:1 is free\n  store  sqlite://{tmp_path}/run/interlock/locks.db\n"
    assert done.stderr.startswith(f"interlock: interlock keeps its locks in {tmp_path}/run/interlock/locks.db, because")
    assert done.stderr.count("\n") == 1


def test_nodes_that_do_not_answer_are_told_apart_in_one_line(run: Run) -> None:
    done = run("status", "order:1", "--url", "redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3")
    assert done.returncode == 69
    assert done.stderr.count("\n") == 1
    assert "2 of 3 nodes must answer: redis://127.0.0.1:1 refused" in done.stderr
    assert "; redis://127.0.0.1:2 refused" in done.stderr


def test_the_nodes_of_a_quorum(run: Run, make_nodes: Callable[..., list[Node]]) -> None:
    nodes = make_nodes(3)
    url = ",".join(node.url for node in nodes)
    assert "votes" in json.loads(run("status", "order:1", "--json", "--url", url).stdout)
    with Holder(url, "order:1") as holder:
        nodes[1].kill()
        text = run("status", "order:1", "--url", url)
        facts = json.loads(run("status", "order:1", "--json", "--url", url).stdout)
        nodes[1].start()
    assert text.stdout.startswith("order:1 is held by ")
    store, *lines = text.stdout.splitlines()[4:]
    assert "quorum of 3" in store
    assert [line.split()[:2] for line in lines] == [[n.url, "refused" if n is nodes[1] else "held"] for n in nodes]
    assert [(vote["node"], vote["verdict"]) for vote in facts["votes"]] == [tuple(line.split()[:2]) for line in lines]
    assert str(holder.pid) in facts["votes"][0]["detail"]
    assert (facts["held"], facts["fence"]) == (True, holder.fence)


@pytest.mark.parametrize("options", [[], ["--json"], ["--exit-code"]])
def test_a_store_that_is_not_there(run: Run, options: list[str]) -> None:
    with socket.socket() as taken:  # bound, not listening: nobody else gets the port and every connection is refused
        taken.bind(("127.0.0.1", 0))
        done = run("status", "order:1", *options, "--url", f"redis://127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 69
    assert_one_line(done)


def test_passwords_are_never_shown(run: Run) -> None:
    with Node(password=SECRET) as locked:
        wrong = run("status", "order:1", "--url", f"redis://:{SECRET}-wrong@127.0.0.1:{locked.port}")
        right = run("status", "order:1", env={"INTERLOCK_URL": locked.url})
        as_json = run("status", "order:1", "--json", env={"INTERLOCK_URL": locked.url})
    assert wrong.returncode == 69
    assert_one_line(wrong)
    assert (right.returncode, as_json.returncode) == (0, 0)
    assert SECRET not in "".join(done.stdout + done.stderr for done in (wrong, right, as_json))


def test_ctrl_c_is_quiet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*COMMAND, "status", "order:1", "--url", url], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)  # it has asked and waits for an answer
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=20)
    assert (process.returncode, output) == (130, (b"", b""))


def test_a_closed_pipe_is_quiet(url: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "status", "order:1", "--url", url],
        env=environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=20,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def assert_one_line(done: subprocess.CompletedProcess[str]) -> None:
    assert done.stdout == ""
    assert done.stderr.startswith("interlock: ")
    assert done.stderr.count("\n") == 1
