"""Simulated connections. In order and at most once, as TCP is; what lies between may delay, swallow, repeat and cut.

What can happen to a message, and what it stands for
- delayed: a slow network. Order is kept on one connection, not between two
- swallowed, or delivered twice in its place: a proxy that lost or repeated it
- held back while its direction is blocked, delivered when that ends: a partition, and TCP's patience
- its connection is cut: what was on its way is gone, or (a half-open cut) still arrives
- its node is frozen: it waits there. Dead or restarted: the connection is reset
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Any, Final

from .kernel import Future, Kernel, Process
from .node import Node, Request
from .runtime import SimBell, SimRuntime

BROKEN: Final = "broken"
LATE: Final = "late"
PUSH: Final = -1  # the mark of what nobody asked for


class Network:
    """How messages fare, at this time."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self._random = kernel, kernel.random.random
        self.loss = self.duplicate = self.tail = 0.0
        self.longest_tail = 0.0

    def delay(self) -> float:
        """How long a message takes."""
        random = self._random
        if self.tail and random() < self.tail:
            return random() * self.longest_tail
        return 0.0001 + random() * random() * 0.002

    def copies(self) -> int:
        """How many of a message arrive."""
        chance = self.kernel.random.random()
        return 0 if chance < self.loss else 2 if chance < self.loss + self.duplicate else 1


class Link:
    """The way between a process and a node, and its connections."""

    def __init__(self, network: Network, process: Process, node: Node) -> None:
        self.network, self.process, self.node = network, process, node
        self.requests_blocked = self.replies_blocked = False
        self.wires: list[Wire] = []

    def heal(self, reset: bool) -> None:
        """Everything passes again. What was held back arrives, or the connections were given up meanwhile."""
        self.requests_blocked = self.replies_blocked = False
        for wire in self.wires:
            wire.healed(reset)

    def cut(self, half_open: bool) -> None:
        """Cut its connections."""
        for wire in self.wires:
            wire.sever(half_open)


class Wire:
    """One connection, both ends of it."""

    def __init__(self, link: Link, late: Callable[[Sequence[str], object], None] = lambda tokens, future: None) -> None:
        self._link, self._kernel = link, link.network.kernel
        self.late = late  # told of a reply that nobody waits for any more
        self._era: int | None = None
        self._waiting: deque[tuple[int, Future, float, Sequence[str]]] = deque()
        self._last_request = self._last_reply = 0.0  # when the one before arrives
        self._held_requests: list[Request] = []
        self._held_replies: list[tuple[int, Any]] = []
        self.dead = False  # as far as the client knows
        self.cut = False  # by something between
        self.overtaken = False
        self._half_open = False
        self.users = 0
        link.wires = [wire for wire in link.wires if not wire.gone] + [self]

    @property
    def gone(self) -> bool:
        """Nothing can come of it any more."""
        return self.cut or (self.dead and not self._held_requests)

    # --- the client's end -----------------------------------------------------------------------------------------------

    def send(self, request: Request, tokens: Sequence[str] = ()) -> Future:
        """Put a request on the wire. The future becomes its reply, or BROKEN."""
        future = Future()
        if self.dead:
            future.settle(BROKEN)
        else:
            self._waiting.append((request.mark, future, self._kernel.now, tokens))
            self._post(request)
        return future

    def close(self, last: list[Request] | None = None) -> None:
        """Close it after some last things to send. What was sent before still arrives."""
        if not self.dead:
            for request in last or ():
                self._post(request)
            self.lost()

    def lost(self) -> None:
        """It is over: tell everybody who waits."""
        self.dead = True
        for _, future, *_ in self._waiting:
            future.settle(BROKEN)
        self._waiting.clear()

    def on_way(self) -> list[str]:
        """The tokens of requests whose callers still wait."""
        return [token for _, future, _, tokens in self._waiting if not future.done for token in tokens]

    def lag(self) -> float:
        """For how long the oldest request has been without a reply."""
        return self._kernel.now - self._waiting[0][2] if self._waiting and not self.dead else 0.0

    def received(self, reply: tuple[int, Any]) -> None:
        """Replies come in order: when one is missing it will never come. With one too many, the connection is not trusted."""
        if self.dead:
            return
        mark, value = reply
        if mark == PUSH:
            self.pushed(value)
            return
        while self._waiting:
            expected, future, _, tokens = self._waiting.popleft()
            if expected == mark:
                if future.done:
                    self.late(tokens, future)
                future.settle(value)
                return
            future.settle(BROKEN)
        self.overtaken = True  # hung up on while requests may be on their way: what follows takes another connection
        self.lost()

    def pushed(self, value: Any) -> None:
        """Something that nobody asked for."""
        self.lost()

    # --- between --------------------------------------------------------------------------------------------------------

    def _post(self, request: Request) -> None:
        network = self._link.network
        kernel = self._kernel
        if kernel.note:
            kernel.note(self._link.process.name, f"→ {self._link.node.address} {tell(request)}")
        copies = network.copies() if network.loss or network.duplicate else 1
        if copies:
            arrival, least = kernel.now + network.delay(), self._last_request + 1e-7
            self._last_request = moment = arrival if arrival > least else least
            heappush(kernel.queue, (moment, kernel.number(), None, self._at_node, request))
            if copies > 1:  # in the place of the first: nothing gets between them
                self._last_request = moment + 1e-7
                heappush(kernel.queue, (moment + 1e-7, kernel.number(), None, self._at_node, request))

    def _at_node(self, request: Request) -> None:
        if self._link.requests_blocked or self._held_requests:
            self._held_requests.append(request)
        else:
            self.serve(request)

    def push(self, value: Any) -> None:
        """The node says something that nobody asked for."""
        self._reply((PUSH, value))

    def _reply(self, reply: tuple[int, Any]) -> None:
        network, kernel = self._link.network, self._kernel
        copies = network.copies() if network.loss or network.duplicate else 1
        if copies:
            arrival, least = kernel.now + network.delay(), self._last_reply + 1e-7
            self._last_reply = moment = arrival if arrival > least else least
            heappush(kernel.queue, (moment, kernel.number(), None, self._at_client, reply))
            if copies > 1:  # in the place of the first: nothing gets between them
                self._last_reply = moment + 1e-7
                heappush(kernel.queue, (moment + 1e-7, kernel.number(), None, self._at_client, reply))

    def _at_client(self, reply: tuple[int, Any]) -> None:
        if self._link.replies_blocked or self._held_replies:
            self._held_replies.append(reply)
        elif not self.cut:
            self._kernel.arrive(self._link.process, self.received, reply)

    def _reset(self) -> None:
        """The other end does not know this connection (any more)."""
        self.cut = True
        self._kernel.at(self._kernel.now + self._link.network.delay(), None, self._notice)

    def _notice(self) -> None:
        if self._link.replies_blocked:
            self._kernel.at(self._kernel.now + 0.01, None, self._notice)
        else:
            self._kernel.arrive(self._link.process, lambda _: self.lost(), None)

    def sever(self, half_open: bool) -> None:
        """Cut it. Half open: what is on its way to the node still arrives."""
        if not self.cut:
            self.cut, self._half_open = True, half_open
            self._kernel.at(self._kernel.now + self._link.network.delay(), None, self._notice)

    def healed(self, reset: bool) -> None:
        """What was held back goes on, or is lost with the connection."""
        requests, self._held_requests = self._held_requests, []
        replies, self._held_replies = self._held_replies, []
        if reset and (requests or replies):
            self.sever(half_open=False)
            return
        for request in requests:  # at once: what was sent later is behind them on the same connection
            self._kernel.soon(None, self._at_node, request)
        for reply in replies:
            self._kernel.soon(None, self._at_client, reply)

    # --- the node's end -------------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """It has arrived."""
        node = self._link.node
        if self.cut and not self._half_open:
            return
        if self._era is None:
            self._era = node.era
        if node.down or self._era != node.era:
            self._reset()
        elif node.frozen:
            node.queue.append((self, request))
        else:
            answer = node.answer(self, request)
            if self._kernel.note and request.verb != "hello":
                self._kernel.note(node.address, f"{tell(request)} of {self._link.process.name}: {answer_in_words(answer)}")
            self._reply((request.mark, answer))


class Subscription(Wire):
    """A connection on which things are heard."""

    def __init__(self, link: Link, runtime: SimRuntime) -> None:
        super().__init__(link)
        self._bell = SimBell(runtime)
        self._heard: list[Any] = []

    def received(self, reply: tuple[int, Any]) -> None:
        """An answer too many does no harm here. None is heard: the other side is there."""
        if reply[0] == PUSH or self._waiting:
            super().received(reply)
        if reply[0] != PUSH and not self.dead:
            self.pushed(None)

    def pushed(self, value: Any) -> None:
        """Keep it for whoever hears."""
        self._heard.append(value)
        self._bell.ring()

    def lost(self) -> None:
        """Tell whoever hears."""
        super().lost()
        self._bell.ring()

    async def hear(self, until: float) -> list[Any] | None:
        """Whatever has come in; None when it broke and there is nothing more."""
        while not self._heard:
            if self.dead:
                return None
            if not await self._bell.wait(until):
                break
        heard, self._heard = self._heard, []
        return heard


def tell(request: Request) -> str:
    """A request in words."""
    first = request.args[0] if request.args else None
    token = getattr(first, "token", request.args[1] if request.verb in ("release", "extend", "hand_over") else "")
    if request.verb == "hand_over":
        return f"hand_over {token[:6]} to {request.args[2].token[:6]}"
    return f"{request.verb} {token[:6]}".rstrip() if isinstance(token, str) else request.verb


def answer_in_words(answer: Any) -> str:
    """An answer, short."""
    return repr(answer).replace("inf", "never")[:110]
