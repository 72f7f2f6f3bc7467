"""What `interlock run` was asked to do, checked."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from ...core import checks
from ...errors import UsageError
from ..reading import duration

TTL = 30.0
GRACE = 5.0


class Options(NamedTuple):
    """The command line of `run`, in seconds and words."""

    name: str
    command: list[str]
    url: str | None
    timeout: float | None  # None: wait for ever
    ttl: float
    grace: float
    at_least: float
    max_hold: float | None
    lock_delay: float
    on_lost: str  # term, kill or warn
    busy: int  # the exit code
    silent_if_busy: bool
    standby: bool
    quiet: bool
    reason: str


def read(given: argparse.Namespace) -> Options:
    """The options behind the arguments. Raises UsageError for what cannot be meant."""
    ttl = TTL if given.ttl is None else checks.ttl(duration(given.ttl, "--ttl"))
    at_least = _seconds(given.at_least, "--at-least")
    if at_least is not None and not checks.MIN_TTL <= at_least <= checks.MAX_TTL:
        raise UsageError(f"--at-least {given.at_least}: 10 ms to 7 days; nothing was written")
    max_hold = _seconds(given.max_hold, "--max-hold")
    return Options(
        name=checks.name(given.name),
        command=given.command,
        url=given.url,
        timeout=_timeout(given),
        ttl=ttl,
        grace=_grace(given.grace, ttl),
        at_least=at_least or 0.0,
        max_hold=None if max_hold is None else checks.max_hold(max_hold, ttl),
        lock_delay=checks.lock_delay(_seconds(given.lock_delay, "--lock-delay") or 0.0, ttl),
        on_lost=given.on_lost,
        busy=_busy(given),
        silent_if_busy=given.skip,
        standby=given.standby,
        quiet=given.quiet,
        reason=checks.note(given.reason),
    )


def _seconds(text: str | None, option: str) -> float | None:
    return None if text is None else duration(text, option)


def _timeout(given: argparse.Namespace) -> float | None:
    asked = [("--no-wait", given.no_wait), ("--timeout", given.timeout is not None), ("--standby", given.standby)]
    both = [option for option, present in asked if present]
    if len(both) > 1:
        raise UsageError(f"{both[0]} and {both[1]} exclude each other")
    if given.skip and (given.no_wait or given.standby):
        raise UsageError("--skip does not wait by itself, and goes with --timeout only")
    if given.standby and given.on_lost == "warn":
        raise UsageError(
            "--standby starts the command again after a loss, so it cannot be left running: not with --on-lost warn"
        )
    if given.timeout is None and (given.no_wait or given.skip):
        return 0.0
    return checks.timeout(_seconds(given.timeout, "--timeout"))


def _grace(text: str | None, ttl: float) -> float:
    if text is None:
        return min(GRACE, ttl / 3)
    grace = duration(text, "--grace")
    if grace > ttl / 2:
        raise UsageError(
            f"--grace {text} is more than half of the ttl ({ttl:g} s): the lease is renewed when a third of it is over, and "
            "the command would be stopped before that. Use a longer --ttl or a shorter --grace"
        )
    return grace


def _busy(given: argparse.Namespace) -> int:
    if given.conflict_exit_code is None:
        return 0 if given.skip else 75
    if given.skip:
        raise UsageError("--skip is exit code 0 already: not with -E")
    code = int(given.conflict_exit_code) if re.fullmatch(r"\d{1,3}", given.conflict_exit_code, re.ASCII) else 256
    if code > 255:
        raise UsageError(f"-E {given.conflict_exit_code}: an exit code is a number from 0 to 255")
    return code
