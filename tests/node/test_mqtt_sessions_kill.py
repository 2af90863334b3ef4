"""MQTT sessions in rooms with a log, and kill -9 of their node: each record acknowledged to a publisher
reaches each session that subscribed before it, in order, with QoS 2 exactly once.

A publisher counts the acknowledged records. Subscribers use topics and wildcards, with QoS 1 and 2,
acknowledge late, and connect and disconnect. The node is killed while records flow, whoever is connected, and
restarted on its directory. The session stores are the log, a file and Redis. `make test` runs a fixed sample;
`make soak` (HYPOTHESIS_PROFILE=soak) runs more kills with new seeds, which HUBSUB_KILL_SEED repeats.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, V5, V311, Packet, Wire
from clients.mqtt_sessions import acknowledge, payload, say
from clients.raw import TIMEOUT_S
from clients.servers import Server, redis_server, until

from node.home import Home
from node.test_mqtt import client
from node.test_mqtt_sessions import come, leave, nothing_more
from node.test_mqtt_sessions_cursors import EVERYWHERE, LOGGED, by_topic, flood, take
from node.test_mqtt_sessions_restart import home_of

TOPICS = ["log/a", "log/b"]
IN_FLIGHT_MAX = 40
SUBSCRIBERS: list[tuple[int, list[tuple[str, int]]]] = [
    (V311, [("log/a", 1), ("log/b", 1)]),
    (V5, [("log/a", 2), ("log/b", 2)]),
    (V5, [("log/#", 1)]),
    (V311, [("log/#", 2)]),
    (V5, [("log/a", 2), ("#", 1)]),
]
"""MQTT version and filters of each subscriber."""


def seed_and_kills() -> tuple[int, int]:
    """The seed, and the number of kills."""
    is_soak = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
    given = os.environ.get("HUBSUB_KILL_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32) if is_soak else 390
    return seed, 30 if is_soak or given else 2


class Publisher:
    """Publishes numbers to its topics with QoS 2, one after the other, until its node is gone."""

    def __init__(self) -> None:
        self.next = 0
        self.told: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        """Numbers per topic that the node acknowledged."""

    def run(self, one: Wire) -> None:
        """Publishes until the node is gone."""
        ids = deque(range(1, IN_FLIGHT_MAX + 1))
        sent: dict[int, tuple[str, int]] = {}
        try:
            while True:
                while ids:
                    number, topic = ids.popleft(), TOPICS[self.next % len(TOPICS)]
                    sent[number] = (topic, self.next)
                    one.publish(topic, b"%d" % self.next, 2, number)
                    self.next += 1
                answer = one.read()
                if answer.kind == PUBREC:
                    topic, said = sent.pop(answer.id)
                    self.told[topic].append(said)
                    one.answer(PUBREL, answer.id)
                else:
                    assert answer.kind == PUBCOMP, answer
                    ids.append(answer.id)
        except (AssertionError, OSError) as ended:
            assert is_end(ended), ended

    def count(self) -> int:
        """The number of acknowledged records."""
        return sum(map(len, self.told.values()))


def is_end(ended: Exception) -> bool:
    """Whether the error means that the node is gone, and nothing else."""
    if isinstance(ended, OSError):
        return not isinstance(ended, TimeoutError)
    return str(ended) == "the server closed"


class Subscriber:
    """A client and its received messages, over all its connections."""

    def __init__(self, at: int) -> None:
        self.name, (self.version, self.filters) = f"subscriber-{at}", SUBSCRIBERS[at]
        self.got: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        """Acknowledged numbers per topic; the server must redeliver all others."""
        self.count = 0
        """Number of received messages, including duplicates."""
        self._received: set[int] = set()
        """Packet ids of QoS 2 messages that it has received and that are not yet released."""

    def come(self, server: Server, is_first: bool = False) -> Wire:
        """Connects; the session must exist unless `is_first`."""
        one, present = come(
            server, self.name, version=self.version, receive_max=20 if self.version == V5 else 0
        )
        assert present != is_first
        return one

    def run(self, one: Wire, lag: int, enough: int | None = None) -> None:
        """Reads until the node is gone or `enough` messages have arrived; leaves the last `lag` messages
        unacknowledged."""
        late: deque[Packet] = deque()
        try:
            while enough is None or enough > 0:
                if self._take(one, late):
                    enough = None if enough is None else enough - 1
                while len(late) > lag:
                    self._answer(one, late.popleft())
        except (AssertionError, OSError) as ended:
            assert is_end(ended), ended
        one.close()

    def finish(self, one: Wire, ends: dict[str, int]) -> None:
        """Reads until the last number of each topic in `ends` has arrived."""
        late: deque[Packet] = deque()
        while any(end not in self.got[topic][-1:] for topic, end in ends.items()) or self._received:
            self._take(one, late)
            while late:
                self._answer(one, late.popleft())
        nothing_more(one)

    def _take(self, one: Wire, late: deque[Packet]) -> bool:
        """Reads a packet. Returns whether it is a message, whose acknowledgement is left to the caller."""
        message = one.read()
        if message.kind == PUBREL:
            self._received.discard(message.id)
            one.answer(PUBCOMP, message.id)
            return False
        assert message.kind == PUBLISH, message
        late.append(message)
        self.count += 1
        return True

    def _answer(self, one: Wire, message: Packet) -> None:
        if message.id not in self._received:
            self.got[message.topic].append(int(payload(one, message)))
        if message.qos == 2:
            self._received.add(message.id)
        one.answer(PUBREC if message.qos == 2 else PUBACK, message.id)

    def check(self, told: dict[str, list[int]]) -> None:
        """Asserts that each number in `told` arrived, in order, with QoS 2 exactly once."""
        for topic, numbers in self.got.items():
            by_filter = [qos for name, qos in self.filters if name == topic]
            qos = by_filter[0] if by_filter else self.filters[-1][1]
            first = list(dict.fromkeys(numbers))
            assert first == sorted(first), (self.name, topic, "in order")
            missing = set(told[topic]) - set(numbers)
            assert not missing, (self.name, topic, sorted(missing))
            if qos == 2:
                twice = sorted({number for number in numbers if numbers.count(number) > 1})
                assert not twice, (self.name, topic, twice)


class Crowd:
    """Threads with one client each; an error in a thread fails the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._wrong: list[BaseException] = []

    def go(self, what: Any, *given: Any) -> threading.Thread:
        """Calls `what` in another thread."""

        def call() -> None:
            try:
                what(*given)
            except BaseException as wrong:
                self._wrong.append(wrong)

        thread = threading.Thread(target=call)
        thread.start()
        self._threads.append(thread)
        return thread

    def look(self) -> None:
        """Raises the first error of a thread, if there is one."""
        if self._wrong:
            raise self._wrong[0]

    def end(self) -> None:
        """Joins all threads and raises the first error."""
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        self.look()


@pytest.mark.parametrize(
    ("classes", "snapshot_ms", "store"),
    [
        ([LOGGED], 1000, "log"),
        ([EVERYWHERE], 5, "log"),
        ([LOGGED], 5, "disk"),
        ([EVERYWHERE], 1000, "redis"),
    ],
    ids=["some-have-a-log", "all-have", "some-have-a-log-disk", "all-have-redis"],
)
def test_whatever_was_acknowledged_comes_over_kills_with_qos_2_once(
    tmp_path: Path,
    classes: list[dict[str, Any]],
    snapshot_ms: int,
    store: str,
    request: pytest.FixtureRequest,
) -> None:
    seed, kills = seed_and_kills()
    print("HUBSUB_KILL_SEED", seed)
    dice = random.Random(seed)
    limits = {"mqtt_session_snapshot_ms": snapshot_ms, "load_sample_ms": 0}
    publisher, subscribers = Publisher(), [Subscriber(at) for at in range(len(SUBSCRIBERS))]
    where = store_of(store, request)
    with home_of(tmp_path / "data", 2, where, classes=classes, limits=limits) as home:
        for subscriber in subscribers:
            one = subscriber.come(home.server, is_first=True)
            for filter_ in subscriber.filters:
                one.subscribe(filter_)
            one.close()
        for _ in range(kills):
            flow(home, publisher, subscribers, dice)
        with client(home.server, "last", V5) as last:
            for topic in TOPICS:
                say(last, topic, b"%d" % publisher.next, 2)
        ends = dict.fromkeys(TOPICS, publisher.next)
        for subscriber in subscribers:
            one = subscriber.come(home.server)
            subscriber.finish(one, ends)
            subscriber.check(publisher.told)
            one.close()


FEW_ENTRIES = {"mqtt_session_queue_messages_max": 1, "mqtt_inflight_max": 5}
"""With these limits a store keeps 1,046 entries per session."""


@pytest.mark.parametrize("store", ["log", "disk", "redis"])
def test_each_message_of_qos_2_comes_once_however_much_follows_a_kill_before_all_are_acknowledged(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    subscriber, publisher, crowd = Subscriber(1), Publisher(), Crowd()
    limits = {"load_sample_ms": 0, "mqtt_session_snapshot_ms": 5, **FEW_ENTRIES}
    where = store_of(store, request)
    with home_of(tmp_path / "data", 1, where, classes=[EVERYWHERE], limits=limits) as home:
        one = subscriber.come(home.server, is_first=True)
        for filter_ in subscriber.filters:
            one.subscribe(filter_)
        with client(home.server, "publisher", V5) as wire:
            crowd.go(publisher.run, wire)
            until(lambda: publisher.count() >= 1_000, "records flow")
            subscriber.run(one, 3, 20)
            home.restart(kills=True)
        # From here on its window is never empty.
        subscriber.run(subscriber.come(home.server), 1, 900)
        assert home.server.metric("mqtt_session_unwritten_total") == 0
        home.restart(kills=True)
        with client(home.server, "last", V5) as last:
            for topic in TOPICS:
                say(last, topic, b"%d" % publisher.next, 2)
        one = subscriber.come(home.server)
        subscriber.finish(one, dict.fromkeys(TOPICS, publisher.next))
        subscriber.check(publisher.told)
        one.close()
        crowd.end()


def store_of(name: str, request: pytest.FixtureRequest) -> str:
    """The `inflight_store` of that name; for Redis, one with its own server."""
    if name != "redis":
        return name
    server = request.getfixturevalue("redis")
    return f"redis://{server.host}:{server.port}/3"


@pytest.fixture
def redis(needs: Any) -> Iterator[Server]:
    """A redis-server that outlives the nodes."""
    needs("redis-server")
    with redis_server() as server:
        yield server


def flow(home: Home, publisher: Publisher, subscribers: list[Subscriber], dice: random.Random) -> None:
    """Records flow while subscribers stay, connect, disconnect or stay away; then the node is killed and
    restarted."""
    server, crowd = home.server, Crowd()
    wanted = publisher.count() + dice.randint(50, 300)
    stays = []
    leaves = []
    for subscriber in subscribers:
        what, lag = dice.choice(["stays", "leaves", "returns", "is away"]), dice.choice([0, 3, 15])
        if what == "is away":
            continue
        one = subscriber.come(server)
        enough = None if what == "stays" else dice.randint(1, 60)
        thread = crowd.go(subscriber.run, one, lag, enough)
        if what == "stays":
            stays.append((subscriber, subscriber.count + dice.randint(1, 100)))
        else:
            leaves.append((subscriber, thread, what == "returns", lag))
    with client(server, f"publisher-{publisher.next}", V5) as one:
        crowd.go(publisher.run, one)
        for subscriber, thread, returns, lag in leaves:
            thread.join(TIMEOUT_S)
            crowd.look()
            if returns:
                crowd.go(subscriber.run, subscriber.come(server), lag)
        until(lambda: publisher.count() >= wanted, "records flow")
        for subscriber, count in stays:
            until(lambda subscriber=subscriber, count=count: subscriber.count >= count, "they come")  # type: ignore[misc]
        home.restart(kills=True)
        crowd.end()


@pytest.mark.parametrize(
    ("version", "filters", "kills"),
    [
        (V311, ["log/a", "log/b"], True),
        (V5, ["log/#"], True),
        (V5, ["#"], False),
        (V311, ["log/a", "#"], True),
    ],
)
@pytest.mark.parametrize("classes", [[LOGGED], [EVERYWHERE]], ids=["some-have-a-log", "all-have"])
def test_what_came_while_nobody_was_there_is_read_by_who_returns_to_the_next_process(
    tmp_path: Path, version: int, filters: list[str], kills: bool, classes: list[dict[str, Any]]
) -> None:
    with home_of(tmp_path / "data", 2, classes=classes) as home:
        one, _ = come(home.server, version=version)
        one.subscribe(*((name, 1) for name in filters))
        with client(home.server, "publisher", V5) as publisher:
            flood(publisher, TOPICS, range(10))
            take(one, 20)
            nothing_more(one)
            leave(home.server, one)
            flood(publisher, TOPICS, range(10, 40))
        assert home.server.metric("mqtt_session_queued_total") == 0
        server = home.restart(kills)
        with client(server, "publisher", V5) as publisher:
            flood(publisher, TOPICS, range(40, 60))
            assert server.metric("mqtt_session_queued_total") == 0
            server = home.restart(kills)
        one, present = come(server, version=version)
        assert present
        with client(server, "publisher", V5) as publisher:
            flood(publisher, TOPICS, range(60, 70))
        got = by_topic(take(one, 120))
        assert got == {topic: list(range(10, 70)) for topic in TOPICS}
        nothing_more(one)


@pytest.mark.parametrize("name", ["log/a", "log/#"])
def test_what_was_acknowledged_so_long_before_a_kill_comes_no_more(tmp_path: Path, name: str) -> None:
    limits = {"mqtt_session_snapshot_ms": 1, "load_sample_ms": 0}
    with home_of(tmp_path / "data", 1, classes=[LOGGED], limits=limits) as home:
        one, _ = come(home.server)
        one.subscribe((name, 1))
        with client(home.server, "publisher", V5) as publisher:
            for number in range(5):
                say(publisher, "log/a", b"%d" % number, 1)
        came = [one.read(PUBLISH) for _ in range(5)]
        for message in came[:3]:
            rows = row_count(home.server)
            acknowledge(one, message)
            # The new entry is of this acknowledgement alone: earlier ones are already recorded.
            until(lambda rows=rows: row_count(home.server) > rows, "it is recorded")  # type: ignore[misc]
        url = "/v1/hubs?class=%24system"
        server = home.server
        until(lambda: json.loads(server.get(url))["hubs"][0]["committed"] >= row_count(server), "it is safe")
        one, present = come(home.restart(kills=True))
        assert present
        assert [payload(one, one.read(PUBLISH)) for _ in range(2)] == [b"3", b"4"]
        nothing_more(one)


def row_count(server: Server) -> float:
    """Number of session entries that the node has written."""
    return server.metric("mqtt_session_snapshots_total")
