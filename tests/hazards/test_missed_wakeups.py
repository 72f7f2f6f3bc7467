"""Wake-ups that are lost on their way, with the waiter none the wiser: nobody sleeps past the end of the holder's lease.

The waiters reach the node through a proxy, the holder does so directly. How long each waited is bounded by the holder's ttl,
and by NOISE for a machine with other things to do.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import interlock
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body

from .support import LIMIT, SCALE, scaled

TTL = 1.5
NOISE = 1.0


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def proxy(valkey_node: Node) -> Iterator[FaultProxy]:
    with FaultProxy(valkey_node.port) as proxy:
        yield proxy


def in_line(client: Any) -> bool:
    return any(waiter.after is not None for waiter in client._context.queue.in_line.values())


async def stands(kit: Kit, client: Any) -> None:
    until = time.monotonic() + 20
    while not in_line(client):
        assert time.monotonic() < until
        await kit.sleep(0.002)


def waits(
    colour: str, proxy: FaultProxy, node: Node, fault: Callable[[], None], then: Callable[[Any], object], ttl: float = 10
) -> float:
    """One waits through the proxy while another holds, and may release after the fault. How long after the grant it got it."""
    waited: list[float] = []

    async def body(kit: Kit) -> None:
        with interlock.Client(node.url, renew=False) as holder:
            client, granted = kit.client(renew=True), 0.0

            async def wait() -> None:
                async with client.lock("missed", ttl=ttl, timeout=20) as lease:
                    waited.append(time.monotonic() - granted)
                    assert lease.remaining() > 0

            async def act() -> None:
                await stands(kit, client)
                fault()
                then(lease)

            lease = holder.lock("missed", ttl=TTL).acquire()
            granted = time.monotonic()
            await kit.together(wait(), act())

    run_body(body, proxy.url, colour)
    return waited[0]


def test_a_push_is_lost(colour: str, proxy: FaultProxy, valkey_node: Node) -> None:
    """The node believes that the waiter was told. It asks when the holder's lease would have ended, and has it."""
    took = waits(colour, proxy, valkey_node, proxy.drop_pushes, lambda lease: lease.release())
    assert proxy.dropped == 1
    print(f"{colour}: {took:.3f} s of {TTL:g}")
    assert took < TTL + NOISE


def test_the_holder_vanishes(colour: str, proxy: FaultProxy, valkey_node: Node) -> None:
    took = waits(colour, proxy, valkey_node, lambda: None, lambda lease: None)
    print(f"{colour}: {took:.3f} s of {TTL:g}")
    assert TTL - 0.1 < took < TTL + NOISE


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_the_subscription_is_cut(colour: str, proxy: FaultProxy, valkey_node: Node, reset: bool) -> None:
    """Released while nobody listens: the waiter is passed over, or told in vain. It finds out at once."""
    took = waits(colour, proxy, valkey_node, lambda: proxy.cut_subscribers(reset), lambda lease: lease.release())
    print(f"{colour}: {took:.3f} s of {TTL:g}")
    assert took < TTL + NOISE


def test_the_subscription_is_cut_and_cannot_be_opened_again_for_a_while(
    colour: str, proxy: FaultProxy, valkey_node: Node
) -> None:
    def fault() -> None:
        proxy.drop_requests(containing=b"SUBSCRIBE")
        proxy.cut_subscribers()

    took = waits(colour, proxy, valkey_node, fault, lambda lease: lease.release())
    assert took < TTL + NOISE


def test_everything_is_cut_at_random(colour: str, proxy: FaultProxy, valkey_node: Node) -> None:
    """Several clients take turns while their subscriptions break and pushes vanish. Nobody holds twice, and nobody stalls."""
    seconds, many = scaled(4), 5
    got: list[tuple[int, float, float]] = []
    errors: Counter[str] = Counter()
    over = threading.Event()
    dice = random.Random(5)

    def trouble() -> None:
        while not over.wait(dice.uniform(0.02, 0.3)):
            if dice.random() < 0.5:
                proxy.cut_subscribers(reset=dice.random() < 0.5)
            else:
                proxy.drop_pushes(1)

    async def body(kit: Kit) -> None:
        until = time.monotonic() + seconds

        async def work(client: Any) -> None:
            while time.monotonic() < until:
                try:
                    async with client.lock("missed", ttl=TTL, timeout=20) as lease:
                        began = time.monotonic()
                        await kit.sleep(0.002)
                        got.append((lease.fence, began, time.monotonic()))
                except interlock.Unavailable as error:  # a question met with a cut
                    errors[error.cause] += 1

        await kit.together(*(work(kit.client(renew=True)) for _ in range(many)))

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        run_body(body, proxy.url, colour)
    finally:
        over.set()
        thread.join()
    got.sort()
    gaps = [two[1] - one[2] for one, two in pairwise(got)]
    report = {"colour": colour, "grants": len(got), "cuts": proxy.cuts, "dropped": proxy.dropped, "longest": max(gaps)}
    print(json.dumps({**report, "errors": dict(errors)}))
    assert proxy.cuts > 3
    assert min(gaps) > 0, "two at a time"
    assert max(gaps) < TTL + NOISE
    assert len(got) > 5 * seconds
    assert valkey_node.command("EXISTS", "missed") == 0


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("empty", [True, False], ids=["without its memory", "with its memory"])
def test_the_node_restarts(colour: str, fresh_node: Callable[..., Node], empty: bool) -> None:
    """Whoever waits is told that the store is away, or has the lock by the end of the holder's lease, never nothing."""
    node, many = fresh_node(persist=not empty), 3 if SCALE < 2 else 10
    outcomes: list[tuple[str, float]] = []

    async def body(kit: Kit) -> None:
        holder = kit.client()
        lease = await holder.lock("missed", ttl=TTL).acquire()
        began = time.monotonic()
        clients = [kit.client(renew=True) for _ in range(many)]

        async def wait(client: Any) -> None:
            try:
                async with client.lock("missed", ttl=TTL, timeout=20):
                    outcomes.append(("held", time.monotonic() - began))
            except interlock.Unavailable:
                outcomes.append(("unavailable", time.monotonic() - began))

        async def restart() -> None:
            for client in clients:
                await stands(kit, client)
            node.restart(empty=empty)

        await kit.together(*(wait(client) for client in clients), restart())
        del lease

    run_body(body, node.url, colour)
    print(json.dumps([(how, round(when, 2)) for how, when in outcomes]))
    assert len(outcomes) == many
    assert max(when for _, when in outcomes) < TTL + 1.0 + many * 0.5 + NOISE
