"""The API of named consumers over fake nodes that lead entries of many consumers."""

from __future__ import annotations

from typing import Any

import pytest

from hubsub.errors import HubClosedError, HubSubError, TimedOutError
from hubsub.node import HistoryRow, Item, Published

from .played_cluster import Cluster
from .played_node import Api, room_row

ROWS = b"$consumer/"
ENTRY = (9).to_bytes(8, "little") + (1).to_bytes(8, "little")


def keeping(api: Api, *topics: str) -> list[bytes]:
    """Makes the node the leader of entries of the group `g` in these topics. Returns the list to which it adds
    each entry that is read."""
    entries = {ROWS + b"g/" + topic.encode(): ENTRY for topic in topics}
    read: list[bytes] = []
    node: Any = api.node
    node.known = {room: room_row(room) for room in entries}

    async def rooms(match: bytes, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        assert match == ROWS + b"*"
        return [room_row(name) for name in sorted(entries) if after is None or name > after][:limit]

    async def history(room: bytes, count: int, *, as_node: bool = False) -> tuple[bool, list[HistoryRow]]:
        assert as_node and count == 1
        read.append(room)
        return True, [HistoryRow(9, 1, 2000, room, "", entries[room], {})]

    async def publish(items: list[Item], *, as_node: bool = False) -> list[Published]:
        assert as_node
        entries.update({item.topic: item.payload for item in items})
        return [Published(9, 2, 0) for _ in items]

    async def consumers() -> list[Any]:
        return []

    async def forget_consumer(group: bytes, topic: bytes) -> bool:
        return False

    node.rooms, node.history, node.publish = rooms, history, publish
    node.consumers, node.forget_consumer = consumers, forget_consumer
    return read


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("DELETE", 204)])
async def test_one_consumer_costs_one_entry_however_many_there_are(method: str, status: int) -> None:
    cluster = Cluster()
    read = keeping(cluster.apis["two"], *(f"t{number:04}" for number in range(3_000)))
    keeping(cluster.apis["one"])
    keeping(cluster.apis["three"])
    assert (await cluster.apis["one"].ask(method, "/v1/consumers/g/t0007")).status == status
    assert read == [ROWS + b"g/t0007"]
    for topic in ("t3000", "t0007" if method == "DELETE" else "other"):
        answer = await cluster.apis["one"].ask(method, f"/v1/consumers/g/{topic}")
        assert (answer.status, answer.json["code"]) == (404, "no_such_consumer")


@pytest.mark.parametrize(
    ("error", "code"), [(HubClosedError, "no_such_consumer"), (TimedOutError, "timed_out")]
)
async def test_only_an_entry_that_another_node_leads_counts_as_none_here(
    error: type[HubSubError], code: str
) -> None:
    cluster = Cluster()
    for api in cluster.apis.values():
        keeping(api)
    node: Any = cluster.apis["one"].node

    async def room(name: bytes) -> None:
        raise error

    node.room = room
    for method in ("GET", "DELETE"):
        answer = await cluster.apis["one"].ask(method, "/v1/consumers/g/t")
        assert answer.json["code"] == code


async def test_the_list_has_each_consumer_of_all_pages_in_order() -> None:
    cluster = Cluster()
    topics = [f"t{number:04}" for number in range(2_500)]
    for name, own in (("one", topics[::2]), ("two", topics[1::2]), ("three", [])):
        keeping(cluster.apis[name], *own)
    answer = await cluster.apis["three"].ask("GET", "/v1/consumers")
    assert [row["topic"] for row in answer.json["consumers"]] == topics
    assert answer.json["consumers"][0]["position"] == "9-1"
