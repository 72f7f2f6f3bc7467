"""The order of events: first what can be found out without the lock, then the warden, then the lock."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
import warnings

from ...core.lease import margin
from ...errors import InterlockError, Unavailable, UsageError
from .. import exits
from ..exits import complain
from . import command, link, options, voice
from .options import Options
from .orders import Orders
from .short import Short, short_of
from .signals import Interrupted, Signals


def run(arguments: argparse.Namespace) -> int:
    """`interlock run`: the exit code."""
    try:
        asked = options.read(arguments)
    except UsageError as error:
        return complain(f"{error}. Try 'interlock run --help'", exits.USAGE)
    if not hasattr(os, "fork"):  # pragma: no cover - Windows
        return complain("interlock run needs fork() and process groups, which this system does not have", exits.CONFIG)
    with voice.unhurried():
        return _outcome(asked)


def _outcome(asked: Options) -> int:
    try:
        return _supervised(asked, command.find(asked.command[0]))
    except Interrupted as stop:
        return 128 + stop.number
    except command.CannotRun as error:
        code, message = exits.NOT_EXECUTABLE if error.found else exits.NOT_FOUND, str(error)
    except Unavailable as error:
        if what := short_of(error.__cause__ or error):  # it is not the store
            code, message = exits.SHORT, f"this system is short of {what}: {error}"
        else:
            code, message = exits.UNAVAILABLE, str(error)
    except InterlockError as error:
        code, message = exits.CONFIG, str(error)
    except Short as error:
        code, message = exits.SHORT, str(error)
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
    warden = link.fork(orders)
    try:
        from .runner import Runner  # only now: the warden needs no client

        with warnings.catch_warnings(), Signals() as signals:
            warnings.showwarning = exits.warn
            logging.getLogger("interlock").addHandler(logging.NullHandler() if asked.quiet else _Speaker(logging.ERROR))
            if asked.quiet:
                warnings.simplefilter("ignore")
            runner = Runner(asked, warden, signals)
            code = runner.run()
    finally:
        warden.close()  # if the command still runs, something went wrong here: the warden ends it
    if runner.key and os.getppid() > 0 and os.getpgid(os.getppid()) == os.getpgrp():
        # A script started us, and the terminal sent its Ctrl-C to the command's group only. The script must hear of it.
        voice.finish()
        signal.signal(runner.key, signal.SIG_DFL)
        os.killpg(0, runner.key)
    return code


class _Speaker(logging.Handler):
    """What the library logs as an error, in our own way. Its warnings tell of losses, which the runner does itself."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage(), exits.OK)
