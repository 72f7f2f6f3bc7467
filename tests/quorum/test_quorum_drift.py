"""The drift that a client was told reaches every wait that is told by another clock."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import cast

import pytest

import interlock
from interlock.backends.port import NodeStatus
from interlock.backends.quorum import QuorumBackend
from interlock.core.lease import DRIFT_FLOOR, outlast
from interlock.core.quorum import Marker, Quarantine


@pytest.mark.parametrize("drift", [0.0, 0.01, 0.3])
def test_a_node_that_forgot_waits_until_the_others_clocks_have_passed_what_they_hold(drift: float) -> None:
    urls = [f"memory://{uuid.uuid4().hex}" for _ in range(3)]
    with interlock.Client(urls, drift=drift) as client:
        backend, now = cast(QuorumBackend, client._context.backend), client._context.runtime.now
        others = [NodeStatus(Marker(backend.markers.list), good=True, held=10.0) for _ in range(2)]
        began = now()
        quarantine = backend.readmission._measure(Quarantine(0.0, loss="1"), began, others, NodeStatus(None, good=False))
        assert quarantine is not None
        waits = quarantine.until - began
        assert waits * (1 - drift) >= 10.0, "our clock may be that much faster than theirs"
        assert waits <= outlast(10.0, drift) + 1.0


def test_outlast() -> None:
    assert outlast(7.0, 0.3) == pytest.approx(10.0 + DRIFT_FLOOR)
    assert outlast(0.0, 0.3) == DRIFT_FLOOR


@pytest.mark.parametrize("drift", [0.0, 0.01, 0.3, 0.4])
@pytest.mark.parametrize("request_timeout", [0.002, 1.0, 1.01])
def test_an_answer_counts_for_as_long_as_a_request_may_take(
    monkeypatch: pytest.MonkeyPatch, drift: float, request_timeout: float
) -> None:
    """And never for longer than a quorum has noted, on a clock that is as slow as the drift allows for."""
    urls = [f"memory://{uuid.uuid4().hex}" for _ in range(3)]
    with interlock.Client(urls, drift=drift, request_timeout=request_timeout) as client, client.lock("x", ttl=60):
        backend = cast(QuorumBackend, client._context.backend)
        window = backend.markers.window
        assert all(node.member._memory.roll.window >= window for node in backend.nodes)  # type: ignore[attr-defined]
        with monkeypatch.context() as patched:
            patched.setattr(backend.markers, "runtime", SimpleNamespace(now=lambda: 1000.0))
            assert backend.markers.in_time(1000.0 - 0.98 * request_timeout, window)
            assert not backend.markers.in_time(1000.0 - window * (1 - drift) - 0.0001, window)
