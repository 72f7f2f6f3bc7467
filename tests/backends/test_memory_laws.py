"""The laws of claims of several names and of shared ones, on the specification: random requests, checked after each."""

from __future__ import annotations

import random

import pytest

from interlock.backends.memory import Memory
from interlock.backends.memory.state import GROUP
from interlock.core.claim import Claim, Granted, Place, Refused, Renewal

SLOTS = ("s#0", "s#1", "s#2")


class Inbox:
    """What was announced."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def put(self, announced: object) -> None:
        self.told.append(getattr(announced, "token", ""))


class Machine:
    """A memory and what was asked of it."""

    def __init__(self, seed: int) -> None:
        self.random, self.time = random.Random(seed), 100.0
        self.memory = Memory(lambda: self.time)
        self.memory.inboxes = {"here": Inbox()}  # type: ignore[dict-item]
        self.claims: list[Claim] = []
        self.highest: dict[str, int] = {}

    def fresh(self) -> Claim:
        inbox = self.random.choice(["here", "here", "here", "gone"])
        place = Place(int(self.time * 1e6), inbox, 3.0) if self.random.random() < 0.7 else None
        token = f"t{len(self.claims)}"
        if self.random.random() < 0.4:
            slots = self.random.sample(SLOTS, self.random.randint(1, 3))
            claim = Claim("s", token, 5.0, place, tuple(slots))
        else:
            claim = Claim("rw", token, 5.0, place, shared=self.random.random() < 0.6)
        self.claims.append(claim)
        return claim

    def writers_before(self, claim: Claim) -> bool:
        mine = claim.place.arrival if claim.place is not None else 1 << 62
        line = self.memory.lines.get(claim.name, ())
        return any(not stand.shared and stand.place.inbox == "here" and stand.arrival < mine for stand in line)

    def step(self) -> None:
        memory, what = self.memory, self.random.random()
        self.time += self.random.choice([0.0, 0.01, 0.01, 0.5])
        if what < 0.45 or not self.claims:
            claim = self.fresh()
            memory.holder(claim.name)  # forgets a group that is over: a free name goes to the first claim
            stopped, group = self.writers_before(claim), claim.name in memory.groups
            answer = memory.claim(claim)
            if claim.shared and group and stopped and memory.groups.get("rw", {}).get(claim.token):
                raise AssertionError("a reader passed a writer that waits")
            if isinstance(answer, Granted):
                assert memory.holds(answer.name or claim.name, claim.token)
            else:
                assert isinstance(answer, Refused)
                waits = [stand for stand in memory.lines.get(claim.name, ()) if stand.token == claim.token]
                assert len(waits) == (claim.place is not None)
            return
        claim = self.random.choice(self.claims[-12:])
        held = [name for name in (*claim.names, claim.name) if memory.holds(name, claim.token)]
        if what < 0.75:
            name = held[0] if held else (claim.names or (claim.name,))[0]
            assert memory.release(name, claim.token, line=claim.name) is bool(held)
            assert not any(memory.holds(name, claim.token) for name in (*claim.names, claim.name))
        elif what < 0.85 and held:
            assert isinstance(memory.extend(Renewal(held[0], claim.token, 5.0, 0)), Granted)
        elif what < 0.95 and held == [claim.name] and not claim.names:  # a writer becomes a reader; a reader stays one
            before = memory.held[claim.name].fence
            answer = memory.claim(claim._replace(shared=True))
            assert isinstance(answer, Granted)
            assert answer.fence == before
        else:
            memory.undo(claim.name, claim.token)

    def check(self) -> None:
        memory = self.memory
        for name in ("rw", *SLOTS):
            held = memory.holder(name)
            if held is None:
                assert name not in memory.groups
                continue
            assert (held.token == GROUP) == (name in memory.groups)
            if held.token == GROUP:
                assert memory.groups[name], "a group without readers"
                assert held.until == max(memory.groups[name].values())
            assert held.fence >= self.highest.get(name, 0), "a fence fell"
            self.highest[name] = held.fence
        for claim in self.claims:
            names = [name for name in (*claim.names, claim.name) if memory.holds(name, claim.token)]
            assert len(names) <= 1, f"{claim.token} holds {names}"
            assert not names or all(stand.token != claim.token for stand in memory.lines.get(claim.name, ()))
        for line in memory.lines.values():
            assert line == sorted(line)


@pytest.mark.parametrize("part", range(4))
def test_laws(part: int) -> None:
    for seed in range(part * 40, part * 40 + 40):
        machine = Machine(seed)
        for _ in range(120):
            machine.step()
            machine.check()


def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that joins whoever waits; a second slot for one token."""
    monkeypatch.setattr(Memory, "_writer_before", lambda self, claim: False)
    with pytest.raises(AssertionError, match="passed a writer"):
        for seed in range(50):
            machine = Machine(seed)
            for _ in range(120):
                machine.step()
