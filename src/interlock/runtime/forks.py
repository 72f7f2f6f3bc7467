"""What happens in a forked child to what it inherited: nothing, ever again.

A child has copies of the parent's descriptors, and some of what they lead to is shared: SQLite's memory and locks, an event
loop's epoll set, a pipe. Using or even closing such a copy can harm the parent. So whoever owns something of the kind is told
(`watch`), lets go of it unclosed where closing would be felt (`keep`), and makes its own when it is next needed.
"""

from __future__ import annotations

import os
from atexit import register
from typing import Protocol
from weakref import WeakSet


class Forgetful(Protocol):
    """Something that can let go of what it inherited."""

    def disown(self) -> None:
        """Called in a forked child, where only this thread exists."""


_watched: WeakSet[Forgetful] = WeakSet()
_kept: list[object] = []


def watch(thing: Forgetful) -> None:
    """Have `thing.disown` called in every forked child from now on."""
    _watched.add(thing)


def keep(inherited: object) -> None:
    """Never finalise this object in this process."""
    if not _kept:
        register(_outlive_the_interpreter)
    _kept.append(inherited)


def _outlive_the_interpreter() -> None:
    # At exit the interpreter takes modules apart and would close the parent's connection with them. One more reference
    # prevents that. Most children end without coming here, so nobody pays for ctypes in vain.
    try:
        from ctypes import py_object, pythonapi
    except ImportError:  # pragma: no cover - a build without libffi
        return
    pythonapi.Py_IncRef(py_object(_kept))


def _in_child() -> None:
    for thing in list(_watched):
        thing.disown()


os.register_at_fork(after_in_child=_in_child)
