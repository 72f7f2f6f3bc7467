"""The local queue: the waiters of one client, by name, in the order in which they came.

Only the first waiter of a name asks the store. A release of a name that is waited for here hands it over: one request releases
the one token and claims for the next. So three hundred tasks cost a store no more than one.

Invariants
- One waiter per name is *first*. It asks the store, unless a lease of this client holds the name: then it waits to get that.
- What a waiter may do in which state is said by the table in `waiter`.
- A token is on record here (`in_line`) before anything goes out that may put it into the store's line, so no announcement is
  taken for a stranger's. If the answer to a question arrived first, its later announcement is ignored (`has`).
- No waiter sleeps past the end of the holder's lease, here or elsewhere, and a bell that rings for nothing does no harm. A
  waiter that is told to ask again (`again`) does so, though an older answer says otherwise.
- A signal's handler may raise between any two instructions. The order of the steps lets the waiter, or the caller, put that
  right: it calls the method again, or `leave`, or `withdraw`.

Rules of the file: bookkeeping only, no question is asked here. Every method is short and takes the guard: threads share it.
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to flows: it invites waiting
from collections.abc import Callable

from ...core.claim import Refused
from ...core.lease import Hold
from ...runtime import forks
from .name_queue import NameQueue
from .waiter import ASK, ASKING, ENTER, GIVE, LAST, LEAVE, LEFT, OFFERED, QUEUED, Waiter

RELY = 3.0  # seconds for which a waiter in the store's line relies on what it was told: see `LocalQueue.relied_on`
SWEEP = 1024  # names more than at the last look, before those whose leases are over are forgotten


class LocalQueue:
    """The waiters of one client, and its leases that are waited for."""

    def __init__(self) -> None:
        self.rely = RELY
        self.closed = False
        self.mind: Callable[[Hold], None] | None = None  # see `Keeper.mind`
        self._queues: dict[str, NameQueue] = {}
        self.disown()
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: a child holds nothing of the parent's, and none of its waiters waits there."""
        for queue in self._queues.values():
            for waiter in queue.waiters:  # one may be the thread that forked, in a signal handler: its token is the parent's
                waiter.state, waiter.in_line, waiter.hold = LEAVE[waiter.state], False, None
        self.guard = RLock()
        self._queues = {}
        self._swept = 0
        self.in_line: dict[str, Waiter] = {}  # by token: the waiters to whom the store may announce a grant

    # --- coming, waiting, leaving ---------------------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """Wait behind those who came before."""
        with self.guard:
            queue = self._of(waiter.name, waiter.arrival)
            waiter.state = ENTER[waiter.state]
            if queue.waiters:
                queue.waiters.append(waiter)
                return
            queue.waiters = [waiter]
            queue.watch()

    def enter_and_ask(self, waiter: Waiter) -> bool:
        """`enter` and `turn` of a waiter that finds its name unused here: it asks the store, now. False: nothing was done."""
        with self.guard:
            if self.closed or waiter.name in self._queues:
                return False
            waiter.state = ASK[waiter.state]
            self._of(waiter.name, waiter.arrival).waiters = [waiter]
            return True

    def turn(self, waiter: Waiter, now: float, last: bool) -> float | None:
        """None: the waiter has to ask the store, now. Else when to look again at the latest.

        The `last` question is asked by any waiter, first or not.
        """
        with self.guard:
            if waiter.hold is not None or waiter.state is LEFT:
                return now
            if not last and (look_at := self._queues[waiter.name].look_at(waiter, now)) is not None:
                return look_at
            waiter.asks(last)
            return None

    def is_next(self, waiter: Waiter) -> bool:
        """Whether it is the one that a lease of this client will be handed over to."""
        with self.guard:
            queue = self._queues.get(waiter.name)
            return queue is not None and queue.holder is not None and queue.waiters[:1] == [waiter]

    def line_up(self, waiter: Waiter) -> bool:
        """Its question may put it into the store's line. False: there is no need any more."""
        with self.guard:
            if waiter.state is LEFT or waiter.hold is not None:
                return False
            waiter.in_line = True
            self.in_line[waiter.token] = waiter
            return True

    def asked(self, waiter: Waiter, until: float) -> None:
        """Its question was refused: it asks again at `until`, or at once if it was told to meanwhile."""
        with self.guard:
            waiter.is_refused(until)

    def change_token(self, waiter: Waiter, token: str) -> None:
        """It asks with another token from now on. The old one stands in no line."""
        with self.guard:
            self.in_line.pop(waiter.token, None)
            waiter.token, waiter.in_line = token, False

    def ask_again(self, waiter: Waiter) -> None:
        """What it knows is out of date."""
        with self.guard:
            waiter.again, waiter.until = True, 0.0
            waiter.ring()

    def alarm(self) -> None:
        """Announcements may have been missed: all waiters in line ask again."""
        with self.guard:
            for waiter in list(self.in_line.values()):
                self.ask_again(waiter)

    def leave(self, waiter: Waiter) -> Hold | None:
        """It does not wait any more. The caller must release what it was given in the last moment."""
        with self.guard:
            waiter.state = LEAVE[waiter.state]
            self.in_line.pop(waiter.token, None)
            queue = self._queues.get(waiter.name)
            if queue is not None:
                queue.leave(waiter)
                if not queue.waiters and queue.holder is None:
                    del self._queues[waiter.name]
            return waiter.hold

    def _of(self, name: str, now: float) -> NameQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = NameQueue()
            if len(self._queues) > 2 * self._swept + SWEEP:  # forget names whose leases ended without a release
                self._queues = {key: old for key, old in self._queues.items() if old is queue or not old.idle(now)}
                self._swept = len(self._queues)
        return queue

    # --- getting it -----------------------------------------------------------------------------------------------------

    def got(self, waiter: Waiter, hold: Hold) -> None:
        """It has it: it asked, or finds that it was given it. (Both may be: the hold is then of the same token.)"""
        with self.guard:
            self._give(waiter, hold, 0)

    def _give(self, waiter: Waiter, hold: Hold, streak: int) -> None:
        waiter.hold = hold  # first: if an interruption follows, the waiter finds it, or passes it on when it leaves
        if self.in_line:
            self.in_line.pop(hold.token, None)
            self.in_line.pop(waiter.token, None)
        queue = self._queues.get(waiter.name)
        if queue is None:
            queue = self._queues[waiter.name] = NameQueue()
        queue.remove(waiter)
        queue.streak = streak
        queue.held_by(hold, self.mind)
        waiter.state = GIVE[waiter.state]  # last: a waiter with a hold that is not SERVED does this once more

    def back(self, waiter: Waiter, token: str) -> None:
        """What it was given is over before it could use it: it is first once more, and asks with another token."""
        with self.guard:
            self.in_line.pop(waiter.token, None)
            queue = self._of(waiter.name, waiter.arrival)
            if queue.holder is waiter.hold:  # else `has` would ignore what is announced to its token
                queue.holder = None
            waiter.outlives(token)
            if waiter.state is not LEFT and waiter not in queue.waiters:
                queue.waiters = [waiter, *queue.waiters]

    def holds(self, hold: Hold) -> None:
        """A lease that was had without waiting."""
        with self.guard:
            self._of(hold.name, hold.began).held_by(hold, self.mind)

    def left(self, hold: Hold) -> None:
        """This lease is over: the first waiter here must ask, or is in the store's line."""
        with self.guard:
            queue = self._queues.get(hold.name)
            if queue is not None and queue.holder is hold:
                queue.holder = None
                if queue.waiters:
                    queue.wake_first()
                else:
                    del self._queues[hold.name]

    # --- handing over, announcements ------------------------------------------------------------------------------------

    def heir(self, hold: Hold) -> tuple[Waiter, bool] | None:
        """To whom a release of this lease should hand over, and whether that one goes before all who wait elsewhere."""
        queue = self._queues.get(hold.name)
        if queue is None or not queue.waiters:  # a waiter that comes from now on is rung when it is over (`left`)
            return None
        with self.guard:
            queue = self._queues.get(hold.name)
            return None if queue is None else queue.heir(hold)

    def offer(self, heir: Waiter, token: str) -> bool:
        """A hand-over to it goes out, under this token. False: it has left, or asks for itself by now."""
        with self.guard:
            if heir.state is not QUEUED or heir.hold is not None:
                return False
            heir.is_offered(token)
            self.in_line[token] = heir
            return True

    def withdraw(self, heir: Waiter, token: str) -> bool:
        """Nothing came of the offer, if there was one: the heir asks for itself. False: an announcement gave it the lease
        before the answer came, and it keeps that."""
        with self.guard:
            if heir.hold is not None and heir.hold.token == token:
                heir.offered = ""
                return False
            if heir.offered == token:
                self.in_line.pop(token, None)  # first: once the offer is gone, this is not done again
                heir.loses_offer()
            heir.ring()
            return True

    def handed(self, hold: Hold, heir: Waiter, given: Hold, barged: bool) -> bool:
        """The heir was granted it; `barged`: before all who wait elsewhere. Else none of those came before it: a new streak.

        False: it has left meanwhile, so what was granted must be passed on.
        """
        with self.guard:
            self.in_line.pop(given.token, None)
            queue = self._queues.setdefault(hold.name, NameQueue())
            taken = heir.hold is not None and heir.hold.token == given.token  # it was announced before
            if not taken and heir.state is not LEFT and heir.hold is None:
                self._give(heir, given, queue.streak + 1 if barged else 0)
                heir.ring()
                taken = True
            elif not taken and queue.holder is hold:
                queue.holder = given  # for a moment: it is released at once, with the next one as heir
            heir.offered = ""  # last: until then `withdraw` can still take it back
            return taken

    def stands(self, heir: Waiter, refused: Refused, sent_at: float) -> bool:
        """The heir stands in the store's line instead. False: it does not need that any more, so its token must leave."""
        with self.guard:
            token = heir.offered
            if heir.state is OFFERED and heir.hold is None:
                heir.stands(refused, sent_at + self.relied_on(refused.retry_after or 0.0))
                return True
            served = heir.hold is not None and heir.hold.token == token  # the announcement came before the answer
            if not served:
                self.in_line.pop(token, None)
            heir.offered = ""  # last, as above
            return served

    def relied_on(self, retry_after: float) -> float:
        """For how long a waiter in line may rely on an answer that says when the holder's lease ends at the latest.

        Not for long: the holder may release, and the next one be frozen, or killed before it knows. Then no one tells the rest.
        """
        return min(retry_after, self.rely) + 0.001

    def has(self, name: str, token: str) -> bool:
        """Whether this client holds the name by this token: the answer to a question came before the announcement."""
        with self.guard:
            queue = self._queues.get(name)
            return queue is not None and queue.holder is not None and queue.holder.token == token

    def serve(self, waiter: Waiter, hold: Hold) -> bool:
        """A grant was announced. False: it has left meanwhile."""
        with self.guard:
            if waiter.state is LEFT:
                return False
            if waiter.hold is not None:
                return waiter.hold.token == hold.token  # it had the answer to its own question before
            if waiter.state in (ASKING, LAST):  # a quorum may be giving back just what was announced: the answer counts
                self.ask_again(waiter)
                return True
            self._give(waiter, hold, 0)
            waiter.ring()
            return True

    def close(self) -> None:
        """The client is to be closed: all waiters leave."""
        with self.guard:
            self.closed = True
            for queue in self._queues.values():
                for waiter in queue.waiters:
                    waiter.ring()

    def held(self, now: float) -> list[Hold]:
        """What the store keeps for this client: leases that are held, or lost with an extension that may have got through."""
        with self.guard:
            holders = [queue.holder for queue in self._queues.values() if queue.holder is not None]
        return [hold for hold in holders if not hold.released and not hold.dropped and (hold.unsure or not hold.lost(now))]
