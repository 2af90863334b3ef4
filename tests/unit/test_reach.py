"""One API over several nodes: the nodes that are asked, and the combination of their answers."""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import pytest

from hubsub.errors import NodesUnreachableError
from hubsub.node import BusyRoom

from .played_cluster import Cluster
from .played_node import client_row, fits, hub_row, played_log, room_row


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("limit", [1, 7, 100, 1_000])
async def test_pages_of_rooms_have_all_nodes_rooms_once_in_order(cluster: Cluster, limit: int) -> None:
    names = [b"room %03d" % i for i in range(300)]
    for i, api in enumerate(cluster.apis.values()):
        api.node.listed = names[i::3] if i else [*names[::3], b"room 001"]
    found: list[str] = []
    after = ""
    for _ in range(400):
        page = (await cluster.ask("GET", f"/v1/rooms?limit={limit}{after}")).json
        assert len(page["rooms"]) <= limit
        found += [room["name"] for room in page["rooms"]]
        if page["next"] is None:
            break
        after = f"&after={quote(page['next'], safe='')}"
    assert found == [name.decode() for name in names]


async def test_a_list_without_a_node_names_it(cluster: Cluster) -> None:
    cluster.apis["two"].node.listed = [b"of two"]
    cluster.away = {"three"}
    answer = await cluster.ask("GET", "/v1/rooms")
    assert [room["name"] for room in answer.json["rooms"]] == ["of two"]
    assert answer.headers["hubsub-unreachable"] == "three"


async def test_hubs_without_those_of_a_node_name_it_registered_or_not(cluster: Cluster) -> None:
    cluster.have({1: "one", 2: "two", 3: "gone"})
    hubs = await cluster.ask("GET", "/v1/hubs")
    assert [hub["id"] for hub in hubs.json["hubs"]] == [1, 2]
    assert hubs.headers["hubsub-unreachable"] == "gone"


async def test_a_hub_is_found_at_its_node_wherever_it_is_asked_for(cluster: Cluster) -> None:
    cluster.have({3: "three", 4: "gone"})
    for wanted in ("chat-2", "3"):
        found = await cluster.ask("GET", f"/v1/hubs/{wanted}")
        assert (found.status, found.json["leader"]) == (200, "three")
    assert (await cluster.ask("GET", "/v1/hubs/none")).status == 404
    cluster.away = {"three"}
    for wanted in ("chat-2", "chat-3"):
        answer = await cluster.ask("GET", f"/v1/hubs/{wanted}")
        assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable"), "it is there"


async def test_a_room_is_made_shown_and_deleted_at_its_leader(cluster: Cluster) -> None:
    cluster.holders = {b"a/b": "two"}
    assert (await cluster.ask("PUT", "/v1/rooms/a%2Fb")).status == 201
    assert list(cluster.apis["two"].node.known) == [b"a/b"] and not cluster.apis["one"].node.known
    shown = await cluster.ask("GET", "/v1/rooms/a%2Fb")
    assert shown.json["nodes"][0]["name"] == "two"
    fits(shown, "/v1/rooms/{room}")
    assert (await cluster.ask("DELETE", "/v1/rooms/a%2Fb")).status == 204
    assert not cluster.apis["two"].node.known
    assert set(cluster.asked) == {"two"}
    cluster.away = {"two"}
    assert (await cluster.ask("GET", "/v1/rooms/a%2Fb")).json["code"] == "nodes_unreachable"


async def test_the_busiest_rooms_of_all_are_the_busiest_of_each(cluster: Cluster) -> None:
    for rate, api in enumerate(cluster.apis.values(), 1):
        rooms = [BusyRoom(b"moved", float(rate), 1, 1), BusyRoom(b"of %d" % rate, 2.5 * rate, 1, 1)]
        api.node.busiest_rooms = busiest(rooms)  # type: ignore[method-assign]
    rooms = (await cluster.ask("GET", "/v1/busiest?limit=3")).json["rooms"]
    assert [(room["name"], room["messages_per_second"]) for room in rooms] == [
        ("of 3", 7.5),
        ("moved", 6.0),
        ("of 2", 5.0),
    ]


def busiest(rooms: list[BusyRoom]) -> Callable[..., object]:
    async def played(limit: int, *, own: bool = False) -> list[BusyRoom]:
        return rooms[:limit]

    return played


async def test_clients_of_all_nodes_are_sorted_and_closed_where_they_are(cluster: Cluster) -> None:
    for rate, api in enumerate(cluster.apis.values(), 1):
        api.node.connected = [client_row(4) | {"bytes_in": rate}]
    answer = await cluster.ask("GET", "/v1/clients?sort=bytes_in&limit=2")
    assert [(row["node"], row["bytes_in"]) for row in answer.json["clients"]] == [("three", 3), ("two", 2)]
    fits(answer, "/v1/clients")
    assert (await cluster.ask("GET", "/v1/clients/4?node=two")).json["node"] == "two"
    assert (await cluster.ask("GET", "/v1/clients/4")).json["node"] == "one"
    assert (await cluster.ask("DELETE", "/v1/clients/4?node=three")).status == 204
    nobody = await cluster.ask("GET", "/v1/clients/4?node=four")
    assert (nobody.status, nobody.json["code"]) == (404, "no_such_node")


async def test_nodes_are_listed_by_name_and_each_shown_from_anywhere(cluster: Cluster) -> None:
    names = [node["name"] for node in (await cluster.ask("GET", "/v1/nodes")).json["nodes"]]
    assert names == ["one", "three", "two"]
    assert [node["name"] for node in (await cluster.ask("GET", "/nodes")).json] == names
    cluster.holders[b"a room"], cluster.hubs[b"a room"], cluster.hubs[b"own"] = "three", 1, 2
    assert [node["name"] for node in (await cluster.ask("GET", "/nodes?room=a%20room")).json] == ["three"]
    assert [node["name"] for node in (await cluster.ask("GET", "/nodes?room=own")).json] == ["one"]
    no_place = (await cluster.ask("GET", "/nodes?room=other")).json
    assert [node["name"] for node in no_place] == names, (
        "any node takes its clients, and reading gives it no place"
    )
    assert (await cluster.ask("GET", "/v1/nodes/three")).json["name"] == "three"
    assert (await cluster.ask("GET", "/v1/nodes/four")).status == 404


async def test_progress_of_a_query_is_kept_by_each_node_for_its_hubs(cluster: Cluster) -> None:
    for number, api in enumerate(cluster.apis.values(), 1):
        api.node.played_log = played_log(hub_row(number))
    report = {"offsets": {"1": 2, "2": 3, "3": 4}, "batch": 5}
    assert (await cluster.ask("PUT", "/v1/queries/q", report)).status == 204
    query = (await cluster.ask("GET", "/v1/queries")).json["queries"][0]
    assert [(hub["hub"], hub["lag"]) for hub in query["hubs"]] == [(1, 2), (2, 1), (3, 0)]
    assert query["lag"] == 3
    cluster.away = {"two"}
    assert (await cluster.ask("DELETE", "/v1/queries/q")).headers["hubsub-unreachable"] == "two"
    assert (await cluster.ask("DELETE", "/v1/queries/q")).status == 404


async def test_who_cannot_answer_does_not_hide_who_can(cluster: Cluster) -> None:
    class Stopping:
        def log(self) -> None:
            raise NodesUnreachableError("the node stops")

    cluster.have({2: "two", 3: "three"})
    cluster.apis["three"].node.log = Stopping().log  # type: ignore[method-assign]
    assert (await cluster.ask("GET", "/v1/hubs/chat-1")).json["leader"] == "two"
    assert (await cluster.ask("GET", "/v1/nodes/two")).json["name"] == "two"
    told = await cluster.ask("PUT", "/v1/queries/q", {"offsets": {"2": 1}})
    assert (told.status, told.headers["hubsub-unreachable"]) == (204, "three")


async def test_a_request_of_another_node_goes_no_farther(cluster: Cluster) -> None:
    cluster.apis["one"].node.listed = [b"a"]
    cluster.apis["two"].node.listed = [b"b"]
    answer = await cluster.ask("GET", "/v1/rooms?scope=node")
    assert [room["name"] for room in answer.json["rooms"]] == ["a"] and not cluster.asked
    await cluster.ask("GET", "/v1/rooms")
    assert sorted(cluster.asked) == ["three", "two"]


async def test_a_refusal_anywhere_is_the_answer(cluster: Cluster) -> None:
    answer = await cluster.ask("GET", "/v1/rooms?limit=0")
    assert (answer.status, answer.json["code"]) == (400, "bad_request")

    async def fails(*_: object) -> list[dict[str, object]]:
        raise NodesUnreachableError("the node stops")

    cluster.apis["two"].node.rooms = fails  # type: ignore[assignment, method-assign]
    answer = await cluster.ask("GET", "/v1/rooms")
    assert (answer.status, answer.json["message"]) == (503, "the node stops")
    assert answer.headers["retry-after"] == "1"


async def test_all_are_asked_at_once(cluster: Cluster) -> None:
    waiting = asyncio.Barrier(2)

    async def meets(*_: object) -> list[dict[str, object]]:
        await waiting.wait()
        return [room_row(b"met")]

    for name in ("two", "three"):
        cluster.apis[name].node.rooms = meets  # type: ignore[assignment, method-assign]
    answer = await asyncio.wait_for(cluster.ask("GET", "/v1/rooms"), 10)
    assert [room["name"] for room in answer.json["rooms"]] == ["met"]
