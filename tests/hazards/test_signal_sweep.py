"""A signal's handler raises wherever Python lets it, in acquire, `__enter__`, the body, `__exit__` and release.

Afterwards nothing is held longer than one request timeout, nothing is renewed for nobody, whoever waits is served, and the
exception has come out as it is. What is held is asked of the store by another client. The exception's traceback lives on while
that is done, as it does in a notebook.

In the short form a sample of all boundaries; with INTERLOCK_CHAOS=40 and more all of them.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self
from uuid import uuid4

import pytest

from interlock import AcquireTimeout, Client, Lock
from interlock.core.missing import Flight
from interlock.testing import Node, start_nodes, stop_nodes

from .strikes import ERRORS, sweep
from .support import LIMIT, SCALE, scaled

# What strikes a callback of the interpreter's own (of a weak reference, say) is dropped by it, and said so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SOON = 5.0  # seconds: the leases here last six times as long
STEP = max(1, round(40 / SCALE))


class Scene:
    """What is struck, and what stands around it."""

    notebook = True  # the last traceback lives on

    def __init__(self, url: Any) -> None:
        self.client = Client(url, ttl=30)
        self.other = Client(url, ttl=30, request_timeout=5)
        self.locks: dict[str, Lock] = {}  # they live on, as those of a module do

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.other.close()

    def lock(self, name: str) -> Lock:
        return self.locks.setdefault(name, self.client.lock(name))

    def prepare(self, name: str) -> None:
        self.lock(name)

    def work(self, name: str) -> None:
        raise NotImplementedError

    def finish(self, name: str) -> bool:
        """Whether everybody else who took part was served."""
        return True

    def nobody_waits(self) -> bool:
        """At the gate, soon."""
        gate, until = self.client._context.queue, time.monotonic() + 1.5
        while (gate.in_line or gate._queues) and time.monotonic() < until:
            time.sleep(0.002)
        return not gate.in_line and not gate._queues

    def held(self, name: str) -> bool:
        entry = self.other.inspect(name)
        return entry.held or entry.waiters > 0

    def kept(self, name: str) -> bool:
        keeper = self.client._keeper
        return any(hold.name == name and hold.kept and not hold.over for hold in keeper._schedule.everybody())


class Block(Scene):
    """The usual block."""

    def work(self, name: str) -> None:
        with self.locks[name]:
            pass


class Named(Scene):
    """The body has the lease."""

    def work(self, name: str) -> None:
        with self.locks[name] as lease:
            lease.check()


class Object(Scene):
    """A lease that the caller gives back itself: what it still has in hand is its own, and it does so again."""

    def work(self, name: str) -> None:
        lease = self.locks[name].acquire()
        try:
            lease.release()
        finally:
            if lease.state == "held":
                lease.release()


class Tried(Scene):
    """`try_acquire`, and a block of the lease itself. As long as it has not entered that, it is the caller's own."""

    def work(self, name: str) -> None:
        lease = self.locks[name].try_acquire()
        assert lease is not None
        entered = False
        try:
            with lease:
                entered = True
        finally:
            if not entered and lease.state == "held":
                lease.release()


class Extended(Scene):
    """A lease that is extended. Afterwards nothing of that is on its way, or it would not be renewed any more."""

    def prepare(self, name: str) -> None:
        self._lease = self.lock(name).acquire()

    def work(self, name: str) -> None:
        self._lease.extend(40)

    def finish(self, name: str) -> bool:
        flying = self._lease._hold.in_flight or any(isinstance(one, Flight) for one in self.client._context.inside.busy)
        return self._lease.release() and not flying


class Stacked(Scene):
    """An ExitStack looks `__exit__` up in the class, and keeps it in variables of its own, which a traceback keeps."""

    notebook = False

    def work(self, name: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.locks[name])


class Generator(Scene):
    """The block is in a generator: while that is alive, the body is not over. contextlib's frames know it."""

    notebook = False

    def work(self, name: str) -> None:
        @contextlib.contextmanager
        def locked() -> Iterator[None]:
            with self.locks[name]:
                yield

        with locked():
            pass


class Contended(Scene):
    """Somebody else holds it, and releases once we wait."""

    def prepare(self, name: str) -> None:
        self.lock(name)
        lease, self._over = self.other.lock(name).acquire(), threading.Event()

        def release() -> None:
            while not self.client._context.queue.in_line and not self._over.wait(0.001):
                pass
            lease.release()

        self._thread = threading.Thread(target=release)
        self._thread.start()

    def work(self, name: str) -> None:
        with self.locks[name]:
            pass

    def finish(self, name: str) -> bool:
        self._over.set()
        self._thread.join()
        return self.nobody_waits()


class Handed(Scene):
    """One of the same client waits for it."""

    def prepare(self, name: str) -> None:
        self._inside = self._served = False  # not an Event: a signal that strikes inside its `set` leaves it locked

        def wait() -> None:
            while not self._inside:
                time.sleep(0.0005)
            with contextlib.suppress(AcquireTimeout), self.client.lock(name, timeout=SOON):
                self._served = True

        self.lock(name)
        self._thread = threading.Thread(target=wait)
        self._thread.start()

    def work(self, name: str) -> None:
        with self.locks[name]:
            self._inside = True
            doors = self.client._context.queue._queues
            while not (name in doors and doors[name].waiters and doors[name].waiters[0].bell is not None):
                time.sleep(0.0005)

    def finish(self, name: str) -> bool:
        self._inside = True
        self._thread.join()
        return self._served


class Late(Scene):
    """It gives up."""

    def prepare(self, name: str) -> None:
        self.locks[name] = self.client.lock(name, timeout=0.01)
        self._lease = self.other.lock(name).acquire()

    def work(self, name: str) -> None:
        with contextlib.suppress(AcquireTimeout):
            self.locks[name].acquire()

    def finish(self, name: str) -> bool:
        self._lease.release()
        return self.nobody_waits()


SCENES = {
    scene.__name__.lower(): scene
    for scene in (Block, Named, Object, Tried, Extended, Stacked, Generator, Contended, Handed, Late)
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture(params=["memory", "sqlite", "valkey", "quorum"])
def url(request: pytest.FixtureRequest, nodes: list[Node], tmp_path: Path) -> Any:
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/locks.db"
    return nodes[0].url if request.param == "valkey" else [node.url for node in nodes]


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("scene", SCENES)
def test_struck_between_two_instructions(url: Any, scene: str) -> None:
    step = STEP * (5 if isinstance(url, list) else 1)
    for error in ERRORS.values():
        with SCENES[scene](url) as stage:
            tally = sweep(stage, error, step, random.randint(1, step))
        print(f"{scene} {error.__name__}: {tally}")
        assert tally.clean, f"{tally}\n{tally.places()}"
        assert tally.tried > 10


@pytest.mark.timeout(LIMIT, method="thread")  # the other method needs the timer and the signal that this test uses
@pytest.mark.parametrize("scene", ["block", "contended", "handed"])
def test_struck_by_real_signals_at_random_moments(url: Any, scene: str) -> None:
    """The control: an interval timer, and whatever instruction it finds."""
    random_ = random.Random(11)
    hits = 0

    def handle(number: int, frame: FrameType | None) -> None:
        raise random_.choice(list(ERRORS.values()))("struck")

    with SCENES[scene](url) as stage:
        before = signal.signal(signal.SIGALRM, handle)
        try:
            for n in range(scaled(60)):
                name = f"random:{n}"
                stage.prepare(name)
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-6, 2e-3))
                        stage.work(name)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except tuple(ERRORS.values()):
                    hits += 1
                assert stage.finish(name), f"{name}: somebody was not served"
                until = time.monotonic() + 1.5
                while stage.held(name):
                    assert time.monotonic() < until, f"{name} is still held"
                    time.sleep(0.002)
                assert not stage.kept(name)
        finally:
            signal.signal(signal.SIGALRM, before)
    print(f"{hits} hits")
    assert hits > 0
