"""Making a client: from a URL, the environment, a client object, another package; and every way to get it wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest

import interlock
from interlock import AsyncClient, Client, Unavailable, Unsupported, UsageError
from interlock.backends.registry import BUILT_IN, scheme_of

FACES: list[Any] = [Client, AsyncClient]


class Thing:
    """Something else. With a name that is the same in every process, since tests are handed out by their names."""

    def __repr__(self) -> str:
        return "Thing()"


SOURCE = str(Path(interlock.__file__).parents[1])
both = pytest.mark.parametrize("face", FACES)


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERLOCK_URL", raising=False)


# --- where the store is ---------------------------------------------------------------------------------------------------


@both
def test_a_url_picks_the_store(face: Any) -> None:
    assert face("memory://").address == "memory://"
    assert face("MEMORY://other").address == "memory://other"
    assert repr(face("memory://other")) == f"<{face.__name__} on memory://other>"


def test_clients_of_one_url_share_the_store_and_others_do_not() -> None:
    name = uuid4().hex
    one, same, other = Client(f"memory://{name}"), Client(f"memory://{name}"), Client(f"memory://{name}2")
    with one.lock("x"):
        assert same.inspect("x").held
        assert not other.inspect("x").held
    asyncio.run(AsyncClient(f"memory://{name}").inspect("x"))


@both
def test_the_environment_decides_when_nothing_is_said(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_URL", "memory://from-environment")
    assert face().address == "memory://from-environment"
    assert face(None).address == "memory://from-environment"
    assert face("memory://said").address == "memory://said", "what is said counts first"


@both
def test_a_wrong_environment_is_an_error_and_no_silent_default(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_URL", "localhost:6379")
    with pytest.raises(UsageError, match=r"^INTERLOCK_URL: "):
        face()
    with pytest.raises(UsageError, match=r"^(?!INTERLOCK_URL)"):
        face("localhost:6379")
    monkeypatch.setenv("INTERLOCK_URL", "redis://a,redis://b,redis://c")
    assert face().address == "quorum of 3 (redis://a:6379, redis://b:6379, redis://c:6379)"


def test_an_empty_environment_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.api.options import where

    for value in ("", None):
        if value is None:
            monkeypatch.delenv("INTERLOCK_URL", raising=False)
        else:
            monkeypatch.setenv("INTERLOCK_URL", value)
        assert where(None) == "sqlite:", "the embedded file of this user"


@both
@pytest.mark.parametrize("nodes", [["memory://1", "memory://2", "memory://3"], "memory://1,memory://2, memory://3"])
def test_several_nodes_are_a_quorum(face: Any, nodes: Any) -> None:
    assert face(nodes).address.startswith("quorum of 3")


@both
def test_lists_that_make_no_quorum(face: Any) -> None:
    with pytest.raises(UsageError, match="one node in a list"):
        face(["memory://1"])
    with pytest.raises(UsageError, match="twice"):
        face(["memory://1", "memory://2", "memory://1"])
    with pytest.raises(UsageError, match="quorum of quorums"):
        face(["memory://1", "memory://2", ["memory://3", "memory://4"]])
    with pytest.warns(RuntimeWarning, match="use an odd number"):
        face(["memory://1", "memory://2"])


@both
@pytest.mark.parametrize("nodes", [[], ()])
def test_no_nodes_are_no_store(face: Any, nodes: Any) -> None:
    with pytest.raises(UsageError, match="list of stores is empty") as caught:
        face(nodes)
    assert not isinstance(caught.value, Unsupported)


@both
@pytest.mark.parametrize("url", ["nosuch://host", "http://localhost", "redis+sentinel://a", "file:x"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(face: Any, url: str) -> None:
    with pytest.raises(UsageError, match="no store is known for") as caught:
        face(url)
    assert all(f"{scheme}://" in str(caught.value) for scheme in BUILT_IN)
    assert "Did you mean" not in str(caught.value)


@both
@pytest.mark.parametrize("url", ["localhost:6379", "my-cache.internal:6379", "127.0.0.1:6379", "cache:6379/2"])
def test_a_host_and_a_port_are_no_url_but_nearly(face: Any, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        face(url)
    assert f"Did you mean redis://{url}?" in str(caught.value)


@both
@pytest.mark.parametrize("start", ["redis://h", "rediss://h:1/2", "valkey://h", "unix:///run/redis.sock"])
def test_an_option_that_nobody_knows_is_refused_by_name(face: Any, start: str) -> None:
    with pytest.raises(
        UsageError, match=r"^unknown option 'ttl' in the URL; ttl= is an argument of Client and lock; nothing was sent"
    ):
        face(f"{start}?ttl=1")
    with pytest.raises(UsageError, match=r"^unknown option 'colour' in the URL; nothing was sent"):
        face(f"{start}?colour=blue")
    face(f"{start}?client_name=me")


def test_an_option_with_a_wrong_value_is_refused_without_the_value() -> None:
    with pytest.raises(UsageError, match="<ssl_cert_reqs>") as caught:
        Client(f"rediss://h?ssl_cert_reqs={SECRET}").inspect("x")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("answer", [b"", b"-ERR Protocol error\r\n"], ids=["silence", "an error"])
def test_tls_to_a_plain_port_is_named_as_a_cause(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain, ThreadPoolExecutor(1) as thread:
        client = Client(f"rediss://127.0.0.1:{plain.getsockname()[1]}", request_timeout=0.3 if not answer else 10)
        asked = thread.submit(client.inspect, "x")
        connection, _ = plain.accept()
        with connection:
            if answer:
                connection.recv(1)
                connection.sendall(answer)
            # Of a silent one that can only be said if the handshake's own end is heard in time.
            cause = r"\(rediss:// needs a TLS port\)" if answer else r"\(rediss:// needs a TLS port\)|did not answer in time"
            with pytest.raises(Unavailable, match=cause):
                asked.result(timeout=20)


@both
@pytest.mark.parametrize(
    "url", ["", "localhost", "/var/lib/locks.db", "//localhost", "://x", "local host:6379", "127.0.0.1:6379", " redis://a"]
)
def test_a_url_without_a_scheme_is_refused(face: Any, url: str) -> None:
    with pytest.raises(UsageError, match="has no scheme"):
        face(url)


@both
@pytest.mark.parametrize("store", [7, b"redis://a", {"redis://a"}, Thing(), print, Path("x"), {"host": "a"}], ids=repr)
def test_what_is_no_store_is_refused(face: Any, store: Any) -> None:
    with pytest.raises(UsageError, match=f"a store is a URL .* not {type(store).__name__}"):
        face(store)


@both
@pytest.mark.parametrize("url", ["memory://a/b", "memory://?x=1", "memory:///path", "memory://a#b"])
def test_a_memory_has_a_name_and_nothing_else(face: Any, url: str) -> None:
    with pytest.raises(UsageError, match="memory://NAME"):
        face(url)


def test_a_scheme_is_read_in_any_case() -> None:
    assert [scheme_of(url) for url in ("redis://a", "REDISS://a", "redis+x://", "sqlite:")] == [
        "redis",
        "rediss",
        "redis+x",
        "sqlite",
    ]


# --- secrets --------------------------------------------------------------------------------------------------------------

SECRET = "hunter2"
WITH_PASSWORD = [
    "user:hunter2@host:6379",
    "hunter2@host",
    ":hunter2@host",
    "redis//:hunter2@host",
    "redis_cluster://:hunter2@host",
    "nosuch://user:hunter2@host",
    "redis://user:hunter2@host:port",
    "redis://user:hunter2@host:99999",
    "redis://user:hunter2@host/name",
    "redis://user:hunter2@",
    "redis://user:hunter2@[::1",
    "redis://user:hunter2/with-a-slash@host",
    "redis://user:hunter2?with-a-mark@host",
    "redis://user:hunter2#with-a-hash@host",
    "redis://user:1/hunter2@host",
    "redis://user:1?hunter2=x@host",
    "redis://host?nonsense=hunter2",
    "redis://host?password=hunter2&db=x",
    "redis://host:port?password=hunter2",
    "unix://?password=hunter2",
    "host/?password=hunter2",
    "redis://:hunter2@a,redis://:hunter2@a",
    "memory://user:hunter2@host/path",
    ["redis://:hunter2@a", "redis://:hunter2@a"],
]


@both
@pytest.mark.parametrize("url", WITH_PASSWORD, ids=str)
def test_no_error_shows_a_password(face: Any, url: Any) -> None:
    with pytest.raises(UsageError) as caught:
        face(url)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert SECRET not in str(caught.value)


@both
def test_an_address_shows_no_password(face: Any) -> None:
    client = face("redis://user:hunter2@host:6380/3")
    assert client.address == "redis://host:6380/3"
    assert SECRET not in repr(client) + repr(client.lock("x"))
    assert face("redis://host?password=hunter2").address == "redis://host:6379"


# --- client objects -------------------------------------------------------------------------------------------------------


class Pool:
    connection_kwargs: ClassVar[dict[str, Any]] = {}
    connection_class = object


class BlockingLike:
    connection_pool = Pool()

    def execute_command(self) -> None: ...


class AsyncLike:
    connection_pool = Pool()

    async def execute_command(self) -> None: ...


class ClusterLike:
    nodes_manager = Thing()

    def execute_command(self) -> None: ...


def test_a_client_object_of_the_other_colour_is_refused() -> None:
    with pytest.raises(UsageError, match=r"client object is asyncio, but Client takes redis\.Redis"):
        Client(AsyncLike())
    with pytest.raises(UsageError, match=r"client object is blocking, but AsyncClient takes redis\.asyncio\.Redis"):
        AsyncClient(BlockingLike())


def test_a_cluster_client_is_not_in_this_version() -> None:
    with pytest.raises(Unsupported, match="cluster"):
        Client(ClusterLike())


def test_an_object_that_only_looks_like_a_client_is_refused() -> None:
    with pytest.raises(UsageError, match="not a connection of redis-py or valkey-py"):
        Client(BlockingLike())


def test_redis_pys_own_clients_are_told_apart() -> None:
    import redis.asyncio

    assert Client(redis.Redis(host="h", port=1, password=SECRET)).address == "redis://h:1"
    assert AsyncClient(redis.asyncio.Redis(host="h", port=1, db=2, password=SECRET)).address == "redis://h:1/2"
    with pytest.raises(UsageError):
        Client(redis.asyncio.Redis(host="h"))
    with pytest.raises(UsageError):
        AsyncClient(redis.Redis(host="h"))


def test_without_the_redis_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("redis.connection", "redis.asyncio.connection"):
        monkeypatch.setitem(sys.modules, module, None)
    for face in FACES:
        with pytest.raises(UsageError, match=r"pip install 'interlock\[redis\]'") as caught:
            face("redis://host")
        assert "ModuleNotFoundError" not in "".join(traceback.format_exception(caught.value))


# --- stores of other packages ---------------------------------------------------------------------------------------------

FAKE_STORE = """
from interlock.backends.port import Capabilities

opened = []

class Fake:
    address = "fake://there"
    capabilities = Capabilities(processes=False, hosts=False, survives=False, foreign=False)

def open_fake(url, runtime):
    opened.append((url, runtime.colour))
    return Fake()
"""


def test_a_store_of_another_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h4_fake_store.py").write_text(FAKE_STORE)
    info = tmp_path / "h4_fake_store-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: h4-fake-store\nVersion: 1.0\n")
    points = "".join(f"{scheme} = h4_fake_store:open_fake\n" for scheme in ("h4fake", "h4-fake.2"))
    (info / "entry_points.txt").write_text(f"[interlock.backends]\n{points}")
    with pytest.raises(UsageError, match="no store is known for 'h4fake://'"):
        Client("h4fake://x")
    monkeypatch.syspath_prepend(tmp_path)
    assert Client("h4fake://x").address == "fake://there"
    AsyncClient("H4FAKE://y")
    with pytest.raises(UsageError, match=r"valkeys://, h4-fake\.2://, h4fake://"):
        Client("h4nosuch://x")
    module: Any = sys.modules["h4_fake_store"]
    assert module.opened == [("h4fake://x", "blocking"), ("H4FAKE://y", "asyncio")]
    assert Client("h4-fake.2://x").address == "fake://there", "a scheme may have such characters"


def test_no_other_package_can_take_over_a_built_in_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "h4_usurper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: h4-usurper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[interlock.backends]\nmemory = no_such_module:open\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Client("memory://").address == "memory://"


# --- settings -------------------------------------------------------------------------------------------------------------


@both
def test_how_a_lease_is_kept_is_checked_at_once(face: Any) -> None:
    client = face("memory://", renew=False)
    client.lock("x", renew=True)
    for wrong in (None, 1, "no"):
        with pytest.raises(UsageError, match="renew is True or False"):
            client.lock("x", renew=wrong)
        with pytest.raises(UsageError, match="renew is True or False"):
            face("memory://", renew=wrong)

    async def awaited(lease: object) -> None: ...

    for wrong_setting, said in (
        ({"max_hold": 9}, "at least the ttl"),
        ({"max_hold": float("nan")}, "finite"),
        ({"progress": 0}, "longest time between"),
        ({"lock_delay": -1}, "0 or more"),
        ({"lock_delay": 7 * 86_400}, "7 days"),
        ({"on_lost": "stop"}, "a function that takes the lease"),
        ({"on_doubtful": awaited}, "called, not awaited"),
        ({"note": "two\nlines"}, "one line"),
        ({"note": "x" * 101}, "100 characters"),
        ({"note": 7}, "not int"),
        ({"renew": False, "max_hold": 60}, "limit renewal"),
    ):
        with pytest.raises(UsageError, match=said):
            face("memory://").lock("x", **wrong_setting)
        with pytest.raises(UsageError, match=said):
            face("memory://").locked("x", **wrong_setting)


@both
@pytest.mark.parametrize(
    "settings",
    [
        {"ttl": 0},
        {"ttl": None},
        {"timeout": -1},
        {"timeout": "5"},
        {"request_timeout": 0},
        {"request_timeout": None},
        {"request_timeout": 61},
    ],
)
def test_settings_that_cannot_work_are_refused_when_the_client_is_made(face: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        face("memory://", **settings)


@both
def test_settings_are_named(face: Any) -> None:
    with pytest.raises(TypeError):
        face("memory://", 10)
    with pytest.raises(TypeError):
        face("memory://").lock("x", 10)


def test_a_lock_takes_the_settings_of_its_client_unless_told_otherwise() -> None:
    client = Client(f"memory://{uuid4().hex}", ttl=100, timeout=0)

    def left(**options: Any) -> float:
        with client.lock("x", **options):
            return client.inspect("x").remaining or 0.0

    assert 90 < left() <= 100
    assert 40 < left(ttl=50) <= 50
    with client.lock("x"), pytest.raises(TimeoutError):
        client.lock("x").acquire()


def test_a_client_is_a_block_and_closes_at_its_end() -> None:
    with Client(f"memory://{uuid4().hex}") as client:
        lock = client.lock("x")
        with lock:
            pass
    with pytest.raises(UsageError, match="closed"):
        lock.acquire()
    client.close()

    async def main() -> None:
        async with AsyncClient("memory://") as aclient:
            pass
        with pytest.raises(UsageError, match="closed"):
            await aclient.inspect("x")
        await aclient.close()

    asyncio.run(main())


def test_acquiring_on_a_closed_client_does_not_say_that_something_may_stay_locked() -> None:
    client = Client("memory://")
    lock = client.lock("x")
    client.close()
    with pytest.raises(UsageError, match="closed") as caught:
        lock.acquire()
    assert not [note for note in getattr(caught.value, "__notes__", []) if "may stay locked" in note]


# --- the default client ---------------------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints, which must say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={key: value for key, value in os.environ.items() if key != "INTERLOCK_URL"} | {"PYTHONPATH": SOURCE} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_default_client_is_one_per_process_and_asks_the_environment() -> None:
    code = """
import threading, interlock
from interlock.api import client
made = []
init = client.Client.__init__
client.Client.__init__ = lambda self, *a, **k: (made.append(1), init(self, *a, **k))[1]
locks, start = [], threading.Barrier(8)
def use(n):
    start.wait()
    locks.append(interlock.lock(f"x{n}", ttl=5, timeout=0, renew=False))
threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(made) == 1, made
assert len({id(lock._context.backend) for lock in locks}) == 1
with interlock.lock("y") as lease:
    assert lease.ttl == 10.0
    assert interlock.lock("y").try_acquire() is None
print(interlock.lock("x"))
"""
    assert python(code, INTERLOCK_URL="memory://default") == "<Lock 'x' on memory://default>"


def test_a_default_that_cannot_be_made_is_asked_for_again() -> None:
    code = """
import os, interlock
try:
    interlock.lock("x")
except interlock.UsageError:
    os.environ["INTERLOCK_URL"] = "memory://"
print(interlock.lock("x"))
"""
    assert python(code, INTERLOCK_URL="nosuch://") == "<Lock 'x' on memory://>"


def test_the_default_client_is_there_until_the_interpreter_ends(tmp_path: Path) -> None:
    code = """
import atexit, interlock
def late():
    with interlock.lock("x") as lease:
        print(lease.state)
atexit.register(late)
with interlock.lock("x"):
    pass
"""
    assert python(code, INTERLOCK_URL=f"sqlite://{tmp_path}/locks.db") == "held"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["locks.db", "locks.db-gate"], "and then put away"
