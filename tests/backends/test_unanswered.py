"""The ledger of unanswered requests by itself: each rule of `backends.unanswered`, without a wire."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from interlock.backends import unanswered
from interlock.backends.in_line import InLine
from interlock.backends.quorum import ticket
from interlock.backends.unanswered import OVERDUE, Record, State, Unanswered


class Wire:
    """A connection."""

    def __init__(self, name: str = "") -> None:
        self.name, self.dead = name, False


def undo(token: str) -> str:
    return f"undo {token}"


@pytest.fixture
def live() -> set[str]:
    return set()


@pytest.fixture
def ledger(live: set[str]) -> Unanswered[Wire]:
    return Unanswered(live.__contains__)


def silent(_: Wire) -> bool:
    return True


def well(_: Wire) -> bool:
    return False


def state(ledger: Unanswered[Wire], token: str) -> State | None:
    record = ledger.records.get(token)
    return None if record is None else record.state


# --- where what follows goes ----------------------------------------------------------------------------------------------


def test_what_follows_goes_down_the_same_connection(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    assert ledger.paths(("a",)) == []
    ledger.owes(("a",), wire, undo, 0.0)
    assert state(ledger, "a") is State.OWED
    assert ledger.paths(("b", "a")) == [wire]
    assert not ledger.barred(("a",), 0.0), "it cannot overtake there"


def test_a_request_with_two_tokens_is_on_record_for_both(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("heir", "a"), wire, undo, 0.0)
    assert ledger.paths(("a",)) == ledger.paths(("heir",)) == [wire]
    assert ledger.give_up(wire, 1.0) == ["undo heir", "undo a"], "each takes back its own"


def test_the_connection_of_the_first_token_comes_first(ledger: Unanswered[Wire]) -> None:
    one, two = Wire("one"), Wire("two")
    ledger.owes(("a",), one, None, 0.0)
    ledger.owes(("heir",), two, undo, 0.0)
    assert ledger.paths(("heir", "a")) == [two, one]


def test_nothing_is_created_elsewhere_while_what_was_asked_on_a_broken_connection_may_arrive(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, undo, 10.0)
    wire.dead = True
    assert state(ledger, "a") is State.BROKEN
    assert ledger.paths(("a",)) == []
    assert ledger.barred(("a",), 10.0 + OVERDUE - 0.1)
    assert not ledger.barred(("a",), 10.0 + OVERDUE), "for no longer than it need be"
    assert not ledger.barred((), 10.0)
    assert not ledger.barred(("b", "a"), 10.0), "it creates something for the first"


def test_a_request_that_created_nothing_bars_nothing(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, None, 0.0)
    wire.dead = True
    assert not ledger.barred(("a",), 0.0)


def test_a_late_reply_makes_any_connection_good(ledger: Unanswered[Wire]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.owes(("b",), other, undo, 0.0)
    ledger.dealt_with(wire)
    assert state(ledger, "a") is State.DEALT_WITH, "its caller does not know"
    assert state(ledger, "b") is State.OWED
    wire.dead = True
    assert ledger.paths(("a",)) == []
    assert not ledger.barred(("a",), 0.0)
    ledger.owes(("c",), other, None, 0.0)
    ledger.dealt_with(other)
    assert state(ledger, "c") is None, "it created nothing: that is over"
    earlier = ledger.earlier(("a",))
    ledger.sends(earlier, other, 0.0)
    assert ledger.settled("a", 0.0)
    ledger.answered(earlier, other)
    assert state(ledger, "a") is None


def test_a_reply_that_nobody_waits_for_settles_what_created_nothing(ledger: Unanswered[Wire]) -> None:
    wire, first, second = Wire(), object(), object()
    ledger.owes(("a", "b"), wire, None, 0.0, first)
    ledger.owes(("b",), wire, None, 0.0, second)
    ledger.owes(("c",), wire, undo, 0.0, first)
    ledger.arrived(("a", "b", "c", "d"), first)
    assert list(ledger.records) == ["b", "c"], "b asked again since, and c may have to be taken back"


def test_outside_of_a_quorum_an_undo_may_follow_whatever_came_late() -> None:
    """It says whether the release was done, which the caller was not told."""
    ledger, wire, key = Unanswered[Wire](), Wire(), object()
    ledger.owes(("a",), wire, None, 0.0, key)
    ledger.arrived(("a",), key)
    ledger.dealt_with(wire)
    assert state(ledger, "a") is State.DEALT_WITH


# --- what an answer settles -----------------------------------------------------------------------------------------------


def test_an_answer_on_the_same_connection_settles_what_was_before_it(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.answered(ledger.earlier(("a",)), wire)
    assert not ledger.records


def test_an_answer_settles_nothing_that_was_asked_later(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    earlier = ledger.earlier(("a",))
    ledger.owes(("a",), wire, undo, 1.0)
    ledger.answered(earlier, wire)
    assert state(ledger, "a") is State.OWED


def test_an_answer_by_another_connection_settles_only_what_created_nothing(ledger: Unanswered[Wire]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.owes(("b",), wire, None, 0.0)
    wire.dead = True
    ledger.answered(ledger.earlier(("a", "b")), other)
    assert list(ledger.records) == ["a"]
    assert ledger.barred(("a",), 1.0)


def test_what_an_extension_follows_keeps_its_undo(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.owes(("a",), wire, None, 1.0)
    assert ledger.give_up(wire, 2.0) == ["undo a"]


def test_what_a_broken_claim_may_still_do_matters_more_than_an_extension_elsewhere(ledger: Unanswered[Wire]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    wire.dead = True
    ledger.owes(("a",), other, None, 1.0)
    assert ledger.barred(("a",), 1.0)
    assert ledger.paths(("a",)) == []
    ledger.owes(("a",), other, undo, 2.0)
    assert ledger.paths(("a",)) == [other]


def test_to_put_it_down_again_is_harmless(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a", "b"), wire, undo, 0.0)
    ledger.owes(("a", "b"), wire, undo, 0.0)
    assert list(ledger.records) == ["a", "b"]
    assert ledger.give_up(wire, 1.0) == ["undo a", "undo b"]


def test_what_others_wait_for_on_a_retired_connection_is_on_record(ledger: Unanswered[Wire]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), other, undo, 0.0)
    ledger.on_way(("a", "b"), wire, 1.0)
    assert ledger.paths(("a",)) == [other], "it has no answer already"
    assert ledger.paths(("b",)) == [wire]
    assert ledger.give_up(wire, 2.0) == []


# --- astray ---------------------------------------------------------------------------------------------------------------


def test_a_token_that_changes_connections_is_astray_for_a_while(ledger: Unanswered[Wire]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), wire, None, 0.0)
    ledger.sends(ledger.earlier(("a",)), wire, 1.0)
    assert ledger.settled("a", 1.0)
    wire.dead = True
    ledger.sends(ledger.earlier(("a", "b")), other, 2.0)
    assert not ledger.settled("a", 2.0)
    assert ledger.settled("b", 2.0)
    ledger.sends(ledger.earlier(("a",)), None, 3.0)
    assert not ledger.settled("a", 2.9 + OVERDUE)
    assert ledger.settled("a", 3.0 + OVERDUE)
    ledger.prune(3.0 + OVERDUE, well)
    assert not ledger._astray


# --- when nothing comes ---------------------------------------------------------------------------------------------------


def test_what_is_long_over_is_forgotten(ledger: Unanswered[Wire]) -> None:
    wire, broken = Wire(), Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.owes(("b",), broken, undo, 0.0)
    ledger.owes(("c",), wire, undo, 1.0)
    broken.dead = True
    assert ledger.prune(OVERDUE - 0.1, well) == []
    assert list(ledger.records) == ["a", "b", "c"]
    assert ledger.prune(OVERDUE, well) == []
    assert list(ledger.records) == ["c"]
    assert ledger.needed() == {wire}
    ledger.forget("c")
    assert ledger.needed() == set()


def test_a_silent_connection_is_given_up_with_undos_as_the_last_thing(ledger: Unanswered[Wire]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.owes(("b",), wire, None, 0.0)
    ledger.owes(("c",), other, undo, 0.0)
    assert ledger.prune(OVERDUE, lambda some: some is wire) == [wire]
    assert list(ledger.records) == ["a", "b"], "kept until it is given up"
    assert ledger.give_up(wire, 7.0) == ["undo a"]
    wire.dead = True
    assert state(ledger, "a") is State.GIVEN_UP
    assert ledger.barred(("a",), 7.0 + OVERDUE - 0.1), "the undo may arrive late as well"
    assert not ledger.barred(("a",), 7.0 + OVERDUE)
    ledger.prune(7.0 + 2 * OVERDUE, silent)
    assert not ledger.records


def test_a_connection_that_is_found_broken_bars_from_then_on(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.broke(wire, 4.0)
    wire.dead = True
    assert state(ledger, "a") is State.BROKEN
    assert ledger.barred(("a",), 4.0 + OVERDUE - 0.1)


def test_a_connection_that_cannot_be_given_up_yet_is_named_again(ledger: Unanswered[Wire]) -> None:
    wire = Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    assert ledger.prune(OVERDUE, silent) == [wire]
    assert ledger.prune(OVERDUE + 0.1, silent) == [], "not at every look"
    assert ledger.prune(2 * OVERDUE, silent) == [wire]


def test_the_connection_of_a_living_token_is_kept_and_nothing_undone(ledger: Unanswered[Wire], live: set[str]) -> None:
    wire, other = Wire(), Wire()
    ledger.owes(("a",), wire, undo, 0.0)
    ledger.owes(("b",), wire, undo, 0.0)
    ledger.owes(("c",), other, undo, 0.0)
    live.add("a")
    assert ledger.kept() == {wire}
    assert ledger.prune(OVERDUE, silent) == [wire, other], "for b, and for c"
    assert ledger.give_up(wire, OVERDUE) is None, "a lives"
    assert ledger.prune(3 * OVERDUE, lambda some: some is wire) == [wire]
    assert ledger.paths(("a",)) == ledger.paths(("b",)) == [wire]
    live.clear()
    assert ledger.prune(5 * OVERDUE, silent) == [wire]
    assert ledger.give_up(wire, 5 * OVERDUE) == ["undo a", "undo b"]


def test_a_living_token_does_not_keep_what_is_broken(ledger: Unanswered[Wire], live: set[str]) -> None:
    wire = Wire()
    live.add("a")
    ledger.owes(("a",), wire, undo, 0.0)
    wire.dead = True
    assert ledger.kept() == set()
    ledger.prune(OVERDUE, silent)
    assert not ledger.records


def test_many_records_are_not_looked_at_each_time() -> None:
    looks = 0

    def is_live(token: str) -> bool:
        nonlocal looks
        looks += 1
        return True

    ledger: Unanswered[Wire] = Unanswered(is_live)
    for n in range(1000):
        ledger.owes((f"{n}",), Wire(), undo, 0.0)
    for _ in range(100):
        ledger.prune(OVERDUE + 1, silent)
    assert looks == 1000


def test_a_token_takes_the_same_path_for_longer_than_a_quorum_counts_on_it() -> None:
    assert ticket.SAME_PATH < unanswered.OVERDUE


# --- those in line --------------------------------------------------------------------------------------------------------


def test_one_that_waits_is_not_forgotten_and_one_that_was_to_leave_is(live: set[str]) -> None:
    line: InLine[bool] = InLine()
    for token in ("waits", "leaves", "again", "left"):
        line.stands(token, True)
        line.told[token] = 0.0, 0
    for token in ("leaves", "again", "left", "stranger"):
        line.leaves(token, 0.0)
    line.stands("again", True)
    line.left("left")
    line.prune(OVERDUE - 0.1, live.__contains__)
    assert list(line) == ["waits", "leaves", "again"]
    line.prune(2 * OVERDUE, live.__contains__)
    assert list(line) == list(line.told) == ["waits", "again"]


def test_one_whose_lease_was_left_to_expire_is_forgotten(live: set[str]) -> None:
    line: InLine[bool] = InLine()
    line.stands("a", True)
    live.add("a")
    for n in range(5):
        line.prune(n * OVERDUE, live.__contains__)
        assert list(line) == ["a"]
    live.clear()
    line.prune(6 * OVERDUE, live.__contains__)
    assert not line


def test_a_release_by_another_connection_does_not_replace_a_claim_that_may_still_arrive() -> None:
    ledger: Unanswered[Wire] = Unanswered()
    one, other = Wire(), Wire()
    ledger.owes(("t",), one, undo, 1.0)
    ledger.owes(("t",), other, None, 2.0)
    assert ledger.paths(("t",)) == [one]
    assert ledger.give_up(one, 9.0) == ["undo t"]


def test_a_living_token_does_not_keep_a_connection_for_an_extension_without_an_answer(
    ledger: Unanswered[Wire], live: set[str]
) -> None:
    """A connection that died in silence would take the lease with it: each extension and the release would go down it."""
    wire = Wire()
    live.add("t")
    ledger.owes(("t",), wire, None, 0.0)
    assert ledger.prune(OVERDUE, silent) == [wire]
    assert ledger.give_up(wire, OVERDUE) == [], "nothing to undo"
    ledger.owes(("t",), wire, undo, OVERDUE)
    assert ledger.prune(2 * OVERDUE, silent) == []
    assert ledger.give_up(wire, 2 * OVERDUE) is None, "its vote is kept"


def test_threads_that_send_do_not_disturb_one_that_looks() -> None:
    ledger: Unanswered[Wire] = Unanswered()
    over, failed = threading.Event(), list[BaseException]()
    record = [("", Record(Wire(), None, 0.0, 0.0))]

    def send() -> None:
        for n in itertools.count():
            if over.is_set():
                return
            ledger.sends([(f"{n % 5000}", record[0][1])], None, float(n))

    def look() -> None:
        try:
            while not over.is_set():
                ledger.prune(0.0, well)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for work in (send, look)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    over.set()
    for thread in threads:
        thread.join()
    assert not failed
