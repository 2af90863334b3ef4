"""The console over a fake node: its files, a node's report of its state, and the events."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hubsub._core", reason="needs hubsub-core")

from hubsub.api.console.board import Board
from hubsub.api.console.files import PAGES, STATIC
from hubsub.api.console.now import COUNTED
from hubsub.api.others import Reply, encode
from hubsub.control.cluster.log_owners import LogOwners

from .played_node import ODD_ROOM, Api, fits, hub_row, played_log

VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the vendored files, as in `vendor/README.md`."""


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the polling interval, so that tests do not wait."""
    monkeypatch.setattr("hubsub.api.console.watch.LOOK_S", 0.02)


OWN_SCRIPTS = sorted(path for path in STATIC.rglob("*.js") if path.parent.name != "vendor")


# -- files --


async def test_the_page_and_all_that_it_names_are_served_with_a_policy() -> None:
    api = Api()
    page = await api.get("/")
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    named = set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text))
    assert len(named) >= 6
    for path in named:
        answer = await api.get(path)
        assert answer.status == 200 and answer.headers["x-content-type-options"] == "nosniff", path


async def test_a_file_is_not_sent_to_who_has_it() -> None:
    api = Api()
    etag = (await api.get("/console/main.js")).headers["etag"]
    again = await api.ask("GET", "/console/main.js", headers={"if-none-match": etag})
    assert (again.status, again.text) == (304, "")


@pytest.mark.parametrize(
    "path",
    ["/console/no.js", "/console/..%2F__init__.py", "/console/%2e%2e/files.py", "/console/vendor/README.md"],
)
async def test_nothing_but_the_pages_is_served(path: str) -> None:
    answer = await Api().get(path)
    assert (answer.status, answer.json["code"]) == (404, "not_found")


def test_what_is_vendored_is_what_was_published() -> None:
    folder = STATIC / "vendor"
    assert {path.name for path in folder.iterdir()} == {*VENDORED, "README.md"}
    text = (folder / "README.md").read_text()
    for name, digest in VENDORED.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        assert digest in text


@pytest.mark.parametrize("script", OWN_SCRIPTS, ids=lambda path: path.name)
def test_each_script_imports_what_is_there_and_sets_no_markup(script: Path) -> None:
    source = script.read_text()
    for target in re.findall(r'from "([^"]+)"', source):
        found = (script.parent / target).resolve()
        assert str(found.relative_to(STATIC)) in PAGES.files
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert name not in source


def test_no_page_names_another_host_or_has_a_script_or_style_inside() -> None:
    page = (STATIC / "index.html").read_text()
    assert "//" not in page.replace("<!doctype", "") and " style=" not in page and "<style" not in page
    assert all(not body.strip() for body in re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL))


# -- a node's state --


async def test_a_node_tells_its_sums_and_what_is_wrong_with_its_log() -> None:
    api = Api()
    api.node.played_log = played_log(state="full", reason="no room")
    answer = await api.get("/v1/console/now")
    fits(answer, "/v1/console/now")
    node = answer.json["nodes"][0]
    assert node["name"] == "one" and set(node["counts"]) == set(COUNTED)
    assert node["counts"]["connections"] == 2, "of both shards"
    assert node["reasons"] == ["its log is full: no room"]
    assert node["busiest"] == [{"name": "r", "messages_per_second": 2.5}]


async def test_a_node_tells_of_its_links_by_peer() -> None:
    api = Api()
    link = {
        "state": "up",
        "text": None,
        "heard_ms": 3.0,
        "round_trip_us": 90,
        "offset_us": 0,
        "offset_error_us": 5,
    }
    lost = link | {"state": "dialing", "text": "refused", "heard_ms": None, "round_trip_us": None}
    api.node.peers = [{"node": "b", "incarnation": 1, "links": [link, lost]}]
    told = (await api.get("/v1/console/now")).json["nodes"][0]["peers"]
    assert told == [
        {"node": "b", "links": 2, "up": 1, "round_trip_us": 90, "heard_ms": 3.0, "reason": "refused"}
    ]


# -- events --


class Listener:
    """Subscribes to an application's events without sockets, for the duration of the block."""

    def __init__(self, api: Api, query: str = "", takes: bool = True) -> None:
        self.api, self.query = api, query
        self.takes = asyncio.Event()
        if takes:
            self.takes.set()
        self.closed: list[bool] = []
        self.head: dict[str, Any] = {}
        self._gone = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._text = ""

    async def __aenter__(self) -> Listener:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/console/events",
            "raw_path": b"/v1/console/events",
            "query_string": self.query.encode(),
            "headers": [],
            "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 3220),
            "state": {"close_connection": self.closed.append},
        }
        self.task = asyncio.create_task(self.api.app(scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        self.takes.set()
        await self.task

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = message
            return
        await self.takes.wait()
        self._chunks.put_nowait(message["body"])
        if not message["more_body"]:
            self._chunks.put_nowait(None)

    async def events(self) -> list[tuple[str, Any]] | None:
        """The next events, as (name, data); None at the end."""
        while "\n\n" not in self._text:
            chunk = await self._chunks.get()
            if chunk is None:
                return None
            self._text += chunk.decode()
        *whole, self._text = self._text.split("\n\n")
        pairs = [
            re.fullmatch(r"event: (\w+)\ndata: (.*)", text) for text in whole if text.startswith("event")
        ]
        return [(pair[1], json.loads(pair[2])) for pair in pairs if pair]

    async def part(self, name: str) -> Any:
        """The data of the next event of that name."""
        while (found := await self.events()) is not None:
            for part, body in found:
                if part == name:
                    return body
        raise AssertionError("the events ended")


async def test_a_listener_gets_the_nodes_again_and_again_and_other_parts_when_they_change() -> None:
    async with Listener(Api()) as listener:
        first = await listener.part("nodes")
        second = await listener.part("nodes")
        assert first["node"] == "one" and [node["name"] for node in first["nodes"]] == ["one"]
        assert second["at_ms"] > first["at_ms"] and first["missing"] == []
    headers = dict(listener.head["headers"])
    assert listener.head["status"] == 200 and headers[b"content-type"].startswith(b"text/event-stream")


async def test_a_node_alone_says_so_once() -> None:
    async with Listener(Api()) as listener:
        said = [part for _ in range(3) for part, body in (await listener.events() or []) if part == "cluster"]
        while len(said) < 1:
            said += [part for part, _ in await listener.events() or []]
        assert said.count("cluster") == 1
        for _ in range(2):
            assert "cluster" not in [part for part, _ in await listener.events() or []]


async def test_the_map_of_a_node_alone_has_the_hubs_that_have_a_log() -> None:
    api = Api()
    api.node.played_log = played_log(hub_row(4))
    async with Listener(api) as listener:
        (hub,) = (await listener.part("hubs"))["hubs"]
    assert hub == {
        "hub": 4,
        "class": "chat",
        "index": 3,
        "term": None,
        "leader": "one",
        "members": ["one"],
        "proposed": None,
    }


async def test_one_listener_too_many_is_refused_and_counted_and_who_leaves_makes_room() -> None:
    api = Api(limits={"console_listeners_max": 1})
    async with Listener(api) as listener:
        await listener.part("nodes")
        refused = await api.get("/v1/console/events")
        assert (refused.status, refused.json["code"]) == (503, "too_busy")
        assert "console_listeners_max" in refused.json["hint"]
        page = (await api.get("/metrics")).text
        assert 'hubsub_control_refused_total{limit="console_listeners_max"} 1' in page
        assert "hubsub_console_listeners 1" in page
    async with Listener(api) as listener:
        await listener.part("nodes")


async def test_who_takes_nothing_is_closed_after_its_time_and_counted() -> None:
    api = Api(limits={"console_slow_ms": 50})
    async with Listener(api, takes=False) as listener:
        await listener.task
        assert listener.closed == [True]
    assert "hubsub_console_slow_closed_total 1" in (await api.get("/metrics")).text


async def test_nobody_looks_while_nobody_listens() -> None:
    api = Api()
    async with Listener(api) as listener:
        await listener.part("nodes")
    assert api.state.console is not None and len(api.state.console) == 0
    assert not any("Watch._" in repr(task) for task in asyncio.all_tasks() if not task.cancelling())


async def test_the_events_end_with_the_node() -> None:
    api = Api()
    async with Listener(api) as listener:
        await listener.part("nodes")
        api.state.stopping = True
        while await listener.events() is not None:
            pass
    refused = await api.get("/v1/console/events")
    assert (refused.status, refused.json["code"]) == (503, "stopping")


class PlayedOthers:
    """Two other nodes: `b` answers, `c` never does."""

    log_owners: LogOwners

    def __init__(self, api: Api) -> None:
        self.api = api

    def names(self) -> list[str]:
        return ["b", "c"]

    async def ask(self, node: str, body: bytes) -> bytes:
        if node == "c":
            await asyncio.Event().wait()
        answer = await self.api.get("/v1/console/now")
        if answer.json.get("nodes"):
            return encode(Reply(200, answer.text.replace('"name":"one"', '"name":"b"').encode()))
        return encode(Reply(answer.status, answer.text.encode()))


async def test_a_node_that_does_not_answer_is_missing_and_holds_up_no_other() -> None:
    api, other = Api(), Api()
    api.state.others = PlayedOthers(other)  # type: ignore[assignment]
    async with Listener(api) as listener:
        part = await listener.part("nodes")
        assert [node["name"] for node in part["nodes"]] == ["one", "b"] and part["missing"] == ["c"]


async def test_a_room_comes_with_the_end_of_its_history_once_and_long_payloads_cut() -> None:
    api = Api()
    async with Listener(api, "room=a/b%20c%25252F%25FF") as listener:
        tail = await listener.part("tail")
    assert tail["room"]["name"] == "a/b c%252F%FF" and tail["kept"]
    assert [record["position"] for record in tail["records"]] == ["7-1", "7-2"]
    assert [record["payload_bytes"] for record in tail["records"]] == [4, 1]
    assert api.node.asked[-1][0] == ODD_ROOM


async def test_a_room_that_is_not_there_is_said_with_its_error() -> None:
    async with Listener(Api(), "room=new") as listener:
        tail = await listener.part("tail")
    assert tail["room"]["code"] == "no_such_room" and tail["records"] == []


async def test_a_name_that_can_be_no_room_is_refused() -> None:
    answer = await Api().get("/v1/console/events?room=")
    assert (answer.status, answer.json["code"]) == (400, "topic_length")


async def test_what_was_not_taken_gives_way_to_what_came_later() -> None:
    board = Board()
    board.put("a", b"1")
    board.put("b", b"1")
    board.put("a", b"2")
    assert board.has("a") and await board.take() == {"a": b"2", "b": b"1"} and not board.has("a")
    board.put("a", b"3")
    board.close()
    assert [await board.take(), await board.take()] == [{"a": b"3"}, {}]
