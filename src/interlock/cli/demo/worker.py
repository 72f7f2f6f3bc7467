"""One worker of the demo: a process of its own that takes orders as JSON lines on stdin and reports each on stdout.

It ends at the end of its input, so it does not outlive the demo however that dies, and then removes the demo's directory,
which the demo can no longer do if it was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from random import uniform
from typing import Any

import interlock
from interlock import Client
from interlock.cli.demo.shop import Shop

Card = Callable[[], None]


def sell_without_lock(shop: Shop, check_card: Card) -> bool:
    """Read, think, write back: right as long as no other does the same. False when nothing is left."""
    left = shop.ask(READ)
    if left > 0:
        check_card()
        shop.change(WRITE_BLINDLY, n=left - 1)
        shop.record_sale(umbrella=left)
    return left > 0


# What stands between the marks is shown at the end of the demo, as it ran.
# [
SEAL = "UPDATE stock SET fence = :f WHERE item = 'umbrella' AND fence < :f"
READ = "SELECT pieces FROM stock WHERE item = 'umbrella'"
WRITE = "UPDATE stock SET pieces = :n WHERE item = 'umbrella' AND fence = :f"
# ]
WRITE_BLINDLY = "UPDATE stock SET pieces = :n WHERE item = 'umbrella'"


def sell_with_lock(shop: Shop, check_card: Card, client: Client) -> bool:
    """The same with all others kept out meanwhile, and with late comers refused by the shop."""
    # [
    with client.lock("stock:umbrella", ttl=2, timeout=5) as lease:
        shop.change(SEAL, f=lease.fence)  # from here on older fences stay out
        left = shop.ask(READ)
        if left > 0:
            check_card()  # slow: the payment provider is far away
            shop.change(WRITE, n=left - 1, f=lease.fence)
            shop.record_sale(umbrella=left)
    # ]
    return left > 0


def shown_code() -> str:
    """The marked parts of this very file: what it takes to sell with the lock."""
    source = inspect.getsource(sys.modules[__name__])
    parts = re.findall(r"^ *# \[\n(.*?\n) *# \]$", source, re.MULTILINE | re.DOTALL)
    return "\n".join(map(textwrap.dedent, parts)).rstrip()


def work(order: dict[str, Any], me: int, parent: int) -> dict[str, Any]:
    """Sell until the order is done. Reports why it ended: "sold out", "done", "time", "refused" or "trouble"."""
    until = time.monotonic() + order["seconds"]
    low, high = order["card"]

    def check_card() -> None:
        time.sleep(uniform(low, high))  # noqa: S311 - not a secret

    with contextlib.ExitStack() as stack:
        shop = Shop(order["shop"], me)
        stack.callback(shop.close)
        client = stack.enter_context(Client(order["store"])) if order["store"] else None
        sold = 0
        while time.monotonic() < until and os.getppid() == parent:
            try:
                done = sell_with_lock(shop, check_card, client) if client else sell_without_lock(shop, check_card)
            except interlock.StaleFence as error:
                return {"end": "refused", "fence": error.fence, "newest": error.newest}
            except (interlock.AcquireTimeout, interlock.LeaseLost):
                continue  # the books know whether this one was sold
            except interlock.InterlockError as error:
                return {"end": "trouble", "why": f"{type(error).__name__}: {error}"}
            if not done:
                return {"end": "sold out"}
            sold += 1
            if sold == order["sales"]:
                return {"end": "done"}
            time.sleep(uniform(0.02, 0.06))  # noqa: S311 - wrap the umbrella; the lock is free meanwhile
    return {"end": "time"}


def main() -> None:
    """Serve until the input ends."""
    me, directory, parent = int(sys.argv[1]), Path(sys.argv[2]), os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere a frozen worker needs its demo to wake it
        # Frozen when the demo is killed, it would stay frozen for ever: the kernel wakes it, and it sees the end of its input.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGCONT)
    logging.getLogger("interlock").addHandler(logging.NullHandler())  # the demo tells what happens; a log would spoil it
    with contextlib.suppress(ImportError):
        import redis.connection  # noqa: F401 - half a second of imports belongs before the race, not into it
    try:
        print(json.dumps({"end": "ready"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(work(json.loads(line), me, parent)), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the demo is gone
    shutil.rmtree(directory, ignore_errors=True)  # not after an error of ours: the others may be at work in there


if __name__ == "__main__":
    main()
