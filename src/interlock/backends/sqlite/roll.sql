-- Version 3 of the embedded store: a roll names the list of nodes that it is good for. Run once,
-- on a file of version 2, as one transaction.
--
-- A file that was a node of a quorum is one without a roll from now on: it waits, and is let in again, as one that forgot.

BEGIN EXCLUSIVE;

PRAGMA user_version = 3;

DROP TABLE roll;

-- Whether the file is a node of a quorum; see core.quorum.Roll. Its `high` is the counter as well, once it was used for a vote.
CREATE TABLE roll (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    nodes TEXT NOT NULL,
    high INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    closed INTEGER NOT NULL,
    used INTEGER NOT NULL,
    window REAL NOT NULL,
    lineage TEXT NOT NULL, -- see core.membership
    since TEXT NOT NULL -- the inode of the file, since a copy may be an older state; and another number with each roll
);

COMMIT;
