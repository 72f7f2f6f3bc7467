"""`interlock run`: first what can be found out without the lock, then the supervisor, then the lock."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
import warnings

from ...core.lease import margin
from ...errors import InterlockError, Unavailable
from .. import exits
from ..exits import complain
from ..reading import command_line
from . import link, options, voice
from .channel import Orders
from .command import CannotRun, Short, find, short_of
from .options import Options
from .signals import Interrupted, Signals


def run(arguments: argparse.Namespace) -> int:
    """`interlock run`: the exit code."""
    with command_line(". Try 'interlock run --help'"):
        asked = options.read(arguments)
    if not hasattr(os, "fork"):  # pragma: no cover - Windows
        return complain("interlock run needs fork() and process groups, which this system does not have", exits.CONFIG)
    with voice.unhurried():
        return _outcome(asked)


def _outcome(asked: Options) -> int:
    try:
        return _supervised(asked, find(asked.command[0]))
    except Interrupted as stop:
        return 128 + stop.number
    except CannotRun as error:
        code, message = error.code, str(error)
    except Short as error:
        code, message = exits.SHORT, str(error)
    except Unavailable as error:
        code, message = exits.UNAVAILABLE, str(error)
        if what := short_of(error.__cause__ or error):  # it is not the store
            code, message = exits.SHORT, f"this system is short of {what}: {error}"
    except InterlockError as error:
        code, message = exits.CONFIG, str(error)
    except Exception as error:  # noqa: BLE001 - the exit code says whose fault it is
        if what := short_of(error):
            code, message = exits.SHORT, f"this system is short of {what}: {error}. The run was broken off"
        else:
            if sys.stderr is not None:
                traceback.print_exc()
            code, message = exits.BUG, f"a bug in interlock, please report it: {error!r}"
    return code if asked.quiet else complain(message, code)


def _supervised(asked: Options, path: str) -> int:
    orders = Orders(asked.name, path, asked.command, asked.grace, margin(asked.ttl), asked.on_lost, asked.quiet)
    supervisor = link.fork(orders)
    try:
        from .runner import Runner  # only now: the supervisor needs no client

        if asked.quiet:
            warnings.simplefilter("ignore")
        logging.getLogger("interlock").addHandler(logging.NullHandler() if asked.quiet else _Complaints(logging.ERROR))
        with Signals() as signals:
            runner = Runner(asked, supervisor, signals)
            code = runner.run()
    finally:
        supervisor.close()  # if the command still runs, something went wrong here: the supervisor ends it
    if runner.key and os.getppid() > 0 and os.getpgid(os.getppid()) == os.getpgrp():
        # A script started us, and the terminal sent its Ctrl-C to the command's group only. The script must hear of it.
        voice.finish()
        signal.signal(runner.key, signal.SIG_DFL)
        os.killpg(0, runner.key)
    return code


class _Complaints(logging.Handler):
    """What the library logs as an error, in our own way. Its warnings tell of losses, which the runner does itself."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage(), exits.OK)
