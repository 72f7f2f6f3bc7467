"""The parser of `interlock sim`, and its help. Imports nothing but argparse: it is loaded for every verb."""

from __future__ import annotations

import argparse

SUMMARY = "run the locks in a simulated world, replay a seed"
HELP = """\
examples:
  interlock sim --seed 7 --faults delay,loss      one history, as a timeline
  interlock sim --histories 1000                  a thousand, judged
  interlock sim --faults each --histories 1000 --jobs 4
                                                  of each fault, as a table
  interlock sim --histories 1000 --faults pause,delay --mutant plain-del
                                                  with a bug planted in it

Runs the code that ships (flows, keeper, quorum) on simulated nodes with
virtual time. A seed decides everything: the same seed, faults, nodes and
version of interlock give the same history, to the last byte. When something
is violated, the command that replays that history is printed.

faults (joined by commas; none; mixed: some of them, by the seed):
  delay      some messages take long       freeze   nodes stop and go on
  reorder    connections overtake others   crash    nodes die, with memory
  loss       messages are swallowed        amnesia  nodes die, without
  duplicate  messages come twice           stale    nodes die, back as before
  cut        connections are cut           pause    clients stop and go on
  partition  nothing gets through          cancel   at any await
  oneway     only one way does             drift    clocks run unlike fast
  back       nodes' clocks are set back    wall     clients' clocks jump
  skew       clocks run very unlike fast   jump     nodes' clocks jump
  close      clients, amid anything        struck   signals' handlers raise
  brief      clients live for one lease

what is checked:
  overlap    two leases believed at once (promised unless jump, or one node
             alone that forgets: then they are counted)
  fence, store, update   fences grow; a fenced counter loses no update
  told       who loses a lease is told in time, and for good
  left       nothing is left behind in a store
  stuck      once the faults are over, everybody gets the lock

`struck` counts faults of nodes, clients and connections, not what befalls
single messages, and not cancellations.

exit codes:
  0 all promises kept   1 a promise was broken   64 wrong command line
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options."""
    option = parser.add_argument
    option("--seed", metavar="N", type=int, default=0, help="the seed, or the first of them; default 0")
    option("--faults", metavar="LIST", default="mixed", help="what goes wrong; default mixed. each: one group after another")
    option("--nodes", metavar="N", type=int, default=3, help="1: a single store, else a quorum; default 3. mixed: by the seed")
    option("--histories", metavar="K", type=int, default=1, help="run so many seeds, print a summary only")
    option("--mutant", metavar="M", help="plant a bug; 'list' shows them")
    option("--jobs", metavar="N", type=int, default=1, help="share the histories among N processes; default 1")
    option("--json", action="store_true", help="print the summary as JSON")
    option("--jsonl", action="store_true", help="print the history as lines of JSON, not the timeline")
