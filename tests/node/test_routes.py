"""Route updates to a node and its route requests, through `hubsub.node.Node`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients.raw import Connection

from node.linked import Linked

CLASSES = [{"name": "busy", "match": ["busy:*"], "placement": "least-busy"}]
CLOSED = b"ERR the hub of this room is not open here, try again later"

Pair = tuple[Linked, Linked]


@pytest.fixture
def pair(needs: Callable[..., None], tmp_path: Path) -> Iterator[Pair]:
    """Two nodes; b leads all hubs and grants its leader leases itself."""
    needs("hubsub-core")
    with contextlib.ExitStack() as stack:
        a, b = (
            stack.enter_context(Linked(name, tmp_path, incarnation=number, classes=CLASSES))
            for number, name in enumerate("ab", 1)
        )
        hubs = [
            (1, "busy", 0, 1, ("b", 2)),
            (2, "busy", 1, 1, ("b", 2)),
            (3, "default", 0, 1, ("b", 2)),
            (4, "default", 1, 1, ("b", 2)),
        ]
        b.tell("voters", 1, ["a", "b"])
        b.tell("routes", [(hub, 1, False) for hub, *_ in hubs])
        b.ask("tables", 1, 3_600, [("b", 2, [(hub, 1) for hub, *_ in hubs])], 1)
        for node in (a, b):
            node.tell("route_classes", [("busy", 2, "least-busy"), ("default", 2, "ring")])
            # In pieces, as a watch delivers them.
            node.tell("route_hubs", hubs[:3])
            node.tell("route_hubs", hubs)
            node.roster(a, b)
        for node in (a, b):
            node.wait(lambda said: said["say"] == "ready_now" and said["who"] == [["a", 1], ["b", 2]])
        yield a, b


def connect(node: Linked) -> Connection:
    host, _, port = node.redis.rpartition(":")
    return Connection(host, int(port))


def test_requests_are_refused_until_hubs_are_told(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    with Linked("a", tmp_path, incarnation=1, classes=CLASSES) as node:
        # Connections of both shards: the one that would be the home of all rooms, and the other.
        for n in range(16):
            with connect(node) as client:
                for command in ("PUBLISH", f"room:{n}", "x"), ("SUBSCRIBE", f"room:{n}"):
                    assert client.call(*command).value == CLOSED


def test_rooms_are_served_by_every_node_once_hubs_are_told(pair: Pair) -> None:
    a, b = pair
    assert a.ask("route_of", "{x}.y") == b.ask("route_of", "x")
    with connect(a) as one, connect(b) as other:
        for n in range(20):
            one.call("SUBSCRIBE", f"room:{n}")
            assert other.ask("PUBLISH", f"room:{n}", "x") == 1
            assert one.read().plain() == [b"message", b"room:%d" % n, b"x"]


def test_a_room_that_is_asked_for_is_placed_or_refused(pair: Pair) -> None:
    a, b = pair
    with connect(a) as one:
        for refused in (True, False):
            one.command("SUBSCRIBE", "busy:1")
            said = a.wait(lambda said: said["say"] == "room_miss")
            assert (said["room_class"], said["room"]) == ("busy", "busy:1")
            if refused:
                a.tell("route_refuse", "busy:1")
                assert one.read().value == CLOSED
                continue
            b.tell("route_rooms", "busy", {"busy:1": 2})
            a.tell("route_rooms", "busy", {"busy:1": 2})
            assert one.read().plain() == [b"subscribe", b"busy:1", 1]


def test_a_question_about_a_room_waits_for_its_place_and_wants_none(pair: Pair) -> None:
    a, b = pair
    questions = (("HUBSUB", "HISTORY", "busy:q"), ("PUBSUB", "NUMSUB", "busy:q"))
    with connect(a) as one, connect(b) as other:
        for question, empty in zip(questions, ([], [b"busy:q", 0]), strict=True):
            one.command(*question)
            said = a.wait(lambda said: said["say"] == "room_miss")
            assert (said["room"], said["makes"]) == ("busy:q", False)
            a.tell("route_absent", "busy:q")
            assert one.read().plain() == empty
            one.command(*question)
            a.wait(lambda said: said["say"] == "room_miss")
            a.tell("route_refuse", "busy:q")
            assert one.read().value == CLOSED
        # A publish now needs the room; requests after it wait for it and get no negative reply.
        one.command(*questions[0])
        assert not a.wait(lambda said: said["say"] == "room_miss")["makes"]
        one.command("PUBLISH", "busy:q", "x")
        assert a.wait(lambda said: said["say"] == "room_miss")["makes"]
        one.command(*questions[1])
        a.tell("route_absent", "busy:q")
        assert one.read().plain() == []
        b.tell("route_rooms", "busy", {"busy:q": 2})
        a.tell("route_rooms", "busy", {"busy:q": 2})
        assert (one.read().plain(), one.read().plain()) == (0, [b"busy:q", 0])
        assert other.ask("PUBSUB", "NUMSUB", "busy:q") == [b"busy:q", 0]


def test_a_client_asks_where_a_room_is(pair: Pair) -> None:
    a, _ = pair
    with connect(a) as one:
        for members in ([["b", "127.0.0.1:3221"]], None):
            one.command("HUBSUB", "LOCATE", "busy:1")
            said = a.wait(lambda said: said["say"] == "locate")
            assert said["room"] == "busy:1"
            a.tell("route_located", said["number"], members)
            answer = one.read()
            if members is None:
                assert answer.value == CLOSED
            else:
                assert answer.plain() == [[b"b", b"127.0.0.1:3221"]]


def test_what_a_class_that_was_removed_refuses_is_told_with_the_reason(pair: Pair) -> None:
    a, _ = pair
    with connect(a) as one:
        one.command("HUBSUB", "LOCATE", "busy:1")
        said = a.wait(lambda said: said["say"] == "locate")
        a.tell("route_located", said["number"], None, "class_removed")
        assert "was removed" in repr(one.read().value)
        for command in (("PUBLISH", "busy:1", "x"), ("SUBSCRIBE", "busy:1")):
            one.command(*command)
            a.wait(lambda said: said["say"] == "room_miss")
            a.tell("route_refuse", "busy:1", "class_removed")
            assert "was removed" in repr(one.read().value)
