"""A node that is silent when a lease is given back says nothing about the lease: its holder must not hear that it was lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interlock.core.claim import Claim, Granted, Place
from interlock.testing import Node
from interlock.testing.conformance import backend_of, take, token_of
from interlock.testing.faces import Kit, run_body

from .conftest import all_ears, urls


@pytest.fixture
def three(five: list[Node]) -> Iterator[list[Node]]:
    yield five[:3]
    five[1].resume()


def test_a_release_that_a_holding_node_does_not_answer_is_no_loss(three: list[Node], colour: str) -> None:
    """The lease stands on a bare quorum: one node has it, one is frozen, one never had it."""

    async def body(kit: Kit) -> None:
        client = kit.client(request_timeout=0.3)
        lease = await client.lock("x", ttl=20).acquire()
        three[2].command("DEL", "x")
        three[1].pause()
        assert await lease.release()
        assert lease.state == "released"
        three[1].resume()

    run_body(body, urls(three), colour)


def test_nor_is_such_a_hand_over(three: list[Node], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        inbox, backend = await all_ears(client), backend_of(client)
        lease, heir = await take(client, "x", 20.0), token_of(client)
        three[2].command("DEL", "x")
        three[1].pause()
        claim = Claim("x", heir, 20.0, Place(1, inbox, 20.0))
        handed = await backend.hand_over("x", lease.token, claim, 0, 1.0)  # type: ignore[attr-defined]
        assert handed.held
        assert isinstance(handed.heir, Granted)
        three[1].resume()
        await backend.release("x", heir, 5.0)

    run_body(body, urls(three), colour)


def test_what_a_majority_does_not_have_is_lost(three: list[Node], colour: str) -> None:
    """The control."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        lease = await client.lock("x", ttl=20).acquire()
        for node in three[1:]:
            node.command("DEL", "x")
        assert not await lease.release()
        assert lease.lost

    run_body(body, urls(three), colour)
