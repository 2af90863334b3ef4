"""MQTT sessions in rooms with a log: records for an offline client are not queued but read from the log when
it reconnects."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V311, Wire
from clients.mqtt_sessions import acknowledge, payload, say
from clients.servers import Server, until

from node.conftest import Start
from node.test_mqtt import begin, client
from node.test_mqtt_sessions import come, leave, nothing_more
from node.test_mqtt_sessions_restart import home_of

LOGGED: dict[str, Any] = {
    "name": "logged",
    "match": ["log/#"],
    "durability": "durable",
    "history": {"bytes": "1GiB"},
    "on_slow": "catch-up",
}
EVERYWHERE = LOGGED | {"match": ["#"]}
FEW = {"mqtt_session_queue_messages_max": 10, "load_sample_ms": 0}


def logged(start: Start, data: Path, shards: int = 1, **more: Any) -> Server:
    """A node with a log that queues next to nothing for offline clients."""
    more = {"classes": [LOGGED], "limits": FEW} | more
    return begin(start, shards, config={"data": str(data)}, **more)


def flood(publisher: Wire, topics: list[str], numbers: range, qos: int = 1) -> None:
    """Publishes each number to each topic without awaiting each reply."""
    for begin_ in range(numbers.start, numbers.stop, 50):
        some = range(begin_, min(begin_ + 50, numbers.stop))
        for number in some:
            for topic in topics:
                publisher.publish(topic, b"%d" % number, qos, 1 + number % 60_000)
        for _ in range(len(some) * len(topics) if qos == 1 else 0):
            publisher.read(PUBACK)


def take(one: Wire, count: int) -> list[tuple[str, int]]:
    """Reads and acknowledges the next messages; returns topic and number of each."""
    got: list[tuple[str, int]] = []
    while len(got) < count:
        message = one.read()
        if message.kind == PUBLISH:
            got.append((message.topic, int(payload(one, message))))
            if message.qos:
                one.answer(PUBACK if message.qos == 1 else PUBREC, message.id)
        elif message.kind == PUBREL:
            one.answer(PUBCOMP, message.id)
        else:
            raise AssertionError(message)
    return got


def by_topic(rows: list[tuple[str, int]]) -> dict[str, list[int]]:
    """The numbers per topic, in order of arrival."""
    found: dict[str, list[int]] = {}
    for topic, number in rows:
        found.setdefault(topic, []).append(number)
    return found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    ("filters", "shards"), [(["log/a"], 1), (["log/a", "log/b"], 3), (["log/#"], 1), (["#"], 3)]
)
def test_whoever_is_away_for_long_gets_all_of_it_in_order(
    start: Start, data: Path, version: int, filters: list[str], shards: int
) -> None:
    server = logged(start, data, shards)
    topics = ["log/a"] if filters == ["log/a"] else ["log/a", "log/b"]
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server, version=version)
        one.subscribe(*((name, 1) for name in filters))
        flood(publisher, topics, range(20))
        take(one, 20 * len(topics))
        nothing_more(one)
        leave(server, one)
        flood(publisher, topics, range(20, 2000))
        assert server.metric("mqtt_session_queued_total") == 0
        one, present = come(server, version=version)
        assert present
        flood(publisher, topics, range(2000, 2020))
        got = by_topic(take(one, 2000 * len(topics)))
        assert got == {topic: list(range(20, 2020)) for topic in topics}
        nothing_more(one)
        assert server.metric("mqtt_session_dropped_total") == 0


@pytest.mark.parametrize("classes", [[LOGGED], [EVERYWHERE]])
def test_of_two_subscriptions_that_match_one_has_the_word(
    start: Start, data: Path, classes: list[dict[str, Any]]
) -> None:
    server = logged(start, data, 2, classes=classes)
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server)
        one.subscribe(("log/a", 1), ("log/#", 2), ("log/+", 0))
        for begin_ in (0, 300):
            leave(server, one)
            flood(publisher, ["log/a", "log/b"], range(begin_, begin_ + 300), 1)
            one, _ = come(server)
            got = by_topic(take(one, 600))
            assert got == {topic: list(range(begin_, begin_ + 300)) for topic in ("log/a", "log/b")}
            nothing_more(one)
        assert server.metric("mqtt_session_queued_total") == 0


@pytest.mark.parametrize("name", ["log/a", "log/#"])
def test_what_waits_and_what_is_under_way_comes_once_with_its_id(start: Start, data: Path, name: str) -> None:
    server = logged(start, data, 2)
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server, receive_max=8)
        one.subscribe((name, 2))
        for number in range(40):
            say(publisher, "log/a", b"%d" % number, 2)
        first = [one.read(PUBLISH) for _ in range(8)]
        assert [int(payload(one, message)) for message in first] == list(range(8))
        # Acknowledged out of order: one fully, one half, others not at all.
        acknowledge(one, first[5])
        ninth = one.read(PUBLISH)
        assert int(payload(one, ninth)) == 8
        one.answer(PUBREC, first[3].id)
        one.read(PUBREL)
        one.close()
        until(lambda: server.metric("mqtt_sessions_offline") == 1, "it is away")
        assert server.metric("mqtt_session_queued") == 0, "what waited is in the log"
        one, _ = come(server, receive_max=8)
        again: dict[int, int] = {}
        order: list[int] = []
        released: list[int] = []
        while len(released) < 39:
            message = one.read()
            if message.kind == PUBREL:
                released.append(message.id)
                one.answer(PUBCOMP, message.id)
                continue
            number = int(payload(one, message))
            order.append(number)
            if message.flags & 8:
                again[number] = message.id
            one.answer(PUBREC, message.id)
        assert order == [number for number in range(40) if number not in (3, 5)]
        sent = dict(enumerate(message.id for message in [*first, ninth]))
        assert again == {number: sent[number] for number in (0, 1, 2, 4, 6, 7, 8)}, (
            "under the ids that they had"
        )
        assert len(set(released)) == 39
        nothing_more(one)


@pytest.mark.parametrize("name", ["log/a", "log/#"])
@pytest.mark.parametrize("shards", [1, 3])
def test_nothing_is_lost_while_connections_take_each_other_over(
    start: Start, data: Path, name: str, shards: int
) -> None:
    server = logged(start, data, shards)
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server)
        one.subscribe((name, 1))
        thread = threading.Thread(target=flood, args=(publisher, ["log/a"], range(1500)))
        thread.start()
        got: list[int] = []
        reads = 0
        while not got or got[-1] < 1499:
            message = one.read(PUBLISH)
            number = int(payload(one, message))
            if not (message.flags & 8 and number in got):
                got.append(number)
            one.answer(PUBACK, message.id)
            reads += 1
            if reads % 100 == 0:
                before, (one, present) = one, come(server)
                assert present
                before.close()
        thread.join()
        assert got == list(range(1500))


def test_what_retention_took_meanwhile_is_told(start: Start, data: Path) -> None:
    short = LOGGED | {"history": {"messages": 100, "bytes": "1GiB"}}
    server = logged(start, data, classes=[short])
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server)
        one.subscribe(("log/a", 1))
        flood(publisher, ["log/a"], range(10))
        take(one, 10)
        nothing_more(one)
        leave(server, one)
        flood(publisher, ["log/a"], range(10, 500))
        one, _ = come(server)
        message = one.read(PUBLISH)
        # The property is longer than `payload` can read.
        assert b"hubsub-gap" in message.rest and message.rest.endswith(b"400")
        acknowledge(one, message)
        assert [number for _, number in take(one, 99)] == list(range(401, 500))
        nothing_more(one)


@pytest.mark.parametrize("classes", [[LOGGED], [EVERYWHERE]])
def test_a_wildcard_of_rooms_with_and_without_a_log_brings_what_each_keeps(
    start: Start, data: Path, classes: list[dict[str, Any]]
) -> None:
    server = logged(start, data, 2, classes=classes)
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server)
        one.subscribe(("#", 1))
        leave(server, one)
        flood(publisher, ["log/a", "a"], range(100))
        # No client receives messages of QoS 0 published while none is connected.
        flood(publisher, ["log/a", "a"], range(100, 150), 0)
        say(publisher, "log/a", b"150", 1)
        one, _ = come(server)
        kept = list(range(100)) if classes == [EVERYWHERE] else list(range(90, 100))
        got = by_topic(take(one, 101 + len(kept)))
        assert got == {"log/a": [*range(100), 150], "a": kept}
        flood(publisher, ["log/a", "a"], range(200, 203), 0)
        assert by_topic(take(one, 6)) == {"log/a": [200, 201, 202], "a": [200, 201, 202]}
        nothing_more(one)


def test_who_asks_for_more_than_qos_0_stands_there_from_then_on(start: Start, data: Path) -> None:
    server = logged(start, data)
    with client(server, "publisher", V5) as publisher:
        one, _ = come(server)
        one.subscribe(("log/a", 0))
        flood(publisher, ["log/a"], range(5))
        take(one, 5)
        leave(server, one)
        flood(publisher, ["log/a"], range(5, 10))
        one, _ = come(server)
        nothing_more(one)
        one.subscribe(("log/a", 1))
        leave(server, one)
        flood(publisher, ["log/a"], range(10, 15))
        one, _ = come(server)
        assert [number for _, number in take(one, 5)] == list(range(10, 15))
        one.subscribe(("log/a", 0))
        leave(server, one)
        flood(publisher, ["log/a"], range(15, 20))
        one, _ = come(server)
        nothing_more(one)


@pytest.mark.parametrize("classes", [[LOGGED], [EVERYWHERE]])
def test_patterns_of_others_keep_no_session_out(
    start: Start, data: Path, classes: list[dict[str, Any]]
) -> None:
    server = logged(start, data, classes=classes, limits=FEW | {"patterns_max": 2})
    one, _ = come(server)
    one.subscribe(("log/+", 1))
    leave(server, one)
    with server.connect() as stranger, client(server, "publisher", V5) as publisher:
        for pattern in ("a*", "b*")[: 2 if classes == [EVERYWHERE] else 1]:
            assert stranger.ask("PSUBSCRIBE", pattern)[0] == b"psubscribe"  # type: ignore[index]
        assert stranger.call("PSUBSCRIBE", "c*").kind == "-", "there is no room for others"
        flood(publisher, ["log/a"], range(3))
        again, is_present = come(server)
        assert is_present
        assert take(again, 3) == [("log/a", number) for number in range(3)]
        assert again.subscribe(("new/+", 1)) == [0x97], "a new one has none either"


@pytest.mark.parametrize("classes", [[LOGGED], [EVERYWHERE]])
def test_names_of_others_keep_no_session_out(start: Start, data: Path, classes: list[dict[str, Any]]) -> None:
    limits = FEW | {"subscription_bytes_shard_max": 200, "subscription_bytes_per_client_max": 200}
    server = logged(start, data, classes=classes, limits=limits)
    one, _ = come(server)
    topic = "log/" + "x" * 90
    one.subscribe((topic, 1))
    leave(server, one)
    with server.connect() as stranger, client(server, "publisher", V5) as publisher:
        assert stranger.ask("SUBSCRIBE", "s" * 200)[0] == b"subscribe"  # type: ignore[index]
        assert stranger.call("SUBSCRIBE", "t").kind == "-", "there is no room for others"
        flood(publisher, [topic], range(3))
        again, is_present = come(server)
        assert is_present
        assert take(again, 3) == [(topic, number) for number in range(3)]
        assert again.subscribe(("new", 1)) == [0x97], "a new one has none either"


def test_a_session_with_more_patterns_than_a_client_may_have_goes_on(tmp_path: Path) -> None:
    with home_of(tmp_path / "data", classes=[EVERYWHERE]) as home:
        one, _ = come(home.server)
        assert one.subscribe(("log/+", 1), ("x/+", 1), ("y/+", 1)) == [1, 1, 1]
        leave(home.server, one)
        with client(home.server, "publisher", V5) as publisher:
            flood(publisher, ["log/a"], range(3))
        home.restart(limits={"patterns_per_client_max": 2})
        again, is_present = come(home.server)
        assert is_present
        assert take(again, 3) == [("log/a", number) for number in range(3)]
        assert again.subscribe(("new/+", 1)) == [0x97]


def test_a_session_of_more_groups_than_there_may_be_goes_on(tmp_path: Path) -> None:
    with home_of(tmp_path / "data", classes=[EVERYWHERE]) as home:
        one, _ = come(home.server)
        assert one.subscribe(("$share/g/log/+", 1), ("$share/h/log/+", 1)) == [1, 1]
        leave(home.server, one)
        home.restart(limits={"groups_max": 1})
        again, is_present = come(home.server)
        assert is_present
        with client(home.server, "publisher", V5) as publisher:
            flood(publisher, ["log/a"], range(1))
        assert take(again, 2) == [("log/a", 0), ("log/a", 0)]
        assert again.subscribe(("$share/i/log/+", 1)) == [0x97]


def test_a_filter_from_the_past_that_is_refused_leaves_the_others_where_they_are(
    start: Start, data: Path
) -> None:
    server = logged(start, data, limits=FEW | {"patterns_per_client_max": 1})
    one, _ = come(server)
    assert one.subscribe(("log/+", 1)) == [1]
    assert one.subscribe(("$rewind/earliest/log/x/+", 1)) == [0x97]
    leave(server, one)
    with client(server, "publisher", V5) as publisher:
        # More than memory queues: the messages come from the log.
        flood(publisher, ["log/a"], range(20))
        one, _ = come(server)
        assert take(one, 20) == [("log/a", number) for number in range(20)]
        nothing_more(one)


def test_the_first_wildcard_of_a_session_is_counted_where_it_is_refused(start: Start, data: Path) -> None:
    server = logged(start, data, limits=FEW | {"patterns_max": 1})
    with server.connect() as stranger:
        assert stranger.ask("PSUBSCRIBE", "a*")[0] == b"psubscribe"  # type: ignore[index]
        one, _ = come(server)
        assert one.subscribe(("log/+", 1)) == [0x97]
        assert server.metric("subscriptions_refused_total") == 1
