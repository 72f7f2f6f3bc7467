"""A backend made of an odd number of independent backends. Redlock is a quorum of Redis nodes.

Every question goes to all nodes before any answer is awaited, and is decided as soon as the missing answers cannot change the
outcome; a node that is frozen or far away costs nothing. Decisions are in `core.quorum`, nodes in `electorate`; this file
puts the questions.

Interleavings and where each is handled
- too few of those answer that were thought to be well, or they keep silent: nodes that rest are asked too, while there is time
- a node is late: its answer is not awaited; the release follows its request down the same connection (the member's duty)
- split vote, or a grant that not enough nodes can be taught the fence of: taken back everywhere, refused, asked again later
- cancelled while votes are out: `undo` takes back what any node may have granted
- released while its renewal is under way: nodes that are rid of it already look as if they lacked it; it is not put back there
- a node lost its memory: it answers Unmarked and does not count; see `electorate`

Waiting is in `quorum_line`. A little long because all verbs share what they know of a token.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, cast

from ..core import fence as fences
from ..core.claim import Claim, Entry, Gone, Granted, Refused, Renewal, Unmarked, free
from ..core.quorum import Extensions, Tally
from ..errors import Unavailable, UsageError
from ..runtime.base import Runtime
from .electorate import NOT_ASKED_FOR, SOON, Ask, Electorate, Poll
from .port import Capabilities, LineMember, Member

LEAD_MS = 50  # how far ahead of our clock a proposal is, so that nodes whose clocks are a little ahead can take it too
MOST_LEAD_MS = 1000  # when votes take long: those of a thousand tasks at once reach the nodes late
PATIENCE = 0.1  # seconds for nodes that rest, if it is not for all that was asked
MENDED_AT_ONCE = 50  # leases; a node that came back empty lacks them all, and must not keep the next renewals waiting


class Record:
    """Which nodes were asked for a token, how long that matters, and its fence: 0 if it never had the lock.

    Changed in place: a renewal that is under way cannot put back what a release has taken off the record. `given_back`: it was
    released or handed over, though that may have failed.
    """

    __slots__ = ("fence", "given_back", "nodes", "until")

    def __init__(self, nodes: Sequence[int], until: float) -> None:
        self.nodes = nodes
        self.until = until
        self.fence = 0
        self.given_back = False


class QuorumBackend:
    """See `port.Backend`. Make it with `open_quorum`."""

    def __init__(self, members: Sequence[Member], runtime: Runtime) -> None:
        self.address = f"quorum of {len(members)} ({', '.join(member.address for member in members)})"
        common = Capabilities(*(all(parts) for parts in zip(*(m.capabilities for m in members), strict=True)))
        self.capabilities = common._replace(lines=False)  # see `QuorumLine`
        self.electorate = Electorate(members, runtime, self.address, self._is_live)
        self.nodes, self.needed = self.electorate.nodes, self.electorate.needed
        self._runtime = runtime
        self._where: OrderedDict[str, Record] = OrderedDict()  # by token; those touched last come last
        self._asked: set[str] = set()  # tokens that nodes may hold although nobody was told so
        self._lead_ms = LEAD_MS
        self.electorate.held = self._held

    def _held(self) -> float:
        """For how many seconds a lease of this client may last at most."""
        ends = [record.until for record in list(self._where.values()) if record.fence]
        return max(max(ends, default=0.0) - self._runtime.now(), 0.0)

    def _is_live(self, token: str) -> bool:
        """See `port.Member.elect`: it is on record with a fence, and is not being given back."""
        record = self._where.get(token)
        return record is not None and record.fence > 0 and not record.given_back

    def allow_for(self, drift: float) -> None:
        """By what share clocks may run apart, as the client was told."""
        self.electorate.drift = drift

    # --- the verbs ------------------------------------------------------------------------------------------------------

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`. Raises NoQuorum when too few nodes say yes or no."""
        each = await self._prepare(claim, within)
        proposal = self._proposal()
        asked, sent_at, window = self.electorate.ready(), self._runtime.now(), self.electorate.window
        tally = Tally(asked, len(self.nodes))

        def count(index: int, outcome: object) -> bool:
            tally.count(index, outcome if self._in_time(sent_at, window) else None)
            # When it is the nodes that are missing, hear out the others: they must be released, and are named in the error.
            return tally.won or (tally.decided and not tally.hopeless)

        def late(nodes: Sequence[int], after: float) -> Ask:
            self._remember(claim.token, tally.ask(nodes), claim.ttl)
            return lambda member: member.vote(claim, proposal, max(each - after, SOON))

        self._remember(claim.token, asked, claim.ttl)
        self._asked.add(claim.token)
        poll = await self.electorate.poll(
            asked, lambda member: member.vote(claim, proposal, each), count, enough=lambda: tally.doubtful, late=late
        )
        if tally.hopeless and (resting := self.electorate.resting(poll.asked)) and (took := self._took_so_far(poll)) < each:
            poll.add(await self.electorate.poll(resting, late(resting, took), count, enough=lambda: tally.doubtful))
        self._took(poll)
        if len(tally.granted) < len(poll.answers):
            self._suspect(poll)
        if tally.won:
            granted = await self._agree(claim, tally, each)
            if granted is not None:
                self._has(claim.token, claim.ttl, granted.fence)
                return granted
        await self._release(claim.name, claim.token, each, set(tally.granted), set(tally.refused))
        if tally.hopeless:
            raise self.electorate.no_quorum(f"no quorum for '{claim.name}'", poll)
        retry_after = 0.0 if tally.won else tally.retry_after()
        return Refused(retry_after, tally.owner(), tuple(poll.votes()), spent=True)  # what was granted is being taken back

    def _proposal(self) -> int:
        """A fence that all nodes can take: then they agree, and nothing has to be written back."""
        return fences.floor(self._runtime.wall_ms() + self._lead_ms)

    def _took(self, poll: Poll) -> None:
        """The next vote may take as long as this one did."""
        self.electorate.took = self._runtime.now() - poll.began
        took = int(self.electorate.took * 1000)
        self._lead_ms = LEAD_MS + 2 * took if 2 * took < MOST_LEAD_MS else MOST_LEAD_MS

    def _took_so_far(self, poll: Poll) -> float:
        """How much later it is, when others have to be asked as well."""
        return self._runtime.now() - poll.began

    async def _prepare(self, claim: Claim, within: float) -> float:
        """Get ready for a vote. How long it may take."""
        if not self.electorate.settled() or within > self.electorate.window:
            until = self._runtime.now() + within
            self.electorate.want(within)
            await self.electorate.prepare(within)
            await self.electorate.allow(within, until)
            within = max(until - self._runtime.now(), within / 2)  # a thousand tasks may have been first at once
        return min(within, claim.ttl / 2)

    def _in_time(self, sent_at: float, window: float) -> bool:
        """Whether an answer still counts: see `Electorate.allow`. `window` is what was noted when it was asked for.

        Our clock may be slow, which whoever waits for the window does not know.
        """
        return self._runtime.now() - sent_at <= window * (1 - self.electorate.drift)

    def _suspect(self, poll: Poll) -> None:
        for index, answer in poll.answers.items():
            if isinstance(answer, Unmarked):
                self.electorate.suspect(index)

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`. Needs a quorum; heals nodes that lost the lease or never had it."""
        lease, ready = Renewal(name, token, ttl, fence), self.electorate.ready_to_extend()
        (answer,) = await self._extend(
            [lease], ready, lambda member, within: member.extend(name, token, ttl, within, fence), within, hear_out=False
        )
        assert answer is not None  # noqa: S101 - NoQuorum was raised
        return answer

    async def renew(self, leases: Sequence[Renewal], within: float) -> Sequence[Granted | Gone | None]:
        """See `port.Backend.renew`. Each lease needs a quorum of its own; raises NoQuorum when none has a certain outcome.

        Heals as `extend` does, a bounded number of leases at a time: the rest is left to the next renewals. A client that only
        renews asks for no votes, so nodes that have served their quarantine are let back in here as well.
        """
        if not leases:
            return []
        until = self._runtime.now() + within
        outcomes = await self._extend(
            leases,
            self.electorate.ready_to_extend(),
            lambda member, within: member.renew(leases, within),
            within,
            hear_out=True,
        )
        with suppress(*NOT_ASKED_FOR):
            await self.electorate.readmit(max(until - self._runtime.now(), SOON))
        return outcomes

    async def release(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.release`. True when a quorum had it, or may have had: silence is no loss, as for an extension.
        Raises NoQuorum when too few nodes answer."""
        until = self._runtime.now() + within
        done, held, poll = await self._release(name, token, within)
        if done >= self.needed:
            await self.electorate.tend(max(until - self._runtime.now(), SOON))
        if held >= self.needed:
            return True
        if done >= self.needed:
            return len(poll.asked) - list(poll.answers.values()).count(False) >= self.needed
        self._asked.add(token)
        raise self.electorate.no_quorum(f"no quorum to release '{name}'", poll)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. Confirmed when so many nodes are free of the token that others can win."""
        if token not in self._asked:
            return False
        record = self._where.get(token)
        spared = [] if record is None else [index for index in range(len(self.nodes)) if index not in record.nodes]
        done, _, poll = await self._release(name, token, within, free=spared)  # not even asked: free of it
        if done < self.needed:
            raise self.electorate.no_quorum(f"no quorum to take back '{name}'", poll)
        return True

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. At every node: which of them made up a quorum is not known any more."""
        return all(node.member.settled(token) for node in self.nodes)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`. What each node says is in the entry's votes."""
        everybody = range(len(self.nodes))
        poll = await self.electorate.poll(everybody, lambda member: member.inspect(name, within), lambda *_: False)
        entries = [answer for answer in poll.answers.values() if isinstance(answer, Entry)]
        if len(entries) < self.needed:
            raise self.electorate.no_quorum(f"no quorum to look at '{name}'", poll)
        votes = poll.votes()
        for index, remark in (await self.electorate.forgetful(sorted(poll.answers), within)).items():
            votes[index] = votes[index]._replace(verdict="quarantined", detail=remark)
        for owner in {entry.owner for entry in entries if entry.held}:
            mine = [entry for entry in entries if entry.held and entry.owner == owner]
            if len(mine) >= self.needed:
                ends = sorted(entry.remaining for entry in mine if entry.remaining is not None)
                spare = len(mine) - self.needed
                remaining = ends[spare] if len(ends) > spare else None
                known = [entry.fence for entry in mine if entry.fence is not None]
                usual = max(known, key=lambda fence: (known.count(fence), fence), default=None)  # what a quorum agreed on
                entry = Entry(name, True, owner, remaining, usual)
                break
        else:
            entry = free(name)
        fullest = max(entries, key=lambda entry: entry.waiters)  # the same tickets stand in all lines
        return entry._replace(votes=tuple(votes), waiting=fullest.waiting, waiters=fullest.waiters)

    async def close(self) -> None:
        """See `port.Backend.close`."""
        await self._runtime.settle()
        for node in self.nodes:
            await node.member.close()

    # --- a vote ---------------------------------------------------------------------------------------------------------

    async def _agree(self, claim: Claim, tally: Tally, each: float) -> Granted | None:
        """The grant, once its fence is stored on a quorum that the token still holds. None: it could not be."""
        fence, behind = tally.fence(), tally.behind()
        ttl = min([granted.ttl for granted in tally.granted.values()])
        if behind:
            stored = {index for index in tally.granted if index not in behind}

            def count(index: int, outcome: object) -> bool:
                if isinstance(outcome, Granted):
                    stored.add(index)
                return len(stored) >= self.needed

            await self.electorate.poll(
                behind, lambda member: member.extend(claim.name, claim.token, claim.ttl, each, fence), count
            )
            if len(stored) < self.needed:
                return None
        return Granted(fence, ttl)

    def _has(self, token: str, ttl: float, fence: int) -> None:
        """The token has the lock: from now on it is live (`_is_live`)."""
        electorate, record = self.electorate, self._where.get(token)
        if fence > electorate.high:
            electorate.high = fence
        if record is None:  # expired meanwhile, or told by others than those whom it asked
            record = self._remember(token, range(len(self.nodes)), ttl)
        record.fence, record.until, record.given_back = max(fence, record.fence), self._runtime.now() + 2 * ttl, False
        self._asked.discard(token)

    # --- an extension ---------------------------------------------------------------------------------------------------

    async def _extend(
        self,
        leases: Sequence[Renewal],
        asked: Sequence[int],
        ask: Callable[[Member, float], Coroutine[Any, Any, Any]],
        within: float,
        hear_out: bool,
    ) -> Sequence[Granted | Gone | None]:
        """Extend leases on these nodes, and mend where they differ. Raises NoQuorum when nothing is certain about any.

        `hear_out`: wait a moment for nodes that are slower than a quorum. What they lack is not healed if they are never heard.
        """
        sent_at = self._runtime.now()
        until = sent_at + within
        if within > self.electorate.window and self.electorate.window:
            self.electorate.want(within)
            await self.electorate.allow(within, until)
        window = self.electorate.window
        tally = Extensions(len(leases), len(self.nodes), self.needed)

        def count(index: int, answer: Any) -> bool:
            if not isinstance(answer, BaseException) and (self._in_time(sent_at, window) or not window):
                tally.count(index, [answer] if isinstance(answer, Granted | Gone) else answer)
            return tally.certain and not hear_out

        def remember(nodes: Sequence[int]) -> None:
            for lease in leases:  # now, not later: a release takes the token off the record, and there it must stay
                if (record := self._where.get(lease.token)) is not None:
                    self._asks(lease.token, record, nodes, lease.ttl)
            self._prune()

        def late(nodes: Sequence[int], after: float) -> Ask:
            remember(nodes)
            left = max(within - after, SOON)
            if not tally.hopeless:  # some leases are extended: they should not have to wait for long
                left = min(left, PATIENCE)
            return lambda member: ask(member, left)

        remember(asked)
        enough = (lambda: tally.certain) if hear_out else None
        poll = await self.electorate.poll(
            asked, lambda member: ask(member, within), count, finish=True, enough=enough, late=late
        )
        if (
            not tally.certain
            and (resting := self.electorate.resting(poll.asked))
            and (took := self._took_so_far(poll)) < within
        ):
            poll.add(await self.electorate.poll(resting, late(resting, took), count, finish=True, enough=enough))
        if tally.hopeless:
            what = f"extend '{leases[0].name}'" if len(leases) == 1 else f"extend {len(leases)} leases"
            raise self.electorate.no_quorum(f"no quorum to {what}", poll)
        await self._mend(leases, tally, until)
        return tally.outcomes

    async def _mend(self, leases: Sequence[Renewal], tally: Extensions, until: float) -> None:
        """Put leases on nodes that lost them or never had them. Best effort.

        What is left of lost ones stays: their holders do not know yet, and it keeps others out until they do (`Gone.left`).
        """
        for outcome in tally.outcomes:
            if isinstance(outcome, Granted):
                self.electorate.high = max(self.electorate.high, outcome.fence)
        work: dict[int, list[Renewal]] = {}
        lacking = [lack for lack in tally.lacking() if self.nodes[lack[2]].quarantine is None]
        for number, fence, node in lacking[:MENDED_AT_ONCE]:
            work.setdefault(node, []).append(leases[number]._replace(fence=fence))
        if work:
            await self._runtime.race([self._heal(node, lacking, until) for node, lacking in work.items()], lambda *_: False)

    async def _heal(self, index: int, leases: Sequence[Renewal], until: float) -> None:
        """Put leases on a node, their fences with them. The quorum stands without."""
        member = self.nodes[index].member
        for name, token, ttl, fence in leases:
            if (left := until - self._runtime.now()) <= 0:
                return
            record = self._where.get(token)
            if record is None or record.given_back:  # released, or about to be
                continue
            record.fence = max(record.fence, fence)  # so it is live: this vote must not be undone if it has no answer
            self._asks(token, record, (index,), ttl)
            answer = await member.vote(Claim(name, token, ttl), fence, left)
            if isinstance(answer, Unmarked):
                self.electorate.suspect(index)
                return
            if isinstance(answer, Granted) and answer.fence < fence:
                await member.extend(name, token, ttl, left, fence)
            if token not in self._where:  # by now
                await member.release(name, token, left)

    # --- taking back ----------------------------------------------------------------------------------------------------

    async def _release(
        self, name: str, token: str, within: float, known: set[int] | None = None, free: Collection[int] = ()
    ) -> tuple[int, int, Poll]:
        """Release on every node, except those known to be `free` of it: how many have answered, and how many of those held it.

        The requests are on all wires before any answer is read. Awaited are those of a quorum, or of the `known` holders only:
        after a lost vote there may be no more, and a node that did not answer the vote will not answer this either.
        """
        done: set[int] = set(free)
        held = 0

        def count(index: int, outcome: object) -> bool:
            nonlocal held
            if isinstance(outcome, bool):
                done.add(index)
                held += outcome
            return held >= self.needed or (known is not None and known <= done)

        def enough() -> bool:
            return known <= done if known is not None else len(done) >= self.needed

        record = self._forget(token)  # first: a renewal under way must not heal it any more
        asked = [index for index in record.nodes if index not in free]
        if not asked:
            self._asked.discard(token)
            return len(done), 0, Poll(self.electorate, asked, 0.0)
        proposal = record.fence and record.fence + 1

        async def release(member: Member) -> bool:
            try:
                return await member.release(name, token, within, proposal)
            except Unavailable as error:
                if error.cause != "closed" or not await member.undo(name, token, within):
                    raise
                return True  # the connection broke, not the node: it is rid of the token

        # Of a token that has the lock, the quorum is heard; of one that has not, there may be none.
        poll = await self.electorate.poll(
            asked, release, count, finish=True, enough=None if record.fence and known is None else enough
        )
        self._asked.discard(token)
        if len(done) < self.needed:
            self._where[token] = record
        return len(done), held, poll

    def _remember(self, token: str, asked: Sequence[int], ttl: float) -> Record:
        """Who may hold this token: a node that was not even asked need not be bothered with the release."""
        record = self._where.get(token)
        if record is None:
            record = self._where[token] = Record(asked, self._runtime.now() + 2 * ttl)
        else:
            self._asks(token, record, asked, ttl)
        self._prune()
        return record

    def _prune(self) -> None:
        """Forget those that were left to expire."""
        where, now = self._where, self._runtime.now()
        try:
            while where[oldest := next(iter(where))].until <= now:
                where.pop(oldest, None)
        except (LookupError, RuntimeError, StopIteration):  # other threads come and go; the next call goes on
            pass

    def _asks(self, token: str, record: Record, nodes: Sequence[int], ttl: float) -> None:
        """A token that was on record asks these nodes. If it was released meanwhile, it is not put there again."""
        record.nodes, record.until = tuple({*record.nodes, *nodes}), self._runtime.now() + 2 * ttl
        with suppress(KeyError):
            self._where.move_to_end(token)

    def _forget(self, token: str) -> Record:
        """What is on record of a token, which is not from now on. Every node, if nothing is."""
        record = self._where.pop(token, None)
        if record is None:
            return Record(range(len(self.nodes)), 0.0)
        record.given_back = True
        return record


def open_quorum(members: Sequence[Member], runtime: Runtime) -> QuorumBackend:
    """A quorum of these. Raises UsageError for one node, or for one address twice; warns of an even number."""
    check_list([member.address for member in members])
    if all(member.capabilities.lines for member in members):
        from .quorum_line import QuorumLine  # it builds on this file

        return QuorumLine([cast(LineMember, member) for member in members], runtime)
    return QuorumBackend(members, runtime)


def check_list(addresses: Sequence[str], stacklevel: int = 5) -> None:
    """Raises UsageError for one node, or for one address twice; warns of an even number."""
    if len(addresses) < 2:
        raise UsageError("one node in a list is no quorum; give its URL without the list, or give three or five nodes")
    if len(set(addresses)) < len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise UsageError(f"{twice} is in the list twice, so its vote would count twice; give independent nodes")
    if (size := len(addresses)) % 2 == 0:
        warnings.warn(
            f"interlock: a quorum of {size} nodes survives the loss of no more nodes than one of {size - 1}; use an odd number",
            RuntimeWarning,
            stacklevel=stacklevel,
        )
