"""The port to a simulated node, from one process: what `backends.redis` is to a real one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from ...backends.in_line import InLine
from ...backends.port import Capabilities, NodeStatus
from ...backends.unanswered import Undo
from ...core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked
from ...core.quorum import Marker
from ...core.waits import Wait
from ...errors import Unavailable
from .kernel import Struck
from .node import Request
from .path import Path
from .runtime import SimRuntime
from .wire import Link, Subscription

SILENCE = 3.0  # seconds after which an inbox asks whether the node is there, as in `backends.redis.inbox`


class SimMember:
    """See `port.LineMember` and `port.Line`."""

    capabilities = Capabilities(processes=True, hosts=True, survives=True, foreign=False, lines=True, light=True)
    path_type: Callable[..., Path] = Path

    def __init__(self, link: Link, runtime: SimRuntime, number: str = "") -> None:
        self.address = link.node.address
        self.path = self.path_type(link, runtime)
        self._node, self._now, self._promised = link.node, runtime.now, runtime.promised
        self._may_strike = runtime.may_strike
        self._inbox = f"{link.process.name}@{link.node.address}{number}"
        self._subscription: Subscription | None = None
        self._patience = self._heard_at = 0.0
        self._asked_at: float | None = None
        self._elected = False
        self._places: InLine[bool] = InLine()
        self._is_live: Callable[[str], bool] = lambda token: False

    def claim(self, claim: Claim, within: float) -> Coroutine[Any, Any, Granted | Refused]:
        """See `port.Backend.claim`."""
        return self._ask("claim", claim, (claim,), within)

    def vote(self, claim: Claim, proposal: int, within: float) -> Coroutine[Any, Any, Granted | Refused | Unmarked]:
        """See `port.Member.vote`."""
        return self._ask("vote", claim, (claim, proposal), within)

    async def _ask(self, verb: str, claim: Claim, args: tuple[Any, ...], within: float) -> Any:
        sent_at = self._now()
        self._stand(claim)
        try:
            answer = await self._call(verb, args, (claim.token,), within, self._undo(claim.name, claim.token))
        except BaseException as error:
            self._interrupted(claim.token, error, sent_at)
            raise
        self._told(claim, answer, sent_at)
        return answer

    async def _call(self, verb: str, args: tuple[Any, ...], tokens: tuple[str, ...], within: float, undo: Undo = None) -> Any:
        """A request, before or after which a signal may strike: with its answer read, and nobody has it."""
        self._may_strike()
        answer = await self.path.call(verb, args, tokens, within, undo)
        self._may_strike()
        return answer

    def _interrupted(self, token: str, error: BaseException, sent_at: float) -> None:
        """As in `backends.redis.backend`."""
        if token in self._places and isinstance(error, Struck):
            self._places.told.setdefault(token, (sent_at, 0))

    def _stand(self, claim: Claim) -> None:
        if claim.place is not None:
            self._places.stands(claim.token, True)

    def _told(self, claim: Claim, answer: object, sent_at: float) -> None:
        if isinstance(answer, Granted):
            self._left(claim.token)
        elif isinstance(answer, Refused) and claim.token in self._places:
            self._places.told[claim.token] = sent_at, 0

    def _left(self, token: str) -> None:
        self._places.left(token)

    def _undo(self, name: str, *tokens: str) -> Undo:
        in_line = {token: token in self._places for token in tokens}  # as it is now
        return lambda token: self.path.request("release", (name, token, in_line[token], 0))

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        answer: Granted | Gone = await self._call("extend", (name, token, ttl, fence), (token,), within)
        return answer

    async def renew(self, leases: Sequence[Renewal], within: float) -> Sequence[Granted | Gone | None]:
        """See `port.Backend.renew`."""
        answers: list[Granted | Gone] = await self.path.call("renew", (tuple(leases),), (), within)
        return answers

    async def release(self, name: str, token: str, within: float, proposal: int = 0) -> bool:
        """See `port.Member.release`."""
        args = name, token, token in self._places, proposal
        self._places.leaves(token, self._now())
        held: bool = await self._call("release", args, (token,), within)
        self._left(token)
        return held

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`."""
        args = name, token, token in self._places, 0
        try:
            self._may_strike()
            reply = await self.path.follow("release", args, token, within)
            self._may_strike()
            if reply is None and token in self._places.told:
                reply = await self.path.call("release", args, (token,), within)
        finally:
            self._left(token)
        return reply is not None

    # --- the line -------------------------------------------------------------------------------------------------------

    def elect(self, nodes: Sequence[str], is_live: Callable[[str], bool]) -> None:
        """See `port.Member.elect`."""
        self._elected = True
        self._node.elect(nodes)
        self._is_live = is_live
        self.path.elect(is_live)

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`."""
        sent_at = self._now()
        self._stand(heir)
        if heir.token != token:
            self._promised(heir.token)
            self._places.leaves(token, self._now())
        tokens = (heir.token, token) if heir.token != token else (token,)
        undo = self._undo(name, token, heir.token)
        try:
            answer: Handed | Unmarked = await self._call(
                "hand_over", (name, token, heir, before, proposal), tokens, within, undo
            )
        except BaseException as error:
            self._interrupted(heir.token, error, sent_at)
            raise
        if isinstance(answer, Handed):
            self._told(heir, answer.heir, sent_at)
        if token != heir.token:
            self._left(token)
        return answer

    async def retreat(self, claim: Claim, longest: float, within: float) -> int:
        """See `port.LineMember.retreat`."""
        sent_at = self._now()
        self._stand(claim)
        undo = self._undo(claim.name, claim.token)
        fence: int = await self._call("retreat", (claim, longest), (claim.token,), within, undo)
        if claim.token in self._places:
            self._places.told[claim.token] = sent_at, 0
        return fence

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`."""
        if self._subscription is None:
            until = self._now() + within
            subscription = await self.path.subscribe(self._inbox, within)
            self._patience = max(until - self._now(), 0.001)
            self._replace(subscription)
        return self._inbox

    def _replace(self, subscription: Subscription) -> None:
        before, self._subscription, self._heard_at, self._asked_at = self._subscription, subscription, self._now(), None
        if before is not None:  # two opened it at once
            before.close()

    async def hear(self, until: float) -> Sequence[Announced]:
        """See `port.Line.hear`. A node that is silent is asked whether it is there."""
        subscription = self._subscription
        while subscription is not None:
            due = self._heard_at + SILENCE if self._asked_at is None else self._asked_at + self._patience
            heard = await subscription.hear(min(until, due))
            now = self._now()
            if heard is None or (not heard and now >= due and self._asked_at is not None):
                break
            if heard:
                self._heard_at, self._asked_at = now, None
                if announced := [self.dated(one) for one in heard if one is not None]:
                    if not self._elected:
                        for one in announced:
                            self._left(one.token)
                    return announced
            elif now >= due:
                self._asked_at = now
                subscription.send(Request(0, "hello"))
            if now >= until:
                return []
        if subscription is not None:
            subscription.close()
            self._subscription = None if self._subscription is subscription else self._subscription
        raise Unavailable("the inbox broke", backend=self.address, cause="closed")

    def dated(self, announced: Announced) -> Announced:
        """With a moment of our clock in place of the node's, as in `backends.redis.backend`."""
        return announced._replace(at=self._places.told.get(announced.token, (-inf, 0))[0])

    # --- the rest -------------------------------------------------------------------------------------------------------

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`."""
        return self.path.settled(token)

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        entry: Entry = await self.path.call("inspect", (name,), (), within)
        return entry

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> NodeStatus:
        """See `port.Member.roll`."""
        standing: NodeStatus = await self.path.call("roll", (mark, window, waits), (), within)
        return standing

    async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
        """See `port.Member.enroll`."""
        taken: bool = await self.path.call("enroll", (roll, loss), (), within)
        return taken

    def lag(self) -> float:
        """See `port.Member.lag`."""
        self._places.prune(self._now(), self._is_live)
        return self.path.lag()

    async def close(self) -> None:
        """See `port.Backend.close`."""
        await self.path.close()
