"""Rooms are moved, or are not, as any node is asked; and found by all."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

import pytest
from clients.raw import TIMEOUT_S

from cluster.cluster import NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")


def move(cluster: Cluster, by: str, room: str, to: str | None) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the answer of a node that is asked to move a room."""
    url = f"{cluster.nodes[by].http_url}/v1/rooms/{quote(room, safe='')}/move"
    request = urllib.request.Request(url, json.dumps({"to": to}).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_what_cannot_be_moved_is_refused_with_a_reason_and_that_is_listed(three: Cluster) -> None:
    leader = three.leaders("a", "logged")[0]
    for room, to, text in [
        ("log:stays", leader, "a room with a log cannot be moved yet: class logged"),
        ("chat:stays", "nobody", "the node leads no hub of the room's class: nobody, class chat"),
        ("busy:stays", None, "a room without a ring must go somewhere"),
    ]:
        code, answer = move(three, "b", room, to)
        assert (code, answer["code"], answer["message"]) == (409, "room_move", text)
        assert room == "log:stays" or answer["hint"]
        rows = three.get("c", "/v1/moves")[1]["moves"]
        assert (rows[-1]["room"], rows[-1]["result"], rows[-1]["reason"]) == (room, "refused", text)


def test_a_room_is_found_or_placed_by_any_node_and_one_that_is_not_is_an_error(three: Cluster) -> None:
    for name in NAMES:
        for prefix in ("chat:", "busy:"):
            room = f"{prefix}asked-{name}"
            code, answer = three.get(name, f"/v1/rooms/{room}")
            assert (code, answer["code"]) == (404, "no_such_room") and answer["hint"]
            code, answer = three.get(name, f"/v1/rooms/{room}?create=true")
            assert code == 200, answer
            leader = answer["nodes"][0]
            assert leader["name"] == three.leader_of(room)
            assert {key: leader[key] for key in ("redis", "http")} == {
                key: three.addresses[leader["name"]][key] for key in ("redis", "http")
            }
            with three.connect(name) as client:
                located = client.ask("HUBSUB", "LOCATE", room)
            assert located == [[row["name"].encode(), row["redis"].encode()] for row in answer["nodes"]]
