"""The shop's own database, an SQLite file: what is on the shelf, and what was sold. It has nothing to do with the lock store.

Every statement is a transaction of its own, as in any program that reads, thinks and writes back.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from ...errors import StaleFence

_TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL, fence INTEGER NOT NULL);
CREATE TABLE sale (umbrella INTEGER NOT NULL, worker INTEGER NOT NULL);
"""


class Books(NamedTuple):
    """What the database says at one moment."""

    left: int  # umbrellas on the shelf, as the shop believes
    sold: int  # sales on record
    different: int  # how many different umbrellas those sales were for
    worst: tuple[int, int]  # the umbrella that was sold most often, and how often
    by_worker: dict[int, int]
    fence: int  # the newest fence that the stock was sealed with


class Shop:
    """One connection to one shop. Close it."""

    def __init__(self, path: str, worker: int = 0) -> None:
        self._db = sqlite3.connect(path, timeout=5.0, isolation_level=None)
        self._db.execute("PRAGMA synchronous = OFF")  # the machine will not lose power in the next ten seconds
        self._worker = worker

    def open_with(self, umbrellas: int) -> None:
        """Make the tables and fill the shelf."""
        self._db.executescript(_TABLES)
        self._db.execute("INSERT INTO stock VALUES ('umbrella', ?, 0)", [umbrellas])

    def ask(self, sql: str) -> int:
        """The number that a SELECT finds."""
        number: int = self._db.execute(sql).fetchone()[0]
        return number

    def change(self, sql: str, **values: Any) -> None:
        """Run an UPDATE. Raises StaleFence if it changed no row: a newer fence was here."""
        if self._db.execute(sql, values).rowcount == 0:
            newest = self.ask("SELECT fence FROM stock WHERE item = 'umbrella'")
            fence = int(values.get("f", 0))
            raise StaleFence(f"fence {fence} is too old, the shop has seen {newest}", fence=fence, newest=newest)

    def record_sale(self, umbrella: int) -> None:
        """Write the receipt."""
        self._db.execute("INSERT INTO sale VALUES (?, ?)", [umbrella, self._worker])

    def books(self) -> Books:
        """Everything, in one consistent picture."""
        self._db.execute("BEGIN")
        try:
            left, fence = self._db.execute("SELECT pieces, fence FROM stock").fetchone()
            by_worker = dict(self._db.execute("SELECT worker, count(*) FROM sale GROUP BY worker"))
            often = self._db.execute("SELECT umbrella, count(*) FROM sale GROUP BY umbrella ORDER BY 2 DESC, 1").fetchall()
        finally:
            self._db.execute("COMMIT")
        return Books(left, sum(by_worker.values()), len(often), often[0] if often else (0, 0), by_worker, fence)

    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        self._db.close()
