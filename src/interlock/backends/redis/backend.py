"""The port on one Redis or Valkey node. Every verb is one script, every answer of the server is turned into one of ours.

The lock is the string at the key that the user named, exactly as `SET name token NX PX ttl` would leave it: other libraries
that follow the same canon exclude us and we exclude them. The fence counter lives beside it under the same hash tag and
expires by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from ...core import fence as fences
from ...core.claim import Claim, Entry, Gone, Granted, Refused, Renewal, Unmarked, free
from ...core.quorum import Roll
from ...errors import InterlockError, Unavailable, Unsupported, UsageError
from ...runtime.base import Runtime
from ..port import Capabilities, Standing
from .resp import ErrorReply, Reply
from .scripts import CLAIM, ENROLL, EXTEND, INSPECT, RELEASE, ROLL, Script

# How long an unused fence counter is kept. Longer than any plausible step back of a server's clock: within this time the
# counter, not the clock, decides. Short enough that a million names do not leave a million counters for long.
IDLE_COUNTER_MS = b"3600000"
EPOCH_MS = b"%d" % fences.EPOCH_MS
ROLL_KEY = b"interlock:roll"
GONE, NOT_A_LOCK = -1, -3  # what extend.lua says of a lease, unless it gives its fence or says that somebody else has it
_marks = itertools.count()

Undo = Callable[[], bytes] | None
"""Packs the request that takes back what an unanswered one may have done."""


class Transport(Protocol):
    """How bytes get to the node and back; one file per colour.

    A request is *unanswered* from the moment its first byte may have left until its caller has the reply in hand, not merely
    until the reply has arrived.

    A request carries a mark that its reply echoes. So a reply that some middlebox swallowed cannot make the next one pass for
    the answer to another question, and several tasks can share a connection without trusting that replies are complete.
    """

    age: int
    """Grows when the node may have forgotten the scripts it was sent: with a new connection, or when a reply says so."""

    async def call(self, request: bytes, mark: bytes, token: str, within: float, undo: Undo = None) -> Reply:
        """One request, one reply. Goes down the connection that still owes this token an answer, if there is one.

        Raises Unavailable when there is no reply within `within` seconds. `token` "" is not tracked. `undo` is sent when the
        transport gives up on a connection on which the answer to this request is long overdue.
        """

    async def follow(self, request: bytes, mark: bytes, token: str, within: float) -> Reply:
        """Send `request` behind this token's unanswered ones, down the same connection, or a new one if that is dead.

        None at once when nothing of the token is unanswered. Afterwards nothing is remembered of the token.
        """

    def drop(self, token: str) -> None:
        """Nothing more will be asked for this token."""

    def lag(self) -> float:
        """For how many seconds the node has owed an answer to a request that was abandoned; 0 when it owes none."""

    async def close(self) -> None:
        """Close every connection."""


class RedisBackend:
    """See `port.Backend`, where each verb is described."""

    capabilities = Capabilities(processes=True, hosts=True, survives=True, foreign=True)

    def __init__(self, address: str, transport: Transport, runtime: Runtime) -> None:
        self.address = address
        self._transport = transport
        self._now = runtime.now
        self._loaded: set[tuple[int, str]] = set()  # which scripts the node has, as far as we know

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`."""
        answer = await self._claim(claim, _keys(claim.name), 0, within)
        if isinstance(answer, Unmarked):
            raise self._nonsense([-1])
        return answer

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """See `port.Member.vote`."""
        return await self._claim(claim, (*_keys(claim.name), ROLL_KEY), proposal, within)

    async def _claim(self, claim: Claim, keys: tuple[bytes, ...], proposal: int, within: float) -> Granted | Refused | Unmarked:
        token, ms = claim.token.encode(), _ms(claim.ttl)
        arguments = (token, b"%d" % ms, IDLE_COUNTER_MS, EPOCH_MS, b"%d" % proposal)
        reply = await self._run(
            CLAIM, keys, arguments, claim.name, claim.token, within, lambda: RELEASE.eval(keys[:1], token, _mark())
        )
        match reply:
            case [1, int(fence), _]:
                return Granted(fence, ms / 1000)
            case [0, int(left), bytes(owner), _]:
                return Refused(_seconds(left), owner.decode("utf-8", "replace"))
            case [-1, _]:
                return Unmarked()
        raise self._nonsense(reply)

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        lease = Renewal(name, token, ttl, fence)
        (said,) = await self._extend([lease], token, within)
        if said == NOT_A_LOCK:
            raise self._not_a_lock(name)
        return _extended(lease, said)

    async def renew(self, leases: Sequence[Renewal], within: float) -> list[Granted | Gone]:
        """See `port.Backend.renew`."""
        # No token: nothing has to follow a renewal whose answer never came.
        return [_extended(*pair) for pair in zip(leases, await self._extend(leases, "", within), strict=True)] if leases else []

    async def _extend(self, leases: Sequence[Renewal], token: str, within: float) -> list[int]:
        keys = [key for lease in leases for key in _keys(lease.name)]
        arguments = [IDLE_COUNTER_MS, EPOCH_MS]
        for lease in leases:
            arguments += lease.token.encode(), b"%d" % _ms(lease.ttl), b"%d" % lease.fence
        reply = await self._run(EXTEND, (*keys, ROLL_KEY), tuple(arguments), leases[0].name, token, within)
        match reply:
            case [*said, _]:
                numbers = [number for number in said if isinstance(number, int)]
                if len(numbers) == len(said) == len(leases):
                    return numbers
        raise self._nonsense(reply)

    async def release(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.release`."""
        reply = await self._run(RELEASE, (name.encode(),), (token.encode(),), name, token, within)
        match reply:
            case [int(deleted), _]:
                return deleted == 1
        raise self._nonsense(reply)

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`."""
        mark = _mark()
        reply = await self._transport.follow(RELEASE.eval((name.encode(),), token.encode(), mark), mark, token, within)
        if isinstance(reply, ErrorReply):
            raise self._refusal(reply, name)
        return reply is not None

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        reply = await self._run(INSPECT, _keys(name), (), name, "", within)
        match reply:
            case [0, _]:
                return free(name)
            case [1, int(left), bytes(owner), bytes(fence), _]:
                known = int(fence) if fence.isdigit() else None
                return Entry(name, True, owner.decode("utf-8", "replace"), _seconds(left), known)
        raise self._nonsense(reply)

    async def roll(self, within: float) -> Standing:
        """See `port.Member.roll`."""
        reply = await self._run(ROLL, (ROLL_KEY,), (), "", "", within)
        match reply:
            case [bytes(longest), bytes(high), bytes(seed), bytes(identity), bytes(role), bytes(policy), _]:
                roll = Roll(int(longest) / 1000, int(high), int(seed)) if longest else None
                trouble = []
                if role == b"slave":
                    trouble.append("is a replica: it may vote for leases that its primary never heard of")
                if policy not in (b"", b"noeviction"):
                    trouble.append(f"may evict locks (maxmemory-policy {policy.decode()}): set it to noeviction")
                return Standing(roll, identity.decode(), role == b"slave", tuple(trouble))
        raise self._nonsense(reply)

    async def enroll(self, roll: Roll, within: float) -> bool:
        """See `port.Member.enroll`."""
        fields = (b"%d" % _ms(roll.longest), b"%d" % roll.high, b"%d" % roll.seed)
        reply = await self._run(ENROLL, (ROLL_KEY,), fields, "", "", within)
        match reply:
            case [int(ours), _]:
                return ours == 1
        raise self._nonsense(reply)

    def drop(self, token: str) -> None:
        """See `port.Member.drop`."""
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
        token: str,
        within: float,
        undo: Undo = None,
    ) -> Reply:
        until = self._now() + within
        mark = _mark()
        pack = script.evalsha if (self._transport.age, script.sha) in self._loaded else script.eval
        reply = await self._transport.call(pack(keys, *arguments, mark), mark, token, within, undo)
        if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":  # nothing was done: not a retry, a first try
            left = max(until - self._now(), 0.001)
            reply = await self._transport.call(script.eval(keys, *arguments, mark), mark, token, left, undo)
        if isinstance(reply, ErrorReply):
            raise self._refusal(reply, name)
        age = self._transport.age  # only now: the call may have opened the connection
        if (age, script.sha) not in self._loaded:
            self._loaded = {known for known in self._loaded if known[0] == age} | {(age, script.sha)}
        return reply

    def _refusal(self, reply: ErrorReply, name: str) -> InterlockError:
        """The server has answered with an error, so it has done nothing. What that means to the caller."""
        text, where = reply.text.partition(", with args beginning with")[0], self.address  # the rest may hold a token
        if "WRONGTYPE" in text:  # Redis before 7 wraps the code of an error inside a script
            return self._not_a_lock(name)
        if text.startswith("INTERLOCK"):
            return UsageError(
                f"the fence counter of '{name}' at {where} was overwritten by somebody; nothing was written. Delete the key "
                f"'{_fence_key(name).decode()}': fences go on from the server's clock"
            )
        if reply.code in ("NOAUTH", "WRONGPASS", "NOPERM") or "unauthenticated" in text:  # too many arguments for a stranger
            return Unavailable(
                f"{where} refuses this user ({text}). Nothing was written; fix the user, the password or the ACL (scripts, "
                f"and the keys NAME and interlock:*)",
                backend=where,
                cause="auth",
            )
        if reply.code in ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"):
            return Unsupported(f"{where} is a node of a Redis Cluster ({text}); this version locks on single nodes only")
        return Unavailable(f"{where} answered: {text}. Nothing was written", backend=where, cause="error")

    def _not_a_lock(self, name: str) -> UsageError:
        return UsageError(
            f"the key '{name}' at {self.address} holds something that is not a lock (a list, a hash, …); nothing was written. "
            "Choose another name for the lock, or remove that key"
        )

    def _nonsense(self, reply: Reply) -> InterlockError:
        return Unavailable(
            f"{self.address} gave an answer that no interlock script gives ({type(reply).__name__}); is a proxy in between?",
            backend=self.address,
            cause="error",
        )


def _mark() -> bytes:
    return b"%x" % next(_marks)


def _fence_key(name: str) -> bytes:
    return b"interlock:{%b}:fence" % name.encode()


def _keys(name: str) -> tuple[bytes, ...]:
    """The lock and its counter. Names have no braces, so both hash to the same slot."""
    return name.encode(), _fence_key(name)


def _extended(lease: Renewal, said: int) -> Granted | Gone:
    return Granted(said, _ms(lease.ttl) / 1000) if said >= 0 else Gone(taken=said != GONE)


def _ms(ttl: float) -> int:
    return int(ttl * 1000 + 1e-6)  # 0.57 * 1000 is a little less than 570


def _seconds(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000
