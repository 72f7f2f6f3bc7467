"""What the nodes of a quorum say of themselves: their markers, the list of nodes, and for how long answers count.

A *marker* is a note that a node keeps and that every vote needs. It is good for one life of the node's memory and for one list
of nodes. A node without a good marker may have forgotten leases and fences: it is put into quarantine (`readmission`).

Interleavings and where each is handled
- nodes with markers for another list: refused (`core.membership`)
- the list of nodes is being changed: so many nodes are closed that there is no quorum, and that is said (`_compare_lists`)
- a node forgets a vote of ours while another node has not got our request yet: whoever measures what the others hold waits
  for a *window* first. A quorum has noted that window before our first request that may take so long (`allow`), and an answer
  that comes later than the window does not count (`in_time`)
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence, Sized
from math import ceil, inf, log2

from ...core.lease import DRIFT_RATE, outlast
from ...core.membership import OtherList, common_list, superseded
from ...core.quorum import Marker, Quarantine, missing_at_birth
from ...core.shown import listed, shown
from ...core.waits import Wait
from ...errors import UsageError
from ...runtime.base import Runtime
from ..port import NodeStatus
from .poller import SOON, Collect, Poll, Poller

log = logging.getLogger("interlock")

BIRTH = 0.25  # how long a new cluster waits for its last nodes, when it could do without

Statuses = dict[int, NodeStatus]


class Markers:
    """The markers of the nodes as last seen, and what follows from them."""

    def __init__(self, poller: Poller, runtime: Runtime, is_live: Callable[[str], bool]) -> None:
        self.poller, self.runtime, self._is_live = poller, runtime, is_live
        self.nodes, self.needed = poller.nodes, poller.needed
        self.list: tuple[str, ...] = ()  # of nodes, as the markers have it
        self.drift = DRIFT_RATE  # by what share clocks may run apart, as the client was told
        self.opened = False  # the list is settled: this client knows whom it votes with
        self.window = 0.0  # seconds after a question in which its answers count, if clocks are right: a quorum has noted that
        self.wanted = 0.0  # the window that the nodes shall note
        self._good: Sequence[Marker] = ()  # some that are good for our list, as last seen
        self._identities: dict[str, str] = {}  # server → the address that it is known by here
        self._elect(sorted(node.member.address for node in self.nodes))

    def _elect(self, nodes: Sequence[str]) -> None:
        self.list = tuple(nodes)
        for node in self.nodes:
            node.member.elect(self.list, self._is_live)

    def left(self, until: float) -> float:
        """Seconds until then, at least a moment."""
        return max(until - self.runtime.now(), SOON)

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def look(
        self, nodes: Sequence[int], within: float, most: int, least: int | None = None, notes: bool = True
    ) -> tuple[Statuses, Poll]:
        """What these nodes say of themselves, once `most` have; or `least`, after a while (`patience`).

        `notes`: they note the window and the waits that we know of.
        """
        statuses: Statuses = {}
        wanted, waits = self.wanted, self.waits() if notes else ()

        def count(index: int, answer: object) -> bool:
            if isinstance(answer, NodeStatus):
                statuses[index] = answer
            return len(statuses) >= most

        enough = None if least is None else self.patience(statuses, least)
        ask = Collect(lambda _, member: member.roll(within, notes, wanted, waits), count, enough)
        poll = await self.poller.poll(nodes, ask)
        noted = [s for s in statuses.values() if s.good and s.roll is not None and s.roll.window + 0.001 > wanted]
        if len(noted) >= self.needed and wanted > self.window:
            self.window = wanted
        return statuses, poll

    def patience(self, heard: Sized, least: int) -> Callable[[], bool]:
        """True once `least` have been heard and BIRTH seconds have passed."""
        until = self.runtime.now() + BIRTH
        return lambda: len(heard) >= least and self.runtime.now() >= until

    def waits(self) -> tuple[Wait, ...]:
        """What this client knows of the waits of nodes in quarantine, for the nodes to note.

        Clocks may run apart, so less time is told than has passed.
        """
        now, rate, waits = self.runtime.now(), self.drift, []
        for node in self.nodes:
            if node.quarantine is not None and node.quarantine.loss:
                since, until, loss = node.quarantine
                left = None if until == inf else outlast(max(until - now, 0.0), rate)
                waits.append(Wait(loss, max(now - since, 0.0) * (1 - rate), left))
        return tuple(waits)

    # --- the window -----------------------------------------------------------------------------------------------------

    def want(self, within: float) -> None:
        """Our requests will take so long at most: see `allow`. A drift above the usual one takes more of the window."""
        within = max(within, within * (1 - DRIFT_RATE) / (1 - self.drift))
        if within > self.wanted:
            self.wanted = 2.0 ** ceil(log2(within))  # so that it is seldom to be done again

    async def allow(self, within: float, until: float) -> None:
        """Have a quorum note that our requests may take so long, before the first one that may. Raises NoQuorum."""
        if within > self.window:
            size = len(self.nodes)
            poll = (await self.look(range(size), self.left(until), size, least=self.needed))[1]
            if within > self.window:
                raise self.poller.no_quorum("no quorum to begin with", poll)

    def in_time(self, sent_at: float, window: float) -> bool:
        """Whether an answer that is here now still counts. `window` is what was noted when the question was sent.

        Our clock may be slow, and a client that waits for the window does not know that.
        """
        return self.runtime.now() - sent_at <= window * (1 - self.drift)

    # --- what a marker says ---------------------------------------------------------------------------------------------

    def good(self, status: NodeStatus) -> bool:
        """Whether the node has a marker that is good for our list."""
        marker = status.roll
        return status.good and marker is not None and not marker.closed and marker.nodes == self.list

    def nearly_all(self, heard: int) -> bool:
        """Silence is no loss: as for a new cluster, so many must answer that the silent ones cannot matter."""
        return heard >= len(self.nodes) - missing_at_birth(len(self.nodes))

    def shut(self, status: NodeStatus, others_vote: bool) -> bool:
        """Whether the node is closed, and must stay so until the change of the list opens it.

        One that was restarted since is like any that was restarted, unless it may wait for a new list that is not open yet.
        """
        marker = status.roll
        if marker is None or not marker.closed or superseded(marker, self._good):
            return False
        return status.good or not (marker.to or others_vote)

    def missed(self, status: NodeStatus, statuses: Statuses) -> bool:
        """Whether a node was closed for our list, and not reached when that was opened: a quorum votes under it."""
        return status.roll is not None and not status.roll.to and sum(map(self.good, statuses.values())) >= self.needed

    def is_ours(self, index: int, marker: Marker | None) -> bool:
        """Whether the node is one of us, for certain: see `common_list`.

        An unused marker says nothing, nor does one of a list that was changed into ours.
        """
        if marker is not None and marker.nodes and not marker.unused and not superseded(marker, self._good):
            return marker.nodes == self.list
        node = self.nodes[index]
        return node.member.address in self.list or node.ours

    def quarantine(self, index: int, loss: str = "") -> None:
        """A node without a good marker: it may have lost its memory, or is new among the others. Either way it must wait."""
        node = self.nodes[index]
        if node.quarantine is None:
            node.quarantine = Quarantine(self.runtime.now(), loss=loss)
            log.warning(
                "%s came back without its memory, or with an older state of it: it casts no vote until what it may have "
                "forgotten is over, and its fences are seeded from the others",
                node.member.address,
                extra={"event": "quarantined", "node": node.member.address},
            )

    # --- who is there ---------------------------------------------------------------------------------------------------

    def vet(self, statuses: Statuses, poll: Poll) -> None:
        """See what each node is: refuse one that must not vote, warn once of one that is not fit for locks.

        Raises UsageError, or NoQuorum while the list of nodes is being changed.
        """
        for index, status in statuses.items():
            node = self.nodes[index]
            if status.replica:
                raise UsageError(f"{node.member.address} is a replica; nothing was locked. Give its primary, or another node")
            other = self._identities.get(status.identity, node.member.address)
            if other != node.member.address:
                raise UsageError(
                    f"{other} and {node.member.address} are the same server, so its vote would count twice; nothing was "
                    "locked. Give independent nodes"
                )
            if status.identity:
                self._identities[status.identity] = node.member.address
            if not node.vetted:
                for trouble in status.trouble:
                    warnings.warn(f"interlock: {node.member.address} {shown(trouble)}", RuntimeWarning, stacklevel=2)
                node.vetted = True
        self._compare_lists(statuses, poll)
        for index, status in statuses.items():
            node = self.nodes[index]
            node.ours = node.ours or self.good(status)

    def _compare_lists(self, statuses: Statuses, poll: Poll) -> None:
        """See that the nodes vote in our quorum and in no other; take over what the first answers call it."""
        own = [node.member.address for node in self.nodes]
        known = self.list if self.opened else ()
        try:
            seen = {own[index]: status.roll for index, status in statuses.items()}
            chosen = common_list(own, seen, known, {node.member.address for node in self.nodes if node.ours})
        except OtherList as other:
            raise UsageError(
                f"the nodes do not belong together: {other.why}. Given were {', '.join(sorted(own))}; the nodes themselves say "
                f"{listed(other.nodes)}. Nothing was locked, since clients with different lists could both get a lock. Give "
                "every client the same list; `interlock quorum change` changes it"
            ) from None
        if chosen != self.list and not self.opened:
            self._elect(chosen)
        good = [status.roll for status in statuses.values() if status.roll is not None and self.good(status)]
        self._good = good or self._good
        if sum(self.shut(status, bool(good)) for status in statuses.values()) > len(self.nodes) - self.needed:
            raise self.poller.no_quorum(
                "the list of nodes is being changed (`interlock quorum change`): try again when it is done", poll
            )
