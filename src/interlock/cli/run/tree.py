"""Ending processes: a group at once, then whatever else descends from this process, to the last one.

With PR_SET_CHILD_SUBREAPER an orphan falls to the nearest such ancestor instead of to init, so nothing leaves the tree by
forking twice or by setsid(). That also gives the one proof that a tree is dead: when waitpid says that this process has no
children, it has no descendants. /proc is read only to find what to signal.

A number is signalled only while it cannot have become another process's:

- a group, while its leader is a child of ours that is not buried yet (dead or alive, it keeps the number), or while something
  that descends from us is in it. So the command is buried last (`bury`);
- a child of ours, likewise, while it is not buried;
- a descendant, through a descriptor of the process (pidfd) that was opened before a second look showed the same process.

Children that this process had before the run (`worker & exec interlock run …`) are left alone: `spare_strangers`.

Without Linux, or where /proc shows the processes of another pid namespace, the group is all that can be reached.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PAUSE = 0.002  # between two rounds of killing
_CHASES = 500  # looks at our own children in a row, as long as there are new ones
_SPARE = 3  # descriptors that are kept back for looking at /proc

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


class Seen(NamedTuple):
    """A process, as /proc shows it."""

    pid: int
    parent: int
    group: int
    born: int  # in ticks since the boot
    alive: bool  # false: it waits to be buried


_kept_back: list[int] = []
_strangers: set[tuple[int, int]] = set()  # pid and birth


def keep_descriptors() -> None:
    """Keep some back, so that a process which has run out of them can still look at /proc. Raises OSError if there are none."""
    while len(_kept_back) < _SPARE:
        _kept_back.append(os.open(os.devnull, os.O_RDONLY))


def spare_strangers() -> None:
    """The children that this process has now are those of a program that became this one. Leave them alone for good."""
    for pid in _children():
        if seen := _look_at(str(pid)):
            _strangers.add((seen.pid, seen.born))


def tell(group: int, number: int, root: int = 0) -> None:
    """A signal for the group and then for every other descendant of `root`, or this process, whatever group or session it is
    in."""
    told = is_child(group) and _tell_group(group, number)  # at once, before anything else is looked at
    found = descendants(root)
    if not told and group and any(seen.group == group for seen in found):
        told = _tell_group(group, number)
    for seen in found:
        if not (told and seen.group == group):
            _tell(seen, number)


def kill(group: int, statuses: dict[int, int], patience: float) -> bool:
    """SIGKILL everything below this process, for at most `patience` seconds. Whether nothing is left of it.

    `group` is that of the command; what has ended is buried, and its status is in `statuses`.
    """
    give_up = time.monotonic() + patience
    while True:
        tell(group, signal.SIGKILL)
        _chase()
        if bury(group, statuses):
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(_PAUSE)


def bury(command: int, statuses: dict[int, int]) -> bool:
    """Collect what has ended, the command after everything else. True: this process has no children, hence no descendants
    (strangers apart)."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if found is None:
            return bool(_strangers) and _proc_is_ours() and not descendants()
        if found.si_pid == command and _others(command, statuses):
            return False
        statuses[found.si_pid] = os.waitpid(found.si_pid, 0)[1]


def is_child(pid: int) -> bool:
    """Whether it is a child of this process that is not buried yet."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def below(root: int = 0) -> list[int]:
    """Everything that lives below `root`, or this process, as far as it can be seen."""
    return [seen.pid for seen in descendants(root) if seen.alive]


def descendants(root: int = 0) -> list[Seen]:
    """All that descend from `root`, or this process, and are not buried, as /proc shows them. None, if /proc is not ours."""
    children: dict[int, list[Seen]] = {}
    for seen in _everybody():
        if (seen.pid, seen.born) not in _strangers:
            children.setdefault(seen.parent, []).append(seen)
    found, unvisited = [], [root or os.getpid()]
    while unvisited:
        for child in children.get(unvisited.pop(), ()):
            unvisited.append(child.pid)
            found.append(child)
    return found


def _others(command: int, statuses: dict[int, int]) -> bool:
    """Bury those that wait for it behind the command, which has ended as well. Whether another is left."""
    for seen in descendants():
        if seen.pid == command:
            continue
        if seen.alive or seen.parent != os.getpid():
            return True
        pid, status = os.waitpid(seen.pid, os.WNOHANG)
        if not pid:
            return True
        statuses[pid] = status
    return False


def _tell_group(group: int, number: int) -> bool:
    """Whether there was such a group."""
    with suppress(PermissionError):  # all of it runs as another user
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
    return True


def _tell(seen: Seen, number: int) -> None:
    """A signal for this process, unless its number has become another's."""
    process = -1
    try:
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # no descriptor left, or a kernel that has none of these
                process = os.pidfd_open(seen.pid)
        again = _look_at(str(seen.pid))
        if again is None or again.born != seen.born:
            return
        with suppress(ProcessLookupError, PermissionError):
            if process >= 0:
                signal.pidfd_send_signal(process, number)
            else:
                os.kill(seen.pid, number)
    finally:
        if process >= 0:
            os.close(process)


def _chase() -> None:
    """SIGKILL our own children, and those that become ours by that, as long as there are new ones: a process that forks and
    exits for ever is gone before a look at all of /proc is over. Our children keep their numbers until we bury them."""
    killed = {pid for pid, _ in _strangers}
    for _ in range(_CHASES):
        new = _children() - killed
        if not new:
            return
        for pid in new:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= new


def _children() -> set[int]:
    """Our own, strangers too. None, if /proc is not ours, or the kernel does not tell."""
    if not _proc_is_ours():
        return set()
    try:
        return set(map(int, _in_any_case(lambda: _read(f"/proc/self/task/{os.getpid()}/children")).split()))
    except OSError:
        return set()


def _everybody() -> Iterator[Seen]:
    if not _proc_is_ours():
        return
    for entry in _in_any_case(lambda: os.listdir("/proc")):
        if entry.isdigit() and (seen := _look_at(entry)):
            yield seen


def _proc_is_ours() -> bool:
    """Whether the numbers in /proc are those of this process's own pid namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _look_at(pid: str) -> Seen | None:
    try:
        facts = _in_any_case(lambda: _read(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    except OSError:  # it has ended meanwhile
        return None
    alive = facts[0] not in (b"Z", b"X") or int(facts[17]) > 1  # the main thread of a process may end before the others
    return Seen(int(pid), int(facts[1]), int(facts[2]), int(facts[19]), alive)


def _in_any_case(look: Callable[[], _T]) -> _T:
    """With the descriptors that were kept back, if there are no others: a look now counts for more than one later."""
    try:
        return look()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        while _kept_back:
            os.close(_kept_back.pop())
        return look()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
