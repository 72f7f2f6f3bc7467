"""One Redis or Valkey node: requests to it, what its refusals mean, and how it stands as a node of a quorum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.claim import SHOWN, Entry
from ...core.quorum import Marker
from ...core.waits import Wait
from ...errors import Unavailable
from ...runtime.base import Runtime
from ..in_line import InLine
from ..port import NodeStatus
from ..unanswered import Undo
from . import answers
from .packing import (
    LOSS_KEY,
    ROLL_KEY,
    WAITS_KEY,
    Ballot,
    ballot_of,
    first_claim,
    fresh_mark,
    line_keys,
    ms,
    words_of,
    words_of_waits,
)
from .refusals import denied, nonsense, refusal
from .resp import ErrorReply, Reply
from .scripts import ENROLL, INSPECT, LOOK, ROLL, Request, Script
from .transport import Transport

ALONE = Ballot()


class RedisNode:
    """What `RedisBackend` is made of, but for the verbs about leases and the line."""

    def __init__(self, address: str, transport: Transport, runtime: Runtime) -> None:
        self.address = address
        self._transport = transport
        self._now, self._struck = runtime.now, runtime.struck
        self._ballot = ALONE  # once it is a node of a quorum there is something on it
        self._is_live: Callable[[str], bool] = lambda token: False
        self._places: InLine[bytes] = InLine()

    def elect(self, nodes: Sequence[str], is_live: Callable[[str], bool]) -> None:
        """See `port.Member.elect`."""
        self._ballot, self._is_live = ballot_of(nodes), is_live
        self._transport.elect(is_live)

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> NodeStatus:
        """See `port.Member.roll`."""
        told = (b"%d" % mark, b"%d" % ms(window), *words_of_waits(waits))
        reply = await self._run(ROLL, (ROLL_KEY, LOSS_KEY, WAITS_KEY), told, "", (), within)
        if (standing := answers.standing(reply)) is None:
            raise nonsense(self.address, reply)
        return standing

    async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
        """See `port.Member.enroll`."""
        fields = (*words_of(roll), loss.encode(), b"%d" % ms(roll.window))
        match reply := await self._run(ENROLL, (ROLL_KEY, LOSS_KEY), fields, "", (), within):
            case [int(ours), _]:
                return ours == 1
        raise nonsense(self.address, reply)

    def lag(self) -> float:
        """See `port.Member.lag`."""
        if self._places:
            self._places.prune(self._now(), self._is_live)
        return self._transport.lag()

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. What follows a request of the same token goes down the same connection, if it can."""
        return self._transport.settled(token)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        reply = await self._run(INSPECT, line_keys(name), (b"%d" % SHOWN,), name, (), within)
        if (entry := answers.inspected(name, reply)) is None:
            raise nonsense(self.address, reply)
        return entry

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
                if token not in self._places.told:
                    self._places.left(token)
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
