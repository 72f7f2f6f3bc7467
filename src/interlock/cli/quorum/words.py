"""How a quorum's nodes and the change of their list are put into words."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ...backends.port import NodeStatus
from ...backends.quorum.change import Held, Outcome, Progress
from ...core import change
from ...core.shown import listed, shown

AGAIN = 5.0  # seconds after which it is said again that there is something to wait for

DOING = {
    change.CLOSING: "closing",
    change.DRAINING: "draining, until nobody holds a lock there",
    change.COMMITTING: "committing: the old list is left for good",
    change.OPENING: "opening under the new list",
    change.REOPENING: "going back: opening under the old list",
    change.MISSING: "waiting for nodes that do not answer, or cannot vote",
    change.DONE: "nothing: the list is changed",
    change.GIVEN_UP: "nothing: the old list is open",
}


def state_of(standing: NodeStatus) -> str:
    """One word: see the help of `interlock quorum show`."""
    roll = standing.roll
    if roll is None:
        return "new"
    if not standing.good:
        return "quarantined"
    if roll.retired:
        return "retired"
    return ("leaving" if roll.to else "closed") if roll.closed else "open"


def as_text(said: Sequence[tuple[str, NodeStatus | BaseException]]) -> str:
    """A few lines for each node."""
    lines = []
    width = max(len(address) for address, _ in said)
    for address, answer in said:
        if not isinstance(answer, NodeStatus):
            lines.append(f"{address:<{width}}  silent ({getattr(answer, 'cause', '')})")
            continue
        state, roll = state_of(answer), answer.roll
        lines.append(f"{address:<{width}}  {state}")
        if roll is not None:
            lines.append(f"  nodes  {listed(roll.nodes)}")
            if state == "leaving":
                lines.append(f"  to     {listed(roll.to)}")
            lines.append(f"  fence  {roll.high}")
            lines.append(f"  held   {f'for {answer.held:.1f} s at most' if answer.held else 'no lock'}{_renewed(answer)}")
    return "\n".join(lines)


def _renewed(answer: NodeStatus) -> str:
    return f"; {shown(answer.renewed)} is renewed" if answer.renewed and answer.held else ""


def as_json(said: Sequence[tuple[str, NodeStatus | BaseException]]) -> str:
    """One JSON object in one line of ASCII."""
    return json.dumps({"nodes": [_facts(address, answer) for address, answer in said]})


def _facts(address: str, answer: NodeStatus | BaseException) -> dict[str, object]:
    if not isinstance(answer, NodeStatus):
        return {"node": address, "state": "silent", "detail": str(answer)}
    state, roll = state_of(answer), answer.roll
    return {
        "node": address,
        "state": state,
        "list": roll and roll.nodes,
        "to": roll.to if roll and state == "leaving" else None,
        "era": roll and roll.era,
        "fence": roll and roll.high,
        "held": round(answer.held, 3),
        "renewed": answer.renewed or None,
    }


def say(text: str) -> None:
    """Print it, unless it is not read: the nodes are closed meanwhile, and must not wait for a terminal or a pipe."""
    with suppress(OSError, ValueError):
        if sys.stdout is not None and select.select([], [sys.stdout], [], 0)[1]:
            print(text, flush=True)


def doing(progress: Progress) -> str:
    """What is being done, and where."""
    where = f": {', '.join(progress.nodes)}" if progress.nodes else ""
    return f"{DOING[progress.stage]}{where}"


class Reporter:
    """Says how far it is: at each step, and now and then while there is something to wait for."""

    def __init__(self) -> None:
        self._last = ""
        self._at = 0.0

    def __call__(self, progress: Progress) -> None:
        """See `change.QuorumChange.run`."""
        now, what = time.monotonic(), doing(progress)
        if what == self._last and now < self._at + AGAIN:
            return
        self._last, self._at = what, now
        waited = f" (after {progress.waited:.0f} s)" if progress.waited >= 1 else ""
        say("\n".join([f"{what}{waited}", *(f"  {_held(held)}" for held in progress.held)]))


def told(outcome: Outcome) -> str:
    """What has become of it."""
    nodes, done = ", ".join(outcome.nodes), outcome.stage == change.DONE
    lines = [f"the list is changed: {nodes}" if done else f"given up: the old list is open, {nodes}"]
    lines += [f"  {address} does not vote yet: clients let it in when they can" for address in outcome.absent]
    if done:
        lines.append("  give every client the new list: those with the old one are refused")
    return "\n".join(lines)


def _held(held: Held) -> str:
    text = f"{held.address}: a lock may be held for another {held.seconds:.1f} s"
    if held.name:
        text += f"; {shown(held.name)} is renewed by {shown(held.owner) or 'somebody'}"
    return text
