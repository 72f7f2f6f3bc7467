"""The budget of the hot path, in instructions. After a wanted change: `python -m tests.guard.test_hot_path --write`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from interlock.flow.waiting.queue import LocalQueue

from . import counting
from .counting import PATHS, SOURCE, Counts

WRITTEN = Path(__file__).with_name("hot_path.txt")
HEADROOM = 1.05
OTHERS = 1.03  # on top, for a Python that is not the one in which the file was written: `scale` is an estimate


def written() -> dict[str, Counts]:
    """What each path took when somebody last looked, by file."""
    paths: dict[str, Counts] = {path: Counter() for path in PATHS}
    for line in WRITTEN.read_text().splitlines():
        path, file, number = line.split()
        paths[path][file] = int(number)
    return paths


def complaint(path: str, now: Counts) -> str:
    """Why it is too much, or ""."""
    before = written()[path]
    scale = counting.scale()
    budget = before.total() * HEADROOM * scale * (1.0 if sys.version_info[:2] == (3, 11) else OTHERS)
    if now.total() <= budget:
        return ""
    lines = [
        f"{path}: one acquire and release takes {now.total()} instructions, {now.total() / before.total() / scale - 1:+.1%} of "
        f"what was written down ({before.total()} x {scale:.2f} for this Python); the budget is {budget:.0f}. By file:"
    ]
    for file in sorted(now | before, key=lambda file: before[file] * scale - now[file]):
        lines.append(f"  {now[file]:5d} {now[file] - before[file] * scale:+6.0f}  {file}")
    lines.append("Make it shorter, or run `python -m tests.guard.test_hot_path --write` and say in the commit what it is worth")
    return "\n".join(lines)


@pytest.mark.parametrize("path", PATHS)
def test_the_hot_path_has_not_grown(path: str) -> None:
    assert not (words := complaint(path, PATHS[path]())), words


@pytest.mark.parametrize("path", PATHS)
def test_a_few_lines_more_are_noticed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted where every release comes by: many additions, as if they stood in the queue's file."""
    code = "def heir(self, hold):\n" + "    hold.span = hold.span + 0.0\n" * 150 + "    return was(self, hold)\n"
    planted = {"was": LocalQueue.heir}
    exec(compile(code, f"{SOURCE}flow/waiting/queue.py", "exec"), planted)
    monkeypatch.setattr(LocalQueue, "heir", planted["heir"])
    words = complaint(path, PATHS[path]())
    assert "flow/waiting/queue.py" in words.splitlines()[1], words or "nobody noticed"


@pytest.mark.parametrize("path", PATHS)
def test_the_count_is_the_same_each_time(path: str) -> None:
    assert len({PATHS[path]().total() for _ in range(5)}) == 1


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    if sys.version_info[:2] != (3, 11):
        sys.exit("write it with Python 3.11: the others are told from that")
    found = {path: count() for path, count in PATHS.items()}
    WRITTEN.write_text("".join(f"{path} {file} {n}\n" for path, counts in found.items() for file, n in sorted(counts.items())))
    print({path: counts.total() for path, counts in found.items()}, "reference", round(counting.scale() * counting.REFERENCE))
