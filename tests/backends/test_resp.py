"""The wire format: any reply, cut anywhere, comes out whole; anything else is an error and not a hang."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.binary(max_size=60))
def test_any_bytes_are_a_reply_or_incomplete_or_an_error(noise: bytes) -> None:
    parser = Parser()
    parser.feed(noise)
    try:
        for _ in range(100):
            if parser.next() is INCOMPLETE:
                return
    except ProtocolError:
        return
    raise AssertionError("more replies than bytes")


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n", b":x\r\n", b"$x\r\n", b"*1\r\n" * 20, b"%1\r\n"])
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
