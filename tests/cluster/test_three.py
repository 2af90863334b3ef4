"""Three nodes act as one server, whichever node a client uses and wherever a room is led; and the effects of
a node's death."""

from __future__ import annotations

import json
from itertools import permutations, product
from urllib.parse import quote

import pytest
from clients.raw import Connection, Frame, encode
from clients.servers import until
from command_line import hubsub

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")


def message(room: str, payload: str) -> list[bytes]:
    return [b"message", room.encode(), payload.encode()]


def pushed(client: Connection) -> object:
    return client.read().plain()


def test_all_are_ready_and_each_tells_of_all(three: Cluster) -> None:
    names = list(NAMES)
    for name in names:
        assert three.get(name, "/readyz")[0] == 200
        seen = three.status(name)
        assert [row["name"] for row in seen["nodes"]] == names and seen["node"] == name
        assert seen["coordinator"]["kind"] in ("embedded", "etcd", "zookeeper")
        run = hubsub("node", "ls", "--json", "--url", three.nodes[name].http_url)
        rows = [json.loads(line) for line in run.stdout.splitlines()]
        assert {row["name"]: row["redis"] for row in rows} == {
            other: three.addresses[other]["redis"] for other in names
        }
    views = [three.status(name) for name in names]
    assert len({(view["cluster"], view["controller"]) for view in views}) == 1


@pytest.mark.parametrize("resp", [2, 3])
def test_a_subscriber_anywhere_gets_what_is_published_anywhere(three: Cluster, resp: int) -> None:
    for leader, on in product(NAMES, NAMES):
        room = three.room_led_by(leader, f"chat:{resp}-{on}-")
        with three.connect(on, resp) as subscriber:
            subscriber.call("SUBSCRIBE", room)
            for publisher in NAMES:
                with three.connect(publisher) as client:
                    assert client.ask("PUBLISH", room, publisher) == 1
                assert pushed(subscriber) == message(room, publisher)


@pytest.mark.parametrize("ends", ["RESET", "UNSUBSCRIBE"])
def test_a_new_start_of_a_subscription_that_ends_at_once_is_answered(three: Cluster, ends: str) -> None:
    for leader, on in product(NAMES, NAMES):
        room = three.room_led_by(leader, f"chat:{ends}-{on}-")
        with three.connect(on) as client:
            assert client.call("SUBSCRIBE", room).plain() == [b"subscribe", room.encode(), 1]
            # Sent together: the subscription ends before the leader on another node can answer.
            client.send(encode("HUBSUB", "SUBSCRIBE", room, "LAST", 1) + encode(ends) + encode("PING", "x"))
            answers = client.read_many(3)
            assert answers[0].plain()[:2] == [b"subscribe", room.encode()]
            assert answers[2].plain() == b"x"


def test_a_pattern_anywhere_matches_what_is_published_anywhere(three: Cluster) -> None:
    rooms = {leader: three.room_led_by(leader) for leader in NAMES}
    for on in NAMES:
        with three.connect(on) as subscriber:
            subscriber.call("PSUBSCRIBE", "chat:[abc]*")
            for leader, publisher in product(NAMES, NAMES):
                with three.connect(publisher) as client:
                    client.ask("PUBLISH", rooms[leader], publisher)
                assert pushed(subscriber) == [
                    b"pmessage",
                    b"chat:[abc]*",
                    *message(rooms[leader], publisher)[1:],
                ]
    for name in NAMES:
        # The next test must not count these patterns as receivers.
        with three.connect(name) as client:
            until(lambda: client.ask("PUBSUB", "NUMPAT") == 0)


def test_a_room_that_is_placed_at_its_first_use_is_one_room_for_all(three: Cluster) -> None:
    for on, first in product(NAMES, NAMES):
        room = f"busy:{on}-{first}"
        with three.connect(on) as subscriber, three.connect(first) as publisher:
            if on == first:
                assert publisher.ask("PUBLISH", room, "before") == 0
            subscriber.call("SUBSCRIBE", room)
            assert publisher.ask("PUBLISH", room, "x") == 1
            assert pushed(subscriber) == message(room, "x")
        located = set()
        for name in NAMES:
            with three.connect(name) as client:
                located.add(repr(client.ask("HUBSUB", "LOCATE", room)))
        leader = three.leader_of(room)
        assert located == {repr([[leader.encode(), three.addresses[leader]["redis"].encode()]])}


def test_a_question_about_a_room_is_answered_anywhere_and_makes_none(three: Cluster) -> None:
    three.settled()
    made = three.status("a")["rooms_with_record"]
    for name in NAMES:
        with three.connect(name) as client:
            assert client.ask("HUBSUB", "HISTORY", "busy:none") == []
            counts = client.ask("PUBSUB", "NUMSUB", "busy:none", "busy:nobody")
            assert counts == [b"busy:none", 0, b"busy:nobody", 0]
            # A client that wants to create the room may use any node, so it stays here.
            address = three.addresses[name]["redis"].encode()
            assert client.ask("HUBSUB", "LOCATE", "busy:none") == [[name.encode(), address]]
    assert three.status("a")["rooms_with_record"] == made
    for first, other in permutations(NAMES, 2):
        said, counted = f"busy:said-{first}-{other}", f"busy:counted-{first}-{other}"
        with three.connect(first) as one, three.connect(other) as client:
            # Immediately ask a node that does not know the room yet.
            assert one.ask("PUBLISH", said, "x") == 0
            history = client.ask("HUBSUB", "HISTORY", said)
            assert isinstance(history, list) and [row[4] for row in history] == [b"x"]
            one.call("SUBSCRIBE", counted)
            assert client.ask("PUBSUB", "NUMSUB", counted) == [counted.encode(), 1]


def test_channels_are_those_of_the_node_and_patterns_and_rooms_those_of_all(three: Cluster) -> None:
    three.settled()
    room = three.room_led_by("b", "chat:listed-")
    with three.connect("a") as one, three.connect("c") as other:
        one.call("SUBSCRIBE", room)
        one.call("PSUBSCRIBE", "nothing:*")
        assert one.ask("PUBSUB", "CHANNELS", room) == [room.encode()]
        assert other.ask("PUBSUB", "CHANNELS", room) == []
        assert other.ask("PUBSUB", "NUMPAT") == one.ask("PUBSUB", "NUMPAT") == 1
        code, page = three.get("c", f"/v1/rooms?match={quote(room, safe='')}")
        assert code == 200 and [(row["name"], row["subscribers"]) for row in page["rooms"]] == [(room, 1)]
    for name in NAMES:
        with three.connect(name) as client:
            until(lambda: client.ask("PUBSUB", "NUMPAT") == 0)


def test_subscribers_are_counted_in_the_whole_cluster(three: Cluster) -> None:
    room = three.room_led_by("b", "chat:counted-")
    subscribers = [three.connect(name) for name in (*NAMES, "c")]
    for subscriber in subscribers:
        subscriber.call("SUBSCRIBE", room)
    for name in NAMES:
        with three.connect(name) as client:
            # A node's second subscriber is confirmed locally; the count is updated asynchronously.
            until(lambda client=client: client.ask("PUBSUB", "NUMSUB", room) == [room.encode(), 4])
            assert client.ask("PUBLISH", room, name) == 4
    for subscriber in subscribers:
        subscriber.close()
    with three.connect("a") as client:
        until(lambda: client.ask("PUBSUB", "NUMSUB", room) == [room.encode(), 0])


@pytest.mark.parametrize("prefix", ["chat:past-", "log:past-"])
def test_history_is_the_same_from_all(three: Cluster, prefix: str) -> None:
    leader = three.leaders("a", "logged")[0] if prefix.startswith("log:") else "b"
    room = three.room_led_by(leader, prefix)
    payloads = [f"{name}{number}".encode() for number in range(4) for name in NAMES]
    for payload in payloads:
        with three.connect(payload[:1].decode()) as client:
            assert client.ask("PUBLISH", room, payload) == 0
    histories = []
    for name in NAMES:
        with three.connect(name) as client:
            histories.append(client.ask("HUBSUB", "HISTORY", room, "COUNT", 100))
    assert histories[0] == histories[1] == histories[2]
    assert isinstance(histories[0], list) and [row[4] for row in histories[0]] == payloads


def test_a_dead_leader_is_replaced_and_subscribers_elsewhere_go_on(three: Cluster) -> None:
    """Last in this file, because it restarts a node."""
    three.settled()
    controller = three.status("a")["controller"]
    dies = next(name for name in reversed(NAMES) if name != controller)
    lives = [name for name in NAMES if name != dies]
    room = three.room_led_by(dies, "chat:orphan-")
    other = three.room_led_by(lives[0], "chat:other-")
    subscribers = {name: three.connect(name) for name in lives}
    for subscriber in subscribers.values():
        subscriber.call("SUBSCRIBE", room)
        subscriber.call("SUBSCRIBE", other)
    before = three.leaders(lives[0])
    three.kill(dies)
    with three.connect(lives[0]) as client:
        until(lambda: published(client, room, "after") == 2)
        assert published(client, other, "beside") == 2
    for subscriber in subscribers.values():
        # A record published while the room had no leader may have been refused, but not duplicated.
        assert pushed(subscriber) == message(room, "after")
        assert pushed(subscriber) == message(other, "beside")
    after = until(lambda: leaders if dies not in (leaders := three.leaders(lives[0])) else None)
    assert after is not None
    assert [a for a, b in zip(after, before, strict=True) if b != dies] == [b for b in before if b != dies]

    three.start(dies)
    three.settled()
    with three.connect(dies) as client:
        assert client.ask("PUBLISH", room, "again") == 2
    for subscriber in subscribers.values():
        assert pushed(subscriber) == message(room, "again")
        subscriber.close()


def published(client: Connection, room: str, payload: str) -> int:
    """Publishes; returns the number of receivers, or -1 if refused."""
    answer = client.ask("PUBLISH", room, payload)
    return -1 if isinstance(answer, Frame) else int(str(answer))
