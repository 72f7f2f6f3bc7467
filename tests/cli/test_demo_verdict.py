"""The demo's judgement and its looks, where a whole run cannot show them: verdicts come from the books, not from the script."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, cast

import pytest

import interlock
from interlock.cli.demo import acts, cluster, play, screen, worker
from interlock.cli.demo.shop import Books, Shop
from interlock.cli.demo.stage import Outcome, Stage
from interlock.core.claim import Entry
from interlock.errors import NoQuorum, Vote


class Terminal(io.StringIO):
    """A text stream that says it is a terminal, and how it encodes."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class FixedStage:
    """A stage on which every sale ends with the same books."""

    def __init__(self, sold: int, left: int, different: int | None = None) -> None:
        self.books = Books(left, sold, sold if different is None else different, (7, 3), {1: sold}, 1)

    def time_left(self) -> float:
        return 10.0

    def sale(self, *_: Any) -> Books:
        return self.books


class FixedNode:
    url = "redis://nowhere"


def act_one(sold: int, left: int) -> Outcome:
    return acts.without_a_lock(cast("Stage", FixedStage(sold, left)))


def act_two(sold: int, left: int, different: int | None = None) -> Outcome:
    return acts.with_a_lock(cast("Stage", FixedStage(sold, left, different)), cast("Any", FixedNode))


def test_act_one_is_shown_only_if_more_was_sold_than_there_was() -> None:
    assert act_one(61, 0).shown
    assert "OVERSOLD by 1." in act_one(61, 0).verdict
    assert not act_one(60, 0).shown
    assert not act_one(41, 30).shown
    assert "OVERSOLD" not in act_one(60, 0).verdict


def test_act_two_is_exact_only_if_the_books_balance() -> None:
    assert act_two(60, 0).shown
    assert "60 umbrellas, 60 sold: EXACT" in act_two(60, 0).verdict
    assert act_two(40, 20).shown
    assert "Time was up" in act_two(40, 20).remark
    assert "40 sold, 20 left: EXACT" in act_two(40, 20).verdict
    for wrong in (act_two(61, 0), act_two(59, 0), act_two(60, 1), act_two(60, 0, different=59), act_two(0, 60)):
        assert not wrong.shown
    assert "NOT EXACT" in act_two(61, 0).verdict


class FixedCluster:
    """Five nodes of which two are down."""

    urls = ("",) * 5
    dead = 2

    def __init__(self, struck_at: int | None, proven: bool) -> None:
        self.struck_at, self.proven = struck_at, proven


def act_three(sold: int, left: int, struck_at: int | None = 30, proven: bool = True) -> Outcome:
    return acts.five_nodes(cast("Stage", FixedStage(sold, left)), cast("Any", FixedCluster(struck_at, proven)))


def test_act_three_needs_two_nodes_that_were_seen_dead_and_sales_after_that() -> None:
    assert act_three(60, 0).shown
    assert act_three(60, 0).verdict == "60 umbrellas, 60 sold: EXACT."
    assert act_three(60, 0).remark == "30 of them were sold with 3 of 5 nodes alive."
    assert act_three(31, 29).shown
    for wrong in (act_three(61, 0), act_three(59, 0)):
        assert not wrong.shown
        assert "NOT EXACT" in wrong.verdict
    for unseen in (act_three(60, 0, proven=False), act_three(60, 0, None), act_three(30, 30)):
        assert not unseen.shown
        assert "But no" in unseen.verdict


class FixedNodes:
    """Five nodes that only remember what was done to them, and a client whose answer is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.answer: Entry | NoQuorum = entry()
        monkeypatch.setattr(os, "kill", lambda pid, number: self.done.append(f"{number.name} to {pid}"))
        monkeypatch.setattr(os, "waitid", lambda _, pid, __: self.done.append(f"waited for {pid}"))

    def made(self) -> cluster.Cluster:
        return cluster.Cluster([cast("Any", FixedServer(number, self.done)) for number in range(1, 6)])

    def inspect(self, name: str) -> Entry:
        assert name == "umbrella"
        if isinstance(self.answer, NoQuorum):
            raise self.answer
        return self.answer


class FixedServer:
    def __init__(self, number: int, done: list[str]) -> None:
        self.url, self.pid, self._done = f"redis://{number}", 100 + number, done

    def pause(self) -> None:
        self._done.append(f"paused {self.pid}")


def entry(*verdicts: str) -> Entry:
    said = verdicts or ("held",) * 5
    return Entry("umbrella", True, "host:42", 2.0, 1, votes(*said))


def votes(*verdicts: str) -> tuple[Vote, ...]:
    return tuple(Vote("redis://x", verdict, 0.1, "host:42, 2.0 s left" if verdict == "held" else "") for verdict in verdicts)


def test_nodes_are_struck_in_their_turn_and_believed_dead_only_when_they_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = FixedNodes(monkeypatch)
    five, client = nodes.made(), cast("Any", nodes)
    assert five.go_on(14, 0.24) is None
    assert five.go_on(15, 0.25) == "node 3 is KILLED (SIGKILL)"
    assert nodes.done == ["SIGKILL to 103", "waited for 103"]
    nodes.answer = entry("held", "held", "refused", "timeout", "held")
    five.look(client, "umbrella")
    assert not five.proven, "the second is still to come"
    assert five.go_on(29, 0.49) is None
    assert five.go_on(31, 0.51) == "node 4 is FROZEN (SIGSTOP)"
    assert nodes.done[2:] == ["paused 104"]
    assert (five.dead, five.struck_at) == (2, 31)
    proven = []
    for verdicts in (("held", "held", "refused", "held", "held"), ("free", "timeout", "refused", "timeout", "free")):
        nodes.answer = entry(*verdicts)
        five.look(client, "umbrella")
        proven.append(five.proven)
    assert proven == [False, True], "a node that votes is not dead"
    assert five.go_on(60, 1.0) is None


def test_a_line_for_each_node_says_what_was_done_to_it_and_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = FixedNodes(monkeypatch)
    five = nodes.made()

    def lines() -> list[str]:
        return five.lines({"host:42": 6}.get, lambda text, *_: text)

    assert [line.rstrip() for line in lines()] == [f"node {number}  up" for number in range(1, 6)], "nobody was asked yet"
    five.go_on(15, 0.3)
    five.go_on(30, 0.5)
    nodes.answer = entry("held", "free", "refused", "timeout", "held")
    seen = five.look(cast("Any", nodes), "umbrella")
    assert seen is nodes.answer
    told = [
        "node 1  up      held by worker 6",
        "node 2  up      free",
        "node 3  KILLED  no answer (refused)",
        "node 4  FROZEN  no answer (timeout)",
        "node 5  up      held by worker 6",
    ]
    assert lines() == told
    nodes.answer = NoQuorum("too few", backend="x", votes=votes("held", "timeout", "refused", "timeout", "timeout"))
    assert five.look(cast("Any", nodes), "umbrella") is None
    assert lines()[4] == "node 5  up      no answer (timeout)", "what they said is shown all the same"


def test_what_was_not_shown_is_not_claimed() -> None:
    out = io.StringIO()
    good, bad = Outcome(True, "fine."), Outcome(False, "not oversold this time.", "Busy?")
    assert play._verdict(screen.Screen(out), {"without a lock": bad, "with the lock": good}) == 1
    assert "without a lock: NOT SHOWN" in out.getvalue()
    assert "with the lock:  fine." in out.getvalue()
    assert "NOT SHOWN. not oversold this time. Busy?" in out.getvalue()
    assert "THE CODE" not in out.getvalue()
    assert play._verdict(screen.Screen(out), {"with the lock": good}) == 0
    assert "THE CODE" in out.getvalue()


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    made = Shop(str(tmp_path / "shop.db"), worker=3)
    made.open_with(2)
    yield made
    made.close()


def test_an_older_fence_is_refused_at_the_first_touch_and_at_the_write(shop: Shop) -> None:
    shop.change(worker.SEAL, f=10)
    for sql, values in ((worker.SEAL, {"f": 9}), (worker.WRITE, {"f": 9, "n": 0})):
        with pytest.raises(interlock.StaleFence) as caught:
            shop.change(sql, **values)
        assert (caught.value.fence, caught.value.newest) == (9, 10)
    assert shop.ask(worker.READ) == 2
    shop.change(worker.WRITE, f=10, n=1)
    assert shop.ask(worker.READ) == 1


def test_one_sale(shop: Shop) -> None:
    with interlock.Client("memory://") as client:
        sold = [worker.sell_with_lock(shop, lambda: None, client) for _ in range(3)]
    books = shop.books()
    assert sold == [True, True, False]
    assert (books.left, books.sold, books.different, books.by_worker) == (0, 2, 2, {3: 2})


def test_two_who_read_before_either_writes_sell_the_same_umbrella(shop: Shop) -> None:
    def meanwhile() -> None:
        assert worker.sell_without_lock(shop, lambda: None)

    assert worker.sell_without_lock(shop, meanwhile)
    books = shop.books()
    assert (books.left, books.sold, books.different, books.worst) == (1, 2, 1, (2, 2))


@pytest.fixture
def big_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("big_window")
def test_a_terminal_gets_a_picture_in_colour() -> None:
    out = Terminal()
    seen = screen.Screen(out)
    seen.draw([seen.paint("one", "red"), "two"], now=True)
    seen.draw(["one", "three"], now=True)
    seen.note("not here")
    assert "\x1b[31mone" in out.getvalue()
    assert "\x1b[2F" in out.getvalue(), "back to the first of the two lines"
    assert "not here" not in out.getvalue()


@pytest.mark.usefixtures("big_window")
def test_no_color_takes_only_the_colour_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    seen = screen.Screen(out)
    seen.draw([seen.paint("one", "red", "bold")], now=True)
    assert "one" in out.getvalue()
    assert "m" not in out.getvalue(), "every colour sequence ends in m"


@pytest.mark.usefixtures("big_window")
@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("TERM", ""), ("COLUMNS", "60"), ("LINES", "10")])
def test_without_a_fit_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    out = Terminal()
    seen = screen.Screen(out)
    seen.draw(["picture"], now=True)
    seen.note("line")
    seen.note("too soon")
    seen.close()
    assert out.getvalue() == "line\n"


@pytest.mark.usefixtures("big_window")
def test_a_terminal_without_blocks_gets_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    out.encoding = "ascii"
    books = Books(left=3, sold=90, different=50, worst=(1, 3), by_worker={1: 80, 2: 10}, fence=0)
    lines = screen.sales(screen.Screen(out), books, 60, 6, holder=2)
    assert all(line.isascii() for line in lines)
    assert any("######xxx" in line and "30 too many" in line for line in lines)
    assert next(line for line in lines if "has the lock" in line).startswith("  worker 2")


@pytest.mark.usefixtures("big_window")
def test_nodes_stand_beside_the_workers_in_a_column_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    books = Books(left=0, sold=60, different=60, worst=(1, 1), by_worker={1: 3, 2: 57, 4: 1}, fence=0)
    nodes = [f"node {number}  FROZEN  no answer (quarantined)" for number in range(1, 6)]
    lines = screen.sales(screen.Screen(Terminal()), books, 60, 6, 2, nodes)
    assert len(lines) == 10
    assert len({line.index("node") for line in lines[:5]}) == 1
    assert all(line.endswith(node) for line, node in zip(lines, nodes, strict=False))
    assert "< lock" in lines[1]
    assert max(map(len, lines)) <= screen.WIDTH
