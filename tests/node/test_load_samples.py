"""The load samples that a node publishes in its own rooms, and who may read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from clients.raw import TIMEOUT_S, Connection
from clients.servers import Server, hubsub_node, until

from node.logged import DURABLE, publish

SAMPLES = {"load_sample_ms": 50}


@pytest.fixture
def server(needs: Callable[..., None], data: Path) -> Iterator[Server]:
    needs("hubsub-core")
    with hubsub_node(2, {"data": str(data)}, classes=[DURABLE], limits=SAMPLES) as server:
        yield server


def samples(connection: Connection) -> list[dict[str, Any]]:
    """All samples that were published."""
    rows = connection.ask("HUBSUB", "HISTORY", "$stats/load", "COUNT", 10_000)
    assert isinstance(rows, list)
    return [json.loads(row[4]) for row in rows]


def of(rows: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind and fields.items() <= row.items()]


def test_samples_add_up_to_what_the_node_did(server: Server) -> None:
    with server.connect() as connection, server.connect() as subscriber:
        subscriber.ask("SUBSCRIBE", "chat:a")
        until(lambda: samples(connection), "a first look")
        publish(connection, "chat:a", range(2_000))
        publish(connection, "chat:b", range(1_000))

        # A record of both rooms has a topic of 6 bytes, 90 dots, its number and a space.
        said = [sum(97 + len(str(n)) for n in range(count)) for count in (2_000, 1_000)]

        def of_hubs(rows: list[dict[str, Any]], name: str) -> float:
            hubs = of(rows, "hub", **{"class": "chat"})
            return sum(row[f"{name}_per_second"] * row["seconds"] for row in hubs)

        def counted() -> list[dict[str, Any]]:
            rows = samples(connection)
            # A sample reads its counters one after the other; records that arrive in between count in the
            # next sample.
            has_all = round(of_hubs(rows, "messages")) >= 3_000
            return rows if has_all and of_hubs(rows, "bytes_in") > 0.9999 * sum(said) else []

        rows = until(counted, "3,000 messages in samples of hubs")
        assert of_hubs(rows, "messages") == pytest.approx(3_000, abs=1)
        for kind in ("node", "shard"):
            published = sum(row["messages_per_second"] * row["seconds"] for row in of(rows, kind))
            delivered = sum(row["deliveries_per_second"] * row["seconds"] for row in of(rows, kind))
            assert (round(published), round(delivered)) == (3_000, 2_000)
        assert max(row["bytes_out_per_second"] * row["seconds"] for row in of(rows, "node")) > 200_000
        for name, total in (("deliveries", 2_000), ("bytes_in", sum(said)), ("bytes_out", said[0])):
            assert of_hubs(rows, name) == pytest.approx(total, rel=1e-4), name
        rooms = until(lambda: of(samples(connection), "room", room="chat:a", estimated=False))
        assert {(row["subscribers"], row["class"]) for row in rooms} == {(1, "chat")}
        for row in of(samples(connection), "room"):
            of_one = row["bytes_in_per_second"] / (row["messages_per_second"] or 1)
            assert row["messages_per_second"] == 0 or 98 <= of_one <= 101
            heard = row["bytes_in_per_second"] if row["room"] == "chat:a" else 0
            assert row["bytes_out_per_second"] == heard
        assert of(rows, "hub", **{"class": "$stats"}), "what it costs to say all this is told, too"
        assert not [row for row in rows if row.get("room", "").startswith("$")]
        every = samples(connection)
        assert {row["kind"] for row in every} == {"node", "shard", "hub", "room"}
        assert max(len(json.dumps(row)) for row in every) < 1_000


def test_samples_end_when_their_interval_is_0_and_stay_over_a_restart(
    needs: Callable[..., None], data: Path
) -> None:
    needs("hubsub-core")
    with hubsub_node(1, {"data": str(data)}, limits=SAMPLES) as server, server.connect() as connection:
        until(lambda: len(of(samples(connection), "node")) >= 2)
    with hubsub_node(1, {"data": str(data)}, limits={"load_sample_ms": 0}) as server:
        with server.connect() as connection:
            assert len(of(samples(connection), "node")) >= 2
            connection.ask("SUBSCRIBE", "$stats/load")
        log = json.loads(server.get("/v1/hubs?class=%24stats"))["hubs"][0]
        assert log["class"] == "$stats" and log["latest"] >= 2


def names(server: Server, path: str, key: str) -> list[str]:
    return [row["name"] for row in json.loads(server.get(path))[key]]


def test_the_nodes_own_rooms_are_shown_only_to_who_asks_for_them(server: Server) -> None:
    with server.connect() as connection:
        publish(connection, "!first", range(1))
        publish(connection, "chat:a", range(100))
        until(lambda: samples(connection))
        connection.ask("SUBSCRIBE", "!first")
        assert names(server, "/v1/rooms", "rooms") == ["!first", "chat:a"]
        for limit in (1, 2):
            assert names(server, f"/v1/rooms?limit={limit}", "rooms") == ["!first", "chat:a"][:limit]
        assert names(server, "/v1/rooms?after=%24", "rooms") == ["chat:a"]
        assert names(server, "/v1/rooms?own=true", "rooms") == ["!first", "$stats/load", "chat:a"]
        assert names(server, "/v1/rooms?match=%24*", "rooms") == ["$stats/load"]
        until(lambda: "$stats/load" in names(server, "/v1/busiest?own=true&limit=100", "rooms"))
        assert names(server, "/v1/busiest?limit=100", "rooms") == ["chat:a"]


def test_who_asks_for_all_rooms_does_not_hear_of_the_nodes_own(server: Server) -> None:
    with server.connect() as every, server.connect() as own:
        own.ask("PSUBSCRIBE", "$stats/*")
        every.ask("PSUBSCRIBE", "*")
        assert own.read().plain()[2] == b"$stats/load"  # type: ignore[index]
        publish(own := server.connect(), "chat:a", range(1))
        own.close()
        assert every.read().plain()[2] == b"chat:a"  # type: ignore[index]


@pytest.mark.parametrize(
    ("query", "hubs"),
    [
        ("", ["chat-0", "chat-1"]),
        ("subscribePattern=*", ["chat-0", "chat-1"]),
        ("subscribePattern=%23", ["chat-0", "chat-1"]),
        ("subscribePattern=%2B/load", ["chat-0", "chat-1"]),
        ("subscribePattern=%24*", ["$stats-0"]),
        ("subscribePattern=%24stats/%23", ["$stats-0"]),
        ("subscribePattern=%24queries/*", []),
        ("subscribe=%24stats/load", ["$stats-0"]),
        ("class=%24stats", ["$stats-0"]),
    ],
)
def test_readers_of_the_log_get_the_nodes_own_hubs_by_their_names_alone(
    server: Server, query: str, hubs: list[str]
) -> None:
    assert names(server, f"/v1/log?{query}", "hubs") == hubs


@pytest.mark.parametrize(
    "path",
    ["/v1/log?subscribe=%24stage/q/a", "/v1/log?subscribe=%24queries/q", "/v1/hubs/%24stage-0/records"],
)
def test_stages_and_batches_are_for_nobody_to_read(server: Server, path: str) -> None:
    with pytest.raises(HTTPError) as refused:
        server.get(path)
    assert json.loads(refused.value.read())["code"] == "not_allowed"


def test_nobody_but_the_node_writes_to_its_rooms(server: Server) -> None:
    with server.connect() as connection:
        for topic in ("$stats/load", "$stats/room/chat:a", "x{$stats/load}"):
            assert b"NOPERM" in connection.ask("PUBLISH", topic, "x").value  # type: ignore[union-attr, operator]
    body = json.dumps({"topic": "$stats/load", "payload": "x"}).encode()
    assert server.node
    request = Request(f"{server.node.http_url}/v1/publish", body)
    with pytest.raises(HTTPError) as refused:
        urlopen(request, timeout=TIMEOUT_S)
    assert json.loads(refused.value.read())["code"] == "not_allowed"
    for method in ("PUT", "DELETE"):
        request = Request(f"{server.node.http_url}/v1/rooms/{quote('$stats/load', safe='')}", method=method)
        with pytest.raises(HTTPError) as refused:
            urlopen(request, timeout=TIMEOUT_S)
        assert json.loads(refused.value.read())["code"] == "not_allowed"
