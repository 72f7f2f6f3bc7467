"""What a run can change in its workers: mistakes, to see that they are found; and fences that get no help from clocks."""

from __future__ import annotations

import re

from interlock.backends.quorum import readmission
from interlock.backends.quorum.vote import Voting
from interlock.backends.redis import backend, packing, scripts
from interlock.core import fence, lease
from interlock.core.claim import Claim, Granted
from interlock.core.quorum import Quarantine, Tally
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

        async def agree(self: Voting, claim: Claim, tally: Tally, each: float) -> Granted:
            return Granted(tally.fence(), claim.ttl)

        Voting._agree = agree  # type: ignore[method-assign]
    elif mutant == "any-life":
        same_life = re.compile(
            rb"string\.find\((?:text|redis\.call\('INFO', 'replication'\)), 'master_replid:' \.\. \w+\[1\], 1, true\)"
        )
        for script, times in ((scripts.CLAIM, 1), (scripts.RELEASE, 1), (scripts.HAND_OVER, 2)):
            text, found = same_life.subn(b"true", script.text)
            assert found == times, f"the script compares lives {found} times, not {times}"
            script.set(text)
    elif mutant == "hasty":
        readmission.READMIT_PAUSE = 0.005

        def at_once(self: readmission.Readmission, quarantine: Quarantine, *_: object) -> Quarantine:
            return quarantine._replace(until=self._runtime.now())

        readmission.Readmission._measure = at_once  # type: ignore[assignment]
