"""How far a reader has to walk: calls, files and depth of interlock's own code on each path, on real nodes.

    python -m bench.walks

Counted by `sys.setprofile` in the calling thread (a renewal: in the keeper's). Code of other libraries is not counted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import interlock
from interlock import Client
from interlock.testing import start_nodes, stop_nodes

OURS = str(Path(interlock.__file__).parent) + "/"


class Walk:
    """What was called between `__enter__` and `__exit__`: in this thread, or in those that a thread of ours starts."""

    def __init__(self) -> None:
        self.calls = self.depth = self.deepest = 0
        self.files: set[str] = set()

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not frame.f_code.co_filename.startswith(OURS):
            return
        if event == "call":
            self.calls += 1
            self.depth += 1
            self.deepest = max(self.depth, self.deepest)
            self.files.add(frame.f_code.co_filename)
        elif event == "return":
            self.depth -= 1

    def __enter__(self) -> Walk:
        sys.setprofile(self.profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def __str__(self) -> str:
        return f"{self.calls:5d} calls {len(self.files):3d} files, depth {self.deepest}"


def walked(work: Callable[[], Any]) -> tuple[Walk, Any]:
    """What a piece of work calls, and what it returns."""
    with Walk() as walk:
        result = work()
    return walk, result


def contended(client: Client, holder: Client) -> Walk:
    """A wait from a cold start: the lock is held, and released once we are in line."""
    lease = holder.lock("held").acquire(timeout=1)
    timer = threading.Timer(0.5, lease.release)
    timer.start()
    walk, mine = walked(lambda: client.lock("held").acquire(timeout=5))
    timer.join()
    mine.release()
    return walk


def renewal(url: Any) -> Walk:
    """The keeper's thread, for a lease of a second and two renewals; per renewal."""
    walk = Walk()
    threading.setprofile(walk.profile)
    with Client(url) as client, client.lock("kept", ttl=1.0):
        threading.Event().wait(0.5)
        threading.setprofile(None)  # type: ignore[arg-type]
    return walk


def main() -> None:
    """Print all walks."""
    nodes = start_nodes(5)
    try:
        urls = [node.url for node in nodes]
        for what, where in (("one node", urls[0]), ("five nodes", urls)):
            with Client(where) as client, Client(where) as other:
                for _ in range(3):
                    for each in (client, other):
                        with each.lock("warm"):
                            pass
                walk, lease = walked(lambda: client.lock("free").acquire(timeout=1))
                print(f"{what}: free acquire      {walk}")
                walk, _ = walked(lease.release)
                print(f"{what}: release           {walk}")
                print(f"{what}: contended acquire {contended(client, other)}")
            print(f"{what}: keeper, first 0.5 s of a lease of 1 s: {renewal(where)}")
    finally:
        stop_nodes(nodes)


if __name__ == "__main__":
    main()
