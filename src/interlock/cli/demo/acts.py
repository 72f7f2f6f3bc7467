"""The four acts. Each gets a fresh shop, sets the workers going, and judges what the shop's books say afterwards."""

from __future__ import annotations

import time
from contextlib import closing

from ...api.client import Client
from ...testing.nodes import Node
from .cluster import Cluster
from .crew import Worker, wait
from .shop import Books, Shop
from .stage import CARD, GRACE, LOCK, LONG_GRACE, UMBRELLAS, Outcome, Stage

LONG_CARD = (0.6, 0.6)  # long enough to be frozen in the middle of it
SEALED_WITHIN = 0.8
FEW = 2  # umbrellas in act four
BUSY = "Is this machine very busy? Try again."
BUG = "That must never happen: please report it."

# In seconds. An act that runs out of time is judged as it stands.
ACT_ONE = 2.0
ACT_TWO = 3.0
ACT_THREE = 4.0
TAKE_OVER = 2.6
WAKE_UP = 0.8
ACT_FOUR = SEALED_WITHIN + TAKE_OVER + GRACE + WAKE_UP  # at worst


def without_a_lock(stage: Stage) -> Outcome:
    """Act one. Shown if more umbrellas were sold than there were."""
    books = stage.sale("one", "", min(ACT_ONE, stage.time_left() / 7))
    told = f"{UMBRELLAS} umbrellas, {books.sold} sold"
    if books.sold <= UMBRELLAS:
        return Outcome(False, f"{told}: not oversold this time.", BUSY)
    number, times = books.worst
    return Outcome(True, f"{told}: OVERSOLD by {books.sold - UMBRELLAS}.", f"No. {number} alone was sold {times} times.")


def with_a_lock(stage: Stage, node: Node) -> Outcome:
    """Act two. Shown if every umbrella is either sold once or still there."""
    books = stage.sale("two", node.url, min(ACT_TWO, (stage.time_left() - ACT_FOUR - LONG_GRACE - GRACE) / 2))
    return _exact(books, "No umbrella was sold twice.")


def five_nodes(stage: Stage, cluster: Cluster) -> Outcome:
    """Act three. Shown if the books are right as in act two, and sales went on with two nodes without an answer."""
    books = stage.sale("three", cluster, min(ACT_THREE, stage.time_left() - ACT_FOUR - LONG_GRACE))
    after = books.sold - (books.sold if cluster.struck_at is None else cluster.struck_at)
    alive = len(cluster.urls) - cluster.dead
    outcome = _exact(books, f"{after} of them were sold with {alive} of {len(cluster.urls)} nodes alive.")
    if outcome.shown and not cluster.proven:
        return Outcome(False, f"{outcome.verdict} But no moment was seen with two nodes down.", BUSY)
    if outcome.shown and not after:
        return Outcome(False, f"{outcome.verdict} But nothing was sold with {cluster.dead} nodes down.", BUSY)
    return outcome


def _exact(books: Books, remark: str) -> Outcome:
    left = f", {books.left} left" if books.left else ""
    told = f"{UMBRELLAS} umbrellas, {books.sold} sold{left}"
    if books.sold + books.left != UMBRELLAS or books.different != books.sold:
        return Outcome(False, f"{told}: NOT EXACT.", BUG)
    if books.sold == 0:
        return Outcome(False, f"{told}: nobody got to sell anything.", BUSY)
    in_time = "Time was up before all were sold. " if books.left else ""
    return Outcome(True, f"{told}: EXACT.", in_time + remark)


def a_late_worker(stage: Stage, node: Node) -> Outcome:
    """Act four. Shown if a worker that was frozen past the end of its lock was refused, and the books are right."""
    if stage.time_left() < ACT_FOUR:
        return Outcome(False, "there was no time left for it.", BUSY)
    path, shop = stage.new_shop("four", FEW)
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
    return Outcome(True, f"{told}, late sale REFUSED.")


def _in_the_middle(stage: Stage, late: Worker, shop: Shop, client: Client) -> bool:
    """Wait until the lock store names this worker and the shop is sealed with that very fence."""
    until = time.monotonic() + SEALED_WITHIN
    while time.monotonic() < until and late.report is None:
        entry = client.inspect(LOCK)
        if stage.crew.number_of(entry.owner) == late.number and shop.books().fence == entry.fence:
            return True
        time.sleep(0.01)
    return False
