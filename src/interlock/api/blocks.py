"""What belongs to one `with` statement alone: the lease of its block.

A signal's handler may raise at the first instruction of `__exit__`, before anything of ours has run, and a Lock may live as
long as the program. So a Lock must not be what keeps the lease of a block. A `with` statement keeps one thing until it is over,
however it ends: the `__exit__` that it has looked up, which it does before it calls `__enter__`. So each look-up makes a new
one (`leaving`), with a `Block` that has the lease. When the Block is gone and the lease was not given back, the keeper does
that.

Invariants
- A Block is known to the object that was looked up, and to `__enter__` until that has the lease. No other frame of ours has
  one: a traceback keeps the variables of its frames, and a notebook keeps the last traceback.
- A caller of `__enter__` and `__exit__` by hand looks `__exit__` up too late for that: see `Entered`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import ref

from ..core.lease import Hold
from ..errors import UsageError
from ..flow.renewing.keeper import Keeper
from ..runtime import forks
from .base import BaseLease

L = TypeVar("L", bound=BaseLease)
P = ParamSpec("P")
R = TypeVar("R")


class Block:
    """One block, from the look-up of its `__exit__` until that is thrown away."""

    __slots__ = ("__weakref__", "lease", "leash", "whose")

    def __init__(self, whose: object) -> None:
        self.whose = whose  # a lock or a lease; None if `__exit__` was looked up in the class
        self.lease: Any = None  # once it is entered
        self.leash: Any = None  # what stops the body, in asyncio

    def begins(self, lease: BaseLease) -> None:
        """It is entered: from now on it has the lease."""
        lease._mine.fuse = Fuse(self, lease)
        self.lease = lease

    def ties(self, leash: object) -> None:
        """This stops its body, and is taken off when it is over."""
        self.leash = leash
        if (fuse := self.lease._mine.fuse) is not None:
            fuse.leash = leash


class Fuse(ref[Any]):
    """When the Block is gone and the fuse is not, the lease was not given back.

    It belongs to the hold, so that it is there though the collector takes the lease and its Block together.
    Not a `__del__` of the Block: it would run at the end of every block, and Python drops what a signal's handler raises there.
    """

    __slots__ = ("_born", "_hold", "_keeper", "leash")
    _hold: Hold
    _keeper: Keeper
    _born: int
    leash: Any  # what stops the body, in asyncio

    def __new__(cls, block: object, lease: BaseLease) -> Fuse:
        self = super().__new__(cls, block, _over)
        self._hold, self._keeper, self._born = lease._mine, lease._keeper, lease._born
        self.leash = None
        return self

    def burn(self) -> None:
        """The block is over."""
        hold = self._hold
        hold.fuse = None
        if self._born == forks.generation and not hold.released and not hold.gone:
            hold.dropped = True  # first: whatever strikes now, it is not renewed
            self._keeper.forsake(hold)
        if self.leash is not None:
            self.leash.slip(None)


def _over(fuse: Any) -> None:
    fuse.burn()


class _Latest(threading.local):
    """The Block that was made last in this thread: that of the `with` statement which is about to call `__enter__`."""

    block: ref[Block] | None = None


_latest = _Latest()


def entering(whose: object) -> Block | None:
    """The Block of the statement that enters this lock or lease; None if `__exit__` was not looked up."""
    reference, _latest.block = _latest.block, None
    block = None if reference is None else reference()
    return block if block is not None and block.whose in (whose, None) else None


class leaving(Generic[P, R]):  # noqa: N801 - a decorator
    """Makes an `__exit__` that is a new object each time it is looked up, with a Block of its own.

    What it decorates is for those who have called `__enter__` by hand.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__

    def __get__(self, whose: object, owner: type) -> Callable[P, R]:
        block = Block(whose)
        _latest.block = ref(block)
        # In C up to the first instruction of `_leave`, which does not have the Block.
        found: Any = partial(_leave, ref(block), self.__wrapped__)
        if whose is not None:
            found = partial(found, whose)
        found.block = block
        result: Callable[P, R] = found
        return result


def _leave(
    reference: ref[Block],
    by_hand: Callable[..., Any],
    whose: object,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> Any:
    """The end of a block. In asyncio, what has to be awaited for it."""
    lease = reference().lease  # type: ignore[union-attr] # our caller has it
    if lease is None:
        return by_hand(whose, kind, error, trace)
    try:
        left = lease._leave(error)
        if left is not None:  # to be awaited, for which the statement keeps nothing but this: the end of it is the block's
            fuse = Fuse(left, lease)
            fuse.leash = reference().leash  # type: ignore[union-attr] # as above
            lease._mine.fuse = fuse
        reference().lease = None  # type: ignore[union-attr] # what was looked up may be kept, and used again
        return left
    except BaseException:
        if (fuse := lease._mine.fuse) is not None:  # whatever keeps this frame, and so the block, alive
            fuse.burn()
        raise


class Entered(Generic[L]):
    """The leases of those who call `__enter__` and `__exit__` of one Lock by hand, by thread or task.

    A Lock is shared, so they must not be mixed up. The end may also come elsewhere than the beginning: a generator fixture is
    often finished by another task. Then there is normally only one it can be.
    """

    def __init__(self) -> None:
        self._leases: list[tuple[int, L]] = []

    def push(self, who: int, lease: L) -> None:
        """A block begins."""
        self._leases.append((who, lease))

    def pop(self, who: int) -> L:
        """A block ends: its lease. Raises UsageError if it cannot be told which."""
        every = list(self._leases)  # other threads come and go meanwhile
        mine = [entry for entry in every if entry[0] == who]
        if mine or len(every) == 1:
            mine = mine or every
            # Of several in one thread (generators that take turns) all but one are lost; the valid one may be at work.
            entry = next((entry for entry in mine if entry[1].lost), mine[-1])
            self._leases.remove(entry)
            return entry[1]
        raise UsageError(
            "a `with` block on a lock ended in another thread or task than it began in, while others are inside; nothing was "
            "released. Use `lease = lock.acquire()` and `with lease:` there"
        )
