"""The connection for tasks: one, shared by all of them, replies told apart by their marks.

Rules of the file
- A request is unanswered until its caller has the answer, whether or not the reply has arrived; until then its token is on
  record (`_owing`), and what follows goes down the same connection. If that is closed, nothing of the token that creates
  something goes down another while the record lasts, longer than a quorum would count on it (`quorum_line.SAME_PATH`).
- A connection on which a reply is overdue is *retired*: new requests go elsewhere, those that must follow an unanswered one
  still go down it. So what is awaited on it is on record as well (`_retired`): one task may have to follow what another
  waits for. It is closed when nobody is owed anything on it, or long after, with undos as the last things sent; but not of
  living tokens (`keep`): that would take a lease from a node that its holder counts on.

A little long because all that may become of a connection is told here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from ...errors import Unavailable, UsageError
from ...runtime import forks
from ...runtime.base import now
from .aio_wire import BROKEN, LATE, AsyncEar, Stream, Wire, broken
from .connect import Recipe
from .resp import Reply
from .scripts import Request
from .transport import Astray, Undo

OVERDUE = 5.0  # seconds after which an answer that nobody waits for is not expected any more
CLOSING = 1.0  # seconds for the goodbyes of connections


class AsyncTransport:
    """See `transport.Transport`."""

    def __init__(self, recipe: Recipe) -> None:
        self.age = 0
        self._recipe = recipe
        self._wire: Wire | None = None
        self._connecting: asyncio.Future[None] | None = None  # somebody opens the connection: done when that is over
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owing: dict[str, tuple[Wire, Undo, float]] = {}  # and since when
        self._living: set[str] = set()  # tokens
        self._astray = Astray(OVERDUE)
        self._ears: set[AsyncEar] = set()
        self._closed = False
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. Each connection sees to itself (`Stream.disown`)."""
        self._wire, self._ears, self._closed = None, set(), True
        self._owing.clear()

    def side_by_side(self) -> None:
        """See `transport.Transport.side_by_side`. It is so anyhow."""

    async def call(self, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo = None) -> Reply:
        """See `transport.Transport.call`."""
        self._enter()
        wire, before = self._wire, []
        if wire is None or wire.dead or self._owing or wire.lag() > OVERDUE:
            before = [(token, self._owing[token]) for token in tokens if token in self._owing]
            if undo is not None and tokens:
                self._overtakes_nothing(tokens[0])
            wire = self._owed_on(tokens) or await self._take(until, tokens)
            self._astray.update(token for token, owing in before if owing[0] is not wire)
        reply = await self._exchange(wire, request, mark, tokens, until, undo)
        for token, owing in before:
            settled = owing[0] is wire or owing[1] is None  # what went down another connection, and creates something, is not
            if settled and self._owing.get(token) is owing:  # else another request of it, sent after this one, has no answer
                self._forget(token)
        return reply

    async def follow(self, request: Request, mark: bytes, token: str, within: float) -> Reply:
        """See `transport.Transport.follow`."""
        self._enter()
        until = now() + within
        if token not in self._owing:
            return None
        try:
            wire = self._owed_on((token,))
            if wire is not None:
                try:
                    return await self._exchange(wire, request, mark, (token,), until, None)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
            return await self._exchange(await self._take(until), request, mark, (token,), until, None)
        finally:
            self._forget(token)

    def settled(self, token: str) -> bool:
        """See `transport.Transport.settled`."""
        return token not in self._astray

    def keep(self, token: str) -> None:
        """See `transport.Transport.keep`."""
        self._living.add(token)

    def drop(self, token: str) -> None:
        """See `transport.Transport.drop`."""
        self._living.discard(token)
        self._forget(token)

    def _forget(self, token: str) -> None:
        if (owing := self._owing.pop(token, None)) is not None:
            self._sweep(owing[0])

    def lag(self) -> float:
        """See `transport.Transport.lag`."""
        self._enter()
        return self._wire.lag() if self._wire is not None else 0.0

    async def listen(self, within: float) -> AsyncEar:
        """See `transport.Transport.listen`."""
        self._enter()
        until = now() + within
        try:
            async with asyncio.timeout(within):
                ear = AsyncEar(await self._connect(until), self._recipe.address)
        except TimeoutError as error:
            raise self._recipe.explain(error) or error from error
        self._ears = {other for other in self._ears if not other.dead} | {ear}
        if self._closed:  # meanwhile
            ear.close()
            self._enter()
        return ear

    async def close(self) -> None:
        """See `transport.Transport.close`."""
        self._closed = True
        wires: set[Stream] = {*self._ears, *(wire for wire, *_ in self._owing.values())}
        if self._wire is not None:
            wires.add(self._wire)
        self._wire = None
        self._ears.clear()
        self._owing.clear()
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

    async def _take(self, until: float, tokens: Sequence[str] = ()) -> Wire:
        """The shared connection, opened if need be. Raises Unavailable: then nothing was sent."""
        if self._owing:
            self._prune()
        if self._wire is not None and self._wire.lag() > OVERDUE:
            self._give_up(self._wire)
            if (wire := self._owed_on(tokens)) is not None:  # somebody waits there for an answer to one of them
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

    async def _open(self, until: float) -> Wire:
        connecting = self._connecting = asyncio.get_running_loop().create_future()
        try:
            wire = Wire(await self._connect(until))
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
        self, wire: Wire, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo
    ) -> Reply:
        wire.users += 1
        future = wire.send(request.pack(wire.carried), mark, until, tokens)
        if wire is not self._wire:
            self._retired(wire)
        try:
            reply = await future
            if reply is BROKEN or reply is LATE:
                raise self._silent(wire, reply)
        except BaseException:
            try:
                self._owes(wire, tokens, undo)
            except BaseException:  # a signal's handler has raised in the midst of that
                self._owes(wire, tokens, undo)
                raise
            raise
        finally:
            wire.users -= 1
            if wire is not self._wire:
                self._sweep(wire)
        return cast(Reply, reply)

    def _owes(self, wire: Wire, tokens: Sequence[str], undo: Undo) -> None:
        """Put down that a request of these tokens has no answer. Harmless when repeated."""
        for token in tokens:
            before = self._owing.get(token)
            if undo is None and before is not None and before[0].dead and before[1] is not None:
                continue  # it matters more what that one may still do
            self._owing.pop(token, None)
            self._owing[token] = wire, undo, now()
            if before is not None and before[0] is not wire:
                self._sweep(before[0])

    def _silent(self, wire: Wire, reply: object) -> Unavailable:
        where = self._recipe.address
        if reply is BROKEN:
            return broken(f"the connection to {where}", wire.why, where)
        if wire is self._wire:
            self._wire = None
            self._retired(wire)
        text = f"{where} did not answer in time: is it overloaded, frozen or cut off?"
        return Unavailable(text, backend=where, cause="timeout")

    def _overtakes_nothing(self, token: str) -> None:
        """Raises Unavailable if what this token asked went down a connection that is closed by now: it may still arrive, or its
        undo may, after whatever is asked on another one. Who asks would be told that it has what is taken back then."""
        wire, undo, since = self._owing.get(token, (None, None, 0.0))
        if wire is not None and wire.dead and undo is not None and now() - since < OVERDUE:
            raise self._silent(wire, BROKEN)

    def _owed_on(self, tokens: Sequence[str]) -> Wire | None:
        """The connection that unanswered requests of these tokens went down, if it is alive."""
        for token in tokens:
            owing = self._owing.get(token)
            if owing is not None and not owing[0].dead:
                return owing[0]
        return None

    def _prune(self) -> None:
        """Forget the oldest records once whoever was to follow has done so, or never will."""
        for token, owing in list(self._owing.items()):
            wire, _, since = owing
            if now() - since < OVERDUE:
                return
            if self._lives(wire):
                continue
            if wire.lag() > OVERDUE:
                self._give_up(wire)
            if self._owing.get(token) is owing:
                self._forget(token)

    def _sweep(self, wire: Wire) -> None:
        """Close a retired connection that nobody needs."""
        if wire is self._wire or wire.dead or wire.users:
            return
        if all(other is not wire for other, *_ in self._owing.values()):
            wire.close()

    def _give_up(self, wire: Wire) -> None:
        """Nothing will come any more. What was asked may still happen: undo it as the last thing, and close.

        Not while somebody has the patience to wait for an answer: nothing could follow what was asked, and overtake it.
        """
        if wire is self._wire:
            self._wire = None
            self._retired(wire)
        if not wire.users and not self._lives(wire):
            undos = {token: undo for token, (other, undo, _) in self._owing.items() if other is wire and undo is not None}
            wire.close(b"".join(request.pack(wire.carried) for undo in undos.values() for request in undo()))
            for token, undo in undos.items():  # from now on: the undo may arrive late as well
                del self._owing[token]
                self._owing[token] = wire, undo, now()

    def _retired(self, wire: Wire) -> None:
        """New requests go elsewhere from now on, but not those that follow what somebody still waits for here."""
        moment = now()
        for token in wire.on_way():
            self._owing.setdefault(token, (wire, None, moment))

    def _lives(self, wire: Wire) -> bool:
        """Whether a living token needs this connection: its release has to go down it."""
        return not wire.dead and any(other is wire and token in self._living for token, (other, *_) in self._owing.items())
