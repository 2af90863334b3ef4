"""The client's RESP encoder and parser."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubsub.client.resp import INCOMPLETE, Decoder, Push, encode
from hubsub.errors import HubSubError, ProtocolError, ReplyError


def values(*chunks: bytes) -> list[Any]:
    decoder, out = Decoder(), []
    for chunk in chunks:
        decoder.feed(chunk)
        while (value := decoder.next()) is not INCOMPLETE:
            out.append(value)
    return out


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-7\r\n", -7),
        (b"(3492890328409238509324850943850943825024385\r\n", 3492890328409238509324850943850943825024385),
        (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
        (b"$0\r\n\r\n", b""),
        (b"$-1\r\n", None),
        (b"_\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", [1, [b"x"]]),
        (b"%1\r\n+a\r\n*0\r\n", {b"a": []}),
        (b"~1\r\n:1\r\n", [1]),
        (b"#t\r\n", True),
        (b",1.5\r\n", 1.5),
        (b"=7\r\ntxt:abc\r\n", b"abc"),
        (b"|1\r\n+k\r\n+v\r\n:3\r\n", 3),
        (b"*2\r\n|1\r\n+k\r\n+v\r\n:3\r\n|0\r\n:4\r\n", [3, 4]),
    ],
)
def test_each_type_decodes(wire: bytes, value: Any) -> None:
    assert values(wire) == [value]


def test_a_push_is_told_from_a_reply() -> None:
    push, reply = values(b">3\r\n$7\r\nmessage\r\n+a\r\n+b\r\n*3\r\n:1\r\n:2\r\n:3\r\n")
    assert isinstance(push, Push) and push == [b"message", b"a", b"b"]
    assert not isinstance(reply, Push)


def test_error_replies_are_values() -> None:
    simple, bulk = values(b"-ERR one\r\n!7\r\nERR two\r\n")
    assert isinstance(simple, ReplyError) and simple.message == "ERR one"
    assert isinstance(bulk, HubSubError)


SCALARS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=20)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=10)


def wire_of(value: Any) -> bytes:
    match value:
        case None:
            return b"_\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
    return b"*%d\r\n" % len(value) + b"".join(map(wire_of, value))


@given(st.lists(TREES, max_size=5), st.lists(st.integers(1, 7), max_size=200))
def test_any_split_of_a_stream_decodes_to_the_same_values(trees: list[Any], sizes: list[int]) -> None:
    wire, chunks = b"".join(map(wire_of, trees)), []
    for size in sizes:
        chunks.append(wire[:size])
        wire = wire[size:]
    assert values(*chunks, wire) == trees


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        values(data)


@pytest.mark.parametrize(
    "wire", [b"\r\n", b"?x\r\n", b":x\r\n", b"$x\r\n", b"$1\r\nabc", b"*1\r\n" * 40, b"+" + b"x" * 70_000]
)
def test_what_is_no_resp_is_refused(wire: bytes) -> None:
    with pytest.raises(ProtocolError):
        values(wire)


@given(st.lists(st.binary(max_size=10), min_size=1, max_size=5))
def test_a_command_is_an_array_of_bulk_strings(args: list[bytes]) -> None:
    assert values(encode(args)) == [args]


def test_text_and_numbers_may_be_arguments() -> None:
    assert encode(["SET", "é", 7]) == b"*3\r\n$3\r\nSET\r\n$2\r\n\xc3\xa9\r\n$1\r\n7\r\n"
