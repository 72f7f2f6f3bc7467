"""The parser of `interlock bench`, and its help. Imports nothing but argparse: it is loaded for every verb."""

from __future__ import annotations

import argparse

SUMMARY = "how far from the floor of your network a lock is"
HELP = """\
examples:
  interlock bench --url redis://cache:6379
  interlock bench --url redis://a:6379 --url redis://b:6379 --url redis://c:6379
  INTERLOCK_URL=redis://cache:6379 interlock bench --seconds 10s --json

Takes one lock that nobody else wants and gives it back, again and again. In
turns with that it sends the least that a lock needs (SET NX, then compare and
delete) by hand on a bare connection to the same nodes: that is the floor, what
the network and the server cost with no library at all. On several nodes the
floor, like the lock, goes on when a majority has answered. Of an SQLite store
the floor is two bare transactions.

The ratio says how far apart they are. The floor has no fence, no renewal and
no defence against a node that forgets; the lock is measured with all of them.

what it touches:
  Two keys with random names and what interlock derives from them, or a
  directory of its own beside an SQLite file. All of it is removed. Only the
  roll of a quorum's nodes stays (interlock:roll, as after any first lock).

the JSON object:
  store, nodes, reached   the address, how many nodes, how many answered
  version, rounds, cycles
  floor, interlock        p50 and p99 of acquire and release, in seconds
  added                   seconds that the lock costs more than the floor (p50)
  ratio                   the median, over rounds, of lock divided by floor

exit codes:
  0 measured   64 wrong command line   69 the store does not answer
  78 wrong URL, or a store that cannot be measured from here   130 Ctrl-C
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options."""
    option = parser.add_argument
    option("--url", metavar="URL", action="append", default=argparse.SUPPRESS, help="a node; repeat it for a quorum")
    option("--seconds", metavar="D", default="3s", help="for how long, as 3s or 1m; default 3s")
    option("--prefix", metavar="P", default="", help="put before the names of its keys, where access rules want it")
    option("--json", action="store_true", help="print one JSON object")
