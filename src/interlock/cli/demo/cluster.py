"""The five nodes of act three, seen from the play: which are up, which were struck and how, and what each said when last asked.

Two things are kept apart on purpose: what was done to a node (`state`), which the play knows because it did it, and what the
node says (its vote), which only an inspection of the lock can tell.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from ...api.client import Client
from ...core.claim import Entry
from ...errors import NoQuorum, Vote
from ...testing.nodes import Node

UP, KILLED, FROZEN = "up", "KILLED", "FROZEN"
ANSWER_WITHIN = 0.15  # seconds that a look at the lock waits for each node; a frozen one costs the picture that much
PLAN = ((2, KILLED, 1 / 4), (3, FROZEN, 1 / 2))  # which node, its fate, and after which part of the sale
_SIGNALS = {KILLED: "SIGKILL", FROZEN: "SIGSTOP"}


class Cluster:
    """Independent servers that keep one lock together."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.urls = [node.url for node in nodes]
        self.state = [UP] * len(nodes)
        self.votes: tuple[Vote, ...] = ()  # of the last look
        self.struck_at: int | None = None  # how many were sold when the last of the plan was struck
        self.proven = False  # whether a look has found all that were struck without an answer
        self._nodes = nodes
        self._plan = list(PLAN)

    @property
    def dead(self) -> int:
        """How many were struck."""
        return len(self.state) - self.state.count(UP)

    def client(self) -> Client:
        """A client to look with. Close it."""
        return Client(self.urls, request_timeout=ANSWER_WITHIN)

    def look(self, client: Client, lock: str) -> Entry | None:
        """Ask every node who has the lock. None if too few answered; what each said is in `votes` all the same."""
        try:
            entry = client.inspect(lock)
        except NoQuorum as error:
            self.votes = error.votes
            return None
        self.votes = entry.votes
        struck = [vote for vote, state in zip(self.votes, self.state, strict=True) if state != UP]
        if self.struck_at is not None and not any(map(_answered, struck)):
            self.proven = True
        return entry

    def go_on(self, sold: int, part: float) -> str | None:
        """Strike the next node of the plan if `part` of the sale is over. What was done, in words."""
        if not self._plan or part < self._plan[0][2]:
            return None
        index, fate, _ = self._plan.pop(0)
        node = self._nodes[index]
        if fate == FROZEN:
            node.pause()
        else:
            # Not node.kill(), which also sends the node's watchdog home. It stays until the node is stopped, or the demo is
            # killed as well: then it removes the node's directory.
            os.kill(pid := node.pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.state[index] = fate
        if not self._plan:
            self.struck_at = sold
        return f"node {index + 1} is {fate} ({_SIGNALS[fate]})"

    def lines(self, number_of: Callable[[str], int | None], paint: Callable[..., str]) -> list[str]:
        """A line for each node: what was done to it, and its vote."""
        votes: Sequence[Vote | None] = self.votes or [None] * len(self.state)
        styles = {UP: ("green",), KILLED: ("bold", "red"), FROZEN: ("bold", "cyan")}
        return [
            f"node {number}  {paint(f'{state:<6}', *styles[state])}  {_words(vote, number_of)}"
            for number, state, vote in zip(range(1, len(self.state) + 1), self.state, votes, strict=True)
        ]


def _answered(vote: Vote) -> bool:
    return vote.verdict in ("held", "free")


def _words(vote: Vote | None, number_of: Callable[[str], int | None]) -> str:
    if vote is None:
        return ""
    if not _answered(vote):
        return f"no answer ({vote.verdict})"
    worker = number_of(vote.detail.partition(",")[0])  # "host:pid, 1.9 s left"
    return f"{vote.verdict} by worker {worker}" if worker else vote.verdict
