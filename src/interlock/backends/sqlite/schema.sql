-- The embedded store, version 1. Run once, on an empty file, as one transaction. line.sql makes version 2 of it.
--
-- Invariants
--   * `clock` has one row. Its counter only ever grows, so fences grow for every name although no name leaves a row behind.
--   * An entry holds its name. (Who waits is in `line`, since version 2; no entry was ever written without a fence.)
--   * `expires` is seconds on the machine's boot-time clock and means something during the boot in `clock.boot` only.
--   * application_id is in the main file before anything is ever written to a write-ahead log, so that a reader who may
--     not touch the file can tell from its header alone that it is ours.

PRAGMA page_size = 1024;  -- the price of a commit is the pages it rewrites; rows are small

BEGIN EXCLUSIVE;

PRAGMA application_id = 1768711019;  -- "ilck"
PRAGMA user_version = 1;

CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    boot TEXT NOT NULL,
    counter INTEGER NOT NULL,
    -- how far the search for dead rows has got; see sweep.py
    horizon REAL NOT NULL,
    low REAL NOT NULL,
    hand_name TEXT NOT NULL,
    hand_arrival INTEGER NOT NULL
);

-- No boot yet: the first opener adopts the file.
INSERT INTO clock (id, boot, counter, horizon, low, hand_name, hand_arrival) VALUES (1, '', 0, 9e999, 9e999, '', 0);

CREATE TABLE entries (
    name TEXT NOT NULL,
    arrival INTEGER NOT NULL,
    token TEXT NOT NULL,
    fence INTEGER,
    expires REAL NOT NULL,
    PRIMARY KEY (name, arrival)
) WITHOUT ROWID;

-- Whether the file is a node of a quorum and has its memory; see core.quorum.Roll. Its `high` is the counter.
CREATE TABLE roll (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    longest REAL NOT NULL,
    seed INTEGER NOT NULL
);

COMMIT;
