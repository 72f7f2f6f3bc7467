"""What a seed decides: the cluster, the clients, the faults and when they strike; and what is promised under them."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import NamedTuple

from ...core.lease import DRIFT_RATE

FAULTS = {
    "delay": "some messages take up to 1.5 ttl",
    "reorder": "messages of different connections overtake each other",
    "loss": "requests and replies are swallowed",
    "duplicate": "requests and replies come twice",
    "cut": "connections are cut, some with requests still on their way",
    "partition": "clients and nodes cannot reach each other for a while",
    "oneway": "requests arrive and replies do not, or the other way round",
    "freeze": "nodes stop and go on",
    "crash": "nodes die and come back with their memory",
    "amnesia": "nodes die and come back without, one at a time",
    "stale": "nodes die and come back with an earlier state of theirs, one at a time",
    "pause": "client processes stop and go on",
    "cancel": "tasks are cancelled wherever they wait",
    "close": "clients are closed, whatever their tasks are at; each process makes another",
    "brief": "clients live for one lease: each process makes another for the next",
    "struck": "signal handlers raise in tasks, also with an answer read that nobody has yet",
    "drift": "clocks run at rates that differ by up to one percent",
    "wall": "the wall clocks of clients jump",
    "jump": "the clocks of nodes jump, so leases end early or late there",
    "back": "the clocks of nodes are set back, and right again when nobody holds anything there",
    "skew": "clocks run at rates that differ by up to a quarter, and clients allow for that",
}
CLEAN = {"brief", "cancel", "close", "struck", "drift", "wall", "reorder"}  # whatever is given back is out of every store soon
FORGETFUL = {"amnesia", "stale"}  # a node that is let back in takes longer than a lease; one node alone promises nothing
RATE = 0.00498  # either way: two clocks differ by less than one percent
SKEWED, SKEWED_RATE = 0.2, 0.11  # the drift that clients allow for under `skew`, and how far clocks run apart then, either way


class Plan(NamedTuple):
    """One history, before it begins."""

    seed: int
    asked: tuple[str, ...]  # what the seed was given: the faults by name, or "mixed"
    size: int  # and the number of nodes
    faults: frozenset[str]
    nodes: int
    clients: int
    actors: int  # tasks of each client
    turns: int  # of each task, before the faults end
    ttl: float
    request_timeout: float
    span: float  # when the faults end
    hybrid: bool  # whether the nodes' clocks lift their fences
    newborn: bool  # whether the cluster has not been used before

    @classmethod
    def of(cls, seed: int, faults: Collection[str] = (), nodes: int = 3) -> Plan:
        """The plan of a seed. `mixed` among the faults: some of them, and another number of nodes."""
        random = Random(f"plan {seed} {sorted(faults)} {nodes}")
        some, size = set(faults), nodes
        if "mixed" in some:
            some = {fault for fault in FAULTS if random.random() < 0.3}
            nodes = random.choice((1, 3, 3, 3, 5))
        forgetful = (
            bool(some & FORGETFUL) and nodes > 1
        )  # to be let back in takes longer than a lease, so such a history does too
        ttls = (0.3, 0.6) if some <= CLEAN else (0.1, 0.2, 0.4, 0.8)
        ttl = random.choice(
            (*ttls, 8.0 if nodes > 1 else 60.0)
        )  # longer than any pause, linger or patience in flows and stores
        return cls(
            seed=seed,
            asked=tuple(sorted(faults)),
            size=size,
            faults=frozenset(some),
            nodes=nodes,
            clients=3 if forgetful else random.choice((2, 2, 3)),
            actors=1 if forgetful or "brief" in some else random.choice((2, 2, 3, 3) if "close" in some else (1, 1, 1, 2)),
            turns=(8 if "brief" in some else 4) if forgetful else random.choice((1, 2, 2)),
            ttl=ttl,
            request_timeout=min(ttl * random.choice((0.2, 0.5, 1.0)), 4.0),
            span=ttl * random.uniform(2.0, 15.0 if forgetful else 5.0),
            hybrid=random.random() < (0.2 if some & {"jump", "back"} else 0.5) or (nodes == 1 and bool(some & FORGETFUL)),
            newborn=random.random() < 0.2,
        )

    @property
    def forgetful(self) -> bool:
        """Whether nodes of a quorum lose their memory."""
        return self.nodes > 1 and bool(self.faults & FORGETFUL)

    def promised(self, rule: str) -> bool:
        """Whether a violation of this rule is a failure. If not, it is counted.

        A node whose clock jumps frees its leases early, so two holders are possible; one node alone that forgets frees them
        at once. Fences hold all the same, unless that one node's clock has gone back as well.
        """
        alone = self.nodes == 1 and bool(self.faults & FORGETFUL)
        if rule == "overlap":
            return "jump" not in self.faults and not alone
        if rule in ("fence", "store", "update"):
            return not (alone and ("jump" in self.faults or "back" in self.faults))
        return True

    @property
    def drift(self) -> float:
        """What clients allow for."""
        return SKEWED if "skew" in self.faults else DRIFT_RATE

    @property
    def rate(self) -> float:
        """By how much a clock runs too fast or too slow, at most."""
        return SKEWED_RATE if "skew" in self.faults else RATE if "drift" in self.faults else 0.0

    @property
    def arguments(self) -> str:
        """What repeats this history, on the command line."""
        return f"--seed {self.seed} --nodes {self.size} --faults {','.join(self.asked) or 'none'}"


def faults_of(text: str) -> list[str]:
    """The faults in a list with commas; "none" and "mixed" stand alone. Raises ValueError with what is wrong."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words in (["none"], ["mixed"]):
        return [] if words == ["none"] else words
    if alone := [word for word in words if word in ("none", "mixed", "each")]:
        raise ValueError(f"{alone[0]} stands alone, without other faults")
    if unknown := [word for word in words if word not in FAULTS]:
        raise ValueError(f"no such fault: {', '.join(unknown)}. Known are {', '.join(FAULTS)}; or none, or mixed")
    return words
