"""Whose turn it is: what several nodes announce to somebody who waits, put together.

Rules of the file: pure, as in `quorum`. Moments are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class GrantTally:
    """Which nodes say that it is somebody's turn who waits. Feed it what they announce.

    Invariant: nodes count for a grant only with the same fence, and only for what they granted after the last answer that they
    gave to this token (`fence > after`): an older announcement may tell of a grant that was given back meanwhile.
    """

    __slots__ = ("_needed", "_nodes", "_told", "kept")

    def __init__(self, needed: int, nodes: int, kept: Iterable[int] = ()) -> None:
        self.kept = set(kept)  # nodes that it holds since a vote that it lost
        self._needed, self._nodes = needed, nodes
        self._told: dict[int, Served | None] = {}

    def told(self, node: int, served: Served | None, after: int | None) -> None:
        """A node has announced it. None: when that was cannot be told. `after`: unknown if it has never answered."""
        counts = served is not None and after is not None and served.fence > after
        self._told[node] = served if counts else None

    @property
    def hopeful(self) -> bool:
        """A quorum may be had now, by asking for it, and there is no use in waiting for more announcements."""
        if self.kept or len(self._told) < self._needed:
            return len(self.kept | self._told.keys()) >= self._needed
        fences = [served.fence for served in self._told.values() if served is not None]
        usual = max((fences.count(fence) for fence in fences), default=0)
        return usual + self._nodes - len(self._told) < self._needed

    def granted(self) -> Served | None:
        """The grant, if a quorum made the same. It lasts as long as a quorum of them does, and is as old."""
        by_fence: dict[int, list[Served]] = {}
        for served in self._told.values():
            if served is not None:
                by_fence.setdefault(served.fence, []).append(served)
        for fence, same in by_fence.items():
            if len(same) >= self._needed:
                since = sorted((served.since for served in same), reverse=True)[self._needed - 1]
                return Served(fence, min(served.ttl for served in same), since)
        return None


class Served(NamedTuple):
    """A grant to somebody in line: its fence, its ttl, and since when at the earliest, on the client's own clock."""

    fence: int
    ttl: float
    since: float
