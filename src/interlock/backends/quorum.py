"""A backend made of an odd number of independent backends. Redlock is a quorum of Redis nodes.

Every question goes to all nodes before any answer is awaited, and is decided as soon as the missing answers cannot change the
outcome; a node that is frozen or far away costs nothing. Decisions are in `core.quorum`, nodes in `electorate`; this file
puts the questions.

Interleavings and where each is handled
- a node is late: its answer is not awaited; the release follows its request down the same connection (the member's duty)
- split vote, or a grant that not enough nodes can be taught the fence of: taken back everywhere, refused, asked again later
- cancelled while votes are out: `undo` takes back what any node may have granted
- a node lost its memory: it answers Unmarked and does not count; see `electorate`
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..core import fence as fences
from ..core.claim import Claim, Entry, Gone, Granted, Refused, Unmarked, free
from ..core.quorum import Tally
from ..errors import Unavailable, UsageError, Vote
from ..runtime.base import Runtime
from .electorate import Electorate
from .port import Capabilities, Member

LEAD_MS = 50  # how far ahead of our clock a proposal is, so that nodes whose clocks are a little ahead can take it too


class QuorumBackend:
    """See `port.Backend`. Make it with `open_quorum`."""

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        self.address = f"quorum of {len(members)} ({', '.join(member.address for member in members)})"
        self.capabilities = Capabilities(*(all(parts) for parts in zip(*(m.capabilities for m in members), strict=True)))
        self.electorate = Electorate(members, runtime, self.address)
        self.nodes, self.needed = self.electorate.nodes, self.electorate.needed
        self._runtime = runtime
        self._where: dict[str, tuple[Sequence[int], float]] = {}  # token → nodes that were asked, and how long that matters
        self._asked: set[str] = set()  # tokens that nodes may hold although nobody was told so

    # --- the verbs ------------------------------------------------------------------------------------------------------

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`. Raises NoQuorum when too few nodes say yes or no."""
        until = self._runtime.now() + within
        await self.electorate.prepare(within)
        each = min(max(until - self._runtime.now(), 0.001), claim.ttl / 2)
        proposal = fences.floor(self._runtime.wall_ms() + LEAD_MS)
        asked = self.electorate.ready()
        tally = Tally(asked, len(self.nodes))

        def count(index: int, outcome: object) -> bool:
            tally.count(index, outcome)
            # When it is the nodes that are missing, hear out the others: they must be released, and are named in the error.
            return tally.decided and not tally.hopeless

        self._remember(claim.token, asked, claim.ttl)
        self._asked.add(claim.token)
        votes, answers = await self.electorate.poll(
            asked, lambda member: member.vote(claim, proposal, each), count, enough=lambda: tally.doubtful
        )
        for index, answer in answers.items():
            if isinstance(answer, Unmarked):
                self.electorate.suspect(index)
        if tally.won:
            granted = await self._agree(claim, tally, each)
            if granted is not None:
                self.electorate.longest = max(self.electorate.longest, claim.ttl)
                self.electorate.high = max(self.electorate.high, granted.fence)
                self._asked.discard(claim.token)
                return granted
        await self._release(claim.name, claim.token, each, set(tally.granted))
        if tally.hopeless:
            raise self.electorate.no_quorum(f"no quorum for '{claim.name}'", votes, answers)
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

        votes, answers = await self.electorate.poll(asked, lambda member: member.uphold(name, token, ttl, within, fence), count)
        if len(granted) >= self.needed:
            self.electorate.longest = max(self.electorate.longest, ttl)
            self._remember(token, asked, ttl)
            stored = max(answer.fence for answer in granted.values())
            await self._heal(Claim(name, token, ttl), stored, [index for index in gone if not gone[index].taken], within)
            return Granted(stored, ttl)
        if len(asked) - len(gone) < self.needed:
            await self._release(name, token, within, set(granted))
            return Gone(taken=any(answer.taken for answer in gone.values()))
        raise self.electorate.no_quorum(f"no quorum to extend '{name}'", votes, answers)

    async def release(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.release`. True when a quorum had it; raises NoQuorum when too few nodes answer."""
        done, held, votes, answers = await self._release(name, token, within)
        if held >= self.needed:
            return True
        if done >= self.needed:
            return False
        self._asked.add(token)
        raise self.electorate.no_quorum(f"no quorum to release '{name}'", votes, answers)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. Confirmed when so many nodes are free of the token that others can win."""
        if token not in self._asked:
            return False
        done, _, votes, answers = await self._release(name, token, within)
        if done < self.needed:
            raise self.electorate.no_quorum(f"no quorum to take back '{name}'", votes, answers)
        return True

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`. What each node says is in the entry's votes."""
        everybody = range(len(self.nodes))
        votes, answers = await self.electorate.poll(everybody, lambda member: member.inspect(name, within), lambda *_: False)
        entries = [answer for answer in answers.values() if isinstance(answer, Entry)]
        if len(entries) < self.needed:
            raise self.electorate.no_quorum(f"no quorum to look at '{name}'", votes, answers)
        for index, remark in (await self.electorate.forgetful(sorted(answers), within)).items():
            votes[index] = votes[index]._replace(verdict="quarantined", detail=remark)
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
        await self._runtime.settle()
        for node in self.nodes:
            await node.member.close()

    # --- a vote ---------------------------------------------------------------------------------------------------------

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

            await self.electorate.poll(
                behind, lambda member: member.uphold(claim.name, claim.token, claim.ttl, each, fence), count
            )
            if len(stored) < self.needed:
                return None
        return Granted(fence, ttl)

    async def _heal(self, claim: Claim, fence: int, lacking: list[int], within: float) -> None:
        """Put the lease on nodes that lost it or never had it, its fence with it. Best effort: the quorum stands without."""

        async def heal(member: Member) -> None:
            answer = await member.vote(claim, fence, within)
            if isinstance(answer, Granted) and answer.fence < fence:
                await member.uphold(claim.name, claim.token, claim.ttl, within, fence)

        if lacking:
            await self.electorate.poll(lacking, heal, lambda *_: False)

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

        asked, _ = self._where.get(token, (range(len(self.nodes)), 0.0))

        async def release(member: Member) -> bool:
            try:
                return await member.release(name, token, within)
            except Unavailable as error:
                if error.cause != "closed" or not await member.undo(name, token, within):
                    raise
                return True  # the connection broke, not the node: it is rid of the token
            finally:
                member.drop(token)

        votes, answers = await self.electorate.poll(asked, release, count, finish=True)
        self._asked.discard(token)
        if len(done) >= self.needed:
            self._where.pop(token, None)
        return len(done), held, votes, answers

    def _remember(self, token: str, asked: Sequence[int], ttl: float) -> None:
        """Who may hold this token: a node that was not even asked need not be bothered with the release."""
        now = self._runtime.now()
        known, _ = self._where.get(token, ((), 0.0))
        self._where[token] = tuple({*known, *asked}), now + 2 * ttl
        with suppress(LookupError, RuntimeError, StopIteration):  # other threads come and go; the next call goes on
            while self._where[oldest := next(iter(self._where))][1] <= now:  # those that were left to expire
                del self._where[oldest]


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
