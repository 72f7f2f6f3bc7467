"""The steps of a change of the list of nodes, in a small model of nodes, clients and operators that run in any order.

Operators look at one node after the other and change one after the other; any of them may stop for good anywhere, another may
give the change up, or make another one. Nodes are restarted, with an older state, one at a time. Clients of all lists ask for
votes all the time, renew, and let nodes back in that were restarted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import pytest

from interlock.core import change
from interlock.core.change import Refusal, Seen, Step, TooLate, plan
from interlock.core.membership import OtherList, common_list, digest, superseded
from interlock.core.quorum import Marker, missing_at_birth, reseed, votes_needed

TTL = 12
SEEDS = 60
CHANGES = {
    "grow": ("abc", "abcde"),
    "shrink": ("abcde", "abc"),
    "replace": ("abc", "abd"),
    "replace two": ("abc", "ade"),
    "all new": ("abc", "def"),
    "bigger and new": ("abc", "cdefg"),
}


class Node:
    """One node: its roll, one lock, its fences. `stamp` names its state; it never comes twice."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.roll: Marker | None = None
        self.good = self.had = False  # a good roll now; ever
        self.stamp = world.fresh()
        self.holder, self.until, self.fence = "", 0, 0
        self.saved: tuple[Any, ...] = ()

    @property
    def held(self) -> int:
        return max(self.until - self.world.time, 0) if self.holder else 0

    def votes_under(self, nodes: Sequence[str]) -> bool:
        return self.good and self.roll is not None and not self.roll.closed and self.roll.nodes == tuple(nodes)

    def vote(self, nodes: Sequence[str], token: str) -> int:
        """Its fence, 0 if it does not grant."""
        if not self.votes_under(nodes) or (self.held and self.holder != token):
            return 0
        assert self.roll is not None
        if self.holder != token or not self.held:
            self.fence = max(self.fence, self.roll.seed) + 1
        self.holder, self.until = token, self.world.time + TTL
        self._note()
        return self.fence

    def extend(self, token: str, fence: int) -> bool:
        if not self.held or self.holder != token:
            return False
        self.until, self.fence = self.world.time + TTL, max(self.fence, fence)
        self._note()
        return True

    def _note(self) -> None:
        if self.roll is not None:
            self.roll = self.roll._replace(high=max(self.roll.high, self.fence))

    def enroll(self, roll: Marker, stamp: int) -> bool:
        if stamp != self.stamp:
            return False
        high = max(roll.high, self.roll.high if self.roll is not None else 0)
        self.roll, self.good, self.had, self.stamp = roll._replace(high=high), True, True, self.world.fresh()
        return True

    def save(self) -> None:
        self.saved = self.roll, self.holder, self.until, self.fence

    def restart(self, empty: bool) -> None:
        self.roll, self.holder, self.until, self.fence = (None, "", 0, 0) if empty else self.saved
        self.good, self.stamp = False, self.world.fresh()


class World:
    """The nodes, the clock, and what must never be."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.time, self._stamps = dice, 0, 0
        self.nodes: dict[str, Node] = {}
        self.wins: list[tuple[int, int]] = []  # until when believed, and the fence
        self.lists: set[tuple[str, ...]] = set()
        self.ends: Counter[str] = Counter()

    def fresh(self) -> int:
        self._stamps += 1
        return self._stamps

    def listed(self, names: str) -> tuple[str, ...]:
        for name in names:
            if name not in self.nodes:
                self.nodes[name] = Node(self, name)
                self.nodes[name].save()
        self.lists.add(tuple(names))
        return tuple(names)

    def born(self, names: str) -> None:
        for name in self.listed(names):
            self.nodes[name].enroll(Marker(tuple(names)), self.nodes[name].stamp)
            self.nodes[name].save()

    def check(self) -> None:
        able = [
            nodes for nodes in self.lists if sum(self.nodes[n].votes_under(nodes) for n in nodes) >= votes_needed(len(nodes))
        ]
        assert len(able) <= 1, f"votes can be won under {able}"

    def won(self, until: int, fence: int) -> None:
        assert all(other <= self.time for other, _ in self.wins), "two holders"
        assert all(fence > other for _, other in self.wins), "a fence that is not higher"
        self.wins.append((until, fence))

    # --- who acts -----------------------------------------------------------------------------------------------------

    def client(self, nodes: tuple[str, ...], who: str, renews: bool) -> Iterator[None]:
        turn = 0
        while True:
            turn += 1
            token, asked = f"{who}{turn}", self.time
            fences = {}
            for name in self.shuffled(nodes):
                if (fence := self.nodes[name].vote(nodes, token)) > 0:
                    fences[name] = fence
                yield
            if len(fences) >= votes_needed(len(nodes)):
                top = max(fences.values())
                stored = [self.nodes[name].extend(token, top) for name in fences]
                if sum(stored) >= votes_needed(len(nodes)) and self.time < asked + TTL - 1:
                    self.won(asked + TTL - 1, top)
                    if renews:
                        yield from self._renew(nodes, token, top)
            for name in self.shuffled(nodes):
                if self.nodes[name].holder == token:
                    self.nodes[name].holder = ""
            if self.wins and fences:
                self.wins[-1] = min(self.wins[-1][0], self.time), self.wins[-1][1]
            yield

    def _renew(self, nodes: tuple[str, ...], token: str, fence: int) -> Iterator[None]:
        for _ in range(self.dice.choice((0, 1, 4, 10))):
            yield
            asked, done = self.time, 0
            for name in self.shuffled(nodes):
                done += self.nodes[name].extend(token, fence)
                yield
            if done < votes_needed(len(nodes)) or self.time >= self.wins[-1][0]:
                return
            self.wins[-1] = asked + TTL - 1, fence

    def readmission(self, nodes: tuple[str, ...]) -> Iterator[None]:
        """A client of the list lets nodes in that were restarted, or that were away while the list was changed. As `Electorate`
        does it: also when most lost their memory, if nearly everybody answers."""
        known: tuple[str, ...] = ()
        while True:
            looks: dict[str, Node] = {}
            for name in self.shuffled(nodes):
                if self.dice.random() < 0.95:
                    looks[name] = copy(self.nodes[name])
                yield
            good = [node.roll for node in looks.values() if node.votes_under(nodes) and node.roll is not None]
            try:
                common_list(nodes, {name: node.roll for name, node in looks.items()}, known)
            except OtherList:
                yield
                continue
            if sum(_shut(node, good) for node in looks.values()) > len(nodes) - votes_needed(len(nodes)):
                yield
                continue
            known = nodes if len(good) >= votes_needed(len(nodes)) else known
            most = len(looks) >= len(nodes) - missing_at_birth(len(nodes))
            for name, look in looks.items():
                ours = look.roll is None or look.roll.nodes == nodes or superseded(look.roll, good)
                if look.votes_under(nodes) or (_shut(look, good) and look.good) or not ours:
                    continue
                if len(good) < votes_needed(len(nodes)) and not most:
                    continue
                until = self.time + max(other.held for other in looks.values())
                while self.time <= until:
                    yield
                high = max(other.roll.high for other in looks.values() if other.roll is not None) if good else 0
                roll = reseed(good, nodes) or (Marker(nodes, high + 5, high) if most and high else None)
                if roll is not None:
                    self.nodes[name].enroll(roll, look.stamp)
                break
            yield

    def birth(self, nodes: tuple[str, ...]) -> Iterator[None]:
        """A client of the list that takes nodes that nobody has used for a new cluster.

        It may be too early, but not earlier than any change: then the nodes are a cluster of their own, by their own right.
        """
        while any(self.nodes[name].roll is None for name in nodes):
            yield
        while True:
            looks = {}
            for name in self.shuffled(nodes):
                looks[name] = self.nodes[name].roll, self.nodes[name].good, self.nodes[name].stamp
                yield
            try:
                ours = common_list(nodes, {name: roll for name, (roll, _, _) in looks.items()}) == nodes
            except OtherList:
                ours = False
            if ours and all(roll is None or roll.unused for roll, _, _ in looks.values()):
                for name, (_, good, stamp) in looks.items():
                    if not good:
                        self.nodes[name].enroll(Marker(nodes), stamp)
                    yield
            yield

    def operator(self, old: tuple[str, ...], new: tuple[str, ...], back: bool = False) -> Iterator[None]:
        """It may be that one node cannot be reached, for as long as it takes or for a while."""
        absent = self.dice.choice([*sorted({*old, *new}), "", "", ""])
        returns = self.dice.choice((20, 100, 10**6))
        while True:
            returns -= 1
            seen, stamps = [], []
            for name in sorted({*old, *new}):
                node, there = self.nodes[name], name != absent or returns < 0
                sight = Seen(name, name in old, name in new)
                seen.append(sight._replace(heard=True, roll=node.roll, good=node.good, held=node.held) if there else sight)
                stamps.append((node, node.stamp))
                yield
            try:
                step = plan(seen, old, new, back)
            except Refusal:
                self.ends["refused"] += 1
                return
            if step.stage in (change.DONE, change.GIVEN_UP):
                self.ends[step.stage] += 1
                return
            for number in self.shuffled(step.rolls):
                node, stamp = stamps[number]
                node.enroll(step.rolls[number], stamp)
                yield
            yield

    def clock(self) -> Iterator[None]:
        while True:
            self.time += 1
            yield

    def trouble(self) -> Iterator[None]:
        """Restarts, one at a time: the next when everybody that was restarted has its memory again, or none yet."""
        while True:
            node = self.nodes[self.dice.choice(sorted(self.nodes))]
            node.save()
            for _ in range(self.dice.randrange(30)):
                yield
            if all(other.good or not other.had for other in self.nodes.values()):
                node.restart(empty=self.dice.random() < 0.4)
            yield

    def shuffled(self, some: Any) -> list[Any]:
        order = list(some)
        self.dice.shuffle(order)
        return order

    def run(self, actors: list[Iterator[None]], steps: int) -> None:
        """Any of them goes on, in any order, some much more often than others."""
        weights = [self.dice.choice((0.3, 1, 3)) for _ in actors]
        for _ in range(steps):
            if not actors:
                return
            (who,) = self.dice.choices(range(len(actors)), weights)
            try:
                next(actors[who])
            except StopIteration:
                del actors[who], weights[who]
            self.check()


def _shut(node: Node, good: Sequence[Marker]) -> bool:
    """See `Electorate`."""
    roll = node.roll
    if roll is None or not roll.closed or superseded(roll, good):
        return False
    return node.good or not (roll.to or good)


def history(seed: int, old: str, new: str) -> World:
    dice = random.Random(f"{seed} {old} {new}")
    world = World(dice)
    world.born(old)
    before, after, third = world.listed(old), world.listed(new), world.listed("abz")
    there = partial(world.operator, before, after)
    give_up = partial(world.operator, before, after, back=True)
    elsewhere = partial(world.operator, before, third)
    home, stay = partial(world.operator, after, before), partial(world.operator, after, before, back=True)
    alone = [[there], [there, there], [there, give_up, there], [there, there, give_up, give_up], [there, elsewhere, give_up]]
    two = [[there, home], [there, home, there, home], [there, home, stay, there], [there, elsewhere, home, give_up, stay]]
    operators = dice.choice(alone + two)
    actors = [world.client(before, "old", True), world.client(before, "other", False), world.client(after, "new", True)]
    actors += [world.readmission(before), world.readmission(after), world.birth(after), world.clock()]
    if dice.random() < 0.6:
        actors.append(world.trouble())
    spread = dice.choice((30, 200, 1000))
    for place, make in enumerate(operators):
        actors.append(
            _late(make, dice.randrange(spread) + place * dice.choice((0, 0, 100)), dice.choice((40, 100, 10**6, 10**6)))
        )
    world.run(actors, 3000)
    return world


def _late(make: Callable[[], Iterator[None]], after: int, steps: int) -> Iterator[None]:
    """It begins late, and is killed after so many steps."""
    for _ in range(after):
        yield
    work = make()
    for _ in range(steps):
        try:
            next(work)
        except StopIteration:
            return
        yield


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_the_order_there_is_one_holder_and_fences_grow(kind: str) -> None:
    wins, ends = 0, Counter[str]()
    for seed in range(SEEDS):
        try:
            world = history(seed, *CHANGES[kind])
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        wins, ends = wins + len(world.wins), ends + world.ends
    assert wins > 5 * SEEDS
    assert ends[change.DONE] > SEEDS / 4
    assert ends[change.GIVEN_UP] > SEEDS / 20
    assert ends["refused"] > SEEDS / 20


# --- one rule at a time ---------------------------------------------------------------------------------------------------

ABC, ABD, DEF = tuple("abc"), tuple("abd"), tuple("def")
OPEN = Marker(ABC, 70, 5)


def scene(old: Sequence[str], new: Sequence[str], rolls: Mapping[str, Marker | None], **more: Any) -> list[Seen]:
    """Nodes with these rolls, which are good. `lost`: those whose are not. `held`: those with a lease. `away`: no answer."""
    lost, held, away = (more.get(what, "") for what in ("lost", "held", "away"))
    return [
        Seen(n, n in old, n in new)
        if n in away
        else Seen(n, n in old, n in new, True, rolls.get(n), rolls.get(n) is not None and n not in lost, float(n in held))
        for n in sorted({*old, *new})
    ]


def closing(new: Sequence[str], roll: Marker = OPEN) -> Marker:
    return roll._replace(closed=True, to=tuple(new))


def left(new: Sequence[str], roll: Marker = OPEN) -> Marker:
    """As a node has it that has left the list of `roll` for the new one."""
    return Marker(tuple(new), roll.high, roll.high, True, 0.0, (), roll.era + 1, (digest(roll.nodes), *roll.was))


def by_name(step: Step, seen: list[Seen]) -> dict[str, Marker]:
    return {seen[number].address: roll for number, roll in step.rolls.items()}


def test_the_way_from_one_list_to_another() -> None:
    rolls: dict[str, Marker | None] = dict.fromkeys("abc", OPEN)
    stages = []
    while True:
        seen = scene(ABC, ABD, rolls)
        step = plan(seen, ABC, ABD)
        stages.append((step.stage, "".join(sorted(by_name(step, seen)))))
        rolls |= by_name(step, seen)
        if not step.rolls:
            break
    new = Marker(ABD, 70, 70, False, 0.0, (), 1, (digest(ABC),))
    assert stages == [("closing", "d"), ("closing", "abc"), ("committing", "abc"), ("opening", "abd"), ("done", "")]
    assert rolls == {"a": new, "b": new, "d": new, "c": new._replace(closed=True, to=ABD)}, (
        "who is not in it any more knows the new list"
    )


def test_it_waits_for_the_leases_of_a_quorum_and_for_no_other() -> None:
    rolls = dict.fromkeys("abc", closing(ABD)) | {"d": left(ABD)}
    for held, stage in (("ab", "draining"), ("abc", "draining"), ("a", "committing"), ("", "committing")):
        seen = scene(ABC, ABD, rolls, held=held)
        step = plan(seen, ABC, ABD)
        assert step.stage == stage
        assert not {*held} & {*by_name(step, seen)}, "a node with a lease stays where it is"


def test_a_node_that_may_have_forgotten_a_lease_does_not_count() -> None:
    rolls = dict.fromkeys("abc", closing(ABD)) | {"d": left(ABD)}
    assert plan(scene(ABC, ABD, rolls, held="b", lost="a"), ABC, ABD).stage == "draining"
    assert plan(scene(ABC, ABD, rolls, lost="ab"), ABC, ABD).stage == "missing"
    assert plan(scene(ABC, ABD, dict.fromkeys("abc", OPEN), lost="ab"), ABC, ABD).stage == "missing"


def test_nothing_is_opened_before_a_quorum_has_left_the_old_list() -> None:
    rolls = {"a": left(ABD), "b": OPEN, "c": OPEN, "d": left(ABD)}  # one has left; others were opened again meanwhile
    seen = scene(ABC, ABD, rolls)
    step = plan(seen, ABC, ABD)
    assert (step.stage, sorted(by_name(step, seen))) == ("closing", ["b", "c"])
    with pytest.raises(TooLate):
        plan(seen, ABC, ABD, back=True)
    seen = scene(ABC, ABD, rolls | {"b": left(ABD)})
    assert {name: roll.closed for name, roll in by_name(plan(seen, ABC, ABD), seen).items()} == {
        "a": False, "b": False, "c": True, "d": False,
    }  # fmt: skip


def test_one_node_that_is_open_is_proof_enough() -> None:
    opened = left(ABD)._replace(closed=False)
    rolls = {"a": opened, "b": closing(ABD), "c": OPEN, "d": None}
    seen = scene(ABC, ABD, rolls)
    assert by_name(plan(seen, ABC, ABD), seen) == {"b": opened, "c": left(ABD)._replace(to=ABD)}, (
        "d may have voted and forgotten: clients let it in"
    )
    with pytest.raises(TooLate):
        plan(seen, ABC, ABD, back=True)


def test_given_up() -> None:
    rolls = {"a": closing(ABD), "b": closing(ABD), "c": OPEN, "d": left(ABD)}
    seen = scene(ABC, ABD, rolls)
    step = plan(seen, ABC, ABD, back=True)
    assert step.stage == "reopening"
    assert by_name(step, seen) == {"a": OPEN, "b": OPEN, "d": Marker(ABC, 0, 0, True, to=ABC)}
    seen = scene(ABC, ABD, rolls | by_name(step, seen))
    assert plan(seen, ABC, ABD, back=True).stage == "given up"
    assert plan(seen, ABC, ABD).stage == "closing", "and tried again: d can be had, it is no node of any list"


@pytest.mark.parametrize(
    ("rolls", "says"),
    [
        (dict.fromkeys("abc", OPEN) | {"d": Marker(DEF, 9)}, "d belongs to another quorum: d, e, f"),
        (dict.fromkeys("abc", OPEN) | {"d": Marker(ABD, 9)}, "d belongs to another quorum"),
        (dict.fromkeys("ab", OPEN) | {"c": closing(DEF)}, "closed for another change, to d, e, f"),
        (dict.fromkeys("abc", left(DEF)._replace(to=DEF)), "d, e, f"),
        (dict.fromkeys("abc", Marker(tuple("abcxy"), 9)), "a, b, c, x, y"),
    ],
)
def test_what_is_refused(rolls: dict[str, Marker], says: str) -> None:
    with pytest.raises(Refusal, match=says):
        plan(scene(ABC, ABD, rolls), ABC, ABD)


def test_equal_lists_are_refused() -> None:
    with pytest.raises(Refusal, match="same"):
        plan(scene(ABC, ABC, dict.fromkeys("abc", OPEN)), ABC, ABC)


@pytest.mark.parametrize("roll", [None, Marker(DEF), Marker(ABD), Marker(tuple("xyz"), 9, 9, True, 0.0, tuple("xyz"), 3)])
def test_what_may_join(roll: Marker | None) -> None:
    """Whoever has no roll, one that nobody has voted under, or one of a list that it is no node of any more."""
    seen = scene(ABC, ABD, dict.fromkeys("abc", OPEN) | {"d": roll})
    assert [*by_name(plan(seen, ABC, ABD), seen)] == ["d"]


def test_all_of_the_new_list_must_answer_and_a_quorum_of_the_old_one() -> None:
    rolls = dict.fromkeys("abc", OPEN)
    assert [plan(scene(ABC, ABD, rolls, away=away), ABC, ABD).stage for away in ("a", "d", "c")] == [
        "missing",
        "missing",
        "closing",
    ]
    assert plan(scene(ABC, DEF, rolls, away="ab"), ABC, DEF) == Step("missing", {}, [0, 1])


def test_who_slept_through_two_changes_votes_for_nobody_before_the_third_is_done() -> None:
    """a, b, c were changed to d, e, f and are to come back; a was away all the time and has its roll of the first list."""
    second = left(DEF)._replace(closed=False)
    rolls = {"a": OPEN, **dict.fromkeys("bc", left(DEF)._replace(to=DEF)), **dict.fromkeys("def", second)}
    seen = scene(DEF, ABC, rolls)
    step = plan(seen, DEF, ABC)
    assert (step.stage, sorted(by_name(step, seen))) == ("closing", ["a", "b", "c"]), (
        "it is not taken for one that is open already"
    )
    assert all(roll.closed for roll in by_name(step, seen).values())


def test_a_new_node_that_was_restarted_meanwhile() -> None:
    rolls = {**dict.fromkeys("abc", left(DEF)._replace(to=DEF)), **dict.fromkeys("def", left(DEF))}
    seen = scene(ABC, DEF, rolls, lost="d")
    assert by_name(plan(seen, ABC, DEF), seen) == {"d": left(DEF)}, "nobody has voted: there is nothing to forget"
    rolls["e"] = left(DEF)._replace(closed=False)
    seen = scene(ABC, DEF, rolls, lost="d")
    assert [*by_name(plan(seen, ABC, DEF), seen)] == ["f"], "it may have voted"
    rolls["f"] = rolls["e"]
    assert plan(scene(ABC, DEF, rolls, lost="d"), ABC, DEF) == Step("done", {}, [3])


def test_a_node_that_is_open_since_the_same_change_was_made_long_ago_proves_nothing() -> None:
    """a, b, c and d, e, f take turns; a was away since a, b, c had it the last time."""
    second = left(DEF)._replace(closed=False)
    third = left(ABC, second)._replace(closed=False)
    fourth = left(DEF, third)._replace(closed=False)
    rolls = {"a": third, **dict.fromkeys("bc", fourth._replace(closed=True, to=DEF)), **dict.fromkeys("def", fourth)}
    assert digest(DEF) in third.was
    seen = scene(DEF, ABC, rolls)
    step = plan(seen, DEF, ABC)
    assert (step.stage, sorted(by_name(step, seen))) == ("closing", ["a", "b", "c"])


def test_a_list_of_the_same_name_that_came_from_elsewhere_is_another_quorum() -> None:
    rolls = dict.fromkeys("abc", OPEN) | {"d": Marker(ABD, 9, 9, False, 0.0, (), 5, (digest(DEF),))}
    with pytest.raises(Refusal, match="d belongs to another quorum"):
        plan(scene(ABC, ABD, rolls), ABC, ABD)


# --- what clients make of it ----------------------------------------------------------------------------------------------


def chosen(own: Sequence[str], known: Sequence[str] = (), **rolls: Marker | None) -> tuple[str, ...]:
    return common_list(own, rolls, tuple(known))


NEW = left(ABD)._replace(closed=False)
RETIRED = left(ABD)._replace(to=ABD)


def test_a_node_that_was_away_does_not_stop_the_clients_of_the_new_list() -> None:
    assert chosen(ABD, a=NEW, b=OPEN, d=NEW) == ABD
    assert chosen(ABD, a=NEW, b=closing(ABD), d=None) == ABD
    assert chosen(ABD, ABD, a=NEW, b=OPEN) == ABD


def test_before_it_is_opened_the_old_list_counts() -> None:
    """Or clients of the new list would wait for the others to forget, and open it themselves."""
    for rolls in ({"a": OPEN, "b": OPEN, "d": left(ABD)}, {"a": OPEN, "d": left(ABD)}, {"a": closing(ABD), "d": left(ABD)}):
        with pytest.raises(OtherList):
            chosen(ABD, **rolls)


@pytest.mark.parametrize("known", [(), ABC])
@pytest.mark.parametrize(
    "rolls",
    [
        {"a": NEW, "b": NEW, "c": RETIRED},
        {"a": NEW, "b": None, "c": OPEN},
        {"a": NEW, "c": OPEN},
        {"a": NEW, "b": NEW},
        {"a": left(ABD), "b": None, "c": OPEN},
        {"b": None, "c": RETIRED},
        {"a": OPEN, "b": OPEN, "c": RETIRED},
    ],
    ids=[
        "all",
        "one was away and one forgot",
        "one was away",
        "one is silent",
        "not opened yet",
        "who is left out",
        "who is left out, alone",
    ],
)
def test_clients_of_the_old_list_are_told_the_new_one(known: tuple[str, ...], rolls: dict[str, Marker | None]) -> None:
    with pytest.raises(OtherList) as told:
        chosen(ABC, known, **rolls)
    assert told.value.nodes == ABD


def test_a_node_that_was_left_out_is_nobodys() -> None:
    gone = dict.fromkeys("abc", left(DEF)._replace(to=DEF))
    with pytest.raises(OtherList) as told:
        chosen(ABC, **gone)
    assert told.value.nodes == DEF, "it has a roll for that list, and is no node of it by any other name"


def test_a_list_that_came_back_is_not_superseded_by_the_one_in_between() -> None:
    again = left(ABC, NEW)._replace(closed=False)
    assert chosen(ABC, a=again, b=again, c=NEW) == ABC
    assert chosen(ABC, ABC, a=again, c=RETIRED) == ABC
    assert chosen(ABC, a=again, b=OPEN, c=again) == ABC
