"""The default client: what `interlock.lock("name")` uses when nothing else was said."""

from __future__ import annotations

import os
import threading
from typing import Unpack

from .client import Client, Lock
from .options import Settings, described

_guard = threading.RLock()


def _after_fork() -> None:
    """A child must not inherit the lock while another thread of the parent has it."""
    global _guard  # noqa: PLW0603
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)

_client: Client | None = None


@described
def lock(name: str, **settings: Unpack[Settings]) -> Lock:
    """The lock called `name` on the default client: INTERLOCK_URL, else an SQLite file of this user on this host.

    The client is made at the first call and there until the interpreter ends, which has it put away. Raises as `Client` and
    `Client.lock` do.
    """
    global _client  # noqa: PLW0603 - one per process is the point
    with _guard:
        if _client is None:
            _client = Client()
        client = _client
    return client.lock(name, **settings)
