"""What others wrote into the store neither steers a terminal nor makes lines of its own, wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread

import pytest

import interlock
from interlock.testing.nodes import Node

from .run_support import until
from .support import Run

EVIL = "web\x1b]0;title\x07\x1b[2J\r\ninterlock: job is free\u202egnorw\x9b31m\u2028:1 (a\x7f\tnote)"


class Evil:
    """Holds a lock, and has somebody wait for it, under such names."""

    def __init__(self, url: str | list[str], name: str = "job") -> None:
        self._stack, self._url, self._name = ExitStack(), url, name

    def __enter__(self) -> None:
        holder, waiter = (self._stack.enter_context(interlock.Client(self._url)) for _ in range(2))
        for number, client in enumerate((holder, waiter)):
            self._disguise(client, number)
        self._stack.enter_context(holder.lock(self._name))
        thread = Thread(target=self._wait, args=(waiter,))
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(waiter.close)  # which has it give up
        until(lambda: holder.inspect(self._name).waiters == 1, "it to stand in line")

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _disguise(self, client: interlock.Client, number: int) -> None:
        client._context.runtime.token = lambda note="": f"{number:032x}~{EVIL}"  # type: ignore[method-assign]

    def _wait(self, waiter: interlock.Client) -> None:
        with pytest.raises(interlock.UsageError, match="closed"):
            waiter.lock(self._name).acquire()


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and "web\\x1b" in text


def test_wherever_it_is_shown(run: Run, url: str) -> None:
    with Evil(url):
        busy = run("run", "job", "-n", "--url", url, "--", "true")
        late = run("run", "job", "--timeout", "100ms", "--url", url, "--", "true")
        waited = run("wait", "job", "--timeout", "0", "--url", url)
        status = run("status", "job", "--url", url)
        facts = run("status", "job", "--json", "--url", url)
        with interlock.Client(url) as client, pytest.raises(interlock.AcquireTimeout) as caught:
            client.lock("job").acquire(timeout=0)
    for done in (busy, late, waited):
        assert (done.returncode, done.stderr.count("\n")) == (75, 1)
        assert harmless(done.stderr)
    assert harmless(status.stdout)
    assert sum(line.startswith("interlock:") for line in status.stdout.splitlines()) == 0
    assert harmless(str(caught.value))
    assert "\n" not in str(caught.value)
    assert caught.value.owner == EVIL, "the fact itself is not touched"
    assert facts.stdout.isascii()
    told = json.loads(facts.stdout)
    assert told["owner"] == EVIL
    assert told["waiting"][0]["owner"] == EVIL


def test_the_votes_of_a_quorum(run: Run, make_nodes: Callable[..., list[Node]]) -> None:
    nodes = make_nodes(3)
    urls = [node.url for node in nodes]
    with interlock.Client(urls) as holder:
        holder._context.runtime.token = lambda note="": f"{1:032x}~{EVIL}"  # type: ignore[method-assign]
        with holder.lock("job"):
            busy = run("run", "job", "-n", "--url", ",".join(urls), "--", "true")
            status = run("status", "job", "--url", ",".join(urls))
            with interlock.Client(urls) as client, pytest.raises(interlock.AcquireTimeout) as caught:
                client.lock("job").acquire(timeout=0)
    assert (busy.returncode, busy.stderr.count("\n")) == (75, 1)
    assert harmless(busy.stderr)
    assert harmless(status.stdout)
    assert harmless(str(caught.value))
    assert str(caught.value).count("\n") == 3, "a line for each node"
