"""How the demo looks: a picture redrawn in place in a terminal, a few plain lines everywhere else.

NO_COLOR takes the colours away; TERM=dumb, a small window or a pipe take the picture away.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import TextIO

from .shop import Books

WIDTH = 78
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_BAR = 40  # cells
_NARROW_BAR = 12
_EVERY = 1.0  # seconds between two plain lines
_FRAME = 0.07  # seconds between two pictures


class Screen:
    """Where the demo speaks. `say` is for good, `draw` is replaced by the next `draw` unless `keep` comes between."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        size = shutil.get_terminal_size()
        dumb = os.environ.get("TERM", "") in ("", "dumb")
        self.live = out.isatty() and not dumb and size.columns > WIDTH and size.lines >= 20
        self._colour = self.live and not os.environ.get("NO_COLOR")
        self.blocks = _can_write(out, "█▒")
        self._height = 0  # lines of the picture that may be drawn over
        self._drawn = self._noted = 0.0
        if self.live:
            self._write("\x1b[?25l")  # hide the cursor

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self.live:
            self._write("\x1b[0m\x1b[?25h")

    def say(self, text: str = "") -> None:
        """Print lines that stay."""
        self.keep()
        self._write(text + "\n")

    def draw(self, lines: list[str], now: bool = False) -> None:
        """Show a picture in the place of the last one. Nothing where there is no picture, or too soon after the last."""
        if not self.live or (time.monotonic() - self._drawn < _FRAME and not now):
            return
        up = f"\x1b[{self._height}F" if self._height else ""
        self._write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        self._height = len(lines)
        self._drawn = time.monotonic()

    def keep(self) -> None:
        """The last picture stays where it is."""
        self._height = 0

    def pause_notes(self) -> None:
        """The next note is due in a second, not at once."""
        self._noted = time.monotonic()

    def note(self, text: str, now: bool = False) -> None:
        """Progress where there is no picture: at most one line a second, and events `now`."""
        if not self.live and (now or time.monotonic() - self._noted >= _EVERY):
            self._noted = time.monotonic()
            self._write(text + "\n")

    def paint(self, text: str, *styles: str) -> str:
        """The text in colour, where there is colour."""
        if not self._colour:
            return text
        return f"\x1b[{';'.join(_COLOURS[style] for style in styles)}m{text}\x1b[0m"

    def bar(self, value: float, good: float, style: str) -> str:
        """`value` cells, those beyond `good` in another shade and in red."""
        full, over = ("█", "▒") if self.blocks else ("#", "x")
        cells = min(round(value), _BAR)
        inside = min(cells, round(good))
        return self.paint(full * inside, style) + self.paint(over * (cells - inside), "red")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def sales(screen: Screen, books: Books, stock: int, workers: int, holder: int | None, nodes: Sequence[str] = ()) -> list[str]:
    """The picture of a sale: who sold how many, and whether that can be true; beside it what the `nodes` say."""
    longest, has_it = (_NARROW_BAR, " < lock") if nodes else (_BAR, " < has the lock")
    lines = []
    for number in range(1, workers + 1):
        sold = books.by_worker.get(number, 0)
        cells = min(sold / 2, longest)
        mark = has_it if number == holder else ""
        beside = ""
        if number <= len(nodes):
            beside = " " * (longest - round(cells) + len(has_it) - len(mark) + 2) + nodes[number - 1]
        mark = screen.paint(mark, "bold", "yellow") if mark else ""
        lines.append(f"  worker {number}  {sold:4}  {screen.bar(cells, _BAR, 'cyan')}{mark}{beside}")
    cells = 6  # for the stock: leaves room for six times as much
    scale = cells / stock
    more = books.sold - stock
    too_many = screen.paint(f" {more} too many", "bold", "red") if more > 0 else ""
    return [
        *lines,
        "",
        f"  there were{stock:4}  {screen.bar(cells, cells, 'green')}",
        f"  sold      {books.sold:4}  {screen.bar(books.sold * scale, cells, 'green')}{too_many}",
        f"  left      {books.left:4}  {screen.bar(books.left * scale, cells, 'dim')}",
    ]


def _can_write(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
