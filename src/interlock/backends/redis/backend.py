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
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any

from ...core.claim import Announced, Claim, Gone, Granted, Handed, Refused, Renewal, Unmarked
from ...core.token import ALIAS_DIGITS
from ...runtime.base import Runtime
from ..port import Capabilities
from . import answers
from .inbox import Mailbox
from .node import ALONE, RedisNode
from .packing import (
    EPOCH_MS,
    IDLE_COUNTER_MS,
    ROLL_KEY,
    Ballot,
    Spot,
    claim_request,
    fresh_mark,
    given,
    hand_over_request,
    line_keys,
    lock_keys,
    ms,
    number,
    place_of,
    release_request,
    seconds,
    text,
    undo_of_either,
    undo_request,
)
from .refusals import nonsense, not_a_lock, refusal
from .resp import ErrorReply, Reply
from .scripts import EXTEND, RETREAT
from .transport import Transport


class RedisBackend(RedisNode):
    """See `port.LineMember`, where each verb is described or referred to."""

    capabilities = Capabilities(processes=True, hosts=True, survives=True, foreign=True, lines=True, light=True)

    def __init__(self, address: str, transport: Transport, runtime: Runtime) -> None:
        super().__init__(address, transport, runtime)
        self._unchecked = True  # nobody has looked yet whether this user may do all that is needed: see preflight.lua
        self._mailbox = Mailbox(address, transport, runtime.now)

    # These hand out `_claim`'s coroutine instead of awaiting it: one coroutine less.

    def claim(self, claim: Claim, within: float) -> Coroutine[Any, Any, Any]:
        """See `port.Backend.claim`."""
        return self._claim(claim, ALONE, 0, within)

    def vote(self, claim: Claim, proposal: int, within: float) -> Coroutine[Any, Any, Granted | Refused | Unmarked]:
        """See `port.Member.vote`."""
        return self._claim(claim, self._ballot, proposal, within)

    async def _claim(self, claim: Claim, ballot: Ballot, proposal: int, within: float) -> Granted | Refused | Unmarked:
        name, token, ttl, place = claim[:4]
        mark, tokens, sent_at, spot, member = fresh_mark(), (token,), self._now(), None, b""
        if place is not None or token in self._places:
            spot = self._stand(claim)
            member = spot[0]
        until, first = sent_at + within, self._unchecked and spot is None  # one of many at once will do
        undo = partial(undo_request, name, self._ballot, member)  # not of us: the transport keeps it
        try:
            if first:
                self._unchecked = False
            request = claim_request(claim, spot, proposal, ballot, first, mark)
            reply = await self._transport.call(request, mark, tokens, until, undo)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until, undo)
            if spot is None and type(reply) is list and len(reply) == 3 and reply[0] == 1:
                fence = reply[1]
                if type(fence) is int:  # `_claimed` would say the same, and takes longer
                    return Granted(fence, given(ttl))
            return self._claimed(claim, reply, sent_at, ballot)
        except BaseException as error:
            self._unchecked |= first
            self._interrupted(token, error, sent_at)
            raise

    def _interrupted(self, token: str, error: BaseException, sent_at: float) -> None:
        """What a signal's handler raises may have kept us from noting that the token stands in line: its undo has to ask."""
        if token in self._places and self._struck(error):
            self._places.told.setdefault(token, (sent_at, 0))

    def _claimed(self, claim: Claim, reply: Reply, sent_at: float, ballot: Ballot) -> Granted | Refused | Unmarked:
        """What claim.lua, or hand_over.lua in its place, says to a claim that was sent at that moment, or later."""
        match reply:
            case [1, int(fence), _]:
                self._left(claim.token)
                return Granted(fence, given(claim.ttl))
            case [2, int(fence), int(hindered), _]:
                self._unchecked |= hindered == 1  # the next claim says why
                self._left(claim.token)
                return Granted(fence, given(claim.ttl))
            case [-1, _] if ballot.roll:
                return Unmarked()
            case [0 | 3, int(left), bytes(owner), int(micros), *some, bytes(fence), _] if len(some) < 2:
                known = number(fence) or 0
                if claim.token in self._places:
                    self._places.told[claim.token] = sent_at, known
                alias = text(some[0][:ALIAS_DIGITS]) if some and isinstance(some[0], bytes) else ""
                return Refused(seconds(left), text(owner), (), micros / 1_000_000, alias, known)
        raise nonsense(self.address, reply)

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        lease = Renewal(name, token, ttl, fence)
        (said,) = await self._extend([lease], (token,), within)
        if said == answers.NOT_A_LOCK:
            raise not_a_lock(self.address, name)
        return answers.extended(lease, said)

    async def renew(self, leases: Sequence[Renewal], within: float) -> list[Granted | Gone]:
        """See `port.Backend.renew`."""
        if not leases:
            return []
        said = await self._extend(leases, (), within)  # no token: nothing has to follow a renewal whose answer never came
        return [answers.extended(*pair) for pair in zip(leases, said, strict=True)]

    async def _extend(self, leases: Sequence[Renewal], tokens: tuple[str, ...], within: float) -> list[int]:
        keys = [key for lease in leases for key in lock_keys(lease.name)]
        arguments = [IDLE_COUNTER_MS, EPOCH_MS]
        for lease in leases:
            arguments += lease.token.encode(), b"%d" % ms(lease.ttl), b"%d" % lease.fence
        reply = await self._run(EXTEND, (*keys, ROLL_KEY), tuple(arguments), leases[0].name, tokens, within)
        if (said := answers.extensions(reply, len(leases))) is None:
            raise nonsense(self.address, reply)
        return said

    async def release(self, name: str, token: str, within: float, proposal: int = 0) -> bool:
        """See `port.Member.release`."""
        mark, tokens, sent_at, member = fresh_mark(), (token,), self._now(), b""
        if token in self._places:
            member = self._places[token]
            self._places.leaves(token, sent_at)
        request, until = release_request(name, token, member, proposal, self._ballot, mark), sent_at + within
        reply = await self._transport.call(request, mark, tokens, until)
        if type(reply) is ErrorReply:
            reply = await self._refused(request, reply, mark, name, tokens, until)
        match reply:
            case [int(held), int(hindered), _]:
                if hindered:
                    self._unchecked = True  # the next claim says why
                if member:
                    self._places.left(token)
                return held == 1
        raise nonsense(self.address, reply)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. A token that waits is made to leave, though its claim was answered."""
        mark, until = fresh_mark(), self._now() + within
        request = undo_request(name, self._ballot, self._places.get(token, b""), token, mark)
        try:
            reply = await self._transport.follow(request, mark, token, within)
            if reply is None and token in self._places.told:
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
            asked_at, known = self._places.told.get(one.token, (-inf, 0))
            announced.append(one._replace(at=asked_at))
            # An old one says nothing: it stands in line again. Those of a quorum's nodes are hints, and it may stand there.
            if one.fence > known and not self._ballot.roll:
                self._left(one.token)
        return announced

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`."""
        own, mark, sent_at, to_itself = self._places.get(token, b""), fresh_mark(), self._now(), heir.token == token
        spot, until = self._stand(heir), sent_at + within
        if own and not to_itself:
            self._places.leaves(token, sent_at)
        request = hand_over_request(name, token, own, heir, spot, before, proposal, self._ballot, mark)
        tokens = (token,) if to_itself else (heir.token, token)  # the heir first: its own may create something
        undo = partial(undo_of_either, name, self._ballot, {token: own, heir.token: spot[0]})
        try:
            reply = await self._transport.call(request, mark, tokens, until, undo)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until, undo)
            answer = self._claimed(heir, reply, sent_at, self._ballot)
        except BaseException as error:
            self._interrupted(heir.token, error, sent_at)
            raise
        if not to_itself:
            self._left(token)
        return answer if isinstance(answer, Unmarked) else Handed(isinstance(reply, list) and reply[0] in (2, 3), answer)

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """See `port.LineMember.retreat`."""
        name, token, sent_at = claim.name, claim.token, self._now()
        member, arrival, _ = self._stand(claim)
        arguments = (token.encode(), member, arrival, b"%d" % ms(longest), IDLE_COUNTER_MS)
        undo = partial(undo_request, name, self._ballot, member)
        reply = await self._run(RETREAT, line_keys(name) + self._ballot.roll, arguments, name, (token,), within, undo)
        match reply:
            case [bytes(fence), _]:
                known = number(fence) or 0
                if member:
                    self._places.told[token] = sent_at, known
                return known
        raise nonsense(self.address, reply)

    def _stand(self, claim: Claim) -> Spot:
        """How a claim stands in line if it is refused, for claim.lua. A token that is there keeps to how it is there."""
        known, place = self._places.get(claim.token), claim.place
        if place is None:
            return known or b"", b"", b"1" if known else b"0"
        member = known or place_of(claim.token, place)
        self._places.stands(claim.token, member)
        return member, b"%d" % place.arrival, b"1" if known else b"0"

    def _left(self, token: str) -> None:
        if self._places:
            self._places.left(token)
