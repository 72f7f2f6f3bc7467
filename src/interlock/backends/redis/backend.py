"""The port on one Redis or Valkey node. Every verb is one script, every answer of the server is turned into one of ours.

The lock is the string at the key that the user named, exactly as `SET name token NX PX ttl` would leave it: other libraries
that follow the same canon exclude us and we exclude them. The fence counter and the line of those who wait live beside it
under the same hash tag and expire by themselves.

Interleavings of the line, and where each is handled
- a claim with a place has no answer: it may be granted, in line, or still on its way. `undo` follows it down the same
  connection; release.lua makes whoever waits leave and whoever holds, served meanwhile or not, pass the lock on
- a release has no answer: the token is rid of the lock or still has it; undone as above. If it was passed on, whoever has it
  now is told by its own inbox, not by our answer
- a hand-over has no answer: the token has the lock still, or the heir has it, or the heir is in line, or was never heard of.
  Both tokens are on record with the connection, so `undo` of either follows the hand-over, in any order, one after the other:
  the one that has the lock passes it on, the one that waits leaves, the other two cases are nothing. An undo that gets no
  answer leaves the connection to the other token
- the hand-over arrives after the token was released elsewhere: it is a claim of the heir's, which its undo takes back
- served while it leaves: one of the two is first on the server. Left first: not in line, not served. Served first: passes it on
- its undo got no answer either: it stays in line, and is served in its turn. The announcement names a token that nobody waits
  with any more; whoever hears it releases it. Else the grant ends with its short ttl
- the announcement is lost: a claim repeated in time is answered with the grant's fence
- the inbox broke: while it is gone its waiters are passed over; a repeated claim puts them back at their place. The new one
  has the same name, so who is still in line stays valid
- a fork: the child has no inbox and no channel; to hear the parent's would make a dead parent look alive

A little long because every verb is here, and nothing but the verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from ...core.claim import SHOWN, Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked, free
from ...core.quorum import Roll
from ...core.token import ALIAS_DIGITS
from ...core.waits import Wait
from ...errors import Unavailable
from ...runtime.base import Runtime
from ..port import Capabilities, Standing
from .inbox import Mailbox
from .packing import (
    EPOCH_MS,
    IDLE_COUNTER_MS,
    LOSS_KEY,
    ROLL_KEY,
    WAITS_KEY,
    Ballot,
    ballot_of,
    claiming,
    first_claim,
    fresh_mark,
    given,
    leaving,
    line_keys,
    lock_keys,
    ms,
    number,
    plain_claim,
    plain_hand_over,
    plain_leave,
    plain_release,
    plain_vote,
    queue,
    roll_of,
    seconds,
    standing,
    text,
    undoing,
    waits_of,
    words_of,
    words_of_waits,
)
from .refusals import denied, nonsense, not_a_lock, refusal
from .resp import ErrorReply, Reply
from .scripts import CLAIM, ENROLL, EXTEND, HAND_OVER, INSPECT, LOOK, RELEASE, RETREAT, ROLL, Request, Script
from .transport import Transport, Undo

GONE, NOT_A_LOCK = -1, -3  # what extend.lua says of a lease, unless it gives its fence or says that somebody else has it


class RedisBackend:
    """See `port.LineMember`, where each verb is described or referred to."""

    capabilities = Capabilities(processes=True, hosts=True, survives=True, foreign=True, lines=True, light=True)

    def __init__(self, address: str, transport: Transport, runtime: Runtime) -> None:
        self.address = address
        self._transport = transport
        self._now, self._struck = runtime.now, runtime.struck
        self._unchecked = True  # nobody has looked yet whether this user may do all that is needed: see preflight.lua
        self._ballot = Ballot()  # once it is a node of a quorum there is something on it
        self._places: dict[str, bytes] = {}  # token → how it stands in line, from before that is sent until it is out
        # Tokens that were told that they stand there, when that was asked, and the highest fence by then. What is announced to
        # them with a higher one was granted later.
        self._waiting: dict[str, tuple[float, int]] = {}
        self._mailbox = Mailbox(address, transport, runtime.now)

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`."""
        name, token, ttl, place = claim
        if self._unchecked:
            answer = await self._first_claim(claim, Ballot(), 0, within)
        elif place is None and token not in self._places:  # the way of nearly all: as `_claim`, with less ado
            mark, tokens, sent_at = fresh_mark(), (token,), self._now()
            until = sent_at + within
            request = plain_claim(name, token, ms(ttl), mark)
            undo = partial(_undo, name, self._ballot, (token, b""))
            reply = await self._transport.call(request, mark, tokens, until, undo)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until, undo)
            if type(reply) is list and len(reply) == 3 and reply[0] == 1:
                fence = reply[1]
                if type(fence) is int:  # `_claimed` would say the same, and takes longer
                    return Granted(fence, given(ttl))
            answer = self._claimed(claim, reply, sent_at)
        else:
            answer = await self._claim(claim, Ballot(), 0, within)
        if isinstance(answer, Unmarked):
            raise nonsense(self.address, [-1])
        return answer

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """See `port.Member.vote`."""
        if self._unchecked:
            return await self._first_claim(claim, self._ballot, proposal, within)
        if claim.place is not None or claim.token in self._places:
            return await self._claim(claim, self._ballot, proposal, within)
        name, mark, tokens, sent_at = claim.name, fresh_mark(), (claim.token,), self._now()
        until = sent_at + within
        request, undo = plain_vote(claim, proposal, self._ballot.nodes, mark), self._undo(name, (claim.token, b""))
        reply = await self._transport.call(request, mark, tokens, until, undo)
        if type(reply) is ErrorReply:
            reply = await self._refused(request, reply, mark, name, tokens, until, undo)
        return self._claimed(claim, reply, sent_at)

    async def _first_claim(self, claim: Claim, ballot: Ballot, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """A claim that looks, in the same request, whether this user may do all that is needed. One of many at once will do,
        but not one with a place, which has no room for that."""
        if claim.place is not None or claim.token in self._places:
            return await self._claim(claim, ballot, proposal, within)
        self._unchecked = False
        try:
            return await self._claim(claim, ballot, proposal, within, first=True)
        except BaseException:
            self._unchecked = True
            raise

    async def _claim(
        self, claim: Claim, ballot: Ballot, proposal: int, within: float, first: bool = False
    ) -> Granted | Refused | Unmarked:
        name, token, sent_at = claim.name, claim.token, self._now()
        keys, arguments = lock_keys(name), claiming(claim, proposal)
        if claim.place is not None or token in self._places:
            keys, arguments = line_keys(name), arguments + self._stand(claim)
        if first:
            arguments += (first_claim(name),)
        member = self._places.get(token, b"")
        undo = self._undo(name, (token, member))
        try:
            reply = await self._run(CLAIM, keys + ballot.roll, arguments + ballot.nodes, name, (token,), within, undo)
            return self._claimed(claim, reply, sent_at)
        except BaseException as error:
            self._interrupted(token, error, sent_at)
            raise

    def _interrupted(self, token: str, error: BaseException, sent_at: float) -> None:
        """What a signal's handler raises may have kept us from noting that the token stands in line: its undo has to ask."""
        if token in self._places and self._struck(error):
            self._waiting.setdefault(token, (sent_at, 0))

    def _undo(self, name: str, *tokens: tuple[str, bytes]) -> Undo:
        """What takes back a request of these tokens, each with how it may stand in line."""
        return partial(_undo, name, self._ballot, *tokens)  # not of us: the transport keeps it, and nobody would be collected

    def _claimed(self, claim: Claim, reply: Reply, sent_at: float) -> Granted | Refused | Unmarked:
        """What claim.lua, or hand_over.lua in its place, says to a claim that was sent at that moment, or later."""
        match reply:
            case [1, int(fence), _]:
                self._left(claim.token)
                return Granted(fence, given(claim.ttl))
            case [2, int(fence), int(hindered), _]:
                self._unchecked |= hindered == 1  # the next claim says why
                self._left(claim.token)
                return Granted(fence, given(claim.ttl))
            case [-1, _]:
                return Unmarked()
            case [0 | 3, int(left), bytes(owner), int(micros), *some, bytes(fence), _] if len(some) < 2:
                known = number(fence) or 0
                if claim.token in self._places:
                    self._waiting[claim.token] = sent_at, known
                alias = text(some[0][:ALIAS_DIGITS]) if some and isinstance(some[0], bytes) else ""
                return Refused(seconds(left), text(owner), (), micros / 1_000_000, alias, known)
        raise nonsense(self.address, reply)

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        lease = Renewal(name, token, ttl, fence)
        (said,) = await self._extend([lease], (token,), within)
        if said == NOT_A_LOCK:
            raise not_a_lock(self.address, name)
        return _extended(lease, said)

    async def renew(self, leases: Sequence[Renewal], within: float) -> list[Granted | Gone]:
        """See `port.Backend.renew`."""
        # No token: nothing has to follow a renewal whose answer never came.
        return [_extended(*pair) for pair in zip(leases, await self._extend(leases, (), within), strict=True)] if leases else []

    async def _extend(self, leases: Sequence[Renewal], tokens: tuple[str, ...], within: float) -> list[int]:
        keys = [key for lease in leases for key in lock_keys(lease.name)]
        arguments = [IDLE_COUNTER_MS, EPOCH_MS]
        for lease in leases:
            arguments += lease.token.encode(), b"%d" % ms(lease.ttl), b"%d" % lease.fence
        reply = await self._run(EXTEND, (*keys, ROLL_KEY), tuple(arguments), leases[0].name, tokens, within)
        match reply:
            case [*said, _]:
                numbers = [number for number in said if isinstance(number, int)]
                if len(numbers) == len(said) == len(leases):
                    return numbers
        raise nonsense(self.address, reply)

    async def release(self, name: str, token: str, within: float, proposal: int = 0) -> bool:
        """See `port.Member.release`."""
        nodes = self._ballot.nodes
        if token not in self._places and (nodes or not proposal):  # as below, with less ado
            mark, tokens, until = fresh_mark(), (token,), self._now() + within
            plain = plain_release
            request = plain_leave(name, token, proposal, nodes, mark) if nodes else plain(name, token, mark)
            reply = await self._transport.call(request, mark, tokens, until)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until)
        else:
            arguments = leaving(token, self._places.get(token, b""), proposal) + nodes
            reply = await self._run(RELEASE, line_keys(name) + self._ballot.roll, arguments, name, (token,), within)
        match reply:
            case [int(held), int(hindered), _]:
                if hindered:
                    self._unchecked = True  # the next claim says why
                self._left(token)
                return held == 1
        raise nonsense(self.address, reply)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. A token that waits is made to leave, though its claim was answered."""
        mark, until = fresh_mark(), self._now() + within
        request = undoing(name, token, self._places.get(token, b""), self._ballot, mark)
        try:
            reply = await self._transport.follow(request, mark, token, within)
            if reply is None and token in self._waiting:
                reply = await self._transport.call(request, mark, (token,), until)
            if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":  # what it follows is over, so any connection will do
                until = max(until, self._now() + 0.001)
                reply = await self._transport.call(request._replace(full=True), mark, (), until)
        finally:
            self._left(token)
        if isinstance(reply, ErrorReply):
            raise refusal(self.address, reply, name)
        return reply is not None

    # --- the line -------------------------------------------------------------------------------------------------------

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`."""
        return await self._mailbox.open(within)

    async def hear(self, until: float) -> list[Announced]:
        """See `port.Line.hear`."""
        announced = []
        for one in await self._mailbox.hear(until):
            asked_at, known = self._waiting.get(one.token, (-inf, 0))
            announced.append(one._replace(at=asked_at))
            # An old one says nothing: it stands in line again. Those of a quorum's nodes are hints, and it may stand there.
            if one.fence > known and not self._ballot.roll:
                self._left(one.token)
        return announced

    def elect(self, nodes: Sequence[str]) -> None:
        """See `port.Member.elect`."""
        self._ballot = ballot_of(nodes)
        self._transport.side_by_side()

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`."""
        place, sent_at = heir.place, self._now()
        known = heir.token == token or token in self._places or heir.token in self._places
        if place is None or known or proposal or self._ballot.roll:
            return await self._hand_over(name, token, heir, before, within, proposal)
        # The way of nearly all: the heir is new in line, and the other does not stand there. As below, with less ado.
        member, mark, tokens, until = standing(heir.token, place), fresh_mark(), (heir.token, token), sent_at + within
        request = plain_hand_over(name, token, heir, member, place.arrival, before, mark)
        undo = self._undo(name, (token, b""), (heir.token, member))
        self._places[heir.token] = member
        try:
            reply = await self._transport.call(request, mark, tokens, until, undo)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until, undo)
            if type(reply) is list and len(reply) == 4 and reply[0] == 2 and reply[2] == 0:
                fence = reply[1]
                if type(fence) is int:
                    self._left(heir.token)
                    return Handed(True, Granted(fence, given(heir.ttl)))
            return self._handed(token, heir, reply, sent_at)
        except BaseException as error:
            self._interrupted(heir.token, error, sent_at)
            raise

    async def _hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int
    ) -> Handed | Unmarked:
        own, sent_at = self._places.get(token, b""), self._now()
        arguments = (*claiming(heir, proposal), *self._stand(heir), token.encode(), b"%d" % before, own)
        arguments += self._ballot.nodes
        member = self._places.get(heir.token, b"")
        tokens = (heir.token, token) if heir.token != token else (token,)  # the heir first: its own may create something
        undo = self._undo(name, (token, own), (heir.token, member))
        try:
            reply = await self._run(HAND_OVER, line_keys(name) + self._ballot.roll, arguments, name, tokens, within, undo)
            return self._handed(token, heir, reply, sent_at)
        except BaseException as error:
            self._interrupted(heir.token, error, sent_at)
            raise

    def _handed(self, token: str, heir: Claim, reply: Reply, sent_at: float) -> Handed | Unmarked:
        answer = self._claimed(heir, reply, sent_at)
        if isinstance(answer, Unmarked):
            return answer
        if token != heir.token:
            self._left(token)
        return Handed(isinstance(reply, list) and reply[0] in (2, 3), answer)

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """See `port.LineMember.retreat`."""
        name, token, sent_at = claim.name, claim.token, self._now()
        member, arrival, _ = self._stand(claim)
        arguments = (token.encode(), member, arrival, b"%d" % ms(longest), IDLE_COUNTER_MS)
        undo = self._undo(name, (token, member))
        reply = await self._run(RETREAT, line_keys(name) + self._ballot.roll, arguments, name, (token,), within, undo)
        match reply:
            case [bytes(fence), _]:
                known = number(fence) or 0
                if member:
                    self._waiting[token] = sent_at, known
                return known
        raise nonsense(self.address, reply)

    def _stand(self, claim: Claim) -> tuple[bytes, bytes, bytes]:
        """How a claim stands in line if it is refused, for claim.lua. A token that is there keeps to how it is there."""
        known, place = self._places.get(claim.token), claim.place
        if place is not None and known is None:
            self._places[claim.token] = member = standing(claim.token, place)
            return member, b"%d" % place.arrival, b"0"
        return known or b"", b"%d" % place.arrival if place is not None else b"", b"1" if known else b"0"

    def _left(self, token: str) -> None:
        """It stands in no line any more, or nobody will ask for it again."""
        if self._places:
            self._places.pop(token, None)
            self._waiting.pop(token, None)

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. What follows a request of the same token goes down the same connection, if it can."""
        return self._transport.settled(token)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        reply = await self._run(INSPECT, line_keys(name), (b"%d" % SHOWN,), name, (), within)
        match reply:
            case [int(held), int(left), bytes(owner), bytes(fence), int(waiters), [*line], _]:
                entry = free(name)
                if held:
                    entry = Entry(name, True, text(owner), seconds(left), number(fence))
                return entry._replace(waiting=queue(line), waiters=waiters)
        raise nonsense(self.address, reply)

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> Standing:
        """See `port.Member.roll`."""
        told = (b"%d" % mark, b"%d" % ms(window), *words_of_waits(waits))
        reply = await self._run(ROLL, (ROLL_KEY, LOSS_KEY, WAITS_KEY), told, "", (), within)
        match reply:
            case [
                int(there),
                int(good),
                *words,
                int(held),
                bytes(name),
                bytes(loss),
                bytes(run),
                bytes(role),
                bytes(policy),
                [*noted],
                _,
            ] if len(words) == 6 or not there:
                trouble = []
                if role == b"slave":
                    trouble.append("is a replica: it may vote for leases that its primary never heard of")
                if policy not in (b"", b"noeviction"):
                    trouble.append(f"may evict locks (maxmemory-policy {text(policy)}): set it to noeviction")
                roll, state = roll_of(words) if there else None, text(loss)
                replica, renewed = role == b"slave", text(name)
                known, facts = waits_of(noted), tuple(trouble)
                return Standing(roll, good == 1, held / 1000, state, text(run), replica, facts, renewed, known)
        raise nonsense(self.address, reply)

    async def enroll(self, roll: Roll, loss: str, within: float) -> bool:
        """See `port.Member.enroll`."""
        fields = (*words_of(roll), loss.encode(), b"%d" % ms(roll.window))
        reply = await self._run(ENROLL, (ROLL_KEY, LOSS_KEY), fields, "", (), within)
        match reply:
            case [int(ours), _]:
                return ours == 1
        raise nonsense(self.address, reply)

    def keep(self, token: str) -> None:
        """See `port.Member.keep`."""
        self._transport.keep(token)

    def drop(self, token: str) -> None:
        """See `port.Member.drop`."""
        self._left(token)
        self._transport.drop(token)

    def lag(self) -> float:
        """See `port.Member.lag`."""
        return self._transport.lag()

    async def close(self) -> None:
        """See `port.Backend.close`."""
        await self._transport.close()

    async def _run(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        arguments: tuple[bytes, ...],
        name: str,
        tokens: tuple[str, ...],
        within: float,
        undo: Undo = None,
    ) -> Reply:
        until = self._now() + within
        mark = fresh_mark()
        request = script(keys, *arguments, mark)
        reply = await self._transport.call(request, mark, tokens, until, undo)
        return await self._refused(request, reply, mark, name, tokens, until, undo) if type(reply) is ErrorReply else reply

    async def _refused(
        self,
        request: Request,
        reply: Reply,
        mark: bytes,
        name: str,
        tokens: tuple[str, ...],
        until: float,
        undo: Undo = None,
    ) -> Reply:
        """The reply to a request that the server has refused, if it is one that it will not refuse again; or raises."""
        if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":  # nothing was done: not a retry, a first try
            until = max(until, self._now() + 0.001)
            reply = await self._transport.call(request._replace(full=True), mark, tokens, until, undo)
        if isinstance(reply, ErrorReply):
            for token in tokens:
                if token not in self._waiting:
                    self._left(token)
            raise refusal(self.address, await self._lacks(name, until) or reply if denied(reply) else reply, name)
        return reply

    async def _lacks(self, name: str, until: float) -> ErrorReply | None:
        """All that this user lacks, once the server has refused it something: see preflight.lua. None: it cannot be told."""
        mark = fresh_mark()
        try:
            # It names no keys: a user who lacks some could not even call it.
            request = LOOK((), b"quorum" if self._ballot.roll else b"", *[b""] * 4, first_claim(name), mark)
            reply = await self._transport.call(request, mark, (), until)
        except Unavailable:
            return None
        return reply if isinstance(reply, ErrorReply) and reply.code == "LACKS" else None


def _undo(name: str, ballot: Ballot, *tokens: tuple[str, bytes]) -> list[Request]:
    return [undoing(name, token, member, ballot) for token, member in tokens]


def _extended(lease: Renewal, said: int) -> Granted | Gone:
    return Granted(said, given(lease.ttl)) if said >= 0 else Gone(taken=said != GONE)
