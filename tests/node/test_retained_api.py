"""Retained messages over REST and `hubsub retained`: listed by page, shown, removed, and as the state of a
device."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clients.mqtt import V5, Wire, text
from clients.servers import Server
from command_line import hubsub

from node.conftest import Start
from node.test_mqtt import begin, client
from node.test_mqtt_retained import keep, kept
from node.test_mqtt_retained import served as fenced

LAMPS = {
    "name": "lamps",
    "match": ["lamps/#"],
    "device": "lamps/{device}/#",
    "device_state": "lamps/{device}/state",
}
"""Without a history: a device's state is the retained message of its state topic."""


def served(start: Start, **more: Any) -> Server:
    """A node with a REST API."""
    return begin(start, 2, config={"http": "127.0.0.1:0", **more.pop("config", {})}, **more)


def ask(server: Server, path: str, method: str = "GET") -> tuple[int, Any]:
    """Status and body of a response."""
    assert server.node is not None
    request = urllib.request.Request(f"{server.node.http_url}{path}", method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            data = answer.read()
            return answer.status, json.loads(data) if data else None
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def topics(server: Server, query: str) -> list[str]:
    """The topics of all pages."""
    found: list[str] = []
    after = ""
    while True:
        status, page = ask(server, f"/v1/retained?{query}{after}")
        assert status == 200, page
        found += [row["topic"] for row in page["retained"]]
        if page["next"] is None:
            return found
        after = f"&after={quote(page['next'], safe='')}"


def keeps(one: Wire, *names: str) -> None:
    """Retains on each topic its own name."""
    for name in names:
        assert keep(one, name, name.encode()) in (0, 0x10)


@pytest.mark.parametrize("durable", [False, True])
def test_what_topics_keep_is_listed_in_pages_and_by_filter(
    start: Start, tmp_path: Path, durable: bool
) -> None:
    server = served(start, config={"data": str(tmp_path / "data")} if durable else {})
    names = [f"rooms/{i:02}/light" for i in range(12)]
    with client(server) as one:
        keeps(one, *names, "rooms", "rooms/[*]/light", "other/light", "é")
        keeps(one, "gone")
        keep(one, "gone", b"")
    for limit in (1, 5, 100):
        query = f"limit={limit}"
        assert topics(server, query) == sorted([*names, "rooms", "rooms/[*]/light", "other/light", "é"])
        assert topics(server, f"{query}&filter=rooms/%2B/light") == [*names, "rooms/[*]/light"]
        assert topics(server, f"{query}&filter=rooms/%23") == ["rooms", *names, "rooms/[*]/light"]
        assert topics(server, f"{query}&filter=rooms/[*]/light") == ["rooms/[*]/light"]
        assert topics(server, f"{query}&filter=%C3%A9") == ["é"]
        assert topics(server, f"{query}&filter=gone") == []
    status, refused = ask(server, "/v1/retained?filter=a%23")
    assert (status, refused["code"]) == (400, "bad_request")


def test_one_is_shown_with_its_headers_and_end_and_who_comes_after_its_removal_gets_none(
    start: Start,
) -> None:
    classes = [{"name": "past", "match": ["past/#"], "history": {"messages": 10}}]
    server = fenced(start, config={"http": "127.0.0.1:0"}, classes=classes)
    properties = b"\x02" + (3600).to_bytes(4, "big") + b"\x26" + text("unit") + text("lux")
    with client(server, version=V5) as one:
        assert keep(one, "past/a", b"\xff", props=properties) == 0x10
        keeps(one, "past/b")
    status, shown = ask(server, "/v1/retained/past%2Fa")
    assert status == 200
    assert shown["payload_base64"] == "/w==" and shown["headers"]["unit"] == "lux"
    assert shown["expires_us"] == shown["timestamp_us"] + 3_600_000_000
    assert shown["position"].endswith("-1") and "hubsub-retained" not in shown["headers"]
    assert ask(server, "/v1/retained/past%2Fa", "DELETE")[0] == 204
    for method in ("GET", "DELETE"):
        status, refused = ask(server, "/v1/retained/past%2Fa", method)
        assert (status, refused["code"]) == (404, "no_such_retained_message")
    with client(server, "later") as one:
        assert [message.topic for message in kept(one, ("past/#", 1))] == ["past/b"]


def test_what_a_devices_state_topic_keeps_is_its_state(start: Start) -> None:
    server = served(start, classes=[LAMPS])
    with client(server, "7") as one:
        one.publish("lamps/7/state", b"on", 1, 9)
        one.read()
        assert ask(server, "/v1/devices/7")[1]["state"] is None, "its class remembers nothing"
        keep(one, "lamps/7/state", b"off")
    status, shown = ask(server, "/v1/devices/7")
    assert (status, shown["state"]["payload"], shown["connection"]) == (200, "off", None)
    assert set(shown["state"]) == {
        "position",
        "timestamp_us",
        "topic",
        "publisher",
        "payload",
        "payload_base64",
        "headers",
    }
    assert ask(server, "/v1/devices/8")[0] == 404


def test_the_command_lists_shows_and_removes_them(start: Start) -> None:
    server = served(start)
    with client(server) as one:
        keeps(one, "lamps/1", "lamps/2", "doors/1")
    assert server.node is not None
    where = ("--url", server.node.http_url)
    listed = hubsub("retained", "ls", "lamps/+", "--json", *where)
    assert [json.loads(line)["topic"] for line in listed.stdout.splitlines()] == ["lamps/1", "lamps/2"], (
        listed
    )
    first = hubsub("retained", "ls", "--limit", 1, *where)
    assert "doors/1" in first.stdout and "lamps" not in first.stdout and "--after" in first.stderr
    assert "lamps/1" in hubsub("retained", "show", "lamps/1", *where).stdout
    assert hubsub("retained", "rm", "lamps/1", *where).returncode == 0
    gone = hubsub("retained", "show", "lamps/1", *where)
    assert gone.returncode == 1 and "the topic keeps no message: lamps/1" in gone.stderr
