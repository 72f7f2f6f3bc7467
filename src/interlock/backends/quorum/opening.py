"""The first question of a client to a quorum: which nodes are there, and is the cluster new, or did nodes lose their memory?

Interleavings and where each is handled
- all nodes are new: no node has a marker, so there is nothing to forget, and all get one at once (`_born`)
- the client that gave them their markers was interrupted: some have one, still unused. As above: all get one
- two clients are the first at once: each sees a part of the other's markers, and looks again before it puts a node into
  quarantine
- another client gives the unused markers another list at the same time: nearly all nodes must have been heard, and have our
  list. Two lists cannot both have that
- a thousand tasks are the first at once: one of them opens, the others wait for it (`begin`)
"""

from __future__ import annotations

from copy import copy
from math import inf

from ...core.quorum import Marker, missing_at_birth
from ...errors import NoQuorum
from ...runtime.base import Runtime
from .markers import Markers
from .poller import LOOK_AGAIN, Collect, Poller

LOOKS = 4  # at markers that are there only in part, before those that are missing are taken for lost
BETWEEN_LOOKS = 0.05


class Opening:
    """Opens the quorum for this client, once."""

    def __init__(self, poller: Poller, markers: Markers, runtime: Runtime) -> None:
        self._poller, self._markers, self._runtime = poller, markers, runtime
        self._under_way_until = -inf  # one task or thread opens until then
        self._failed: tuple[float, float, NoQuorum] | None = None  # when that failed last, within what time, and why

    async def begin(self, within: float) -> None:
        """Open, once for all that ask at the same time: a thousand tasks need not look at every node each."""
        now, markers = self._runtime.now, self._markers
        began = now()
        until = began + within
        while (
            not markers.opened and now() < min(self._under_way_until, until) + LOOK_AGAIN
        ):  # it may be said late that it failed
            await self._runtime.sleep(BETWEEN_LOOKS / 10)
        if markers.opened:
            return
        failed = self._failed
        if failed is not None and failed[0] >= began and failed[1] >= within:  # meanwhile, with as much time as we have
            raise copy(failed[2])
        until = max(until, now() + within / 2)
        self._under_way_until = until  # not for ever: a fork may kill the thread that opens
        try:
            await self._open(until)
        except NoQuorum as error:
            self._failed = now(), within, copy(error)
            raise
        finally:
            self._under_way_until = -inf

    async def _open(self, until: float) -> None:
        """Look at the nodes until it is known which of them have their memory."""
        markers, size = self._markers, len(self._poller.nodes)
        statuses, poll = await markers.look(range(size), markers.left(until), self._poller.needed)
        if len(statuses) < self._poller.needed:
            raise self._poller.no_quorum("no quorum to begin with", poll)
        for look in range(LOOKS + 1):
            markers.vet(statuses, poll)
            missing = [index for index, status in statuses.items() if not markers.good(status)]
            used = any(status.roll is not None and not status.roll.unused for status in statuses.values())
            if not used and not missing and markers.nearly_all(len(statuses)):
                break
            if used and (not missing or look >= LOOKS - 1):
                for index in missing:
                    markers.quarantine(index, statuses[index].loss)
                break
            if look == LOOKS:
                raise self._poller.no_quorum("no quorum to begin with (other clients are the first as well)", poll)
            if used or not await self._born(until):
                await self._runtime.sleep(BETWEEN_LOOKS * (0.5 + self._runtime.jitter()))  # another client may be at it
            least = self._poller.needed if used else size - missing_at_birth(size)
            again, poll = await markers.look(range(size), markers.left(until), size, least=least)
            statuses |= again
        markers.opened = True

    async def _born(self, until: float) -> bool:
        """Whether the cluster was new and has its markers now. Raises NoQuorum if too few nodes are there to tell."""
        markers, size = self._markers, len(self._poller.nodes)
        least = size - missing_at_birth(size)
        statuses, poll = await markers.look(range(size), markers.left(until), size, least=least)
        markers.vet(statuses, poll)
        if any(status.roll is not None and not status.roll.unused for status in statuses.values()):
            return False
        if len(statuses) < least:
            what = "no quorum to begin with (this cluster is new, and no node that forgot must be taken for a new one)"
            raise self._poller.no_quorum(what, poll, least)
        taken = {index for index, status in statuses.items() if markers.good(status)}
        asked, first, within = sorted(statuses.keys() - taken), Marker(markers.list, window=markers.wanted), markers.left(until)

        def count(index: int, answer: object) -> bool:
            if answer is True:  # else it has another marker by now: the next look tells
                taken.add(index)
            return False  # once in the life of a cluster: worth waiting for all of them

        mark = Collect(
            lambda index, member: member.enroll(first, statuses[index].loss, within), count, markers.patience(taken, least)
        )
        await self._poller.poll(asked, mark)
        return True
