"""A process that holds leases forks, and the child does all that a child can do: the parent must not notice.

The parents are processes of their own (fork_worker.py), since a child of pytest would be pytest again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trustme

from interlock.testing import Node
from interlock.testing.nodes import TLS

from .support import LIMIT, Worker, scaled

# Colour, store, threads that use the client beside the one that forks. All run side by side: mostly they wait.
PARENTS = [
    ("blocking", "valkey", 0),
    ("blocking", "tls", 0),
    ("blocking", "sqlite", 0),
    ("blocking", "valkey", 3),
    ("blocking", "sqlite", 2),
    ("asyncio", "valkey", 0),
    ("asyncio", "tls", 0),
    ("asyncio", "sqlite", 0),
]


@pytest.fixture
def places(valkey_node: Node, fresh_node: Callable[..., Node], tmp_path: Path) -> Callable[[str, int], str]:
    """Where each parent's store is."""
    authority = trustme.CA()
    paths = [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(paths[0])
    certificate.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])

    @cache
    def secure() -> Node:
        return fresh_node(kind="redis", tls=TLS(*map(str, paths)))

    def place(kind: str, number: int) -> str:
        if kind == "sqlite":
            return f"sqlite://{tmp_path}/{number}.db"
        # A database each: the trials of two parents have the same names.
        return f"{valkey_node.url}/{number}" if kind == "valkey" else f"{secure().tls_url}/{number}?ssl_ca_certs={paths[2]}"

    return place


@pytest.mark.timeout(LIMIT)
def test_nothing_that_a_child_does_harms_its_parent(places: Callable[[str, int], str]) -> None:
    each = scaled(3)  # here they share the actions out among them; at full scale each does them all
    wrong: list[Any] = []
    done: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    with ExitStack() as stack:
        parents = [
            stack.enter_context(Worker("fork_worker.py", colour, places(kind, number), threads, 3 * number, each))
            for number, (colour, kind, threads) in enumerate(PARENTS)
        ]
        for parent, (colour, kind, threads) in zip(parents, PARENTS, strict=True):
            where = f"{colour}, {kind}" + (f", {threads + 1} threads" if threads else "")
            for _ in range(each):
                action, trouble = parent.hear()
                done[where] += 1
                actions[action] += 1
                if trouble:
                    wrong.append((where, action, trouble))
    print(f"{sum(done.values())} forks: {dict(done)}; wrong {len(wrong)}; by action {dict(actions)}")
    assert wrong == []


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("kind", ["memory", "valkey"])
def test_a_fork_in_the_middle_of_a_ring_does_not_hang(kind: str, places: Callable[[str, int], str]) -> None:
    """The child starts as a copy of whatever its other threads had locked at that moment."""
    number = scaled(40)
    url = "memory://ringing" if kind == "memory" else places(kind, 15)
    with Worker("fork_worker.py", "ringing", url, 0, 0, number) as parent:
        wrong = [trouble for _, trouble in (parent.hear() for _ in range(number)) if trouble]
    print(f"{number} forks, {len(wrong)} wrong")
    assert wrong == []
