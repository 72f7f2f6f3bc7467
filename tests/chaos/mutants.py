"""What a run can change in its workers: mistakes, to see that they are found; and fences that get no help from clocks."""

from __future__ import annotations

import re

from interlock.backends import electorate
from interlock.backends.quorum import QuorumBackend
from interlock.backends.redis import backend, packing, scripts
from interlock.core import fence, lease
from interlock.core.claim import Claim, Granted
from interlock.core.quorum import Tally
from interlock.flow import ask

MUTANTS = {
    "": "none",
    "unfenced": "the client does not look whether it lost its lease, and the resource does not look at its fence",
    "deadline": "the client believes in a lease for five times as long as it was granted",
    "max-only": "the highest fence that any node gave is not written back to the others",
    "any-life": "a node votes by a roll of an earlier life of its memory",
    "hasty": "a node that lost its memory is seeded from the others, and does not wait",
}


def without_clock() -> None:
    """Fences grow by their counters alone in this process: an epoch in the far future leaves the clock no say."""
    fence.EPOCH_MS = 10**14
    vars(backend)["EPOCH_MS"] = packing.EPOCH_MS = b"%d" % fence.EPOCH_MS


def plant(mutant: str) -> None:
    """Plant it in this process. ("unfenced" is the worker's own doing.)"""
    if mutant not in MUTANTS:
        raise ValueError(f"no such mutant: {mutant}. Known are {', '.join(filter(None, MUTANTS))}")
    if mutant == "deadline":
        real = lease.deadline

        def late(sent_at: float, ttl: float, rate: float = lease.DRIFT_RATE) -> float:
            return real(sent_at, 5 * ttl, rate)

        lease.deadline = ask.deadline = late  # type: ignore[attr-defined]
    elif mutant == "max-only":

        async def agree(self: QuorumBackend, claim: Claim, tally: Tally, each: float) -> Granted:
            return Granted(tally.fence(), claim.ttl)

        QuorumBackend._agree = agree  # type: ignore[method-assign]
    elif mutant == "any-life":
        for script in (scripts.CLAIM, scripts.RELEASE, scripts.HAND_OVER):
            text = re.sub(rb"string\.find\(redis\.call\('INFO'[^)]*\)[^)]*\)", b"true", script.text)
            assert text != script.text
            script.set(text)
    elif mutant == "hasty":
        vars(electorate).update(drift=lambda ttl: -ttl, READMIT_PAUSE=0.005)
