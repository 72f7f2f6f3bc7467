"""`interlock status NAME`: who holds a lock now."""

from __future__ import annotations

import argparse
import json

from ..api.client import Client
from ..core import checks
from ..core.claim import Entry
from ..errors import UsageError
from . import exits
from .exits import complain


def run(arguments: argparse.Namespace) -> int:
    """Ask the store once and print what it says. Takes nothing and changes nothing.

    64 for a name that no lock can have. Raises Unavailable when the store does not answer, UsageError for a wrong URL.
    """
    try:
        name = checks.name(arguments.name)
    except UsageError as error:
        return complain(str(error), exits.USAGE)
    with Client(arguments.url) as client:
        entry, store = client.inspect(name), client.address
    print(as_json(entry, store) if arguments.json else as_text(entry, store))
    return exits.HELD if arguments.exit_code and entry.held else exits.OK


def as_json(entry: Entry, store: str) -> str:
    """One JSON object in one line of ASCII."""
    return json.dumps(
        {
            "name": entry.name,
            "held": entry.held,
            "owner": entry.owner or None,
            "remaining": round(entry.remaining, 3) if entry.held and entry.remaining is not None else None,
            "fence": entry.fence if entry.held else None,
            "store": store,
        }
    )


def as_text(entry: Entry, store: str) -> str:
    """A sentence, then the details."""
    if not entry.held:
        return f"{entry.name} is free\n  store  {store}"
    foreign = not entry.owner and entry.fence is None
    holder = "a client that is not interlock" if foreign else _readable(entry.owner) or "an unnamed client"
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
    return "\n".join(lines)


def _readable(text: str) -> str:
    """What a stranger may have written into the store must not steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
