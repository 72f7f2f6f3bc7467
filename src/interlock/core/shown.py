"""Text that another wrote, made fit to be shown.

Owners, notes and host names come out of a store that others write to, and the words of a server out of the network. Wherever
such text goes into a message, a log record or onto a screen, it goes through `shown`: it must not steer a terminal, begin a
line of its own, or turn the direction of what stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 300  # more than the facts and the note of any honest holder


def shown(text: str, longest: int = LONGEST) -> str:
    """The text with everything escaped that is no visible character (control characters, line and paragraph separators, marks
    that override the direction, lone surrogates), cut after `longest` characters."""
    if len(text) <= longest and text.isprintable():
        return text
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: longest + 1])
    return text if len(text) <= longest else f"{text[:longest]}…"


def listed(addresses: Iterable[str]) -> str:
    """The addresses of nodes, as one of them wrote them down."""
    return ", ".join(map(shown, addresses))
