"""Which nodes of a quorum may vote, and how one that lost its memory is let back in.

A node that lost its memory, or came back with an older state of it, may have forgotten leases that are still valid, and
fences. It is in *quarantine*: it casts no vote until what it may have forgotten is over, counted on this client's own clock,
and its fences have been seeded from a quorum of the others (docs/adr/0008).

How long to wait: a lease that counts on the node stands on a quorum, so on one node of any quorum of the others too. These are
asked how long a lease may last that they hold (`NodeStatus.held`), once it is known that the node does not vote: what is
granted after that does not count on it.

Interleavings and where each is handled
- a new cluster, and the first clients of it: see `opening`
- a node forgets, is let in by another client and forgets again: our wait was for the first loss, and begins anew (`_admission`)
- clients do not live for as long as a node has to wait: every node notes how far the wait has come, and the next client goes on
  from there (`core.waits`, `_informed`)
- most or all nodes were restarted, or lost everything while this client looks on: what they and this client still know of is
  waited for, then they begin again above the highest fence that is known
- a node of another list, or of one that is being changed: see `markers`
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf

from ...core import fence as fences
from ...core.lease import outlast
from ...core.quorum import SILENT, Marker, Quarantine, reopened, reseed
from ...core.waits import vouched_age, vouched_end
from ...errors import Unavailable, UsageError
from ...runtime.base import Runtime
from ..port import NodeStatus
from .markers import Markers, Statuses, log
from .opening import Opening
from .poller import Node, Poller
from .tickets import Tickets

READMIT_PAUSE = 0.2
MEASURE_PAUSE = 10.0  # between two looks at how long a node has to wait
VET_PAUSE = 1.0

# What a caller that asks for a lock shall hear, and no other caller. A program may have warnings raised.
NOT_ASKED_FOR = (UsageError, Unavailable, RuntimeWarning)


class Readmission:
    """Lets nodes vote that have their memory, or have waited for long enough."""

    def __init__(self, poller: Poller, markers: Markers, runtime: Runtime, tickets: Tickets) -> None:
        self._poller, self._markers, self._runtime = poller, markers, runtime
        self._nodes, self._needed = poller.nodes, poller.needed
        self._tickets = tickets
        self._opening = Opening(poller, markers, runtime)
        self._vet_again = 0.0
        self._readmit_again = 0.0

    def settled(self) -> bool:
        """Whether there is nothing to prepare: every node is known, and none in quarantine. So it is nearly always."""
        if not self._markers.opened:
            return False
        for node in self._nodes:  # noqa: SIM110 - four times as fast as any()
            if node.quarantine is not None or not node.vetted:
                return False
        return True

    async def prepare(self, within: float) -> None:
        """Before a vote: know which nodes are there, and let those back in that have waited long enough. Raises NoQuorum."""
        markers, now = self._markers, self._runtime.now()
        if not markers.opened:
            await self._opening.begin(within)
            if len(self._poller.able()) < self._needed:  # no lock is to be had, so this client may not live to ask for another
                await self.readmit(max(markers.left(now + within), within / 2))
            return
        unknown = [index for index, node in enumerate(self._nodes) if not node.vetted and node.health.retry_at <= now]
        if unknown and now >= self._vet_again:  # they were late, or away, when the client looked first
            self._vet_again = now + VET_PAUSE
            statuses, poll = await markers.look(unknown, min(within, SILENT), len(unknown))
            markers.vet(statuses, poll)
            for index, status in statuses.items():
                if not status.good:
                    markers.quarantine(index, status.loss)
        await self.readmit(within)

    async def tend(self, within: float) -> None:
        """After a release: what `prepare` would do before the next vote, which this client may not live to ask for.

        Raises nothing: it is not what was asked for. Takes no longer than a node that is well: a look has a quarter of it.
        """
        if self._markers.opened and not self.settled():
            with suppress(*NOT_ASKED_FOR):
                await self.prepare(min(within, 4 * max(SILENT, 2 * self._poller.took)))

    async def forgetful(self, nodes: Sequence[int], within: float) -> dict[int, str]:
        """Which of these nodes lost their memory, and what an operator should know about it. Changes nothing."""
        statuses, _ = await self._markers.look(nodes, within, len(nodes), notes=False)
        if all(status.roll is None for status in statuses.values()):
            return {}  # a cluster that no client has used yet
        wait = outlast(max(status.held for status in statuses.values()), self._markers.drift)
        return {
            index: node.sentence(self._runtime.now())
            if (node := self._nodes[index]).quarantine is not None
            else f"lost its memory, or was restarted; votes again once a client has waited {wait:.1f} s"
            for index, status in statuses.items()
            if not status.good
        }

    # --- letting them in ------------------------------------------------------------------------------------------------

    async def readmit(self, within: float) -> None:
        """Let those nodes vote again that have waited long enough; find out of the others how long they have to."""
        left, until = self._markers.left, self._runtime.now() + within
        if self._runtime.now() >= self._readmit_again:
            # Which loss it is, how long to wait for that, and a marker: at once, if there is nothing to wait for.
            while await self._admission(left(until)) and left(until) > within / 2:
                pass

    async def _admission(self, within: float) -> bool:
        """The next step for each node in quarantine. Whether there is another one to be taken now."""
        markers, now = self._markers, self._runtime.now()
        # When too few can vote, most may have lost their memory: only the word of nearly all nodes will do then.
        few = len(self._poller.able()) < self._needed
        # As they are before anything is asked: an answer counts for what was known then, and other threads are at it too.
        due = {index: node.quarantine for index, node in enumerate(self._nodes) if self._due(node, now, few)}
        if not due:
            return False
        self._readmit_again = now + READMIT_PAUSE  # not with every claim, if it cannot be done now
        asked = range(len(self._nodes)) if few else sorted({*self._poller.ready(), *due})
        statuses, poll = await markers.look(asked, within / 4, len(asked))  # the rest is for what was asked for
        # One that is a replica by now is kept out. It does not stop the others.
        statuses = {index: status for index, status in statuses.items() if not status.replica}
        markers.vet(statuses, poll)
        self._tickets.high = max(
            [self._tickets.high, *(status.roll.high for status in statuses.values() if status.roll is not None)]
        )
        more = news = False
        for index, quarantine in due.items():
            node, status = self._nodes[index], statuses.get(index)
            if status is None or quarantine is None or node.quarantine is not quarantine:
                continue
            if markers.good(status):  # another client was faster
                self._votes_again(node)
            elif status.good and markers.shut(status, True) and not markers.missed(status, statuses):
                continue  # the change of the list has to open it
            elif not status.loss:  # it could not be marked (a full server): this loss could not be told from the next
                continue
            elif status.loss != quarantine.loss:  # which loss it was, is known from now on; or it forgot once more
                node.quarantine, more = Quarantine(self._runtime.now(), loss=status.loss), True
            elif quarantine.until > now:
                others = [other for number, other in statuses.items() if number != index]
                known, node.measured_at = self._informed(quarantine, others, status), now
                measured = self._measure(known, now, others, status)
                if measured is not None and measured.until < known.until:
                    if self._sooner(measured.until, known.until):
                        news = True
                        self._tell_how_long(node.member.address, measured.until - self._runtime.now())
                    known = measured
                node.quarantine, more = known, more or known.until <= self._runtime.now()
            else:
                await self._readmit_one(index, status, statuses, within)
        if news:
            await markers.look(asked, within / 4, len(asked))  # which the nodes note
        return more

    @staticmethod
    def _due(node: Node, now: float, few: bool) -> bool:
        """Whether there is something to be done for it. A long wait is measured again: what it was for may be released. `few`:
        no lock is to be had without it, so look each time, since another client may have let it in."""
        quarantine = node.quarantine
        if quarantine is None or node.health.retry_at > now:
            return False
        return few or quarantine.until <= now or quarantine.until == inf or now >= node.measured_at + MEASURE_PAUSE

    def _informed(self, quarantine: Quarantine, others: list[NodeStatus], own: NodeStatus) -> Quarantine:
        """What other clients have had the nodes note of this wait, if that is more than we know. Counted from now: the answers
        are here."""
        noted = [{wait.loss: wait for wait in status.waits}.get(quarantine.loss) for status in (*others, own)]
        waits = [wait for wait in noted if wait is not None]
        now, rate, since, until = self._runtime.now(), self._markers.drift, quarantine.since, quarantine.until
        if (age := vouched_age(waits, self._needed)) is not None:
            since = min(since, now - age * (1 - rate))
        if (end := vouched_end(waits, self._needed)) is not None:
            until = min(until, now + (outlast(end, rate) if end else 0.0))
            if sum(map(self._markers.good, others)) < self._needed and (
                own_leases := self._tickets.held_for()
            ):  # unknown to who measured
                until = max(until, now + outlast(own_leases, rate))
        return quarantine._replace(since=since, until=until)

    def _sooner(self, end: float, other: float) -> bool:
        """Whether others would believe that this is sooner, if it were noted. Each client adds what clocks may differ."""
        now, rate = self._runtime.now(), self._markers.drift
        return now + outlast(outlast(max(end - now, 0.0), rate), rate) < other

    def _measure(self, quarantine: Quarantine, asked_at: float, others: list[NodeStatus], own: NodeStatus) -> Quarantine | None:
        """How long it has to wait. None: that cannot be told yet.

        The others must have been asked after it was known that this one does not vote, and so long after that, that whatever
        counts on its vote has come to them too (`Markers.allow`). When most forgot, what was known before that is more.
        """
        markers = self._markers
        good = [status for status in others if markers.good(status)]
        most_forgot = len(good) < self._needed
        if most_forgot:
            if quarantine.until < inf or not markers.nearly_all(len(others) + 1):
                return None
            good = [*others, own]  # what any node still knows must do
        window = max([markers.window, *(status.roll.window for status in good if status.roll is not None)])
        if asked_at < quarantine.since + outlast(window, markers.drift):
            return None
        held = max([status.held for status in good])
        if most_forgot:
            held = max(held, self._tickets.held_for())
        return quarantine._replace(until=self._runtime.now() + outlast(held, markers.drift))

    async def _readmit_one(self, index: int, status: NodeStatus, statuses: Statuses, within: float) -> None:
        """Its wait is over: give it a marker, with the highest fence of a quorum of the others."""
        markers = self._markers
        if not markers.is_ours(index, status.roll):
            return
        known = [other.roll for other in statuses.values() if other.roll is not None]
        good = [other.roll for other in statuses.values() if other.roll is not None and markers.good(other)]
        marker = reseed(good, markers.list)
        if marker is None and markers.nearly_all(len(statuses)):
            # Most lost everything, and what this one forgot is over: the highest fence we know of is the best there is.
            marker = reopened(known, markers.list, self._tickets.high + fences.floor(fences.EPOCH_MS + 1), self._tickets.high)
        if marker is not None:
            await self._mark(self._nodes[index], marker, status.loss, within)

    async def _mark(self, node: Node, marker: Marker, loss: str, within: float) -> None:
        try:
            if not await node.member.enroll(marker, loss, within):
                return  # another client was faster, or it forgot once more: the next look tells
        except Unavailable:
            return
        self._votes_again(node)

    def _votes_again(self, node: Node) -> None:
        node.quarantine = None
        log.info("%s votes again", node.member.address, extra={"event": "readmitted", "node": node.member.address})

    @staticmethod
    def _tell_how_long(address: str, seconds: float) -> None:
        what = "%s casts no vote for another %.1f s at least: what it may have forgotten lasts until then"
        log.info(what, address, seconds, extra={"event": "waits", "node": address, "seconds": seconds})
