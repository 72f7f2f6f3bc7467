"""The three acts. Each gets a fresh shop, sets the workers going, and judges what the shop's books say afterwards."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

from ...api.client import Client
from ...errors import Unavailable
from ...testing.nodes import Node
from .crew import Crew, Worker, wait
from .screen import Screen, sales
from .shop import Books, Shop

UMBRELLAS = 60
LOCK = "stock:umbrella"
CARD = (0.02, 0.04)  # how long a payment provider takes, in seconds
LONG_CARD = (0.6, 0.6)  # long enough to be frozen in the middle of it
SEALED_WITHIN = 1.0

FEW = 2  # umbrellas in act three
BUSY = "Is this machine very busy? Try again."
BUG = "That must never happen: please report it."

# In seconds. An act that runs out of time is judged as it stands.
ACT_ONE = 4.0
ACT_TWO = 4.0
TAKE_OVER = 3.0
WAKE_UP = 1.0
GRACE = 0.7  # for the sale that is under way when time is up
ACT_THREE = SEALED_WITHIN + TAKE_OVER + GRACE + WAKE_UP  # at worst


class Outcome(NamedTuple):
    """What an act came to: whether it showed what it should, the numbers for the verdict, and a remark."""

    shown: bool
    verdict: str
    remark: str = ""


class Stage:
    """What every act needs."""

    def __init__(self, screen: Screen, crew: Crew, directory: str, until: float) -> None:
        self.screen = screen
        self.crew = crew
        self._directory = Path(directory)
        self._until = until

    def time_left(self) -> float:
        """Seconds until the demo must have ended."""
        return self._until - time.monotonic()

    def new_shop(self, act: str, umbrellas: int) -> tuple[str, Shop]:
        """A fresh database with a full shelf: its path, and a connection to look into it."""
        path = str(self._directory / f"{act}.db")
        shop = Shop(path)
        shop.open_with(umbrellas)
        return path, shop

    def sale(self, act: str, store: str, seconds: float) -> Books:
        """All workers sell until nothing is left or time is up; `store` is where the lock is, "" for none. The final books."""
        path, shop = self.new_shop(act, UMBRELLAS)
        began = time.monotonic()
        self.screen.pause_notes()
        with closing(shop), Client(store) if store else nullcontext() as client:
            for worker in self.crew.workers:
                worker.order(shop=path, store=store, card=CARD, sales=None, seconds=seconds)

            def tick() -> None:
                books = shop.books()
                holder = self._holder(client) if client else None
                self.screen.draw(sales(self.screen, books, UMBRELLAS, len(self.crew.workers), holder))
                self.screen.note(f"  after {time.monotonic() - began:.0f} s: {books.sold} sold, {books.left} left on the shelf")

            wait(self.crew.workers, seconds + GRACE, tick)
            self._complain()
            books = shop.books()
        self.screen.draw(sales(self.screen, books, UMBRELLAS, len(self.crew.workers), None), now=True)
        self.screen.keep()
        return books

    def _holder(self, client: Client) -> int | None:
        """Which worker the lock store names as the holder, now."""
        try:
            return self.crew.number_of(client.inspect(LOCK).owner)
        except Unavailable:
            return None

    def _complain(self) -> None:
        for worker in self.crew.workers:
            if worker.report is None:
                worker.end()
                worker.report = {"end": "trouble", "why": "it did not come to an end in time"}
            if worker.report["end"] == "refused":
                self.screen.say(f"  worker {worker.number} came back after its lock had run out, and was refused by its fence")
            if worker.report["end"] == "trouble":
                self.screen.say(f"  worker {worker.number} stopped early: {worker.report['why']}")


def without_a_lock(stage: Stage) -> Outcome:
    """Act one. Shown if more umbrellas were sold than there were."""
    books = stage.sale("one", "", min(ACT_ONE, stage.time_left() / 3))
    told = f"{UMBRELLAS} umbrellas, {books.sold} sold"
    if books.sold <= UMBRELLAS:
        return Outcome(False, f"{told}: not oversold this time.", BUSY)
    number, times = books.worst
    return Outcome(True, f"{told}: OVERSOLD by {books.sold - UMBRELLAS}.", f"No. {number} alone was sold {times} times.")


def with_a_lock(stage: Stage, node: Node) -> Outcome:
    """Act two. Shown if every umbrella is either sold once or still there."""
    books = stage.sale("two", node.url, min(ACT_TWO, stage.time_left() - ACT_THREE - GRACE))
    told = f"{UMBRELLAS} umbrellas, {books.sold} sold, {books.left} left"
    if books.sold + books.left != UMBRELLAS or books.different != books.sold:
        return Outcome(False, f"{told}: NOT EXACT.", BUG)
    if books.sold == 0:
        return Outcome(False, f"{told}: nobody got to sell anything.", BUSY)
    in_time = "Time was up before all were sold. " if books.left else ""
    return Outcome(True, f"{told}: EXACT.", f"{in_time}No umbrella was sold twice.")


def a_late_worker(stage: Stage, node: Node) -> Outcome:
    """Act three. Shown if a worker that was frozen past the end of its lock was refused, and the books are right."""
    if stage.time_left() < ACT_THREE:
        return Outcome(False, "there was no time left for it.", BUSY)
    path, shop = stage.new_shop("three", FEW)
    with closing(shop), Client(node.url) as client:
        return _late(stage, shop, path, client, node.url)


def _late(stage: Stage, shop: Shop, path: str, client: Client, store: str) -> Outcome:
    screen = stage.screen
    late, other = stage.crew.workers[:2]
    late.order(shop=path, store=store, card=LONG_CARD, sales=1, seconds=SEALED_WITHIN)
    if not _in_the_middle(stage, late, shop, client):
        return Outcome(False, "worker 1 did not get to its sale in time.", BUSY)
    late.freeze()
    mine = shop.books().fence
    began = time.monotonic()
    screen.say(f"  worker 1  has the lock (fence {mine}) and is frozen amid a sale")
    other.order(shop=path, store=store, card=CARD, sales=1, seconds=TAKE_OVER)

    def tick() -> None:
        entry = client.inspect(LOCK)
        if entry.remaining and stage.crew.number_of(entry.owner) == late.number:
            bar = screen.bar(entry.remaining * 10, 99, "yellow")
            screen.draw([f"  worker 2  waits  {bar} worker 1's lock runs out in {entry.remaining:.1f} s"])

    try:
        wait([other], TAKE_OVER + GRACE, tick)
    finally:
        late.thaw()
    waited = time.monotonic() - began
    screen.draw([], now=True)
    books = shop.books()
    if other.report != {"end": "done"}:
        return Outcome(False, f"worker 2 did not get to sell in time ({other.report}).", BUSY)
    screen.say(f"  worker 2  gets it (fence {books.fence}) after {waited:.1f} s, sells one: {books.left} left")
    wait([late], WAKE_UP, lambda: None)
    books = shop.books()
    told = f"{FEW} umbrellas, {books.sold} sold, {books.left} left"
    if late.report is None:
        return Outcome(False, "worker 1 did not wake up in time.", BUSY)
    if late.report != {"end": "refused", "fence": mine, "newest": books.fence} or books.sold + books.left != FEW:
        return Outcome(False, f"{told}: the late write was not refused ({late.report}).", BUG)
    screen.say("  worker 1  wakes up unaware and writes its old count back. The shop REFUSES:")
    screen.say("            it has seen a newer fence, a number that grows with every grant.")
    return Outcome(True, f"{told}: EXACT. Late write REFUSED.")


def _in_the_middle(stage: Stage, late: Worker, shop: Shop, client: Client) -> bool:
    """Wait until the lock store names this worker and the shop is sealed with that very fence."""
    until = time.monotonic() + SEALED_WITHIN
    while time.monotonic() < until and late.report is None:
        entry = client.inspect(LOCK)
        if stage.crew.number_of(entry.owner) == late.number and shop.books().fence == entry.fence:
            return True
        time.sleep(0.01)
    return False
