"""A client is closed at a random moment: of an acquire, a wait in line, a hand-over, a renewal, a release, a cancellation.

Promise: once `close()` has returned and its callers have their answers, nothing of the client is in the store but what an
error, a note on an error or a warning has named, with how long it stays. Nothing is wrong with any store here, so only
a lease that its caller had before the close may stay, and not what an acquire has failed to hand out, unless the machine is
so busy that the store does not answer in time.

`INTERLOCK_CHAOS=50` runs 2,000 closes for each store and colour.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import interlock
from interlock.testing import Node, start_nodes, stop_nodes
from interlock.testing.faces import COLOURS, Kit, run_body

from ..conftest import store_url
from .support import LIMIT, scaled

TRIALS = scaled(40)
TTL = 30.0  # what is left behind is there long after the trial
SOON = 0.4  # of leases that are renewed meanwhile

Act = Callable[[Kit, "Trial"], list[Awaitable[None]]]


@pytest.fixture(scope="module")
def _three() -> Iterator[list[Node]]:
    nodes = start_nodes(3)
    yield nodes
    stop_nodes(nodes)


@pytest.fixture(params=["memory", "sqlite", "valkey", "quorum"])
def store(request: pytest.FixtureRequest) -> Any:
    if request.param != "quorum":
        return store_url(request, request.param)
    return [node.url for node in request.getfixturevalue("_three")]


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


class Trial:
    """One client that is closed, one that looks on, and everything that was said."""

    def __init__(self, client: Any, rival: interlock.Client, dice: random.Random) -> None:
        self.client, self.rival, self.dice = client, rival, dice
        self.name = f"close:{uuid.uuid4().hex[:12]}"
        self.said: list[str] = []
        self.got = 0
        self.handed: set[str] = set()  # names whose leases their callers had, and could not release after the close
        self.leases: list[Any] = []  # which these callers still have

    async def moment(self, kit: Kit) -> None:
        """Some turns of the loop, or up to three milliseconds."""
        if kit.colour == "asyncio" and self.dice.random() < 0.7:
            for _ in range(self.dice.randint(0, 60)):
                await asyncio.sleep(0)
        else:
            await kit.sleep(self.dice.random() * 0.003)

    async def close(self, kit: Kit) -> None:
        await self.moment(kit)
        await self.client.close()

    async def use(self, kit: Kit, name: str, once: bool = False, holds: bool = True, **options: Any) -> None:
        """Acquire, hold for a moment, release. Any error of ours is an answer."""
        lease = None
        try:
            lock = self.client.lock(name, **{"ttl": TTL, "timeout": 20, **options})
            lease = await (lock.try_acquire() if once else lock.acquire())
            if lease is None:
                return
            self.got += 1
            if holds:
                await self.moment(kit)
            if self.dice.random() < 0.2:
                await lease.extend(TTL)
            await lease.release()
        except (interlock.InterlockError, asyncio.CancelledError) as error:
            self.heard(error)
            if lease is not None:
                self.handed.add(name)
                self.leases.append(lease)

    def heard(self, error: BaseException | None) -> None:
        if error is not None:
            self.said.append(" ".join([str(error), *getattr(error, "__notes__", [])]))
            self.heard(error.__cause__)

    async def pass_on(self, kit: Kit, lease: interlock.Lease) -> None:
        """The rival has it, and releases it at some moment."""
        await self.moment(kit)
        await self.moment(kit)
        lease.release()


def acquire(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    return [trial.use(kit, f"{trial.name}:{number % 2}") for number in range(4)]


def try_acquire(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    return [trial.use(kit, f"{trial.name}:{number}", once=True) for number in range(4)]


def wait(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    """Behind a holder elsewhere, who releases meanwhile."""
    lease = trial.rival.lock(f"{trial.name}:0", ttl=TTL, renew=False).acquire()
    others = [trial.use(kit, f"{trial.name}:0", fair=trial.dice.random() < 0.5) for _ in range(3)]
    return [trial.pass_on(kit, lease), *others]


def hand_over(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    """From one to the next, all of the client that is closed."""
    return [trial.use(kit, f"{trial.name}:0", renew=trial.dice.random() < 0.5) for _ in range(5)]


def renew(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    return [trial.use(kit, f"{trial.name}:{number}", renew=True, ttl=SOON) for number in range(4)]


def release(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    return [trial.use(kit, f"{trial.name}:{number}", holds=False) for number in range(4)]


def cancel(kit: Kit, trial: Trial) -> list[Awaitable[None]]:
    """Tasks that are cancelled at about the same time. A thread cannot be: there they only wait."""

    async def cancelled(number: int) -> None:
        if kit.colour != "asyncio":
            await trial.use(kit, f"{trial.name}:0")
            return
        task = asyncio.ensure_future(trial.use(kit, f"{trial.name}:{number % 2}"))
        await trial.moment(kit)
        task.cancel()
        await asyncio.wait([task])

    return [cancelled(number) for number in range(4)]


ACTS: list[Act] = [acquire, try_acquire, wait, hand_over, renew, release, cancel]


@pytest.mark.timeout(LIMIT + 40 * TRIALS)
def test_nothing_is_left_in_silence(store: Any, colour: str, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    left: list[str] = []
    named = got = slow = 0

    async def one(kit: Kit, number: int, rival: interlock.Client) -> None:
        nonlocal named, got, slow
        act = ACTS[number % len(ACTS)]
        trial = Trial(kit.client(), rival, random.Random(dice.random()))
        if dice.random() < 0.6:  # connected already: else most moments are those of the first connection
            await trial.use(kit, f"{trial.name}:warm")
        closing = trial.close(kit)
        twice = [trial.close(kit)] if dice.random() < 0.2 else []
        caplog.clear()
        with caplog.at_level(logging.WARNING, "interlock"):
            await kit.together(*act(kit, trial), closing, *twice)
        for lease in trial.leases:
            lease._hold.dropped = True  # from here on nobody has them any more, which is not to be warned of
        said = [*trial.said, *(record.getMessage() for record in caplog.records)]
        got += trial.got
        late = [text for text in said if "has no answer yet" in text]  # the machine is busy: close did not wait for that
        slow += bool(late)
        for name in [f"{trial.name}:{suffix}" for suffix in range(4)]:
            entry = rival.inspect(name)
            if entry.held or entry.waiters:
                had = name in trial.handed or any(f"'{name}'" in text for text in late)
                if had and any(f"'{name}'" in text and " s" in text for text in said):
                    named += 1
                else:
                    left.append(f"trial {number} ({act.__name__}): {name} {entry}; said: {said}")

    async def body(kit: Kit) -> None:
        with interlock.Client(store, renew=False) as rival:
            rival.lock("warm").acquire().release()
            for number in range(TRIALS):
                await one(kit, number, rival)

    run_body(body, store, colour)
    print(f"{colour} {store}: {TRIALS} closes, {got} leases, {named} left and named, {len(left)} in silence, {slow} gave up")
    assert not left, f"seed {seed}: {len(left)} of {TRIALS} left something in silence: " + "\n".join(left[:5])
    assert got > TRIALS / 4, "nothing was shown"
