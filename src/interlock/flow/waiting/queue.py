"""The process queue: those of one client who wait for the same name, in the order in which they came.

Only the first of them asks the store. Whoever releases a name that somebody here waits for hands it over: one request releases
the one token and claims for the next. So three hundred tasks cost a store no more than one.

Invariants
- One per name is *first*. It asks the store, unless a lease of this client holds the name: then it waits to be handed over to.
- A waiter either asks for itself (`asking`) or is handed over to (`offered`), never both: it would stand in line twice.
- A token is on record here (`in_line`) before anything goes out that may put it into the store's line, so no announcement is
  taken for a stranger's. One of a token that is held already, by an answer that came first, is nothing to be passed on.
- Who has left (`gone`) is never given anything: what was taken for it is passed on by whoever took it.
- Nobody sleeps past the end of the holder's lease, here or elsewhere, and a bell that rings for nothing does no harm. Whoever
  is told to ask again (`again`) does so, though an older answer says otherwise.

Rules of the file: bookkeeping only, no question is asked here. Every method is short and takes the guard: threads share it.

A little long because everything that may happen to a waiter is told here, and nowhere else.
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to flows: it invites waiting
from collections.abc import Callable
from contextlib import suppress

from ...core.claim import Refused
from ...core.lease import Hold, Policy
from ...errors import Unavailable
from ...runtime import forks
from ...runtime.base import Bell

STREAK = 16  # hand-overs in a row within one process, before one that goes to whoever has waited longest, here or elsewhere
LOOK = 10.0  # seconds for which one that is not first sleeps at most: it may become first without being told
RELY = 3.0  # seconds for which one in the store's line relies on what it was told: see `LocalQueue.relied_on`
SWEEP = 1024  # names more than at the last look, before those whose leases are over are forgotten


class Waiter:
    """Somebody who waits for a name."""

    # Where each begins. In the class, not in each: most waiters find the lock free and never come to any of it.
    bell: Bell | None = None
    hold: Hold | None = None  # what it has got, by whomever
    inside = False  # it stands at its queue
    gone = False
    in_line = False  # it stands in the store's line, or may
    deaf = False  # it cannot be told: there is no inbox
    asking = False  # a question of its own is on its way
    offered = ""  # the token of a hand-over to it that is on its way
    again = False  # it was told to ask again, since it asked last
    refused: Refused | None = None  # the last answer
    after: int | None = None  # the highest fence of the name when it was answered last: what it is granted later is higher
    until = 0.0  # when it asks again, if nobody rings before: the end of the holder's lease

    def __init__(self, name: str, token: str, ttl: float, policy: Policy, note: str, fair: bool, arrival: float) -> None:
        self.name = name
        self.token = token
        self.ttl = ttl
        self.policy = policy
        self.note = note
        self.fair = fair
        self.arrival = arrival

    def ring(self) -> None:
        """Have it look around."""
        if self.bell is not None:
            self.bell.ring()


NOBODY: list[Waiter] = []  # who waits at most queues: not one list each. It is never added to


class NameQueue:
    """One name: who of this client holds it, and who waits for it."""

    __slots__ = ("holder", "streak", "waiters", "watched")

    def __init__(self) -> None:
        self.holder: Hold | None = None
        self.watched: Hold | None = None  # whose watcher we are
        self.waiters = NOBODY
        self.streak = 0

    def remove(self, waiter: Waiter) -> None:
        """It does not stand here any more."""
        if self.waiters == [waiter]:
            self.waiters = NOBODY
        elif waiter in self.waiters:  # or it was interrupted before it came in
            self.waiters.remove(waiter)

    def told(self, what: str) -> None:
        """A watcher of the holder: if it is lost, or ends earlier, or nobody has it any more, the first has to see to it."""
        waiters = self.waiters  # looked up once: other threads leave meanwhile
        if what in ("lost", "nearer", "dropped") and waiters:
            waiters[0].ring()

    def watch(self) -> None:
        """Have the holder tell. Once: waiters come and go while it holds."""
        if self.holder is not None and self.watched is not self.holder:
            self.watched = self.holder
            self.holder.watch(self.told)


class LocalQueue:
    """The queues of one client."""

    def __init__(self) -> None:
        self.rely = RELY
        self.closed = False
        self.mind: Callable[[Hold], None] | None = None  # see `Keeper.mind`
        self._queues: dict[str, NameQueue] = {}
        self.disown()
        forks.watch(self)

    def disown(self) -> None:
        """See `forks`: a child holds nothing of the parent's, and nobody waits there."""
        for queue in self._queues.values():
            for waiter in queue.waiters:  # one may be the thread that forked, from a signal handler: its token is the parent's
                waiter.gone, waiter.in_line, waiter.hold = True, False, None
        self.guard = RLock()
        self._queues = {}
        self._swept = 0
        self.in_line: dict[str, Waiter] = {}  # by token: whom the store may announce a grant to

    # --- coming, waiting, leaving ---------------------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """Wait behind those who came before."""
        with self.guard:
            queue = self._of(waiter.name, waiter.arrival)
            waiter.inside = True
            if queue.waiters:
                queue.waiters.append(waiter)
                return
            queue.waiters = [waiter]
            queue.watch()

    def enter_and_ask(self, waiter: Waiter) -> bool:
        """`enter` and `turn` of one that finds nobody here: it asks the store, now. False: somebody is; nothing was done."""
        with self.guard:
            if self.closed or waiter.name in self._queues:
                return False
            waiter.inside = waiter.asking = True
            self._of(waiter.name, waiter.arrival).waiters = [waiter]
            return True

    def turn(self, waiter: Waiter, now: float, last: bool) -> float | None:
        """None: it is for this one to ask the store, now. Else when to look again at the latest.

        The `last` question is asked whoever's turn it is.
        """
        with self.guard:
            if waiter.hold is not None or not waiter.inside:
                return now
            look_at = None if last else self._look_at(waiter, now)
            waiter.asking = look_at is None
            if waiter.asking:
                waiter.again = False
            return look_at

    def _look_at(self, waiter: Waiter, now: float) -> float | None:
        queue = self._queues[waiter.name]
        while (first := queue.waiters[0]) is not waiter:
            if not first.gone:
                return now + LOOK
            queue.remove(first)  # a signal struck while it left
        holder = queue.holder
        if holder is not None and not holder.released and not holder.lost(now):
            return holder.deadline
        if waiter.offered:  # the answer to that will ring; it takes no longer than a question may
            return now + LOOK
        return None if now >= waiter.until else waiter.until

    def is_next(self, waiter: Waiter) -> bool:
        """Whether it is the one that a lease of this client will be handed over to."""
        with self.guard:
            queue = self._queues.get(waiter.name)
            return queue is not None and queue.holder is not None and queue.waiters[:1] == [waiter]

    def asked(self, waiter: Waiter, until: float) -> None:
        """Its question was answered: it asks again at `until`, or at once if it was told to meanwhile."""
        with self.guard:
            waiter.asking = False
            waiter.until = 0.0 if waiter.again else until

    def line_up(self, waiter: Waiter) -> bool:
        """It may stand in the store's line from now on. False: there is no need any more."""
        with self.guard:
            if waiter.gone or waiter.hold is not None:
                return False
            waiter.in_line = True
            self.in_line[waiter.token] = waiter
            return True

    def leave(self, waiter: Waiter) -> Hold | None:
        """It does not wait any more. What it was given in the last moment must be released by whoever calls this."""
        with self.guard:
            waiter.gone = True
            self.in_line.pop(waiter.token, None)
            self._remove(waiter)
            queue = self._queues.get(waiter.name)
            if queue is not None and not queue.waiters and queue.holder is None:
                del self._queues[waiter.name]
            return waiter.hold

    def _of(self, name: str, now: float) -> NameQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = NameQueue()
            if len(self._queues) > 2 * self._swept + SWEEP:
                self._sweep(queue, now)
        return queue

    def _remove(self, waiter: Waiter) -> None:
        queue = self._queues.get(waiter.name)
        if queue is not None:
            first = queue.waiters[:1] == [waiter]
            queue.remove(waiter)  # before it is said: a signal that strikes between the two must not leave it there for ever
            waiter.inside = False
            if first and queue.waiters:
                queue.waiters[0].ring()

    # --- getting it -----------------------------------------------------------------------------------------------------

    def got(self, waiter: Waiter, hold: Hold) -> None:
        """It has it: it asked, or finds that it was given it. (Both may be: the hold is then of the same token.)"""
        with self.guard:
            waiter.hold = hold  # first: whatever interrupts us, whoever gives up passes it on
            waiter.asking = False
            self._give(waiter, hold, 0)

    def _give(self, waiter: Waiter, hold: Hold, streak: int) -> None:
        # In an order in which an interruption between any two steps is put right by `left`, or by the waiter itself.
        waiter.hold = hold
        if self.in_line:
            self.in_line.pop(hold.token, None)
            self.in_line.pop(waiter.token, None)
        queue = self._queues.get(waiter.name)
        if queue is None:
            queue = self._queues[waiter.name] = NameQueue()
        if waiter.inside:
            queue.remove(waiter)
            waiter.inside = False
        queue.streak = streak
        self._now_holds(queue, hold)

    def _now_holds(self, queue: NameQueue, hold: Hold) -> None:
        queue.holder = hold
        if not queue.waiters:
            return
        queue.watch()
        if hold.policy.renew and self.mind is not None:
            with suppress(RuntimeError, Unavailable):  # no thread to be had, or no descriptor
                self.mind(hold)  # a keeper will say so if it is lost
                return
        queue.waiters[0].ring()  # it has to mind the time itself

    def holds(self, hold: Hold) -> None:
        """A lease that was had without waiting."""
        with self.guard:
            self._now_holds(self._of(hold.name, hold.began), hold)

    def left(self, hold: Hold) -> None:
        """This lease is over: whoever is first here must ask, or is in the store's line."""
        with self.guard:
            queue = self._queues.get(hold.name)
            if queue is not None and queue.holder is hold:
                queue.holder = None
                if not queue.waiters:
                    del self._queues[hold.name]
                    return
                first = queue.waiters[0]
                if not first.in_line:
                    first.until = 0.0
                first.ring()

    # --- handing over ---------------------------------------------------------------------------------------------------

    def heir(self, hold: Hold) -> tuple[Waiter, bool] | None:
        """To whom a release of this lease should hand over, and whether that one goes before all who wait elsewhere."""
        queue = self._queues.get(hold.name)
        if queue is None or not queue.waiters:  # whoever comes from now on is rung when it is over (`left`)
            return None
        with self.guard:
            queue = self._queues.get(hold.name)
            if queue is None or queue.holder is not hold or not queue.waiters:
                return None
            first = queue.waiters[0]
            if first.in_line or first.asking:  # the store itself will serve it, in its turn; or answer it
                return None
            return first, not first.fair and queue.streak < STREAK

    def offer(self, heir: Waiter, token: str) -> bool:
        """A hand-over to it goes out, under this token. False: it has left, or asks for itself by now."""
        with self.guard:
            if heir.gone or heir.hold is not None or heir.in_line or heir.asking or heir.offered:
                return False
            heir.offered = token
            self.in_line[token] = heir
            return True

    def withdraw(self, heir: Waiter, token: str) -> bool:
        """Nothing came of that, if it was offered at all; it asks for itself. False: it was announced that it has it, before
        the answer came, so it must be left that."""
        with self.guard:
            if heir.hold is not None and heir.hold.token == token:
                heir.offered = ""
                return False
            if heir.offered == token:
                heir.offered = ""
                self.in_line.pop(token, None)
            heir.ring()
            return True

    def handed(self, hold: Hold, heir: Waiter, given: Hold, barged: bool) -> bool:
        """The heir was granted it; `barged`: before all who wait elsewhere. Else none of those came before it: a new streak.

        False: it has left meanwhile, so what was granted must be passed on.
        """
        with self.guard:
            self.in_line.pop(given.token, None)
            heir.offered = ""
            queue = self._queues.setdefault(hold.name, NameQueue())
            if heir.hold is not None and heir.hold.token == given.token:  # it was announced before
                return True
            if heir.gone or heir.hold is not None:
                if queue.holder is hold:
                    queue.holder = given  # for a moment: it is released at once, with the next one as heir
                return False
            self._give(heir, given, queue.streak + 1 if barged else 0)
            heir.ring()
            return True

    def stands(self, heir: Waiter, refused: Refused, sent_at: float) -> bool:
        """The heir stands in the store's line instead. False: it does not need that any more, so its token must leave."""
        with self.guard:
            token, heir.offered = heir.offered, ""
            if heir.hold is not None and heir.hold.token == token:  # the announcement came before the answer
                return True
            if heir.gone or heir.hold is not None or heir.asking:
                self.in_line.pop(token, None)
                return False
            heir.token, heir.in_line = token, True
            heir.refused, heir.after = refused, refused.fence
            heir.until = 0.0 if heir.again else sent_at + self.relied_on(refused.retry_after or 0.0)
            return True

    def back(self, waiter: Waiter, token: str) -> None:
        """What it was given is over before it came to it: it is first once more, and asks with another token."""
        with self.guard:
            self.in_line.pop(waiter.token, None)
            queue = self._of(waiter.name, waiter.arrival)
            if queue.holder is waiter.hold:  # or what is announced to its token would be taken for held
                queue.holder = None
            waiter.hold, waiter.token, waiter.in_line, waiter.until = None, token, False, 0.0
            waiter.asking = waiter.again = False
            if not waiter.inside and not waiter.gone:
                waiter.inside = True
                queue.waiters = [waiter, *queue.waiters]

    def renew(self, waiter: Waiter, token: str) -> None:
        """Its token is spent and stands in no line: it asks with another."""
        with self.guard:
            self.in_line.pop(waiter.token, None)
            waiter.token, waiter.in_line = token, False

    def relied_on(self, retry_after: float) -> float:
        """For how long somebody in line may rely on an answer that says when the holder's lease ends at the latest.

        Not for long: the holder may release, and the next one be frozen, or killed before it knows. Then nobody tells the rest.
        """
        return min(retry_after, self.rely) + 0.001

    # --- announcements --------------------------------------------------------------------------------------------------

    def announced(self, token: str) -> Waiter | None:
        """Whom an announcement is for; None if that one has left."""
        with self.guard:
            return self.in_line.get(token)

    def has(self, name: str, token: str) -> bool:
        """Whether somebody here holds the name by this token: the answer to a question came before the announcement."""
        with self.guard:
            queue = self._queues.get(name)
            return queue is not None and queue.holder is not None and queue.holder.token == token

    def serve(self, waiter: Waiter, hold: Hold) -> bool:
        """A grant was announced. False: it has left meanwhile."""
        with self.guard:
            if waiter.gone:
                return False
            if waiter.hold is not None:
                return waiter.hold.token == hold.token  # it had the answer to its own question before
            if waiter.asking:  # a quorum may be giving back just what was announced: the answer to that counts, or to the next
                self.ask_again(waiter)
                return True
            self._give(waiter, hold, 0)
            waiter.ring()
            return True

    def ask_again(self, waiter: Waiter) -> None:
        """What it knows is out of date."""
        with self.guard:
            waiter.again, waiter.until = True, 0.0
            waiter.ring()

    def alarm(self) -> None:
        """Announcements may have been missed: everybody in line asks again."""
        with self.guard:
            for waiter in list(self.in_line.values()):
                self.ask_again(waiter)

    # --- the end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client is to be closed: everybody leaves."""
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

    def _sweep(self, fresh: NameQueue, now: float) -> None:
        """Forget names whose leases ended without a release."""
        for name, queue in list(self._queues.items()):
            holder = queue.holder
            if queue is not fresh and not queue.waiters and (holder is None or holder.over or holder.lost(now)):
                del self._queues[name]
        self._swept = len(self._queues)
