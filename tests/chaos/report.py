"""What a history says: the figures, what is wrong, and whether that is a failure under the faults that it had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from interlock.testing.history import RULES, Event, Violation, leases_of

from .journal import load
from .promises import FAILURES, SLACK, kinds_of, label, promised


class Figures(NamedTuple):
    """One run."""

    kind: str
    on: str  # which servers, and so on
    seconds: float  # from the first grant to the calm
    faults: dict[str, int]
    grants: int
    counts: dict[str, int]  # of violations, by rule
    turned_away: int  # touches and writes with a fence that was no longer the newest
    bare: int  # updates that were lost on the counters without a fence: the control
    gap: float  # the longest time without a grant
    failures: list[Violation]


def judge(history: Sequence[Event]) -> Figures:
    """Everything that there is to say about it."""
    facts = json.loads(next(event.note for event in history if event.what == "run"))
    kinds = kinds_of(facts["kind"])
    leases = leases_of(history)
    steps = [
        (event.at, float(event.note)) for event in history if event.what == "fault" and event.name == "jump" and event.note
    ]
    found = [violation for rule, look in RULES.items() for violation in look(history, leases, SLACK.get(rule, 0.0))]
    counts = dict.fromkeys(FAILURES, 0)
    faults: dict[str, int] = {}
    for violation in found:
        counts[violation.rule] += 1
    for event in history:
        if event.what == "fault":
            faults[event.name] = faults.get(event.name, 0) + event.value
    calm = next((event.at for event in history if event.what == "calm"), history[-1].at)
    grants = sorted(lease.got.at for lease in leases)
    during = [at for at in grants if at <= calm]
    return Figures(
        kind=label(kinds) + (f" ({facts['mutant']})" if facts["mutant"] else ""),
        on=facts["on"],
        seconds=calm - during[0] if during else 0.0,
        faults=faults,
        grants=len(grants),
        counts=counts,
        turned_away=sum(event.what in ("enter", "write") and event.note == "stale" for event in history),
        bare=sum(event.what == "bare" and event.note == "lost" for event in history),
        gap=max((later - one for one, later in pairwise([*during, calm])), default=0.0),
        failures=sorted(
            (each for each in found if promised(each.rule, kinds) or _unexplained(each, steps, facts)), key=lambda each: each.at
        ),
    )


def _unexplained(violation: Violation, steps: Sequence[tuple[float, float]], facts: dict[str, Any]) -> bool:
    """Two holders on one node alone whose clock did not jump forward while the first of them held its lease.

    (A server goes by a reading of its clock that may be a tenth of a second old.)
    """
    since = violation.at - facts["ttl"] - 0.2
    return (
        violation.rule == "overlap"
        and facts.get("nodes") == 1
        and not any(since <= at <= violation.at and step > 0 for at, step in steps)
    )


def judge_file(path: Path) -> Figures:
    """The same, of a file."""
    return judge(load(path))


COLUMNS = ("kind", "seconds", "faults", "grants", "overlaps", "fence", "update", "told", "left", "stuck", "away", "bare", "gap")
LEGEND = """\
overlaps: two leases believed in at once (a failure unless a clock jumped)
fence:    a fence given twice, or not growing, or let in by the resource out of order
update:   an update lost on a counter that is fenced at entry
told:     a holder told late, or a lease that came back
left:     something stayed in a store
stuck:    no lock after the faults were over, or a defect
away:     touches and writes that the fence turned away
bare:     updates lost on the counters that have no fence: the control
gap:      the longest time without a grant, in seconds"""


def table(all_figures: Sequence[Figures]) -> str:
    """One line for each run."""
    rows = [COLUMNS, *map(_row, all_figures)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def _row(figures: Figures) -> tuple[str, ...]:
    counts = figures.counts
    numbers = [
        counts["overlap"],
        counts["fence"] + counts["store"],
        counts["update"],
        counts["told"],
        counts["left"],
        counts["stuck"] + counts["defect"],
        figures.turned_away,
        figures.bare,
    ]
    faults = " ".join(f"{kind} {number}" for kind, number in figures.faults.items()) if len(figures.faults) > 1 else ""
    return (
        figures.kind,
        f"{figures.seconds:.0f}",
        faults or str(sum(figures.faults.values())),
        str(figures.grants),
        *map(str, numbers),
        f"{figures.gap:.2f}",
    )
