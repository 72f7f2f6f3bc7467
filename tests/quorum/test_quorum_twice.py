"""A node that loses its memory again, before everybody has noticed that it was let back in the first time."""

from __future__ import annotations

import time

import interlock
from interlock.backends.quorum import QuorumBackend
from interlock.testing import FaultProxy, Node

from .conftest import urls


def suspected(client: interlock.Client) -> list[int]:
    backend = client._context.backend
    assert isinstance(backend, QuorumBackend)
    return [index for index, node in enumerate(backend.poller.nodes) if node.quarantine is not None]


def test_a_node_that_forgets_twice_waits_twice(five: list[Node]) -> None:
    """Who served the first quarantine of a node, and slept, has not served its second.

    The holder's lease stands on the second and the third node, the third forgets it: only its quarantine keeps the sleeper,
    who reaches the first and the third, from a quorum.
    """
    nodes, ttl = five[:3], 1.0
    with (
        FaultProxy(nodes[0].port) as away,
        interlock.Client(urls(nodes)) as sleeper,
        interlock.Client(urls(nodes)) as other,
        interlock.Client([away.url, *urls(nodes)[1:]], request_timeout=0.3) as holder,
    ):
        for client in (sleeper, other, holder):
            client.lock("x", ttl=ttl).acquire(timeout=5).release()
        nodes[2].restart(empty=True)
        for client in (sleeper, other):  # both see that it has lost its memory
            deadline = time.monotonic() + 10
            while suspected(client) != [2] and time.monotonic() < deadline:
                client.lock("y", ttl=ttl).acquire(timeout=5).release()
                time.sleep(0.02)
            assert suspected(client) == [2]
        time.sleep(ttl + 0.1)
        deadline = time.monotonic() + 10
        while not nodes[2].command("EXISTS", "interlock:roll") and time.monotonic() < deadline:
            other.lock("y", ttl=ttl).acquire(timeout=5).release()
        assert nodes[2].command("EXISTS", "interlock:roll"), "one of them lets it back in, the other sleeps"

        away.refuse()
        away.cut()
        lease = holder.lock("x", ttl=ttl, renew=False).acquire(timeout=5)
        nodes[2].restart(empty=True)
        tries = 0
        while not lease.lost:
            tries += 1
            try:
                second = sleeper.lock("x", ttl=ttl, renew=False).try_acquire()
            except interlock.Unavailable:
                continue
            assert second is None or lease.lost, "two holders"
        assert tries
        with sleeper.lock("x", ttl=ttl, timeout=10) as last:  # and it goes on once the lease is over
            assert last.fence > lease.fence
