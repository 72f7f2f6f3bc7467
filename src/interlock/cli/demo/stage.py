"""What every act needs: a screen, the workers, a fresh shop, and a sale whose books are the only thing that counts."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing, nullcontext
from typing import NamedTuple

from ...api.client import Client
from ...errors import Unavailable
from .cluster import Cluster
from .crew import Crew, wait
from .screen import Screen, sales
from .shop import Books, Shop

UMBRELLAS = 60
LOCK = "stock:umbrella"
CARD = (0.02, 0.04)  # how long a payment provider takes, in seconds
GRACE = 0.7  # for the sale that is under way when time is up
LONG_GRACE = 1.5  # the same where nodes die: one that does not answer costs a question its `request_timeout`, a second


class Outcome(NamedTuple):
    """What an act came to: whether it showed what it should, the numbers for the verdict, and a remark."""

    shown: bool
    verdict: str
    remark: str = ""


class Stage(NamedTuple):
    """Where the acts are played."""

    screen: Screen
    crew: Crew
    directory: str
    until: float

    def time_left(self) -> float:
        """Seconds until the demo must have ended."""
        return self.until - time.monotonic()

    def new_shop(self, act: str, umbrellas: int) -> tuple[str, Shop]:
        """A fresh database with a full shelf: its path, and a connection to look into it."""
        path = f"{self.directory}/{act}.db"
        shop = Shop(path)
        shop.open_with(umbrellas)
        return path, shop

    def sale(self, act: str, store: str | Cluster, seconds: float) -> Books:
        """All workers sell until nothing is left or time is up; `store` is where the lock is, "" for none. The final books."""
        path, shop = self.new_shop(act, UMBRELLAS)
        where = store.urls if isinstance(store, Cluster) else store
        with closing(shop), self._onlooker(store) as client:
            for worker in self.crew.workers:
                worker.order(shop=path, store=where, card=CARD, sales=None, seconds=seconds)
            sale = Sale(self, shop, store, client, seconds)
            wait(self.crew.workers, seconds + (LONG_GRACE if isinstance(store, Cluster) else GRACE), sale.tick)
            self._complain()
            return sale.close()

    def _onlooker(self, store: str | Cluster) -> AbstractContextManager[Client | None]:
        """The play's own client, to see who has the lock."""
        if isinstance(store, Cluster):
            return store.client()
        return Client(store) if store else nullcontext()

    def _complain(self) -> None:
        for worker in self.crew.workers:
            if worker.report is None:
                worker.end()
                worker.report = {"end": "trouble", "why": "it did not come to an end in time"}
            if worker.report["end"] == "refused":
                self.screen.say(f"  worker {worker.number} came back after its lock had run out, and was refused by its fence")
            elif worker.report["end"] == "trouble":
                self.screen.say(f"  worker {worker.number} stopped early: {worker.report['why']}")


class Sale:
    """One sale as it is watched, and with a cluster also struck."""

    def __init__(self, stage: Stage, shop: Shop, store: str | Cluster, client: Client | None, seconds: float) -> None:
        self._screen, self._crew, self._shop = stage.screen, stage.crew, shop
        self._cluster = store if isinstance(store, Cluster) else None
        self._client = client
        self._seconds = seconds
        self._began = time.monotonic()
        self._told = False  # whether the votes were written down, where there is no picture
        self._screen.pause_notes()

    def tick(self) -> None:
        """Look at the lock and into the books, show both, and strike a node when its time has come."""
        holder = self._look()
        books = self._shop.books()
        gone = time.monotonic() - self._began
        self._draw(books, holder)
        self._screen.note(f"  after {gone:.0f} s: {books.sold} sold, {books.left} left on the shelf")
        if self._cluster:
            if holder and self._cluster.proven:
                self._tell_votes(gone)
            if done := self._cluster.go_on(books.sold, max(books.sold / UMBRELLAS, gone / self._seconds)):
                self._screen.note(f"  after {gone:.1f} s: {books.sold} sold, and now {done}", now=True)

    def close(self) -> Books:
        """The last look; the picture stays. What the books say."""
        self._look()
        if self._cluster and self._cluster.proven:
            self._tell_votes(time.monotonic() - self._began)
        books = self._shop.books()
        self._draw(books, None, now=True)
        self._screen.keep()
        return books

    def _look(self) -> int | None:
        """Which worker the store names as the holder, now."""
        if self._client is None:
            return None
        try:
            entry = self._cluster.look(self._client, LOCK) if self._cluster else self._client.inspect(LOCK)
        except Unavailable:
            return None
        return self._crew.number_of(entry.owner) if entry else None

    def _draw(self, books: Books, holder: int | None, now: bool = False) -> None:
        nodes = self._cluster.lines(self._crew.number_of, self._screen.paint) if self._cluster else []
        self._screen.draw(sales(self._screen, books, UMBRELLAS, len(self._crew.workers), holder, nodes), now)

    def _tell_votes(self, gone: float) -> None:
        """Once, where there is no picture: what each node says of the lock with two of them down."""
        if self._cluster and not self._told:
            self._told = True
            table = "".join(f"\n    {line}" for line in self._cluster.lines(self._crew.number_of, self._screen.paint))
            self._screen.note(f"  after {gone:.1f} s: who has the lock? The nodes say:{table}", now=True)
