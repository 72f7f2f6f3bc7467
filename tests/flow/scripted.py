"""A store that says what it is told to say, and a world whose time passes only when somebody lets it."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from interlock import AsyncLock, InterlockError, Lock, Unavailable
from interlock.api.options import Options
from interlock.backends.port import Capabilities
from interlock.core import token
from interlock.core.claim import Claim, Entry, Gone, Granted, Refused, Renewal, free
from interlock.core.lease import FIXED
from interlock.flow.context import Context
from interlock.flow.renewing.keeper import Keeper

T = TypeVar("T")


class Asked(NamedTuple):
    """A question that reached the store, and when."""

    verb: str
    name: str
    token: str
    ttl: float
    within: float
    at: float


class World:
    """A runtime in virtual time. Nothing ever suspends, so both colours can use it."""

    colour = "blocking"

    def __init__(self, jitter: float = 0.5) -> None:
        self.time = 1000.0
        self.slept: list[float] = []
        self.shields = 0
        self._jitter = jitter
        self._tokens = 0

    def now(self) -> float:
        return self.time

    def wall_ms(self) -> int:
        return 0

    def wall_ahead(self) -> float:
        return 0.0

    def jitter(self) -> float:
        return self._jitter

    def token(self, note: str = "") -> str:
        self._tokens += 1
        return token.compose(f"{self._tokens:032x}", "host:1", note)

    def struck(self, error: BaseException) -> bool:
        return not isinstance(error, InterlockError | asyncio.CancelledError)

    def check_loop(self) -> None:
        pass

    def owner(self) -> str:
        return "host:1"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    async def shield(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.shields += 1
        return await make()


class Store:
    """The port. Each verb takes its next answer from the script: a value, an exception, or a function of the question."""

    address = "scripted://here"
    capabilities = Capabilities(processes=False, hosts=False, survives=False, foreign=False)

    def __init__(self, world: Any) -> None:
        self.world = world
        self.asked: list[Asked] = []
        self.script: dict[str, deque[Any]] = defaultdict(deque)
        self.closed = False

    def answers(self, verb: str, *answers: Any) -> Store:
        """What the verb answers next, in order."""
        self.script[verb].extend(answers)
        return self

    def verbs(self) -> list[str]:
        """What was asked, in order."""
        return [asked.verb for asked in self.asked]

    def of(self, verb: str) -> list[Asked]:
        """The questions of one kind."""
        return [asked for asked in self.asked if asked.verb == verb]

    async def _answer(self, verb: str, name: str, token: str, ttl: float, within: float) -> Any:
        asked = Asked(verb, name, token, ttl, within, self.world.now())
        self.asked.append(asked)
        assert self.script[verb], f"nobody expected this {verb}: {self.verbs()}"
        answer = self.script[verb].popleft()
        if callable(answer) and not isinstance(answer, type):
            answer = answer(asked)
            if isinstance(answer, Coroutine):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def claim(self, claim: Claim, within: float) -> Granted | Refused:
        return await self._answer("claim", claim.name, claim.token, claim.ttl, within)

    async def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Granted | Gone:
        return await self._answer("extend", name, token, ttl, within)

    async def renew(self, leases: Sequence[Renewal], within: float) -> list[Granted | Gone | None]:
        return [await self._answer("renew", lease.name, lease.token, lease.ttl, within) for lease in leases]

    async def release(self, name: str, token: str, within: float) -> bool:
        return await self._answer("release", name, token, 0.0, within)

    async def undo(self, name: str, token: str, within: float) -> bool:
        return await self._answer("undo", name, token, 0.0, within)

    async def inspect(self, name: str, within: float) -> Entry:
        return free(name)

    async def close(self) -> None:
        self.closed = True


def silent(said: str = "the store did not answer in time") -> Unavailable:
    """What a transport raises when no answer came."""
    return Unavailable(said, backend=Store.address, cause="timeout")


def after(world: World, seconds: float, answer: Any) -> Callable[[Asked], Any]:
    """An answer that takes its time."""

    def late(asked: Asked) -> Any:
        world.time += seconds
        return answer

    return late


def granted(ttl: float = 10.0, fence: int = 7) -> Granted:
    return Granted(fence, ttl)


class Stage:
    """A world, a store in it and a lock on it."""

    def __init__(
        self, ttl: float = 10.0, timeout: float | None = None, jitter: float = 0.5, request_timeout: float = 1.0
    ) -> None:
        self.world = World(jitter)
        self.store = Store(self.world)
        self.context = Context.of(self.store, self.world, request_timeout)
        keeper, options = Keeper(self.context), Options(ttl, timeout, FIXED)
        self.lock = Lock(self.context, keeper, "x", options)
        self.alock = AsyncLock(self.context, keeper, "x", options)

    def held(self, ttl: float = 10.0, fence: int = 7) -> Any:
        """A lease on the lock."""
        self.store.answers("claim", Granted(fence, ttl))
        return self.lock.acquire()
