"""What the warden is to do. Known before it is forked."""

from __future__ import annotations

from typing import NamedTuple

DYING = 5.0  # SIGKILL takes effect at once, but for a process that the kernel keeps in a disk or network wait


class Orders(NamedTuple):
    """One run, as far as its warden must know it."""

    name: str  # of the lock
    path: str
    argv: list[str]
    grace: float
    margin: float  # how long before the deadline a lease counts as lost: then everything is killed
    on_lost: str
    quiet: bool
