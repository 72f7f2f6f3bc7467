"""The parser of `interlock run`, and its help. Imports nothing but argparse: it is loaded for every verb."""

from __future__ import annotations

import argparse

SUMMARY = "hold a lock while a command runs"
USAGE = "interlock run NAME [options] -- CMD [ARG ...]"
HELP = """\
examples:
  interlock run nightly -- ./backup.sh /srv      wait for it, then run
  interlock run nightly --skip -- ./backup.sh    cron on ten hosts, one runs
  interlock run scheduler --standby -- ./sched   one active, the rest ready
  interlock run deploy --timeout 10m --reason 'release 812' -- make deploy

The command is run as it stands, never by a shell. It has the lock from its
first to its last moment: the lease is renewed in the background, and if that
fails, everything the command has started gets SIGTERM, and SIGKILL a grace
later, before anybody else can have the lock. So it does when interlock itself
is killed. stdin, stdout and all descriptors are the command's; interlock
speaks on stderr, and not at all when things go well. Signals are handed on.

durations:
  250ms  30s  10m  1h  2d, or a number of seconds

the command's environment:
  INTERLOCK_HELD=1     INTERLOCK_LOCK=NAME     INTERLOCK_OWNER=host:pid
  INTERLOCK_FENCE      the number of this grant, greater than all before it:
                       let the resource refuse smaller ones
  INTERLOCK_TTL_MS     the ttl in milliseconds

exit codes:
  the command's own, or 128+n if signal n ended it
  75 not acquired (-E changes it)     79 lock lost, the command was stopped
  64 wrong command line               69 the store does not answer
  70 a bug in interlock               78 wrong URL, or the key is not a lock
  71 this system is short of processes, memory or descriptors
  126 CMD cannot be run               127 CMD not found
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options. What stands behind `--` is cut off before they are read."""
    option = parser.add_argument
    option("name", metavar="NAME", help="the name of the lock, as in client.lock(NAME)")
    option("-n", "--no-wait", action="store_true", help="if it is held, give up at once")
    option("--skip", action="store_true", help="if it is held, that is fine: exit 0 in silence")
    option("--timeout", "--wait", metavar="D", help="wait at most so long; default: for ever")
    option("--at-least", metavar="D", help="stay locked so long, even if CMD ends sooner")
    option("--ttl", metavar="D", help="if this machine dies, the lock is free after D; default 30s")
    option("--max-hold", metavar="D", help="stop CMD before it has held the lock for so long")
    option("--lock-delay", metavar="D", help="if it was not given back, the lock stays shut so much longer")
    option("--grace", metavar="D", help="time to stop between SIGTERM and SIGKILL; default 5s, at most half the ttl")
    say = "lock in danger: SIGTERM, then SIGKILL (term); SIGKILL only (kill); say so and let it run (warn)"
    option("--on-lost", choices=("term", "kill", "warn"), default="term", help=say)
    option("-E", "--conflict-exit-code", metavar="CODE", help="instead of 75, if it is held")
    option("--reason", metavar="TEXT", default="", help="for others to read in `interlock status`")
    option("--standby", action="store_true", help="wait through outages too; after a loss, wait and start CMD again")
    option("--quiet", action="store_true", help="say nothing, the exit code tells")
    option("--url", metavar="URL", default=argparse.SUPPRESS, help="where the locks are kept; else INTERLOCK_URL")
