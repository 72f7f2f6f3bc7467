"""How requests get from a process to a simulated node and back: the rules of the Redis transport, without bytes.

As in `backends.redis.aio`: a request is unanswered until its caller has the answer in hand; what follows it goes down the same
connection, or, if that is dead and it creates nothing, a new one; a connection on which a reply is overdue is retired, and
closed once nobody needs it.
What a living token (`keep`) has not been answered is not undone, and its connection is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ...errors import Unavailable, UsageError
from .kernel import Future
from .node import Request
from .runtime import SimRuntime
from .wire import BROKEN, LATE, Ear, Link, Wire

OVERDUE = 5.0

Undo = Callable[[], list[Request]] | None


class Path:
    """See `backends.redis.transport.Transport`."""

    def __init__(self, link: Link, runtime: SimRuntime) -> None:
        self.link, self._runtime = link, runtime
        self._wire: Wire | None = None
        self._owing: dict[str, tuple[Wire, Undo, float]] = {}
        self._living: set[str] = set()  # only ever asked for members: no order comes of it
        self._astray: dict[str, float] = {}  # see `backends.redis.transport.Astray`
        self._connecting = self._closed = False
        self._queue: list[Future] = []
        self._mark = 0
        self._ears: list[Ear] = []

    async def call(self, verb: str, args: tuple[Any, ...], tokens: Sequence[str], within: float, undo: Undo = None) -> Any:
        """See `Transport.call`."""
        self._enter()
        until = self._runtime.now() + within
        before = [(token, self._owing[token]) for token in tokens if token in self._owing] if self._owing else ()
        if self._owing and undo is not None and tokens:
            self._overtakes_nothing(tokens[0])
        wire = (self._owed_on(tokens) if self._owing else self._at_hand()) or await self.take(until, tokens)
        for token, owing in before:
            if owing[0] is not wire:
                self._astray[token] = self._runtime.now()
        reply = await self.exchange(wire, verb, args, tokens, until, undo)
        for token, owing in before:
            if (owing[0] is wire or owing[1] is None) and self._owing.get(token) is owing:
                self._forget(token)
        return reply

    async def follow(self, verb: str, args: tuple[Any, ...], token: str, within: float) -> Any:
        """See `Transport.follow`. None: nothing is unanswered."""
        self._enter()
        until = self._runtime.now() + within
        if token not in self._owing:
            return None
        try:
            wire = self._owed_on((token,))
            if wire is not None:
                try:
                    return await self.exchange(wire, verb, args, (token,), until, None)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
            return await self.exchange(await self.take(until), verb, args, (token,), until, None)
        finally:
            self._forget(token)

    def settled(self, token: str) -> bool:
        """See `Transport.settled`."""
        return self._runtime.now() - self._astray.get(token, -inf) >= OVERDUE

    def keep(self, token: str) -> None:
        """See `Transport.keep`."""
        self._living.add(token)

    def drop(self, token: str) -> None:
        """See `Transport.drop`."""
        self._living.discard(token)
        self._forget(token)

    def _forget(self, token: str) -> None:
        if (owing := self._owing.pop(token, None)) is not None:
            self._sweep(owing[0])

    def lag(self) -> float:
        """See `Transport.lag`."""
        return self._wire.lag() if self._wire is not None else 0.0

    async def listen(self, inbox: str, within: float) -> Ear:
        """See `Transport.listen`."""
        self._enter()
        until = self._runtime.now() + within
        ear = Ear(self.link, self._runtime)
        try:
            await self._first(ear, Request(0, "listen", (inbox,)), until)
        except BaseException:
            ear.close()
            raise
        self._ears.append(ear)
        return ear

    async def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        for wire in {id(wire): wire for wire in (self._wire, *self._ears, *(w for w, *_ in self._owing.values()))}.values():
            if wire is not None:
                wire.close()
        self._wire = None
        self._owing.clear()

    def _enter(self) -> None:
        if self._closed:
            raise UsageError(f"the client for {self.link.node.address} is closed")

    def request(self, verb: str, args: tuple[Any, ...]) -> Request:
        """With a mark of its own."""
        self._mark += 1
        return Request(self._mark, verb, args)

    def _at_hand(self) -> Wire | None:
        """What `take` gives without waiting for anything, when nothing is owed."""
        wire = self._wire
        return wire if wire is not None and not wire.dead and not self._connecting and wire.lag() <= OVERDUE else None

    async def take(self, until: float, tokens: Sequence[str] = ()) -> Wire:
        """The shared connection, opened if need be. Raises Unavailable: then nothing was sent."""
        if self._owing:
            self._prune(self._runtime.now())
        if self._wire is not None and self._wire.lag() > OVERDUE:
            self._give_up(self._wire)
            if (wire := self._owed_on(tokens)) is not None:  # somebody waits there for an answer to one of them
                return wire
        while self._connecting:  # somebody else is at it
            turn = Future()
            self._queue.append(turn)
            self._runtime.alarm(until, turn, LATE)
            if await turn == LATE:
                raise self._unavailable("timeout")
        if self._wire is None or self._wire.dead:
            self._connecting, wire = True, Wire(self.link)
            try:
                await self._first(wire, Request(0, "hello"), until)
            except BaseException:
                wire.close()
                raise
            finally:
                self._connecting = False
                queue, self._queue = self._queue, []
                for turn in queue:
                    turn.settle()
            self._wire = wire
        return self._wire

    async def _first(self, wire: Wire, request: Request, until: float) -> None:
        future = wire.send(request)
        self._runtime.alarm(until, future, LATE)
        answer = await future
        if answer in (LATE, BROKEN):
            raise self._unavailable("timeout" if answer == LATE else "refused")

    async def exchange(
        self, wire: Wire, verb: str, args: tuple[Any, ...], tokens: Sequence[str], until: float, undo: Undo
    ) -> Any:
        """A request and its reply."""
        wire.users += 1
        self._mark = mark = self._mark + 1
        future = wire.send(Request(mark, verb, args), tokens)
        if wire is not self._wire:
            self._retired(wire)
        self._runtime.alarm(until, future, LATE)
        try:
            reply = await future
            if reply is BROKEN:
                raise self._unavailable("closed")
            if reply is LATE:
                if wire is self._wire:
                    self._wire = None
                    self._retired(wire)
                raise self._unavailable("timeout")
        except BaseException:
            for token in tokens:
                before = self._owing.get(token)
                if undo is None and before is not None and before[0].dead and before[1] is not None:
                    continue
                self._owing.pop(token, None)
                self._owing[token] = wire, undo, self._runtime.now()
                if before is not None and before[0] is not wire:
                    self._sweep(before[0])
            raise
        finally:
            wire.users -= 1
            if wire is not self._wire:
                self._sweep(wire)
        return reply

    def _unavailable(self, cause: str) -> Unavailable:
        where = self.link.node.address
        return Unavailable(f"{where}: {cause}", backend=where, cause=cause)

    def _overtakes_nothing(self, token: str) -> None:
        wire, undo, since = self._owing.get(token, (None, None, 0.0))
        if wire is not None and wire.dead and undo is not None and self._runtime.now() - since < OVERDUE:
            raise self._unavailable("closed")

    def _owed_on(self, tokens: Sequence[str]) -> Wire | None:
        for token in tokens:
            owing = self._owing.get(token)
            if owing is not None and not owing[0].dead:
                return owing[0]
        return None

    def _prune(self, now: float) -> None:
        for token, owing in list(self._owing.items()):
            wire, _, since = owing
            if now - since < OVERDUE:
                return
            if self._lives(wire):
                continue
            if wire.lag() > OVERDUE:
                self._give_up(wire)
            if self._owing.get(token) is owing:
                self._forget(token)

    def _sweep(self, wire: Wire) -> None:
        if wire is self._wire or wire.dead or wire.users:
            return
        if all(other is not wire for other, *_ in self._owing.values()):
            wire.close()

    def _give_up(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None
            self._retired(wire)
        if not wire.users and not self._lives(wire):
            undos = {token: undo for token, (other, undo, _) in self._owing.items() if other is wire and undo is not None}
            wire.close([request for undo in undos.values() for request in undo()])
            for token, undo in undos.items():
                del self._owing[token]
                self._owing[token] = wire, undo, self._runtime.now()

    def _retired(self, wire: Wire) -> None:
        for token in wire.on_way():
            self._owing.setdefault(token, (wire, None, self._runtime.now()))

    def _lives(self, wire: Wire) -> bool:
        return not wire.dead and any(other is wire and token in self._living for token, (other, *_) in self._owing.items())
