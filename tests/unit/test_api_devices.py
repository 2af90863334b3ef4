"""The devices API over fake nodes: pages, connections of all nodes, actions and their refusals."""

import asyncio
import fnmatch
from typing import Any
from urllib.parse import quote

import pytest

from hubsub.api.devices import READS_MAX
from hubsub.config import resolve
from hubsub.node import HistoryRow, Item

from .played_cluster import Cluster
from .played_node import Api, client_row, fits, room_row

FIELD = {
    "name": "field",
    "match": ["devices/#"],
    "room": "devices/+",
    "device": "devices/{device}/#",
    "history": {"messages": 100},
}


def field(api: Api, *names: str, **more: Any) -> None:
    """Gives the node rooms of devices with these names."""
    limits = {"history_reply_records_max": 4}
    api.state.config = resolve({"class": [FIELD | more], "limits": limits}, {}, {})
    node: Any = api.node
    node.listed = [f"devices/{name}".encode() for name in names]
    node.kept = {}
    levels = FIELD["room"].count("/") + 1 if "room" not in more else 99

    def room_of(topic: bytes) -> tuple[bytes, str]:
        is_device = topic.startswith(b"devices/")
        return (b"/".join(topic.split(b"/")[:levels]), "field") if is_device else (topic, "default")

    async def rooms(match: bytes, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        node.asked.append((match, after, limit))
        found = sorted(n for n in node.listed if fnmatch.fnmatchcase(n.decode(), match.decode()))
        return [room_row(name) for name in found if after is None or name > after][:limit]

    async def history(
        room: bytes, count: int, after: tuple[int, int] | None, topic: bytes | None
    ) -> tuple[bool, list[HistoryRow]]:
        rows = [r for r in node.kept.get(room, []) if topic in (None, r.topic)]
        rows = [r for r in rows if after is None or r.seq > after[1]]
        return True, rows[:count] if after else rows[-count:]

    node.room_of, node.rooms, node.history, node.connected = room_of, rooms, history, []


def orders(api: Api) -> list[list[Item]]:
    """The published items, by request."""
    return [asked for asked in api.node.asked if isinstance(asked, list)]


def row(seq: int, topic: str, payload: bytes = b"", **headers: str) -> HistoryRow:
    return HistoryRow(7, seq, seq, topic.encode(), "me", payload, headers)


def connected(name: str, **more: Any) -> dict[str, Any]:
    return client_row(4) | {"name": name, "age_s": 9.5, "protocol": "mqtt5"} | more


async def listed(api: Any, query: str = "") -> list[str]:
    """Device names on all pages."""
    found: list[str] = []
    after = ""
    for _ in range(100):
        answer = await api.ask("GET", f"/v1/devices?{query}{after}")
        assert answer.status == 200, answer.text
        fits(answer, "/v1/devices")
        found += [device["id"] for device in answer.json["devices"]]
        if answer.json["next"] is None:
            return found
        after = f"&after={quote(answer.json['next'], safe='')}"
    raise AssertionError("pages without end")


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_pages_have_each_device_once(limit: int) -> None:
    api = Api()
    field(api, *(f"d{i:02}" for i in range(10)), "x/y", "é")
    assert await listed(api, f"limit={limit}") == [*(f"d{i:02}" for i in range(10)), "é"]
    assert await listed(api, f"limit={limit}&prefix=d0") == [f"d{i:02}" for i in range(10)]
    assert await listed(api, f"limit={limit}&prefix=%C3%A9") == ["é"]


async def test_what_a_glob_would_read_is_literal_in_a_prefix() -> None:
    api = Api()
    field(api, "a", "[a]*")
    await api.get("/v1/devices?prefix=%5Ba%5D*")
    assert api.node.asked == [(b"devices/\\[a\\]\\**", None, 100)]


async def test_who_asks_for_times_is_told_when_each_said_something_last() -> None:
    api = Api()
    field(api, "a", "b")
    api.node.kept[b"devices/a"] = [row(1, "devices/a/state", b"old"), row(2, "devices/a/error", b"e")]  # type: ignore[attr-defined]
    listed = (await api.get("/v1/devices?times=true")).json["devices"]
    assert [device["sent_us"] for device in listed] == [2, None]
    assert all(device["sent_us"] is None for device in (await api.get("/v1/devices")).json["devices"])
    assert (await api.get("/v1/devices?times=maybe")).status == 400


async def test_times_of_many_are_read_a_few_at_once() -> None:
    api = Api()
    field(api, *(f"d{number:03}" for number in range(100)))
    node: Any = api.node
    history, under_way, most = node.history, 0, 0

    async def slow(*args: Any) -> tuple[bool, list[HistoryRow]]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        rows: tuple[bool, list[HistoryRow]] = await history(*args)
        return rows

    node.history = slow
    assert len((await api.get("/v1/devices?times=true&limit=100")).json["devices"]) == 100
    assert most == READS_MAX


async def test_a_device_is_connected_where_an_mqtt_client_has_its_name() -> None:
    api = Api()
    field(api, "a", "b", "c")
    api.node.connected = [connected("b"), connected("z")]
    shown = (await api.get("/v1/devices")).json["devices"]
    assert [device["connection"] is not None for device in shown] == [False, True, False]
    assert shown[1]["connection"] == {"node": "one", "client": 4, "protocol": "mqtt5", "connected_s": 9.5}
    assert await listed(api, "connected=true&limit=1") == ["b"]
    assert await listed(api, "connected=false&limit=2") == ["a", "c"]
    assert (await api.get("/v1/devices?connected=maybe")).status == 400


async def test_a_device_shows_its_last_state_and_one_that_nobody_knows_is_404() -> None:
    api = Api()
    field(api, "a")
    api.node.kept[b"devices/a"] = [  # type: ignore[attr-defined]
        row(1, "devices/a/state", b"old"),
        row(2, "devices/a/state", b"\xff"),
        row(3, "devices/a/error", b"e"),
    ]
    answer = await api.get("/v1/devices/a")
    fits(answer, "/v1/devices/{device}")
    assert answer.json["state"]["payload_base64"] == "/w==" and answer.json["connection"] is None
    assert (answer.json["state_topic"], answer.json["room_class"]) == ("devices/a/state", "field")
    api.node.connected = [connected("b")]
    here = (await api.get("/v1/devices/b")).json
    assert here["state"] is None and here["connection"]["client"] == 4
    assert (await api.get("/v1/devices/z")).json["code"] == "no_such_device"


@pytest.mark.parametrize("name", ["a%2Fb", "%2B", "%23", "%FF", "%00", "x" * 256])
async def test_a_name_that_is_no_devices_is_400_and_nothing_is_published(name: str) -> None:
    api = Api()
    field(api)
    for method, path in (("GET", ""), ("GET", "/actions"), ("POST", "/actions")):
        answer = await api.ask(
            method, f"/v1/devices/{name}{path}", {"name": "go"} if method == "POST" else None
        )
        assert (answer.status, answer.json["code"]) == (400, "bad_request") and answer.json["hint"]
    assert api.node.published == 0


async def test_an_action_is_a_record_that_a_device_can_answer_by_its_protocols_means() -> None:
    api = Api()
    field(api)
    order = {"name": "go", "payload_base64": "/w==", "expiry_s": 60, "headers": {"k": "v"}}
    answer = await api.ask("POST", "/v1/devices/a/actions", order)
    assert answer.status == 201
    fits(answer, "/v1/devices/{device}/actions", "post")
    ((item,),) = orders(api)
    assert (item.topic, item.payload) == (b"devices/a/actions/go", b"\xff")
    assert item.headers == {
        "k": "v",
        "hubsub-action": answer.json["id"],
        "mqtt.correlation-data": answer.json["id"],
        "mqtt.response-topic": "devices/a/actions/go/done",
        "mqtt.expiry-s": "60",
    }
    assert (answer.json["state"], answer.json["receivers"], answer.json["position"]) == ("queued", 3, "7-1")
    assert answer.json["expires_us"] == answer.json["timestamp_us"] + 60_000_000
    forever = await api.ask("POST", "/v1/devices/a/actions", {"name": "go", "expiry_s": None})
    assert forever.json["expires_us"] is None and "mqtt.expiry-s" not in orders(api)[-1][0].headers


async def test_an_action_has_the_time_that_its_room_gave_it_and_says_whether_its_device_was_ever_seen() -> (
    None
):
    api = Api()
    field(api, "a")
    api.node.kept[b"devices/a"] = [  # type: ignore[attr-defined]
        row(1, "devices/a/actions/go", b"1", **{"hubsub-action": "first", "mqtt.expiry-s": "60"}),
    ]
    given = (await api.ask("POST", "/v1/devices/a/actions", {"name": "go", "expiry_s": 60})).json
    assert (given["timestamp_us"], given["expires_us"], given["seen"]) == (1, 60_000_001, False)
    api.node.connected = [connected("a")]
    assert (await api.ask("POST", "/v1/devices/a/actions", {"name": "go"})).json["seen"]
    api.node.connected = []
    api.node.kept[b"devices/a"].append(row(2, "devices/a/state"))  # type: ignore[attr-defined]
    assert (await api.ask("POST", "/v1/devices/a/actions", {"name": "go"})).json["seen"]


async def test_a_key_gives_one_action_of_one_device() -> None:
    api = Api()
    field(api)
    headers = {"Idempotency-Key": "k"}
    answers = [await api.ask("POST", "/v1/devices/a/actions", {"name": "go"}, headers) for _ in range(2)]
    assert answers[0].text == answers[1].text and api.node.published == 1
    other = await api.ask("POST", "/v1/devices/b/actions", {"name": "go"}, headers)
    assert other.status == 201 and api.node.published == 2, "a key is of one device"
    changed = await api.ask("POST", "/v1/devices/a/actions", {"name": "go", "payload": "y"}, headers)
    assert (changed.status, changed.json["code"]) == (422, "idempotency_mismatch")


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"name": ""},
        {"name": "a/b"},
        {"name": "é"},
        {"name": "go", "expiry_s": 0},
        {"name": "go", "payload": "a", "payload_base64": "YQ=="},
        {"name": "go", "payload_base64": "?"},
        {"name": "go", "headers": {"mqtt.expiry-s": "9"}},
        {"name": "go", "more": 1},
    ],
)
async def test_an_order_that_does_not_fit_is_400_and_nothing_is_published(order: dict[str, Any]) -> None:
    api = Api()
    field(api)
    answer = await api.ask("POST", "/v1/devices/a/actions", order)
    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert api.node.published == 0


async def test_what_was_refused_is_no_action() -> None:
    api = Api()
    field(api)
    answer = await api.ask("POST", "/v1/devices/a/actions", {"name": "go", "payload": "long"})
    assert (answer.status, answer.json["code"]) == (413, "payload_length")


async def test_actions_are_shown_with_their_answers_the_latest_last() -> None:
    api = Api()
    field(api)
    room = [
        row(1, "devices/a/actions/go", b"1"),
        row(2, "devices/a/state"),
        row(3, "devices/a/actions/stop", b"2", **{"mqtt.expiry-s": "1"}),
        row(4, "devices/a/actions/go/done", b"ok"),
    ]
    api.node.kept[b"devices/a"] = room  # type: ignore[attr-defined]
    answer = await api.get("/v1/devices/a/actions")
    fits(answer, "/v1/devices/{device}/actions")
    assert answer.json["is_whole"]
    assert [(a["id"], a["state"]) for a in answer.json["actions"]] == [
        ("7-1", "acknowledged"),
        ("7-3", "expired"),
    ]
    assert answer.json["actions"][0]["answer"]["payload"] == "ok"
    last = (await api.get("/v1/devices/a/actions?limit=1")).json["actions"]
    assert [a["id"] for a in last] == ["7-3"]
    done = (await api.get("/v1/devices/a/actions?state=acknowledged")).json["actions"]
    assert [a["id"] for a in done] == ["7-1"]
    assert (await api.get("/v1/devices/a/actions?state=done")).status == 400
    room.append(row(5, "devices/a/state"))
    assert not (await api.get("/v1/devices/a/actions")).json["is_whole"]
    del room[0]
    assert (await api.get("/v1/devices/a/actions")).json["is_whole"], "what is before was removed"
    assert (await api.get("/v1/devices/z/actions")).json == {"actions": [], "is_whole": True}


async def test_without_a_class_of_devices_there_are_none_and_without_a_memory_no_actions() -> None:
    nothing = await Api().get("/v1/devices")
    assert (nothing.status, nothing.json["code"]) == (404, "no_devices") and "device =" in nothing.json[
        "hint"
    ]
    api = Api()
    field(api)
    assert (await api.get("/v1/devices?class=other")).json["code"] == "no_such_class"
    for more in ({"history": None}, {"room": "topic"}):
        field(api, **{k: v for k, v in more.items() if v is not None})
        if "history" in more:
            api.state.config = resolve(
                {"class": [{k: v for k, v in FIELD.items() if k != "history"}]}, {}, {}
            )
        for method in ("GET", "POST"):
            answer = await api.ask(
                method, "/v1/devices/a/actions", {"name": "go"} if method == "POST" else None
            )
            assert (answer.status, answer.json["code"]) == (409, "actions_not_kept") and answer.json["hint"]
    assert api.node.published == 0


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_devices_of_all_nodes_are_listed_once_and_connected_anywhere(limit: int) -> None:
    cluster = Cluster()
    names = [f"d{i:03}" for i in range(60)]
    for i, api in enumerate(cluster.apis.values()):
        field(api, *names[i::3])
    cluster.apis["two"].node.connected = [connected("d000"), connected("d002")]
    assert await listed(cluster, f"limit={limit}") == names
    assert await listed(cluster, f"limit={limit}&connected=true") == ["d000", "d002"]
    shown = (await cluster.ask("GET", "/v1/devices/d000")).json
    assert shown["connection"]["node"] == "two"


async def test_a_list_without_a_node_names_it() -> None:
    cluster = Cluster()
    for api in cluster.apis.values():
        field(api, "a")
    cluster.away = {"three"}
    answer = await cluster.ask("GET", "/v1/devices")
    assert len(answer.json["devices"]) == 1 and answer.headers["hubsub-unreachable"] == "three"
    assert (await cluster.ask("GET", "/v1/devices/a")).json["code"] == "nodes_unreachable"


async def test_actions_are_read_where_their_room_is_known() -> None:
    cluster = Cluster()
    for api in cluster.apis.values():
        field(api)
    cluster.apis["three"].node.kept[b"devices/a"] = [  # type: ignore[attr-defined]
        row(1, "devices/a/actions/go", b"\xff", **{"hubsub-action": "x"})
    ]
    for name in ("one", "two"):
        cluster.apis[name].node.kept = {}  # type: ignore[attr-defined]
    # Only `three` knows the room: the directories of the others lag.
    others: Any = cluster.apis["three"].state.others
    others.hub_of = lambda room: known()

    async def known() -> int:
        return 1

    answer = await cluster.ask("GET", "/v1/devices/a/actions")
    assert [(a["id"], a["payload_base64"]) for a in answer.json["actions"]] == [("x", "/w==")]
