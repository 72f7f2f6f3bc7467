"""Who is inside a gate, in words for an operator: a process that is stopped there keeps everybody else out.

Nothing here is needed for the store to work: what cannot be found out is said to be unknown.
"""

from __future__ import annotations

import os

PROC = "/proc"


def inside(device: int, inode: int, proc: str = PROC) -> str:
    """Who has the `flock` on a file, and what to do about it."""
    process = _holder(device, inode, f"{proc}/locks")
    if process is None:
        return "others go in and out of it, or one is inside that cannot be seen from here, in another container perhaps"
    if str(process) == _link(f"{proc}/self"):  # our number as /proc has it: it may be mounted for another pid namespace
        return "another client of this process is inside, in another thread or below this call"
    try:
        with open(f"{proc}/{process}/stat", encoding="utf-8", errors="replace") as file:
            # The command is in brackets, and may have brackets, blanks and anything else in it.
            command, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        return f"process {process} went inside and has ended, but a child of it has the gate ('fuser' on that file names it)"
    who = f"process {process} ({''.join(c if c.isprintable() else '?' for c in command)}) is inside"
    state = rest.split()[0] if rest.split() else ""
    if state in ("T", "t"):
        return f"{who} and is stopped: 'kill -CONT {process}' lets it go on, and ending it lets the others in"
    if state == "D":
        return f"{who} and waits for a disk: look at the one that the file is on"
    return (
        f"{who}: it is frozen, or has no processor to run on, or waits for somebody who locked the database by hand (an SQLite "
        "shell?)"
    )


def _holder(device: int, inode: int, locks: str) -> int | None:
    """From lines such as `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`."""
    try:
        with open(locks, encoding="ascii") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or fields[1:4] != ["FLOCK", "ADVISORY", "WRITE"] or not fields[4].isdigit():
            continue
        major, minor, number = fields[5].split(":")
        same = (int(major, 16), int(minor, 16)) == (os.major(device), os.minor(device))
        # A file system without a device (btrfs, overlayfs) may show another number here than `stat` does.
        if int(number) == inode and (same or int(major, 16) == os.major(device) == 0):
            return int(fields[4])
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
