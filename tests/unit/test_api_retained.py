"""The API of retained messages over fake nodes: pages of several nodes as one list."""

import fnmatch
import json
from typing import Any
from urllib.parse import quote

import pytest

from hubsub.control.cluster.plane import RPC_BYTES_MAX
from hubsub.node import HistoryRow, Item, Published

from .played_cluster import Cluster
from .played_node import Api, fits, room_row

ROWS = b"$system/retained/"


def keeping(api: Api, *topics: str, ended: tuple[str, ...] = ()) -> None:
    """Makes the node the leader of the entries of these topics; entries of the `ended` topics are deleted,
    i.e. empty."""
    rows = {ROWS + topic.encode(): b"" if topic in ended else topic.encode() for topic in (*topics, *ended)}
    node: Any = api.node
    node.known = {room: room_row(room) for room in rows}

    async def rooms(match: bytes, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        found = sorted(name for name in rows if fnmatch.fnmatchcase(name.decode(), match.decode()))
        return [room_row(name) for name in found if after is None or name > after][:limit]

    async def history(room: bytes, count: int, *, as_node: bool = False) -> tuple[bool, list[HistoryRow]]:
        assert as_node and count == 1
        origin = {"hubsub-retained": "7-3 1000"} if rows[room] else {}
        return True, [HistoryRow(9, 1, 2000, room, "", rows[room], origin)]

    async def publish(items: list[Item], *, as_node: bool = False) -> list[Published]:
        assert as_node
        for item in items:
            rows[item.topic] = item.payload
        return [Published(9, 2, 0) for _ in items]

    node.rooms, node.history, node.publish = rooms, history, publish


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize(("query", "wanted"), [("", "abcdefgh"), ("filter=%2B/x&", "ach")])
async def test_pages_of_several_nodes_have_each_message_once_in_order(
    limit: int, query: str, wanted: str
) -> None:
    cluster = Cluster()
    keeping(cluster.apis["one"], "a/x", "d", "e")
    keeping(cluster.apis["two"], "b", "c/x", "f", ended=("c/y", "e/x"))
    keeping(cluster.apis["three"], "g", "h/x")
    found: list[str] = []
    after = ""
    for _ in range(20):
        answer = await cluster.apis["one"].ask("GET", f"/v1/retained?{query}limit={limit}{after}")
        fits(answer, "/v1/retained")
        found += [row["topic"][0] for row in answer.json["retained"]]
        if answer.json["next"] is None:
            break
        after = f"&after={quote(answer.json['next'], safe='')}"
    assert found == list(wanted)


@pytest.mark.parametrize("topic_bytes", [10, 3_000, 65_000])
async def test_long_entries_shorten_a_page_and_each_is_read_once(topic_bytes: int) -> None:
    cluster = Cluster()
    topics = [f"{number:03}{'x' * (topic_bytes - 3)}" for number in range(150)]
    keeping(cluster.apis["one"], *topics[::2])
    keeping(cluster.apis["two"], *topics[1::2])
    keeping(cluster.apis["three"])
    own = await cluster.apis["one"].ask("GET", "/v1/retained?limit=1000&scope=node")
    assert len(json.dumps(own.json)) < RPC_BYTES_MAX, "it fits into an answer to another node"
    found: list[str] = []
    after, pages = "", 0
    while pages < len(topics) + 1:
        pages += 1
        answer = await cluster.apis["three"].ask("GET", f"/v1/retained?limit=1000{after}")
        fits(answer, "/v1/retained")
        found += [row["topic"] for row in answer.json["retained"]]
        if answer.json["next"] is None:
            break
        after = f"&after={quote(answer.json['next'], safe='')}"
    assert found == topics
    assert (pages == 1) == (topic_bytes == 10), pages


async def test_one_is_found_and_forgotten_wherever_it_is() -> None:
    cluster = Cluster()
    keeping(cluster.apis["one"], "a")
    keeping(cluster.apis["two"], "b", ended=("c",))
    keeping(cluster.apis["three"])
    one = cluster.apis["one"]
    answer = await one.ask("GET", "/v1/retained/b")
    fits(answer, "/v1/retained/{topic}")
    assert (answer.json["payload"], answer.json["position"], answer.json["timestamp_us"]) == (
        "b",
        "7-3",
        1000,
    )
    assert (await one.ask("DELETE", "/v1/retained/b")).status == 204
    for topic in "bc":
        for method in ("GET", "DELETE"):
            answer = await one.ask(method, f"/v1/retained/{topic}")
            assert (answer.status, answer.json["code"]) == (404, "no_such_retained_message")
    assert (await one.ask("GET", "/v1/retained/a")).status == 200
