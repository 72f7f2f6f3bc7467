"""The demo's judgement and its looks, where a whole run cannot show them: verdicts come from the books, not from the script."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest

import interlock
from interlock.cli.demo import acts, play, screen, worker
from interlock.cli.demo.shop import Books, Shop


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


def act_one(sold: int, left: int) -> acts.Outcome:
    return acts.without_a_lock(cast("acts.Stage", FixedStage(sold, left)))


def act_two(sold: int, left: int, different: int | None = None) -> acts.Outcome:
    return acts.with_a_lock(cast("acts.Stage", FixedStage(sold, left, different)), cast("Any", FixedNode))


def test_act_one_is_shown_only_if_more_was_sold_than_there_was() -> None:
    assert act_one(61, 0).shown
    assert "OVERSOLD by 1." in act_one(61, 0).verdict
    assert not act_one(60, 0).shown
    assert not act_one(41, 30).shown
    assert "OVERSOLD" not in act_one(60, 0).verdict


def test_act_two_is_exact_only_if_the_books_balance() -> None:
    assert act_two(60, 0).shown
    assert "60 sold, 0 left: EXACT" in act_two(60, 0).verdict
    assert act_two(40, 20).shown
    assert "Time was up" in act_two(40, 20).remark
    for wrong in (act_two(61, 0), act_two(59, 0), act_two(60, 1), act_two(60, 0, different=59), act_two(0, 60)):
        assert not wrong.shown
    assert "NOT EXACT" in act_two(61, 0).verdict


def test_what_was_not_shown_is_not_claimed() -> None:
    out = io.StringIO()
    good, bad = acts.Outcome(True, "fine."), acts.Outcome(False, "not oversold this time.", "Busy?")
    assert play._verdict(screen.Screen(out), {"without a lock": bad, "with the lock": good}) == 1
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
