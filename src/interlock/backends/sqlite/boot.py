"""Which run of the kernel this is, and how this process's boot clock stands to the kernel's own.

The store keeps expiries on the kernel's boot clock. That clock starts again with the machine, so the store must know whether
the numbers that it finds were written during this boot. A process in a *time namespace* reads a shifted clock. The shift is
known, so what such a process writes and reads is converted: all processes of a kernel mean the same moment.

A container may have a boot id of its own (systemd-nspawn and LXC mount one over the kernel's). So another boot id is no proof
of another boot: see `Database` for what is not done on the word of it.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from ...errors import Unsupported
from ...runtime.base import by_a_handler

PROC = "/proc"
FIRST_NAMESPACE = "time:[4026531834]"  # the kernel's own; the number is part of its interface


class Boot(NamedTuple):
    """`id` is the same for all processes of one boot. `ahead`: the seconds by which this process's boot clock is ahead."""

    id: str
    ahead: float = 0.0


def this_boot(proc: str = PROC) -> Boot:
    """Raises Unsupported where the system does not tell, OSError if there is no descriptor left to ask it."""
    boot = _read(f"{proc}/sys/kernel/random/boot_id").strip()
    if not boot:
        raise Unsupported(
            f"this system does not tell which boot it runs ({proc}/sys/kernel/random/boot_id cannot be read), so leases in an "
            "SQLite file could not be told from those of an earlier boot; nothing was written. Use redis:// or memory://"
        )
    return Boot(boot, _ahead(proc))


def _ahead(proc: str) -> float:
    own = _link(f"{proc}/self/ns/time")
    if own == FIRST_NAMESPACE or (not own and _link(f"{proc}/self/ns/mnt")):  # or a kernel that has no time namespaces
        return 0.0
    # The offsets are those of the namespace that children will be in. That is ours, unless this very process made a new one.
    if own and own == _link(f"{proc}/self/ns/time_for_children"):
        for line in _read(f"{proc}/self/timens_offsets").splitlines():
            clock, *offset = line.split()
            if clock == "boottime":
                seconds, nanoseconds = map(int, offset)
                return seconds + nanoseconds / 1e9
    raise Unsupported(
        f"this process is in a time namespace, and {proc}/self does not tell how its clock stands to that of the others, so "
        "the leases in an SQLite file cannot be dated; nothing was written. Use the store in a process that was started in "
        "that namespace, not in one that has made another since; or redis://"
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError as error:
        if by_a_handler(error) or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # not what it means
            raise
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        if by_a_handler(error):
            raise
        return ""
