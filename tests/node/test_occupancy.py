"""Occupancy of rooms on a node, in each protocol: docs/presence.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from clients.events import Stream
from clients.mqtt import PUBACK, UNSUBACK, UNSUBSCRIBE, packet, text
from clients.phoenix import LEAVE, Page
from clients.roster import member
from clients.servers import Server, hubsub_node, until

from node.test_mqtt import client

Start = Callable[..., Server]

LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
FLEET: dict[str, Any] = {"name": "fleet", "match": ["fleet/#"], "room": "fleet/+", "presence": "all"}
TOLD: dict[str, Any] = {"name": "told", "match": ["told:*"], "occupancy_records": True}
NOBODY = {"redis": 0, "mqtt": 0, "phoenix": 0, "events": 0}


@pytest.fixture(scope="module", params=[1, 3], ids=["one-shard", "three-shards"])
def server(request: pytest.FixtureRequest, needs: Callable[..., None]) -> Iterator[Server]:
    """A node with listeners for all protocols."""
    needs("hubsub-core")
    with hubsub_node(request.param, LISTENERS, classes=[FLEET]) as server:
        yield server


def page(server: Server) -> Page:
    assert server.node is not None
    return Page(server.node.ws)


def stream(server: Server, room: str) -> Stream:
    assert server.node is not None
    return Stream(server.node.ws, room)


def occupancy(server: Server, room: str) -> dict[str, Any]:
    """The REST occupancy of a room, without the room's name."""
    answer: dict[str, Any] = json.loads(server.get(f"/v1/rooms/{quote(room, safe='')}/occupancy"))
    assert answer.pop("room") == room
    assert sum(answer["by_protocol"].values()) == answer["subscribers"]
    return answer


def wait_for(server: Server, room: str, publishers: int = 0, members: int = 0, **subscribers: int) -> None:
    """Waits until the occupancy is exactly this."""
    expected = {
        "subscribers": sum(subscribers.values()),
        "by_protocol": NOBODY | subscribers,
        "publishers": publishers,
        "members": members,
    }
    until(lambda: occupancy(server, room) == expected, f"{expected} in {room}")


def test_who_hears_is_counted_by_protocol_until_it_is_gone(server: Server) -> None:
    wait_for(server, "full")
    with ExitStack() as stack:
        redis = [stack.enter_context(server.connect()) for _ in range(2)]
        for each in redis:
            each.ask("SUBSCRIBE", "full")
        redis[0].ask("SSUBSCRIBE", "full")
        redis[0].ask("PSUBSCRIBE", "full*")
        device = stack.enter_context(client(server, "hears"))
        assert device.subscribe(("full", 0)) == [0]
        pages = [stack.enter_context(page(server)) for _ in range(2)]
        pages[0].join("full", {"presence": member("ann")})
        pages[1].join("{full}.typing")
        events = stack.enter_context(stream(server, "full"))
        events.place()
        wait_for(server, "full", redis=3, mqtt=1, phoenix=2, events=1, members=1)

        redis[1].ask("UNSUBSCRIBE", "full")
        device.send(packet(UNSUBSCRIBE << 4 | 2, b"\0\2" + text("full")))
        device.read(UNSUBACK)
        pages[1].push("{full}.typing", LEAVE)
        wait_for(server, "full", redis=2, phoenix=1, events=1, members=1)
        # A connection's second subscription to a topic does not count.
        redis[0].ask("SUBSCRIBE", "full")
        wait_for(server, "full", redis=2, phoenix=1, events=1, members=1)
    wait_for(server, "full")


def test_who_publishes_is_counted_once_until_its_connection_ends(server: Server) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(server.connect())
        device = stack.enter_context(client(server, "says"))
        one = stack.enter_context(page(server))
        one.join("loud")
        for _ in range(3):
            redis.ask("PUBLISH", "loud", "x")
            redis.ask("PUBLISH", "{loud}.typing", "x")
            device.publish("loud", b"x", qos=1, number=1)
            device.read(PUBACK)
        one.push("loud", "say", {"n": 1})
        redis.ask("PUBLISH", "other", "x")
        wait_for(server, "loud", publishers=3, phoenix=1)
        wait_for(server, "other", publishers=1)
        # A publisher by HTTP has no connection.
        assert server.node is not None
        request = Request(
            f"{server.node.http_url}/v1/publish",
            b'{"topic": "loud", "payload": "x"}',
            {"content-type": "application/json"},
        )
        urlopen(request).close()
        wait_for(server, "loud", publishers=3, phoenix=1)
        redis.close()
        wait_for(server, "loud", publishers=2, phoenix=1)
        wait_for(server, "other")
    wait_for(server, "loud")


def test_what_is_refused_makes_no_publisher(server: Server) -> None:
    with server.connect() as redis:
        redis.call("PUBLISH", "$stats/mine", "x")
        redis.call("PUBLISH", "x" * 70_000, "x")
        wait_for(server, "$stats/mine")


def test_a_session_without_its_client_hears_and_publishes_nothing(server: Server) -> None:
    device = client(server, "sleeps", flags=0)
    device.subscribe(("kept", 1))
    device.publish("kept", b"x", qos=1, number=1)
    wait_for(server, "kept", mqtt=1, publishers=1)
    device.close()
    wait_for(server, "kept", mqtt=1)
    with client(server, "sleeps"):
        # It starts a clean session, so without its subscriptions.
        wait_for(server, "kept")


def test_topics_of_a_room_by_its_class_count_as_the_room(server: Server) -> None:
    with client(server, "7") as device, server.connect() as redis:
        device.subscribe(("fleet/7/actions", 0), ("fleet/7/config", 0))
        redis.ask("SUBSCRIBE", "fleet/7/state")
        device.publish("fleet/7/state", b"x")
        wait_for(server, "fleet/7", mqtt=2, redis=1, publishers=1, members=2)
    wait_for(server, "fleet/7")


def test_one_publisher_too_many_is_not_counted(start: Start) -> None:
    server = start(1, limits={"publishers_shard_max": 1})
    with server.connect() as one, server.connect() as two:
        one.ask("PUBLISH", "loud", "x")
        assert two.ask("PUBLISH", "loud", "x") == 0
        wait_for(server, "loud", publishers=1)
        # The metric is updated once a second.
        until(lambda: server.metric("publishers_uncounted_total") == 1)


# --- records of occupancy


@pytest.mark.parametrize("shards", [1, 3])
def test_how_many_are_there_is_recorded_on_change_where_the_class_says_so(
    start: Start, data: Path, shards: int
) -> None:
    server = start(shards, {**LISTENERS, "data": str(data)}, classes=[TOLD])
    with server.connect() as one, server.connect() as all_rooms, ExitStack() as stack:
        one.ask("SUBSCRIBE", "$stats/room/told:a/occupancy")
        all_rooms.ask("PSUBSCRIBE", "$stats/room/*/occupancy")
        last_ts = 0

        def told(publishers: int = 0, members: int = 0, **subscribers: int) -> None:
            """Waits until exactly this occupancy is published, to both."""
            nonlocal last_ts
            expected = {
                "room": "told:a",
                "subscribers": sum(subscribers.values()),
                "by_protocol": NOBODY | subscribers,
                "publishers": publishers,
                "members": members,
            }
            seen: dict[str, Any] = {}
            while seen != expected:
                frame: Any = one.read().plain()
                other: Any = all_rooms.read().plain()
                former = seen
                assert other[-2:] == frame[-2:] and frame[1] == b"$stats/room/told:a/occupancy"
                seen = json.loads(frame[-1])
                ts = seen.pop("ts")
                assert ts >= last_ts
                assert seen != former, "nothing is told twice"
                last_ts = ts

        listeners = [stack.enter_context(server.connect()) for _ in range(4)]
        for listener in listeners:
            listener.ask("SUBSCRIBE", "told:a")
            listener.ask("SUBSCRIBE", "chat:a")
        told(redis=4)
        two = stack.enter_context(page(server))
        two.join("told:a", {"presence": member("ann")})
        told(redis=4, phoenix=1, members=1)
        listeners[0].ask("PUBLISH", "told:a", "x")
        device = stack.enter_context(client(server, "hears"))
        device.publish("told:a", b"x")
        device.subscribe(("told:a", 0))
        for listener in listeners:
            listener.close()
        told(mqtt=1, phoenix=1, members=1, publishers=1)
        two.close()
        device.close()
        told()
        path = f"/v1/rooms/{quote('$stats/room/told:a/occupancy', safe='')}/history"
        kept = json.loads(server.get(path))["records"]
        assert json.loads(kept[-1]["payload"])["subscribers"] == 0, (
            "it is kept as what else is told in $stats"
        )
