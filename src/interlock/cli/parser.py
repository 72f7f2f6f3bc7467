"""The parser of the command line. Imports nothing but argparse: it is loaded for every verb."""

from __future__ import annotations

import argparse
import sys

from .. import __version__
from . import exits, texts
from .exits import complain

TYPE_CHECKING = False  # as in `interlock`: importing `typing` would be a tenth of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse with one line instead of two and with the exit code that flock and sysexits use."""

    takes_command = False  # what stands behind `--` is the command to be run

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
        """See `argparse`."""
        sys.exit(complain(f"{message}. Try '{self.prog} --help'", exits.USAGE))


def parser() -> Parser:
    """That of all verbs."""
    whole = Parser(
        prog="interlock",
        description="Distributed locks that tell the truth.",
        epilog=texts.MAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"interlock {__version__}")
    whole.add_argument("--url", metavar="URL", help="where the locks are kept; else INTERLOCK_URL")
    verbs = _verbs(whole, "interlock", "verb")
    _run(verbs)
    _status(verbs)
    _wait(verbs)
    _quorum(verbs)
    _bench(verbs)
    _add(verbs, "demo", "see what a lock is for, in 15 seconds", texts.DEMO)
    _sim(verbs)
    _add(verbs, "version", "print the version of interlock", "example:\n  interlock version")
    return whole


def _verbs(above: Parser, prog: str, what: str, required: bool = False) -> Any:
    # prog is given so that argparse need not work it out, which would load shutil and its compressors.
    return above.add_subparsers(
        dest=what, metavar=what.upper(), title=f"{what}s", prog=prog, parser_class=Parser, required=required
    )


def _add(verbs: Any, name: str, summary: str, epilog: str, description: str = "", usage: str | None = None) -> Any:
    return verbs.add_parser(
        name,
        usage=usage,
        help=summary,
        description=description or f"{summary.capitalize()}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _name(verb: Any) -> None:
    verb.add_argument("name", metavar="NAME", help="the name of the lock, as in client.lock(NAME)")


def _url(verb: Any, metavar: str = "URL", say: str = "where the locks are kept; else INTERLOCK_URL", **how: Any) -> None:
    # After the verb as well; SUPPRESS keeps an absent one from wiping out the one before the verb.
    verb.add_argument("--url", metavar=metavar, default=argparse.SUPPRESS, help=say, **how)


def _run(verbs: Any) -> None:
    usage = "interlock run NAME [options] -- CMD [ARG ...]"
    run = _add(verbs, "run", "hold a lock while a command runs", texts.RUN, usage=usage)
    run.takes_command = True
    _name(run)
    option = run.add_argument
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
    _url(run)


def _status(verbs: Any) -> None:
    summary = "who holds a lock now, and who waits for it"
    status = _add(verbs, "status", summary, texts.STATUS, f"Show {summary}.")
    _name(status)
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument("--exit-code", action="store_true", help="0 free, 1 held, anything else: cannot be told")
    _url(status)


def _wait(verbs: Any) -> None:
    summary = "wait until nobody holds a lock"
    wait = _add(verbs, "wait", summary, texts.WAIT, f"{summary.capitalize()}. Take nothing.")
    _name(wait)
    wait.add_argument("--timeout", metavar="D", help="wait at most so long; default: for ever")
    wait.add_argument("--quiet", action="store_true", help="say nothing, the exit code tells")
    _url(wait)


def _quorum(verbs: Any) -> None:
    quorum = _add(verbs, "quorum", "show or change the list of nodes of a quorum", texts.QUORUM)
    actions = _verbs(quorum, "interlock quorum", "action", required=True)
    summary = "how each node stands"
    show = _add(actions, "show", summary, texts.QUORUM_SHOW, f"Show {summary}. Change nothing.")
    _url(show, "URLS", "the nodes, joined by commas; else INTERLOCK_URL")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    change = _add(actions, "change", "change the list of nodes, without two holders", texts.QUORUM_CHANGE)
    option = change.add_argument
    option("--from", metavar="URLS", dest="old", help="the nodes of the old list; else INTERLOCK_URL")
    option("--to", metavar="URLS", dest="new", help="the nodes of the new list; else INTERLOCK_TO")
    option("--timeout", metavar="D", help="wait at most so long for locks to end; default: for ever")
    option("--abort", action="store_true", help="open the old list again, after a change that was cut short")
    option("--dry-run", action="store_true", help="say what would be done next, and do nothing")
    for action in (show, change):
        action.add_argument("--request-timeout", metavar="D", default="2s", help="for each question to a node; default 2s")


def _bench(verbs: Any) -> None:
    summary = "how far from the floor of your network a lock is"
    bench = _add(verbs, "bench", summary, texts.BENCH, f"Measure {summary}.")
    _url(bench, say="a node; repeat it for a quorum", action="append")
    bench.add_argument("--seconds", metavar="D", default="3s", help="for how long, as 3s or 1m; default 3s")
    bench.add_argument("--prefix", metavar="P", default="", help="put before the names of its keys, where access rules want it")
    bench.add_argument("--json", action="store_true", help="print one JSON object")


def _sim(verbs: Any) -> None:
    sim = _add(verbs, "sim", "run the locks in a simulated world, replay a seed", texts.SIM)
    option = sim.add_argument
    option("--seed", metavar="N", type=int, default=0, help="the seed, or the first of them; default 0")
    option("--faults", metavar="LIST", default="mixed", help="what goes wrong; default mixed. each: one group after another")
    option("--nodes", metavar="N", type=int, default=3, help="1: a single store, else a quorum; default 3. mixed: by the seed")
    option("--histories", metavar="K", type=int, default=1, help="run so many seeds, print a summary only")
    option("--mutant", metavar="M", help="plant a bug; 'list' shows them")
    option("--jobs", metavar="N", type=int, default=1, help="share the histories among N processes; default 1")
    option("--json", action="store_true", help="print the summary as JSON")
    option("--jsonl", action="store_true", help="print the history as lines of JSON, not the timeline")
