"""Each rule of the checker is shown a history that breaks it, and one next to it that does not."""

from __future__ import annotations

import pytest

from interlock.testing.history import RULES, Event, check, from_jsonl, to_jsonl


def lease(number: int, got: float, until: float, fence: int, left: float | None = None, note: str = "") -> list[Event]:
    """A lease of its own client, from the question to the release."""
    who, name = f"c{number}", f"c{number}#1"
    events = [
        Event(got - 0.01, who, "ask", "x", name),
        Event(got, who, "got", "x", name, fence=fence, until=until, margin=0.5, note=note),
    ]
    if left is not None:
        events += [Event(left, who, "leave", "x", name), Event(left + 0.01, who, "left", "x", name, note="released")]
    return events


def told(at: float, until: float, note: str = "unreachable", who: str = "c1") -> Event:
    return Event(at, who, "told", "x", f"{who}#1", until=until, margin=0.5, note=note)


def touch(at: float, what: str, number: int, fence: int, value: int = 0, note: str = "") -> Event:
    return Event(at, "counter", what, "x", f"c{number}#1", fence=fence, value=value, note=note)


END = Event(99.0, "", "calm")


def says(at: float, until: float) -> Event:
    return Event(at, "c1", "says", "x", "c1#1", until=until)


GOOD: dict[str, list[Event]] = {
    "one after the other": lease(1, 1, 9, 1, left=2) + lease(2, 2.5, 9, 2, left=3),
    "after the deadline of one that never left": lease(1, 1, 2, 1) + lease(2, 2.1, 9, 2, left=3),
    "after one was told": [*lease(1, 1, 9, 1), told(5, 9, "taken"), *lease(2, 5.1, 12, 2, left=6)],
    "at the same time on two names": lease(1, 1, 9, 1) + [event._replace(name="y") for event in lease(2, 2, 9, 1)],
    "asked at the same time, returned out of order": [
        Event(1.0, "c1", "ask", "x", "c1#1"),
        Event(1.0, "c2", "ask", "x", "c2#1"),
        Event(1.5, "c2", "got", "x", "c2#1", fence=8, until=1.6),
        Event(2.0, "c1", "got", "x", "c1#1", fence=7, until=3),
    ],
    "a late one is turned away": [touch(1, "enter", 1, 5), touch(2, "enter", 2, 6), touch(3, "write", 1, 5, 1, "stale")],
    "a counter that counts": [touch(1, "enter", 1, 5), touch(2, "write", 1, 5, 1), touch(3, "write", 2, 6, 2)],
    "told in the margin": [*lease(1, 1, 9, 1, note="watched"), told(8.6, 9), END],
    "told late, since it was paused": [
        *lease(1, 1, 9, 1, note="watched"),
        Event(7, "c1", "pause"),
        Event(20, "c1", "resume"),
        told(20, 9, "paused"),
        END,
    ],
    "renewed, released before the end": [
        *lease(1, 1, 9, 1, left=14, note="watched")[:2],
        Event(6, "c1", "kept", "x", "c1#1", until=15),
        *lease(1, 1, 9, 1, left=14)[2:],
        END,
    ],
    "says what it has, more after it was renewed, and nothing once it is over": [
        *lease(1, 1, 9, 1),
        says(2, 9),
        Event(6, "c1", "kept", "x", "c1#1", until=15),
        says(7, 15),
        told(14.6, 15),
        says(14.7, 14.7),
    ],
    "gave up while the faults went on": [Event(1, "c1", "not", "x", "c1#1", note="NoQuorum")],
}

BAD: list[tuple[str, str, list[Event]]] = [
    ("overlap", "two at once", lease(1, 1, 9, 1) + lease(2, 5, 12, 2)),
    ("overlap", "one inside another that began long before", lease(1, 1, 50, 1) + lease(2, 60, 61, 3) + lease(3, 20, 21, 2)),
    (
        "overlap",
        "renewed into the time of another",
        [*lease(1, 1, 9, 1), Event(8, "c1", "kept", "x", "c1#1", until=15), *lease(2, 10, 12, 2)],
    ),
    ("fence", "the same twice", lease(1, 1, 2, 7) + lease(2, 3, 4, 7)),
    ("fence", "a later one is lower", lease(1, 1, 2, 7) + lease(2, 3, 4, 6)),
    ("fence", "lower than the one before the last", lease(1, 1, 2, 9) + lease(2, 3, 4, 7) + lease(3, 5, 6, 8)),
    ("store", "it went back", [touch(1, "enter", 2, 6), touch(2, "write", 1, 5, 1)]),
    ("store", "two leases under one fence", [touch(1, "enter", 1, 6), touch(2, "enter", 2, 6)]),
    ("update", "written twice", [touch(1, "write", 1, 5, 1), touch(2, "write", 2, 6, 1)]),
    ("told", "never", [*lease(1, 1, 9, 1, note="watched"), END]),
    ("told", "after the deadline", [*lease(1, 1, 9, 1, note="watched"), told(9.2, 9), END]),
    ("told", "too early", [*lease(1, 1, 9, 1, note="watched"), told(7, 9), END]),
    (
        "told",
        "long after it ran again",
        [
            *lease(1, 1, 9, 1, note="watched"),
            Event(7, "c1", "pause"),
            Event(20, "c1", "resume"),
            told(21, 9, "paused"),
            END,
        ],
    ),
    (
        "told",
        "it came back to life",
        [*lease(1, 1, 9, 1), told(8.6, 9), Event(8.7, "c1", "kept", "x", "c1#1", until=12)],
    ),
    ("told", "given away when it was over", [*lease(1, 9.5, 9, 1, note="watched"), told(9.5, 9), END]),
    ("told", "says that it has more than it was granted", [*lease(1, 1, 9, 1), says(2, 9.1)]),
    (
        "told",
        "says so after it was made shorter",
        [*lease(1, 1, 9, 1), Event(2, "c1", "kept", "x", "c1#1", until=5), says(3, 9)],
    ),
    ("told", "says that it has some left after it was told", [*lease(1, 1, 9, 1), told(8.6, 9), says(8.7, 9)]),
    ("told", "says that it has some left after the deadline", [*lease(1, 1, 9, 1), says(9.5, 10)]),
    ("left", "still there", [Event(5, "node1", "holds", "x", "c1#1", note="after every ttl")]),
    ("left", "there again", [Event(5, "node1", "revived", "x", "c1#1")]),
    ("stuck", "did not get it", [Event(5, "c1", "not", "x", "c1#1", value=1, note="NoQuorum")]),
    ("defect", "broke", [Event(5, "c1", "defect", note="KeyError")]),
]


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right_is_let_pass(name: str) -> None:
    assert check(sorted(GOOD[name], key=lambda event: event.at)) == []


@pytest.mark.parametrize(("rule", "name", "history"), BAD, ids=[f"{rule}: {name}" for rule, name, _ in BAD])
def test_what_is_wrong_is_found_under_its_rule(rule: str, name: str, history: list[Event]) -> None:
    found = check(sorted(history, key=lambda event: event.at))
    assert {violation.rule for violation in found} == {rule}, found


def test_what_one_rule_is_forgiven_another_is_not() -> None:
    late = [*lease(1, 1, 9, 1, note="watched"), told(9.2, 9), END]
    early = lease(1, 1, 9, 1) + lease(2, 8.8, 12, 2)
    assert not check(late, {"told": 0.3})
    assert not check(early, {"overlap": 0.3})
    assert [violation.rule for violation in check(late, {"overlap": 0.3})] == ["told"]
    assert [violation.rule for violation in check(early, {"told": 0.3})] == ["overlap"]
    assert not check(late, 0.3)


def test_every_rule_has_a_bad_history() -> None:
    assert {rule for rule, *_ in BAD} == {*RULES, "defect"}


def test_a_history_survives_being_written_down() -> None:
    for history in (*GOOD.values(), *(history for *_, history in BAD)):
        assert from_jsonl(to_jsonl(history)) == history
