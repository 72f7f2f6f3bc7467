"""A process that holds leases forks, and the child does all that a child can do: the parent must not notice.

The parents are processes of their own (fork_worker.py), since a child of pytest would be pytest again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trustme

import interlock
from interlock.testing import Node
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
    return any(waiter.clock for waiter in client._site.gate.in_line.values())

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
