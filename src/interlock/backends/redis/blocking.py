"""Connections for threads: one thread at a time on each, idle ones kept for the next.

Rules of the file
- What must follow what is the ledger's rule (`backends.unanswered`); here it is carried out on sockets.
- A connection that owes replies which nobody waits for is *pending* until what follows takes it, or its replies have come in
  late and it is good again, or they are overdue and it is closed, undos being the last things sent (`_reap`).
- One thread takes it. Two tokens of one request are to be followed one after the other: at the same time, the second would
  take another connection and might overtake.
- Replies are told apart by their marks, never by counting on all of them to arrive.
- When nobody waits for a new connection any more (`connecting`), a request to a node of a quorum that creates nothing (it has
  no undo: a release) still goes out; any other is not sent, since what follows it might have overtaken it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from ...errors import InterlockError, Unavailable, UsageError
from ...runtime import forks
from ...runtime.at_exit import rest_at_exit
from ...runtime.base import by_a_handler, now
from ..unanswered import Unanswered, Undo
from .connect import Recipe
from .connecting import CROWD, Connector
from .refusals import broken, silent
from .resp import ProtocolError, Reply
from .scripts import Request
from .wire import BlockingSubscription, Late, Wire

MAX_IDLE = 32
CLOSING = 0.5  # for connections that are being opened, when the client is closed


class BlockingTransport:
    """See `transport.Transport`."""

    def __init__(self, recipe: Recipe) -> None:
        self.age = 0
        self._recipe = recipe
        self._closed = False
        self._connector = Connector(recipe, beside=False)
        self._ledger: Unanswered[Wire] = Unanswered()
        self.disown()
        rest_at_exit(self)
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: start afresh. The connections are closed by now (`forks.close_in_child`)."""
        self._pid = os.getpid()
        self._idle: list[Wire] = []
        self._pending: dict[Wire, float] = {}  # since when. Under the ledger's guard
        self._subscriptions: list[BlockingSubscription] = []
        self._ledger = Unanswered(self._ledger.is_live)
        self._connector = Connector(self._recipe, self._connector.beside)

    def elect(self, is_live: Callable[[str], bool]) -> None:
        """See `transport.Transport.elect`."""
        self._connector.beside = True
        self._ledger.is_live = is_live

    async def call(self, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo = None) -> Reply:
        """See `transport.Transport.call`."""
        if self._closed or self._pid != os.getpid():
            self._enter()
        ledger = self._ledger
        earlier = ledger.earlier(tokens) if ledger.records else ()
        wire = None
        if earlier:
            wire = self._take_pending(tokens, undo is not None)
            ledger.sends(earlier, wire, now())
        if wire is None:
            wire = self._idle_one() or await self._new(until, None if undo is not None else request)
        try:
            reply = await wire.ask(request.pack(wire.carried), mark, until)
        except BaseException as error:
            try:
                self._unanswered(wire, tokens, undo, error)
            except BaseException as again:
                if not isinstance(again, InterlockError):  # a signal's handler has raised in the midst of that
                    self._unanswered(wire, tokens, undo, again)
                raise
            raise
        if earlier:
            ledger.answered(earlier, wire)
            ledger.dealt_with(wire)
        self._keep(wire)
        return reply

    async def follow(self, request: Request, mark: bytes, token: str, within: float) -> Reply:
        """See `transport.Transport.follow`."""
        self._enter()
        if token not in self._ledger.records:
            return None
        until = now() + within
        try:
            wire = self._take_pending((token,), creates=False)
            if wire is not None:
                try:
                    return await self._exchange(wire, request, mark, token, until)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
            return await self._exchange(self._idle_one() or await self._new(until, request), request, mark, token, until)
        finally:
            self._forget(token)

    async def _exchange(self, wire: Wire, request: Request, mark: bytes, token: str, until: float) -> Reply:
        try:
            reply = await wire.ask(request.pack(wire.carried), mark, until)
        except BaseException as error:
            try:
                self._unanswered(wire, (token,), None, error)
            except BaseException as again:
                if not isinstance(again, InterlockError):  # as above
                    self._unanswered(wire, (token,), None, again)
                raise
            raise
        self._ledger.dealt_with(wire)
        self._keep(wire)
        return reply

    def _forget(self, token: str) -> None:
        """Nothing follows the token's undo. Without an answer its connection is closed: the bytes are out."""
        with self._ledger.guard:
            record = self._ledger.forget(token)
            wire = record.connection if record is not None else None
            if wire is not None and wire in self._pending and wire not in self._ledger.needed():
                del self._pending[wire]
                wire.close()

    def settled(self, token: str) -> bool:
        """See `transport.Transport.settled`."""
        return self._ledger.settled(token, now())

    def lag(self) -> float:
        """See `transport.Transport.lag`."""
        if not self._pending and not self._ledger.records and not self._connector.under_way:
            return 0.0
        self._reap()
        connecting, moment = self._connector.waiting(), now()
        with self._ledger.guard:  # what is kept for a living token says nothing about the node any more
            pending = [since for since in list(self._pending.values()) if moment - since < self._ledger.overdue]
        if len(pending) > CROWD or len(connecting) > CROWD:
            return inf
        return moment - min(pending + connecting, default=moment)

    async def subscribe(self, within: float) -> BlockingSubscription:
        """See `transport.Transport.subscribe`."""
        self._enter()
        wire = await self._connector.connect(now() + within, Wire.close)
        subscription = BlockingSubscription(wire, self._broken)
        with self._ledger.guard:
            self._subscriptions = [other for other in self._subscriptions if not other.closed] + [subscription]
        if self._closed:  # meanwhile
            subscription.close()
            self._enter()
        return subscription

    async def close(self) -> None:
        """See `transport.Transport.close`."""
        self._closed = True
        if self._pid == os.getpid():
            self._connector.join(now() + CLOSING)
            self.rest()
            for subscription in self._subscriptions:
                subscription.close()
        self.disown()

    def rest(self, within: float = 0.0) -> None:
        """Close what nobody is using: the client is closed, or the interpreter ends. Others may be amid something."""
        if self._pid != os.getpid():
            return
        with self._ledger.guard:
            while self._pending:
                self._pending.popitem()[0].close()
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _enter(self) -> None:
        if self._closed:
            raise UsageError(f"the client for {self._recipe.address} is closed; make a new one")
        if self._pid != os.getpid():  # after a fork the sockets are the parent's: forget them, say nothing on them
            self.disown()

    def _take_pending(self, tokens: Sequence[str], creates: bool) -> Wire | None:
        """The connection that unanswered requests of these tokens went down; None: any will do, or another thread has it.

        Raises Unavailable if the request `creates` something and might overtake an earlier one.
        """
        ledger = self._ledger
        while True:
            if creates and ledger.barred(tokens, now()):
                raise self._broken(ConnectionError("an earlier request had no answer"))
            with ledger.guard:
                wire = next((wire for wire in ledger.paths(tokens) if wire in self._pending), None)
                if wire is None:
                    return None
                del self._pending[wire]
            try:
                wire.drain()  # finds out whether the peer is still there
                return wire
            except BaseException as error:
                wire.close()
                if not isinstance(error, OSError | ProtocolError) or by_a_handler(error):
                    raise

    def _idle_one(self) -> Wire | None:
        """An idle connection that is still good."""
        if not self._idle and (self._pending or self._ledger.records):
            self._reap()
        while True:
            try:
                wire = self._idle.pop()  # another thread may take the last one: no test before the pop
            except IndexError:
                return None
            if not wire.dead and not wire.readable():
                return wire
            wire.close()

    async def _new(self, until: float, request: Request | None) -> Wire:
        """A new connection for requests. Raises Unavailable, or whatever interrupts it: then nothing was sent, unless this
        `request` is given, and the node is one of several: it goes out when it can."""
        late = self._keep if request is None or not self._connector.beside else partial(self._send_unawaited, request)
        wire = await self._connector.connect(until, late)
        self.age += 1
        return wire

    def _send_unawaited(self, request: Request, wire: Wire) -> None:
        """Send what nobody waits for any more, on a connection that has come too late for it."""
        try:
            wire.send_unawaited(request.pack(wire.carried))
        except OSError:
            wire.close()
            return
        with self._ledger.guard:
            self._pending[wire] = now()
        if self._closed:
            wire.close()

    def _unanswered(self, wire: Wire, tokens: Sequence[str], undo: Undo, error: BaseException) -> None:
        """Put down what `error` has left without an answer. Raises what it means, if it is ours to explain. Harmless when
        repeated."""
        if wire.pid != os.getpid():  # a signal handler has forked, and we are in the child: to undo it is the parent's business
            raise UsageError(
                f"the process was forked in the middle of a request to {self._recipe.address}, which goes on in the parent; "
                "nothing was done here. Leave the handler of a signal by os._exit() in the child"
            ) from error
        # A time-out, or whatever interrupts us, leaves a connection on which more can follow; only its own troubles end it.
        broke = isinstance(error, ProtocolError | OSError) and not by_a_handler(error)
        if broke or wire.spoilt:
            wire.close()
        moment = now()
        with self._ledger.guard:
            self._ledger.owes(tokens, wire, undo, moment)
            if not wire.dead:  # its reply makes it good, and until then the node is known as silent
                self._pending[wire] = moment
        if broke or isinstance(error, Late):
            raise self._broken(error) from error

    def _keep(self, wire: Wire) -> None:
        """The connection owes nothing: it is for the next."""
        if len(self._idle) < MAX_IDLE and not self._closed:
            self._idle.append(wire)
        else:
            wire.close()

    def _reap(self) -> None:
        """Take back pending connections whose replies have come in; give up on those that are overdue."""
        ledger, moment = self._ledger, now()
        with ledger.guard:
            for wire, since in list(self._pending.items()):
                try:
                    wire.drain()
                    if wire.owed == 0:
                        self._pending.pop(wire, None)
                        ledger.dealt_with(wire)
                        self._keep(wire)
                        continue
                    if moment - since < ledger.overdue or (undos := ledger.give_up(wire, moment)) is None:
                        continue
                    if undos:
                        wire.send_final(b"".join(request.pack(wire.carried) for request in undos))
                except (OSError, ProtocolError) as error:
                    if by_a_handler(error):
                        raise
                    ledger.broke(wire, moment)
                wire.close()
                self._pending.pop(wire, None)
            ledger.prune(moment, self._pending.__contains__)

    def _broken(self, error: BaseException) -> Unavailable:
        where = self._recipe.address
        if isinstance(error, Late):
            return silent(where)
        return broken("the connection", where, str(error) or type(error).__name__)
