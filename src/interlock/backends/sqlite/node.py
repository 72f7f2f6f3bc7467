"""An SQLite file as a node of a quorum: its roll, and how a transaction begins. See `store` for the invariants."""

from __future__ import annotations

from typing import Any

from ...core.membership import lineage, with_lineage
from ...core.quorum import Marker
from . import faults
from .database import Database, Execute
from .file_lock import Budget
from .session import Session, whole

LOOK = """
    SELECT clock.boot, clock.counter, clock.horizon, clock.low, clock.hand_name, clock.hand_arrival,
           EXISTS (SELECT 1 FROM line WHERE name = ?), entries.arrival, entries.token, entries.fence, entries.expires
    FROM clock LEFT JOIN entries ON entries.name = ?
    WHERE clock.id = 1
"""
ROLL = "SELECT nodes, high, seed, closed, used, window, lineage, since FROM roll WHERE id = 1"
GOOD = "SELECT seed FROM roll WHERE id = 1 AND nodes = ? AND NOT closed"
USED = "UPDATE roll SET used = 1 WHERE NOT used"
LOSS = "SELECT mark FROM loss WHERE id = 1"


class StoreNode(Session):
    """With `nodes`, one a line, it is a node of the quorum of these: see `port.LineMember`."""

    nodes = ""

    @whole
    def roll(self, mark: bool, window: float, budget: Budget) -> tuple[Marker | None, float, str]:
        """The roll of the file, for how long a lease in it may last, and which state or loss of the roll that is."""
        database = self._enter(budget)
        execute = database.execute
        self._begin(database, budget, "")
        if mark and execute(ROLL).fetchone() is None:
            execute("INSERT OR IGNORE INTO loss (id, mark) VALUES (1, hex(randomblob(8)))")
        execute("UPDATE roll SET window = ? WHERE window < ?", (window, window))
        roll, stamp = self._stand(execute)
        ends, served = execute("SELECT (SELECT max(expires) FROM entries), (SELECT max(ttl) FROM line)").fetchone()
        execute("COMMIT")
        if roll is not None and roll.closed:
            served = None  # nobody is
        return roll, max(ends - self._now() if ends is not None else 0.0, served or 0.0, 0.0), stamp

    def _stand(self, execute: Execute) -> tuple[Marker | None, str]:
        """The roll, and what names the state that the file is in: see `port.NodeStatus.loss`."""
        row = execute(ROLL).fetchone()
        if row is None:
            loss = execute(LOSS).fetchone()
            return None, "" if loss is None else loss[0]
        nodes, high, seed, closed, used, window, more, since = row
        if used:
            high = max(high, execute("SELECT counter FROM clock WHERE id = 1").fetchone()[0])
        roll = with_lineage(Marker(tuple(nodes.splitlines()), high, seed, bool(closed), window), more)
        return roll, f"{since} {roll.unused}"

    @whole
    def enroll(self, roll: Marker, loss: str, budget: Budget) -> bool:
        """Give the file this roll, unless it is in another state by now."""
        database = self._enter(budget)
        execute = database.execute
        self._begin(database, budget, "")
        before, stamp = self._stand(execute)
        if not loss or stamp != loss:
            execute("ROLLBACK")
            return False
        before = before or roll
        high, window = max(roll.high, before.high), max(roll.window, before.window)
        execute("DELETE FROM loss")
        execute(
            "INSERT OR REPLACE INTO roll (id, nodes, high, seed, closed, used, window, lineage, since) "
            "VALUES (1, ?, ?, ?, ?, ?, ?, ?, ? || '.' || hex(randomblob(8)))",
            ("\n".join(roll.nodes), high, roll.seed, roll.closed, high > 0, window, lineage(roll), database.inode),
        )
        execute("UPDATE clock SET counter = max(counter, ?) WHERE id = 1", (roll.seed,))
        execute("COMMIT")
        return True

    def _forgetful(self, execute: Execute) -> bool:
        return bool(self.nodes) and execute(GOOD, (self.nodes,)).fetchone() is None

    def _begin(self, database: Database, budget: Budget, name: str) -> tuple[Any, ...]:
        """Start a transaction that nobody can get between. The row of LOOK."""
        self._patiently(database, budget, "BEGIN IMMEDIATE", ())
        row: tuple[Any, ...] = database.execute(LOOK, (name, name)).fetchone()
        if row[0] != database.boot:
            raise faults.two_clocks(self.address)
        return row
