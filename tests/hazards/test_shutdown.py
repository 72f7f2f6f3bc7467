"""A program ends while it holds leases that are renewed: it ends at once, with its own exit code, and says nothing.

And the smallest end of all: a release in the very moment of a renewal. Nothing may be renewed after it was given back.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import interlock
from interlock.testing import Node
from interlock.testing.faces import COLOURS, Kit, run_body

from .support import LIMIT, now, scaled

PROMPT = 10.0  # seconds; an end takes half a second, and the machine may be busy

HEAD = """
import asyncio, logging, os, sys, threading, time
import interlock
URL = sys.argv[1]
def renewed(client, lease, times=1):
    seen = client.keeping().renewals
    while client.keeping().renewals < seen + times:
        time.sleep(0.005)
    assert lease.state == "held"
"""

# What it does, how it is to end, what it may say on stderr (a pattern; nothing if empty).
PROGRAMS: dict[str, tuple[str, int, str]] = {
    "main returns": (
        """
client = interlock.Client(URL)
leases = [client.lock(f"{os.getpid()}:{n}", ttl=0.6, on_lost=print, on_doubtful=print).acquire() for n in range(3)]
renewed(client, leases[0], 3)
""",
        0,
        "",
    ),
    "sys.exit inside a block": (
        """
client = interlock.Client(URL)
with client.lock(str(os.getpid()), ttl=0.6) as lease:
    renewed(client, lease)
    sys.exit(3)
""",
        3,
        "",
    ),
    "sys.exit in a thread": (
        """
client = interlock.Client(URL)
def work():
    with client.lock(f"{os.getpid()}:thread", ttl=0.6) as lease:
        renewed(client, lease)
        sys.exit(3)
lease = client.lock(f"{os.getpid()}:main", ttl=0.6).acquire()
thread = threading.Thread(target=work)
thread.start()
thread.join()
renewed(client, lease)
""",
        0,
        "",
    ),
    "an exception that nobody handles": (
        """
client = interlock.Client(URL)
lease = client.lock(str(os.getpid()), ttl=0.6).acquire()
renewed(client, lease)
raise KeyError("intended")
""",
        1,
        r"Traceback \\(most recent call last\\):\\n  File .*\\nKeyError: 'intended'\\n",
    ),
    "os._exit": (
        """
client = interlock.Client(URL)
lease = client.lock(str(os.getpid()), ttl=0.6).acquire()
renewed(client, lease)
os._exit(4)
""",
        4,
        "",
    ),
    "a worker thread outlives main": (
        """
client = interlock.Client(URL)
def work():
    threading.main_thread().join()  # main is over, and the interpreter waits for us
    with client.lock(f"{os.getpid()}:late", ttl=0.6) as late:  # begun after the end of main, even
        renewed(client, lease, 4)
        time.sleep(1.0)
        assert lease.state == late.state == "held", (lease.state, late.state)
    print("held to the end", lease.release(), flush=True)
lease = client.lock(f"{os.getpid()}:early", ttl=0.6).acquire()
threading.Thread(target=work).start()
""",
        0,
        "",
    ),
    "a daemon thread in the middle of everything": (
        """
client = interlock.Client(URL)
def work(n):
    while True:
        with client.lock(f"{os.getpid()}:{n}", ttl=0.6):
            pass
for n in range(3):
    threading.Thread(target=work, args=(n,), daemon=True).start()
lease = client.lock(str(os.getpid()), ttl=0.6).acquire()
renewed(client, lease)
""",
        0,
        "",
    ),
    "many clients": (
        """
clients = [interlock.Client(URL) for _ in range(8)]
leases = [client.lock(f"{os.getpid()}:{n}", ttl=0.6).acquire() for n, client in enumerate(clients)]
for client, lease in zip(clients, leases):
    renewed(client, lease)
""",
        0,
        "",
    ),
    "asyncio.run ends with a lease held": (
        """
async def main():
    global client, lease
    client = interlock.AsyncClient(URL)
    lease = await client.lock(str(os.getpid()), ttl=0.6).acquire()
    await asyncio.sleep(0.5)
    assert client.keeping().renewals and lease.state == "held"
asyncio.run(main())
""",
        0,
        "",
    ),
    "asyncio.run ends with a task inside a block": (
        """
async def work(client, inside):
    async with client.lock(str(os.getpid()), ttl=0.6):
        inside.set()
        await asyncio.sleep(60)
async def main():
    client, inside = interlock.AsyncClient(URL), asyncio.Event()
    task = asyncio.create_task(work(client, inside))
    await inside.wait()
    await asyncio.sleep(0.3)
asyncio.run(main())
""",
        0,
        "",
    ),
    "asyncio.run ends by an exception": (
        """
async def main():
    async with interlock.AsyncClient(URL) as client, client.lock(str(os.getpid()), ttl=0.6):
        await asyncio.sleep(0.3)
        raise KeyError("intended")
asyncio.run(main())
""",
        1,
        r"Traceback \\(most recent call last\\):\\n  File .*\\nKeyError: 'intended'\\n",
    ),
    "the keeper is asked again after the end": (
        """
import atexit
client = interlock.Client(URL)
def late():
    with client.lock(f"{os.getpid()}:late", ttl=0.6):
        pass
atexit.register(late)
lease = client.lock(str(os.getpid()), ttl=0.6).acquire()
renewed(client, lease)
""",
        0,
        "",
    ),
}


@pytest.fixture(params=["valkey", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, valkey_node: Node) -> str:
    return valkey_node.url if request.param == "valkey" else f"sqlite://{tmp_path}/locks.db"


def started(program: str, url: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options, "-c", HEAD + program, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.timeout(LIMIT)
def test_programs_that_end_while_they_hold(url: str) -> None:
    for _ in range(scaled(0.5)):
        running = {what: started(program, url) for what, (program, _, _) in PROGRAMS.items()}
        wrong = []
        try:
            for what, process in running.items():
                _, code, words = PROGRAMS[what]
                try:
                    out, err = process.communicate(timeout=20 + PROMPT)
                except subprocess.TimeoutExpired:
                    wrong.append((what, "it hangs"))
                    continue
                err = re.sub(r"renewal of .* is starved .*\n", "", err)  # all these programs start at once
                if process.returncode != code or not re.fullmatch(words.replace("\\\\", "\\"), err, re.DOTALL):
                    wrong.append((what, process.returncode, err))
                if what == "a worker thread outlives main" and out != "held to the end True\n":
                    wrong.append((what, out))
        finally:
            for process in running.values():
                process.kill()
                process.communicate()
        assert wrong == []


AMID = """
os.environ["INTERLOCK_URL"] = URL
def work(n):
    while True:
        with interlock.lock(f"{os.getpid()}:{n}"):
            pass
for n in range(3):
    threading.Thread(target=work, args=(n,), daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.timeout(LIMIT)
def test_programs_that_end_amid_their_daemon_threads(url: str) -> None:
    """Nothing is closed under a thread that uses it: one program in four died of that with SQLite (a signal, no word)."""
    for _ in range(scaled(5)):
        running = [started(AMID, url) for _ in range(3)]
        try:
            ends = [(*process.communicate(timeout=20 + PROMPT), process.returncode) for process in running]
        finally:
            for process in running:
                process.kill()
                process.communicate()
        assert ends == [("", "", 0)] * 3


@pytest.mark.timeout(LIMIT)
def test_with_warnings_on_only_what_is_meant_is_said(url: str) -> None:
    """With -X dev Python says what it thinks of programs that leave things open. We say: a lease was dropped. Nothing worse."""
    process = started(PROGRAMS["main returns"][0], url, "-X", "dev")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert not re.search(r"Traceback|Exception ignored|Fatal", err), err
    tidy = "with interlock.Client(URL) as client, client.lock('x', ttl=0.6) as lease:\n    renewed(client, lease)"
    closed = started(tidy, url, "-X", "dev")
    _, err = closed.communicate(timeout=30)
    assert (closed.returncode, err) == (0, ""), "who closes what it opened hears nothing"


@pytest.mark.parametrize("end", ["", "box.append(box); del client, box; gc.collect()"], ids=["at exit", "as garbage"])
def test_a_client_that_nobody_closed_says_nothing(url: str, end: str) -> None:
    program = "import gc; client = interlock.Client(URL); box = [client]; client.lock('x', renew=False).acquire().release()\n"
    process = started(program + end, url, "-X", "dev")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


# --- the moment of a release ----------------------------------------------------------------------------------------------


class Monitor(threading.Thread):
    """What the server was asked, in the order in which it did it."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self._wire = socket.create_connection((node.host, node.port))
        self._wire.sendall(b"MONITOR\r\n")
        assert self._wire.recv(5) == b"+OK\r\n"

    def run(self) -> None:
        with self._wire.makefile("r", encoding="utf-8", errors="replace") as stream:
            self.lines.extend(stream)

    def end(self, node: Node) -> list[str]:
        node.command("ECHO", "the end")
        until = time.monotonic() + 30
        while not any('"the end"' in line for line in self.lines[-5:]):
            assert time.monotonic() < until, "the monitor stopped listening"
            time.sleep(0.01)
        self._wire.shutdown(socket.SHUT_RDWR)
        self.join()
        self._wire.close()
        return self.lines


@contextmanager
def monitored(node: Node) -> Iterator[list[str]]:
    monitor = Monitor(node)
    monitor.start()
    lines: list[str] = []
    try:
        yield lines
    finally:
        lines += monitor.end(node)


def sequence(lines: list[str]) -> tuple[Counter[str], list[str], list[str]]:
    """What happened; which locks were extended by the server after the token was gone; and which were only asked to be."""
    done: Counter[str] = Counter()
    owner: dict[str, str] = {}  # lock → token
    given_back: set[str] = set()  # tokens whose lock was deleted
    extended, asked = [], []
    for line in lines:
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
        if not words:
            continue
        verb = words[0].upper()
        if " lua]" not in line:
            for token in re.findall(r"[0-9a-f]{32}~[^\"\\]*", line):
                if token in given_back:
                    asked.append(line)
        elif verb == "SET" and len(words) > 3 and "~" in words[2]:
            owner[words[1]] = words[2]
            done["granted"] += 1
        elif verb == "DEL":
            given_back.add(owner.pop(words[1], ""))
            done["released"] += 1
        elif verb == "PEXPIRE" and not words[1].startswith("interlock:"):
            done["extended"] += 1
            if words[1] not in owner:
                extended.append(line)
    return done, extended, asked


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("colour", COLOURS)
def test_nothing_is_renewed_after_it_was_given_back(valkey_node: Node, colour: str) -> None:
    races = scaled(500)
    workers = 16 if colour == "blocking" else 50
    ttl = 0.15
    outcomes: Counter[str] = Counter()

    async def body(kit: Kit) -> None:
        client = kit.client(renew=True, ttl=ttl, timeout=30)

        async def work(number: int) -> None:
            for n in range(number, races, workers):
                lock = client.lock(f"race:{n}")
                try:
                    async with lock as lease:
                        # Until about the moment at which it is renewed: a third of its ttl, or a little before.
                        due = lease._hold.deadline - 2 / 3 * ttl
                        await kit.sleep(max(0.0, due - now() + random.uniform(-0.012, 0.004)))
                    outcomes["released"] += 1
                except interlock.LeaseLost as error:  # a busy machine
                    outcomes[error.reason] += 1

        await kit.together(*(work(number) for number in range(workers)))

    with monitored(valkey_node) as lines:
        run_body(body, valkey_node.url, colour)
    done, extended, asked = sequence(lines)
    print(
        f"{colour}: {races} races, {dict(outcomes)}; the server saw {dict(done)}; extended after the release {len(extended)}, "
        f"asked to extend after the release {len(asked)}"
    )
    assert done["granted"] >= races
    assert done["extended"] >= races / 20, "the two did meet"
    assert outcomes["released"] >= races * 0.9
    assert extended == []
    assert asked == [], "a release waits for the renewal that is on its way"
