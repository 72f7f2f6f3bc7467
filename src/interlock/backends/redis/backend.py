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

from ...core.claim import SHOWN, Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked, free
from ...core.quorum import Roll
from ...core.token import ALIAS_DIGITS
from ...runtime.base import Runtime
from ..port import Capabilities, Standing
from .clock import ServerClock
from .inbox import Mailbox
from .packing import (
    EPOCH_MS,
    IDLE_COUNTER_MS,
    LOSS_KEY,
    ROLL_KEY,
    claiming,
    fresh_mark,
    given,
    leaving,
    line_keys,
    lock_keys,
    ms,
    plain_claim,
    plain_hand_over,
    plain_leave,
    plain_release,
    plain_vote,
    queue,
    seconds,
    standing,
    text,
    undoing,
)
from .refusals import nonsense, not_a_lock, refusal
from .resp import ErrorReply, Reply
from .scripts import CLAIM, ENROLL, EXTEND, HAND_OVER, INSPECT, RELEASE, RETREAT, ROLL, Request, Script
from .transport import Transport, Undo

GONE, NOT_A_LOCK = -1, -3  # what extend.lua says of a lease, unless it gives its fence or says that somebody else has it


class RedisBackend:
    """See `port.LineMember`, where each verb is described or referred to."""

    capabilities = Capabilities(processes=True, hosts=True, survives=True, foreign=True, lines=True)
    light = True  # see `Runtime.race`

    def __init__(self, address: str, transport: Transport, runtime: Runtime) -> None:
        self.address = address
        self._transport = transport
        self._now = runtime.now
        self._clock = ServerClock(runtime.now)
        self._roll: tuple[bytes, ...] = ()  # the key, once it is a node of a quorum
        self._places: dict[str, bytes] = {}  # token → how it stands in line, from before that is sent until it is out
        self._waiting: set[str] = set()  # tokens that were told that they stand there
        self._mailbox = Mailbox(address, transport, runtime.now)

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`."""
        name, token, ttl, place = claim
        if place is None and token not in self._places:  # the way of nearly all: as `_claim`, with less ado
            mark, tokens, until = fresh_mark(), (token,), self._now() + within
            request = plain_claim(name, token, ms(ttl), mark)
            undo = partial(_undo, name, self._roll, (token, b""))
            reply = await self._transport.call(request, mark, tokens, until, undo)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until, undo)
            if type(reply) is list and len(reply) == 4 and reply[0] == 1:
                _, fence, micros, _ = reply
                if type(fence) is int and type(micros) is int:  # `_claimed` would say the same, and takes longer
                    self._clock.told(micros, self._transport.age)
                    return Granted(fence, given(ttl))
            answer = self._claimed(claim, reply)
        else:
            answer = await self._claim(claim, (), 0, within)
        if isinstance(answer, Unmarked):
            raise nonsense(self.address, [-1])
        return answer

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """See `port.Member.vote`."""
        if claim.place is not None or claim.token in self._places:
            return await self._claim(claim, (ROLL_KEY,), proposal, within)
        name, mark, tokens, until = claim.name, fresh_mark(), (claim.token,), self._now() + within
        request, undo = plain_vote(claim, proposal, mark), self._undo(name, (claim.token, b""))
        reply = await self._transport.call(request, mark, tokens, until, undo)
        if type(reply) is ErrorReply:
            reply = await self._refused(request, reply, mark, name, tokens, until, undo)
        return self._claimed(claim, reply)

    async def _claim(self, claim: Claim, more: tuple[bytes, ...], proposal: int, within: float) -> Granted | Refused | Unmarked:
        name, token = claim.name, claim.token
        keys, arguments = lock_keys(name), claiming(claim, proposal)
        if claim.place is not None or token in self._places:
            keys, arguments = line_keys(name), arguments + self._stand(claim)
        member = self._places.get(token, b"")
        reply = await self._run(CLAIM, keys + more, arguments, name, (token,), within, self._undo(name, (token, member)))
        return self._claimed(claim, reply)

    def _undo(self, name: str, *tokens: tuple[str, bytes]) -> Undo:
        """What takes back a request of these tokens, each with how it may stand in line."""
        return partial(_undo, name, self._roll, *tokens)  # not of us: the transport keeps it, and nobody would be collected

    def _claimed(self, claim: Claim, reply: Reply) -> Granted | Refused | Unmarked:
        """What claim.lua, or hand_over.lua in its place, says to a claim."""
        match reply:
            case [1 | 2, int(fence), int(micros), _]:
                self._clock.told(micros, self._transport.age)
                self._left(claim.token)
                return Granted(fence, given(claim.ttl))
            case [-1, _]:
                return Unmarked()
            case [0 | 3, int(left), bytes(owner), int(micros), _]:
                self._clock.told(micros, self._transport.age)
                if claim.token in self._places:
                    self._waiting.add(claim.token)
                return Refused(seconds(left), text(owner), at=micros / 1_000_000)
            case [0 | 3, int(left), bytes(owner), int(micros), bytes(holder), bytes(fence), _]:
                self._clock.told(micros, self._transport.age)
                if claim.token in self._places:
                    self._waiting.add(claim.token)
                alias, known = holder[:ALIAS_DIGITS].decode(), int(fence) if fence.isdigit() else 0
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
            case [*said, int(micros), _]:
                numbers = [number for number in said if isinstance(number, int)]
                if len(numbers) == len(said) == len(leases):
                    self._clock.told(micros, self._transport.age)
                    return numbers
        raise nonsense(self.address, reply)

    async def release(self, name: str, token: str, within: float, proposal: int = 0) -> bool:
        """See `port.Member.release`."""
        at = self._clock.at_least(self._transport.age)
        if token not in self._places and (self._roll or not proposal):  # as below, with less ado
            mark, tokens, until = fresh_mark(), (token,), self._now() + within
            roll, plain = self._roll, plain_release
            request = plain_leave(name, token, at, proposal, mark) if roll else plain(name, token, at, mark)
            reply = await self._transport.call(request, mark, tokens, until)
            if type(reply) is ErrorReply:
                reply = await self._refused(request, reply, mark, name, tokens, until)
        else:
            arguments = leaving(token, self._places.get(token, b""), at, proposal)
            reply = await self._run(RELEASE, line_keys(name) + self._roll, arguments, name, (token,), within)
        match reply:
            case [int(held), int(micros), _]:
                self._clock.told(micros, self._transport.age)
                self._left(token)
                return held == 1
        raise nonsense(self.address, reply)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. A token that waits is made to leave, though its claim was answered."""
        mark = fresh_mark()
        request = undoing(name, token, self._places.get(token, b""), self._roll, mark)
        try:
            reply = await self._transport.follow(request, mark, token, within)
            if reply is None and token in self._waiting:
                reply = await self._transport.call(request, mark, (token,), self._now() + within)
            if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":  # what it follows is over, so any connection will do
                reply = await self._transport.call(request._replace(full=True), mark, (), self._now() + within)
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
        announced = await self._mailbox.hear(until)
        if not self._roll:  # of a quorum's nodes they are hints: it may stand in line again, and its release must say so
            for one in announced:
                self._left(one.token)
        return announced

    def elect(self) -> None:
        """See `port.LineMember.elect`."""
        self._roll = (ROLL_KEY,)
        self._transport.side_by_side()

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`."""
        at, place = self._clock.at_least(self._transport.age), heir.place
        known = heir.token == token or token in self._places or heir.token in self._places
        if place is None or known or proposal or self._roll:
            return await self._hand_over(name, token, heir, before, at, within, proposal)
        # The way of nearly all: the heir is new in line, and the other does not stand there. As below, with less ado.
        member, mark, tokens, until = standing(heir.token, place), fresh_mark(), (heir.token, token), self._now() + within
        request = plain_hand_over(name, token, heir, member, place.arrival, before, at, mark)
        undo = self._undo(name, (token, b""), (heir.token, member))
        self._places[heir.token] = member
        reply = await self._transport.call(request, mark, tokens, until, undo)
        if type(reply) is ErrorReply:
            reply = await self._refused(request, reply, mark, name, tokens, until, undo)
        if type(reply) is list and len(reply) == 4 and reply[0] == 2:
            _, fence, micros, _ = reply
            if type(fence) is int and type(micros) is int:
                self._clock.told(micros, self._transport.age)
                self._left(heir.token)
                return Handed(True, Granted(fence, given(heir.ttl)))
        return self._handed(token, heir, reply)

    async def _hand_over(
        self, name: str, token: str, heir: Claim, before: int, at: int, within: float, proposal: int
    ) -> Handed | Unmarked:
        own = self._places.get(token, b"")
        arguments = (*claiming(heir, proposal), *self._stand(heir), token.encode(), b"%d" % before, b"%d" % at, own)
        member = self._places.get(heir.token, b"")
        reply = await self._run(
            HAND_OVER,
            line_keys(name) + self._roll,
            arguments,
            name,
            (heir.token, token) if heir.token != token else (token,),  # the heir first: its own request may create something
            within,
            self._undo(name, (token, own), (heir.token, member)),
        )
        return self._handed(token, heir, reply)

    def _handed(self, token: str, heir: Claim, reply: Reply) -> Handed | Unmarked:
        answer = self._claimed(heir, reply)
        if isinstance(answer, Unmarked):
            return answer
        if token != heir.token:
            self._left(token)
        return Handed(isinstance(reply, list) and reply[0] in (2, 3), answer)

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """See `port.LineMember.retreat`."""
        name, token = claim.name, claim.token
        member, arrival, _ = self._stand(claim)
        arguments = (token.encode(), member, arrival, b"%d" % ms(longest), IDLE_COUNTER_MS)
        undo = self._undo(name, (token, member))
        reply = await self._run(RETREAT, line_keys(name), arguments, name, (token,), within, undo)
        match reply:
            case [bytes(fence), _]:
                if member:
                    self._waiting.add(token)
                return int(fence) if fence.isdigit() else 0
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
            self._waiting.discard(token)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        reply = await self._run(INSPECT, line_keys(name), (b"%d" % SHOWN,), name, (), within)
        match reply:
            case [int(held), int(left), bytes(owner), bytes(fence), int(waiters), [*line], _]:
                entry = free(name)
                if held:
                    entry = Entry(name, True, text(owner), seconds(left), int(fence) if fence.isdigit() else None)
                return entry._replace(waiting=queue(line), waiters=waiters)
        raise nonsense(self.address, reply)

    async def roll(self, within: float, mark: bool = False) -> Standing:
        """See `port.Member.roll`."""
        reply = await self._run(ROLL, (ROLL_KEY, LOSS_KEY), (b"%d" % mark,), "", (), within)
        match reply:
            case [bytes(longest), bytes(high), bytes(seed), bytes(identity), bytes(role), bytes(policy), bytes(loss), _]:
                roll = Roll(int(longest) / 1000, int(high), int(seed)) if longest else None
                trouble = []
                if role == b"slave":
                    trouble.append("is a replica: it may vote for leases that its primary never heard of")
                if policy not in (b"", b"noeviction"):
                    trouble.append(f"may evict locks (maxmemory-policy {policy.decode()}): set it to noeviction")
                return Standing(roll, identity.decode(), role == b"slave", tuple(trouble), loss.decode())
        raise nonsense(self.address, reply)

    async def enroll(self, roll: Roll, loss: str, within: float) -> bool:
        """See `port.Member.enroll`."""
        fields = (b"%d" % ms(roll.longest), b"%d" % roll.high, b"%d" % roll.seed, loss.encode())
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
            raise refusal(self.address, reply, name)
        return reply


def _undo(name: str, roll: tuple[bytes, ...], *tokens: tuple[str, bytes]) -> list[Request]:
    return [undoing(name, token, member, roll) for token, member in tokens]


def _extended(lease: Renewal, said: int) -> Granted | Gone:
    return Granted(said, given(lease.ttl)) if said >= 0 else Gone(taken=said != GONE)
