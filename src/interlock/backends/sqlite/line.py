"""The line of those who wait for a name: who is in it, who is next, and until when nobody is forgotten.

Invariants
- Order is arrival, then token. A token that claims again keeps its arrival; what else it says of itself is taken anew.
- Whoever waits claims again before the end of the lease that it was refused for. A row is kept for LINGER longer than that, so
  one that is found older belongs to nobody. It is swept with the dead leases (see `sweep`), and never before.
- Only an inbox that is known to be gone costs its owner the place. One that cannot be reached from here is passed over, too,
  but stays in line.

Every function is called inside a transaction.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from ...core.claim import SHOWN, Place, Waiting
from ...core.token import owner_of
from . import inbox
from .database import Execute

LINGER = 60.0
EVERYBODY = 2**63 - 1  # later than any arrival
FIRST = (-(2**63), "")

JOIN = """
    INSERT INTO line (name, token, arrival, inbox, ttl, expires) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (name, token) DO UPDATE SET inbox = excluded.inbox, ttl = excluded.ttl, expires = excluded.expires
"""
LEAVE = "DELETE FROM line WHERE name = ? AND token = ?"
NEXT = """
    SELECT arrival, token, inbox, ttl FROM line
    WHERE name = ? AND (arrival, token) < (?, ?) AND (arrival, token) > (?, ?) ORDER BY arrival, token LIMIT 1
"""
GONE = "DELETE FROM line WHERE name = ? AND inbox = ?"
LIST = "SELECT arrival, token FROM line WHERE name = ? ORDER BY arrival, token LIMIT ?"
COUNT = "SELECT count(*) FROM line WHERE name = ?"
STALE = "DELETE FROM line WHERE expires <= ?"
SOONEST = "SELECT min(expires) FROM line"


class Waiter(NamedTuple):
    """Somebody in line."""

    arrival: int
    token: str
    inbox: str
    ttl: float


def join(execute: Execute, name: str, token: str, place: Place, ends: float) -> None:
    """Have the token wait. `ends` is when the lease ends that is in its way."""
    execute(JOIN, (name, token, place.arrival, place.inbox, place.ttl, ends + LINGER))


def following(execute: Execute, name: str, before: int, own: str) -> Waiter | None:
    """The first who can be told, of those who arrived before `before`; at that moment, of those whose tokens are before `own`.

    Whoever is found to be gone leaves the line.
    """
    place = FIRST
    while (row := execute(NEXT, (name, before, own, *place)).fetchone()) is not None:
        waiter = Waiter(*row)
        listening = inbox.listens(waiter.inbox)
        if listening:
            return waiter
        if listening is False:
            execute(GONE, (name, waiter.inbox))  # with all who listened there
        place = waiter.arrival, waiter.token
    return None


def shown(execute: Execute, name: str, now: float) -> tuple[tuple[Waiting, ...], int]:
    """The first of those in line, and how many there are."""
    rows = execute(LIST, (name, SHOWN)).fetchall()
    waiters: int = execute(COUNT, (name,)).fetchone()[0] if len(rows) == SHOWN else len(rows)
    return tuple(Waiting(owner_of(token), max(now - arrival / 1e6, 0.0)) for arrival, token in rows), waiters


def sweep(execute: Execute, now: float) -> float:
    """Forget who was not heard of for too long. When to look again."""
    execute(STALE, (now,))
    soonest: float | None = execute(SOONEST).fetchone()[0]
    return inf if soonest is None else soonest
