"""Connections for threads: one thread at a time on each, idle ones kept for the next.

Rules of the file
- The request that follows an unanswered one of its token goes down the same connection, behind it, so it cannot overtake it:
  the connection is *parked* under the token. If it is closed, nothing of the token that creates something goes down another
  (`Parked.broken`).
- A parked connection whose replies have come in late is good again (`_reap`). The token stays on record: its caller never
  got the answer. One whose replies never come is closed, with an undo as the last thing sent on it; but not while the token
  is alive (`keep`): that would take a lease from a node that its holder counts on.
- Replies are told apart by their marks, never by counting on all of them to arrive.
- A node is connected to in a thread of its own (`Hello`): to look a name up, or to ask for credentials, cannot be bounded, and
  whoever waits for it has alarms to give, or other nodes to ask, meanwhile. When nobody waits for it any more, a request to a
  node of a quorum that creates nothing (it has no undo: a release) still goes out; any other is not sent, since what follows it
  might have overtaken it.

A little long because all that may become of a connection is told here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from ...errors import InterlockError, Unavailable, UsageError
from ...runtime import forks
from ...runtime.at_exit import rest_at_exit
from ...runtime.base import by_a_handler, now
from ...runtime.blocking import ThreadBell
from .connect import Recipe
from .resp import ProtocolError, Reply
from .scripts import Request
from .transport import Astray, Undo
from .wire import Late, Listener, Wire

MAX_IDLE = 32
CROWD = 16  # connections that wait for a node; with more of them it counts as silent, however short they have waited
# (outside of a quorum many threads may come at once: only those that are overdue count)
MOMENT = 0.02  # seconds that others wait for a node of a quorum to be connected to
CLOSING = 0.5  # for connections that are being opened, when the client is closed
GRACE = 0.05  # for a connection that is late by as much as it takes to say so
OVERDUE = 5.0  # seconds after which an answer that nobody waits for is not expected any more


class Parked:
    """A connection set aside for what may follow. No wire: the request was dealt with there, but its caller does not know; or,
    if it is `broken`, nobody knows.

    A request with two tokens is parked under both, and whichever is followed first takes the connection. They are to be
    followed one after the other: at the same time, the second might overtake.
    """

    __slots__ = ("broken", "dealt_with", "since", "tokens", "undo", "wire")

    def __init__(self, tokens: Sequence[str]) -> None:
        self.wire: Wire | None = None
        self.broken = self.dealt_with = False  # dealt with: its reply has come in since
        self.tokens = tokens
        self.since = 0.0
        self.undo: Undo = None

    @property
    def guards(self) -> bool:
        """Whether what it was about may still be done, and undone, whatever comes by another connection."""
        return self.broken and self.undo is not None


class Hello:
    """A connection that a thread opens. It is waited for a moment; from then on others have their turns meanwhile."""

    def __init__(self, connect: Callable[[float], Wire], until: float, late: Callable[[Wire], None]) -> None:
        self.since = now()
        self._connect, self._until = connect, until
        self._late = late  # called with a connection that nobody waits for any more
        self._guard = threading.Lock()
        self._outcome: Wire | BaseException | None = None
        self._left = False
        self._bell = ThreadBell()
        self.thread = threading.Thread(target=self._work, name="interlock-hello", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            outcome: Wire | BaseException = self._connect(self._until)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            outcome = error
        with self._guard:
            self._outcome, left = outcome, self._left
        self._bell.ring()
        if left and isinstance(outcome, Wire):
            self._late(outcome)

    def stuck(self) -> bool:
        """Whether it is about something that does not end in time, as the look-up of a name may be."""
        return now() > self._until + GRACE

    async def wire(self) -> Wire:
        """What has come of it. Raises what the connecting raised, or Late."""
        try:
            while self._outcome is None:
                if not await self._bell.wait(self._until + GRACE) and self._outcome is None:
                    raise Late
        except BaseException:
            with self._guard:
                self._left, outcome = True, self._outcome
            if isinstance(outcome, Wire):
                self._late(outcome)
            raise
        finally:
            self._bell.close()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class BlockingTransport:
    """See `transport.Transport`."""

    def __init__(self, recipe: Recipe) -> None:
        self.age = 0
        self._recipe = recipe
        self._closed = False
        self._beside = False  # other nodes are asked at the same time
        self._start_afresh()
        rest_at_exit(self)
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`. The connections are closed by now (`forks.close_in_child`)."""
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._idle: list[Wire] = []
        self._parked: dict[str, Parked] = {}  # by token
        self._late: list[Parked] = []  # of tokens that are done with, and of requests without one
        self._ears: list[Listener] = []
        self._living: set[str] = set()  # tokens
        self._astray = Astray(OVERDUE)
        self._hellos: list[Hello] = []
        self._guard = threading.RLock()  # around what is parked; never held while waiting; a signal handler may come back in

    def side_by_side(self) -> None:
        """See `transport.Transport.side_by_side`."""
        self._beside = True

    async def call(self, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo = None) -> Reply:
        """See `transport.Transport.call`."""
        if self._closed or self._pid != os.getpid():
            self._enter()
        before = [(token, self._parked.get(token)) for token in tokens] if self._parked else ()
        parked, wire = self._take_parked(tokens) if before else (None, None)
        if wire is None:
            if before:
                self._astray.update(token for token, earlier in before if earlier is not None and not earlier.dealt_with)
                if undo is not None:
                    self._overtakes_nothing(before[0][1])
            wire = self._idle_one() or await self._new(until, None if undo is not None else request)
        try:
            reply = await wire.ask(request.pack(wire.carried), mark, until)
        except BaseException as error:
            parked = parked or Parked(tokens)
            try:
                self._unanswered(wire, parked, tokens, undo, error)
            except BaseException as again:
                if not isinstance(again, InterlockError):  # a signal's handler has raised in the midst of that
                    self._unanswered(wire, parked, tokens, undo, again)
                raise
            raise
        for token, earlier in before:
            if earlier is None or earlier.guards:  # this answer came by another connection
                continue
            if self._parked.get(token) is earlier:  # else a later request of it has no answer
                self._forget(token)
        self._keep(wire)
        return reply

    async def follow(self, request: Request, mark: bytes, token: str, within: float) -> Reply:
        """See `transport.Transport.follow`."""
        self._enter()
        if token not in self._parked:
            return None
        until = now() + within
        try:
            parked, wire = self._take_parked((token,))
            if wire is not None:
                try:
                    reply = await self._exchange(wire, parked, request, mark, (token,), until, None)
                except Unavailable as error:
                    if error.cause != "closed":
                        raise
                else:
                    self._keep(wire)
                    return reply
            wire = self._idle_one() or await self._new(until, request)
            reply = await self._exchange(wire, None, request, mark, (token,), until, None)
            self._keep(wire)
            return reply
        finally:
            with self._guard:
                left = self._parked.pop(token, None)
                shared = any(left is other for other in self._parked.values())
            if left is not None and left.wire is not None and not shared:  # no answer, but the bytes are out
                left.wire.close()

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
        with self._guard:
            parked = self._parked.pop(token, None)
            if parked is None or parked.wire is None or any(parked is other for other in self._parked.values()):
                return
            self._late.append(parked)

    def lag(self) -> float:
        """See `transport.Transport.lag`."""
        if not self._parked and not self._late and not self._hellos:
            return 0.0
        hellos = [hello for hello in self._hellos if hello.thread.is_alive()]
        self._reap()
        with self._guard:
            some = {parked for parked in [*self._parked.values(), *self._late] if parked.wire is not None}
        long_ago = now() - OVERDUE  # what is kept for a living token says nothing about the node any more
        waiting = [parked for parked in some if parked.since > long_ago or self._living.isdisjoint(parked.tokens)]
        if len(waiting) > CROWD or len(hellos) > CROWD:
            return inf
        since = [parked.since for parked in waiting] + [hello.since for hello in hellos]
        return now() - min(since) if since else 0.0

    async def listen(self, within: float) -> Listener:
        """See `transport.Transport.listen`."""
        self._enter()
        ear = Listener(await self._connected(now() + within, Wire.close), self._broken)
        with self._guard:
            self._ears = [other for other in self._ears if not other.closed] + [ear]
        if self._closed:  # meanwhile
            ear.close()
            self._enter()
        return ear

    async def close(self) -> None:
        """See `transport.Transport.close`."""
        self._closed = True
        if self._pid == os.getpid():
            until = now() + CLOSING
            for hello in self._hellos:  # what they still have to say
                hello.thread.join(max(until - now(), 0.0))
            self.rest()
            for ear in self._ears:
                ear.close()
        self._start_afresh()

    def rest(self, within: float = 0.0) -> None:
        """Close what nobody is using: the client is closed, or the interpreter ends. Others may be amid something."""
        if self._pid != os.getpid():
            return
        with self._guard:
            for parked in [*self._parked.values(), *self._late]:
                wire, parked.wire = parked.wire, None
                if wire is not None:
                    wire.close()
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _enter(self) -> None:
        if self._closed:
            raise UsageError(f"the client for {self._recipe.address} is closed; make a new one")
        if self._pid != os.getpid():  # after a fork the sockets are the parent's: forget them, say nothing on them
            self._start_afresh()

    def _take_parked(self, tokens: Sequence[str]) -> tuple[Parked | None, Wire | None]:
        """The connection that unanswered requests of these tokens went down. They stay on record until they are settled."""
        for token in tokens:
            with self._guard:
                parked = self._parked.get(token)
                if parked is None or parked.wire is None:
                    continue
                wire, parked.wire = parked.wire, None
            try:
                wire.drain()  # finds out whether the peer is still there
                return parked, wire
            except (OSError, ProtocolError) as error:
                wire.close()
                parked.broken = True
                if by_a_handler(error):
                    raise
        return None, None

    def _overtakes_nothing(self, earlier: Parked | None) -> None:
        """Raises Unavailable if what was asked `earlier` went down a connection that is closed by now: it may still arrive,
        after whatever is asked on another one. Who asks would be told that it has what is taken back then."""
        if earlier is not None and earlier.guards and now() - earlier.since < OVERDUE:
            raise self._broken(ConnectionError("an earlier request had no answer"))

    def _idle_one(self) -> Wire | None:
        """An idle connection that is still good."""
        if not self._idle and (self._parked or self._late):
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
        late = self._keep if request is None or not self._beside else partial(self._say_late, request)
        wire = await self._connected(until, late)
        self.age += 1
        return wire

    async def _connected(self, until: float, late: Callable[[Wire], None]) -> Wire:
        try:
            with self._guard:
                self._hellos = hellos = [hello for hello in self._hellos if hello.thread.is_alive()]
                if sum(self._beside or hello.stuck() for hello in hellos) > CROWD:
                    raise self._broken(Late())
                hellos.append(hello := Hello(self._connect, until, late))
        except RuntimeError:  # no more threads, or the interpreter ends
            return self._connect(until)
        except OSError as error:  # no descriptor is left for its bell
            if by_a_handler(error) or (ours := self._recipe.explain(error)) is None:
                raise
            raise ours from error
        if self._beside and now() - hellos[0].since <= MOMENT:  # else one was waited for: the node is slow, or does not answer
            hello.thread.join(MOMENT)
        try:
            return await hello.wire()
        except Late as error:
            raise self._broken(error) from error

    def _say_late(self, request: Request, wire: Wire) -> None:
        """Send what nobody waits for any more, on a connection that has come too late for it."""
        parked = Parked(())
        parked.wire, parked.since = wire, now()
        try:
            wire.say_late(request.pack(wire.carried))
        except OSError:
            wire.close()
            return
        with self._guard:
            self._late.append(parked)
        if self._closed:
            wire.close()

    def _connect(self, until: float) -> Wire:
        connection = self._recipe.make(until)
        try:
            connection.connect()
            return Wire(connection)
        except BaseException as error:
            connection.disconnect()
            if (ours := self._recipe.explain(error)) is not None:
                raise ours from error
            raise

    async def _exchange(
        self, wire: Wire, parked: Parked | None, request: Request, mark: bytes, tokens: Sequence[str], until: float, undo: Undo
    ) -> Reply:
        """`parked`: where the connection was."""
        try:
            return await wire.ask(request.pack(wire.carried), mark, until)
        except BaseException as error:
            parked = parked or Parked(tokens)
            try:
                self._unanswered(wire, parked, tokens, undo, error)
            except BaseException as again:
                if not isinstance(again, InterlockError):  # a signal's handler has raised in the midst of that
                    self._unanswered(wire, parked, tokens, undo, again)
                raise
            raise

    def _unanswered(self, wire: Wire, parked: Parked, tokens: Sequence[str], undo: Undo, error: BaseException) -> None:
        """Put down what `error` has left without an answer. Raises what it means, if it is ours to explain. Harmless when
        repeated."""
        if wire.pid != os.getpid():  # a signal handler has forked, and we are in the child: to undo it is the parent's business
            raise UsageError(
                f"the process was forked in the middle of a request to {self._recipe.address}, which goes on in the parent; "
                "nothing was done here. Leave the handler of a signal by os._exit() in the child"
            ) from error
        # A time-out, or whatever interrupts us, leaves a connection on which more can follow; only its own troubles end it.
        broken = isinstance(error, ProtocolError | OSError) and not by_a_handler(error)
        if broken or wire.spoilt:
            wire.close()
        with self._guard:
            parked.wire, parked.since, parked.undo = None if wire.dead else wire, now(), undo or parked.undo
            parked.broken |= wire.dead
            on_record = False
            for token in tokens:
                earlier = self._parked.get(token)
                if undo is None and earlier is not None and earlier.guards:
                    continue  # it matters more what that one may still do
                on_record = True
                if earlier is not parked:
                    self._forget(token)
                    self._parked[token] = parked
            if (
                not on_record and not wire.dead and parked not in self._late
            ):  # kept: its reply makes it good, and until then the node is known as silent
                self._late.append(parked)
        if broken or isinstance(error, Late):
            raise self._broken(error) from error

    def _keep(self, wire: Wire) -> None:
        """The connection owes nothing: it is for the next."""
        if len(self._idle) < MAX_IDLE and not self._closed:
            self._idle.append(wire)
        else:
            wire.close()

    def _reap(self) -> None:
        """Take back parked connections whose replies have come in; give up on those that are overdue."""
        long_ago = now() - OVERDUE
        with self._guard:
            for token, parked in list(self._parked.items()):
                if self._recovered(parked, long_ago):
                    parked.wire = None
                    if parked.since < long_ago:  # whoever was to follow has done so, or never will
                        del self._parked[token]
            self._late = [parked for parked in self._late if not self._recovered(parked, long_ago)]

    def _recovered(self, parked: Parked, long_ago: float) -> bool:
        """Whether a parked connection need not be kept any more: it is idle again, or given up."""
        wire = parked.wire
        if wire is None:
            return True
        try:
            wire.drain()
            if wire.owed == 0:
                parked.dealt_with = True
                self._keep(wire)
                return True
            if parked.since > long_ago or not self._living.isdisjoint(parked.tokens):
                return False
            if parked.undo is not None:
                wire.say_last(b"".join(request.pack(wire.carried) for request in parked.undo()))
        except (OSError, ProtocolError) as error:
            if by_a_handler(error):
                raise
        wire.close()
        parked.broken, parked.since = True, now()  # from now on: the undo may arrive late as well
        return True

    def _broken(self, error: BaseException) -> Unavailable:
        where = self._recipe.address
        if isinstance(error, Late):
            text = f"{where} did not answer in time: is it overloaded, frozen or cut off?"
            return Unavailable(text, backend=where, cause="timeout")
        said = str(error) or type(error).__name__
        return Unavailable(f"the connection to {where} broke: {said}", backend=where, cause="closed")
