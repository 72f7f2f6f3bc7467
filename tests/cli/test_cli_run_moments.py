"""`interlock run`: when something comes at a bad moment. Between the grant and the command; between a renewal and the warden."""

from __future__ import annotations

import pytest

from interlock.cli.run.watch import beat
from interlock.core.lease import drift, margin

# --- between a renewal and the warden -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0.5, 1.0, 10.0, 30.0, 60.0, 3600.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.5])
def test_the_warden_hears_of_a_renewal_before_it_would_send_sigterm(ttl: float, share: float) -> None:
    """With the longest grace that is allowed, too: it was told too late, and stopped a command whose lock was renewed."""
    usable, grace = ttl - drift(ttl), ttl * share
    told, renewed = usable - margin(ttl) - grace, usable / 3
    time_to_answer = told - renewed - beat(ttl, grace)
    assert time_to_answer >= 0.04 * ttl
    assert 0.005 <= beat(ttl, grace) <= 5.0
