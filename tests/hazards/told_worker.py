"""The processes of test_told_in_time.py: `holder COLOUR`, `rival URL…`, `locker`. They talk in JSON lines."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import random
import sqlite3
import sys
import threading
import time
from itertools import cycle
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from support import heard, now, tell

import interlock
from interlock.core.lease import margin

logging.disable(logging.CRITICAL)  # every loss is logged; here that is only noise
gc.disable()  # short-lived, and a collection is a pause like any other


class Witness(threading.Thread):
    """Sees for how long this process did not run: what it did not see, nobody could have done in time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gaps: list[tuple[float, float]] = []

    def run(self) -> None:
        before = now()
        while True:
            time.sleep(0.004)
            after = now()
            if after - before > 0.012:
                self.gaps.append((before, after))
            before = after


class Trial:
    """One lease that will be cut off."""

    def __init__(self, name: str, ttl: float) -> None:
        self.name, self.ttl = name, ttl
        self.lease: Any = None
        self.told: dict[str, float] = {}
        self.lost_at_the_deadline: bool | None = None

    def report(self) -> dict[str, Any]:
        hold = self.lease._hold
        return {
            "name": self.name,
            "ttl": self.ttl,
            "deadline": hold.deadline,
            "margin": margin(hold.ttl),
            "told": self.told,
            "lost": self.lost_at_the_deadline,
            "reason": hold.gone,
        }

    def look(self) -> bool:
        """At the deadline, whoever ran or did not run: is it lost? True once that is known."""
        if self.lost_at_the_deadline is None and now() >= self.lease._hold.deadline:
            self.lost_at_the_deadline = self.lease.lost
        return self.lost_at_the_deadline is not None

    def stamp(self, way: str) -> None:
        self.told.setdefault(way, now())


def trials_of(store: dict[str, Any]) -> list[Trial]:
    return [Trial(name, ttl) for name, ttl in zip(store["names"], cycle(store["ttls"]), strict=False)]


def enough(trials: list[Trial], ways: list[str], until: float) -> bool:
    """All was told that can be told, or it is so late that nothing will."""
    done = all(trial.look() for trial in trials)
    return done and (now() > until or all(set(ways) <= {*trial.told} or trial.told.keys() >= {"on_lost"} for trial in trials))


def hold_blocking(stores: list[dict[str, Any]]) -> None:
    clients, trials, threads = [], [], []
    for store in stores:
        client = interlock.Client(store["url"], request_timeout=1.0)
        clients.append(client)
        for trial in trials_of(store):
            trial.lease = client.lock(trial.name, ttl=trial.ttl, on_lost=lambda _, trial=trial: trial.stamp("on_lost")).acquire(
                timeout=10
            )
            trials.append(trial)
            if len(trials) % 5 == 0:

                def wait(trial: Trial = trial) -> None:
                    if trial.lease.wait_lost(60):
                        trial.stamp("wait_lost")

                threads.append(threading.Thread(target=wait))
                threads[-1].start()
    while any(client.keeping().renewals < len(store["names"]) for client, store in zip(clients, stores, strict=True)):
        time.sleep(0.01)
    tell("ready")
    assert heard() == "cut"
    tell({trial.name: trial.lease._hold.deadline for trial in trials})
    until = now() + 2 * max(trial.ttl for trial in trials) + 1
    while not enough(trials, ["on_lost"], until):
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    tell([trial.report() for trial in trials])
    assert heard() == "healed"
    for client in clients:
        client.close()
    tell("closed")


async def hold_asyncio(stores: list[dict[str, Any]]) -> None:
    async def hear() -> Any:
        return await asyncio.to_thread(heard)

    async def body(lock: Any, trial: Trial, inside: asyncio.Event) -> None:
        try:
            async with lock as lease:
                trial.lease = lease
                inside.set()
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    trial.stamp("cancelled")
                    raise
        except interlock.LeaseLost:
            pass

    async def wait(trial: Trial) -> None:
        if await trial.lease.wait_lost(60):
            trial.stamp("wait_lost")

    clients, trials, tasks = [], [], []
    for store in stores:
        client = interlock.AsyncClient(store["url"], request_timeout=1.0)
        clients.append(client)
        for trial in trials_of(store):
            lock = client.lock(trial.name, ttl=trial.ttl, on_lost=lambda _, trial=trial: trial.stamp("on_lost"))
            inside = asyncio.Event()
            tasks.append(asyncio.create_task(body(lock, trial, inside)))
            await inside.wait()
            trials.append(trial)
            if len(trials) % 5 == 0:
                tasks.append(asyncio.create_task(wait(trial)))
    while any(client.keeping().renewals < len(store["names"]) for client, store in zip(clients, stores, strict=True)):
        await asyncio.sleep(0.01)
    tell("ready")
    assert await hear() == "cut"
    tell({trial.name: trial.lease._hold.deadline for trial in trials})
    until = now() + 2 * max(trial.ttl for trial in trials) + 1
    while not enough(trials, ["on_lost", "cancelled"], until):
        await asyncio.sleep(0.002)
    tell([trial.report() for trial in trials])
    assert await hear() == "healed"
    await asyncio.gather(*tasks)
    for client in clients:
        await client.close()
    tell("closed")


def holder(colour: str) -> None:
    witness = Witness()
    witness.start()
    while (stores := heard()) is not None:
        if colour == "blocking":
            hold_blocking(stores)
        else:
            asyncio.run(hold_asyncio(stores))
        gc.collect()
        tell(witness.gaps)
        witness.gaps = []


def rival() -> None:
    """Try to take every name, all the time, until each is taken. [name, before the claim that was granted, after it]

    A thread for each store, and hardly any patience: the two stamps must lie close together, also while the store is shut.
    """
    while (stores := heard()) is not None:
        grants: list[tuple[str, float, float]] = []
        refused: list[int] = []
        over = threading.Barrier(len(stores) + 1)

        def compete(store: dict[str, Any], grants: Any = grants, refused: Any = refused, over: Any = over) -> None:
            with interlock.Client(store["url"], request_timeout=store["patience"], renew=False) as client:
                wanted = [(client.lock(name, ttl=60), name) for name in store["names"]]
                leases = []
                tries, until = 0, now() + 30
                while wanted and now() < until:
                    random.shuffle(wanted)
                    left = []
                    for lock, name in wanted:
                        before = now()
                        try:
                            lease = lock.try_acquire()
                        except interlock.Unavailable:
                            lease = None
                            time.sleep(0.002)  # as it does to anybody, the machine has better things to do
                        after = now()
                        if lease is None:
                            tries += 1
                            left.append((lock, name))
                        else:
                            grants.append((name, before, after))
                            leases.append(lease)
                    wanted = left
                    time.sleep(0.002)
                refused.append(tries)
                over.wait()
                for lease in leases:
                    while True:
                        try:
                            lease.release()
                            break
                        except interlock.Unavailable:
                            pass

        threads = [threading.Thread(target=compete, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        over.wait()
        tell({"grants": grants, "refused": sum(refused)})
        for thread in threads:
            thread.join()


def locker() -> None:
    """Make SQLite files unavailable, as a process that hangs inside does, until a moment that is told later."""

    def hold(path: str, way: str, moment: list[float], locked: threading.Barrier, known: threading.Event) -> None:
        if way == "gate":
            gate = os.open(path + "-gate", os.O_RDONLY)
            fcntl.flock(gate, fcntl.LOCK_EX)
        else:  # somebody with an SQLite shell, who knows of no gate
            shell = sqlite3.connect(path, isolation_level=None, timeout=10)
            shell.execute("PRAGMA wal_autocheckpoint = 0")
            shell.execute("BEGIN IMMEDIATE")
        locked.wait()
        known.wait()
        time.sleep(max(0.0, moment[0] - now()))
        if way == "gate":
            os.close(gate)
        else:
            shell.execute("ROLLBACK")
            shell.close()

    while (files := heard()) is not None:
        locked, known = threading.Barrier(len(files) + 1), threading.Event()
        moments: list[list[float]] = [[] for _ in files]
        threads = [
            threading.Thread(target=hold, args=(path, way, moment, locked, known))
            for (path, way), moment in zip(files, moments, strict=True)
        ]
        for thread in threads:
            thread.start()
        locked.wait()
        tell("locked")
        for moment, until in zip(moments, heard(), strict=True):
            moment.append(until)
        known.set()
        for thread in threads:
            thread.join()
        tell("open")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
