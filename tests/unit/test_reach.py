"""One API of several nodes: who is asked, and what is made of the answers."""

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import quote

import pytest

from hubsub.api.others import call_of, encode
from hubsub.errors import NodesUnreachableError
from hubsub.node import BusyRoom

from .played_node import Answer, Api, client_row, fits, hub_row, played_log, room_row


class Joined:
    """The others, as one of the nodes asks them."""

    def __init__(self, cluster: "Cluster", own: str) -> None:
        self._cluster = cluster
        self._own = own

    def names(self) -> Sequence[str]:
        return [name for name in self._cluster.apis if name != self._own]

    async def ask(self, node: str, body: bytes) -> bytes:
        self._cluster.asked.append(node)
        if node in self._cluster.away:
            raise NodesUnreachableError(value=node)
        return encode(await self._cluster.apis[node].app.called(call_of(body)))

    async def holder(self, room: bytes, create: bool) -> str | None:
        holder = self._cluster.holders.get(room, "one")
        return None if holder == self._own else holder


class Cluster:
    """Three nodes that the test plays, asked at the first."""

    def __init__(self) -> None:
        self.apis = {name: Api() for name in ("one", "two", "three")}
        self.away: set[str] = set()
        self.asked: list[str] = []
        self.holders: dict[bytes, str] = {}
        for name, api in self.apis.items():
            api.node.name = name
            api.node.known = {}
            api.node.listed = []
            api.state.others = Joined(self, name)

    async def ask(self, method: str, target: str, body: object = None) -> Answer:
        return await self.apis["one"].ask(method, target, body)


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


async def test_a_log_without_a_node_is_refused_rather_than_short(cluster: Cluster) -> None:
    for number, api in enumerate(cluster.apis.values(), 1):
        api.node.played_log = {**played_log(hub_row(number)), "identity": "ab"}
    whole = await cluster.ask("GET", "/v1/log?class=default")
    assert whole.status == 200 and whole.json["log"] == "ab"
    cluster.away = {"two"}
    answer = await cluster.ask("GET", "/v1/log")
    assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable")
    assert "two" in answer.json["message"]


async def test_nodes_with_logs_of_their_own_are_no_cluster(cluster: Cluster) -> None:
    for identity, api in zip(("ab", "cd", "ab"), cluster.apis.values(), strict=True):
        api.node.played_log = {**played_log(), "identity": identity}
    answer = await cluster.ask("GET", "/v1/log")
    assert (answer.status, answer.json["code"]) == (409, "other_log")


async def test_what_one_node_has_is_found_wherever_it_is_asked_for(cluster: Cluster) -> None:
    cluster.apis["three"].node.played_log = played_log(hub_row(3))
    found = await cluster.ask("GET", "/v1/hubs/chat-2")
    assert (found.status, found.json["leader"]) == (200, "three")
    assert (await cluster.ask("GET", "/v1/hubs/none")).status == 404
    cluster.away = {"three"}
    answer = await cluster.ask("GET", "/v1/hubs/chat-2")
    assert (answer.status, answer.json["code"]) == (503, "nodes_unreachable"), "it may be there"


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
        api.node.clients = clients([client_row(4) | {"bytes_in": rate}])  # type: ignore[method-assign]
    answer = await cluster.ask("GET", "/v1/clients?sort=bytes_in&limit=2")
    assert [(row["node"], row["bytes_in"]) for row in answer.json["clients"]] == [("three", 3), ("two", 2)]
    fits(answer, "/v1/clients")
    assert (await cluster.ask("GET", "/v1/clients/4?node=two")).json["node"] == "two"
    assert (await cluster.ask("GET", "/v1/clients/4")).json["node"] == "one"
    assert (await cluster.ask("DELETE", "/v1/clients/4?node=three")).status == 204
    nobody = await cluster.ask("GET", "/v1/clients/4?node=four")
    assert (nobody.status, nobody.json["code"]) == (404, "no_such_node")


def clients(rows: list[dict[str, object]]) -> Callable[..., object]:
    async def played(sort: str, limit: int, client: int | None = None) -> list[dict[str, object]]:
        return rows[:limit]

    return played


async def test_nodes_are_listed_by_name_and_each_shown_from_anywhere(cluster: Cluster) -> None:
    names = [node["name"] for node in (await cluster.ask("GET", "/v1/nodes")).json["nodes"]]
    assert names == ["one", "three", "two"]
    assert [node["name"] for node in (await cluster.ask("GET", "/nodes")).json] == names
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

    cluster.apis["two"].node.played_log = played_log(hub_row(2))
    cluster.apis["three"].node.log = Stopping().log  # type: ignore[method-assign]
    assert (await cluster.ask("GET", "/v1/hubs/chat-1")).json["leader"] == "two"
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
