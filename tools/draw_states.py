"""Draw the tables of states into docs/design.md: `python tools/draw_states.py`. With `--check`: exit 1 if the page is old."""

from __future__ import annotations

import sys
from pathlib import Path

from interlock.backends.quorum import ticket
from interlock.flow.waiting import waiter

PAGE = Path(__file__).resolve().parent.parent / "docs" / "design.md"


def diagram(rows: list[tuple[str, str, str]]) -> str:
    """A mermaid diagram: one arrow for each pair of states, with all events that lead from the one to the other."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, event, after in rows:
        arrows.setdefault((before, after), []).append(event.replace(";", ",").replace(":", ","))
    lines = [f"    {before} --> {after}: {' / '.join(events)}" for (before, after), events in arrows.items() if before != after]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> NEW", *lines, "```"])


def meanings(states: type[waiter.State] | type[ticket.State]) -> str:
    """What each state means."""
    return "\n".join(["| state | means |", "|---|---|", *(f"| {state.name} | {state.value} |" for state in states)])


def drawn(page: str) -> str:
    """The page with its tables as they are now."""
    rows = [(row.before.name, row.event, row.after.name) for row in ticket.ROWS]
    parts = {
        "waiter": f"{meanings(waiter.State)}\n\n{diagram(waiter.MOVES)}",
        "ticket": f"{meanings(ticket.State)}\n\n{diagram(rows)}",
    }
    for name, part in parts.items():
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        page = f"{before}<!-- {name} -->\n{part}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return page


def main() -> int:
    """Write the page, or compare it."""
    before = PAGE.read_text()
    after = drawn(before)
    if "--check" in sys.argv:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
