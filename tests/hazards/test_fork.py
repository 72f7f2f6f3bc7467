"""A process that holds leases forks, and the child does all that a child can do: the parent must not notice.

The parents are processes of their own (fork_worker.py), since a child of pytest would be pytest again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

import interlock
from interlock.testing import FaultProxy, Node
from interlock.testing.nodes import TLS

from .support import LIMIT, Worker, scaled

# Colour, store, threads that use the client beside the one that forks. All run side by side: mostly they wait.
PARENTS = [
    ("blocking", "valkey", 0),
    ("blocking", "tls", 0),
    ("blocking", "sqlite", 0),
    ("blocking", "valkey", 3),
    ("blocking", "sqlite", 2),
    ("asyncio", "valkey", 0),
    ("asyncio", "tls", 0),
    ("asyncio", "sqlite", 0),
]


@pytest.fixture
def places(valkey_node: Node, fresh_node: Callable[..., Node], tmp_path: Path) -> Callable[[str, int], str]:
    """Where each parent's store is."""
    authority = trustme.CA()
    paths = [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(paths[0])
    certificate.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])

    @cache
    def secure() -> Node:
        return fresh_node(kind="redis", tls=TLS(*map(str, paths)))

    def place(kind: str, number: int) -> str:
        if kind == "sqlite":
            return f"sqlite://{tmp_path}/{number}.db"
        # A database each: the trials of two parents have the same names.
        return f"{valkey_node.url}/{number}" if kind == "valkey" else f"{secure().tls_url}/{number}?ssl_ca_certs={paths[2]}"

    return place


@pytest.mark.timeout(LIMIT)
def test_nothing_that_a_child_does_harms_its_parent(places: Callable[[str, int], str]) -> None:
    each = scaled(3)  # here they share the actions out among them; at full scale each does them all
    wrong: list[Any] = []
    done: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    with ExitStack() as stack:
        parents = [
            stack.enter_context(Worker("fork_worker.py", colour, places(kind, number), threads, 3 * number, each))
            for number, (colour, kind, threads) in enumerate(PARENTS)
        ]
        for parent, (colour, kind, threads) in zip(parents, PARENTS, strict=True):
            where = f"{colour}, {kind}" + (f", {threads + 1} threads" if threads else "")
            for _ in range(each):
                action, trouble = parent.hear()
                done[where] += 1
                actions[action] += 1
                if trouble:
                    wrong.append((where, action, trouble))
    print(f"{sum(done.values())} forks: {dict(done)}; wrong {len(wrong)}; by action {dict(actions)}")
    assert wrong == []


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("kind", ["memory", "valkey"])
def test_a_fork_in_the_middle_of_a_ring_does_not_hang(kind: str, places: Callable[[str, int], str]) -> None:
    """The child starts as a copy of whatever its other threads had locked at that moment."""
    number = scaled(40)
    url = "memory://ringing" if kind == "memory" else places(kind, 15)
    with Worker("fork_worker.py", "ringing", url, 0, 0, number) as parent:
        wrong = [trouble for _, trouble in (parent.hear() for _ in range(number)) if trouble]
    print(f"{number} forks, {len(wrong)} wrong")
    assert wrong == []


PARENT = """
import asyncio, os, signal, sys, threading, time
import interlock

url, colour = sys.argv[1:]

def fork():
    child = os.fork()
    if not child:
        time.sleep(60)  # it never touches a lock
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def in_line(client):
    return any(waiter.after is not None for waiter in client._context.queue.in_line.values())

async def tasks():
    client = interlock.AsyncClient(url)
    waiting = asyncio.create_task(client.lock("x").acquire())
    while not in_line(client):
        await asyncio.sleep(0.01)
    fork()

if colour == "asyncio":
    asyncio.run(tasks())
client = interlock.Client(url)
threading.Thread(target=client.lock("x").acquire, daemon=True).start()
while not in_line(client):
    time.sleep(0.01)
fork()
"""


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_child_does_not_keep_a_waiter_alive_that_was_killed(valkey_node: Node, colour: str) -> None:
    """Its copy of the inbox would hear for the dead: the lock would go to nobody."""
    with interlock.Client(valkey_node.url, ttl=30) as client:
        lease, child = client.lock("x").acquire(), 0
        try:
            with subprocess.Popen([sys.executable, "-c", PARENT, valkey_node.url, colour], stdout=subprocess.PIPE) as parent:
                assert parent.stdout is not None
                child = int(parent.stdout.readline())
                assert parent.wait(20) == -signal.SIGKILL
                until = time.monotonic() + 5
                while valkey_node.command("PUBSUB", "CHANNELS"):
                    assert time.monotonic() < until, "somebody still listens"
                    time.sleep(0.02)
                os.kill(child, 0)  # it lives
                lease.release()
                assert not client.inspect("x").held, "the dead one is passed over"
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


NESTED = """
import fcntl, os, signal, sys, threading, time
import interlock
from interlock.runtime import forks

path = sys.argv[1]
client = interlock.Client(f"sqlite://{path}", request_timeout=3)
client.lock("a").acquire().release()
gate = open(path + "-gate")
fcntl.flock(gate, fcntl.LOCK_EX)  # somebody is inside for a while, so a fork has to wait
threading.Thread(target=client.lock("b").try_acquire, daemon=True).start()
time.sleep(0.2)

def fork(what):
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    print(what, flush=True)

signal.signal(signal.SIGALRM, lambda *_: fork("inner"))
signal.setitimer(signal.ITIMER_REAL, 0.3)
threading.Timer(0.6, lambda: fcntl.flock(gate, fcntl.LOCK_UN)).start()
fork("outer")
assert not forks._suspended and not forks._forks
client.lock("a").acquire(timeout=5).release()
print("goes on", flush=True)
"""


def test_a_signal_handler_may_fork_while_its_thread_is_about_to(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NESTED, str(tmp_path / "locks.db")], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.split("\n")[:3] == ["inner", "outer", "goes on"], done.stderr


PUT_AWAY = """
import os
from interlock.runtime import forks

class Thing:
    def __init__(self, inner):
        self.inner, self.open = inner, True

    def suspend(self, within):
        if self.inner:  # as from a signal handler
            self.inner = False
            if not os.fork():
                os._exit(0)
            os.wait()
            print("first open:", first.open, flush=True)
        self.open = False
        return True

    def resume(self):
        self.open = True

first, second = Thing(False), Thing(True)
forks.guard(first)
forks.guard(second)
if not os.fork():
    os._exit(first.open + second.open)
print("open in the child:", os.waitstatus_to_exitcode(os.wait()[1]), "after that:", first.open + second.open)
"""


def test_what_is_put_away_for_a_fork_stays_so_through_another() -> None:
    done = subprocess.run([sys.executable, "-c", PUT_AWAY], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "first open: False\nopen in the child: 0 after that: 2\n"


# --- what a fork waits for ------------------------------------------------------------------------------------------------

TOGETHER = """
import fcntl, os, sys, threading, time
import interlock
from interlock.runtime import forks

offered = []

class Stuck:
    def suspend(self, within):
        offered.append(within)
        time.sleep(within)
        return False

    def resume(self):
        raise AssertionError

stuck = [Stuck() for _ in range(5)]
for one in stuck:
    forks.guard(one)
forks.PATIENCE = 0.4
if not os.fork():
    os._exit(0)
os.wait()
assert len(offered) == 5 and min(offered) >= 0 and sum(offered) <= 0.45, offered
stuck.clear()

clients, gates = [], []
for number in range(5):  # each has its file open, and somebody is inside its gate
    path = f"{sys.argv[1]}/{number}.db"
    clients.append(interlock.Client(f"sqlite://{path}"))
    clients[-1].lock("a").acquire().release()
    gates.append(open(path + "-gate"))
    fcntl.flock(gates[-1], fcntl.LOCK_EX)
begin = time.monotonic()
if not os.fork():
    os._exit(0)
took = time.monotonic() - begin
os.wait()
assert took < 2.5, took  # a second for each, or two, would be five or ten
for gate in gates:
    fcntl.flock(gate, fcntl.LOCK_UN)
for client in clients:
    client.lock("a").acquire(timeout=5).release()
print("goes on")
"""


def test_a_fork_waits_for_all_clients_together_not_for_each(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "goes on\n", done.stderr


# --- what a child closes --------------------------------------------------------------------------------------------------

# The parent has every kind of descriptor: idle connections, one on which a thread waits for an answer, an inbox, connections
# that are being made, bells. The child becomes a daemon: closes all, opens files, and goes on with what it has.
DAEMON = """
import asyncio, gc, os, signal, stat, sys, threading, time, warnings
import interlock

colour, url, slow, folder = sys.argv[1:]
warnings.simplefilter("error")
LIMIT = 64
box = {}

def descriptors():
    kinds = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue
        if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
            kinds[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return kinds

def child(before):
    mine = {n: what for n, what in descriptors().items() if n not in before}
    wrong = []
    if mine:
        wrong.append(f"the child has {mine}")
    os.closerange(3, LIMIT)
    files = []
    while True:
        file = os.open(f"{folder}/{len(files)}.txt", os.O_RDWR | os.O_CREAT)
        if file >= LIMIT:
            os.close(file)
            break
        files.append(file)
    use(wrong)
    box.clear()
    gc.collect()
    use(wrong)
    for number, file in enumerate(files):
        try:
            os.write(file, b"%d" % number)
            os.lseek(file, 0, os.SEEK_SET)
            if os.read(file, 1000) != b"%d" % number:
                wrong.append(f"file {number} has something else in it")
        except OSError as error:
            wrong.append(f"file {number}: {error}")
    return wrong

def use(wrong):
    client = box.get("client")
    if colour == "blocking" and client is not None:
        with client.lock("child", timeout=5):
            pass
        client.close()
    elif colour == "asyncio":
        async def main():
            async with interlock.AsyncClient(url) as client, client.lock("child", timeout=5):
                pass
        asyncio.run(main())

def fork(before):
    pid = os.fork()
    if not pid:
        try:
            wrong = child(before)
        except BaseException as error:
            wrong = [repr(error)]
        print(f"child {wrong}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

def blocking():
    before = descriptors()
    client = box["client"] = interlock.Client(url, request_timeout=10)
    late = box["late"] = interlock.Client(slow, request_timeout=10)
    late.inspect("x")
    with client.lock("mine", ttl=30) as lease, interlock.Client(url) as other:
        theirs = other.lock("theirs", ttl=30).acquire()
        waiting = threading.Thread(target=lambda: client.lock("theirs").acquire(timeout=20).release())
        waiting.start()
        while not any(waiter.after is not None for waiter in client._context.queue.in_line.values()):
            time.sleep(0.01)
        print("dark", flush=True)
        sys.stdin.readline()
        asking = [threading.Thread(target=late.inspect, args=("x",)) for _ in range(3)]  # one connection is idle: two connect
        for thread in asking:
            thread.start()
        if slow == url:
            for thread in asking:
                thread.join()
        else:  # a bell that a thread is about to close at the very moment of the fork is nobody's in the child
            while len(late._context.backend._transport._connector.under_way) < 2:
                time.sleep(0.01)
        print("asked", flush=True)
        sys.stdin.readline()
        fork(before)
        print("light", flush=True)
        sys.stdin.readline()
        for thread in asking:
            thread.join()
        assert client.inspect("mine").fence == lease.fence
        theirs.release()
        waiting.join()
    box.clear()
    client.close()
    late.close()

async def tasks():
    before = descriptors()
    client = box["client"] = interlock.AsyncClient(url, request_timeout=10)
    late = box["late"] = interlock.AsyncClient(slow, request_timeout=10)
    await late.inspect("x")
    async with client.lock("mine", ttl=30) as lease, interlock.AsyncClient(url) as other:
        theirs = await other.lock("theirs", ttl=30).acquire()
        async def wait():
            await (await client.lock("theirs").acquire(timeout=20)).release()
        waiting = asyncio.create_task(wait())
        while not any(waiter.after is not None for waiter in client._context.queue.in_line.values()):
            await asyncio.sleep(0.01)
        print("dark", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        newcomer = interlock.AsyncClient(slow, request_timeout=10)  # it connects
        asking = [asyncio.create_task(one.inspect("x")) for one in [late, late, newcomer]]
        while newcomer._context.backend._transport._connecting is None and slow != url:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        print("asked", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        fork(before)
        print("light", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*asking)
        assert (await client.inspect("mine")).fence == lease.fence
        await theirs.release()
        await waiting
    box.clear()
    for one in (client, late, newcomer):
        await one.close()

if colour == "asyncio":
    asyncio.run(tasks())
else:
    blocking()
print("parent []", flush=True)
"""


@pytest.mark.parametrize("kind", ["valkey", "tls", "unix"])
@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_daemon_keeps_its_files_and_the_parent_its_connections(
    colour: str, kind: str, places: Callable[[str, int], str], valkey_node: Node, tmp_path: Path
) -> None:
    """Every copy of a connection is closed at the fork: later its number would be that of a file of the daemon's."""
    url = places(kind, 14) if kind != "unix" else f"{valkey_node.unix_url}?db=14"
    port = urlsplit(url).port or valkey_node.port
    (tmp_path / "files").mkdir()
    with FaultProxy(port) as proxy:
        slow = url.replace(f":{port}/", f":{proxy.port}/") if kind == "valkey" else url  # the proxy does not speak TLS
        program = [sys.executable, "-c", DAEMON, colour, url, slow, str(tmp_path / "files")]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            try:
                assert parent.stdin is not None
                assert parent.stdout is not None
                said = []
                for line in parent.stdout:
                    said.append(line.strip())
                    if said[-1] == "dark":
                        proxy.blackhole()
                    elif said[-1] == "light":
                        proxy.heal()
                    if said[-1] in ("dark", "asked", "light"):
                        parent.stdin.write("\n")
                        parent.stdin.flush()
                assert parent.wait(30) == 0
            finally:
                parent.kill()
    assert said == ["dark", "asked", "child []", "light", "parent []"]


CONNECTING = """
import asyncio, os, sys, threading
import interlock

colour, url = sys.argv[1:]

def fork():
    if os.fork() == 0:
        os.read(0, 1)  # it lives on
    os._exit(0)

async def tasks():
    client = interlock.AsyncClient(url, request_timeout=60)
    asking = asyncio.create_task(client.inspect("x"))
    await asyncio.to_thread(os.read, 0, 1)
    fork()

if colour == "asyncio":
    asyncio.run(tasks())
client = interlock.Client(url, request_timeout=60)
threading.Thread(target=client.inspect, args=("x",), daemon=True).start()
os.read(0, 1)
fork()
"""


@pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_child_does_not_keep_a_connection_alive_that_was_being_made(colour: str, kind: str, tmp_path: Path) -> None:
    """In the midst of a handshake: TLS moves the socket to another object, which nobody knows before it is done."""
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as listener:
        listener.bind(str(tmp_path / "socket") if kind == "unix" else ("127.0.0.1", 0))
        listener.listen()
        where = f"127.0.0.1:{listener.getsockname()[1]}/1" if kind != "unix" else ""
        url = {"tcp": f"redis://{where}", "tls": f"rediss://{where}", "unix": f"unix://{tmp_path}/socket?db=1"}[kind]
        program = [sys.executable, "-c", CONNECTING, colour, url]
        with subprocess.Popen(program, stdin=subprocess.PIPE, bufsize=0) as parent:
            assert parent.stdin is not None
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(20)
                assert connection.recv(4096), "it says hello"
                parent.stdin.write(b"x")
                assert parent.wait(20) == 0
                with suppress(ConnectionResetError):
                    assert connection.recv(4096) == b"", "the parent has ended, so has its connection"


AMID = """
import os, signal, sys
import interlock

client = interlock.Client(sys.argv[1], request_timeout=20, ttl=60)
client.inspect("x")
child = None

def fork(*_):
    global child
    child = os.fork()

signal.signal(signal.SIGALRM, fork)
print("ready", flush=True)
sys.stdin.readline()
try:
    lease = client.lock("x").acquire(timeout=0)
except interlock.InterlockError as error:
    print("child" if child == 0 else "parent", type(error).__name__, flush=True)
    os._exit(0)
if child == 0:
    print("child has it", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", lease.state, lease.release(), flush=True)
"""


def test_a_signal_handler_that_forks_amid_a_request_leaves_it_to_the_parent(valkey_node: Node) -> None:
    """The child comes back from the handler into the middle of the request. It must neither hear the answer nor undo it."""
    with FaultProxy(valkey_node.port) as proxy:
        program = [sys.executable, "-c", AMID, proxy.url]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            try:
                assert parent.stdin is not None
                assert parent.stdout is not None
                assert parent.stdout.readline() == "ready\n"
                proxy.blackhole("replies")
                parent.stdin.write("\n")
                parent.stdin.flush()
                until = time.monotonic() + 20
                while not valkey_node.command("EXISTS", "x"):
                    assert time.monotonic() < until
                    time.sleep(0.01)
                parent.send_signal(signal.SIGALRM)
                assert parent.stdout.readline() == "child UsageError\n"
                assert valkey_node.command("EXISTS", "x") == 1
                proxy.heal()
                assert parent.stdout.readline() == "parent held True\n"
            finally:
                parent.kill()
