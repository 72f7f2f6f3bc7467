"""The words for a lease that is lost: why, and what to do about it."""

from __future__ import annotations

from ..core.lease import Hold
from ..errors import LeaseLost


def lost(hold: Hold) -> LeaseLost:
    """The error that says so."""
    how, advice = _WORDS.get(hold.gone, ("", "Use a longer ttl, or extend in time"))
    if hold.stopped == "max_hold":
        how, advice = f"its max_hold of {hold.policy.max_hold:g} s is over", "Do less under one lock, or allow more time"
    elif hold.stopped == "progress":
        how, advice = f"progress() was not called for {hold.policy.progress:g} s", "Find out where the work hangs"
    elif hold.stopped == "cancelled":
        how, advice = "the task that renews it was cancelled, with all others perhaps", "Do not cancel tasks that are not yours"
    how = how or f"its ttl of {hold.ttl:g} s is over"
    return LeaseLost(
        f"the lease on '{hold.name}' (fence {hold.fence}) is lost: {how}. Others may be working on it, so stop writing; "
        f"what you wrote since is safe only where the resource checks the fence. {advice}",
        name=hold.name,
        reason=hold.gone or "expired",
    )


_WORDS = {
    "taken": ("somebody else holds it now", "Find out who took it: its holder is shown by `interlock status`"),
    "forced": (
        "it was removed from the store before its time",
        "Either somebody deleted it, or the store lost its memory or its clock jumped",
    ),
    "unreachable": (
        "the store could not be reached to renew it",
        "Look at the store and the network; a longer ttl rides out longer outages",
    ),
    "paused": (
        "this process did not get to run in time to renew it (suspended, stopped, or starved by something that blocks)",
        "A longer ttl rides out longer pauses; in a coroutine nothing may block the event loop",
    ),
    "forked": ("it belongs to the parent process", "Acquire in the process that does the work"),
}
