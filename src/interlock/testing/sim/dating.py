"""Planted bugs in how a grant is dated that was announced to somebody in line. Both are mistakes that interlock itself made.

Each takes the time of the grant from the node's clock, and counts from the waiter's last question on by how far that clock has
come since the answer.
"""

from __future__ import annotations

from math import inf
from typing import Any

from ...backends.memory import Memory, MemoryBackend
from ...core.claim import Announced, Claim, Handed, Refused, Unmarked
from ...core.lease import DRIFT_RATE
from .holes import Patch
from .member import SimMember
from .node import Node


def by_the_nodes_clock(read_by_whoever_releases: bool) -> list[Patch]:
    """The patches. `read_by_whoever_releases`: the node's clock is not read in the step of the grant. Whoever releases says
    what it must read by now, from when it last heard of it."""
    told, release, hand_over = SimMember._told, SimMember.release, SimMember.hand_over
    readings: dict[SimMember, tuple[float, float]] = {}  # ours, and the node's at that moment
    reckoned: dict[str, float] = {}  # by the token of whoever releases: what the node's clock reads, as far as it knows
    wrong: dict[str, float] = {}  # by the token of whoever was served: how far that was off

    def telling(self: SimMember, claim: Claim, answer: object, sent_at: float) -> None:
        told(self, claim, answer, sent_at)
        readings[self] = self._now(), self._node.now()
        if isinstance(answer, Refused):
            asked[claim.token] = sent_at, answer.at

    def reckon(self: SimMember, token: str) -> None:
        if self in readings:
            at, read = readings[self]
            reckoned[token] = read + (self._now() - at) * (1 - DRIFT_RATE)

    async def releasing(self: SimMember, name: str, token: str, within: float, proposal: int = 0) -> bool:
        reckon(self, token)
        return await release(self, name, token, within, proposal)

    async def handing(self: SimMember, name: str, token: str, *more: Any) -> Handed | Unmarked:
        reckon(self, token)
        return await hand_over(self, name, token, *more)

    serve, by = Memory.serve, [""]  # the token whose release is served at this moment

    def serving(self: Memory, name: str, *more: Any, **options: Any) -> None:
        serve(self, name, *more, **options)
        held = self.held.get(name)
        if held is not None and by[0] in reckoned:
            wrong[held.token] = reckoned[by[0]] - self.now()

    class Reckoning(MemoryBackend):
        async def release(self, name: str, token: str, *more: Any, **options: Any) -> bool:
            by[0] = token
            return await super().release(name, token, *more, **options)

        async def hand_over(self, name: str, token: str, *more: Any, **options: Any) -> Handed | Unmarked:
            by[0] = token
            return await super().hand_over(name, token, *more, **options)

    asked: dict[str, tuple[float, float]] = {}  # by token: when it asked last, and the node's clock in the answer

    def dated(self: SimMember, announced: Announced) -> Announced:
        if announced.token not in asked:
            return announced._replace(at=-inf)
        sent_at, at = asked[announced.token]
        since = (announced.at + wrong.get(announced.token, 0.0) - at) * (1 - DRIFT_RATE)
        return announced._replace(at=-inf if since < 0 else min(sent_at + since, self._now()))

    patches: list[Patch] = [(SimMember, "_told", telling), (SimMember, "dated", dated)]
    if read_by_whoever_releases:
        patches += [
            (SimMember, "release", releasing),
            (SimMember, "hand_over", handing),
            (Node, "backend_type", Reckoning),
            (Memory, "serve", serving),
        ]
    return patches
