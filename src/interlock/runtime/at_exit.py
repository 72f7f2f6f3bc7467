"""The end of the interpreter: first our threads, then what they used. Neither colour has to be imported for the other's sake.

Invariants
- Nothing is closed under somebody who uses it. A thread that does not end in time, and a daemon thread of the user's, may be in
  the middle of anything: whoever is asked to rest finds out, and leaves alone what is in use.
- What ends late costs all threads together no more than AT_EXIT, and what cannot be closed no more than AT_REST.
"""

from __future__ import annotations

import atexit
from functools import partial
from typing import Protocol

from .base import attempt, now
from .registry import WeakRegistry

AT_EXIT, AT_REST = 0.5, 0.2  # seconds for which threads that were asked to end are waited for, and what somebody is using


class Working(Protocol):
    """A thread of ours."""

    def stop(self) -> None:
        """Have it end."""

    def join(self, patience: float) -> None:
        """Wait for that."""


class Restful(Protocol):
    """Something that others may have forgotten to close."""

    def rest(self, within: float) -> None:
        """Close what nobody is using. The interpreter ends, and the threads of ours have ended, unless they hang."""


_working: WeakRegistry[Working] = WeakRegistry()
_restful: WeakRegistry[Restful] = WeakRegistry()


def stop_at_exit(thread: Working) -> None:
    """Have it stopped when the interpreter ends, and waited for."""
    _working.add(thread)


def rest_at_exit(thing: Restful) -> None:
    """Have `thing.rest` called when the interpreter ends."""
    _restful.add(thing)


def _end() -> None:
    # Before the interpreter takes itself apart, or a thread that is in the middle of something would see half of it gone.
    threads, until = _working.present(), now() + AT_EXIT
    for thread in threads:
        attempt(thread.stop, "the end of a thread")
    for thread in threads:
        thread.join(max(until - now(), 0.0))
    until = now() + AT_REST
    for thing in _restful.present():
        attempt(partial(thing.rest, max(until - now(), 0.0)), "the end of a client")


atexit.register(_end)
