"""The keeper on real stores: leases live as long as they are held, and their holders are told when they do not."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

import interlock
from interlock.flow.renewing import keeper as keep
from interlock.testing import FaultProxy, Node
from interlock.testing.faces import COLOURS, Kit, run_body

TTL = 0.4
PATIENCE = 30.0


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


def keepers() -> int:
    return sum(thread.name == "interlock-keeper" for thread in threading.enumerate())


def test_a_lease_outlives_its_ttl_many_times(store: str, colour: str) -> None:
    async def body(kit: Kit) -> None:
        mine, other = kit.client(renew=True), kit.client()
        async with mine.lock("x", ttl=TTL) as lease:
            fence = lease.fence
            for _ in range(20):
                await kit.sleep(TTL / 4)
                assert not lease.lost
                assert await other.lock("x").try_acquire() is None
            assert lease.fence == fence
            kept = mine.keeping()
            assert (kept.leases, kept.losses) == (1, 0)
            assert kept.renewals >= 8, "about three in a ttl"
        assert mine.keeping().leases == 0
        taken = await other.lock("x", ttl=5).acquire(timeout=PATIENCE)
        assert taken.fence > fence
        await taken.release()

    run_body(body, store, colour)


def test_a_fixed_lease_has_nothing_in_the_background(store: str) -> None:
    with interlock.Client(store) as client:
        before = threading.active_count()
        with client.lock("x", ttl=5, renew=False):
            assert threading.active_count() == before
        with client.lock("x", ttl=5):
            assert threading.active_count() == before + 1
            with client.lock("y", ttl=5), client.lock("z", ttl=5):
                assert threading.active_count() == before + 1, "one keeper for all leases"


@pytest.mark.parametrize(("how", "reason"), [("deleted", "forced"), ("overwritten", "taken")])
def test_a_lease_that_the_store_gave_away_is_told(valkey_node: Node, colour: str, how: str, reason: str) -> None:
    async def body(kit: Kit) -> None:
        heard: list[str] = []
        lock = kit.client(renew=True).lock("x", ttl=1.2, on_lost=lambda lease: heard.append(lease.reason))
        lease = await lock.acquire()
        if how == "deleted":
            valkey_node.command("DEL", "x")
        else:
            valkey_node.command("SET", "x", "somebody else", "PX", "60000")
        assert await lease.wait_lost(PATIENCE)
        assert (lease.reason, lease.state, lease.remaining()) == (reason, "lost", 0.0)
        assert await lease.release() is False
        with pytest.raises(interlock.LeaseLost) as caught:
            lease.check()
        assert caught.value.reason == reason
        await eventually(kit, lambda: heard == [reason])

    run_body(body, valkey_node.url, colour)


async def eventually(kit: Kit, true: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        await kit.sleep(0.005)


def test_a_short_outage_is_survived(valkey_node: Node, colour: str) -> None:
    """Replies get lost for half a ttl: renewals fail, are tried again, and the lease is never lost."""
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(renew=True, request_timeout=0.1)
            lease = await client.lock("x", ttl=4).acquire()
            proxy.drop_replies()
            await eventually(kit, lambda: client.keeping().failures >= 2)
            proxy.heal()
            done = client.keeping().renewals
            await eventually(kit, lambda: client.keeping().renewals > done)
            assert lease.state == "held"
            assert client.keeping().losses == 0
            assert await lease.release()
            assert valkey_node.command("EXISTS", "x") == 0

        run_body(body, proxy.url, colour)


def test_a_long_outage_is_told_in_stages_and_ends_for_good(valkey_node: Node, colour: str) -> None:
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            heard: list[str] = []
            client = kit.client(renew=True, request_timeout=0.2)
            lock = client.lock(
                "x",
                ttl=1.5,
                on_doubtful=lambda lease: heard.append(f"doubtful while {lease.state}"),
                on_lost=lambda lease: heard.append(lease.reason),
            )
            lease = await lock.acquire()
            proxy.blackhole()
            assert await lease.wait_lost(PATIENCE)
            assert lease.reason == "unreachable"
            await eventually(kit, lambda: len(heard) == 2)
            assert heard == ["doubtful while doubtful", "unreachable"]
            began = time.monotonic()
            assert await lease.release() is False
            assert time.monotonic() - began < 0.2, "a release after the loss asks nobody, least of all a store that is away"
            proxy.heal()
            await kit.sleep(0.3)
            assert lease.lost, "what is lost stays lost, though the store is back"
            with pytest.raises(interlock.LeaseLost):
                await lease.extend()
            async with client.lock("x", ttl=5, timeout=PATIENCE):
                pass

        run_body(body, proxy.url, colour)


def test_a_renewal_that_got_through_unheard_does_not_close_the_name(valkey_node: Node, colour: str) -> None:
    """The reply to the last renewal is lost, so the holder gives up; the store would keep the lock for another ttl."""
    ttl = 3.0
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(renew=True, request_timeout=0.3)
            lease = await client.lock("x", ttl=ttl).acquire()
            proxy.drop_replies()
            assert await lease.wait_lost(PATIENCE)
            proxy.heal()
            assert valkey_node.command("PTTL", "x") > 0
            await eventually(kit, lambda: valkey_node.command("EXISTS", "x") == 0)
            assert lease.fence

        run_body(body, proxy.url, colour)


def test_many_leases_share_few_requests(valkey_node: Node, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(renew=True)
        threads = threading.active_count()
        leases = [await client.lock(f"many:{n}", ttl=3).acquire() for n in range(1000)]
        before = int(valkey_node.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].split(",")[0])
        started = client.keeping()
        await kit.sleep(4)
        kept = client.keeping()
        sent = int(valkey_node.info("commandstats")["cmdstat_evalsha"].split("calls=")[1].split(",")[0]) - before
        assert not any(lease.lost for lease in leases)
        assert kept.leases == 1000
        renewals = kept.renewals - started.renewals
        assert renewals >= 2000
        assert sent <= renewals / 50, "the server counts as well"
        assert kept.requests - started.requests <= renewals / 50
        assert threading.active_count() <= threads + 1
        for lease in leases:
            assert await lease.release()

    run_body(body, valkey_node.url, colour)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_renewal_goes_on_with_the_ttl_that_was_set_last(store: str, colour: str, factor: float) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client(renew=True)
        async with client.lock("x", ttl=1.0) as lease:
            await lease.extend(factor)
            assert lease.ttl == pytest.approx(factor)
            await kit.sleep(1.5)
            assert lease.state == "held"
            assert 0 < lease.remaining() <= factor
            entry = await client.inspect("x")
            assert entry.remaining is not None
            assert entry.remaining <= factor

    run_body(body, store, colour)


def test_max_hold_and_progress_end_renewal(store: str, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client, other = kit.client(renew=True), kit.client()
        began = time.monotonic()
        lease = await client.lock("x", ttl=TTL, max_hold=3 * TTL).acquire()
        assert await lease.wait_lost(PATIENCE)
        assert time.monotonic() - began > 1.5 * TTL
        assert lease.reason == "expired"
        with pytest.raises(interlock.LeaseLost, match="max_hold"):
            lease.check()
        taken = await other.lock("x").acquire(timeout=PATIENCE)
        assert time.monotonic() - began > 2.5 * TTL, "the store kept it as long as it was allowed to be held"
        await taken.release()

        lease = await client.lock("x", ttl=TTL, progress=2 * TTL).acquire()
        for _ in range(10):
            await kit.sleep(TTL / 4)
            lease.progress()
        assert await lease.wait_lost(PATIENCE)
        with pytest.raises(interlock.LeaseLost, match="progress"):
            lease.progress()

    run_body(body, store, colour)


def test_a_lock_delay_keeps_the_name_closed_after_a_loss_but_not_after_a_release(store: str, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client, other = kit.client(), kit.client()
        lock = client.lock("x", ttl=TTL, lock_delay=1.0)
        async with lock as lease:
            assert lease.remaining() <= TTL
        async with lock:  # released: free at once
            pass
        lease = await lock.acquire()
        until = time.monotonic() + TTL
        assert await lease.wait_lost(PATIENCE)
        assert lease.reason == "expired"
        taken = await other.lock("x").acquire(timeout=PATIENCE)
        assert time.monotonic() > until + 0.9, "it stayed closed"
        await taken.release()

        renewed = kit.client(renew=True)
        async with renewed.lock("x", ttl=TTL, lock_delay=1.0) as lease:
            await kit.sleep(2 * TTL)
            assert 0 < lease.remaining() <= TTL, "what is renewed is the lease, not the delay"
        async with other.lock("x", timeout=0):
            pass

    run_body(body, store, colour)


def test_a_note_is_shown_to_everybody(store: str, colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        async with client.lock("x", note="deploy 812"):
            entry = await client.inspect("x")
            assert entry.owner.endswith(" (deploy 812)")
            with pytest.raises(interlock.AcquireTimeout, match=r"\(deploy 812\), which is this process"):
                await client.lock("x").acquire(timeout=0)

    run_body(body, store, colour)


# --- its own life ---------------------------------------------------------------------------------------------------------


def test_a_keeper_with_nothing_to_keep_ends_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "LINGER", 0.05)
    with interlock.Client("memory://linger") as client:
        for _ in range(3):
            with client.lock("x", ttl=TTL) as lease:
                time.sleep(2 * TTL)
                assert lease.state == "held"
                assert keepers() == 1
            until = time.monotonic() + PATIENCE
            while keepers():
                assert time.monotonic() < until
                time.sleep(0.01)


def test_leases_come_and_go_while_the_keeper_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment in which it decides to end is the moment in which a lease must not be overlooked."""
    monkeypatch.setattr(keep, "LINGER", 0.0)
    with interlock.Client("memory://coming-and-going") as client:
        lock = client.lock("x", ttl=0.15)
        for n in range(40):
            with lock as lease:
                time.sleep(0.2 if n % 8 == 0 else 0.001 * (n % 5))
                assert lease.state == "held", n


def test_closing_the_client_ends_the_keeper(store: str) -> None:
    client = interlock.Client(store)
    lease = client.lock("x", ttl=TTL).acquire()
    client.close()
    assert keepers() == 0
    assert lease.wait_lost(PATIENCE), "nobody renews it any more"
    assert lease.reason == "expired"


def test_a_defect_of_ours_does_not_end_renewal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(keep, "HICCUP", 0.01)
    with interlock.Client("memory://defect") as client:
        real, broken = client._context.backend.renew, 2

        async def renew(leases: Any, within: float) -> Any:
            nonlocal broken
            if broken:
                broken -= 1
                raise RuntimeError("a defect")
            return await real(leases, within)

        monkeypatch.setattr(client._context.backend, "renew", renew)
        with caplog.at_level(logging.ERROR), client.lock("x", ttl=TTL) as lease:
            time.sleep(3 * TTL)
            assert lease.state == "held"
        assert "failed and goes on" in caplog.text


def test_a_slow_callback_costs_no_other_lease() -> None:
    with interlock.Client("memory://slow") as client:
        done = threading.Event()
        first = client.lock("a", ttl=TTL, max_hold=TTL, on_lost=lambda lease: done.wait(PATIENCE)).acquire()
        with client.lock("b", ttl=TTL) as second:
            assert first.wait_lost(PATIENCE)
            time.sleep(3 * TTL)
            assert second.state == "held"
            done.set()


def test_a_blocked_event_loop_is_measured_and_found_out(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with interlock.AsyncClient("memory://starved") as client:
            with pytest.raises(interlock.LeaseLost) as caught:
                async with client.lock("x", ttl=TTL) as lease:
                    time.sleep(2 * TTL)
                    assert lease.lost, "though nothing ran in between"
                    await asyncio.sleep(PATIENCE)
            assert caught.value.reason == "paused"
            async with client.lock("x", ttl=2 * TTL) as lease:
                time.sleep(0.8 * TTL)
                await asyncio.sleep(TTL / 2)
                assert lease.state == "held", "late, but not too late"
            assert client.keeping().lateness > TTL / 10

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "starved" in caplog.text


def test_a_release_waits_for_the_renewal_that_is_on_its_way(valkey_node: Node, colour: str) -> None:
    with FaultProxy(valkey_node.port) as proxy:

        async def body(kit: Kit) -> None:
            client = kit.client(renew=True, request_timeout=5)
            lease = await client.lock("x", ttl=2).acquire()
            proxy.delay(0.5)
            await eventually(kit, lambda: client.keeping().requests == 1)
            seen = client.keeping().renewals
            assert await lease.release()
            assert client.keeping().renewals == seen + 1, "it was answered first"
            assert valkey_node.command("EXISTS", "x") == 0

        run_body(body, proxy.url, colour)
