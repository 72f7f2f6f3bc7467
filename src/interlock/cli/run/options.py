"""What `interlock run` was asked to do, checked."""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from ...core import checks
from ...errors import UsageError
from ..durations import duration

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
    ttl = checks.ttl(duration(given.ttl, "--ttl")) if given.ttl is not None else TTL
    at_least = duration(given.at_least, "--at-least") if given.at_least is not None else 0.0
    if given.at_least is not None and not checks.MIN_TTL <= at_least <= checks.MAX_TTL:
        raise UsageError(f"--at-least {given.at_least}: 10 ms to 7 days; nothing was written")
    return Options(
        name=checks.name(given.name),
        command=given.command,
        url=given.url,
        timeout=_timeout(given),
        ttl=ttl,
        grace=_grace(given.grace, ttl),
        at_least=at_least,
        max_hold=checks.max_hold(duration(given.max_hold, "--max-hold"), ttl) if given.max_hold is not None else None,
        lock_delay=checks.lock_delay(duration(given.lock_delay, "--lock-delay"), ttl) if given.lock_delay is not None else 0.0,
        on_lost=given.on_lost,
        busy=_busy(given),
        silent_if_busy=given.skip,
        standby=given.standby,
        quiet=given.quiet,
        reason=checks.note(given.reason),
    )


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
    if given.timeout is not None:
        return checks.timeout(duration(given.timeout, "--timeout"))
    return 0.0 if given.no_wait or given.skip else None


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
