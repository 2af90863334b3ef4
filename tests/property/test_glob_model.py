"""The model's glob matches as Redis does, checked by `PUBSUB CHANNELS pattern` on a real redis-server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clients.raw import Connection
from clients.servers import Server
from hypothesis import given, settings
from hypothesis import strategies as st
from model.glob import matches

# Names that begin with NUL are the node's internal topics. Bytes above 127 are left out of patterns: in a
# range, Redis takes them as negative on x86 only.
ALPHABET = b"ab-^]*?[\\c\x01\x7f"
NAMES = [b"", b"a", b"b", b"c", b"ab", b"abc", b"a-b", b"]", b"^", b"[", b"*", b"\\", b"-", b"aa", b"b]c"]
NAMES += [b"\x01", b"\xff\x00", b"a*b", b"a?b", b"[ab]", b"a\\b", b"ba", b"cab", b"aabbcc", b"-]", b"^a"]


@pytest.fixture(scope="module", params=["redis-server", "hubsub-3"])
def asked(request: pytest.FixtureRequest, start: Callable[[str], Server]) -> Iterator[Connection]:
    """A connection for queries while another one is subscribed to all NAMES."""
    server = start(request.param)
    with server.connect() as subscriber, server.connect() as asked:
        subscriber.command("SUBSCRIBE", *NAMES)
        subscriber.read_many(len(NAMES))
        yield asked


def patterns() -> st.SearchStrategy[bytes]:
    """Patterns mostly of special bytes."""
    return st.lists(st.sampled_from([bytes([b]) for b in ALPHABET]), max_size=8).map(b"".join)


@settings(max_examples=2000, deadline=None)
@given(pattern=patterns())
def test_the_model_matches_what_the_server_matches(asked: Connection, pattern: bytes) -> None:
    answer = asked.ask("PUBSUB", "CHANNELS", pattern)
    assert isinstance(answer, list)
    assert sorted(answer) == sorted(name for name in NAMES if matches(pattern, name))
