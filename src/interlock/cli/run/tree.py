"""Ending processes: a group at once, then whatever else descends from this process, to the last one.

With PR_SET_CHILD_SUBREAPER an orphan falls to the nearest such ancestor instead of to init, so nothing leaves the tree by
forking twice or by setsid(). That also gives the one proof that a tree is dead: when waitpid says that this process has no
children, it has no descendants. /proc is read only to find whom to signal.

Without Linux there is neither: the group is all that can be reached.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAUSE = 0.002  # between two rounds of killing

if sys.platform == "linux":
    from ctypes import CDLL

    _prctl = CDLL(None).prctl

    def adopt() -> None:
        """Orphans below this process fall to it from now on."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def die_with(parent: int) -> None:
        """The kernel kills this process when its parent ends. A program that changes its user when executed forgets this."""
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before
            os._exit(128 + signal.SIGKILL)

else:  # pragma: no cover - not a platform of the test suite

    def adopt() -> None:
        """Not here."""

    def die_with(parent: int) -> None:
        """Not here."""


def reap(statuses: dict[int, int]) -> bool:
    """Collect what has ended, by process id. True: this process has no children any more, hence no descendants."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        return True
    return False


def tell(group: int, number: int, spare: int = 0) -> None:
    """A signal for the group and then for every other descendant of this process, whatever group or session it is in."""
    if group:  # 0, if it is not known, would be our own
        with suppress(ProcessLookupError, PermissionError):  # gone; or all of it runs as another user
            os.killpg(group, number)
    for pid, its_group in _descendants(os.getpid()):
        if its_group != group and pid != spare:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill(group: int, statuses: dict[int, int], patience: float) -> bool:
    """SIGKILL everything below this process, for at most `patience` seconds. Whether nothing is left of it."""
    give_up = time.monotonic() + patience
    tell(group, signal.SIGKILL)
    while not reap(statuses):
        if time.monotonic() > give_up:
            return False
        time.sleep(_PAUSE)
        tell(group, signal.SIGKILL)  # those that were born meanwhile
    return True


def below() -> list[int]:
    """Everything that lives below this process, as far as it can be seen."""
    return [pid for pid, _ in _descendants(os.getpid())]


def _descendants(root: int) -> Iterator[tuple[int, int]]:
    """The process ids and groups of all that live below `root`, as /proc shows them."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:  # it may end while we look
                state, parent, group = file.read().rpartition(b")")[2].split()[:3]
                if state not in b"ZX":
                    children.setdefault(int(parent), []).append((int(entry), int(group)))
    below = [root]
    while below:
        for child in children.get(below.pop(), ()):
            below.append(child[0])
            yield child
