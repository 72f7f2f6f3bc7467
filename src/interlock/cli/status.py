"""`interlock status NAME`: who holds a lock now, and who waits for it."""

from __future__ import annotations

import argparse
import json
import warnings

from ..api.client import Client
from ..core import checks
from ..core.claim import Entry
from ..core.quorum import table
from ..core.shown import shown
from ..errors import UsageError, Vote
from . import exits
from .exits import complain


def run(arguments: argparse.Namespace) -> int:
    """Ask the store once and print what it says. Takes nothing, changes nothing and makes no file.

    64 for a name that no lock can have. Raises Unavailable when the store does not answer, UsageError for a wrong URL or a
    key that is not a lock.
    """
    try:
        name = checks.name(arguments.name)
    except UsageError as error:
        return complain(str(error), exits.USAGE)
    with warnings.catch_warnings():
        warnings.showwarning = exits.warn
        entry, store = _ask(arguments.url, name)
    print(as_json(entry, store) if arguments.json else as_text(entry, store))
    return exits.HELD if arguments.exit_code and entry.held else exits.OK


def _ask(url: str | None, name: str) -> tuple[Entry, str]:
    with Client(url) as client:
        if client.address.startswith("memory:"):
            raise UsageError("memory:// lives in one process; there is nothing to look at from here")
        return client.inspect(name), client.address


def as_json(entry: Entry, store: str) -> str:
    """One JSON object in one line of ASCII."""
    facts: dict[str, object] = {
        "name": entry.name,
        "held": entry.held,
        "owner": entry.owner or None,
        "remaining": round(entry.remaining, 3) if entry.held and entry.remaining is not None else None,
        "fence": entry.fence if entry.held else None,
        "store": store,
        "waiters": entry.waiters,
        "waiting": [
            {"position": position, "owner": owner or None, "since": round(since, 3)}
            for position, (owner, since) in enumerate(entry.waiting, 1)
        ],
    }
    if entry.votes:
        facts["votes"] = [vote._asdict() for vote in map(_rounded, entry.votes)]
    return json.dumps(facts)


def as_text(entry: Entry, store: str) -> str:
    """A sentence, then the details, then what each node of a quorum says."""
    nodes = f"\n{table(entry.votes)}" if entry.votes else ""
    if not entry.held:
        return "\n".join([f"{entry.name} is free", f"  store  {store}", *_queue(entry)]) + nodes
    holder = holder_of(entry)
    lines = [f"{entry.name} is held by {holder}"]
    host, colon, pid = holder.rpartition(":")
    if colon:
        lines.append(f"  owner  process {pid} on host {host}")
    if entry.remaining is None:
        lines.append("  ends   never by itself: it was written without an expiry")
    else:
        lines.append(f"  ends   in {entry.remaining:.1f} s, unless it is released or extended before")
    if entry.fence is not None:
        lines.append(f"  fence  {entry.fence}")
    lines.append(f"  store  {store}")
    return "\n".join(lines + _queue(entry)) + nodes


def holder_of(entry: Entry) -> str:
    """Who has it, in words that a terminal can show."""
    foreign = not entry.owner and entry.fence is None
    return "a client that is not interlock" if foreign else shown(entry.owner) or "an unnamed client"


def _queue(entry: Entry) -> list[str]:
    """Who waits, the next one first."""
    if not entry.waiters:
        return []
    lines = [f"  queue  {entry.waiters} waiting"]
    for position, (owner, since) in enumerate(entry.waiting, 1):
        lines.append(f"    {position:>3}  {shown(owner) or 'an unnamed client'}  for {since:.1f} s")
    if entry.waiters > len(entry.waiting):
        lines.append(f"    ... and {entry.waiters - len(entry.waiting)} more")
    return lines


def _rounded(vote: Vote) -> Vote:
    return vote if vote.latency is None else vote._replace(latency=round(vote.latency, 6))
