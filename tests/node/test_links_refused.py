"""A non-peer is refused as docs/protocol/link.md specifies, and the node's clients do not notice."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from node.link_wire import WELCOME, Dialer, frame, text
from node.linked import Linked

SHORT = {"link_handshake_ms": 400}
A = ("a", 1, ["127.0.0.1:1"], 1)
"""A peer that the test plays. It dials, since its name sorts first."""


@pytest.fixture
def b(needs: Callable[..., None], tmp_path: Path) -> Iterator[Linked]:
    """A node with a client that is served before and after the test."""
    needs("hubsub-core")
    limits = {**SHORT, "frame_bytes_max": "1MiB"}
    with Linked("b", tmp_path, limits=limits) as node:
        host, port = node.redis.split(":")
        with redis.Redis(host=host, port=int(port)) as client:
            assert client.ping()
            yield node
            assert client.ping() and node.process.poll() is None, node.log


@pytest.fixture
def dialer(b: Linked) -> Iterator[Dialer]:
    with contextlib.closing(Dialer(b.link)) as dialer:
        yield dialer


def test_a_wrong_secret_is_refused(b: Linked, dialer: Dialer) -> None:
    b.roster(A)
    dialer.prove(dialer.hello(), secret="another secret, as long")
    assert dialer.refusal()[0] == "wrong_secret"
    assert b.ask("metrics")["links_refused_total"] == 1


def test_another_cluster_is_refused(b: Linked, dialer: Dialer) -> None:
    b.roster(A)
    dialer.send(dialer.hello(cluster="other"))
    assert dialer.refusal()[0] == "other_cluster"


def test_an_unregistered_name_is_refused_after_a_while(b: Linked, dialer: Dialer) -> None:
    dialer.prove(dialer.hello())
    code, words = dialer.refusal()
    assert code == "stranger" and "a is not registered" in words


def test_a_name_that_is_registered_meanwhile_is_welcome(b: Linked, dialer: Dialer) -> None:
    dialer.prove(dialer.hello())
    b.roster(A)
    came = dialer.frame()
    assert came is not None and came.code == WELCOME
    assert b.event("up")["node"] == "a"


def test_an_earlier_process_of_a_name_is_refused(b: Linked, dialer: Dialer) -> None:
    b.roster(("a", 5, [], 1))
    dialer.prove(dialer.hello(incarnation=4))
    assert dialer.refusal()[0] == "duplicate_node"


def test_a_second_process_of_a_name_is_refused_while_the_first_is_heard(b: Linked, dialer: Dialer) -> None:
    b.roster(A)
    dialer.prove(dialer.hello())
    b.event("up", "a")
    with contextlib.closing(Dialer(b.link)) as second:
        second.prove(second.hello())
        assert second.refusal()[0] == "duplicate_node"
    b.event("suspected", "a")
    with contextlib.closing(Dialer(b.link)) as third:
        third.prove(third.hello())
        assert dialer.goodbye() == "another link has taken its place"
        b.event("up", "a")


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"node": "c"}, "wrong_side"),
        ({"node": "b"}, "same_node"),
        ({"node": "b", "incarnation": 2}, "duplicate_node"),
        ({"link": 1}, "no_such_link"),
        ({"versions": (7, 9)}, "no_common_version"),
        ({"shards": 0}, "stranger"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(
    b: Linked, dialer: Dialer, hello: dict[str, object], code: str
) -> None:
    b.roster(A)
    dialer.send(dialer.hello(**hello))  # type: ignore[arg-type]
    assert dialer.refusal()[0] == code


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\0" * 64,
        bytes(range(256)) * 16,
        frame(16, b""),
        struct.pack("<IB", 0xFFFF_FFFF, 1),
    ],
    ids=["http", "redis", "zeros", "bytes", "publish", "long"],
)
def test_garbage_is_refused(b: Linked, dialer: Dialer, data: bytes) -> None:
    dialer.send(data)
    assert dialer.refusal()[0] == "stranger"


def test_who_says_nothing_is_refused_when_its_time_is_over(b: Linked, dialer: Dialer) -> None:
    assert dialer.refusal()[0] == "late"


def test_a_frame_that_is_too_large_ends_the_link_with_the_rule(b: Linked, dialer: Dialer) -> None:
    b.roster(A)
    dialer.prove(dialer.hello())
    b.event("up", "a")
    dialer.send(struct.pack("<IB", 2 * 2**20, 50))
    assert "frame too long: 2097156 bytes, at most 2097152" in dialer.goodbye()
    assert b.event("down", "a")["code"] == "broken_rule"


def test_a_frame_that_no_part_of_the_node_takes_ends_the_link_with_its_name(
    b: Linked, dialer: Dialer
) -> None:
    b.roster(A)
    dialer.prove(dialer.hello())
    b.event("up", "a")
    # The whole response to a read that a nonexistent shard would have requested: ask, oldest, next, gap, at
    # its end, not gone.
    dialer.send(frame(33, b"\xc8" + bytes(7 + 16 + 8 + 8 + 8) + b"\1\0"))
    assert "RangeEnd" in dialer.goodbye()
    assert b.event("down", "a")["code"] == "broken_rule"


def test_a_frame_in_pieces_is_one_frame(b: Linked, dialer: Dialer) -> None:
    b.roster(A)
    hello = dialer.hello()
    for byte in hello[:-1]:
        dialer.send(bytes([byte]))
    dialer.send(hello[-1:])
    challenge = dialer.frame()
    assert challenge is not None and text("b") in challenge.body


def test_a_crowd_of_strangers_does_not_keep_a_peer_out(b: Linked) -> None:
    b.roster(A)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(contextlib.closing(Dialer(b.link))) for _ in range(100)]
        with contextlib.closing(Dialer(b.link)) as dialer:
            dialer.prove(dialer.hello())
            b.event("up", "a")
        for stranger in crowd:
            assert stranger.refusal()[0] == "late"


def test_a_node_that_dials_tells_why_it_is_refused(b: Linked, tmp_path: Path) -> None:
    with Linked("a", tmp_path, secret="another secret, as long", limits=SHORT) as a:
        a.roster(b)
        b.roster(a)
        refused = a.event("refused", "b")
        assert refused["code"] == "wrong_secret" and "secret" in refused["text"]
        assert "refused" in {link["state"] for link in a.peers()["b"]["links"]}
        assert not [said for said in a.seen if said.get("kind") in ("up", "dead")]


def test_a_node_that_is_told_another_number_of_shards_does_not_link_up(b: Linked, tmp_path: Path) -> None:
    with Linked("a", tmp_path, shards=4, limits=SHORT) as a:
        a.roster(("b", 1, [b.link], 3))
        b.roster(a)
        assert a.event("refused", "b")["code"] == "no_such_link"
