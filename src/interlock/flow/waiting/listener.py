"""The listener: listens to the inbox of a client on behalf of all its waiters. A thread or a task, while there are waiters.

Invariants
- Whoever has asked to be listened for (`listen`) is, for as long as a request may take and LINGER more, and then for as long as
  it stands in line.
- One opens the inbox, the others wait for that: a thousand who come at once make one connection.
- A grant is believed no longer than the store keeps it, however long its announcement was on its way, and whatever the store's
  clock did meanwhile: it counts from a moment of our clock that was certainly before it (`Announced.at`). If too little
  is left of it, it is not believed at all: the waiter asks, and the answer counts from that question.
"""

from __future__ import annotations

from math import inf
from typing import cast

from ...backends.port import Backend, Line
from ...core.claim import Announced
from ...core.clock import StoreClock
from ...core.lease import Hold, deadline
from ...errors import InterlockError, Unavailable, UsageError
from ...runtime import forks
from ...runtime.base import Bell, Runtime, Spawned, shortage
from ..inside import Inside
from ..notes import left_behind
from ..undo import drop
from .queue import LocalQueue
from .waiter import Waiter

LINGER = 5.0  # seconds for which an inbox without waiters is still listened to
TICK = 0.5  # how often it looks whether there are waiters still
PAUSE = 0.01  # how often one that has to wait for another of an earlier era looks whether that has ended
REOPEN = 0.1  # pause before an inbox that cannot be opened is tried again
GUESS = 1.0  # seconds for which the wall clock, which may be set, is not looked at again
# The share of a grant that must be left of it, so that it is believed without asking. A lease that is renewed is renewed at a
# third of its ttl. A fixed one is all that its holder gets.
RENEWED, FIXED = 1 / 2, 9 / 10


class Opening:
    """Somebody opens the inbox: who waits for that, and what came of it, unless it is open now."""

    def __init__(self) -> None:
        self.waiting: list[Bell] = []
        self.error: Unavailable | None = None


class Listener:
    """The listener of one client."""

    def __init__(
        self, backend: Backend, runtime: Runtime, request_timeout: float, drift: float, queue: LocalQueue, inside: Inside
    ) -> None:
        self._clock = StoreClock()
        self._guessed_at = -inf  # when the wall clock was last looked at, as long as the store has not told its time
        self._line = cast(Line, backend)
        self._runtime = runtime
        self._request_timeout = request_timeout
        self._drift = drift
        self._queue = queue
        self._inside = inside
        self._start_afresh()
        forks.watch(self)

    def _start_afresh(self) -> None:
        self._inbox = ""
        self._opening: Opening | None = None
        self._spawned: Spawned | None = None
        self._era = getattr(self, "_era", 0) + 1  # of two that run after all, the one of an earlier era ends
        self._hearing: int | None = None  # the era of the one that hears: two at once would disturb each other
        self._wanted_at = -inf  # when a waiter last asked to be listened for
        self._closed = False
        self.cancelled = False  # it was cancelled, and not started since: perhaps the loop is about to end

    def disown(self) -> None:
        """See `forks`: the parent listens to its inbox, not we."""
        self._start_afresh()

    async def listen(self) -> str:
        """The inbox, open and listened to. Raises Unavailable."""
        inbox = self._inbox or await self._opened()
        with self._queue.guard:
            self._wanted_at = self._runtime.now()
            if self._spawned is None and not self._closed:
                self._spawn()
        return inbox

    async def _opened(self) -> str:
        while not (inbox := self._inbox):
            mine = Opening()
            try:
                with self._queue.guard:
                    opening = self._opening
                    if opening is None:
                        opening = self._opening = mine
                    else:
                        opening.waiting.append(bell := self._runtime.latch())
                if opening is mine:
                    return await self._open(mine)
            except BaseException:  # a signal may strike before it has begun, and it would never be opened
                self._no_longer(mine)
                raise
            await bell.wait(self._runtime.now() + self._request_timeout)
            if opening.error is not None:
                raise Unavailable(str(opening.error), backend=opening.error.backend, cause=opening.error.cause)
        return inbox

    async def _open(self, opening: Opening) -> str:
        try:
            self._inbox = await self._line.open_inbox(self._request_timeout)
            return self._inbox
        except Unavailable as error:
            opening.error = Unavailable(str(error), backend=error.backend, cause=error.cause)  # that one knows this frame
            raise
        finally:  # the others find it open, or hear the same, or, if we were cancelled, one of them tries
            self._no_longer(opening)
            for bell in opening.waiting:
                bell.ring()

    def _no_longer(self, opening: Opening) -> None:
        with self._queue.guard:
            if self._opening is opening:
                self._opening = None

    def _spawn(self) -> None:
        self._era += 1
        era, self.cancelled = self._era, False
        try:
            self._spawned = self._runtime.spawn(
                lambda: self._run(era), self._halt, "interlock-listener", lambda: self._ended(era)
            )
        except BaseException as error:  # no thread to be had; or Ctrl-C, and it runs although it looks as if it did not
            self._era += 1
            if ours := shortage(error, self._line.address):  # waiters ask again and again then; a release is plain
                raise ours from error
            raise

    def clock(self) -> StoreClock:
        """The store's clock, as near as we can tell: it orders the line."""
        clock = self._clock
        if not clock.known and self._line.capabilities.hosts and (now := self._runtime.now()) - self._guessed_at > GUESS:
            clock.guess(self._runtime.wall_ahead())
            self._guessed_at = now
        return clock

    def set_clock(self, sent_at: float, at: float) -> None:
        """The store's clock read `at` at some moment between `sent_at` and now. 0: it did not say."""
        if at:
            self.clock().heard(sent_at, at, self._runtime.now())

    def stop_soon(self) -> None:
        """Listen no longer than to what wakes it next. (To close the store does, which spares a thread half a second.)"""
        self._closed = True

    def _halt(self) -> None:
        self._closed = True

    async def close(self) -> None:
        """Stop listening."""
        with self._queue.guard:
            self._closed = True
            spawned = self._spawned  # known until it has ended, as in `Keeper.close`
        if spawned is not None:
            await spawned.end()
            self._spawned = None

    async def _run(self, era: int) -> None:
        try:
            await self._listen(era)
        except BaseException:  # the program cancels every task of the loop
            self._ended(era)
            raise

    def _ended(self, era: int) -> None:
        """The next who waits starts it again. Guarded: the one that starts it may not have noted yet that it did."""
        with self._queue.guard:
            if self._hearing == era:  # a signal's handler has raised there
                self._hearing = None
            if era == self._era:
                self._spawned, self.cancelled = None, True
                self._queue.alarm()

    async def _listen(self, era: int) -> None:
        now = self._runtime.now
        while not self._closed and era == self._era:
            with self._queue.guard:
                mine = self._hearing is None
                if mine:
                    self._hearing = era
            if not mine:  # one of an earlier era, whose start was interrupted: it ends by itself, soon
                await self._runtime.sleep(PAUSE)
                continue
            try:
                try:
                    heard = await self._line.hear(now() + TICK)
                finally:
                    self._hearing = None
                for announced in heard:
                    await self._told(announced)
                if self._may_end(now()):
                    return
            except Unavailable:
                if not self._closed:
                    await self._reopen()
            except UsageError:  # the client was closed; if not, the next waiter starts it again
                with self._queue.guard:
                    if era == self._era:
                        self._spawned = None
                return

    def _may_end(self, now: float) -> bool:
        with self._queue.guard:
            if self._queue.in_line:
                self._wanted_at = now
            if now - self._wanted_at <= LINGER + self._request_timeout:
                return False
            self._spawned = None
            return True

    async def _reopen(self) -> None:
        """The inbox broke: what was announced may be lost. Open it again, and have all waiters ask."""
        self._inbox = ""
        try:
            await self._opened()
        except InterlockError:  # the client was closed, or their own questions will tell them what is the matter
            self._queue.alarm()
            await self._runtime.sleep(REOPEN)
        else:
            self._queue.alarm()

    async def _told(self, announced: Announced) -> None:
        with self._queue.guard:  # in one step: the waiter might put a question meanwhile
            waiter = self._queue.in_line.get(announced.token)  # None: it has left, or has its answer
            if waiter is not None:
                hold = self._believed(waiter, announced)
                if hold is None:  # too old to be believed: the waiter asks
                    self._queue.ask_again(waiter)
                    return
                try:
                    if self._queue.serve(waiter, hold):
                        return
                except BaseException:  # a signal's handler has raised: the waiter looks whether it has it
                    self._queue.ask_again(waiter)
                    raise
            elif self._queue.has(announced.name, announced.token):
                return
        await self._pass_on(announced)

    async def _pass_on(self, announced: Announced) -> None:
        """It is for a waiter that has left. Not stopped by a close, which waits for it."""
        name, token = announced.name, announced.token
        with self._inside.visit(name, announced.ttl):
            try:
                await self._runtime.shield(lambda: drop(self._line, name, token, self._request_timeout))
            except InterlockError as failure:
                left_behind(name, announced.ttl, failure)

    def _believed(self, waiter: Waiter, announced: Announced) -> Hold | None:
        """The hold that an announcement gives, if it can be believed.

        Not if it may tell of a grant before the last answer, which was a refusal: its fence is not higher than that answer's,
        or there was no answer yet.
        """
        if waiter.after is None or announced.fence <= waiter.after:
            return None
        now, policy = self._runtime.now(), waiter.attempt.policy
        ttl = policy.believed(announced.ttl)
        granted_at, whole = min(announced.at, now), deadline(0.0, ttl, self._drift)
        until = granted_at + whole
        if until - now <= whole * (RENEWED if policy.renew else FIXED):
            return None
        hold = Hold(announced.name, announced.token, ttl, announced.fence, until, self._drift, granted_at, policy)
        hold.wanted = waiter.ttl
        return hold
