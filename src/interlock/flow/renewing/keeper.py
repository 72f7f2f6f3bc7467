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
- while a renewal is on its way, and when its answer is lost: see `requests`
- a renewal, or an extension of the holder's (`tidy`), is granted after the lease was lost: it is given back (`returns`)
- fork: the child's copy forgets everything (`disown`); its leases are lost there
"""

from __future__ import annotations

from _thread import RLock  # threading itself is forbidden to flows: it invites waiting
from contextlib import suppress
from math import inf

from ...core import renewal
from ...core.lease import Hold
from ...core.renewal import Keeping
from ...errors import Unavailable
from ...runtime import forks
from ...runtime.base import Bell, Spawned, shortage
from ..context import Context
from ..hold import run_out
from ..notes import log
from .requests import Requests
from .returns import Returns
from .schedule import Schedule
from .stats import Stats

LINGER = 5.0  # seconds for which a keeper with nothing to keep stays
HICCUP = 0.1  # pause after a defect of our own, which must not stop renewal


class Keeper:
    """Renews the leases of one client."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = RLock()  # around starting and ending; never held while waiting
        self._closed = False
        self._era = 0  # a keeper of an earlier one ends: its start was interrupted, and no one else knows of it
        self._stats = Stats()
        self._teller = self._note_loss  # one object for all leases
        context.queue.mind = self.mind
        self._start_afresh()
        forks.watch(self)

    def _start_afresh(self) -> None:
        self._schedule = Schedule()
        self._returns = Returns(self._context)
        self._requests = Requests(self._context, self._schedule, self._returns, self._stats)
        self._wakes_at = -inf  # when the keeper will wake; -inf while it is awake, and looks at newcomers before it sleeps
        self._bell: Bell | None = None
        self._spawned: Spawned | None = None

    def disown(self) -> None:
        """See `forks`: the parent's thread does not exist in the child, and its leases are the parent's."""
        bell, self._guard = self._bell, RLock()
        self._start_afresh()
        if bell is not None:
            bell.close()

    # --- called by holders ----------------------------------------------------------------------------------------------

    def keep(self, hold: Hold) -> None:
        """Renew it from now on, if its policy says so, and tell its watchers when it is lost. Asks no store.

        Called again when its ttl has changed.
        """
        hold.kept = hold.policy.renew and not self._closed
        self.mind(hold)

    def mind(self, hold: Hold) -> None:
        """Tell its watchers when it is lost, whether or not it is ever kept. Asks no store.

        Those who wait behind a lease rely on that from the grant on: an exception of a signal handler may strike before its
        holder has it, and it would not be kept.
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
        self._returns.add(hold)
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
        self._returns.add(hold)
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
            await self._context.runtime.shield(self._returns.give_up) if self._returns else None

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
                if forsaken := self._returns.forsaken():
                    await self._context.runtime.shield(lambda: self._returns.give_back(forsaken, self._requests.undisturbed))
                raise
        except BaseException:  # the program cancels every task of the loop
            self._ended(era)
            raise

    def _ended(self, era: int) -> None:
        """The next lease starts it again. Guarded: the one that starts it may not have noted yet that it did."""
        with self._guard:
            if era != self._era:
                return
            self._spawned = None
        for hold in self._schedule.everybody():
            hold.stopped = "cancelled"
        self._tell_in_time(era)

    def _tell_in_time(self, era: int) -> None:
        """Without a task, because that was cancelled: nothing is renewed, but a holder that loses its lease is told."""
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
                now = runtime.now()
                look_at = min(self._schedule.next_look(), self._returns.next_at())
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
            if self._schedule.incoming or self._returns:  # the one that put it there may have seen that the keeper is there
                self._spawned = mine
                return False
            return True

    async def _sleep(self, until: float) -> None:
        bell = self._bell
        if bell is None:  # forked
            return
        self._wakes_at = until
        try:
            if not self._schedule.incoming:  # no lease came before it was known when we wake
                await bell.wait(until)
        finally:
            self._wakes_at = -inf

    def _look(self, renewing: bool) -> list[Hold]:
        """Tell holders of doubt and loss. Returns the leases that are due for renewal."""
        now = self._context.runtime.now()
        seen = self._schedule.look(now, self._context.drift, renewing)
        with self._context.queue.guard:  # see `run_out`
            for hold in seen.lost:  # all of them first: a callback is a thread to start, and many take their time
                if not hold.released and not hold.leaving:
                    if hold.kept and (self._requests.unanswered or not renewing):  # it waited behind a silent request
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
            self._returns.add(hold)
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
            await self._requests.race(some, self._alarms())

    async def _alarms(self) -> None:
        """Run beside requests."""
        while True:
            self._look(renewing=False)
            await self._sleep(self._schedule.next_look())

    async def _tidy(self, now: float) -> None:
        """Give back lost leases whose renewal may have got through, or the store would keep them for another ttl.

        Until there is something else to do: the store may be silent still, and the alarms of others do not wait for that.
        """

        def ended(index: int, outcome: object) -> bool:
            if isinstance(outcome, BaseException):
                raise outcome
            return True

        giving_back = self._returns.give_back(self._returns.ripe(now), self._requests.undisturbed)
        await self._context.runtime.race([giving_back, self._sleep(self._schedule.next_look())], ended)
