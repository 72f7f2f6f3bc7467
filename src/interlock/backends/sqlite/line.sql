-- Version 2 of the embedded store: those who wait for a name, and which loss of memory it is that a quorum's node has suffered.
-- Run once, on a file of version 1, as one transaction.
--
-- Invariants
--   * A token is at most once in the line of a name, and never while it holds the name.
--   * `expires` is on the clock of `entries.expires`; a row that is not refreshed until then is swept. See line.py.

BEGIN EXCLUSIVE;

PRAGMA user_version = 2;

CREATE TABLE line (
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    arrival INTEGER NOT NULL,
    inbox TEXT NOT NULL,
    ttl REAL NOT NULL,  -- how long a grant lasts that finds it waiting
    expires REAL NOT NULL,
    PRIMARY KEY (name, token)
) WITHOUT ROWID;

CREATE TABLE loss (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    mark TEXT NOT NULL
);

CREATE INDEX line_order ON line (name, arrival, token);

COMMIT;
