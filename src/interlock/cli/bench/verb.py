"""What `interlock bench` does and prints."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from statistics import median
from typing import Any, NamedTuple

from ... import __version__
from ...api.client import Client
from ...api.options import where
from ...core import checks
from ...errors import Unavailable, UsageError
from .. import exits
from ..reading import command_line, duration
from .floors import PollFloor, SocketFloor, SqliteFloor, fresh, pack, say_last
from .measure import percentile, quotient, sample

CYCLES = 20  # of each in a round: short, so that both see the same weather
CONNECT = 2.0  # seconds


class Pair(NamedTuple):
    """A floor and the lock that is compared with it."""

    store: str
    nodes: int
    reached: int
    floor: Callable[[], object]
    lock: Callable[[], object]


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Raises UsageError for a store that cannot be measured."""
    with command_line():
        seconds = duration(arguments.seconds, "--seconds")
        if not 0.1 <= seconds <= 3600:
            raise UsageError("--seconds is a tenth of a second to an hour")
        name = checks.name(f"{arguments.prefix}interlock-bench-{fresh().decode()[:12]}")
    url = ",".join(arguments.url) if isinstance(arguments.url, list) else arguments.url
    with _opened(where(url), name) as pair:
        facts = measured(pair, seconds)
    print(json.dumps(facts) if arguments.json else as_text(facts))
    return exits.OK


def measured(pair: Pair, seconds: float) -> dict[str, Any]:
    """Both in turns for so long, at least three rounds after one for warming up."""
    times: dict[str, list[list[int]]] = {"floor": [], "interlock": []}
    until, warm = time.monotonic() + seconds, False
    while not warm or len(times["floor"]) < 3 or time.monotonic() < until:
        for what, cycle in (("floor", pair.floor), ("interlock", pair.lock)):
            one = sample(cycle, CYCLES if warm else 3)
            if warm:
                times[what].append(one)
        warm = True
    facts: dict[str, Any] = {
        "store": pair.store,
        "nodes": pair.nodes,
        "reached": pair.reached,
        "version": __version__,
        "rounds": len(times["floor"]),
        "cycles": CYCLES * len(times["floor"]),
    }
    for what, samples in times.items():
        flat = [taken for one in samples for taken in one]
        facts[what] = {"p50": round(median(flat) / 1e9, 9), "p99": round(percentile(flat, 0.99) / 1e9, 9)}
    facts["added"] = round(facts["interlock"]["p50"] - facts["floor"]["p50"], 9)
    medians = [[median(one) for one in times[what]] for what in ("interlock", "floor")]
    facts["ratio"] = round(quotient(*medians), 3)
    return facts


def as_text(facts: dict[str, Any]) -> str:
    """A table of two lines, and what it means."""
    lines = [f"{facts['store']}: {facts['cycles']} times acquire and release, in turns with the floor"]
    if facts["reached"] < facts["nodes"]:
        lines.append(f"  {facts['nodes'] - facts['reached']} of {facts['nodes']} nodes cannot be reached")
    lines.append(f"  {'':<12}{'p50':>12}{'p99':>12}")
    lines += [f"  {what:<12}{_time(facts[what]['p50']):>12}{_time(facts[what]['p99']):>12}" for what in ("floor", "interlock")]
    lines.append(f"A lock costs {facts['ratio']:.2f} times the floor: {_time(facts['added'])} more than the least it could.")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if abs(seconds) >= 0.01 else f"{seconds * 1e6:.0f} us"


def _opened(store: Any, name: str) -> AbstractContextManager[Pair]:
    urls = store if isinstance(store, list) else [store]
    schemes = {url.partition(":")[0].lower() for url in urls}
    if "memory" in schemes:
        raise UsageError("memory:// lives in one process; there is no network to measure")
    if "sqlite" not in schemes:
        return _nodes(store, urls, name)
    if len(urls) > 1:
        raise UsageError("bench measures a file or Redis nodes, not a quorum that has files in it")
    return _file(urls[0])


@contextmanager
def _nodes(store: Any, urls: list[str], name: str) -> Iterator[Pair]:
    """The lock first: if it cannot be had, its error says why better than the floor could."""
    from ...backends.redis.packing import line_keys

    by_hand = f"{name}-floor".encode()
    with Client(store) as client:
        lock = client.lock(name, timeout=10)
        lock.acquire().release()
        connections: list[Any] = []
        try:
            connections = _connected(urls)
            socks = [connection._sock for connection in connections]
            floor = SocketFloor(socks[0], by_hand) if len(urls) == 1 else PollFloor(socks, by_hand, len(urls) // 2 + 1)
            yield Pair(client.address, len(urls), len(socks), floor.cycle, lambda: lock.acquire().release())
        finally:
            with suppress(Unavailable):  # then they expire
                connections = connections or _connected(urls)
            say_last([connection._sock for connection in connections], pack(b"DEL", by_hand, *line_keys(name)))
            for connection in connections:
                connection.disconnect()


def _connected(urls: list[str]) -> list[Any]:
    """Connections as the lock's own are made (TLS, user, database), as many as can be had. Raises Unavailable if too few."""
    from ...backends.redis.connect import recipe
    from ...runtime.base import now

    found, failure = [], None
    for url in urls:
        how = recipe(url, "blocking")
        connection = how.make(now() + CONNECT)
        try:
            connection.connect()
        except Exception as error:
            connection.disconnect()
            failure = how.explain(error)
            if not isinstance(failure, Unavailable):
                raise failure or error from error
        else:
            found.append(connection)
    if failure is not None and len(found) <= len(urls) // 2:
        for connection in found:
            connection.disconnect()
        raise failure
    return found


@contextmanager
def _file(url: str) -> Iterator[Pair]:
    """In a directory of its own beside the file, so on the same disk; the file itself is not touched."""
    from ...backends.sqlite.location import Location, parse, url_of

    place = Location(parse(url))
    home = os.path.dirname(place.prepare(make=False))
    while not os.path.isdir(home):  # the default place, never used before
        home = os.path.dirname(home)
    try:
        directory = tempfile.mkdtemp(prefix=".interlock-bench-", dir=home)
    except OSError as error:
        words = f"{place.address}: {error.strerror}; nothing was written"
        raise Unavailable(words, backend=place.address, cause="error") from error
    try:
        with closing(SqliteFloor(f"{directory}/floor.db")) as floor, Client(url_of(f"{directory}/locks.db")) as client:
            lock = client.lock("bench", timeout=10)
            yield Pair(f"beside {place.address}", 1, 1, floor.cycle, lambda: lock.acquire().release())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
