"""Records are read and batches are published through any node, whichever node has the log of the room or
query."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from cluster.cluster import NAMES, Cluster
from cluster.reading import asker, body, payloads, read_all
from hubsub.pipeline.selection import Selection

pytestmark = pytest.mark.needs("hubsub-core")


def test_records_of_a_room_with_a_log_are_read_back_from_every_node(three: Cluster) -> None:
    room = "log:read-back"
    said = [f"{name}{number}".encode() for number in range(5) for name in NAMES]
    for payload in said:
        with three.connect(payload[:1].decode()) as client:
            assert client.ask("PUBLISH", room, payload) == 0
    pages = [three.get(name, f"/v1/rooms/{room.replace(':', '%3A')}/history?count=100") for name in NAMES]
    assert pages[0] == pages[1] == pages[2]
    assert payloads(three, "a", room) == [payload.decode() for payload in said]
    sixth = pages[0][1]["records"][5]["position"]
    for name in NAMES:
        with three.connect(name) as client:
            assert client.ask("HUBSUB", "HISTORY", room, "AFTER", sixth, "COUNT", 2)[1][4] == said[7]  # type: ignore[index]
        for start, behind in ((("FROM", sixth), said[6:]), (("LAST", 3), said[-3:])):
            with three.connect(name) as subscriber:
                subscriber.call("HUBSUB", "SUBSCRIBE", room, *start)
                assert [subscriber.read().plain()[2] for _ in behind] == behind  # type: ignore[index]


def test_history_of_a_room_that_is_nowhere_is_empty_and_makes_no_room(three: Cluster) -> None:
    for name in NAMES:
        assert three.get(name, "/v1/rooms/busy%3Anever/history")[1]["records"] == []
        assert three.get(name, "/v1/rooms/busy%3Anever")[0] == 404
    with three.connect("a") as client:
        client.ask("PUBLISH", "busy:once", "x")
    for name in NAMES:
        assert payloads(three, name, "busy:once") == ["x"], "at the first question"


def test_one_question_to_any_node_tells_of_all_hubs_and_their_records_are_read_at_their_homes(
    three: Cluster,
) -> None:
    rooms = [f"log:all-{n}" for n in range(40)]
    for name, room in product(NAMES, rooms):
        with three.connect(name) as client:
            client.ask("PUBLISH", room, f"{room} by {name}")
    said = Counter(f"{room} by {name}" for name, room in product(NAMES, rooms))
    listings = []
    for name in NAMES:
        with asker(three, name) as wire:
            listings.append(wire.listing(pattern="log:all-*"))
            got = read_all(wire, listings[-1], Selection(room_pattern="log:all-*"))
        assert Counter(payload.decode() for payload in got["payload"].to_pylist()) == said
    ends = [[(hub.id, hub.end, hub.servers) for hub in listing.hubs.values()] for listing in listings]
    assert ends[0] == ends[1] == ends[2] and len({listing.log for listing in listings}) == 1
    leaders = three.leaders("a", "logged")
    homes = [three.addresses[leader]["http"] for leader in leaders]
    assert [hub.servers for hub in listings[0].hubs.values()] == [(home,) for home in homes]
    # A single room needs only one hub.
    with asker(three, "b") as wire:
        assert wire.listing(rooms[:1]).hubs.keys() < listings[0].hubs.keys()


def test_a_batch_is_staged_committed_and_repeated_at_any_node_and_published_once(three: Cluster) -> None:
    for batch, (stages_at, commits_at) in enumerate(product(NAMES, NAMES)):
        rows = [(f"log:batch-{n % 3}", f"{stages_at}{commits_at} {n}") for n in range(30)]
        with asker(three, stages_at) as wire:
            names = [wire.stage("q", body(rows[at : at + 10]), None) for at in (0, 10, 20)]
        with asker(three, commits_at) as wire:
            assert wire.commit("q", batch, names) == {"published": 30, "duplicate": False}
        for name in NAMES:
            with asker(three, name) as wire:
                assert wire.commit("q", batch, names) == {"published": 30, "duplicate": True}
        with asker(three, "c") as wire:
            wire.drop_stage("q", wire.stage("q", body(rows), None))
        assert three.get(commits_at, "/v1/queries")[1]["blocked"] == []
    for n in range(3):
        every = [f"{a}{b} {row}" for a, b in product(NAMES, NAMES) for row in range(n, 30, 3)]
        assert payloads(three, "b", f"log:batch-{n}") == every


def test_progress_of_a_query_is_told_by_every_node(three: Cluster) -> None:
    with asker(three, "b") as wire:
        listing = wire.listing(pattern="log:*")
        wire.report("reader", {hub.id: hub.end - 1 for hub in listing.hubs.values() if hub.end > 1}, 5.0)
    lags = [
        [query["lag"] for query in three.get(name, "/v1/queries")[1]["queries"] if query["query"] == "reader"]
        for name in NAMES
    ]
    assert lags[0] == lags[1] == lags[2] == [sum(hub.end > 1 for hub in listing.hubs.values())]


def test_a_log_of_another_cluster_is_refused_by_every_node(three: Cluster) -> None:
    for name in NAMES:
        code, answer = three.get(name, "/v1/hubs/logged-0/records?log=00c0ffee")
        assert (code, answer["code"]) == (409, "other_log")


def test_a_room_in_which_nobody_spoke_is_read_and_has_nothing(three: Cluster) -> None:
    with asker(three, "c") as wire:
        listing = wire.listing(["log:nobody"])
        assert len(listing.hubs) == 1 and listing.ephemeral == ()
        assert read_all(wire, listing, Selection(rooms=frozenset(["log:nobody"]))).num_rows == 0
