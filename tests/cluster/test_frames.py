"""Frames on links for a message: one to each node that has interest, and none to the others.

Counted by the metrics of links. Records, and all other traffic about rooms, use the lanes `live` and `reads`.
Leader leases and requests between control planes use other lanes, which are not counted.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest
from clients.raw import TIMEOUT_S, Connection
from clients.servers import until

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

MESSAGES = 200
SUBSCRIBERS = 24
"""Subscribers on one node, over its two shards."""

SENT = re.compile(
    r'^hubsub_peer_(sent|sent_bytes)_total\{peer="(\w+)",lane="(live|reads)"\} (\d+)$', re.MULTILINE
)

SILENCE = re.compile(r'^hubsub_peer_silence_seconds\{peer="(\w+)"\} (\S+)$', re.MULTILINE)


class Way(NamedTuple):
    """A direction, from one node to another."""

    source: str
    target: str


@pytest.fixture(scope="module")
def nodes(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs("hubsub-core")
    # Nodes publish load samples in a room, which would be counted.
    limits = {"load_sample_ms": 0}
    with Cluster(tmp_path_factory.mktemp("frames"), limits=limits) as cluster:
        yield cluster


def sent(cluster: Cluster, what: str) -> Counter[Way]:
    """Frames about rooms (`sent`), or their bytes (`sent_bytes`), from the start until now. A link updates
    its counters when it pings, together with the time since it last heard its peer."""
    mark = time.monotonic()

    def counted() -> Counter[Way]:
        counts: Counter[Way] = Counter()
        for name in NAMES:
            asked_s, page = time.monotonic(), metrics(cluster, name)
            for peer, silence_s in SILENCE.findall(page):
                if asked_s - float(silence_s) <= mark:
                    return Counter()
                counts[Way(name, peer)] = 0
            for kind, peer, _, count in SENT.findall(page):
                if kind == what:
                    counts[Way(name, peer)] += int(count)
        assert set(counts) == {Way(a, b) for a in NAMES for b in NAMES if a != b}
        return counts

    return until(counted)


def metrics(cluster: Cluster, name: str) -> str:
    with urllib.request.urlopen(cluster.nodes[name].http_url + "/metrics", timeout=TIMEOUT_S) as page:
        return str(page.read().decode())


def quiet(cluster: Cluster, what: str = "sent") -> Counter[Way]:
    """The same as `sent`, once no subscription traffic is in flight."""
    before, after = sent(cluster, what), sent(cluster, what)
    while before != after:
        before, after = after, sent(cluster, what)
    return after


def since(cluster: Cluster, before: Mapping[Way, int]) -> dict[Way, int]:
    return {way: count - before[way] for way, count in quiet(cluster).items() if count != before[way]}


def subscribed(cluster: Cluster, name: str, *rooms: str, verb: str = "SUBSCRIBE") -> list[Connection]:
    """Many clients on one node, on both of its shards; each subscribes to all of these rooms."""
    clients = [cluster.connect(name) for _ in range(SUBSCRIBERS)]
    for client in clients:
        for room in rooms:
            client.call(verb, room)
    code, seen = cluster.get(name, "/v1/clients?limit=1000")
    assert code == 200 and {row["shard"] for row in seen["clients"]} == {0, 1}
    return clients


def publish(cluster: Cluster, name: str, room: str, receivers: int) -> None:
    with cluster.connect(name) as publisher:
        for number in range(MESSAGES):
            publisher.command("PUBLISH", room, number)
        assert {frame.plain() for frame in publisher.read_many(MESSAGES)} == {receivers}


def read(clients: list[Connection], each: int) -> None:
    """Checks that all clients receive everything that was published, in order."""
    for client in clients:
        payloads = [frame.plain()[-1] for frame in client.read_many(each * MESSAGES)]  # type: ignore[index]
        assert payloads == [b"%d" % (at // each) for at in range(each * MESSAGES)]
        client.close()


@pytest.mark.parametrize("kind", ["chat", "plain"], ids=["with-history", "without-history"])
def test_a_message_costs_one_frame_to_each_node_with_interest(nodes: Cluster, kind: str) -> None:
    room = nodes.room_led_by("a", f"{kind}:frames-")
    clients = subscribed(nodes, "b", room)
    before = quiet(nodes)
    publish(nodes, "a", room, SUBSCRIBERS)
    assert since(nodes, before) == {Way("a", "b"): MESSAGES}
    # From a third node there are two more frames: the publish to the leader, and its reply.
    before = quiet(nodes)
    publish(nodes, "c", room, SUBSCRIBERS)
    assert since(nodes, before) == dict.fromkeys([Way("c", "a"), Way("a", "c"), Way("a", "b")], MESSAGES)
    for client in clients:
        assert len(client.read_many(2 * MESSAGES)) == 2 * MESSAGES
        client.close()


def test_patterns_and_topics_of_many_subscribers_are_one_frame_a_node_together(nodes: Cluster) -> None:
    room = nodes.room_led_by("a", "chat:both-")
    exact, patterns = subscribed(nodes, "b", room), subscribed(nodes, "b", f"{room}*", verb="PSUBSCRIBE")
    before = quiet(nodes)
    publish(nodes, "a", room, 2 * SUBSCRIBERS)
    assert since(nodes, before) == {Way("a", "b"): MESSAGES}
    read(exact, 1)
    read(patterns, 1)


def test_a_node_without_part_in_a_room_sends_and_gets_nothing_of_it(nodes: Cluster) -> None:
    """Rooms are led by a and b, with clients on both: no byte about them goes through c."""
    rooms = [nodes.room_led_by(leader, "chat:apart-") for leader in ("a", "b")]
    clients = {name: subscribed(nodes, name, *rooms) for name in ("a", "b")}
    before = quiet(nodes, "sent_bytes")
    for room in rooms:
        for name in ("a", "b"):
            publish(nodes, name, room, 2 * SUBSCRIBERS)
            with nodes.connect(name) as reader:
                history = reader.ask("HUBSUB", "HISTORY", room, "COUNT", 1_000)
                assert isinstance(history, list) and len(history) >= MESSAGES
    for of_node in clients.values():
        for client in of_node:
            assert len(client.read_many(4 * MESSAGES)) == 4 * MESSAGES
            client.close()
    after = quiet(nodes, "sent_bytes")
    moved = {way: after[way] - before[way] for way in after}
    assert moved[Way("a", "b")] > 0 < moved[Way("b", "a")]
    assert {way: count for way, count in moved.items() if "c" in way} == dict.fromkeys(
        (way for way in moved if "c" in way), 0
    )
