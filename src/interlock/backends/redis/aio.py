"""The connection for tasks: one, shared by all of them, replies told apart by their marks.

Rules of the file
- What must follow what is the ledger's rule (`backends.unanswered`); here it is carried out on one shared connection.
- A connection on which a reply is late is *retired*: new requests go elsewhere, those that must follow an unanswered one still
  go down it. So what is awaited on it is on record as well (`_note_on_way`): one task may follow what another waits for.
- A retired connection is closed when nobody waits on it and nothing on record needs it (`_sweep`), or when its replies are
  overdue, undos being the last things sent (`_give_up`); but not while somebody waits there for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from ...errors import Unavailable, UsageError
from ...runtime import forks
from ...runtime.base import now
from ..unanswered import Record, Unanswered, Undo
from .aio_wire import BROKEN, LATE, AsyncSubscription, SharedWire, Stream
from .connect import Recipe
from .refusals import broken, silent
from .resp import Reply
from .scripts import Request

CLOSING = 1.0  # seconds for the goodbyes of connections


class AsyncTransport:
    """See `transport.Transport`."""

    def __init__(self, recipe: Recipe) -> None:
        self.age = 0
        self._recipe = recipe
        self._wire: SharedWire | None = None
        self._retired: list[SharedWire] = []
        self._connecting: asyncio.Future[None] | None = None  # the connection is being opened: done when that is over
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ledger: Unanswered[SharedWire] = Unanswered()
        self._subscriptions: set[AsyncSubscription] = set()
        self._closed = False
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. Each connection sees to itself (`Stream.disown`)."""
        self._wire, self._retired, self._subscriptions, self._closed = None, [], set(), True
        self._ledger = Unanswered()

    def elect(self, is_live: Callable[[str], bool]) -> None:
        """See `transport.Transport.elect`. Nodes do not wait for each other here anyhow."""
        self._ledger.is_live = is_live

    async def call(self, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo = None) -> Reply:
        """See `transport.Transport.call`."""
        self._enter()
        wire, ledger = self._wire, self._ledger
        earlier: Sequence[tuple[str, Record[SharedWire]]] = ()
        if wire is None or wire.dead or ledger.records or wire.lag() > ledger.overdue:
            earlier = ledger.earlier(tokens)
            if undo is not None and ledger.barred(tokens, now()):
                raise broken("the connection", self._recipe.address, "an earlier request had no answer")
            wire = self._path(tokens) or await self._take(until, tokens)
            ledger.sends(earlier, wire, now())
        reply = await self._exchange(wire, request, mark, tokens, until, undo)
        if earlier:
            ledger.answered(earlier, wire)
            self._sweep()
        return reply

    async def follow(self, request: Request, mark: bytes, token: str, within: float) -> Reply:
        """See `transport.Transport.follow`."""
        self._enter()
        until = now() + within
        if token not in self._ledger.records:
            return None
        try:
            wire = self._path((token,))
            if wire is not None:
                try:
                    return await self._exchange(wire, request, mark, (token,), until, None)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
            return await self._exchange(await self._take(until), request, mark, (token,), until, None)
        finally:
            self._ledger.forget(token)
            self._sweep()

    def settled(self, token: str) -> bool:
        """See `transport.Transport.settled`."""
        return self._ledger.settled(token, now())

    def lag(self) -> float:
        """See `transport.Transport.lag`."""
        self._enter()
        return self._wire.lag() if self._wire is not None else 0.0

    async def subscribe(self, within: float) -> AsyncSubscription:
        """See `transport.Transport.subscribe`."""
        self._enter()
        until = now() + within
        try:
            async with asyncio.timeout(within):
                subscription = AsyncSubscription(await self._connect(until), self._recipe.address)
        except TimeoutError as error:
            raise self._recipe.explain(error) or error from error
        self._subscriptions = {other for other in self._subscriptions if not other.dead} | {subscription}
        if self._closed:  # meanwhile
            subscription.close()
            self._enter()
        return subscription

    async def close(self) -> None:
        """See `transport.Transport.close`."""
        self._closed = True
        wires: set[Stream] = {*self._subscriptions, *self._retired}
        if self._wire is not None:
            wires.add(self._wire)
        self._wire = None
        self._retired.clear()
        self._subscriptions.clear()
        self._ledger = Unanswered()
        for wire in wires:
            wire.close()
        if leaving := [wire.gone for wire in wires if not wire.gone.done()]:
            await asyncio.wait(leaving, timeout=CLOSING)
        for wire in wires:
            wire.abort()  # a TLS goodbye that a frozen peer does not answer is not waited for

    def _enter(self) -> None:
        """Raises UsageError unless this client may be used here."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise UsageError(f"the client for {self._recipe.address} is closed; make a new one")
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError("this AsyncClient belongs to another event loop; make one client in each loop")

    async def _take(self, until: float, tokens: Sequence[str] = ()) -> SharedWire:
        """The shared connection, opened if need be. Raises Unavailable: then nothing was sent."""
        if self._ledger.records:
            self._prune()
        if self._wire is not None and self._wire.lag() > self._ledger.overdue:
            self._give_up(self._wire)
            if (wire := self._path(tokens)) is not None:  # somebody waits there for an answer to one of them
                return wire
        try:
            while self._wire is None or self._wire.dead:
                left = until - now()
                if self._connecting is None:
                    async with asyncio.timeout(left):
                        return await self._open(until)
                # Whoever waits for that wakes with all the others: one after the other, a thousand would take a second.
                await asyncio.wait([self._connecting], timeout=max(left, 0.0))
                if left <= 0:
                    raise TimeoutError
            return self._wire
        except TimeoutError as error:
            raise self._recipe.explain(error) or error from error

    async def _open(self, until: float) -> SharedWire:
        connecting = self._connecting = asyncio.get_running_loop().create_future()
        try:
            wire = SharedWire(await self._connect(until), self._ledger.arrived)
            self.age += 1
            if self._closed:  # meanwhile
                wire.close()
                self._enter()
            self._wire = wire
            return wire
        finally:
            self._connecting = None
            connecting.set_result(None)

    async def _connect(self, until: float) -> Any:
        """A new connection, made by a task of its own. A race throws into whoever waits, amid a turn of the loop. uvloop does
        not survive that while it makes a connection: it goes on with one that is closed by then."""
        making = asyncio.ensure_future(self._make(until))
        try:
            return await making
        except BaseException:
            if not making.cancel() and not making.cancelled() and making.exception() is None:
                making.result()._close()  # it was ready, and nobody takes it
            raise

    async def _make(self, until: float) -> Any:
        connection = self._recipe.make(until)
        try:
            await connection.connect()
            return connection
        except BaseException as error:
            connection._close()  # at once, and not awaited: the caller may be cancelled
            if (ours := self._recipe.explain(error)) is not None:
                raise ours from error
            raise

    async def _exchange(
        self, wire: SharedWire, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo
    ) -> Reply:
        wire.users += 1
        future = wire.send(request.pack(wire.carried), mark, until, tokens)
        if wire is not self._wire:
            self._note_on_way(wire)
        try:
            reply = await future
            if reply is BROKEN:
                raise broken("the connection", self._recipe.address, wire.why)
            if reply is LATE:
                self._retire(wire)
                raise silent(self._recipe.address)
        except BaseException:
            try:
                self._ledger.owes(tokens, wire, undo, now(), future)
            except BaseException:  # a signal's handler has raised in the midst of that
                self._ledger.owes(tokens, wire, undo, now(), future)
                raise
            raise
        finally:
            wire.users -= 1
            if wire is not self._wire:
                self._sweep()
        return cast(Reply, reply)

    def _path(self, tokens: Sequence[str]) -> SharedWire | None:
        """The connection that unanswered requests of these tokens went down, if it is alive."""
        paths = self._ledger.paths(tokens)
        return paths[0] if paths else None

    def _retire(self, wire: SharedWire) -> None:
        """New requests go elsewhere from now on, but not those that follow what somebody still waits for here."""
        if wire is self._wire:
            self._wire = None
            self._retired.append(wire)
            self._note_on_way(wire)

    def _note_on_way(self, wire: SharedWire) -> None:
        self._ledger.on_way(wire.on_way(), wire, now())

    def _prune(self) -> None:
        """Forget what is long over."""
        overdue = self._ledger.overdue
        for wire in self._ledger.prune(now(), lambda wire: wire.lag() > overdue):
            self._give_up(wire)
        self._sweep()

    def _give_up(self, wire: SharedWire) -> None:
        """Nothing will come any more. What was asked may still happen: undo it as the last thing, and close.

        Not while somebody has the patience to wait for an answer: nothing could follow what was asked, and overtake it.
        """
        self._retire(wire)
        if not wire.users and (undos := self._ledger.give_up(wire, now())) is not None:
            wire.close(b"".join(request.pack(wire.carried) for request in undos))

    def _sweep(self) -> None:
        """Close retired connections that nobody needs. They stay on the list until they are gone: a peer may take its time."""
        if self._retired:
            self._retired = [wire for wire in self._retired if not wire.gone.done()]
            needed = self._ledger.needed()
            for wire in self._retired:
                if not wire.dead and not wire.users and wire not in needed:
                    wire.close()
