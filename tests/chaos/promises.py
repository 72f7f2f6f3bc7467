"""The kinds of faults, and what is promised under them: the one table."""

from __future__ import annotations

KINDS = {
    "none": "nothing: the control",
    "kill": "SIGKILL of a node, restart with its data (AOF, always), two of five away at a time",
    "empty": "SIGKILL of a node, restart without its data, while leases stand on three of five; the next when it votes again",
    "rdb": "SIGKILL of a node, restart with its last snapshot (RDB), from before those leases; the next when it votes again",
    "everysec": "the same with what an append-only file had half a second before (AOF, everysec, after a loss of power)",
    "stop": "SIGSTOP of a node for up to 1.5 ttl, two of five at a time",
    "drop": "replies vanish, connections are cut in their place, on any node",
    "pause": "SIGSTOP of a client process for up to 2 ttl, three of four at a time",
    "jump": "the wall clock of a node jumps, up to 2 s either way, on any number of nodes",
    "back": "the wall clock of a node is set back, up to 0.9 ttl at a time, and never forward",
    "partition": "a node hears and is not heard, or the other way round, for up to 2 ttl, two of five at a time",
}
MIXED = ("kill", "empty", "stop", "drop", "pause", "partition")

FAILURES = {  # a violation of these rules is a failure …
    "overlap": set(KINDS) - {"jump"},  # … under these kinds. Under any other it is counted.
    "fence": set(KINDS),
    "store": set(KINDS),
    "update": set(KINDS),
    "told": set(KINDS),
    "left": set(KINDS),
    "stuck": set(KINDS),
    "defect": set(KINDS),
}
"""A node whose clock jumps forward frees its leases early, so two may hold a lock then; the fence keeps apart what they do.

In a mixture a rule is promised if every kind in it promises that.
"""

SLACK = {"told": 0.05}
"""How exact the moments are, by rule. Leases are counted on one clock, so nothing is forgiven where two of them meet."""


def kinds_of(text: str) -> tuple[str, ...]:
    """The kinds that one run mixes: names joined by "+"; "mixed" stands for those under which everything is promised."""
    words = [kind for word in text.split("+") for kind in (MIXED if word == "mixed" else (word,))]
    if unknown := [word for word in words if word not in KINDS]:
        raise ValueError(f"no such kind: {', '.join(unknown)}. Known are {', '.join(KINDS)}, and mixed")
    return tuple(dict.fromkeys(words))


def label(kinds: tuple[str, ...]) -> str:
    """The other way round, as short as it can be said."""
    if set(MIXED) <= set(kinds):
        kinds = ("mixed", *(kind for kind in kinds if kind not in MIXED))
    return "+".join(kinds)


def promised(rule: str, kinds: tuple[str, ...]) -> bool:
    """Whether a violation of this rule is a failure under these faults."""
    return all(kind in FAILURES[rule] for kind in kinds)
