"""The port to a simulated node, from one process: what `backends.redis` is to a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...backends.port import Capabilities, Standing
from ...core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked
from ...core.quorum import Roll
from ...errors import Unavailable
from .node import Request
from .path import Path
from .runtime import SimRuntime
from .wire import Ear, Link


class SimMember:
    """See `port.Member` and `port.Line`."""

    capabilities = Capabilities(processes=True, hosts=True, survives=True, foreign=False, lines=True)
    path_type: Callable[..., Path] = Path

    def __init__(self, link: Link, runtime: SimRuntime) -> None:
        self.address = link.node.address
        self.path = self.path_type(link, runtime)
        self._inbox = f"{link.process.name}@{link.node.address}"
        self._ear: Ear | None = None
        self._waiting: set[str] = set()  # tokens that were told that they stand in line

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        """See `port.Backend.claim`."""
        answer: Granted | Refused = await self._ask("claim", claim, (claim,), within)
        return answer

    async def vote(self, claim: Claim, proposal: int, within: float) -> Granted | Refused | Unmarked:
        """See `port.Member.vote`."""
        answer: Granted | Refused | Unmarked = await self._ask("vote", claim, (claim, proposal), within)
        return answer

    async def _ask(self, verb: str, claim: Claim, args: tuple[Any, ...], within: float) -> Any:
        answer = await self.path.call(verb, args, (claim.token,), within, lambda: self._undo(claim.name, claim.token))
        self._told(claim, answer)
        return answer

    def _told(self, claim: Claim, answer: object) -> None:
        if isinstance(answer, Granted):
            self._waiting.discard(claim.token)
        elif isinstance(answer, Refused) and claim.place is not None:
            self._waiting.add(claim.token)

    def _undo(self, *names_and_tokens: str) -> list[Request]:
        name, *tokens = names_and_tokens
        return [self.path.request("release", (name, token)) for token in tokens]

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        """See `port.Backend.extend`."""
        answer: Granted | Gone = await self.path.call("extend", (name, token, ttl, fence), (token,), within)
        return answer

    async def renew(self, leases: Sequence[Renewal], within: float) -> Sequence[Granted | Gone | None]:
        """See `port.Backend.renew`."""
        answers: list[Granted | Gone] = await self.path.call("renew", (tuple(leases),), (), within)
        return answers

    async def release(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.release`."""
        held: bool = await self.path.call("release", (name, token), (token,), within)
        self._waiting.discard(token)
        return held

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`."""
        try:
            reply = await self.path.follow("release", (name, token), token, within)
            if reply is None and token in self._waiting:
                reply = await self.path.call("release", (name, token), (token,), within)
        finally:
            self._waiting.discard(token)
        return reply is not None

    async def hand_over(self, name: str, token: str, heir: Claim, before: int, within: float) -> Handed:
        """See `port.Line.hand_over`."""
        handed: Handed = await self.path.call(
            "hand_over",
            (name, token, heir, before),
            (heir.token, token),
            within,
            lambda: self._undo(name, token, heir.token),
        )
        self._told(heir, handed.heir)
        return handed

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`."""
        if self._ear is None or self._ear.dead:
            self._ear = await self.path.listen(self._inbox, within)
        return self._inbox

    async def hear(self, until: float) -> Sequence[Announced]:
        """See `port.Line.hear`."""
        heard = await self._ear.hear(until) if self._ear is not None else None
        if heard is None:
            raise Unavailable("the inbox broke", backend=self.address, cause="closed")
        for one in heard:
            self._waiting.discard(one.token)
        return heard

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        entry: Entry = await self.path.call("inspect", (name,), (), within)
        return entry

    async def roll(self, within: float) -> Standing:
        """See `port.Member.roll`."""
        standing: Standing = await self.path.call("roll", (), (), within)
        return standing

    async def enroll(self, roll: Roll, within: float) -> bool:
        """See `port.Member.enroll`."""
        taken: bool = await self.path.call("enroll", (roll,), (), within)
        return taken

    def drop(self, token: str) -> None:
        """See `port.Member.drop`."""
        self._waiting.discard(token)
        self.path.drop(token)

    def lag(self) -> float:
        """See `port.Member.lag`."""
        return self.path.lag()

    async def close(self) -> None:
        """See `port.Backend.close`."""
        await self.path.close()
