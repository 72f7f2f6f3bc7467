"""Handing over: a release and the claim of the next one of this client, in one request.

Interleavings
- the answer is lost: nothing may be left of either token (here the heir's; the other is the release's affair), the heir asks
  for itself
- the heir has left meanwhile, or got it by itself: what was granted is the caller's to release
- the store served somebody else who came earlier: the heir stands in its line
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from ..backends.port import Line
from ..core.claim import Claim, Granted, Place
from ..core.lease import Hold
from ..errors import InterlockError, UsageError
from .ask import believe
from .gate import Waiter
from .site import Site

PROBATION = 3.0  # seconds that a grant lasts which finds its waiter asleep; one that is awake renews it in time


def place(site: Site, waiter: Waiter, inbox: str) -> Place:
    """Its place in the store's line."""
    wall = site.runtime.wall_ms() / 1000 - site.runtime.now() if site.backend.capabilities.hosts else 0.0
    offset = wall if site.hub.offset is None else site.hub.offset
    ttl = min(waiter.ttl, PROBATION) if waiter.policy.renew else waiter.ttl
    return Place(int((waiter.arrival + offset) * 1e6), inbox, ttl + waiter.policy.delay)


async def hand_over(site: Site, hold: Hold, heir: Waiter, barges: bool) -> tuple[bool, Hold | None]:
    """Release `hold` with one of ours next. Whether it was held, and what was granted to an heir that has left meanwhile.

    Raises as the store does: then nothing is known of the release, and nothing is left of the heir's claim.
    """
    inbox = await site.hub.listen()
    # A token of its own: the heir may be asking for itself at this moment, and neither must undo what the other got.
    token, seat = site.runtime.token(heir.note), place(site, heir, inbox)
    claim = Claim(heir.name, token, heir.ttl + heir.policy.delay, seat)
    before = 0 if barges else seat.arrival
    sent_at = site.runtime.now()
    try:
        handed = await cast(Line, site.backend).hand_over(hold.name, hold.token, claim, before, site.within(hold.ttl))
    except UsageError:  # an answer: nothing happened
        raise
    except BaseException:
        with suppress(InterlockError):
            await site.runtime.shield(lambda: site.backend.undo(hold.name, token, site.request_timeout))
        heir.ring()
        raise
    if isinstance(handed.heir, Granted):
        given = believe(site, claim, handed.heir, sent_at, heir.policy)
        if given is not None:
            return handed.held, None if site.gate.handed(hold, heir, given) else given
        await _drop(site, hold.name, token)  # too late to be of use
    elif site.gate.line_up(heir, token):
        heir.refused, heir.sent_at, heir.at = handed.heir, sent_at, handed.heir.at
        heir.until = sent_at + (handed.heir.retry_after or 0.0) + 0.001
    else:
        await _drop(site, hold.name, token)
    site.gate.left(hold)
    return handed.held, None


async def _drop(site: Site, name: str, token: str) -> None:
    """Nobody needs this claim any more. If the store does not answer, its ttl ends it."""
    with suppress(InterlockError):
        await site.runtime.shield(lambda: site.backend.release(name, token, site.request_timeout))
