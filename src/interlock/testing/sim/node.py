"""A simulated node: the memory store, which is the specification, under a clock of its own.

It dies with or without its memory, freezes, and its clock jumps. What it does with a request is what `MemoryBackend` does.
One thing is as on a real node and not as there: whoever is not known to stand in line is not looked for in it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...backends.memory import Inbox, Memory, MemoryBackend
from ...core import fence as fences
from ...core.claim import Announced, Claim, Granted, Handed
from ...core.fence import EPOCH_MS
from ...core.quorum import Marker
from ...runtime.base import Runtime
from .kernel import Kernel

if TYPE_CHECKING:
    from .wire import Wire


KEPT = 12  # earlier states
BEGIN = 1_000_000.0  # what nodes' clocks read when a history begins
LAST = {"extend": "fence", "release": "proposal", "hand_over": "proposal"}  # what comes behind `within`


class Request(NamedTuple):
    """What is on a wire: a verb, its arguments, and the mark that the reply echoes."""

    mark: int
    verb: str
    args: tuple[Any, ...] = ()


class Channel(Inbox):
    """An inbox whose announcements go down a wire."""

    def __init__(self) -> None:  # not the pipe of its parent
        self.wires: list[Wire] = []

    def put(self, announced: Announced) -> None:
        """See `Inbox.put`. Everybody who listens hears it."""
        for wire in self.wires:
            wire.push(announced)

    def listened_to(self) -> bool:
        """Whether anybody does, as far as the node knows."""
        for wire in self.wires:
            if wire.cut or wire.dead:  # perhaps gone
                self.wires = [wire for wire in self.wires if not wire.gone]
                break
        return bool(self.wires)


class Node:
    """One node."""

    backend_type: Callable[..., MemoryBackend] = MemoryBackend

    def __init__(
        self, kernel: Kernel, address: str, rate: float, hybrid: bool, newborn: bool, nodes: tuple[str, ...] = ()
    ) -> None:
        self.kernel = kernel
        self.address = address
        self.rate, self.offset = rate, 0.0
        self.down = self.frozen = False
        self.era = 0  # another one after each restart: connections do not outlive it
        self.queue: list[tuple[Wire, Request]] = []  # what waits while it is frozen
        self.freed: dict[str, float] = {}  # tokens that were released here, and when
        # Tokens that got a name after that, and have not been released since: the name, how they asked, and when it was
        self.revived: dict[str, tuple[str, Wire, float]] = {}
        self.did: Callable[[Node, str], None] | None = (
            None  # told of what it has just done: a fault may be aimed at that moment
        )
        self.let_in: Callable[[Node], None] | None = None  # told when it has a roll
        self.states: list[Memory] | None = None  # earlier ones, that it may come back with; None: it does not
        self._hybrid = hybrid
        self._nodes: tuple[str, ...] = ()
        self.forget()
        if not newborn:
            self.memory.roll = Marker(nodes)

    def now(self) -> float:
        """Its clock: expiry follows it."""
        return BEGIN + self.kernel.now * self.rate + self.offset

    def wall_ms(self) -> int:
        """The clock part of its fences; switched off in half of the histories, so that the counters stand alone."""
        return EPOCH_MS + int(self.now() * 1000) if self._hybrid else 0

    def forget(self) -> None:
        """Everything is gone."""
        self._forgot = self.down
        self.memory, before = Memory(self.now, self.wall_ms), getattr(self, "memory", None)
        self.memory.losses = before.losses if before is not None else 0  # each has a number of its own
        self._serve_from(self.memory)

    def _serve_from(self, memory: Memory) -> None:
        self.memory = memory
        self.backend = self.backend_type(self.address, memory, cast(Runtime, None))
        self.backend.elect(self._nodes)

    def elect(self, nodes: Sequence[str]) -> None:
        """It is a node of a quorum."""
        self._nodes = tuple(nodes)
        self.backend.elect(nodes)

    @property
    def good(self) -> bool:
        """Whether its roll is good: it may vote. Not while it is down: what it comes back with may be an earlier state."""
        return not self.down and self.memory.good

    def save(self) -> None:
        """As it is now, it may come back later."""
        if self.states is not None:
            self.states.append(self._copy(self.memory))
            del self.states[:-KEPT]

    def _copy(self, memory: Memory) -> Memory:
        copy = Memory(self.now, self.wall_ms)
        copy.last_fence, copy.roll, copy.enrolled_in, copy.loss = (
            memory.last_fence,
            memory.roll,
            memory.enrolled_in,
            memory.loss,
        )
        copy.held, copy.waits = dict(memory.held), dict(memory.waits)
        copy.groups = {name: dict(group) for name, group in memory.groups.items()}
        copy.lines = {name: list(line) for name, line in memory.lines.items()}
        return copy

    def go_back(self) -> None:
        """It has one of its earlier states again."""
        assert self.states
        losses, state = self.memory.losses, self._copy(self.kernel.random.choice(self.states))
        state.losses = losses
        self._serve_from(state)

    def crash(self, forget: bool) -> None:
        """It dies, and its connections with it."""
        self.down, self.frozen = True, False
        self.era += 1
        self.queue.clear()
        self.memory.inboxes.clear()
        self._forgot = forget or self._forgot
        if forget:
            self.forget()

    def restart(self) -> None:
        """It is back. A new store begins where the clock stands now."""
        self.down = False
        if self._forgot:
            self.forget()
        self.memory.last_fence = max(self.memory.last_fence, fences.floor(self.wall_ms()))  # as claim.lua has it, each time
        self.memory.life = self.era  # whatever it remembers, something may be missing

    def thaw(self) -> None:
        """It goes on. Each connection is served in its order; which comes first is chance."""
        self.frozen = False
        queue, self.queue = self.queue, []
        wires = list(dict.fromkeys(wire for wire, _ in queue))
        self.kernel.random.shuffle(wires)
        for wire in wires:
            for other, request in queue:
                if other is wire:
                    wire.serve(request)

    def answer(self, wire: Wire, request: Request) -> Any:
        """Do what is asked."""
        verb, args = request.verb, request.args
        if verb == "hello":
            return True
        if verb == "listen":
            cast(Channel, self.memory.inboxes.setdefault(args[0], Channel())).wires.append(wire)
            return True
        if inboxes := cast(dict[str, Channel], self.memory.inboxes):
            deaf = None
            for name, inbox in inboxes.items():
                if not inbox.listened_to():
                    deaf = [name, *deaf] if deaf else [name]
            for name in deaf or ():
                del inboxes[name]
        result = self._do(verb, args)
        if verb == "release":
            self._freed(args[1])
        elif verb == "hand_over":
            if args[1] != args[2].token:
                self._freed(args[1])
            if isinstance(result, Handed):
                self._granted(args[2], result.heir, wire)
        elif verb in ("claim", "vote"):
            self._granted(args[0], result, wire)
        if self.states is not None and self.kernel.random.random() < 0.2:
            self.save()
        if verb == "enroll" and result is True and self.let_in is not None:
            self.let_in(self)
        if self.did is not None and (result is True or isinstance(result, Granted)):
            self.did(self, verb)
        return result

    def _do(self, verb: str, args: tuple[Any, ...]) -> Any:
        act = getattr(self.backend, verb)
        if verb == "roll":
            return finished(act(0.0, *args))
        if verb not in LAST:
            return finished(act(*args, within=0.0))
        if verb == "release":
            name, token, in_line, proposal = args
            if not in_line and any(stand.token == token for stand in self.memory.lines.get(name, ())):
                return False
            args = name, token, proposal
        return finished(act(*args[:-1], within=0.0, **{LAST[verb]: args[-1]}))

    def _freed(self, token: str) -> None:
        self.freed[token] = self.kernel.now
        self.revived.pop(token, None)

    def _granted(self, claim: Claim, answer: object, wire: Wire) -> None:
        if self.freed and isinstance(answer, Granted) and claim.token in self.freed:
            self.revived[claim.token] = claim.name, wire, self.freed[claim.token]  # harmless if its own undo is right behind it

    def keeps(self, name: str, token: str) -> float | None:
        """Until when it keeps that, by the clock of histories, if its own is not set any more. None: it does not."""
        held = self.memory.held.get(name)
        return (held.until - self.offset - BEGIN) / self.rate if held is not None and held.token == token else None

    def holds(self) -> dict[str, str]:
        """Which token has which name now."""
        return {name: held.token for name, held in self.memory.held.items() if held.until > self.now()}


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a verb of the memory store waits for nothing")
