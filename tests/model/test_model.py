"""Expectations of the model that no other server can confirm."""

from __future__ import annotations

import pytest

from model.broker import NOWHERE, Broker, NotRecovered, RoomClass


def broker() -> Broker:
    """A broker where rooms `r*` retain three records and a room of `dev/*` is named by its topic's first two
    levels."""
    return Broker([RoomClass(b"r*", history=3), RoomClass(b"dev/*", template=b"dev/+")])


@pytest.mark.parametrize(
    ("topic", "room"),
    [
        (b"plain", b"plain"),
        (b"{lobby}.typing", b"lobby"),
        (b"a{lobby}b{other}", b"lobby"),
        (b"{}lobby", b"{}lobby"),
        (b"{lobby", b"{lobby"),
        (b"dev/a", b"dev/a"),
        (b"dev/a/b/c", b"dev/a"),
        (b"dev/{x}/b", b"x"),
        (b"dev", b"dev"),
    ],
)
def test_a_topic_belongs_to_a_room(topic: bytes, room: bytes) -> None:
    assert broker().room_of(topic) == room


def test_an_exact_match_precedes_the_patterns() -> None:
    model = broker()
    client = model.connect()
    model.psubscribe(client, b"a*")
    model.psubscribe(client, b"*")
    model.subscribe(client, b"ab")
    assert model.publish(b"ab", b"x") == 3
    assert [delivery.pattern for delivery in client.got] == [None, b"*", b"a*"]


def test_topics_of_a_room_share_its_seqs() -> None:
    model = broker()
    for topic in (b"r", b"{r}x", b"r"):
        model.publish(topic, b"")
    assert [record.position[1] for record in model.history(b"r")] == [1, 2, 3]


def test_a_room_without_history_lives_as_long_as_it_has_subscribers() -> None:
    model = broker()
    client = model.connect()
    model.psubscribe(client, b"*")
    model.publish(b"x", b"before")
    model.subscribe(client, b"x")
    model.publish(b"x", b"first")
    model.unsubscribe(client, b"x")
    model.subscribe(client, b"{x}other")
    model.publish(b"x", b"second life")
    positions = [delivery.record.position for delivery in client.got]
    assert positions == [NOWHERE, (1, 1), (1, 1), (2, 1)]


def test_history_forgets_the_oldest() -> None:
    model = broker()
    for n in range(5):
        model.publish(b"r", b"%d" % n)
    assert [record.payload for record in model.history(b"r")] == [b"2", b"3", b"4"]
    assert [record.payload for record in model.history(b"r", count=2)] == [b"3", b"4"]
    assert [record.payload for record in model.history(b"r", count=2, after=(1, 2))] == [b"2", b"3"]
    for position in ((1, 1), (1, 6), (2, 3)):
        with pytest.raises(NotRecovered):
            model.history(b"r", after=position)


def test_a_subscription_from_a_position_replays_what_is_kept() -> None:
    model = broker()
    for n in range(5):
        model.publish(b"r", b"%d" % n)
    for after, recovered, payloads in [
        ((1, 0), False, [b"2", b"3", b"4"]),
        ((1, 2), True, [b"2", b"3", b"4"]),
        ((1, 5), True, []),
        ((1, 6), False, []),
        ((9, 1), False, []),
    ]:
        client = model.connect()
        attached = model.subscribe_from(client, b"r", after)
        assert (attached.position, attached.recovered) == ((1, 5), recovered)
        assert [delivery.record.payload for delivery in client.got] == payloads


def test_shard_channels_are_apart_but_of_the_same_room() -> None:
    model = broker()
    client = model.connect()
    model.subscribe(client, b"r", shard=True)
    model.psubscribe(client, b"*")
    assert model.publish(b"r", b"x") == 1
    assert model.publish(b"r", b"y", shard=True) == 1
    assert [record.position[1] for record in model.history(b"r")] == [1, 2]
