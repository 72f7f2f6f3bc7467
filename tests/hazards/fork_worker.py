"""The parents of test_fork.py: `fork_worker.py COLOUR URL THREADS FIRST NUMBER`.

In each trial the parent holds a renewed lease and forks; the child does one thing to what it inherited and ends; then the
parent looks whether it still has what it had. A JSON line for each fork: [action, what went wrong].
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from support import tell

import interlock

logging.disable(logging.CRITICAL)
faulthandler.register(signal.SIGUSR1)

TTL = 1.4
PATIENCE = 10.0
box: dict[str, Any] = {}  # the parent's client and lease: nothing else refers to them, so that a child can really drop them

# What the child does, and the code that it is to end with. Negative: the signal.
BLOCKING = {
    "looks": 0,
    "releases": 0,
    "extends": 0,
    "leaves the block": 0,
    "leaves the block by an exception": 0,
    "leaves the block by sys.exit": 7,
    "closes the client": 0,
    "uses the client": 0,
    "drops everything": 0,
    "drops everything and exits": 7,
    "exits": 7,
    "exits at once": 9,
    "is killed": -signal.SIGKILL,
    "is a multiprocessing.Process": 0,
    "outlives the trial": 0,
}
ASYNCIO = {action: code for action, code in BLOCKING.items() if "exits" not in action and "sys.exit" not in action}
ASYNCIO["exits at once"] = 9


class Leave(Exception):
    pass


class Wrong(Exception):
    pass


def sure(true: object, what: str) -> None:
    if not true:
        raise Wrong(what)


# --- in the child -----------------------------------------------------------------------------------------------------------


def refused(work: Any) -> None:
    """A coroutine of the parent's AsyncClient: it raises at once, and asks nobody."""
    try:
        work.send(None)
    except (interlock.LeaseLost, interlock.UsageError):
        return
    except StopIteration as stop:
        sure(stop.value is False, f"it answered {stop.value}")
        return
    raise Wrong("it went to the store")


def lost() -> None:
    lease = box["lease"]
    sure(lease.lost and lease.state == "lost" and lease.remaining() == 0.0, f"the lease says {lease.state}")
    sure(lease.reason == "forked", f"the reason is {lease.reason}")
    try:
        lease.check()
    except interlock.LeaseLost as error:
        sure(error.reason == "forked", f"the error says {error.reason}")
    else:
        raise Wrong("check() passed")


def act(action: str, colour: str, url: str, name: str) -> None:
    """One thing. May not come back; if it does, the child leaves the block."""
    lost()
    if action == "looks":
        os._exit(0)
    elif action == "releases":
        for _ in range(2):
            if colour == "blocking":
                sure(box["lease"].release() is False, "it released")
            else:
                refused(box["lease"].release())
        os._exit(0)
    elif action == "extends":
        if colour == "blocking":
            try:
                box["lease"].extend(60)
            except interlock.LeaseLost as error:
                os._exit(0 if error.reason == "forked" else 3)
            raise Wrong("it extended")
        refused(box["lease"].extend(60))
        os._exit(0)
    elif action == "leaves the block by an exception":
        raise Leave
    elif action == "leaves the block by sys.exit":
        sys.exit(7)
    elif action == "closes the client":
        if colour == "blocking":
            box["client"].close()
        else:
            asyncio.run(box["client"].close())
        os._exit(0)
    elif action == "uses the client":
        use(colour, url, name)
        os._exit(0)
    elif action.startswith("drops everything"):
        box.clear()
        gc.collect()
        if "exits" in action:
            sys.exit(7)
        os._exit(0)
    elif action == "exits":
        sys.exit(7)
    elif action == "exits at once":
        os._exit(9)
    elif action == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "outlives the trial":
        if os.fork():
            os._exit(0)
        time.sleep(3 * TTL)
        os._exit(0)


def use(colour: str, url: str, name: str) -> None:
    """The child locks for itself: by the same client if it is a blocking one, else by its own."""
    if colour == "asyncio":

        async def main() -> None:
            try:
                await box["client"].lock("child's").acquire()
            except interlock.UsageError:
                pass
            else:
                raise Wrong("the parent's AsyncClient worked in the child")
            async with interlock.AsyncClient(url) as client, client.lock(f"child:{name}", ttl=TTL) as lease:
                sure(await client.lock(name).try_acquire() is None, "the parent's lock was given away")
                await asyncio.sleep(1.5 * TTL)
                sure(lease.state == "held" and client.keeping().renewals, "the child's own lease was not renewed")

        asyncio.run(main())
        return
    client = box["client"]
    sure(client.lock(name).try_acquire() is None, "the parent's lock was given away")
    with client.lock(f"child:{name}", ttl=TTL) as lease:
        before = client.keeping().renewals
        time.sleep(1.5 * TTL)
        sure(lease.state == "held", f"the child's own lease is {lease.state}")
        sure(client.keeping().renewals > before, "the child's own lease was not renewed")
        keepers = [thread for thread in threading.enumerate() if thread.name == "interlock-keeper" and thread.is_alive()]
        sure(len(keepers) == 1, f"the child has {len(keepers)} keepers")
    client.close()


def at_home(colour: str, url: str, name: str) -> None:
    """What a multiprocessing.Process runs."""
    lost()
    if colour == "blocking":
        sure(box["lease"].release() is False, "it released")
    else:
        refused(box["lease"].release())
    use(colour, url, name)


def end_wrong() -> None:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(5)


# --- in the parent ----------------------------------------------------------------------------------------------------------


def reaped(pid: int) -> int:
    """How the child ended. Killed if it does not end at all."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGUSR1)  # it says where
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise Wrong("the child hangs")


class Observer:
    """Looks at the store on connections of its own. Not used by children."""

    def __init__(self, url: str) -> None:
        self.client = interlock.Client(url, request_timeout=5)
        self.client.inspect("x")
        self.raw: Any = None
        if url.startswith("redis"):
            import redis

            self.raw = redis.Redis.from_url(url)

    def holder(self, name: str) -> Any:
        """The token in the store, or the fence where tokens are not to be seen."""
        if self.raw is None:
            return self.client.inspect(name).fence
        token = self.raw.get(name)
        return token.decode() if token else None

    def held(self, name: str) -> bool:
        return self.client.inspect(name).held

    def close(self) -> None:
        self.client.close()
        if self.raw is not None:
            self.raw.close()


def as_before(name: str, observer: Observer) -> None:
    lease = box["lease"]
    sure(lease.state == "held", f"the parent's lease is {lease.state} ({lease.reason})")
    mine = lease.fence if observer.raw is None else lease.token
    sure(observer.holder(name) == mine, "the store says that somebody else holds it, or nobody")


def blocking(url: str, busy: int, first: int, number: int) -> None:
    box["client"] = interlock.Client(url, request_timeout=5)
    observer = Observer(url)
    over = threading.Event()

    def work() -> None:
        """Other threads use the client all the time, so that a fork finds it in the middle of something."""
        client = box["client"]
        while not over.is_set():
            with client.lock(f"busy:{threading.get_ident()}", ttl=random.choice([2, 5, 10]), timeout=10):
                time.sleep(random.random() * 0.002)

    threads = [threading.Thread(target=work) for _ in range(busy)]
    for thread in threads:
        thread.start()
    actions = list(BLOCKING.items())
    for turn in range(first, first + number):
        action, code = actions[turn % len(actions)]
        trial_blocking(action, code, url, f"{action}:{turn}", observer)
    over.set()
    for thread in threads:
        thread.join()
    box.pop("client").close()
    observer.close()


def trial_blocking(action: str, code: int, url: str, name: str, observer: Observer) -> None:
    wrong, child, ended = "", False, False
    try:
        with box["client"].lock(name, ttl=TTL, timeout=20) as box["lease"]:
            if action == "is a multiprocessing.Process":
                process = multiprocessing.get_context("fork").Process(target=at_home, args=("blocking", url, name))
                process.start()
                process.join(PATIENCE)
                sure(process.exitcode == 0, f"the child ended with {process.exitcode}")
            elif child := (pid := os.fork()) == 0:
                act(action, "blocking", url, name)
            else:
                ended = reaped(pid)
                sure(ended == code, f"the child ended with {ended}, not {code}")
            if not child:
                as_before(name, observer)
                renewals = box["client"].keeping().renewals
                time.sleep(1.4 * TTL)
                as_before(name, observer)
                sure(box["client"].keeping().renewals > renewals, "the parent renews nothing any more")
                for _ in range(3):
                    sure(box["client"].inspect(name).fence == box["lease"].fence, "a connection does not answer well")
                box["lease"].extend(TTL)
                sure(box["lease"].release() is True, "the parent could not release")
                sure(not observer.held(name), "it is still held after the release")
    except SystemExit:
        raise  # only a child does that, and it wants the long way out
    except Leave:
        os._exit(0)
    except interlock.LeaseLost as error:
        if child:
            os._exit(0 if error.reason == "forked" else 3)
        wrong = repr(error)
    except BaseException as error:
        if child:
            end_wrong()
        wrong = repr(error)
    else:
        if child:
            os._exit(4)  # it left the block and nobody told it anything
    box.pop("lease", None)
    tell([action, wrong])


async def asynchronous(url: str, first: int, number: int) -> None:
    box["client"] = interlock.AsyncClient(url, request_timeout=5)
    observer = Observer(url)
    actions = list(ASYNCIO.items())
    for turn in range(first, first + number):
        action, code = actions[turn % len(actions)]
        await trial_asyncio(action, code, url, f"{action}:{turn}", observer)
    await box.pop("client").close()
    observer.close()


async def trial_asyncio(action: str, code: int, url: str, name: str, observer: Observer) -> None:
    wrong, child = "", False
    try:
        async with box["client"].lock(name, ttl=TTL, timeout=20) as box["lease"]:
            if action == "is a multiprocessing.Process":
                process = multiprocessing.get_context("fork").Process(target=at_home, args=("asyncio", url, name))
                process.start()
                await asyncio.to_thread(process.join, PATIENCE)
                sure(process.exitcode == 0, f"the child ended with {process.exitcode}")
            elif child := (pid := os.fork()) == 0:
                act(action, "asyncio", url, name)
            else:
                ended = await asyncio.to_thread(reaped, pid)  # a thread's answer: the loop hears what comes from elsewhere
                sure(ended == code, f"the child ended with {ended}, not {code}")
            if not child:
                await asyncio.to_thread(as_before, name, observer)
                renewals = box["client"].keeping().renewals
                await asyncio.sleep(1.4 * TTL)
                await asyncio.to_thread(as_before, name, observer)
                sure(box["client"].keeping().renewals > renewals, "the parent renews nothing any more")
                for _ in range(3):
                    entry = await box["client"].inspect(name)
                    sure(entry.fence == box["lease"].fence, "a connection does not answer well")
                await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.001), 5)
                await box["lease"].extend(TTL)
                sure(await box["lease"].release() is True, "the parent could not release")
                sure(not await asyncio.to_thread(observer.held, name), "it is still held after the release")
    except Leave:
        os._exit(0)
    except (interlock.LeaseLost, interlock.UsageError) as error:
        if child:  # the block says that it is the parent's, one way or the other
            os._exit(0 if "parent" in str(error) else 3)
        wrong = repr(error)
    except BaseException as error:
        if child:
            end_wrong()
        wrong = repr(error)
    else:
        if child:
            os._exit(4)
    box.pop("lease", None)
    tell([action, wrong])


def ringing(url: str, number: int) -> None:
    """Forks, while other threads take and give back locks so fast that the keeper's bell never stops ringing."""
    client = box["client"] = interlock.Client(url, request_timeout=5)
    with client.lock(
        "all is imported"
    ):  # a fork in the middle of an import hangs whoever imports the same: Python's own affair
        pass
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for ttl in (10.0, 5.0):  # the second is due before the keeper would wake for the first
                with client.lock(f"busy:{threading.get_ident()}", ttl=ttl, timeout=10):
                    pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(number):
        wrong = ""
        if (pid := os.fork()) == 0:
            try:
                if not url.startswith("memory"):  # a copy of the parent's memory: there is nothing to lock in it
                    with client.lock(f"child:{os.getpid()}", ttl=10):
                        os._exit(0)
                os._exit(0)
            finally:
                end_wrong()
        try:
            code = reaped(pid)
            sure(code == 0, f"the child ended with {code}")
        except Wrong as error:
            wrong = repr(error)
        tell(["rings", wrong])
    over.set()
    for thread in threads:
        thread.join()
    client.close()


if __name__ == "__main__":
    colour, url, busy, first, number = sys.argv[1:]
    if colour == "ringing":
        ringing(url, int(number))
    elif colour == "blocking":
        blocking(url, int(busy), int(first), int(number))
    else:
        asyncio.run(asynchronous(url, int(first), int(number)))
