"""`interlock status NAME`: who holds a lock now, and who waits for it."""

from __future__ import annotations

import argparse
import json

from ..api.client import Client
from ..core import checks
from ..core.claim import Entry
from ..core.quorum import table
from ..core.shown import shown
from ..errors import UsageError
from . import exits
from .reading import command_line


def run(arguments: argparse.Namespace) -> int:
    """Ask the store once and print what it says. Takes nothing, changes nothing and makes no file."""
    with command_line():
        name = checks.name(arguments.name)
    with Client(arguments.url) as client:
        if client.address.startswith("memory:"):
            raise UsageError("memory:// lives in one process; there is nothing to look at from here")
        entry, store = client.inspect(name), client.address
    print(as_json(entry, store) if arguments.json else as_text(entry, store))
    return exits.HELD if arguments.exit_code and entry.held else exits.OK


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
        facts["votes"] = [{**vote._asdict(), "latency": vote.latency and round(vote.latency, 6)} for vote in entry.votes]
    return json.dumps(facts)


def as_text(entry: Entry, store: str) -> str:
    """A sentence, then the details, then what each node of a quorum says."""
    lines = _holder(entry) if entry.held else [f"{entry.name} is free"]
    lines += [f"  store  {store}", *_queue(entry)]
    if entry.votes:
        lines.append(table(entry.votes))
    return "\n".join(lines)


def _holder(entry: Entry) -> list[str]:
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
    return lines


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
