"""How requests get from a process to a simulated node and back: `backends.redis.aio` without bytes.

What must follow what is decided by the ledger that ships (`backends.unanswered`). As in `aio`, a connection on which a reply is
late is retired, and closed once nobody needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...backends.unanswered import Unanswered, Undo
from ...errors import Unavailable, UsageError
from .kernel import Future
from .node import Request
from .runtime import SimRuntime
from .wire import BROKEN, LATE, Link, Subscription, Wire


class Path:
    """See `backends.redis.transport.Transport`."""

    def __init__(self, link: Link, runtime: SimRuntime) -> None:
        self.link, self._runtime = link, runtime
        self._wire: Wire | None = None
        self._retired: list[Wire] = []
        self.ledger: Unanswered[Wire] = Unanswered()
        self._connecting = self._closed = False
        self._queue: list[Future] = []
        self._mark = 0
        self._subscriptions: list[Subscription] = []

    def elect(self, is_live: Callable[[str], bool]) -> None:
        """See `Transport.elect`."""
        self.ledger.is_live = is_live

    async def call(self, verb: str, args: tuple[Any, ...], tokens: Sequence[str], within: float, undo: Undo = None) -> Any:
        """See `Transport.call`."""
        self._enter()
        until = self._runtime.now() + within
        ledger, now = self.ledger, self._runtime.now
        earlier = ledger.earlier(tokens) if ledger.records else ()
        if earlier and undo is not None and ledger.barred(tokens, now()):
            raise self._unavailable("closed")
        wire = (self._path(tokens) if ledger.records else self._at_hand()) or await self.take(until, tokens)
        ledger.sends(earlier, wire, now())
        reply = await self.exchange(wire, verb, args, tokens, until, undo)
        if earlier:
            ledger.answered(earlier, wire)
            self._sweep()
        return reply

    async def follow(self, verb: str, args: tuple[Any, ...], token: str, within: float) -> Any:
        """See `Transport.follow`. None: nothing is unanswered."""
        self._enter()
        until = self._runtime.now() + within
        if token not in self.ledger.records:
            return None
        try:
            wire = self._path((token,))
            if wire is not None:
                try:
                    return await self.exchange(wire, verb, args, (token,), until, None)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
            return await self.exchange(await self.take(until), verb, args, (token,), until, None)
        finally:
            self.ledger.forget(token)
            self._sweep()

    def settled(self, token: str) -> bool:
        """See `Transport.settled`."""
        return self.ledger.settled(token, self._runtime.now())

    def lag(self) -> float:
        """See `Transport.lag`."""
        return self._wire.lag() if self._wire is not None else 0.0

    async def subscribe(self, inbox: str, within: float) -> Subscription:
        """See `Transport.subscribe`."""
        self._enter()
        until = self._runtime.now() + within
        subscription = Subscription(self.link, self._runtime)
        try:
            await self._first(subscription, Request(0, "listen", (inbox,)), until)
        except BaseException:
            subscription.close()
            raise
        self._subscriptions.append(subscription)
        return subscription

    async def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        for wire in (self._wire, *self._subscriptions, *self._retired):
            if wire is not None:
                wire.close()
        self._wire = None
        self.ledger = Unanswered()

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
        return (
            wire if wire is not None and not wire.dead and not self._connecting and wire.lag() <= self.ledger.overdue else None
        )

    async def take(self, until: float, tokens: Sequence[str] = ()) -> Wire:
        """The shared connection, opened if need be. Raises Unavailable: then nothing was sent."""
        if self.ledger.records:
            self._prune()
        if self._wire is not None and self._wire.lag() > self.ledger.overdue:
            self._give_up(self._wire)
            if (wire := self._path(tokens)) is not None:  # somebody waits there for an answer to one of them
                return wire
        while self._connecting:  # somebody else is at it
            turn = Future()
            self._queue.append(turn)
            self._runtime.alarm(until, turn, LATE)
            if await turn == LATE:
                raise self._unavailable("timeout")
        if self._wire is None or self._wire.dead:
            self._connecting, wire = True, Wire(self.link, self.ledger.arrived)
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
            self._note_on_way(wire)
        self._runtime.alarm(until, future, LATE)
        try:
            reply = await future
            if reply is BROKEN:
                raise self._unavailable("closed")
            if reply is LATE:
                self._retire(wire)
                raise self._unavailable("timeout")
        except BaseException:
            self.ledger.owes(tokens, wire, undo, self._runtime.now(), future)
            raise
        finally:
            wire.users -= 1
            if wire is not self._wire:
                self._sweep()
        return reply

    def _unavailable(self, cause: str) -> Unavailable:
        where = self.link.node.address
        return Unavailable(f"{where}: {cause}", backend=where, cause=cause)

    def _path(self, tokens: Sequence[str]) -> Wire | None:
        paths = self.ledger.paths(tokens)
        return paths[0] if paths else None

    def _retire(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None
            self._retired.append(wire)
            self._note_on_way(wire)

    def _note_on_way(self, wire: Wire) -> None:
        self.ledger.on_way(wire.on_way(), wire, self._runtime.now())

    def _prune(self) -> None:
        overdue = self.ledger.overdue
        for wire in self.ledger.prune(self._runtime.now(), lambda wire: wire.lag() > overdue):
            self._give_up(wire)
        self._sweep()

    def _give_up(self, wire: Wire) -> None:
        self._retire(wire)
        if not wire.users and (undos := self.ledger.give_up(wire, self._runtime.now())) is not None:
            wire.close(undos)

    def _sweep(self) -> None:
        if self._retired:
            needed = self.ledger.needed()
            for wire in [wire for wire in self._retired if wire.dead or not (wire.users or wire in needed)]:
                self._retired.remove(wire)
                wire.close()
