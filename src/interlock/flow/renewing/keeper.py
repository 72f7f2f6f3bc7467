"""The keeper: renews every lease of a client, and tells their holders in time when it cannot.

One per client, whatever the number of leases: a thread or a task that runs `_run`, started with the first lease, ended with the
client, or by itself when there has been nothing to keep for a while. When to do what is decided in `core.renewal`.

Invariants
- No request is sent, and no answer believed, after the moment at which the holder is told; what is lost stays lost.
- A lease has at most one renewal on its way. Alarms (doubt, loss) are given on time while requests are on their way.

Interleavings and where each is handled
- a lease is granted while the keeper falls asleep: `keep` puts it down first and rings if it is due before the keeper would
  wake; the keeper looks once more after it has said when it will wake
- a lease is granted while the keeper decides to end: both under `_guard`
- released, lost or dropped while its renewal is on its way: the answer is not believed (`_judge`)
- a renewal, or an extension of the holder's (`tidy`), is granted after the lease was lost: it is given back (`_tidy`), not
  before the deadline, since a body that is about to stop may still be at work
- the answer is lost: the deadline stands, another try follows within the window
- fork: the child's copy forgets everything (`disown`); its leases are lost there

A little long because its interleavings are many, and half of it would be hard to follow.
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to flows: it invites waiting
from collections.abc import Sequence
from contextlib import suppress
from math import inf

from ...core import renewal
from ...core.claim import Gone, Granted, Renewal
from ...core.lease import Flight, Hold
from ...core.renewal import Keeping, Step
from ...errors import Unavailable, UsageError
from ...runtime import forks
from ...runtime.base import Bell, Spawned, shortage
from ..context import Context
from ..hold import abandon, run_out
from ..notes import left_behind, log
from .schedule import Schedule
from .stats import Stats

LINGER = 5.0  # seconds for which a keeper with nothing to keep stays
TIDY = 50  # lost leases that are given back in one go; the rest expires by itself
HICCUP = 0.1  # pause after a defect of our own, which must not stop renewal


class Keeper:
    """Renews the leases of one client."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = RLock()  # around starting and ending; never held while waiting
        self._closed = False
        self._era = 0  # a keeper of an earlier one ends: its start was interrupted, and nobody knows of it
        self._stats = Stats()
        self._unanswered = False  # the last request was not
        self._teller = self._note_loss  # one object for all leases
        context.queue.mind = self.mind
        self._start_afresh()
        forks.watch(self)

    def _start_afresh(self) -> None:
        self._schedule = Schedule()
        self._untidy: list[Hold] = []  # lost, and perhaps still stored
        self._wakes_at = -inf  # when the keeper will wake; -inf while it is awake, and looks at newcomers before it sleeps
        self._bell: Bell | None = None
        self._spawned: Spawned | None = None

    def disown(self) -> None:
        """See `forks`: the parent's thread does not exist in the child, and its leases are the parent's."""
        bell, self._guard = self._bell, RLock()
        self._start_afresh()
        if bell is not None:
            bell.close()

    # --- called by whoever holds ----------------------------------------------------------------------------------------

    def keep(self, hold: Hold) -> None:
        """Renew it from now on, if its policy says so, and tell its watchers when it is lost. Asks no store.

        Called again when its ttl has changed.
        """
        hold.kept = hold.policy.renew and not self._closed
        self.mind(hold)

    def mind(self, hold: Hold) -> None:
        """Tell its watchers when it is lost, whether or not it is ever kept. Asks no store.

        Those who wait behind a lease rely on that from the grant on: an exception of a signal handler may strike before its
        holder has it, and nobody would keep it.
        """
        hold.teller = self._teller
        crowded = self._schedule.add(hold)
        if self._spawned is None:
            self._start()
        elif crowded or (renewal.earliest(hold) < self._wakes_at and renewal.first_look(hold) < self._wakes_at):
            self._ring()

    def tidy(self, hold: Hold) -> None:
        """Its loss was told while an extension of its holder's was on its way, and that may have got through: give it back, at
        its deadline. Asks no store."""
        self._untidy.append(hold)
        with suppress(RuntimeError, Unavailable):  # no thread to be had, or no descriptor
            if self._spawned is None:
                self._start()
        self._ring()

    def forsake(self, hold: Hold) -> None:
        """Its block is over, and a signal's handler has kept it from being given back: do that, soon. Asks no store.

        Called wherever the collector runs.
        """
        hold.dropped = hold.forsaken = True
        hold.kept = False
        self._untidy.append(hold)
        with suppress(Exception):  # no loop runs any more, or the interpreter ends: it is not renewed, and ends with its ttl
            self._context.runtime.check_loop()
            if self._spawned is None:
                self._start()
            self._ring()

    def keeping(self) -> Keeping:
        """How it is doing."""
        kept = sum(1 for hold in self._schedule.everybody() if hold.kept and not hold.over)
        return self._stats.keeping(kept)

    async def close(self) -> None:
        """End. What it kept is not renewed any more and expires. What it lost and the store may still have is given back, or
        named if its deadline is still to come."""
        with self._guard:
            self._closed = True
            spawned = self._spawned  # known until it has ended: a signal may strike first, and the next close has to end it
        try:
            if spawned is not None:
                await spawned.end()
                self._spawned = None
        finally:
            for hold in self._schedule.everybody():
                hold.kept = False
            await self._context.runtime.shield(self._give_up_all) if self._untidy else None

    async def _give_up_all(self) -> None:
        until = self._context.runtime.now() + self._context.request_timeout
        while self._untidy:
            hold, now = self._untidy.pop(), self._context.runtime.now()
            if _tidy_at(hold) <= now < until:
                await self._rid(hold, until - now)
            elif hold.unsure or hold.forsaken:
                left_behind(hold.name, hold.ttl, UsageError("the client was closed"))

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _halt(self) -> None:
        self._closed = True
        self._ring()

    def _start(self) -> None:
        with self._guard:
            if self._spawned is None and not self._closed:
                self._era += 1
                era = self._era
                try:
                    self._bell = self._bell or self._context.runtime.bell()
                    run, over = lambda: self._run(era), lambda: self._ended(era)
                    self._spawned = self._context.runtime.spawn(run, self._halt, "interlock-keeper", over)
                except BaseException as error:  # no thread to be had; or Ctrl-C, and it runs although it looks as if it did not
                    self._era += 1
                    self._ring()
                    if ours := shortage(error, self._context.backend.address):
                        raise ours from error
                    raise

    # --- the keeper itself ----------------------------------------------------------------------------------------------

    async def _run(self, era: int) -> None:
        try:
            try:
                await self._go_on(era)
            except BaseException:
                if forsaken := [hold for hold in self._untidy if hold.forsaken]:  # nobody else will give them back
                    await self._context.runtime.shield(lambda: self._give_back(forsaken))
                raise
        except BaseException:  # somebody cancels every task of the loop
            self._ended(era)
            raise

    def _ended(self, era: int) -> None:
        """The next lease starts it again. Guarded: whoever starts it may not have noted yet that it did."""
        with self._guard:
            if era != self._era:
                return
            self._spawned = None
        for hold in self._schedule.everybody():
            hold.stopped = "cancelled"
        self._tell_in_time(era)

    def _tell_in_time(self, era: int) -> None:
        """Without a task, which somebody cancelled: nothing is renewed, but whoever loses a lease is told."""
        if self._closed or era != self._era:  # or another keeper has them by now
            return
        runtime = self._context.runtime
        now, moments = runtime.now(), []
        for hold in self._schedule.everybody():
            if hold.released or hold.told or hold.dropped:
                continue
            if hold.gone or now >= hold.tell_at:
                run_out(self._context, hold, now)
            else:
                moments.append(hold.tell_at)
        if moments:
            runtime.later(min(moments) - now, lambda: self._tell_in_time(era))

    async def _go_on(self, era: int) -> None:
        runtime = self._context.runtime
        idle_since = runtime.now()
        while not self._closed and era == self._era:
            try:
                due = self._look(renewing=True)
                if due:
                    await self._renew(due)
                    continue  # there may be more by now
                now, look_at = runtime.now(), self._next_look()
                if look_at <= now:
                    await self._tidy(now)
                    continue
                nap = self._schedule.soonest  # some came since the last look: the next will not have to ring to be seen in time
                if look_at != inf or nap != inf:
                    idle_since = now
                elif now - idle_since >= LINGER and self._may_end():
                    return
                until = idle_since + LINGER if look_at == inf else look_at
                await self._sleep(nap if now < nap < until else until)
            except Exception:  # noqa: BLE001 - a defect of ours; if renewal ended here, every lease would be lost
                log("exception", "the keeper of %s failed and goes on", self._context.backend.address)
                await runtime.sleep(HICCUP)

    def _may_end(self) -> bool:
        with self._guard:
            mine, self._spawned = self._spawned, None
            if self._schedule.incoming or self._untidy:  # whoever put it there may have seen that the keeper is there
                self._spawned = mine
                return False
            return True

    def _next_look(self) -> float:
        return min([self._schedule.next_look(), *map(_tidy_at, self._untidy)])

    async def _sleep(self, until: float) -> None:
        bell = self._bell
        if bell is None:  # forked
            return
        self._wakes_at = until
        try:
            if not self._schedule.incoming:  # nobody came before it was known when we wake
                await bell.wait(until)
        finally:
            self._wakes_at = -inf

    def _look(self, renewing: bool) -> list[Hold]:
        """Tell whom there is to tell; those that are due for renewal."""
        now = self._context.runtime.now()
        seen = self._schedule.look(now, self._context.drift, renewing)
        with self._context.queue.guard:  # see `run_out`
            for hold in seen.lost:  # all of them first: a callback is a thread to start, and many take their time
                if not hold.released and not hold.leaving:
                    if hold.kept and (self._unanswered or not renewing):  # it waited behind a request that was not answered
                        hold.failures = hold.failures or 1
                    hold.gone = hold.gone or hold.ending(now)
        for hold in seen.lost:
            run_out(self._context, hold, now)
        for hold in seen.doubtful:
            hold.notify("doubtful")
        for hold in seen.due:
            self._stats.looked_at(hold, now)
        return seen.due

    def _note_loss(self, hold: Hold) -> None:
        """Whoever found it out."""
        if hold.unsure:
            self._untidy.append(hold)
            self._ring()  # it may be asleep for longer
        self._stats.lost(hold, self._context.runtime.now())

    # --- asking the store -----------------------------------------------------------------------------------------------

    async def _renew(self, due: list[Hold]) -> None:
        """Renew them, some requests at a time, while alarms go on."""
        for hold in due:  # for its alarms; a place for its next renewal follows with the answer
            self._schedule.put(hold, hold.tell_at if hold.doubted else min(hold.doubtful_at, hold.tell_at))
        requests = renewal.batches(due)
        while requests and not self._closed:
            some, requests = requests[: renewal.AT_ONCE], requests[renewal.AT_ONCE :]
            await self._race(some)

    def _undisturbed(self) -> float:
        """Until when nobody has to be told anything, so until when a thread may be stuck in what cannot be interrupted."""
        if not self._context.backend.capabilities.hosts:  # a store on this machine answers at once or is stuck
            return self._schedule.next_look()
        if self._context.runtime.colour == "asyncio":
            return inf
        # To connect anew (to a node that is silent, or hung up) blocks a thread.
        return min((hold.tell_at for hold in self._schedule.everybody() if not hold.over), default=inf)

    async def _race(self, batches: list[list[Hold]]) -> None:
        running, until = len(batches), self._undisturbed()

        def ended(index: int, outcome: object) -> bool:
            nonlocal running
            running -= 1
            if isinstance(outcome, BaseException):
                raise outcome
            return running == 0

        await self._context.runtime.race([*(self._ask(batch, until) for batch in batches), self._alarms()], ended)

    async def _alarms(self) -> None:
        """Run beside requests."""
        while True:
            self._look(renewing=False)
            await self._sleep(self._schedule.next_look())

    async def _ask(self, holds: list[Hold], until: float) -> None:
        context, now = self._context, self._context.runtime.now()
        holds = [hold for hold in holds if renewal.plan(hold, now, context.drift)[0] is Step.RENEW]
        if not holds:
            return
        within = min(renewal.bound(hold, now, context.request_timeout) for hold in holds)
        within = max(min(within, until - now), 0.001)
        asked = [Renewal(h.name, h.token, stored(h, renewal.ttl(h, now)), h.fence) for h in holds]
        flights = [Flight(hold.name, believed(hold, lease.ttl)) for hold, lease in zip(holds, asked, strict=True)]
        answers: Sequence[Granted | Gone | None] = [None] * len(holds)
        self._stats.requests += 1
        try:
            for hold, flight in zip(holds, flights, strict=True):
                hold.extending(flight)
            with suppress(Unavailable):
                answers = await context.backend.renew(asked, within)
        except UsageError as error:  # closed meanwhile, or the store says that the question is wrong
            if not self._closed:
                log("error", "renewal at %s is refused: %s", context.backend.address, error)
        finally:  # cancelled as well: then no answer is known
            self._unanswered = all(answer is None for answer in answers)
            try:
                for place in zip(holds, asked, flights, answers, strict=True):
                    self._judge(*place, now)
            except BaseException:  # a signal's handler has raised: nothing must be taken for on its way for ever
                for hold, flight in zip(holds, flights, strict=True):
                    hold.landed(flight)
                raise

    def _judge(self, hold: Hold, asked: Renewal, flight: Flight, answer: Granted | Gone | None, sent_at: float) -> None:
        """What an answer, or its absence, means to a lease; and when to look at it again."""
        ttl, now = believed(hold, asked.ttl), self._context.runtime.now()
        if answer is None:
            self._stats.failures += 1
            hold.failures += 1
            hold.retry_at = now + renewal.retry_after(hold, self._context.runtime.jitter())
            hold.unconfirmed(sent_at, ttl, now)
        elif hold.released or hold.leaving:
            pass  # somebody gave it back meanwhile
        elif isinstance(answer, Gone):
            hold.vanished(now, answer.taken, answer.left)
        elif hold.lost(now):
            hold.unsure = True
        else:
            self._stats.confirmed((hold.deadline - now) / hold.ttl)
            hold.renewed(sent_at, believed(hold, answer.ttl), flight)
        hold.landed(flight)
        if not hold.over:
            self._schedule.put(hold, renewal.first_look(hold, self._context.runtime.jitter()))
        elif hold.gone and not hold.told:
            hold.tell()
        elif hold.gone and hold.unsure:
            self._untidy.append(hold)

    async def _tidy(self, now: float) -> None:
        """Give back lost leases whose renewal may have got through, or the store would keep them for another ttl.

        Until there is something else to do: the store may be silent still, and the alarms of others do not wait for that.
        """

        def ended(index: int, outcome: object) -> bool:
            if isinstance(outcome, BaseException):
                raise outcome
            return True

        ripe = [hold for hold in self._untidy if _tidy_at(hold) <= now][:TIDY]
        await self._context.runtime.race([self._give_back(ripe), self._sleep(self._schedule.next_look())], ended)

    async def _give_back(self, ripe: list[Hold]) -> None:
        for hold in ripe:
            with suppress(ValueError):
                self._untidy.remove(hold)  # not a new list: other threads may be adding to this one
            left = self._undisturbed() - self._context.runtime.now()
            within = max(min(self._context.request_timeout, left), 0.001)
            try:
                await self._rid(hold, within)
            except BaseException:  # there was something else to do, or the client is closed: it is still to be given back
                hold.unsure = True
                self._untidy.append(hold)
                raise

    async def _rid(self, hold: Hold, within: float) -> None:
        await abandon(self._context, hold, within)
        if hold.forsaken:
            hold.notify("dropped")
            self._context.queue.left(hold)


def _tidy_at(hold: Hold) -> float:
    """When a lease may be given back that is lost, or that nobody has any more."""
    return -inf if hold.forsaken else hold.deadline


def stored(hold: Hold, ttl: float) -> float:
    """For how long the store keeps a lease that its holder believes in for `ttl`. The same object if there is no delay: leases
    are many, and a number of its own for each is a page for every hundred."""
    return ttl + hold.policy.delay if hold.policy.delay else ttl


def believed(hold: Hold, ttl: float) -> float:
    """The other way round."""
    return ttl - hold.policy.delay if hold.policy.delay else ttl
