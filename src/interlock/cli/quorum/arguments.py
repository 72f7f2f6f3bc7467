"""The parser of `interlock quorum`, and its help. Imports nothing but argparse: it is loaded for every verb."""

from __future__ import annotations

import argparse

SUMMARY = "show or change the list of nodes of a quorum"
HELP = """\
examples:
  interlock quorum show --url redis://a,redis://b,redis://c
  interlock quorum change --from redis://a,redis://b,redis://c \\
      --to redis://a,redis://b,redis://c,redis://d,redis://e --timeout 10m

Every client of a quorum must list the same nodes. See also
  interlock quorum show --help
  interlock quorum change --help
"""
SHOW = """\
examples:
  interlock quorum show --url redis://a,redis://b,redis://c
  INTERLOCK_URL=redis://a,redis://b,redis://c interlock quorum show --json

what a node can be:
  new          it belongs to no quorum yet
  open         it votes in the quorum of the nodes that it names
  leaving      closed for a change of the list, which can still be given up
  closed       closed for a change of the list, which must go on
  retired      it is a node of no quorum any more; it names the one that was
  quarantined  it was restarted, or lost its memory; clients let it in again
  silent       no answer

the JSON object:
  nodes  objects with node, state, list, to (what the list is changed to), era
         (how often it was changed), fence (no fence was higher), held (seconds
         for which a lease may last), renewed (a lease that is kept, if known).
         Of a silent node: node, state and detail

exit codes:
  0 shown   64 wrong command line   69 no node answers   78 wrong URL
"""
CHANGE = """\
examples:
  grow from three nodes to five:
    interlock quorum change --from redis://a,redis://b,redis://c \\
        --to redis://a,redis://b,redis://c,redis://d,redis://e
  replace c, which is dead, by d:
    interlock quorum change --from redis://a,redis://b,redis://c \\
        --to redis://a,redis://b,redis://d
  see what would be done first, and what is refused:
    interlock quorum change --from ... --to ... --dry-run

what happens:
  closing     the nodes stop to vote. Nobody gets a lock; whoever has one keeps
              and renews it
  draining    until no lock is held, on a quorum of the old list
  committing  the old list is left for good
  opening     the nodes vote under the new list

All nodes of the new list must answer, and a quorum of the old one. When the
time is over, or after Ctrl-C, the old list is opened again. Whatever happens,
run the same command again: it goes on where it was. With --abort it goes back
instead, until the old list is left. Clients with the old list are told the new
one in an error, and must be given it.

durations:
  250ms  30s  10m  1h  2d, or a number of seconds

exit codes:
  0 done   75 locks were still held when the time was over: the old list is
  open again   69 too few nodes answer   78 refused, wrong URL
  64 wrong command line   130 Ctrl-C, 143 SIGTERM: the old list is open again

A password belongs into the environment: INTERLOCK_URL for --from, INTERLOCK_TO
for --to. Command lines can be read by others.
"""


def add_to(parser: argparse.ArgumentParser, kind: type[argparse.ArgumentParser]) -> None:
    """The actions and their options."""
    raw = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title="actions", prog="interlock quorum", parser_class=kind, required=True
    )
    say = "how each node stands"
    show = actions.add_parser("show", help=say, description=f"Show {say}. Change nothing.", epilog=SHOW, formatter_class=raw)
    show.add_argument(
        "--url", metavar="URLS", default=argparse.SUPPRESS, help="the nodes, joined by commas; else INTERLOCK_URL"
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    say = "change the list of nodes, without two holders"
    change = actions.add_parser("change", help=say, description=f"{say.capitalize()}.", epilog=CHANGE, formatter_class=raw)
    change.add_argument("--from", metavar="URLS", dest="old", help="the nodes of the old list; else INTERLOCK_URL")
    change.add_argument("--to", metavar="URLS", dest="new", help="the nodes of the new list; else INTERLOCK_TO")
    change.add_argument("--timeout", metavar="D", help="wait at most so long for locks to end; default: for ever")
    change.add_argument("--abort", action="store_true", help="open the old list again, after a change that was cut short")
    change.add_argument("--dry-run", action="store_true", help="say what would be done next, and do nothing")
    for action in (show, change):
        action.add_argument("--request-timeout", metavar="D", default="2s", help="for each question to a node; default 2s")
