"""What `interlock quorum` does and prints."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Any

from ...api.options import where
from ...backends.port import Member, NodeStatus
from ...backends.quorum import check_list
from ...backends.quorum.change import QuorumChange
from ...backends.registry import open_member
from ...core import change, checks
from ...errors import Unavailable, UsageError
from ...runtime.blocking import BlockingRuntime
from ...runtime.blocking import run as step
from .. import exits
from ..exits import complain
from ..reading import command_line, duration
from .words import Reporter, as_json, as_text, doing, say, told

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TO_VARIABLE = "INTERLOCK_TO"


def run(arguments: argparse.Namespace) -> int:
    """`interlock quorum …`: the exit code."""
    with command_line(f". Try 'interlock quorum {arguments.action} --help'"):
        within = checks.request_timeout(duration(arguments.request_timeout, "--request-timeout"))
        if arguments.action == "change":
            timeout = inf if arguments.timeout is None else duration(arguments.timeout, "--timeout")
            old = _urls(arguments.old or arguments.url, "--from")
            new = _urls(arguments.new or os.environ.get(TO_VARIABLE), "--to")
    if arguments.action == "show":
        return _show(arguments, within)
    return _change(arguments, old, new, timeout, within)


def _urls(given: str | None, option: str) -> list[str]:
    if given is None and (option == "--to" or not os.environ.get("INTERLOCK_URL")):
        raise UsageError(f"{option} is missing: give the URLs of the nodes, joined by commas")
    nodes = where(given)
    return list(nodes) if isinstance(nodes, list) else [nodes]


@contextmanager
def _opened(*lists: Sequence[str]) -> Iterator[list[list[Member]]]:
    """The members of each list; a node of several of them is opened once."""
    runtime, members, spare = BlockingRuntime(), dict[str, Member](), list[Member]()
    try:
        found = []
        for urls in lists:
            some = []
            for url in urls:
                member = open_member(url, runtime)
                if member.address in members:
                    spare.append(member)
                some.append(members.setdefault(member.address, member))
            found.append(some)
        yield found
    finally:
        for member in (*members.values(), *spare):
            step(member.close())


def _show(arguments: argparse.Namespace, within: float) -> int:
    nodes = where(arguments.url)
    answers: dict[int, Any] = {}
    with _opened(list(nodes) if isinstance(nodes, list) else [nodes]) as (members,):
        step(_race([member.roll(within) for member in members], answers))
    said = [(member.address, answers[number]) for number, member in enumerate(members)]
    for _, answer in said:
        if not isinstance(answer, NodeStatus | Unavailable):
            raise answer
    print(as_json(said) if arguments.json else as_text(said))
    return exits.OK if any(isinstance(answer, NodeStatus) for _, answer in said) else exits.UNAVAILABLE


async def _race(work: Sequence[Coroutine[Any, Any, NodeStatus]], answers: dict[int, Any]) -> None:
    def ended(number: int, outcome: Any) -> bool:
        answers[number] = outcome
        return False

    await BlockingRuntime().race(work, ended)


def _change(arguments: argparse.Namespace, old: list[str], new: list[str], timeout: float, within: float) -> int:
    with _opened(old, new) as (before, after), _signals() as caught:
        for members in (before, after):
            check_list([member.address for member in members])
        work, report = QuorumChange(before, after, BlockingRuntime(), within), Reporter()
        if arguments.dry_run:
            print(f"next: {doing(step(work.next()))}")
            return exits.OK
        outcome = step(work.give_up(report) if arguments.abort else work.run(timeout, lambda: bool(caught), report))
        say(told(outcome))
        if outcome.stage == change.DONE or arguments.abort:
            return exits.OK
        if outcome.why == "timeout":
            return complain(f"locks were still held after {timeout:g} s", exits.BUSY)
        if outcome.why == "stopped":
            return 128 + caught[0]
        return complain(outcome.why, exits.CONFIG)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Those that came. They end nothing by themselves: the old list must be opened again first."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
