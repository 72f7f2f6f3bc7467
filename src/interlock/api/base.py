"""What the faces of both colours share: everything that needs no answer from a store."""

from __future__ import annotations

import warnings
from typing import Any
from weakref import ref

from ..core.checks import Callback
from ..core.lease import DOUBTFUL, HELD, Hold
from ..flow.context import Context
from ..flow.hold import check
from ..flow.renewing.keeper import Keeper
from ..runtime import forks
from .options import Options


class Holder(ref["BaseLease"]):
    """Dropped without a release: a renewed lease is left to expire. Nothing is released here, and nothing is asked.

    Not a `__del__` of the lease: that would run for every lease, and Python drops what a signal's handler raises there.
    """

    __slots__ = ("_born", "_hold")
    _hold: Hold
    _born: int

    def __new__(cls, lease: BaseLease) -> Holder:
        self = super().__new__(cls, lease, _gone)
        self._hold, self._born = lease._mine, lease._born
        return self

    def drop(self) -> bool:
        """The lease is gone. Whether to warn of it."""
        hold = self._hold
        hold.holder = None
        if hold.released or hold.leaving or hold.gone or hold.dropped or not hold.kept or self._born != forks.generation:
            return False
        hold.dropped = True
        return True


def _gone(holder: Any) -> None:
    if holder.drop():
        hold: Hold = holder._hold
        warnings.warn(
            f"interlock: the lease on {hold.name!r} was dropped without release(); it is not renewed any more and ends by "
            f"itself within {hold.policy.stored(hold.ttl):g} s. Use a `with` block, or keep the lease",
            ResourceWarning,
            stacklevel=2,
        )


class BaseLease:
    """What you hold: a name, until a deadline, under a fence. All state lives here.

    It belongs to the code that has the object, so it may be handed to another thread or task on purpose.
    """

    __slots__ = ("__weakref__", "_born", "_context", "_keeper", "_leashes", "_mine")

    def __init__(self, context: Context, keeper: Keeper, hold: Hold, options: Options) -> None:
        self._context = context
        self._keeper = keeper
        self._mine = hold
        self._born = forks.generation
        self._leashes: Any = None  # what stops the bodies of blocks, in asyncio
        if hold.policy.renew:
            hold.holder = Holder(self)
        if options.on_lost is not None or options.on_doubtful is not None:
            self._call_back(options.on_lost, options.on_doubtful)
        elif not hold.policy.renew:
            return  # nothing in the background
        keeper.keep(hold)

    def _call_back(self, on_lost: Callback | None, on_doubtful: Callback | None) -> None:
        me, runtime = ref(self), self._context.runtime  # weakly: a lease that was dropped is not renewed

        def watcher(what: str) -> None:
            callback = on_lost if what == "lost" else on_doubtful if what == "doubtful" else None
            if callback is not None and (lease := me()) is not None:
                runtime.call(lambda: callback(lease), f"on_{what} of '{lease.name}'")

        self._mine.watch(watcher)

    def _moved(self) -> None:
        """The deadline is another: the keeper and the leashes must look again."""
        hold = self._hold
        if hold.teller is not None:  # the keeper has it, to renew or to tell
            if not hold.over:
                self._keeper.keep(hold)
            elif hold.told and hold.unsure:
                self._keeper.tidy(hold)
        if self._leashes is not None:
            self._leashes.rearm()

    @property
    def _hold(self) -> Hold:
        """The hold; in a forked child a lost one, since the lease is the parent's and must not be touched from there."""
        if self._born != forks.generation:
            self._mine.gone, self._mine.unsure = "forked", False
        return self._mine

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._hold.name

    @property
    def fence(self) -> int:
        """The fencing token: grows strictly with every grant of this name. Let the resource refuse smaller ones."""
        return self._hold.fence

    @property
    def token(self) -> str:
        """The holder's random identity, which is the lock's value in the store. A secret: do not log it or hand it on."""
        return self._hold.token

    @property
    def ttl(self) -> float:
        """For how long the store last granted it, in seconds."""
        return self._hold.ttl

    @property
    def lost(self) -> bool:
        """Whether you held it and may not hold it any more. True from the deadline on, whatever ran in between."""
        return self._hold.lost(self._context.runtime.now())

    @property
    def state(self) -> str:
        """One word: "held", "doubtful" (it should have been renewed and was not; still yours), "lost" or "released"."""
        return self._hold.state(self._context.runtime.now())

    @property
    def reason(self) -> str:
        """Why it was lost, "" while it is not.

        "expired" (its time was over), "taken" (another has it), "forced" (removed from the store before its time),
        "unreachable" (the store did not answer), "paused" (this process did not run), "forked" (it is the parent's).
        """
        return self._hold.gone if self.lost else ""

    def progress(self) -> None:
        """Say that the work gets on. With `progress=` renewal ends when this was not called for so long. Raises as `check`."""
        now = self._context.runtime.now()
        check(self._hold, now)
        self._hold.progressed = now

    @property
    def waited(self) -> float:
        """How many seconds it took to get the lock, from the call to the grant. 0 for `try_acquire`, which does not wait."""
        return self._hold.waited

    def remaining(self) -> float:
        """For how many seconds the lease may still be believed; 0 when lost or released. Asks no store."""
        return self._hold.remaining(self._context.runtime.now())

    def check(self) -> None:
        """Raise LeaseLost if the lease is over, UsageError if it was released. Asks no store.

        It cannot close the gap between this check and your write: only the fence, checked by the resource, can.
        """
        check(self._hold, self._context.runtime.now())

    def __repr__(self) -> str:
        left = f", {self.remaining():.3f} s left" if self.state in (HELD, DOUBTFUL) else ""
        return f"<{type(self).__name__} {self.name!r} fence={self.fence} {self.state}{left}>"
