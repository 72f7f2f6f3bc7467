"""The command `interlock`: reads the arguments, calls the verb, turns errors into one line and an exit code.

Only argparse is imported before a verb is known: `interlock version` and `--help` touch no store, client library or asyncio.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module

from .. import __version__
from . import exits
from .exits import complain
from .parser import parser

TYPE_CHECKING = False  # as in `interlock`
if TYPE_CHECKING:
    from collections.abc import Sequence

_VERBS = {
    "run": ".run.verb",
    "status": ".status",
    "wait": ".wait",
    "quorum": ".quorum.verb",
    "bench": ".bench.verb",
    "demo": ".demo.play",
    "sim": ".sim.verb",
}


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
    every = parser()
    try:
        arguments = every.parse_args(argv)
    except SystemExit as done:  # argparse has printed the help, or what is wrong
        return done.code if isinstance(done.code, int) else exits.OK
    if arguments.verb is None:
        every.print_help(sys.stderr)
        return exits.USAGE
    if arguments.verb == "version":
        print(f"interlock {__version__}")
        return exits.OK
    from ..errors import InterlockError, Unavailable

    try:
        with warnings.catch_warnings():
            warnings.showwarning = exits.warn
            code: int = import_module(_VERBS[arguments.verb], __package__).run(arguments)
            return code
    except exits.WrongCommandLine as error:
        return complain(str(error), exits.USAGE)
    except Unavailable as error:
        return complain(str(error), exits.UNAVAILABLE)
    except InterlockError as error:
        return complain(str(error), exits.CONFIG)
