"""The wire format: any reply, cut anywhere, comes out whole; anything else is an error and not a hang.

The parser is compared with a slow one that sees the whole stream at once (`slow_parse`).
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.backends.redis import resp
from interlock.backends.redis.resp import INCOMPLETE, ErrorReply, Parser, ProtocolError, answers, bulk
from interlock.backends.redis.scripts import CLAIM, ENROLL, EXTEND, HAND_OVER, INSPECT, RELEASE, RETREAT, ROLL

line = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
replies = st.recursive(
    st.none() | st.integers(-(2**62), 2**62) | st.binary(max_size=40) | line.map(ErrorReply),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


def encode(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case ErrorReply(text):
            return b"-%b\r\n" % text.encode()
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return bulk(reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encode, reply))


def depth(reply: Any) -> int:
    return 1 + max(map(depth, reply), default=0) if isinstance(reply, list) else 0


@given(st.lists(replies.filter(lambda r: depth(r) < 8), max_size=5), st.data())
def test_replies_come_out_whole_however_they_are_cut(sent: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    parser, got = Parser(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        parser.feed(stream[begin:end])
        while (reply := parser.next()) is not INCOMPLETE:
            got.append(reply)
    assert got == sent
    assert parser.next() is INCOMPLETE


# --- what a broken or hostile server may send -----------------------------------------------------------------------------

WRONG = "wrong"  # what `outcome` and `slow_parse` say of a stream, behind the replies that came before it


def slow_parse(stream: bytes) -> list[Any]:
    """All replies of a stream, then WRONG if the rest cannot become one."""
    replies: list[Any] = []
    at = 0
    while True:
        try:
            reply, at = slow_reply(stream, at, 0)
        except EOFError:
            return replies
        except ValueError:
            return [*replies, WRONG]
        replies.append(reply)


def slow_reply(stream: bytes, at: int, depth: int) -> tuple[Any, int]:
    """One reply and where it ends. Raises EOFError if there is not enough of it, ValueError if it is wrong."""
    if at == len(stream):
        raise EOFError
    kind = stream[at : at + 1]
    if kind not in (b"+", b"-", b":", b"$", b"*"):
        raise ValueError
    longest = resp.MAX_LINE if kind in (b"+", b"-") else resp.MAX_HEAD
    end = stream.find(b"\r\n", at)
    if end < 0 and len(stream) - at <= longest + 1:
        raise EOFError
    if end < 0 or end - at > longest:
        raise ValueError
    line, after = stream[at + 1 : end], end + 2
    if kind == b"+":
        return line, after
    if kind == b"-":
        return ErrorReply(resp.shown(line[: 4 * resp.SHOWN].decode("utf-8", "replace"), resp.SHOWN)), after
    digits = line[1:] if line[:1] == b"-" else line
    if not digits or any(digit not in b"0123456789" for digit in digits) or len(digits) > 19:
        raise ValueError
    number = int(line)
    if kind == b":":
        return number, after
    if number < -1 or number > resp.MAX_SIZE or (kind == b"*" and depth == resp.MAX_DEPTH):
        raise ValueError
    if number == -1:
        return None, after
    if kind == b"$":
        if len(stream) < after + number + 2:
            raise EOFError
        if stream[after + number : after + number + 2] != b"\r\n":
            raise ValueError
        return stream[after : after + number], after + number + 2
    items = []
    for _ in range(number):
        item, after = slow_reply(stream, after, depth + 1)
        items.append(item)
    return items, after


def outcome(pieces: list[bytes]) -> list[Any]:
    """What the parser makes of a stream that comes in these pieces."""
    parser, got = Parser(), []
    try:
        for piece in pieces:
            parser.feed(piece)
            while (reply := parser.next()) is not INCOMPLETE:
                got.append(reply)
    except ProtocolError:
        got.append(WRONG)
    return got


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(stream) + 1) for place in places)
    return [stream[begin:end] for begin, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


words = st.sampled_from(
    [
        b"\r\n",
        b"\r",
        b"\n",
        b"$",
        b"*",
        b":",
        b"+",
        b"-",
        b"-1",
        b"0",
        b"1",
        b"3",
        b"20",
        b"x",
        b"OK",
        b"\x00",
        b"9" * 19,
        b"9" * 25,
    ]
)
NOISE = st.one_of(
    st.binary(max_size=60),
    st.lists(words, max_size=30).map(b"".join),
    st.tuples(st.lists(replies, max_size=3).map(lambda some: b"".join(map(encode, some))), st.binary(max_size=9)).map(b"".join),
)


@given(NOISE, st.lists(st.integers(0, 200), max_size=8))
@example(b"$2\r\nabXX+OK\r\n", [])
@example(b":1_0\r\n", [])
@example(b"*-1\r\n$-2\r\n", [3])
@example(b"*3\r\n:1\r\n:2\r\n$1\r\na\r\n", list(range(20)))
def test_any_bytes_however_they_are_cut_are_what_they_are_in_one_piece(noise: bytes, places: list[int]) -> None:
    expected = slow_parse(noise)
    assert outcome([noise]) == expected
    assert outcome(cut(noise, places)) == expected
    assert outcome([bytes([byte]) for byte in noise]) == expected


@given(st.integers(20, 9000), st.sampled_from([b":", b"$", b"*", b"*4\r\n:", b"*3\r\n:1\r\n:", b"*1\r\n$"]), st.booleans())
def test_a_number_has_as_many_digits_as_a_number_may_have(digits: int, before: bytes, ended: bool) -> None:
    """Python refuses to read more than 4,300 of them, by an exception of its own."""
    stream = before + b"7" * digits + (b"\r\n:1\r\n$1\r\na\r\n" if ended else b"")
    assert outcome([stream]) == ([WRONG] if ended or digits > 30 else outcome([stream]))


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n", b":x\r\n", b"$x\r\n", b"*1\r\n" * 20, b"%1\r\n", b"H"])
def test_what_is_not_resp_is_an_error(noise: bytes) -> None:
    parser = Parser()
    parser.feed(noise)
    with pytest.raises(ProtocolError):
        parser.next()


def test_a_line_without_end_is_an_error_in_the_end() -> None:
    parser = Parser()
    parser.feed(b"+" + b"x" * 70_000)
    with pytest.raises(ProtocolError):
        parser.next()


def test_what_is_too_large_to_be_kept_is_passed_over() -> None:
    """Somebody else's value may be large, or what anybody publishes. The replies around it are not lost for that."""
    large = b"x" * (resp.MAX_BULK + 1)
    stream = encode([b"message", b"inbox", large]) + encode([1, b"m"])
    for size in (7, 16_384, len(stream)):
        assert outcome([stream[at : at + size] for at in range(0, len(stream), size)]) == [
            [b"message", b"inbox", None],
            [1, b"m"],
        ]
    many = encode([b"x" * 60_000 for _ in range(100)])  # each may be kept, not all
    (kept,) = outcome([many])
    assert len(kept) == 100
    assert 0 < sum(map(len, filter(None, kept))) <= resp.MAX_REPLY


def test_the_parser_keeps_no_more_than_a_reply_may_be() -> None:
    parser = Parser()
    parser.feed(b"*1\r\n$%d\r\n" % 400_000_000)
    for _ in range(3000):
        assert parser.next() is INCOMPLETE
        parser.feed(b"x" * 1000)
    assert sys.getsizeof(parser._data) < 2 * resp.MAX_BULK
    parser = Parser()
    with pytest.raises(ProtocolError):
        for _ in range(100):
            parser.feed(b"*1000\r\n" + b"*0\r\n" * 999 + b"*1000\r\n" + b"+\r\n" * 999)
            while parser.next() is not INCOMPLETE:
                pass


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"+", b"x"),  # a line that does not end
        (b"*60000\r\n", b":1\r\n"),  # an array of many
        (b"*60000\r\n", b"*1\r\n:1\r\n"),
        (b"$60000\r\n", b"x"),
        (b"$400000000\r\n", b"x" * 1000),
        (b"*2\r\n*7\r\n", b"$1\r\nx\r\n"),
        (b"", b":1\r\n"),
    ],
    ids=str,
)
def test_the_work_is_in_proportion_to_the_bytes(head: bytes, piece: bytes) -> None:
    """Twice as many pieces are about twice as many instructions of the parser, and nothing is searched or copied twice."""

    def work(pieces: int) -> int:
        parser, steps = Parser(), 0

        def trace(frame: Any, event: str, argument: object) -> Any:
            nonlocal steps
            if frame.f_code.co_filename != resp.__file__:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            steps += event == "opcode"
            return trace

        parser.feed(head)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for _ in range(pieces):
                parser.feed(piece)
                while parser.next() is not INCOMPLETE:
                    pass
        finally:
            sys.settrace(before)
        return steps

    few, many = work(300), work(1200)
    assert many < 4.2 * few + 500


def test_an_error_shows_what_came_but_nothing_that_acts_on_a_terminal_and_no_secret() -> None:
    parser = Parser()
    parser.feed(b"-ERR \x1b[2J\n\xe2\x80\xae \xff " + b"x" * 5000 + b"\r\n")
    reply = parser.next()
    assert isinstance(reply, ErrorReply)
    assert reply.text.isprintable()
    assert reply.text.startswith(r"ERR \x1b[2J\n\u202e")
    assert len(reply.text) < 1000
    for noise in (b"\x1b]0;owned\x07\r\n", b":" + b"ab" * 16 + b"~web\r\n", b"ab" * 16, b"$1\r\nx" + b"ab" * 16):
        parser = Parser()
        parser.feed(noise)
        with pytest.raises(ProtocolError) as caught:
            parser.next()
        assert str(caught.value).isprintable()
        assert "abababab" not in str(caught.value), "half of a token is too much"
        assert len(str(caught.value)) < 100


# ----------------------------------------------------------------------------------------------------------------------------


def test_a_call_is_packed_as_the_server_reads_it() -> None:
    request, carried, parser = CLAIM((b"k1", b"k2"), b"a"), set[str](), Parser()
    parser.feed(request.pack(carried) + request.pack(carried) + request._replace(full=True).pack(carried))
    how, text, *rest = cast(list[bytes], parser.next())
    assert (how, hashlib.sha1(text).hexdigest(), rest) == (b"EVAL", CLAIM.sha, [b"2", b"k1", b"k2", b"a"])
    assert parser.next() == [b"EVALSHA", CLAIM.sha.encode(), b"2", b"k1", b"k2", b"a"], "the connection has carried it"
    assert parser.next() == [b"EVAL", text, *rest], "the node says that it does not have it"
    assert parser.next() is INCOMPLETE


def test_scripts_travel_without_their_comments() -> None:
    for script in (CLAIM, EXTEND, RELEASE, HAND_OVER, RETREAT, INSPECT, ROLL, ENROLL):
        text = script.by_text.split(b"\r\n")[3]
        assert len(text) > 300
        assert b"--" not in text
        assert all(line == line.strip() != b"" for line in text.splitlines())


def test_an_answer_is_known_by_its_mark() -> None:
    assert answers([1, b"m"], b"m")
    assert not answers([1, b"n"], b"m")
    assert not answers([], b"m")
    assert not answers(b"m", b"m")
