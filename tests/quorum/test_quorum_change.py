"""The list of nodes of a quorum is changed, on real nodes, while clients of both lists are at work: never two holders."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, cast

import pytest

import interlock
from interlock.backends.port import LineMember, Member, NodeStatus
from interlock.backends.quorum.change import Outcome, Progress, QuorumChange
from interlock.backends.registry import open_member
from interlock.core import change
from interlock.core.claim import Claim, Gone, Granted, Place, Refused, Unmarked
from interlock.core.quorum import Marker, votes_needed
from interlock.runtime.aio import AsyncioRuntime
from interlock.runtime.base import now
from interlock.runtime.blocking import BlockingRuntime, run
from interlock.testing import Node
from interlock.testing.faces import Kit, run_body
from interlock.testing.history import Event, check

from .conftest import urls

WITHIN = 2.0


def addresses(nodes: Sequence[Node]) -> list[str]:
    """As they call themselves, without the database."""
    return [f"redis://127.0.0.1:{node.port}" for node in nodes]


class Stopped(BaseException):
    """Whoever makes the change is killed here."""


class Path:
    """The way to a member. Whoever goes it is killed at the `last` enrolment of all, just before or just after it; and those
    whose addresses are `away` cannot be reached."""

    def __init__(self, member: Member, count: list[int], cut: tuple[int, bool], away: set[str]) -> None:
        self._member, self._count, self._away = member, count, away
        self._last, self._after = cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    async def roll(self, within: float, mark: bool = False, window: float = 0.0, waits: Any = ()) -> NodeStatus:
        self._there()
        return await self._member.roll(within, mark, window, waits)

    async def enroll(self, roll: Marker, loss: str, within: float) -> bool:
        self._there()
        self._count[0] += 1
        if self._count[0] > self._last or (self._count[0] == self._last and not self._after):
            raise Stopped
        taken = await self._member.enroll(roll, loss, within)
        if self._count[0] == self._last:
            raise Stopped
        return taken

    def _there(self) -> None:
        if self._member.address in self._away:
            raise interlock.Unavailable("away", backend=self._member.address, cause="timeout")


@contextmanager
def members(old: Sequence[str], new: Sequence[str], runtime: Any, end: Callable[..., Any]) -> Iterator[list[list[Member]]]:
    opened = {url: open_member(url, runtime) for url in dict.fromkeys((*old, *new))}
    yield [[opened[url] for url in some] for some in (old, new)]
    for member in opened.values():
        end(member.close())


def make(
    old: Sequence[str],
    new: Sequence[str],
    what: Callable[[QuorumChange], Coroutine[Any, Any, Outcome]] = lambda work: work.run(),
    cut: tuple[int, bool] = (10**6, False),
    away: set[str] | None = None,
) -> Outcome:
    """Make the change, in this thread."""
    with members(old, new, BlockingRuntime(), run) as (before, after):
        count, gone = [0], set[str]() if away is None else away
        paths = [[cast(Member, Path(member, count, cut, gone)) for member in some] for some in (before, after)]
        return run(what(QuorumChange(paths[0], paths[1], BlockingRuntime(), WITHIN)))


async def amake(old: Sequence[str], new: Sequence[str]) -> Outcome:
    """The same in asyncio."""
    runtime = cast(Any, AsyncioRuntime())
    opened = {url: open_member(url, runtime) for url in dict.fromkeys((*old, *new))}
    try:
        return await QuorumChange([opened[url] for url in old], [opened[url] for url in new], runtime, WITHIN).run()
    finally:
        for member in opened.values():
            await member.close()


def able(nodes: Sequence[str]) -> bool:
    """Whether votes can be won under this list."""

    async def look() -> list[Any]:
        return [await member.roll(WITHIN) for member in some]

    with members(nodes, (), BlockingRuntime(), run) as (some, _):
        standings = run(look())
        listed = tuple(sorted(member.address for member in some))
    good = [one for one in standings if one.good and not one.roll.closed and one.roll.nodes == listed]
    return len(good) >= votes_needed(len(nodes))


def take(nodes: Sequence[str], name: str, ttl: float = 0.3) -> int:
    """The fence of a lock that is given back at once."""
    with interlock.Client(list(nodes), ttl=ttl, renew=False) as client:
        lease = client.lock(name).acquire(timeout=10)
        assert lease.release()
        return lease.fence


# --- under load ---------------------------------------------------------------------------------------------------------


class Load:
    """Clients of both lists, in both colours, that want one lock all the time. What they did, as a history."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self.history: list[Event] = []
        self.refused: list[str] = []
        self.over = False
        self._guard, self._leaving = threading.Lock(), set[str]()
        self._threads = [
            threading.Thread(target=self._blocking, args=(f"{name} {number}", nodes, number == 0))
            for name, nodes in (("old", old), ("new", new))
            for number in range(2)
        ]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._tasks(old, new))))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        for thread in self._threads:
            thread.join()

    def winners(self) -> set[str]:
        return {event.who.split()[0] for event in self.history if event.what == "got"}

    async def wait_for(self, who: str, more: int, sleep: Callable[[float], Any]) -> None:
        """Until clients of that list have got it so many times more."""
        before, until = self._count(who), time.monotonic() + 30
        while self._count(who) < before + more:
            assert time.monotonic() < until, f"{who}: {self.refused[-3:]}"
            sleep(0.02)

    def _count(self, who: str) -> int:
        return sum(event.what == "got" and event.who.startswith(who) for event in list(self.history))

    def _write(self, who: str, what: str, key: str, **more: Any) -> None:
        self.history.append(Event(now(), who, what, "x", key, **more))

    def _got(self, who: str, key: str, lease: Any) -> None:
        hold = lease._hold
        self._write(who, "got", key, fence=lease.fence, until=hold.deadline)

        def landed(what: str) -> None:  # an extension may land while the lease is being released: nobody believes it then
            with self._guard:
                if what == "landed" and key not in self._leaving:
                    self._write(who, "kept", key, until=hold.deadline)

        hold.watch(landed)

    def _leave(self, who: str, key: str) -> None:
        with self._guard:
            self._leaving.add(key)
            self._write(who, "leave", key)

    def _failed(self, who: str, key: str, error: BaseException) -> None:
        self._write(who, "not", key, note=type(error).__name__)
        if isinstance(error, interlock.UsageError):
            self.refused.append(f"{who}: {error}")

    def _blocking(self, who: str, nodes: Sequence[str], renew: bool) -> None:
        client, turn = interlock.Client(list(nodes), ttl=0.8, request_timeout=0.3, renew=renew), 0
        while not self.over:
            turn, key = turn + 1, f"{who}#{turn}"
            self._write(who, "ask", key)
            try:
                lease = client.lock("x").acquire(timeout=1)
            except interlock.InterlockError as error:
                self._failed(who, key, error)
                if not isinstance(error, interlock.NotAcquired):  # as a program that is started again
                    client.close()
                    client = interlock.Client(list(nodes), ttl=0.8, request_timeout=0.3, renew=renew)
                time.sleep(0.05)
                continue
            self._got(who, key, lease)
            time.sleep(1.2 if renew and turn % 5 == 0 else 0.01)
            self._leave(who, key)
            try:
                lease.release()
            except interlock.InterlockError:
                lease._hold.dropped = True
        client.close()

    async def _tasks(self, old: Sequence[str], new: Sequence[str]) -> None:
        await asyncio.gather(self._task("old task", old), self._task("new task", new))

    async def _task(self, who: str, nodes: Sequence[str]) -> None:
        turn = 0
        async with interlock.AsyncClient(list(nodes), ttl=0.8, request_timeout=0.3) as client:
            while not self.over:
                turn, key = turn + 1, f"{who}#{turn}"
                self._write(who, "ask", key)
                try:
                    lease = await client.lock("x").acquire(timeout=1)
                except interlock.InterlockError as error:
                    self._failed(who, key, error)
                    await asyncio.sleep(0.05)
                    continue
                self._got(who, key, lease)
                await asyncio.sleep(0.01)
                self._leave(who, key)
                try:
                    await lease.release()
                except interlock.InterlockError:
                    lease._hold.dropped = True


CHANGES = {
    "grow": ([0, 1, 2], [0, 1, 2, 3, 4]),
    "shrink": ([0, 1, 2, 3, 4], [0, 1, 2]),
    "replace": ([0, 1, 2], [0, 1, 3]),
    "replace two": ([0, 1, 2], [0, 3, 4]),
    "replace a dead one": ([0, 1, 2], [0, 1, 3]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_never_two_holders_and_fences_grow(five: list[Node], colour: str, kind: str) -> None:
    before, after = ([five[index].url for index in some] for some in CHANGES[kind])
    take(before, "warm")
    if "dead" in kind:
        five[2].kill()
    with Load(before, after) as load:
        run(load.wait_for("old", 10, time.sleep))
        outcome = make(before, after) if colour == "blocking" else asyncio.run(amake(before, after))
        done = now()
        assert outcome.stage == change.DONE
        run(load.wait_for("new", 10, time.sleep))
    broken = [violation for violation in check(sorted(load.history)) if violation.rule in ("overlap", "fence")]
    assert not broken
    assert load.winners() == {"old", "new"}
    late = [event for event in load.history if event.what == "got" and event.who.startswith("old") and event.at > done]
    assert not late, "nobody gets anything under the old list any more"
    refused = [said for said in load.refused if said.startswith("old")]
    assert all(url.removesuffix("/") in refused[-1] for url in (*before, *after)), "both lists are named"


def test_all_nodes_are_new(five: list[Node], colour: str) -> None:
    """The lists have no node in common: a client of the new one cannot know that it is too early, unless it was told."""
    before, after = urls(five[:2]), urls(five[2:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # two nodes are an even number
        first = take(before, "x")
        outcome = make(before, after)
        assert outcome.stage == change.DONE
        assert take(after, "x") > first
        with pytest.raises(interlock.UsageError) as told:
            take(before, "x")
    assert all(url in str(told.value) for url in outcome.nodes)


# --- both lists at once, without a change -------------------------------------------------------------------------------


def ask(nodes: Sequence[str], colour: str, barrier: threading.Barrier | None, outcomes: dict[int, Any]) -> None:
    """A client of this list asks for a lock until it has it, or is refused for good. Puts down what came of it."""

    async def body(kit: Kit) -> None:
        client = kit.client()
        if barrier is not None:
            barrier.wait()
        until = time.monotonic() + 20  # two that are the first at once may have to wait for each other's leases
        while time.monotonic() < until:
            try:
                outcomes[len(nodes)] = await client.lock("x", ttl=1, renew=False).try_acquire()
                return
            except interlock.NoQuorum as error:
                outcomes[len(nodes)] = error
                await kit.sleep(0.05)
            except interlock.UsageError as error:
                outcomes[len(nodes)] = error
                return

    run_body(body, nodes, colour)


@pytest.mark.parametrize("first", [3, 5, 0])
def test_clients_that_list_three_and_five_of_the_same_nodes(five: list[Node], colour: str, first: int) -> None:
    """One list has it; whoever comes with the other is told both. When both are the first at once, any of them may have it."""
    lists = [urls(five[:3]), urls(five)]
    for _ in range(1 if first else 5):
        for node in five:
            node.flush()
        outcomes: dict[int, Any] = {}
        if first:
            for nodes in sorted(lists, key=lambda nodes: len(nodes) != first):
                ask(nodes, colour, None, outcomes)
        else:
            barrier = threading.Barrier(2)
            threads = [threading.Thread(target=ask, args=(nodes, colour, barrier, outcomes)) for nodes in lists]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        holders = [size for size, outcome in outcomes.items() if hasattr(outcome, "fence")]
        assert len(holders) == 1, outcomes
        assert first in (0, *holders)
        (told,) = (str(outcome) for outcome in outcomes.values() if not hasattr(outcome, "fence"))
        assert all(f"127.0.0.1:{node.port}" in told for node in five), "both lists are named"
        assert "interlock quorum change" in told


# --- cut short ------------------------------------------------------------------------------------------------------------

STEPS = 13  # of three nodes that become five: two are closed, three are closed, three leave, five are opened


@pytest.mark.parametrize("store", ["memory", "valkey"])
@pytest.mark.parametrize("then", ["again", "back"])
def test_killed_at_each_step_and_run_again(five: list[Node], store: str, then: str) -> None:
    points = [(last, after) for last in range(1, STEPS + 1) for after in (False, True)]
    for cut in points if store == "memory" else points[1::4]:
        for node in five:
            node.flush()
        new = urls(five) if store == "valkey" else [f"memory://{uuid.uuid4().hex}" for _ in range(5)]
        old = new[:3]
        first = take(old, "x")
        with pytest.raises(Stopped):
            make(old, new, cut=cut)
        assert not (able(old) and able(new)), cut
        if then == "back":
            late = "no"
            try:
                assert make(old, new, lambda work: work.give_up()).stage == change.GIVEN_UP
            except interlock.UsageError as error:
                late = str(error)
            assert late == "no" or "too late" in late
            if store == "memory":  # elsewhere requests are on their way when it is killed
                assert (late == "no") == (cut <= (6, False)), "until a node has left the old list"
            if late == "no":
                assert able(old)
                assert not able(new)
                second = take(old, "x")
                assert second > first
                first = second
        outcome = make(old, new)
        assert (outcome.stage, outcome.absent) == (change.DONE, [])
        assert take(new, "x") > first
        with pytest.raises(interlock.UsageError, match="the list was changed"):
            take(old, "x")


@pytest.fixture
def renewed(five: list[Node]) -> Iterator[Any]:
    """A lease on three nodes that is renewed until the test ends."""
    with interlock.Client(urls(five[:3]), ttl=1, request_timeout=0.3) as client, client.lock("kept") as lease:
        yield lease


@pytest.mark.parametrize("how", ["timeout", "stopped"])
def test_while_a_lock_is_held_the_old_list_stays_closed_and_is_opened_again(five: list[Node], renewed: Any, how: str) -> None:
    old, new = urls(five[:3]), urls(five)
    said: list[Progress] = []
    begins = now()

    def stopped() -> bool:
        return how == "stopped" and now() > begins + 2

    outcome = make(old, new, lambda work: work.run(2.0 if how == "timeout" else inf, stopped, said.append))
    assert (outcome.stage, outcome.why, outcome.absent) == (change.GIVEN_UP, how, [])
    assert outcome.waited >= 2.0, "longer than the lease would last without renewal"
    assert renewed.state == "held"
    held = [progress.held for progress in said if progress.stage == change.DRAINING][-1]
    assert {(one.name, one.owner.rpartition(":")[2]) for one in held} == {("kept", str(os.getpid()))}
    assert take(old, "x") > 0
    assert not able(new)
    with pytest.raises(interlock.UsageError, match="quorum of 3"):
        take(new, "x")
    renewed.release()
    assert make(old, new).stage == change.DONE
    assert take(new, "kept") > renewed.fence


def test_meanwhile_clients_of_the_old_list_are_told_to_try_again(five: list[Node], renewed: Any, colour: str) -> None:
    told: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.stage == change.DRAINING and not told:
            with pytest.raises(interlock.NoQuorum) as error:
                take(urls(five[:3]), "x")
            told.append(str(error.value))

    make(urls(five[:3]), urls(five), lambda work: work.run(1.5, tell=tell))
    assert "is being changed" in told[0]
    assert renewed.state == "held"


def test_a_long_lease_is_waited_for_and_one_that_was_released_is_not(five: list[Node]) -> None:
    old, new = urls(five[:3]), urls(five)
    with interlock.Client(old, renew=False) as client:
        assert client.lock("gone", ttl=3600).acquire(timeout=5).release()
        lease = client.lock("long", ttl=12).acquire(timeout=5)
        assert make(old, new, lambda work: work.run(2.0)).why == "timeout"
        assert 5 < lease.remaining() < 12
        lease.release()
    assert make(old, new, lambda work: work.run(11.0)).stage == change.DONE


# --- nodes that are away, or come back -------------------------------------------------------------------------------------


def test_who_sleeps_through_two_changes_can_win_nothing(five: list[Node], colour: str) -> None:
    """Node 2 is stopped while the list goes from 0 1 2 to 0 1 3; it wakes up open, and the list goes back."""
    first, second = urls(five[:3]), [five[0].url, five[1].url, five[3].url]
    fences = [take(first, "x")]
    five[2].pause()
    outcome = make(first, second)
    assert outcome.stage == change.DONE
    five[2].resume()
    assert five[2].command("HGET", "interlock:roll", "list") != b"closed", "it knows nothing"
    for _ in range(3):
        with pytest.raises(interlock.UsageError) as told:
            take(first, "x")
        assert all(node in str(told.value) for node in outcome.nodes)
    fences.append(take(second, "x"))
    assert make(second, first).stage == change.DONE
    fences.append(take(first, "x"))
    assert five[2].command("HGET", "interlock:roll", "seed") == five[0].command("HGET", "interlock:roll", "seed")
    assert fences == sorted(set(fences))
    with pytest.raises(interlock.UsageError):
        take(second, "x")


def test_one_that_slept_and_one_that_forgot_are_no_quorum_of_the_old_list(five: list[Node], colour: str) -> None:
    """Nodes 1 and 2 are in the old list only. Node 2 knows nothing of the change, node 1 forgets it: together they would do."""
    old, new = urls(five[:3]), [five[0].url, five[3].url, five[4].url]

    async def body(kit: Kit) -> None:
        running = kit.client()  # it knows the nodes from before
        lease = await running.lock("x", ttl=1, renew=False).acquire(timeout=5)
        await lease.release()
        five[2].pause()
        outcome = await asyncio.to_thread(make, old, new) if colour == "asyncio" else make(old, new)
        assert outcome.stage == change.DONE
        five[2].resume()
        five[1].flush()
        later = kit.client(store=new)
        mine = await later.lock("x", ttl=1.5, renew=True).acquire(timeout=5)
        until = time.monotonic() + 8  # longer than anything that they could wait for
        fresh = kit.client()
        while time.monotonic() < until:
            for client in (running, fresh):
                with suppress(interlock.Unavailable, interlock.UsageError):
                    assert await client.lock("x", ttl=1, renew=False).try_acquire() is None, "two have it"
            await kit.sleep(0.1)
        assert mine.state == "held"
        await mine.release()

    run_body(body, old, colour)


def test_a_node_that_was_not_reached_when_the_list_was_opened_is_let_in_by_clients(five: list[Node], colour: str) -> None:
    old, new, away = addresses(five[:3]), addresses(five), set[str]()
    take(old, "x")

    def tell(progress: Progress) -> None:
        if progress.stage == change.OPENING:
            away.add(new[4])

    outcome = make(old, new, lambda work: work.run(tell=tell), away=away)
    assert (outcome.stage, outcome.absent) == (change.DONE, new[4:])
    assert five[4].command("HGET", "interlock:roll", "list") == b"closed"
    _until_it_votes(five[4], new, colour)


def test_an_old_node_that_was_away_when_the_list_was_opened_is_let_in_by_clients(five: list[Node], colour: str) -> None:
    """It is in both lists, and wakes up closed for a change that was made long ago."""
    old, new, away = addresses(five[:3]), addresses(five), set[str]()
    take(old, "x")

    def tell(progress: Progress) -> None:
        if progress.stage == change.COMMITTING:
            away.add(new[2])

    outcome = make(old, new, lambda work: work.run(tell=tell), away=away)
    assert (outcome.stage, outcome.absent) == (change.DONE, new[2:3])
    assert five[2].command("HGET", "interlock:roll", "nodes").count(b"\n") == 2, "it knows the old list"
    _until_it_votes(five[2], new, colour)


def _until_it_votes(node: Node, nodes: Sequence[str], colour: str) -> None:
    async def body(kit: Kit) -> None:
        client = kit.client()
        until = time.monotonic() + 20
        while True:
            lease = await client.lock("y", ttl=0.5, renew=False).acquire(timeout=5)
            voted = node.command("EXISTS", "y")
            await lease.release()
            if voted:
                return
            assert time.monotonic() < until, "it is never let in"
            await kit.sleep(0.05)

    run_body(body, list(nodes), colour)


def test_a_node_that_is_restarted_while_locks_are_waited_for_does_not_count(five: list[Node]) -> None:
    """Two of three are closed and one of these forgets: what it forgot may be what a lease stands on."""
    old, new = urls(five[:3]), [five[0].url, five[1].url, five[3].url]
    with interlock.Client(old, ttl=30, request_timeout=0.5, renew=False) as client:
        lease = client.lock("x").acquire(timeout=5)
        five[2].command("DEL", "x")  # as if it had never voted for it
        steps = [0]

        def tell(progress: Progress) -> None:
            if progress.stage == change.DRAINING:
                steps[0] += 1
                if steps[0] == 1:
                    five[1].kill()
                    five[1].restart(empty=True)

        outcome = make(old, new, lambda work: work.run(3.0, tell=tell))
        assert steps[0] > 1
        assert outcome.stage == change.GIVEN_UP
        assert not able(new)
        assert lease.remaining() > 5


def test_two_changes_at_once(five: list[Node]) -> None:
    """To two lists: one of them is made, or none. Then each can be made, one after the other."""
    old, one, other = urls(five[:3]), urls(five), [five[0].url, five[1].url, five[3].url]
    for _ in range(3):
        for node in five:
            node.flush()
        first = take(old, "x", 0.2)
        outcomes: dict[int, object] = {}

        def operator(number: int, new: Sequence[str], outcomes: dict[int, object] = outcomes) -> None:
            try:
                outcomes[number] = make(old, new, lambda work: work.run(10.0)).stage
            except interlock.InterlockError as error:
                outcomes[number] = type(error).__name__

        threads = [threading.Thread(target=operator, args=pair) for pair in enumerate((one, other, one))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = [new for new in (old, one, other) if able(new)]
        assert len(done) == 1, outcomes
        assert (change.DONE in outcomes.values()) == (done[0] is not old), outcomes
        assert take(done[0], "x", 0.2) > first


def test_what_cannot_be_a_node_is_refused_and_nothing_is_changed(five: list[Node]) -> None:
    old, new = urls(five[:3]), urls(five)
    take(old, "x")
    take([*urls(five[3:]), f"memory://{uuid.uuid4().hex}"], "y")
    with pytest.raises(interlock.UsageError, match="belongs to another quorum"):
        make(old, new)
    assert able(old)
    five[3].flush()
    five[4].command("REPLICAOF", "127.0.0.1", str(five[0].port))
    try:
        with pytest.raises(interlock.UsageError, match="replica"):
            make(old, new)
    finally:
        five[4].command("REPLICAOF", "NO", "ONE")
        five[4].flush()
    alias = f"redis://localhost:{five[0].port}"
    with pytest.raises(interlock.UsageError, match="same server"):
        make(old, [five[0].url, alias, five[1].url])
    five[4].pause()
    try:
        with pytest.raises(interlock.NoQuorum, match="all of the new list must"):
            make(old, new)
    finally:
        five[4].resume()
    assert able(old)
    assert make(old, [alias, *new[1:]]).stage == change.DONE, "the same server by another name is in both lists"


# --- one node ---------------------------------------------------------------------------------------------------------------

OPEN = Marker(("n",), 5, 5, era=1, was=("a", "b"))
CLOSED = OPEN._replace(closed=True, to=("m", "n"))


@pytest.fixture
def member(store: str) -> Iterator[Member]:
    """A node of a quorum that is open, on each kind of store."""
    one = open_member(store, BlockingRuntime())
    one.elect(OPEN.nodes, lambda token: False)
    assert run(one.enroll(OPEN, run(one.roll(WITHIN, True)).loss, WITHIN))
    yield one
    run(one.close())


def _enroll(member: Member, roll: Marker) -> str:
    """The state of the node before."""
    state: str = run(member.roll(WITHIN, True)).loss
    assert run(member.enroll(roll, state, WITHIN))
    return state


def test_a_roll_is_kept_as_it_is(member: Member) -> None:
    for roll in (OPEN, CLOSED, CLOSED._replace(to=CLOSED.nodes), OPEN._replace(era=2, was=())):
        _enroll(member, roll)
        kept = run(member.roll(WITHIN)).roll
        assert kept._replace(high=5) == roll
        assert kept.high >= 5


def test_whoever_saw_one_roll_does_not_change_another_that_is_like_it(member: Member) -> None:
    states = [_enroll(member, roll) for roll in (CLOSED, OPEN, CLOSED, OPEN)]
    assert len(set(states)) == 4
    assert not any(run(member.enroll(CLOSED, state, WITHIN)) for state in states)
    assert not run(member.roll(WITHIN)).roll.closed


def test_a_closed_node_knows_when_its_last_lease_is_over(member: Member) -> None:
    lined, token, other = cast(LineMember, member), "1" * 32, "2" * 32
    inbox = run(lined.open_inbox(WITHIN))
    assert isinstance(run(member.vote(Claim("x", token, 0.6), 0, WITHIN)), Granted)
    waits = Claim("x", other, 5.0, Place(1, inbox, 5.0))
    _enroll(member, CLOSED)
    assert 0 < run(member.roll(WITHIN)).held <= 0.6
    assert isinstance(run(member.vote(waits, 0, WITHIN)), Unmarked)
    assert isinstance(run(member.extend("x", token, 1.2, WITHIN)), Granted)
    standing = run(member.roll(WITHIN))
    assert 0.6 < standing.held <= 1.2
    assert standing.renewed == ("" if member.address.startswith("sqlite") else "x"), "if it is known"
    time.sleep(1.3)
    assert run(member.roll(WITHIN)).held == 0
    assert isinstance(run(member.extend("x", token, 1.2, WITHIN)), Gone)
    assert run(member.roll(WITHIN)).held == 0


def test_who_waits_in_line_on_a_closed_node_is_not_waited_for(member: Member) -> None:
    lined, token, other = cast(LineMember, member), "1" * 32, "2" * 32
    inbox = run(lined.open_inbox(WITHIN))
    assert isinstance(run(member.vote(Claim("x", token, 0.3), 0, WITHIN)), Granted)
    assert isinstance(run(member.vote(Claim("x", other, 0.3, Place(1, inbox, 0.3)), 0, WITHIN)), Refused)
    _enroll(member, CLOSED)
    assert run(member.release("x", token, WITHIN))
    assert not run(member.inspect("x", WITHIN)).held, "nobody is served"
    time.sleep(0.4)
    assert run(member.roll(WITHIN)).held == 0
