"""What may go in. Everything wrong is refused here, with words that help."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core import checks
from interlock.errors import UsageError

quick = settings(deadline=None, database=None, max_examples=300)
letters = st.integers(0, sys.maxunicode).map(chr) | st.sampled_from("ab:é名\u0301\u200d\ufe0f{}\n ")  # surrogates too


class Thing:
    """Something else. With a name that is the same in every process, since tests are handed out by their names."""

    def __repr__(self) -> str:
        return "Thing()"


LEGAL = {
    "a letter": "x",
    "as people write them": "order:123",
    "path and query": "a/b?c=d&e#f",
    "spaces inside": "nightly report",
    "a space at the end": "nightly ",
    "every printable of ASCII but the braces": "".join(chr(n) for n in range(32, 127) if chr(n) not in "{}"),
    "nearly one of interlock's own": "interlock",
    "and beside them": "my interlock:roll",
    "umlauts": "Größe",
    "composed": "caf\u00e9",
    "Greek": "λ:ключ",
    "Han": "注文:一二三",
    "Hangul": "잠금",
    "Arabic": "قفل",
    "Hebrew": "מנעול",
    "Devanagari, whose vowels are marks": "ताला",
    "Thai, whose vowels are marks": "ล็อก",
    "digits of others": "٣४",
    "typographic punctuation": "a—b…«c»",
    "outside the basic plane": "\U00020000",
    "512 bytes": "x" * 512,
    "512 bytes in 256 letters": "é" * 256,
    "512 bytes in 128 letters": "\U00020000" * 128,
    "510 bytes in 170 letters, and two": "名" * 170 + "ab",
}
ILLEGAL = {
    "empty": "",
    "a space": " ",
    "spaces of all kinds": " \u2003\u3000",
    "nul": "a\0b",
    "new line": "a\nb",
    "trailing new line": "a\n",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "escape": "\x1b[31mred",
    "delete": "a\x7f",
    "C1 control": "a\x85b",
    "the roll of a quorum's node": "interlock:roll",
    "the names that it holds for long": "interlock:roll:long",
    "anything of interlock's own": "interlock:",
    "the same in other letters behind": "interlock:名",
    "open brace": "order:{id",
    "close brace": "order:id}",
    "an unfilled template": "order:{id}",
    "a brace beside other letters": "名{x}",
    "emoji": "🔒",
    "emoji after text": "lock🔒",
    "emoji from the basic plane": "☂",
    "emoji with its selector": "☂\ufe0f",
    "a flag": "🇩🇪",
    "a family": "👩\u200d👧",
    "skin tone": "👍🏽",
    "zero width joiner": "a\u200db",
    "zero width non-joiner": "a\u200cb",
    "zero width space": "a\u200bb",
    "word joiner": "a\u2060b",
    "byte order mark": "\ufeffa",
    "soft hyphen": "a\u00adb",
    "left-to-right mark": "a\u200eb",
    "right-to-left mark": "a\u200fb",
    "Arabic letter mark": "a\u061cb",
    "right-to-left override": "a\u202eb",
    "isolate": "a\u2066b\u2069",
    "a tag": "a\U000e0041",
    "no-break space": "a\u00a0b",
    "narrow no-break space": "a\u202fb",
    "line separator": "a\u2028b",
    "variation selector": "a\ufe00",
    "text selector": "a\ufe0e",
    "variation selector of the supplement": "葛\U000e0100",
    "combining grapheme joiner": "a\u034fb",
    "Hangul filler, an invisible letter": "a\u3164b",
    "decomposed": "cafe\u0301",
    "a singleton, the Ohm sign": "\u2126",
    "compatibility ideograph": "\uf900",
    "decomposed Hangul": "\u1112\u1161\u11ab",
    "private use": "a\ue000b",
    "unassigned": "a\u0378b",
    "noncharacter": "a\uffffb",
    "lone high surrogate": "a\ud800",
    "lone low surrogate": "\udfffa",
    "a pair of surrogates": "\ud83d\udd12",
    "currency, which is a symbol": "10€",
    "513 bytes": "x" * 513,
    "513 bytes that are 512 letters": "x" * 511 + "é",
    "514 bytes in 257 letters": "é" * 257,
    "513 bytes in 171 letters": "名" * 171,
}


@pytest.mark.parametrize("name", LEGAL.values(), ids=LEGAL)
def test_a_legal_name_is_passed_unchanged(name: str) -> None:
    assert checks.name(name) is name


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        checks.name(name)
    said = str(caught.value)
    assert "nothing was written" in said
    assert said.isprintable(), "and the message itself can be shown on any terminal"
    said.encode()


@pytest.mark.parametrize("name", [None, 7, 1.5, True, b"x", bytearray(b"x"), ["x"], ("x",), Thing(), str], ids=repr)
def test_a_name_is_a_string(name: object) -> None:
    with pytest.raises(UsageError, match=f"is a string, not {type(name).__name__}"):
        checks.name(name)


@quick
@given(st.lists(letters, max_size=12).map("".join))
def test_whatever_the_name_the_answer_is_itself_or_a_usage_error(name: str) -> None:
    try:
        assert checks.name(name) is name
    except UsageError:
        return
    assert 1 <= len(name.encode()) <= 512
    assert name.isprintable()
    assert unicodedata.is_normalized("NFC", name)
    assert not set(name) & set("{}")


# From Unicode's DerivedCoreProperties: Default_Ignorable_Code_Point, the characters that show nothing.
IGNORABLE = [
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
]


def test_no_invisible_character_gets_through() -> None:
    passed = []
    for first, last in IGNORABLE:
        for code in range(first, last + 1):
            try:
                checks.name(f"a{chr(code)}b")
            except UsageError:
                continue
            passed.append(f"U+{code:04X}")
    assert passed == [], f"two locks that look like one: {len(passed)}, {passed[:12]}"


def test_a_refused_name_of_any_size_makes_a_short_message() -> None:
    for name in ("x" * 10**5, "名" * 10**4, "🔒" * 150, "{" * 500):
        with pytest.raises(UsageError) as caught:
            checks.name(name)
        assert len(str(caught.value)) < 800


def test_a_name_in_ascii_needs_no_unicode_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unicodedata", None)
    assert checks.name("order:123") == "order:123"
    with pytest.raises(ImportError):
        checks.name("é")


# --- durations --------------------------------------------------------------------------------------------------------------

Check = Callable[[Any], float | None]
ALL: list[Check] = [checks.ttl, checks.timeout, checks.request_timeout]
NO_DURATION = [True, False, "10", "", b"1", Decimal(10), Fraction(1, 2), 1j, [1], Thing(), float, timedelta]


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize("value", NO_DURATION, ids=repr)
def test_a_duration_is_a_number_or_a_timedelta(check: Check, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{check.__name__} is seconds .* not {type(value).__name__}; nothing was written"):
        check(value)


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_duration_is_finite(check: Check, value: float) -> None:
    with pytest.raises(UsageError, match=f"{check.__name__} must be a finite number"):
        check(value)


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize(
    "value", [10**400, -(10**400), 1e308, -1e308, timedelta.max, timedelta.min, 2**63], ids=lambda value: repr(value)[:12]
)
def test_an_absurd_duration_is_refused_and_does_not_overflow(check: Check, value: Any) -> None:
    with pytest.raises(UsageError, match="nothing was written"):
        check(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (10, 10.0),
        (0.01, 0.01),
        (0.5, 0.5),
        (timedelta(milliseconds=1500), 1.5),
        (timedelta(days=7), 604_800.0),
        (604_800, 604_800.0),
    ],
)
def test_a_ttl_in_any_dress_is_float_seconds(value: Any, expected: float) -> None:
    assert checks.ttl(value) == expected
    assert type(checks.ttl(value)) is float


@pytest.mark.parametrize(
    "value", [0, 0.0, -0.0, -1, 1e-9, 0.00999, 5e-324, timedelta(0), timedelta(microseconds=9999), timedelta(-1)]
)
def test_a_ttl_that_is_too_short_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="too short"):
        checks.ttl(value)


@pytest.mark.parametrize("value", [604_800.001, 604_801, timedelta(days=7, microseconds=1000), 366 * 86_400])
def test_a_ttl_that_is_too_long_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"too long.*ttl is in seconds"):
        checks.ttl(value)


def test_there_is_no_infinite_ttl() -> None:
    with pytest.raises(UsageError, match="NoneType"):
        checks.ttl(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (0, 0.0), (-0.0, 0.0), (3, 3.0), (1e-9, 1e-9), (timedelta(minutes=1), 60.0), (366 * 86_400, 31_622_400.0)],
)
def test_a_timeout_in_any_dress_is_float_seconds_or_none(value: Any, expected: float | None) -> None:
    assert checks.timeout(value) == expected
    assert type(checks.timeout(value)) is (type(None) if expected is None else float)


@pytest.mark.parametrize(
    ("value", "why"), [(-1, "negative"), (-1e-9, "negative"), (timedelta(-1), "negative"), (366 * 86_400 + 1, "over a year")]
)
def test_a_timeout_out_of_range_is_refused(value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checks.timeout(value)


@pytest.mark.parametrize(("value", "expected"), [(0.001, 0.001), (1, 1.0), (60, 60.0), (timedelta(milliseconds=250), 0.25)])
def test_a_request_timeout_in_any_dress_is_float_seconds(value: Any, expected: float) -> None:
    assert checks.request_timeout(value) == expected


@pytest.mark.parametrize("value", [0, -1, 0.000999, 60.001, timedelta(minutes=2), timedelta(0)])
def test_a_request_timeout_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"between 0\.001 and 60: it is in seconds"):
        checks.request_timeout(value)


def test_a_request_timeout_is_never_none() -> None:
    with pytest.raises(UsageError):
        checks.request_timeout(None)  # type: ignore[arg-type]


@quick
@given(st.floats() | st.integers() | st.timedeltas() | st.booleans() | st.decimals() | st.none())
def test_whatever_the_duration_the_answer_is_in_range_or_a_usage_error(value: Any) -> None:
    ranges: list[tuple[Check, float, float]] = [
        (checks.ttl, checks.MIN_TTL, checks.MAX_TTL),
        (checks.timeout, 0.0, checks.MAX_TIMEOUT),
        (checks.request_timeout, 0.001, 60.0),
    ]
    for check, low, high in ranges:
        try:
            number = check(value)
        except UsageError:
            continue
        assert (number is None and value is None) or (number is not None and low <= number <= high)
