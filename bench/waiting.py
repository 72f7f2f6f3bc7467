"""`python -m bench waiting`: hundreds who wait for one lock, in threads, tasks and processes; idle ones; many locks.

Each part compares with floors that it measures itself, in turns (see `waiting_floors`). Commands are those that the server
counted, inner ones of scripts included. Ratios are to the first row of a table.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import interlock
from interlock.testing import Node, start_nodes, stop_nodes

from .waiting_floors import GrantTasks, GrantThreads, PubsubTasks, PubsubThreads

HOLD = 0.001


class Round(NamedTuple):
    """One race: seconds in all, seconds from each release to the next grant, server commands and pushes for each hand-off."""

    total: float
    gaps: list[float]
    commands: float
    pushes: float

    def gap(self, share: float) -> float:
        """A percentile of the gaps."""
        return sorted(self.gaps)[int(len(self.gaps) * share)]


def commands(nodes: list[Node]) -> tuple[int, int]:
    """All commands that the nodes have run but for our own looking, and the pushes among them."""
    total = pushes = 0
    for node in nodes:
        for name, text in node.info("commandstats").items():
            calls = int(text.split("=")[1].split(",")[0])
            total += 0 if name in ("cmdstat_info", "cmdstat_auth", "cmdstat_hello", "cmdstat_client|setinfo") else calls
            pushes += calls if name == "cmdstat_publish" else 0
    return total, pushes


class Race:
    """Somebody holds the lock until all stand there; then each holds it for a millisecond."""

    def __init__(self, nodes: list[Node], many: int) -> None:
        self.nodes, self.many = nodes, many
        self.moments: list[tuple[float, float]] = []  # granted, given back

    def begin(self) -> None:
        self.before = commands(self.nodes)
        self.began = time.perf_counter()

    def end(self) -> Round:
        total = time.perf_counter() - self.began
        after = commands(self.nodes)
        served = sorted(self.moments)
        assert len(served) == self.many, f"{len(served)} of {self.many} were served"
        ends = [self.began] + [given_back for _, given_back in served]
        gaps = [granted - end for (granted, _), end in zip(served, ends, strict=False)]
        each = [(b - a) / self.many for a, b in zip(self.before, after, strict=True)]
        return Round(total, gaps, each[0], each[1])


# --- threads and tasks --------------------------------------------------------------------------------------------------


def in_threads(race: Race, acquire: Callable[[bytes], Any], release: Callable[[Any], None]) -> Round:
    def work(me: bytes) -> None:
        lease = acquire(me)
        granted = time.perf_counter()
        time.sleep(HOLD)
        race.moments.append((granted, time.perf_counter()))
        release(lease)

    first = acquire(b"first")
    threads = [threading.Thread(target=work, args=(b"%d" % number,)) for number in range(race.many)]
    for thread in threads:
        thread.start()
    time.sleep(0.5 + race.many / 1000)
    race.begin()
    release(first)
    for thread in threads:
        thread.join()
    return race.end()


async def in_tasks(race: Race, acquire: Callable[[bytes], Any], release: Callable[[Any], Any]) -> Round:
    async def work(me: bytes) -> None:
        lease = await acquire(me)
        granted = time.perf_counter()
        await asyncio.sleep(HOLD)
        race.moments.append((granted, time.perf_counter()))
        await release(lease)

    first = await acquire(b"first")
    everybody = asyncio.gather(*(work(b"%d" % number) for number in range(race.many)))  # here: it takes long, for so many
    await asyncio.sleep(0.5 + race.many / 1000)
    race.begin()
    await release(first)
    await everybody
    return race.end()


def floor_threads(kind: Any, race: Race) -> Round:
    with ExitStack() as stack:
        floor = kind(race.nodes[0].port, stack)

        def acquire(me: bytes) -> bytes:
            floor.acquire(me)
            return me

        return in_threads(race, acquire, floor.release)


async def floor_tasks(kind: Any, race: Race) -> Round:
    floor = kind()
    await floor.connect([node.port for node in race.nodes])

    async def acquire(me: bytes) -> bytes:
        await floor.acquire(me)
        return me

    try:
        return await in_tasks(race, acquire, floor.release)
    finally:
        floor.close()


def our_threads(race: Race, url: Any) -> Round:
    with interlock.Client(url, ttl=20) as client:
        lock = client.lock("ours")
        return in_threads(race, lambda _: lock.acquire(timeout=None), lambda lease: lease.release())


async def our_tasks(race: Race, url: Any) -> Round:
    async with interlock.AsyncClient(url, ttl=20) as client:
        lock = client.lock("ours")
        return await in_tasks(race, lambda _: lock.acquire(timeout=None), lambda lease: lease.release())


def hand_over(many: int, rounds: int) -> None:
    """300 on one node, five nodes and a file."""
    with Node() as node, tempfile.TemporaryDirectory() as directory:
        url, one = node.url, [node]
        file = f"sqlite://{directory}/locks.db"
        table(
            f"{many} threads, one node, {HOLD * 1000:g} ms each",
            rounds,
            {
                "grant in the push, by hand (floor)": lambda: floor_threads(GrantThreads, Race(one, many)),
                "pub/sub, by hand": lambda: floor_threads(PubsubThreads, Race(one, many)),
                "interlock": lambda: our_threads(Race(one, many), url),
                "interlock, SQLite": lambda: our_threads(Race([], many), file),
            },
        )
        table(
            f"{many} tasks, one node, {HOLD * 1000:g} ms each",
            rounds,
            {
                "grant in the push, by hand (floor)": lambda: asyncio.run(floor_tasks(GrantTasks, Race(one, many))),
                "pub/sub, by hand": lambda: asyncio.run(floor_tasks(PubsubTasks, Race(one, many))),
                "interlock": lambda: asyncio.run(our_tasks(Race(one, many), url)),
                "interlock, SQLite": lambda: asyncio.run(our_tasks(Race([], many), file)),
            },
        )
    with five() as nodes:
        urls = [node.url for node in nodes]
        table(
            f"{many} on five nodes, {HOLD * 1000:g} ms each",
            rounds,
            {
                "pub/sub in tasks, by hand (floor)": lambda: asyncio.run(floor_tasks(PubsubTasks, Race(nodes, many))),
                "interlock, tasks": lambda: asyncio.run(our_tasks(Race(nodes, many), urls)),
                "interlock, threads": lambda: our_threads(Race(nodes, many), urls),
            },
        )


@contextmanager
def five() -> Iterator[list[Node]]:
    nodes = start_nodes(5)
    try:
        with interlock.Client([node.url for node in nodes]) as client, client.lock("birth"):
            pass
        yield nodes
    finally:
        stop_nodes(nodes)


def table(title: str, rounds: int, subjects: dict[str, Callable[[], Round]]) -> None:
    """Run them in turns and print what was seen."""
    seen: dict[str, list[Round]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        for name, run in subjects.items():
            result = run()
            if turn:  # the first is for warming up
                seen[name].append(result)
    print(f"\n{title}; medians of {rounds} rounds in turns")
    print(f"  {'':<36}{'total':>9}{'ratio':>7}{'gap p50':>10}{'p99':>9}{'p99 / floor p50':>17}{'commands':>10}{'pushes':>8}")
    floor = floor_p50 = 0.0
    for name, results in seen.items():
        total = statistics.median(result.total for result in results)
        p50, p99 = (statistics.median(result.gap(share) for result in results) for share in (0.5, 0.99))
        floor, floor_p50 = floor or total, floor_p50 or p50
        each = statistics.median(result.commands for result in results)
        pushes = statistics.median(result.pushes for result in results)
        print(
            f"  {name:<36}{total * 1000:>6.0f} ms{total / floor:>7.2f}{p50 * 1e6:>7.0f} us{p99 * 1000:>6.2f} ms"
            f"{p99 / floor_p50:>17.1f}{each:>10.2f}{pushes:>8.2f}"
        )


# --- processes ----------------------------------------------------------------------------------------------------------


WORKER = """
import sys, threading, time, interlock
urls, each, fair = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3] == "fair"
client = interlock.Client(urls if len(urls) > 1 else urls[0], ttl=20)
lock = client.lock("ours", fair=fair)
client.inspect("ours")
said = []
def work(delay):
    time.sleep(delay)
    before = time.monotonic()
    lease = lock.acquire(timeout=120)
    granted = time.monotonic()
    time.sleep(0.001)
    # When it came: after `before`, and before the other moment. The two differ by as long as others had the processor between.
    said.append((granted, time.monotonic(), before, granted - lease.waited, lease.fence))
    lease.release()
print("ready", flush=True)
start, step = map(float, sys.stdin.readline().split())
threads = [threading.Thread(target=work, args=(start + number * step,)) for number in range(each)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for line in said: print(*line)
print("over", flush=True)
sys.stdin.read()  # to leave costs a processor more than to hand over: not before all are served
client.close()
"""


def processes(many: int, counts: list[int], part: str) -> None:
    """So many processes share the waiters among them; they arrive one after the other, two milliseconds apart.

    An inversion is a grant to somebody who had not even called when the next one was in line. (It *may* be one if the next one
    had called before; which of the two the lock heard of first, nobody can tell.)
    """
    with ExitStack() as stack:
        if part == "file":
            nodes, url = [], f"sqlite://{stack.enter_context(tempfile.TemporaryDirectory())}/locks.db"
        elif part == "five nodes":
            nodes = stack.enter_context(five())
            url = ",".join(node.url for node in nodes)
        else:
            nodes = [stack.enter_context(Node())]
            url = nodes[0].url
        print(f"\n{many} who wait in processes, {part}")
        heads = (
            f"{head:>{width}}" for head, width in {"served": 8, "total": 10, "gap p50": 10, "p99": 10, "commands": 10}.items()
        )
        print(" " * 26 + "".join(heads) + f"{'pushes':>8}{'inversions':>12}{'perhaps':>10}")
        for count in counts:
            for order in ("barging", "fair"):
                print(f"  {f'{count} processes, {order}':<24}" + _processes(url, nodes, many, count, order))


def _processes(url: str, nodes: list[Node], many: int, count: int, order: str) -> str:
    each, step = many // count, 0.002
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, str(each), order], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    urls = url.split(",")
    with interlock.Client(urls if len(urls) > 1 else urls[0], ttl=30) as client:
        lease = client.lock("ours").acquire()
        for number, worker in enumerate(workers):
            assert worker.stdin is not None
            worker.stdin.write(f"{number * step} {count * step}\n")
            worker.stdin.flush()
        time.sleep(many * step + 1.5)
        before = commands(nodes)
        released = time.monotonic()
        lease.release()
        rows = []
        for worker in workers:
            assert worker.stdout is not None
            while (line := worker.stdout.readline().strip()) != "over":
                assert line, f"a worker died (code {worker.poll()})"
                rows.append(tuple(map(float, line.split())))
        after = commands(nodes)
        for worker in workers:
            worker.communicate(timeout=60)
    rows.sort()
    assert [row[4] for row in rows] == sorted({row[4] for row in rows}), "fences grow with the grants"
    ends = [released] + [row[1] for row in rows]
    gaps = sorted(row[0] - end for row, end in zip(rows, ends, strict=False))
    inverted = [sum(a[2] > b[stamp] for a, b in pairwise(rows)) / max(len(rows) - 1, 1) for stamp in (3, 2)]
    each_command, each_push = ((b - a) / max(len(rows), 1) for a, b in zip(before, after, strict=True))
    return (
        f"{len(rows):>4}/{each * count:<3}{rows[-1][1] - released:>8.2f} s{gaps[len(gaps) // 2] * 1e6:>7.0f} us"
        f"{gaps[int(len(gaps) * 0.99)] * 1000:>7.1f} ms{each_command:>10.2f}{each_push:>8.2f}"
        f"{inverted[0]:>11.1%}{inverted[1]:>11.1%}"
    )


# --- idle ones, and many locks ------------------------------------------------------------------------------------------


def idle(seconds: float) -> None:
    """100 threads wait for a lock that is held for long: what they cost, and how soon the first of them knows."""
    with Node() as node:
        for what in ("one node", "five nodes"):
            with ExitStack() as stack:
                nodes = stack.enter_context(five()) if what == "five nodes" else [node]
                urls: Any = [one.url for one in nodes] if len(nodes) > 1 else node.url
                _idle(what, nodes, urls, seconds)
        _wake_up(node)
        _killed(node)


def _idle(what: str, nodes: list[Node], url: Any, seconds: float) -> None:
    many = 100
    with interlock.Client(url, ttl=10) as holder, interlock.Client(url, ttl=10) as client:
        lease = holder.lock("idle").acquire()
        alone, _ = _cost(nodes, seconds)
        threads = [threading.Thread(target=lambda: client.lock("idle").acquire(timeout=None).release()) for _ in range(many)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        asked, used = _cost(nodes, seconds)
        lease.release()
        for thread in threads:
            thread.join()
    print(
        f"\n{many} idle threads, {what}, held and renewed: {(asked - alone) / seconds / many:.4f} commands a waiter and second "
        f"({asked} in {seconds:g} s, of which {alone} without anybody who waits: renewals), {used / seconds:.1%} of a core"
    )


def _cost(nodes: list[Node], seconds: float) -> tuple[int, float]:
    """Server commands in so many seconds, and our own processor time."""
    before, cpu = commands(nodes)[0], time.process_time()
    time.sleep(seconds)
    return commands(nodes)[0] - before, time.process_time() - cpu


def _wake_up(node: Node, times: int = 30) -> None:
    """From the release in one client to the grant in another that waits alone."""
    woken: dict[str, list[float]] = {"pub/sub, by hand (floor)": [], "interlock": []}
    with interlock.Client(node.url, ttl=10) as holder, interlock.Client(node.url, ttl=10) as client, ExitStack() as stack:
        here, there = PubsubThreads(node.port, stack), PubsubThreads(node.port, stack)

        def by_hand(say: Callable[[], None]) -> None:
            there.acquire(b"there")
            say()
            there.release(b"there")

        def ours(say: Callable[[], None]) -> None:
            lease = client.lock("wake").acquire(timeout=None)
            say()
            lease.release()

        for _ in range(times):
            here.acquire(b"here")
            woken["pub/sub, by hand (floor)"].append(_woken(by_hand, lambda: here.release(b"here")))
            lease = holder.lock("wake").acquire()
            woken["interlock"].append(_woken(ours, lease.release))
    print(f"\nwoken after a release by another client, one node, {times} times in turns")
    floor = statistics.median(next(iter(woken.values())))
    for name, sample in woken.items():
        p50 = statistics.median(sample)
        print(f"  {name:<36}{p50 * 1e6:>6.0f} us{p50 / floor:>7.2f} x   worst {max(sample) * 1000:.2f} ms")


def _woken(wait: Callable[[Callable[[], None]], None], release: Callable[[], Any], after: float = 0.05) -> float:
    moment: list[float] = []
    thread = threading.Thread(target=wait, args=(lambda: moment.append(time.perf_counter()),))
    thread.start()
    time.sleep(after)
    began = time.perf_counter()
    release()
    thread.join()
    return moment[0] - began


HOLDER = """
import sys, time, interlock
lease = interlock.Client(sys.argv[1], ttl=float(sys.argv[2])).lock("killed").acquire()
print(lease.remaining(), flush=True)
time.sleep(600)
"""


def _killed(node: Node, times: int = 10, ttl: float = 2.0) -> None:
    """From the holder's SIGKILL to the grant of one who waits."""
    late = []
    with interlock.Client(node.url) as client:
        for _ in range(times):
            holder = subprocess.Popen([sys.executable, "-c", HOLDER, node.url, str(ttl)], stdout=subprocess.PIPE, text=True)
            assert holder.stdout is not None
            holder.stdout.readline()

            def wait(say: Callable[[], None]) -> None:
                lease = client.lock("killed").acquire(timeout=30)
                say()
                lease.release()

            left: list[float] = []

            def kill(holder: subprocess.Popen[str] = holder, left: list[float] = left) -> None:
                left.append(node.command("PTTL", "killed") / 1000)
                holder.kill()

            late.append(_woken(wait, kill, 0.5) - left[0])
            holder.wait()
            holder.stdout.close()
    print(f"\na holder with a ttl of {ttl:g} s is killed (SIGKILL), {times} times; who waits has it after the rest of that and")
    print(f"  {max(late) * 1000:+.0f} ms at the latest, median {statistics.median(late) * 1000:+.0f} ms")


def many_locks(locks: int, each: int) -> None:
    """Tasks that wait for many locks at once: connections and subscriptions do not grow with them."""
    with Node() as node:
        for number in (10, locks):
            seen = asyncio.run(_many_locks(node, number, each))
            print(f"\n{number} locks x {each} tasks that wait, one client: {seen}")


async def _many_locks(node: Node, locks: int, each: int) -> str:
    async with interlock.AsyncClient(node.url, ttl=60) as holder, interlock.AsyncClient(node.url, ttl=60) as client:
        leases = [await holder.lock(f"many:{number}").acquire() for number in range(locks)]
        served = 0

        async def work(name: str) -> None:
            nonlocal served
            async with client.lock(name, timeout=None):
                served += 1

        tasks = [asyncio.create_task(work(lease.name)) for lease in leases for _ in range(each)]
        while sum(len(door.waiters) for door in client._context.queue._queues.values()) < locks * each:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        info, stats = node.info("clients"), node.info("stats")
        began = time.perf_counter()
        for lease in leases:
            await lease.release()
        await asyncio.gather(*tasks)
        took = time.perf_counter() - began
    return (
        f"{int(info['connected_clients']) - 1} connections of both clients, {info.get('pubsub_clients', '?')} subscribed, "
        f"{stats.get('pubsub_channels', '?')} channels; {served} served in {took:.2f} s"
    )


PARTS = ("hand-over", "processes", "idle", "many")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench waiting", description=__doc__)
    parser.add_argument("--waiters", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15, help="medians of so many")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the idle ones wait")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all of them")
    options = parser.parse_args(argv)
    parts = options.part or PARTS
    if "hand-over" in parts:
        hand_over(options.waiters, options.rounds)
    if "processes" in parts:
        for part in ("one node", "five nodes", "file"):
            processes(options.waiters - options.waiters % 32 + 32, [8, 32], part)
    if "idle" in parts:
        idle(options.seconds)
    if "many" in parts:
        many_locks(1000, 10)


if __name__ == "__main__":
    main()
