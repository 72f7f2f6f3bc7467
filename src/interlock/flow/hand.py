"""Handing over: a release and the claim of the next one of this client, in one request.

Interleavings: the answer is lost → nothing may be left of either token (`forsake`, and the release's own undo), and the heir
asks for itself; the heir has left meanwhile → the caller is told, and releases again; the store served somebody else who came
earlier → the heir stands in its line.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from ..backends.port import Line
from ..core.claim import Claim, Granted, Place
from ..core.lease import Hold
from ..errors import InterlockError
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

    Raises as the store does: then nothing is known of either.
    """
    inbox = await site.hub.listen()
    sent_at = site.runtime.now()
    seat = place(site, heir, inbox)
    claim = Claim(heir.name, heir.token, heir.ttl + heir.policy.delay, seat)
    site.gate.line_up(heir)
    handed = await cast(Line, site.backend).hand_over(
        hold.name, hold.token, claim, 0 if barges else seat.arrival, site.within(hold.ttl)
    )
    if isinstance(handed.heir, Granted):
        given = believe(site, claim, handed.heir, sent_at, heir.policy)
        if given is not None:
            return handed.held, None if site.gate.handed(hold, heir, given) else given
    else:
        heir.refused, heir.sent_at, heir.at = handed.heir, sent_at, handed.heir.at
        heir.until = sent_at + (handed.heir.retry_after or 0.0) + 0.001
    site.gate.left(hold)
    heir.ring()
    return handed.held, None


async def forsake(site: Site, hold: Hold, heir: Waiter, error: BaseException) -> None:
    """A hand-over whose outcome is unknown: nothing may be left of the heir's claim. It asks for itself, with a new token."""
    token = heir.token
    with site.gate.guard:
        site.gate.in_line.pop(token, None)
        heir.token, heir.in_line, heir.until = site.runtime.token(heir.note), False, 0.0
    with suppress(InterlockError):
        await site.runtime.shield(lambda: site.backend.undo(hold.name, token, site.request_timeout))
    heir.ring()
