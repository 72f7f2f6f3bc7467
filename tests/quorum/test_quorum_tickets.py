"""The table of a ticket's states, and the book of tickets: what is announced to whom, and what is forgotten when."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from interlock.backends.memory import MemoryBackend
from interlock.backends.quorum.poller import Poller
from interlock.backends.quorum.ticket import OVER, ROWS, TRANSITIONS, UNDER_WAY, State, Ticket
from interlock.backends.quorum.tickets import HINT, LATE, Tickets
from interlock.backends.registry import open_backend
from interlock.core.claim import Announced, Claim, Place
from interlock.core.turn import GrantTally
from interlock.runtime.blocking import BlockingRuntime

WAITER = Claim("x", "w" * 32, 20.0, Place(1, "inbox", 3.0))


class Clock(BlockingRuntime):
    """A runtime whose clock the test sets."""

    moment = 1000.0

    def now(self) -> float:  # type: ignore[override]
        return self.moment

    def jitter(self) -> float:
        return 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> Tickets:
    members: list[Any] = [open_backend(f"memory://tickets{number}", clock) for number in range(3)]
    assert isinstance(members[0], MemoryBackend)
    return Tickets(Poller(members, clock, "three"), clock)


def waits(book: Tickets, answered: int = 7) -> Ticket:
    ticket = book.ask(WAITER)
    book.sent(ticket, [0, 1, 2], 20.0)
    ticket.after = dict.fromkeys(range(3), answered)
    book.waits(ticket, ())
    return ticket


def grant(fence: int = 8, at: float = 999.0) -> Announced:
    return Announced("x", WAITER.token, fence, 3.0, at)


def test_a_step_that_is_not_in_the_table_raises() -> None:
    for state in State:
        for other in State:
            ticket = Ticket("x", "t", GrantTally(2, 3))
            ticket.state = state
            if other in TRANSITIONS[state]:
                ticket.to(other)
                assert ticket.state is other
            else:
                with pytest.raises(AssertionError, match=f"from {state.name} to {other.name}"):
                    ticket.to(other)


def test_no_row_is_there_twice_and_every_state_is_reached_and_left() -> None:
    assert len({row[:2] for row in ROWS}) == len(ROWS)
    assert {row.after for row in ROWS} == set(State) - {State.NEW}
    assert {row.before for row in ROWS} == set(State)


def test_what_was_released_is_never_held_again_without_being_asked_for() -> None:
    assert not any(State.HELD in TRANSITIONS[state] for state in (*OVER, State.NEW, State.WAITING))


def test_a_quorum_of_equal_announcements_is_a_grant(book: Tickets) -> None:
    ticket = waits(book)
    assert book.announced(0, grant())
    assert ticket.state is State.OFFERED
    assert book.ripe() == []
    assert book.announced(1, grant())
    assert [one.fence for one in book.ripe()] == [8]
    assert ticket.state is State.HELD
    assert book.is_live(WAITER.token)
    assert book.next_due() == inf


def test_one_announcement_is_a_hint_after_a_moment(book: Tickets, clock: Clock) -> None:
    ticket = waits(book)
    book.announced(0, grant())
    clock.moment = book.next_due()
    assert [one.ttl for one in book.ripe()] == [0.0]
    assert ticket.state is State.WAITING


def test_while_it_asks_an_announcement_is_only_noted(book: Tickets) -> None:
    ticket = waits(book)
    assert book.ask(WAITER._replace(place=None)) is ticket
    assert ticket.place == WAITER.place, "it keeps its place"
    assert not book.announced(0, grant())
    assert not book.announced(1, grant())
    assert book.ripe() == []
    assert book.waits(ticket, ()), "it asks again at once"


def test_what_is_announced_to_one_that_left_is_passed_on_if_its_release_was_not_answered_there(
    book: Tickets, clock: Clock
) -> None:
    waits(book)
    ticket = book.leave("x", WAITER.token)
    ticket.failed.add(2)
    book.left(ticket, confirmed=True)
    assert not book.announced(0, grant()), "its release passes that on"
    assert book.announced(2, grant())
    assert book.next_due() == clock.moment + HINT
    clock.moment += HINT
    assert [one.token for one in book.ripe()] == [WAITER.token]
    clock.moment += LATE
    assert book.announced(0, grant()), "so late nothing does"


def test_a_release_of_a_token_that_is_unknown_goes_to_every_node(book: Tickets) -> None:
    assert list(book.leave("x", "stranger").nodes) == [0, 1, 2]


def test_an_interrupted_claim_is_to_be_undone_if_anything_was_sent(book: Tickets) -> None:
    ticket = book.ask(Claim("x", "a" * 32, 5.0))
    book.interrupted(ticket)
    assert book.get("a" * 32) is None
    ticket = book.ask(Claim("x", "b" * 32, 5.0))
    book.sent(ticket, [0], 5.0)
    book.interrupted(ticket)
    assert ticket.state is State.TO_UNDO


def test_those_that_have_long_left_are_forgotten_though_an_older_lease_lives(book: Tickets, clock: Clock) -> None:
    old = book.ask(Claim("old", "o" * 32, 3600.0))
    book.sent(old, [0, 1, 2], 3600.0)
    book.has(old, 1, 3600.0)
    for number in range(100):
        brief = book.ask(Claim("x", f"{number:032}", 1.0))
        book.sent(brief, [0, 1, 2], 1.0)
        book.has(brief, number, 1.0)
        book.left(book.leave("x", brief.token), confirmed=True)
        clock.moment += 0.1
    assert len(book._tickets) == 1
    assert len(book._gone) <= LATE / 0.1 + 1
    assert book.held_for() > 7000


def test_one_that_waits_is_not_forgotten_however_long_its_process_slept(book: Tickets, clock: Clock) -> None:
    ticket = waits(book)
    ticket.unanswered_since[2] = -inf
    clock.moment += 1000.0
    other = book.ask(Claim("y", "y" * 32, 1.0))
    book.sent(other, [0], 1.0)
    assert book.get(WAITER.token) is ticket
    assert State.WAITING in UNDER_WAY


def test_a_child_of_a_fork_waits_for_nothing_and_knows_what_is_held(book: Tickets) -> None:
    waits(book)
    held = book.ask(Claim("y", "y" * 32, 5.0))
    book.sent(held, [0, 1], 5.0)
    book.has(held, 3, 5.0)
    book.disown()
    assert book.get(WAITER.token) is None
    assert book.held_for() == pytest.approx(10.0)
