"""The port over a store: which requests have no answer, and the words for a gate that stayed shut.

Invariants
- A request is unanswered until its caller has the answer in hand (`backends.unanswered`). A cancellation or a signal leaves it
  so, however far the store got; `undo` then releases by token, on the same path. There is one path, which does not break:
  calls run in the order of their handing over. So whatever is answered later settles it.
- `Shut` and UsageError are answers in that sense: nothing was asked of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from ...core.claim import Announced, Claim, Entry, Gone, Granted, Handed, Refused, Renewal, Unmarked
from ...core.quorum import Marker
from ...core.waits import Wait
from ...errors import Unavailable, UsageError
from ...runtime import forks
from ...runtime.at_exit import rest_at_exit
from ...runtime.base import by_a_handler, now
from ..in_line import InLine
from ..port import Capabilities, NodeStatus
from ..unanswered import Unanswered
from . import faults
from .file_lock import Budget, Shut
from .inbox import Inbox
from .session import CLOSED
from .store import Store
from .transport import Transport

T = TypeVar("T")


class Path:
    """The one way to the file, as the ledger's connection."""

    dead = False


class SqliteBackend:
    """Locks in an SQLite file, between the processes of one machine."""

    capabilities = Capabilities(processes=True, hosts=False, survives=True, foreign=False, lines=True)

    def __init__(self, store: Store, transport: Transport, inbox: Inbox) -> None:
        self.address = store.address
        self._store = store
        self._transport = transport
        self._inbox = inbox
        self._path = Path()
        self._ledger: Unanswered[Path] = Unanswered()
        self._places: InLine[bool] = InLine()  # tokens that were told that they stand in line
        self._closed = False
        self._settled = False
        forks.guard(self)
        forks.watch(self)
        rest_at_exit(self)

    def disown(self) -> None:
        """See `forks`. What the parent asked is the parent's to undo."""
        self._ledger = Unanswered(self._ledger.is_live)

    def suspend(self, within: float) -> bool:
        """See `forks`. The file is closed; the next verb opens it again, in the parent and in the child."""
        budget = Budget(within)
        if not self._transport.pause(within):
            return False
        self._store.rest(max(budget.left(), 0.0))
        return True

    def resume(self) -> None:
        """See `forks`."""
        self._transport.go_on()

    def rest(self, within: float) -> None:
        """See `ending`. What a thread is amid is left open: SQLite's module for Python does not survive a close there.

        The gate is not waited for: whoever is inside may be stopped.
        """
        self._transport.retire(partial(self._store.rest, 0.0), within)

    # These hand out `_ask`'s coroutine instead of awaiting it: one coroutine less, a microsecond saved per verb.

    def claim(self, claim: Claim, within: float) -> Coroutine[Any, Any, Granted | Refused]:
        """See `port.Backend.claim`."""
        asked = self._ask((claim.token,), within, self._store.claim, (claim,))
        return asked if claim.place is None and claim.token not in self._places else self._in_line(claim, asked)

    async def _in_line(self, claim: Claim, asked: Coroutine[Any, Any, T]) -> T:
        answer = await asked
        self._stands(claim, answer)
        return answer

    def _stands(self, claim: Claim, answer: object) -> None:
        if isinstance(answer, Granted):
            self._places.left(claim.token)
        elif claim.place is not None and not isinstance(answer, Unmarked):
            self._places.stands(claim.token, True)

    def extend(self, name: str, token: str, ttl: float, within: float, fence: int = 0) -> Coroutine[Any, Any, Granted | Gone]:
        """See `port.Backend.extend`."""
        # No token: nothing has to follow an extension without an answer. Nor a renewal.
        return self._ask((), within, self._store.extend, (Renewal(name, token, ttl, fence),))

    def renew(self, leases: Sequence[Renewal], within: float) -> Coroutine[Any, Any, list[Granted | Gone]]:
        """See `port.Backend.renew`."""
        return self._ask((), within, self._store.renew, (leases,))

    def release(self, name: str, token: str, within: float, proposal: int = 0) -> Coroutine[Any, Any, bool]:
        """See `port.Member.release`."""
        self._places.left(token)
        verb = partial(self._store.release, proposal=proposal) if proposal else self._store.release
        return self._ask((token,), within, verb, (name, token))

    async def undo(self, name: str, token: str, within: float) -> bool:
        """See `port.Backend.undo`. A token that waits is made to leave, though its claim was answered.

        Runs to its end even if the caller is cancelled meanwhile.
        """
        earlier = self._ledger.earlier((token,))
        if not earlier and token not in self._places:
            return False
        self._places.left(token)
        if self._closed:
            raise UsageError(CLOSED)
        try:
            await self._transport.run(self._store.release, (name, token), within, True)
        except Shut as shut:
            raise self._unavailable(within, shut, "a claim that got through stays until it expires") from None
        self._ledger.answered(earlier, self._path)
        return True

    def vote(self, claim: Claim, proposal: int, within: float) -> Coroutine[Any, Any, Granted | Refused | Unmarked]:
        """See `port.Member.vote`."""
        asked = self._ask((claim.token,), within, self._store.vote, (claim, proposal))
        return asked if claim.place is None and claim.token not in self._places else self._in_line(claim, asked)

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Sequence[Wait] = ()) -> NodeStatus:
        """See `port.Member.roll`. Waits are not noted here."""
        roll, held, loss = await self._ask((), within, self._store.roll, (mark, window))
        return NodeStatus(roll, roll is not None, held, loss, identity=self._store.identity)

    def enroll(self, roll: Marker, loss: str, within: float) -> Coroutine[Any, Any, bool]:
        """See `port.Member.enroll`."""
        return self._ask((), within, self._store.enroll, (roll, loss))

    def elect(self, nodes: Sequence[str], is_live: Callable[[str], bool]) -> None:
        """See `port.Member.elect`. Nothing is undone here unless it is asked for."""
        self._store.nodes = "\n".join(nodes)
        self._ledger.is_live = is_live

    async def hand_over(
        self, name: str, token: str, heir: Claim, before: int, within: float, proposal: int = 0
    ) -> Handed | Unmarked:
        """See `port.LineMember.hand_over`. It is owed for both tokens."""
        verb = partial(self._store.hand_over, proposal=proposal) if proposal else self._store.hand_over
        tokens = (heir.token, token) if heir.token != token else (token,)
        handed = await self._ask(tokens, within, verb, (name, token, heir, before))
        if token != heir.token:
            self._places.left(token)  # who hands over stands in no line
        if isinstance(handed, Handed):
            self._stands(heir, handed.heir)
        return handed

    def retreat(self, claim: Claim, longest: float, within: float) -> Coroutine[Any, Any, int]:
        """See `port.LineMember.retreat`."""
        return self._in_line(claim, self._ask((claim.token,), within, self._store.retreat, (claim, longest)))

    async def open_inbox(self, within: float) -> str:
        """See `port.Line.open_inbox`. No file is touched; it waits for its turn so that one is opened, and closed at last."""
        if self._closed:
            raise UsageError(CLOSED)
        try:
            return await self._transport.run(self._open_inbox, (), within, False)
        except Shut as shut:
            raise self._unavailable(within, shut, "no inbox was opened") from None

    def _open_inbox(self, _: Budget) -> str:
        try:
            return self._inbox.open()
        except OSError as error:
            if by_a_handler(error):
                raise
            raise faults.mapped(error, self.address) from error

    async def hear(self, until: float) -> list[Announced]:
        """See `port.Line.hear`. Needs no file, so it keeps nobody from using it."""
        if self._closed:
            raise UsageError(CLOSED)
        heard = await self._inbox.hear(until, self.address)
        for announced in heard:
            self._places.left(announced.token)
        return heard

    def lag(self) -> float:
        """See `port.Member.lag`. The file answers within its bound, or says that it cannot."""
        if self._places or self._ledger.records:
            self._places.prune(now(), self._ledger.is_live or (lambda token: False))
            self._prune()
        return 0.0

    def settled(self, token: str) -> bool:
        """See `port.Backend.settled`. Calls run in the order of their handing over."""
        return True

    async def inspect(self, name: str, within: float) -> Entry:
        """See `port.Backend.inspect`."""
        if self._closed:
            raise UsageError(CLOSED)
        try:
            entry = await self._transport.run(self._store.inspect, (name,), within, False)
        except Shut as shut:
            raise self._unavailable(within, shut, "nothing was asked") from None
        self.address = self._store.address  # not settled: a look makes no file, so the first claim may still choose another
        return entry

    async def close(self) -> None:
        """See `port.Backend.close`. A second time is harmless; every other verb raises UsageError from now on."""
        if not self._closed:
            self._closed = True
            await self._transport.close(self._close)

    def _close(self) -> None:
        self._inbox.close()
        self._store.close()

    async def _ask(self, tokens: tuple[str, ...], within: float, verb: Callable[..., T], args: tuple[Any, ...]) -> T:
        if self._closed:
            raise UsageError(CLOSED)
        earlier = self._ledger.earlier(tokens) if self._ledger.records else ()
        try:
            answer = await self._transport.run(verb, args, within, False)
        except BaseException as error:
            try:
                self._unanswered(tokens, error)
            except BaseException:  # a signal's handler has raised in the midst of that
                self._unanswered(tokens, error)
                raise
            if isinstance(error, Shut):
                raise self._unavailable(within, error, "nothing was written") from None
            raise
        if earlier:
            self._ledger.answered(earlier, self._path)
            self._prune()
        if not self._settled:
            self._settle()
        return answer

    def _unanswered(self, tokens: Sequence[str], error: BaseException) -> None:
        """Put down what `error` has left without an answer. Harmless when repeated."""
        if isinstance(error, Shut | UsageError):
            return
        if isinstance(error, Unavailable) and isinstance(error.__cause__, OSError | RuntimeError):
            return  # the file could not even be opened: that is an answer too
        self._prune()
        self._ledger.owes(tokens, self._path, None, now())

    def _prune(self) -> None:
        self._ledger.prune(now(), lambda path: False)

    def _settle(self) -> None:
        self.address = self._store.address  # the first verb may have found that the default place is another one
        self._settled = True

    def _unavailable(self, within: float, shut: Shut, left_behind: str) -> Unavailable:
        self._settle()
        return Unavailable(
            f"{self.address} could not be entered within {within:g} s: {shut}; {left_behind}. Find out who that is, or try "
            "again later",
            backend=self.address,
            cause="timeout",
        )
