"""Reading what people write on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UsageError
from .exits import WrongCommandLine

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@contextmanager
def command_line(more: str = "") -> Iterator[None]:
    """A UsageError in the block is the fault of the command line, not of the configuration: 64, not 78."""
    try:
        yield
    except UsageError as error:
        raise WrongCommandLine(f"{error}{more}") from None


def duration(text: str, option: str) -> float:
    """`250ms`, `30s`, `10m`, `1.5h`, `2d`, or a bare number of seconds. Raises UsageError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text}: not a duration. Write 250ms, 30s, 10m, 1h, or a number of seconds")
    return float(match[1]) * _UNITS[match[2]]
