"""`python -m bench keeper`: many leases held and renewed by one client on one node. Counts what it costs, from both sides."""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import interlock
from interlock.testing import Node

from .memory import resident


class Figures:
    """What was seen, before and after."""

    def __init__(self, node: Node, client: Any, leases: int) -> None:
        self._node, self._client, self._leases = node, client, leases
        gc.collect()
        self._threads, self._rss = threading.active_count(), resident()

    def acquired(self) -> None:
        """All leases are held."""
        gc.collect()
        self._held_rss = resident()
        self._calls, self._kept, self._cpu, self._at = (
            self._server(),
            self._client.keeping(),
            time.process_time(),
            time.monotonic(),
        )

    def _server(self) -> int:
        stats = self._node.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", "calls=0,").split("=")[1].split(",")[0]) for name in ("eval", "evalsha"))

    def report(self, colour: str, lost: int) -> bool:
        """Print it. Whether it is as promised."""
        seconds, cpu = time.monotonic() - self._at, time.process_time() - self._cpu
        calls, kept = self._server() - self._calls, self._client.keeping()
        renewals, requests = kept.renewals - self._kept.renewals, kept.requests - self._kept.requests
        threads = threading.active_count() - self._threads
        gc.collect()
        print(f"{colour}: {self._leases} leases held for {seconds:.0f} s, ttl 10 s, one client, one node")
        print(f"  lost                         {lost}")
        print(f"  threads added                {threads}")
        print(f"  renewals                     {renewals}")
        print(f"  requests (client / server)   {requests} / {calls}: {renewals / max(calls, 1):.0f} renewals each")
        print(f"  memory per lease             {(self._held_rss - self._rss) / self._leases:.0f} B when acquired, ", end="")
        print(f"{(resident() - self._rss) / self._leases:.0f} B at the end (resident, Lock objects included)")
        print(f"  processor                    {100 * cpu / seconds:.1f} % of a core")
        print(f"  lateness, slack              {kept.lateness * 1000:.1f} ms, {kept.slack:.2f} of the ttl")
        return lost == 0 and threads <= 1 and calls <= renewals / 50


def blocking(node: Node, leases: int, seconds: float) -> bool:
    """One thread takes them all."""
    with interlock.Client(node.url, ttl=10) as client:
        with client.lock("warm", renew=False):
            pass
        figures = Figures(node, client, leases)
        held = [client.lock(f"order:{n}").acquire() for n in range(leases)]
        figures.acquired()
        time.sleep(seconds)
        good = figures.report("blocking", sum(lease.lost for lease in held))
        for lease in held:
            lease.release()
    return good


async def in_a_loop(node: Node, leases: int, seconds: float) -> bool:
    """One task takes them all."""
    async with interlock.AsyncClient(node.url, ttl=10) as client:
        async with client.lock("warm", renew=False):
            pass
        figures = Figures(node, client, leases)
        held = [await client.lock(f"order:{n}").acquire() for n in range(leases)]
        figures.acquired()
        await asyncio.sleep(seconds)
        good = figures.report("asyncio", sum(lease.lost for lease in held))
        for lease in held:
            await lease.release()
    return good


def objects(node: Node, leases: int) -> None:
    """Where the memory of a lease was asked for. Traced, so it takes its time; what the allocator adds is not in it."""
    with interlock.Client(node.url, ttl=60) as client:
        with client.lock("warm"):
            pass
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        held = [client.lock(f"order:{n}").acquire() for n in range(leases)]
        gc.collect()
        found = [one for one in tracemalloc.take_snapshot().compare_to(before, "lineno") if one.size_diff > leases]
        tracemalloc.stop()
        print(f"bytes of each of {leases} leases, by the line that asked for them")
        for one in found:
            frame = one.traceback[0]
            print(f"  {one.size_diff / leases:6.0f}  {'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}")
        print(f"  {sum(one.size_diff for one in found) / leases:6.0f}  in all")
        for lease in held:
            lease.release()


def main(argv: list[str] | None = None) -> int:
    """Both colours, each in a process of its own: memory that another run has left over would be counted as saved."""
    parser = argparse.ArgumentParser(prog="python -m bench keeper", description=__doc__)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--colour", choices=["blocking", "asyncio"])
    parser.add_argument("--objects", action="store_true", help="only show where the memory of a lease was asked for")
    given = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(given)
    if arguments.objects:
        with Node() as node:
            objects(node, arguments.leases)
        return 0
    if arguments.colour is None:
        again = [sys.executable, "-m", "bench.keeper", *given, "--colour"]
        return max(subprocess.run([*again, colour], check=False).returncode for colour in ("blocking", "asyncio"))
    with Node() as node:
        if arguments.colour == "blocking":
            good = blocking(node, arguments.leases, arguments.seconds)
        else:
            good = asyncio.run(in_a_loop(node, arguments.leases, arguments.seconds))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
