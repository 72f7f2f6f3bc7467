"""The history of a run, and what is wrong with it. The same for the simulator and for real servers.

A history is a list of events, plain values that can be written as lines of JSON (`to_jsonl`, `from_jsonl`). All moments are
on one clock: that of the simulation, or CLOCK_BOOTTIME of the one host that everything ran on. Who waits for an answer writes
two events, one before and one after; an answer that never came has none.

    ask      it begins to acquire `name`; `lease` is how this attempt is known from here on
    got      it holds it: `fence`, and `until` when it believes so. `note` is "watched" if it is to be told of a loss
    kept     renewed, or the end has come nearer: `until`
    beyond   it believes in it for longer than the store keeps it, as the simulator knows: `until`, and `note` says more
    says     it is asked how long it has left: `until` is when it will be over, by its own account
    told     it is told that it lost it; `note` is the reason, `until` the deadline, `margin` how early it may be told
    unkept   its client is closed from here on: it is not renewed any more, and nobody is told of its end
    leave    it begins to release
    left     it has; `note`: "released" or what came of it
    not      it did not get it; `note` says why. `value` 1: the faults were over, it should have got it
    enter    the fenced resource was touched first, under `fence`: `value` is what was read; `note` "stale": turned away
    write    the resource was written: `value`; `note` "stale": turned away
    pause    `who` does not run from here …
    resume   … to here
    revived  node `who` granted to a token that it had released before
    holds    node `who` still holds `lease`, long after it was given back, or after everything should have expired
    defect   something broke that must not: `note`
    fault, calm   what was done to the system, and that it is over

`check` gives the violations, each under the name of its rule. Which of them are failures depends on what was promised: see
`RULES` and, for the simulator, `sim.plan.Plan.promised`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple


class Event(NamedTuple):
    """One line of a history."""

    at: float
    who: str = ""
    what: str = ""
    name: str = ""
    lease: str = ""
    fence: int = 0
    until: float = 0.0
    margin: float = 0.0
    value: int = 0
    note: str = ""


class Violation(NamedTuple):
    """What is wrong: which rule, in words, and since when."""

    rule: str
    text: str
    at: float


def to_jsonl(history: Iterable[Event]) -> str:
    """A line of JSON for each event, without what is not set."""
    return "".join(
        json.dumps({key: value for key, value in event._asdict().items() if value or key == "at"}, ensure_ascii=False) + "\n"
        for event in history
    )


def from_jsonl(text: str) -> list[Event]:
    """The history that was written so."""
    return [Event(**json.loads(line)) for line in text.splitlines() if line.strip()]


class Lease(NamedTuple):
    """What a history says about one attempt that got the lock."""

    name: str
    lease: str
    who: str
    asked: float
    got: Event
    spans: list[tuple[float, float]]  # when it was believed to be held
    until: float  # its deadline, as last known
    told: Event | None
    left: float  # when its release began; inf: never


def leases_of(history: Sequence[Event]) -> list[Lease]:
    """Every lease, with the time during which its holder believed in it."""
    asked: dict[str, float] = {}
    events: dict[str, list[Event]] = {}
    for event in history:
        if event.what == "ask":
            asked[event.lease] = event.at
        elif event.what in ("got", "kept", "told", "leave"):
            events.setdefault(event.lease, []).append(event)
    return [
        _lease(asked.get(lease, -inf), some) for lease, some in events.items() if any(event.what == "got" for event in some)
    ]


def _lease(asked: float, events: list[Event]) -> Lease:
    got = next(event for event in events if event.what == "got")
    told, left, until, spans = None, inf, got.until, [(got.at, got.until)]
    for event in events:
        begin, end = spans[-1]
        until = event.until if event.what in ("kept", "told") else until
        if event.what == "kept" and event.at <= end:
            spans[-1] = begin, max(event.until, event.at)
        elif event.what == "kept":
            spans.append((event.at, event.until))
        elif event.what in ("told", "leave"):
            told, left = (event, left) if event.what == "told" and told is None else (told, min(left, event.at))
            spans[-1] = begin, min(end, event.at)
    return Lease(got.name, got.lease, got.who, asked, got, spans, until, told, left)


# --- the rules ------------------------------------------------------------------------------------------------------------


def overlap(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """Two leases of one name were believed to be held at the same time, or might have been."""
    found = []
    last: dict[str, tuple[float, str]] = {}  # per name: the latest end so far, and whose
    spans = [(begin, end, lease) for lease in leases for begin, end in lease.spans if end > begin]
    for begin, end, lease in sorted(spans, key=lambda span: (span[0], span[1], span[2].lease)):
        until, other = last.get(lease.name, (-inf, ""))
        if begin < until - slack and other != lease.lease:
            text = f"{lease.lease} holds '{lease.name}' from {begin:.6f} on, while {other} believes in it until {until:.6f}"
            found.append(Violation("overlap", text, begin))
        if end > until:
            last[lease.name] = end, lease.lease
    return found + [Violation("overlap", event.note, event.at) for event in history if event.what == "beyond"]


def fences(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """Fences are unique, and who asks after another has got it gets a higher one."""
    found = []
    for name in {lease.name: None for lease in leases}:
        some = sorted((lease for lease in leases if lease.name == name), key=lambda lease: lease.got.at)
        seen: dict[int, str] = {}
        found += [
            Violation("fence", f"{other} and {lease.lease} both have {lease.got.fence}", lease.got.at)
            for lease in some
            if (other := seen.setdefault(lease.got.fence, lease.lease)) != lease.lease
        ]
        moments = [lease.got.at for lease in some]
        highest, top = [], 0
        for lease in some:
            top = max(top, lease.got.fence)
            highest.append(top)
        for lease in some:
            before = bisect_left(moments, lease.asked)
            if before and lease.got.fence <= highest[before - 1] and seen[lease.got.fence] == lease.lease:
                text = f"{lease.lease} asked after {highest[before - 1]} was given out, and got {lease.got.fence}"
                found.append(Violation("fence", text, lease.got.at))
    return found


def store(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """What a fenced resource accepts never goes back, and never belongs to two leases."""
    found = []
    newest: dict[str, tuple[int, str]] = {}
    for event in history:
        if event.what in ("enter", "write") and event.note != "stale":
            fence, lease = newest.get(event.name, (0, ""))
            if event.fence < fence or (event.fence == fence and event.lease != lease):
                text = f"{event.lease} was let in with {event.fence} after {lease} with {fence}"
                found.append(Violation("store", text, event.at))
            newest[event.name] = max((fence, lease), (event.fence, event.lease))
    return found


def updates(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """A counter that is read and written under the lock: no two writes that were accepted say the same."""
    found = []
    seen: dict[tuple[str, int], str] = {}
    for event in history:
        if event.what == "write" and event.note != "stale":
            other = seen.setdefault((event.name, event.value), event.lease)
            if other != event.lease:
                text = f"{event.lease} wrote {event.value} to '{event.name}', which {other} had written: its update is lost"
                found.append(Violation("update", text, event.at))
    return found


def telling(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """Who is to be told of a loss is told between the margin and the deadline, or when it runs again; and a loss is final.

    Nor does a lease ever say that it has more left than was granted, or anything at all once it is over.
    """
    pauses: dict[str, list[tuple[float, float]]] = {}
    for event in history:
        if event.what == "pause":
            pauses.setdefault(event.who, []).append((event.at, inf))
        elif event.what == "resume" and pauses.get(event.who):
            pauses[event.who][-1] = pauses[event.who][-1][0], event.at
    unkept = {event.lease for event in history if event.what == "unkept"}
    found = _claims(history, slack)
    for lease in leases:
        if len(lease.spans) > 1:
            text = (
                f"{lease.lease} was over at {lease.spans[0][1]:.6f} and was believed in again from {lease.spans[1][0]:.6f} on"
            )
            found.append(Violation("told", text, lease.spans[1][0]))
        told, until = lease.told, lease.until
        untold = lease.lease in unkept or lease.got.note != "watched"
        if untold or lease.left <= (until + slack if told is None else min(until, told.at)):
            continue  # nobody is to be told, or it was given back before
        latest = until
        for begin, end in pauses.get(lease.who, ()):
            if begin <= latest and end > latest - lease.got.margin:
                latest = max(latest, end)
        if told is None:
            if latest < history[-1].at - slack:
                found.append(Violation("told", f"{lease.lease} ended at {until:.6f} and nobody was told", until))
        elif told.at > latest + slack:
            found.append(Violation("told", f"{lease.lease} was told at {told.at:.6f}, after its deadline {until:.6f}", told.at))
        elif told.at < until - told.margin - slack and told.note not in ("taken", "forced"):
            text = f"{lease.lease} was told at {told.at:.6f}, too early for its deadline {until:.6f}"
            found.append(Violation("told", text, told.at))
    return found


def _claims(history: Sequence[Event], slack: float) -> list[Violation]:
    """What leases say that they have left, against what they were granted."""
    found = []
    latest: dict[str, float] = {}  # until when each may be believed
    over: set[str] = set()
    for event in history:
        if event.what in ("got", "kept"):
            latest[event.lease] = event.until
        elif event.what in ("told", "leave"):
            over.add(event.lease)
        elif event.what == "says":
            most = -inf if event.lease in over else latest.get(event.lease, -inf)
            if event.until > max(event.at, most) + slack:
                last = "it was over" if event.lease in over else f"it has until {most:.6f}"
                text = f"{event.lease} says that it lasts until {event.until:.6f}, and {last}"
                found.append(Violation("told", text, event.at))
    return found


def leftovers(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """Nothing is left behind in the store, and nothing that was given back returns."""
    found = []
    for event in history:
        if event.what == "revived":
            text = f"{event.who} granted '{event.name}' to {event.lease}, which had been released there"
            found.append(Violation("left", text, event.at))
        elif event.what == "holds":
            found.append(
                Violation("left", f"{event.who} still holds '{event.name}' for {event.lease} ({event.note})", event.at)
            )
    return found


def liveness(history: Sequence[Event], leases: Sequence[Lease], slack: float) -> list[Violation]:
    """Once the faults are over everybody gets the lock, and everything comes to an end."""
    found = []
    for event in history:
        if event.what == "not" and event.value:
            text = f"{event.who} did not get '{event.name}' although the faults were over: {event.note}"
            found.append(Violation("stuck", text, event.at))
        elif event.what == "defect":
            found.append(Violation("defect", event.note, event.at))
    return found


Rule = Callable[[Sequence[Event], Sequence[Lease], float], list[Violation]]

RULES: dict[str, Rule] = {
    "overlap": overlap,
    "fence": fences,
    "store": store,
    "update": updates,
    "told": telling,
    "left": leftovers,
    "stuck": liveness,
}
"""By the name that its violations carry. (`stuck` also reports `defect`.)"""


EXACT = 1e-6  # what sums of floating point numbers may be off by


def check(history: Sequence[Event], slack: float | Mapping[str, float] = EXACT) -> list[Violation]:
    """Everything that is wrong, in order of time.

    `slack` is how exact the moments are; one for all, or by rule. Where two holders meet, their own clocks are compared and
    nothing need be forgiven; to be told takes a thread that runs: on real machines some 0.05 s.
    """
    leases = leases_of(history)
    found = []
    for name, rule in RULES.items():
        found += rule(history, leases, slack.get(name, EXACT) if isinstance(slack, Mapping) else slack)
    return sorted(found, key=lambda violation: (violation.at, violation.rule, violation.text))
