"""What happens in a forked child to what it inherited: nothing, ever again.

A child has copies of the parent's descriptors, and some of what they lead to is shared: SQLite's memory and locks, an event
loop's epoll set, a pipe. Using or even closing such a copy can harm the parent. So whoever owns something of the kind is told
(`watch`), lets go of it unclosed where closing would be felt (`keep`), and makes its own when it is next needed.

The copies of sockets are closed at once (`close_in_child`), not when somebody next looks at them: a child that becomes a daemon
closes every descriptor and opens files of its own, and what was kept by its number would be one of these. To close a copy says
nothing to the peer, and leaves the parent's alone.

Some things cannot be inherited at all, not even unused: SQLite keeps notes on a file for the whole process, and a child that
has them believes in locks it does not have. Whoever owns such a thing puts it away before the fork (`guard`). Forks of several
threads come one after the other, so that none of them waits for what another has put away.
"""

from __future__ import annotations

import os
from atexit import register
from contextlib import suppress
from threading import RLock
from typing import Protocol

from .base import attempt, now
from .registry import WeakRegistry

PATIENCE = 2.0  # seconds that a fork may be kept waiting, for all guarded things together


class Forgetful(Protocol):
    """Something that can let go of what it inherited."""

    def disown(self) -> None:
        """Called in a forked child, where only this thread exists."""


class Guarded(Protocol):
    """Something that must not be open, nor in the middle of anything, while the process is copied."""

    def suspend(self, within: float) -> bool:
        """Before a fork, in the thread that forks: finish, put away, and begin nothing new. False: it could not be done."""

    def resume(self) -> None:
        """In the parent, after it, in the same thread, if it was suspended."""


class Socket(Protocol):
    """As in the standard library."""

    def close(self) -> None:
        """Close it, unless somebody counts on it."""

    def fileno(self) -> int:
        """Its number; -1 when it is closed or detached."""

    def detach(self) -> int:
        """Forget the number without closing it."""


generation = 0  # how many forks lie between the first process and this one

_watched: WeakRegistry[Forgetful] = WeakRegistry()
_guarded: WeakRegistry[Guarded] = WeakRegistry()
_sockets: WeakRegistry[Socket] = WeakRegistry()
_suspended: list[Guarded] = []
_forking = RLock()  # a signal handler may fork while its thread is about to
_forks = 0  # that are under way
_kept: list[object] = []


def watch(thing: Forgetful) -> None:
    """Have `thing.disown` called in every forked child from now on."""
    _watched.add(thing)


def guard(thing: Guarded) -> None:
    """Have `thing` suspended around every fork from now on. One that is under way has to end first: it would miss it."""
    with _forking:
        _guarded.add(thing)


def close_in_child(sock: Socket) -> None:
    """Have this process's copy of a socket closed in every forked child from now on, before anything else runs there."""
    _sockets.add(sock)


def keep(inherited: object) -> None:
    """Never finalise this object in this process."""
    if not _kept:
        register(_outlive_the_interpreter)
    _kept.append(inherited)


def sever(descriptor: int) -> None:
    """Let go of this process's copy of a connection: else the peer would not notice the end of the parent while we live.

    Nothing is sent, and no epoll set of the parent's is changed. The number stays taken, so who closes it later closes nothing
    else.
    """
    if descriptor >= 0:
        with suppress(OSError):
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)


def _outlive_the_interpreter() -> None:
    # At exit the interpreter takes modules apart and would close the parent's connection with them. One more reference
    # prevents that. Most children end without coming here, so nobody pays for ctypes in vain.
    try:
        from ctypes import py_object, pythonapi
    except ImportError:  # pragma: no cover - a build without libffi
        return
    pythonapi.Py_IncRef(py_object(_kept))


def _before() -> None:
    global _forks  # noqa: PLW0603 - there is one, as there is one process
    _forking.acquire()
    _forks += 1
    until = now() + PATIENCE
    for thing in _guarded.present():
        if thing not in _suspended and thing.suspend(max(until - now(), 0.0)):
            _suspended.append(thing)


def _in_parent() -> None:
    global _forks  # noqa: PLW0603
    try:
        _forks = max(_forks - 1, 0)  # a signal may strike before it is counted
        while _suspended and not _forks:
            _suspended.pop().resume()
    finally:
        _forking.release()


def _in_child() -> None:
    global generation, _forks  # noqa: PLW0603
    generation += 1
    _forks = max(_forks - 1, 0)
    _suspended.clear()
    _forking.release()
    for sock in _sockets.present():
        _drop(sock)
    for thing in _watched.present():
        attempt(thing.disown, "what a forked child has to let go of")


def _drop(sock: Socket) -> None:
    """Close it, whoever else counts on it. The object has no number from then on, so nobody can close or use another's."""
    with suppress(OSError):
        sock.close()
        if sock.fileno() >= 0:  # a loop counts on it
            os.close(sock.detach())


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
