from __future__ import annotations

import pytest

from interlock.backends.redis.refusals import refusal
from interlock.backends.redis.resp import ErrorReply
from interlock.core.quorum import table
from interlock.core.shown import LONGEST, shown
from interlock.errors import Vote

DANGEROUS = [
    *map(chr, range(0x20)),  # C0: escape sequences, line breaks, bells
    *map(chr, range(0x7F, 0xA0)),  # DEL and C1, with a control sequence introducer of its own
    *map(chr, range(0x202A, 0x202F)),  # overrides of the direction
    *map(chr, range(0x2066, 0x206A)),
    "\u2028",
    "\u2029",
    "\ud800",
    "\udfff",
    "\u200b",
    "\ufeff",
]


@pytest.mark.parametrize("char", DANGEROUS, ids=ascii)
def test_what_cannot_be_seen_is_escaped(char: str) -> None:
    made = shown(f"a{char}b")
    assert char not in made
    assert made.isprintable()
    assert made.startswith("a\\")
    assert made.endswith("b")
    made.encode()


@pytest.mark.parametrize("text", ["", "web-7:4242 (release 812)", "Zoë, 東京 (déploiement)", "x" * LONGEST])
def test_honest_text_stays_as_it_is(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize("text", ["x" * 10**6, "\x1b" * 10**6, "x" * (LONGEST + 1)])
def test_it_is_bounded(text: str) -> None:
    assert len(shown(text)) == LONGEST + 1
    assert shown(text).endswith("…")


def test_a_table_of_votes_has_a_line_for_each_node() -> None:
    votes = [
        Vote("redis://a", "held", 0.001, "by x\n  redis://b  granted\x1b[2J"),
        Vote("redis://b\n", "error", None, "\u202e"),
    ]
    assert len(table(votes).split("\n")) == 2
    assert table(votes).replace("\n", "").isprintable()


def test_the_words_of_a_server() -> None:
    for code in ("ERR", "NOPERM", "MOVED"):
        error = refusal("redis://a", ErrorReply(f"{code} \x1b[31m\r\nfake: all is well"), "job")
        assert str(error).isprintable()
