"""Getting the lock: ask once, or wait until it is ours.

A store that keeps a line tells those who wait (`wait`); from any other it is asked for again and again, with growing pauses.
Either way nothing is left behind, whatever goes wrong: see `ask` and `wait`.
"""

from __future__ import annotations

from ..core import backoff
from ..core.claim import Claim
from ..core.lease import FIXED, Hold, Policy
from . import wait
from .ask import ask, too_late
from .site import Site


async def try_acquire(site: Site, name: str, ttl: float, policy: Policy = FIXED, note: str = "") -> Hold | None:
    """One question. The hold, or None if somebody else has the lock. Raises Unavailable when the store does not answer."""
    site.runtime.here()
    answer = await ask(site, Claim(name, site.runtime.token(note), ttl + policy.delay), policy)
    if not isinstance(answer, Hold):
        return None
    site.gate.holds(answer)
    return answer


async def acquire(
    site: Site, name: str, ttl: float, timeout: float | None, policy: Policy = FIXED, note: str = "", fair: bool = False
) -> Hold:
    """Wait until the lock is ours.

    Raises AcquireTimeout when `timeout` has passed, Unavailable at the first question that the store does not answer.
    """
    site.runtime.here()
    began = site.runtime.now()
    if site.backend.capabilities.lines:
        hold = await wait.acquire(site, name, ttl, timeout, policy, note, fair)
    else:
        hold = await _poll(site, name, ttl, timeout, policy, note)
    hold.waited = site.runtime.now() - began
    return hold


async def _poll(site: Site, name: str, ttl: float, timeout: float | None, policy: Policy, note: str) -> Hold:
    runtime = site.runtime
    began = runtime.now()
    give_up = None if timeout is None else began + timeout
    attempt = 0
    while True:
        # A fresh token each time: what a late clean-up of an earlier attempt takes back can never be this one's.
        answer = await ask(site, Claim(name, runtime.token(note), ttl + policy.delay), policy)
        if isinstance(answer, Hold):
            return answer
        now = runtime.now()
        left = None if give_up is None else give_up - now
        if left is not None and left <= 0:
            raise too_late(site, name, answer, now - began)
        # When time is up in the middle of the pause, one last question follows: the lock may be free by then.
        await runtime.sleep(backoff.pause(attempt, runtime.jitter(), answer.retry_after, left))
        attempt += 1
