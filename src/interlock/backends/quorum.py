"""A backend made of an odd number of independent backends. Redlock is a quorum of Redis nodes.

Every question goes to all nodes before any answer is awaited, and is decided as soon as the missing answers cannot change the
outcome; a node that is frozen or far away costs nothing. The decisions are in `core.quorum`, this file asks and counts.

Interleavings and where each is handled
- a node is late: its answer is not awaited; the release follows its request down the same connection (the member's duty)
- split vote, or a grant that not enough nodes can be taught the fence of: taken back everywhere, refused, asked again later
- cancelled while votes are out: `undo` takes back what any node may have granted
- a node lost its memory: it answers Unmarked, and votes again only after its quarantine, with its fences re-seeded (`_readmit`)
- all nodes are new: nobody has a roll, so there is nothing to forget, and all get one at once (`_open`)
- two clients are the first at once: each sees a part of the other's rolls and looks again before it suspects anybody
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from ..core import fence as fences
from ..core.claim import Claim, Entry, Gone, Granted, Refused, Unmarked, free
from ..core.lease import drift
from ..core.quorum import SILENT, Health, Quarantine, Roll, Tally, reseed, table, votes_needed
from ..errors import InterlockError, NoQuorum, Unavailable, UsageError, Vote
from ..runtime.base import Runtime
from .port import Capabilities, Member, Standing

log = logging.getLogger("interlock")

LEAD_MS = 50  # how far ahead of our clock a proposal is, so that nodes whose clocks are a little ahead can take it too
LOOKS = 4  # at rolls that are there only in part, before those that are missing are taken for lost
BETWEEN_LOOKS = 0.05
READMIT_PAUSE = 0.2
BIRTH = 0.25  # how long a new cluster waits for its last node

Ask = Callable[[Member], Coroutine[Any, Any, Any]]


class Node:
    """A member and what this client knows of it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.health = Health()
        self.quarantine: Quarantine | None = None
        self.vetted = False


class QuorumBackend:
    """See `port.Backend`. Make it with `open_quorum`."""

    def __init__(self, members: Sequence[Member], runtime: Runtime, gate: bool = True) -> None:
        self.address = f"quorum of {len(members)} ({', '.join(member.address for member in members)})"
        self.capabilities = Capabilities(*(all(parts) for parts in zip(*(m.capabilities for m in members), strict=True)))
        self.nodes = [Node(member) for member in members]
        self.needed = votes_needed(len(members))
        self._runtime = runtime
        self._gate = gate  # False only in tests: what happens without it
        self._open_yet = False
        self._longest = 0.0
        self._high = 0
        self._asked: set[str] = set()  # tokens that nodes may hold although nobody was told so

    # --- the verbs ------------------------------------------------------------------------------------------------------

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`. Raises NoQuorum when too few nodes say yes or no."""
        until = self._runtime.now() + within
        await self._prepare(within)
        each = min(max(until - self._runtime.now(), 0.001), claim.ttl / 2)
        proposal = fences.floor(self._runtime.wall_ms() + LEAD_MS)
        asked = self._electorate()
        tally = Tally(asked, len(self.nodes))

        def count(index: int, outcome: object) -> bool:
            tally.count(index, outcome)
            return tally.decided

        self._asked.add(claim.token)
        votes, answers = await self._poll(asked, lambda member: member.vote(claim, proposal, each), count)
        for index, answer in answers.items():
            if isinstance(answer, Unmarked):
                self._suspect(index)
        if tally.won:
            granted = await self._agree(claim, tally, each)
            if granted is not None:
                self._longest, self._high = max(self._longest, claim.ttl), max(self._high, granted.fence)
                self._asked.discard(claim.token)
                return granted
        await self._release(claim.name, claim.token, each, set(tally.granted))
        if tally.hopeless:
            raise self._no_quorum(f"no quorum for '{claim.name}'", votes, answers)
        retry_after = 0.0 if tally.won else tally.retry_after()
        return Refused(retry_after, tally.owner(), tuple(votes))

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`. Needs a quorum; heals nodes that lost the lease or never had it."""
        asked = [index for index, node in enumerate(self.nodes) if node.quarantine is None]
        granted: dict[int, Granted] = {}
        gone: dict[int, Gone] = {}

        def count(index: int, outcome: object) -> bool:
            if isinstance(outcome, Granted):
                granted[index] = outcome
            elif isinstance(outcome, Gone):
                gone[index] = outcome
            return len(granted) >= self.needed

        votes, answers = await self._poll(asked, lambda member: member.extend(name, token, ttl, within, fence), count)
        if len(granted) >= self.needed:
            self._longest = max(self._longest, ttl)
            stored = max(answer.fence for answer in granted.values())
            await self._heal(Claim(name, token, ttl), stored, [index for index in gone if not gone[index].taken], within)
            return Granted(stored, ttl)
        if len(asked) - len(gone) < self.needed:
            await self._release(name, token, within, set(granted))
            return Gone(taken=any(answer.taken for answer in gone.values()))
        raise self._no_quorum(f"no quorum to extend '{name}'", votes, answers)

    async def release(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.release`. True when a quorum had it; raises NoQuorum when too few nodes answer."""
        done, held, votes, answers = await self._release(name, token, within)
        if held >= self.needed:
            return True
        if done >= self.needed:
            return False
        self._asked.add(token)
        raise self._no_quorum(f"no quorum to release '{name}'", votes, answers)

    async def undo(self, name: str, token: str, within: float) -> None:
        """See `port.Backend.undo`. Confirmed when so many nodes are free of the token that others can win."""
        if token not in self._asked:
            return
        done, _, votes, answers = await self._release(name, token, within)
        if done < self.needed:
            raise self._no_quorum(f"no quorum to take back '{name}'", votes, answers)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`. What each node says is in the entry's votes."""
        everybody = list(range(len(self.nodes)))
        votes, answers = await self._poll(everybody, lambda member: member.inspect(name, within), lambda *_: False)
        entries = [answer for answer in answers.values() if isinstance(answer, Entry)]
        if len(entries) < self.needed:
            raise self._no_quorum(f"no quorum to look at '{name}'", votes, answers)
        for owner in {entry.owner for entry in entries if entry.held}:
            mine = [entry for entry in entries if entry.held and entry.owner == owner]
            if len(mine) >= self.needed:
                ends = sorted(entry.remaining for entry in mine if entry.remaining is not None)
                spare = len(mine) - self.needed
                remaining = ends[spare] if len(ends) > spare else None
                known = [entry.fence for entry in mine if entry.fence is not None]
                return Entry(name, True, owner, remaining, max(known) if known else None, tuple(votes))
        return free(name)._replace(votes=tuple(votes))

    async def close(self) -> None:
        """See `port.Backend.close`."""
        for node in self.nodes:
            await node.member.close()

    # --- a vote ---------------------------------------------------------------------------------------------------------

    def _electorate(self) -> list[int]:
        """Whom to ask. A node that failed or is silent rests, unless its vote is needed; then everybody is asked."""
        now = self._runtime.now()
        able = [index for index, node in enumerate(self.nodes) if node.quarantine is None]
        ready = [index for index in able if self._ready(self.nodes[index], now)]
        return ready if len(ready) >= self.needed else able

    def _ready(self, node: Node, now: float) -> bool:
        if node.health.retry_at > now:
            return False
        if node.member.lag() <= SILENT:
            return True
        probe = node.health.retry_at > 0  # it has rested: try it once more, and let it rest longer
        node.health.failed(now, self._runtime.jitter())
        return probe

    async def _poll(
        self, asked: Sequence[int], ask: Ask, count: Callable[[int, Any], bool]
    ) -> tuple[list[Vote], dict[int, Any]]:
        """Ask them all at once and count until it is enough. What each had to say, and the answers and errors as they are."""
        runtime = self._runtime
        began = runtime.now()
        answers: dict[int, Any] = {}
        latencies: dict[int, float] = {}

        def ended(place: int, outcome: Any) -> bool:
            index = asked[place]
            now = runtime.now()
            answers[index] = outcome
            latencies[index] = now - began
            health = self.nodes[index].health
            if isinstance(outcome, Unavailable):
                health.failed(now, runtime.jitter())
            else:
                health.answered()
            return count(index, outcome)

        await runtime.race([ask(self.nodes[index].member) for index in asked], ended)
        votes = [
            self._vote(index, index in asked, answers.get(index), latencies.get(index)) for index in range(len(self.nodes))
        ]
        return votes, answers

    def _vote(self, index: int, asked: bool, outcome: object, latency: float | None) -> Vote:
        node = self.nodes[index]
        verdict, detail = _verdict(outcome)
        if node.quarantine is not None:
            left = node.quarantine.until - self._runtime.now()
            verdict, detail = "quarantined", f"lost its memory; votes again in {max(left, 0):.1f} s at the earliest"
        elif not asked:
            verdict = "resting" if node.health.retry_at else "silent"
        return Vote(node.member.address, verdict, latency, detail)

    async def _agree(self, claim: Claim, tally: Tally, each: float) -> Granted | None:
        """The grant, once its fence is stored on a quorum that the token still holds. None: it could not be."""
        fence, behind = tally.fence(), tally.behind()
        ttl = min(granted.ttl for granted in tally.granted.values())
        if behind:
            stored = {index for index in tally.granted if index not in behind}

            def count(index: int, outcome: object) -> bool:
                if isinstance(outcome, Granted):
                    stored.add(index)
                return len(stored) >= self.needed

            await self._poll(behind, lambda member: member.extend(claim.name, claim.token, claim.ttl, each, fence), count)
            if len(stored) < self.needed:
                return None
        return Granted(fence, ttl)

    async def _heal(self, claim: Claim, fence: int, lacking: list[int], within: float) -> None:
        """Put the lease on nodes that lost it or never had it, its fence with it. Best effort: the quorum stands without."""

        async def heal(member: Member) -> None:
            answer = await member.vote(claim, fence, within)
            if isinstance(answer, Granted) and answer.fence < fence:
                await member.extend(claim.name, claim.token, claim.ttl, within, fence)

        if lacking:
            await self._poll(lacking, heal, lambda *_: False)

    # --- taking back ----------------------------------------------------------------------------------------------------

    async def _release(
        self, name: str, token: str, within: float, known: set[int] | None = None
    ) -> tuple[int, int, list[Vote], dict[int, Any]]:
        """Release on every node: how many have answered, and how many of those held it.

        The requests are on all wires before any answer is read. Awaited are those of a quorum, or of the `known` holders only:
        after a lost vote there may be no more, and a node that did not answer the vote will not answer this either.
        """
        done: set[int] = set()
        held = 0

        def count(index: int, outcome: object) -> bool:
            nonlocal held
            if isinstance(outcome, bool):
                done.add(index)
                held += outcome
            return held >= self.needed or (known is not None and known <= done)

        everybody = range(len(self.nodes))
        votes, answers = await self._poll(everybody, lambda member: member.release(name, token, within), count)
        for node in self.nodes:
            node.member.drop(token)
        self._asked.discard(token)
        return len(done), held, votes, answers

    # --- who may vote ---------------------------------------------------------------------------------------------------

    async def _prepare(self, within: float) -> None:
        if not self._open_yet:
            await self._open(within)
        elif any(node.quarantine is not None for node in self.nodes):
            await self._readmit(within)

    async def _roll_call(
        self, nodes: Sequence[int], within: float, enough: int
    ) -> tuple[dict[int, Standing], list[Vote], dict[int, Any]]:
        standings: dict[int, Standing] = {}

        def count(index: int, outcome: object) -> bool:
            if isinstance(outcome, Standing):
                standings[index] = outcome
            return len(standings) >= enough

        votes, answers = await self._poll(nodes, lambda member: member.roll(within), count)
        return standings, votes, answers

    async def _open(self, within: float) -> None:
        """The first question: see who is there, and tell a new cluster from nodes that lost their memory."""
        everybody = range(len(self.nodes))
        standings, votes, answers = await self._roll_call(everybody, within, self.needed)
        if len(standings) < self.needed:
            raise self._no_quorum("no quorum to begin with", votes, answers)
        self._vet(standings)
        for look in range(LOOKS):
            missing = [index for index, standing in standings.items() if standing.roll is None]
            if not missing:
                break
            if len(missing) == len(standings):
                # No quorum could ever have been formed without one of these, so no lease can have been forgotten.
                await self._enroll(everybody, Roll(0.0, 0, 0), min(within, BIRTH))
                break
            if look == LOOKS - 1:
                for index in missing:
                    self._suspect(index)
                break
            await self._runtime.sleep(BETWEEN_LOOKS * (0.5 + self._runtime.jitter()))  # somebody else may be at it
            again, _, _ = await self._roll_call(missing, within, len(missing))
            standings |= again
        for standing in standings.values():
            if standing.roll is not None:
                self._longest = max(self._longest, standing.roll.longest)
        self._open_yet = True

    async def _enroll(self, nodes: Sequence[int], roll: Roll, within: float) -> None:
        taken: set[int] = set()

        def count(index: int, outcome: object) -> bool:
            if isinstance(outcome, bool):
                taken.add(index)
            return False  # once in the life of a cluster: worth waiting for all of them

        votes, answers = await self._poll(nodes, lambda member: member.enroll(roll, within), count)
        if len(taken) < self.needed:
            raise self._no_quorum("too few nodes could be enrolled", votes, answers)

    def _vet(self, standings: dict[int, Standing]) -> None:
        """What a node is: refused if it must not vote, complained about once if it is not fit for locks."""
        known: dict[str, str] = {}
        for index, standing in standings.items():
            node = self.nodes[index]
            if standing.replica:
                raise UsageError(f"{node.member.address} is a replica; nothing was locked. Give its primary, or another node")
            if standing.identity and standing.identity in known:
                raise UsageError(
                    f"{known[standing.identity]} and {node.member.address} are the same server, so its vote would count twice; "
                    "nothing was locked. Give independent nodes"
                )
            known[standing.identity] = node.member.address
            if not node.vetted:
                for trouble in standing.trouble:
                    warnings.warn(f"interlock: {node.member.address} {trouble}", RuntimeWarning, stacklevel=2)
                node.vetted = True

    def _suspect(self, index: int) -> None:
        """A node without its roll: it has lost its memory, or is new among the others. Either way it must wait."""
        node = self.nodes[index]
        if node.quarantine is not None or not self._gate:
            return
        now = self._runtime.now()
        node.quarantine = Quarantine(now, now + self._longest + drift(self._longest))
        log.warning(
            "%s came back without its memory: it casts no vote for %.1f s at least, then its fences are seeded from the others",
            node.member.address,
            self._longest + drift(self._longest),
            extra={"event": "quarantined", "node": node.member.address, "seconds": self._longest},
        )

    async def _readmit(self, within: float) -> None:
        """Let those vote again whose quarantine is served and whose fences can be seeded from a quorum of the others."""
        now = self._runtime.now()
        served = [index for index, node in enumerate(self.nodes) if node.quarantine and node.quarantine.until <= now]
        if not served:
            return
        for index in served:  # not with every claim, if it cannot be done now
            node = self.nodes[index]
            node.quarantine = node.quarantine and node.quarantine._replace(until=now + READMIT_PAUSE)
        asked = sorted({*self._electorate(), *served})
        standings, _, _ = await self._roll_call(asked, within, len(asked))
        rolls = [standing.roll for standing in standings.values() if standing.roll is not None]
        self._longest = max([self._longest, *(roll.longest for roll in rolls)])
        for index in served:
            await self._readmit_one(index, standings.get(index), rolls, within)

    async def _readmit_one(self, index: int, standing: Standing | None, rolls: list[Roll], within: float) -> None:
        node, now = self.nodes[index], self._runtime.now()
        if standing is None or node.quarantine is None:
            return
        if standing.roll is None:
            until = node.quarantine.since + self._longest + drift(self._longest)
            if until > now:  # somebody granted longer leases than we knew
                node.quarantine = node.quarantine._replace(until=until)
                return
            roll = reseed(rolls, len(self.nodes))
            if roll is None and not rolls:
                # Everybody lost everything, and every lease is over: the highest fence we know of is the best there is.
                roll = Roll(self._longest, self._high + fences.floor(fences.EPOCH_MS + 1), self._high)
            if roll is None:
                return
            try:
                await node.member.enroll(roll, within)
            except Unavailable:
                return
        node.quarantine = None
        log.info("%s votes again", node.member.address, extra={"event": "readmitted", "node": node.member.address})

    # --- words ----------------------------------------------------------------------------------------------------------

    def _no_quorum(self, what: str, votes: Iterable[Vote], answers: dict[int, Any]) -> InterlockError:
        wrong = [answer for answer in answers.values() if isinstance(answer, UsageError)]
        if wrong and (len(wrong) >= self.needed or len(wrong) == len(answers)):  # not the nodes' fault
            return wrong[0]
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, InterlockError):
                raise answer  # a defect of ours, not an outage
        said = tuple(votes)
        text = f"{what}: {self.needed} of {len(self.nodes)} nodes must answer.\n{table(said)}\n"
        return NoQuorum(text, backend=self.address, votes=said)


def _verdict(outcome: object) -> tuple[str, str]:
    """An answer or an error, as a word and a detail."""
    match outcome:
        case None:
            return "late", ""
        case Granted():
            return "granted", ""
        case Refused(after, owner):
            end = "with no expiry" if after is None else f"until {after:.1f} s from now"
            return "held", f"{end}{' by ' + owner if owner else ''}"
        case Entry(held=True, owner=owner, remaining=left):
            return "held", f"{owner or 'a foreign client'}, {'no expiry' if left is None else f'{left:.1f} s left'}"
        case Entry():
            return "free", ""
        case Unmarked():
            return "quarantined", "lost its memory"
        case Gone(taken):
            return "gone", "somebody else holds it" if taken else ""
        case Unavailable(cause=cause):
            return cause, ""
        case BaseException():
            return "error", str(outcome)
    return "answered", ""


def open_quorum(members: Sequence[Member], runtime: Runtime) -> QuorumBackend:
    """A quorum of these. Raises UsageError for one node, or for one address twice; warns of an even number."""
    if len(members) < 2:
        raise UsageError("one node in a list is no quorum; give its URL without the list, or give three or five nodes")
    addresses = [member.address for member in members]
    if len(set(addresses)) < len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise UsageError(f"{twice} is in the list twice, so its vote would count twice; give independent nodes")
    if len(members) % 2 == 0:
        warnings.warn(
            f"interlock: a quorum of {len(members)} nodes survives the loss of no more nodes than one of {len(members) - 1}; "
            "use an odd number",
            RuntimeWarning,
            stacklevel=4,
        )
    return QuorumBackend(members, runtime)
