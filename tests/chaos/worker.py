"""A client process: takes locks, counts under them, gives them back. `python -m tests.chaos.worker '{…}'`: see `Order`.

Both colours do the same, written once: `Blocking` steps the coroutine, since nothing in it ever waits for a loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import interlock
from interlock.core.lease import margin

from .journal import Journal, die_with_parent, now
from .mutants import plant, without_clock

BEAT, LATE = 0.01, 0.02  # how often a process looks whether it runs, and how late it must be to have been stopped


class Order(NamedTuple):
    """What a worker is told."""

    name: str
    colour: str
    nodes: list[str]
    names: list[str]
    ttl: float
    actors: int
    register: str
    history: str
    calm: str  # a file: once it is there the faults are over
    patience: float  # how long the last acquire may take then
    seed: str
    mutant: str = ""
    counters: bool = False  # fences grow by their counters alone


def store(order: Order) -> list[str] | str:
    """A quorum, or one node alone."""
    return order.nodes if len(order.nodes) > 1 else order.nodes[0]


class Blocking:
    """Threads."""

    def __init__(self, order: Order) -> None:
        self.client: Any = interlock.Client(store(order), ttl=order.ttl, request_timeout=order.ttl / 3)
        self._register = order.register

    async def connect(self) -> Any:
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(self._register)
        return wire.makefile("rwb")

    async def exchange(self, wire: Any, ask: dict[str, Any]) -> Any:
        wire.write(json.dumps(ask).encode() + b"\n")
        wire.flush()
        return json.loads(wire.readline())

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def run(self, work: list[Coroutine[Any, Any, None]], beat: Coroutine[Any, Any, None]) -> None:
        def step(coroutine: Coroutine[Any, Any, None]) -> None:
            try:
                coroutine.send(None)
            except StopIteration:
                return
            raise AssertionError("it waited for a loop")

        threading.Thread(target=step, args=(beat,), daemon=True).start()
        threads = [threading.Thread(target=step, args=(one,)) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.client.close()


class Asynchronous:
    """Tasks."""

    def __init__(self, order: Order) -> None:
        self.client: Any = interlock.AsyncClient(store(order), ttl=order.ttl, request_timeout=order.ttl / 3)
        self._register = order.register

    async def connect(self) -> Any:
        return await asyncio.open_unix_connection(self._register)

    async def exchange(self, wire: Any, ask: dict[str, Any]) -> Any:
        reader, writer = wire
        writer.write(json.dumps(ask).encode() + b"\n")
        return json.loads(await reader.readline())

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await function(*args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def run(self, work: list[Coroutine[Any, Any, None]], beat: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            beating = asyncio.create_task(beat)
            await asyncio.gather(*work)
            beating.cancel()
            await self.client.close()

        asyncio.run(main())


class Pulse:
    """Writes down when this process did not run: it was stopped, or the machine had no time for it."""

    def __init__(self, journal: Journal, who: str) -> None:
        self._journal, self._who = journal, who
        self._last = now()
        self._gap = (0.0, 0.0)

    async def beat(self, face: Any) -> None:
        while True:
            await face.sleep(BEAT)
            at = now()
            if at - self._last > BEAT + LATE:
                self._gap = self._last, at
                self._journal(self._who, "pause", at=self._last)
                self._journal(self._who, "resume", at=at)
            self._last = at

    def stopped_at(self, moment: float) -> bool:
        """Whether it did not run then, as far as can be told now."""
        begin, end = self._gap
        return self._last < moment or begin <= moment <= end


class Ledger:
    """What one lease writes into the history, from whichever thread: nothing is believed any more once it is being left."""

    def __init__(self, journal: Journal, pulse: Pulse, who: str, key: str, lease: Any, watched: bool) -> None:
        self._journal, self._pulse, self._who, self._key, self._hold = journal, pulse, who, key, lease._hold
        self._guard, self._told = threading.Lock(), threading.Lock()  # the second is taken once: it has been told
        self._left = False
        hold = self._hold
        with self._guard:
            self._until = hold.deadline
            self._write("got", fence=hold.fence, until=self._until, margin=margin(hold.span), note="watched" if watched else "")
            hold.watch(self._watch)
        self.moved()  # whatever the keeper did before we looked on: stopped here, this thread may be the last to go on
        if hold.told:
            self._tell()

    def _write(self, what: str, **fields: Any) -> None:
        self._journal(self._who, what, name=self._hold.name, lease=self._key, **fields)

    def _watch(self, what: str) -> None:
        if what == "landed":
            self.moved()
        elif what == "lost":
            self._tell()

    def _tell(self) -> None:
        hold = self._hold
        if not self._told.acquire(blocking=False):
            return  # it was
        self._write("told", until=hold.deadline, margin=margin(hold.span), note=hold.gone)

    def moved(self) -> None:
        with self._guard:
            until = self._hold.deadline
            if not self._left and until != self._until and not self._hold.gone:
                # Stopped between the answer and this line, it believed all the time: nobody ran who could have looked.
                at = self._until if now() > self._until and self._pulse.stopped_at(self._until) else 0.0
                self._until = until
                self._write("kept", at=at, fence=self._hold.fence, until=until)

    def leave(self) -> None:
        with self._guard:
            self._left = True
            hold = self._hold
            if not hold.told and hold.lost(now()) and self._pulse.stopped_at(hold.deadline):
                self._tell()  # it ran again before the keeper did, so it is told by its release
            self._write("leave")


class Actor:
    """One thread or task."""

    def __init__(self, order: Order, face: Any, journal: Journal, pulse: Pulse, number: int) -> None:
        self._order, self._face, self._journal, self._pulse = order, face, journal, pulse
        self._me = f"{order.name}.{number}"
        self._turn = 0
        self._random = random.Random(f"{order.seed} {self._me}")
        self._wire: Any = None

    async def work(self) -> None:
        """Turn after turn until the faults are over; then one last for each name, which must succeed."""
        while not os.path.exists(self._order.register):
            await self._face.sleep(0.01)
        self._wire = await self._face.connect()
        while not os.path.exists(self._order.calm):
            await self._take_turn(self._random.choice(self._order.names), 0.0)
            await self._face.sleep(self._random.random() * self._order.ttl * self._random.choice((0.0, 0.05, 0.3)))
        for name in self._order.names:
            await self._take_turn(name, self._order.patience)

    def _write(self, what: str, name: str, key: str, **fields: Any) -> None:
        self._journal(self._order.name, what, name=name, lease=key, **fields)

    async def _take_turn(self, name: str, patience: float) -> None:
        dice, ttl = self._random, self._order.ttl
        renew = dice.random() < 0.7
        lock = self._face.client.lock(name, ttl=ttl, renew=renew)
        give_up = now() + patience
        while True:
            self._turn += 1
            key = f"{self._me}#{self._turn}"
            timeout = max(give_up - now(), 0.0) if patience else dice.choice((0.0, ttl * 0.3, ttl * 2))
            self._write("ask", name, key)
            try:
                lease = await self._face.call(lock.acquire, timeout)
            except interlock.InterlockError as error:
                stuck = bool(patience) and now() >= give_up
                self._write("not", name, key, note=type(error).__name__, value=int(stuck))
                if stuck or not patience:
                    return
                await self._face.sleep(ttl / 4)
                continue
            await self._use(key, lease, renew)
            return

    async def _use(self, key: str, lease: Any, renew: bool) -> None:
        ledger = Ledger(self._journal, self._pulse, self._order.name, key, lease, watched=renew)
        try:
            await self._count(key, lease, ledger)
        finally:
            ledger.leave()
            note = "unknown"
            try:
                note = "released" if await self._face.call(lease.release) else lease.reason or "not held"
            except interlock.InterlockError as error:
                note = type(error).__name__
                lease._hold.dropped = True  # as when nobody has the lease any more; it ends by itself
            self._write("left", lease.name, key, note=note)

    async def _count(self, key: str, lease: Any, ledger: Ledger) -> None:
        """Seal, read, work, write. Some stop when the lease is lost, some do not look."""
        dice, ttl = self._random, self._order.ttl
        careless = self._order.mutant == "unfenced"
        polite = dice.random() < 0.7 and not careless
        touch = {"name": lease.name, "lease": key, "fence": lease.fence}
        value, bare = await self._face.exchange(self._wire, {"do": "enter", **touch})
        long = dice.random() < (0.5 if careless else 0.08)
        await self._face.sleep(ttl * (dice.uniform(0.3, 1.8) if long else dice.uniform(0.0, 0.1)))
        if dice.random() < 0.1:
            try:
                await self._face.call(lease.extend)
            except interlock.InterlockError:
                pass
            finally:
                ledger.moved()
        if polite and lease.lost:
            return
        ask = {"do": "write", **touch, "value": value, "bare": bare, "force": careless}
        await self._face.exchange(self._wire, ask)


def main() -> None:
    die_with_parent()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    order = Order(**json.loads(sys.argv[1]))
    plant(order.mutant)
    if order.counters:
        without_clock()
    journal = Journal(Path(order.history))
    face: Any = Blocking(order) if order.colour == "blocking" else Asynchronous(order)
    pulse = Pulse(journal, order.name)
    actors = [Actor(order, face, journal, pulse, number) for number in range(order.actors)]
    face.run([actor.work() for actor in actors], pulse.beat(face))


if __name__ == "__main__":
    main()
