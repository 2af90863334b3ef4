"""The origins whose pages a node serves: docs/adr/0018-a-page-is-known-by-its-origin.md."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from clients.events import Stream
from clients.longpoll import Poller
from clients.phoenix import JOIN, Page
from clients.raw import TIMEOUT_S
from clients.servers import Server, hubsub_node, until

from hubsub.config import split_address

EVENTS = "/v1/rooms/chat%3A1/events"
POLL = "/socket/longpoll?vsn=2.0.0"
SOCKET = "/socket/websocket?vsn=2.0.0"
ROOMS = "/v1/rooms"
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""Requests of a browser, which sends its origin."""


@pytest.fixture(scope="module")
def server(needs: Callable[..., None]) -> Iterator[Server]:
    """A node with host names and allowed page origins."""
    needs("hubsub-core")
    config = {
        "ws": "127.0.0.1:0",
        "ws_origins": ["https://chat.example"],
        "hosts": ["hub.example"],
    }
    with hubsub_node(2, config) as server:
        yield server


def asked(server: Server, method: str, path: str, **fields: str) -> tuple[int, dict[str, Any]]:
    """Status of a response, and its error if it has one."""
    assert server.node is not None
    rest = path.startswith(ROOMS) and path != EVENTS
    address = split_address(server.node.ready["http"]) if rest else server.node.ws
    with closing(http.client.HTTPConnection(*address, timeout=TIMEOUT_S)) as connection:
        connection.putrequest(method, path, skip_host="Host" in fields)
        for name, value in (UPGRADE if path == SOCKET else {}).items():
            connection.putheader(name, value)
        for name, value in fields.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        if answer.status < 400:
            return answer.status, {}
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("path", [EVENTS, POLL, ROOMS])
def test_a_name_that_a_stranger_may_have_turned_to_this_node_is_not_served(server: Server, path: str) -> None:
    for host in ("evil.example", "evil.example:4000", "127.0.0.1.evil.example", "hub.example.evil.example"):
        status, error = asked(server, "GET", path, Host=host)
        assert (status, error["code"], error["hint"]) == (403, "not_allowed", "hosts"), host
    for host in ("127.0.0.1", "[::1]:4000", "localhost:4000", "n1", "hub.example:80", "HUB.example"):
        assert asked(server, "GET", path, Host=host)[0] == 200, host
    assert asked(server, "GET", path)[0] == 200


def test_the_name_of_a_page_that_is_listed_is_one_of_the_nodes_where_it_is_listed(server: Server) -> None:
    for path in (EVENTS, POLL):
        assert asked(server, "GET", path, Host="chat.example")[0] == 200
    assert asked(server, "GET", ROOMS, Host="chat.example")[0] == 403, "its pages may not administer the node"


def test_programs_open_websockets_by_any_name_and_pages_by_their_origin(server: Server) -> None:
    assert asked(server, "GET", SOCKET, Host="evil.example")[0] == 101, "browsers say an origin with these"
    status, error = asked(server, "GET", SOCKET, Host="evil.example", Origin="http://evil.example")
    assert (status, error["code"], error["hint"]) == (403, "not_allowed", "ws_origins")


def test_a_page_of_another_origin_may_not_change_what_it_cannot_read(server: Server) -> None:
    assert server.node is not None
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://chat.example", "http://["):
        for method, path in (("GET", ROOMS), ("PUT", f"{ROOMS}/a"), ("POST", "/v1/rooms/a/move")):
            status, error = asked(server, method, path, Origin=origin)
            assert (status, error["code"], error["hint"]) == (403, "not_allowed", "hosts"), origin
    own = server.node.http_url
    assert asked(server, "PUT", f"{ROOMS}/a", Origin="https://evil.example")[0] == 403
    assert asked(server, "GET", ROOMS, Origin=own)[0] == 200, "as the console's own pages"
    assert asked(server, "GET", ROOMS, Origin="https://hub.example")[0] == 200, (
        "through what stands before it"
    )


@pytest.mark.parametrize(
    ("path", "who", "hint"),
    [
        (SOCKET, {"Origin": "http://one.example"}, "ws_origins"),
        (EVENTS, {"Origin": "http://two.example"}, "ws_origins"),
        (POLL, {"Host": "three.example"}, "hosts"),
        (ROOMS, {"Origin": "http://four.example"}, "hosts"),
        (ROOMS, {"Host": "five.example"}, "hosts"),
    ],
)
def test_who_is_not_welcome_is_logged_with_what_to_do_and_the_log_is_not_flooded(
    server: Server, path: str, who: dict[str, str], hint: str
) -> None:
    [value] = who.values()

    def lines() -> list[str]:
        return server.log_lines("page refused", value, f'"hint": "{hint}"')

    def is_logged() -> bool:
        # The node logs only the first refusal within a second, which may be another test's.
        return asked(server, "GET", path, **who)[0] == 403 and bool(lines())

    until(is_logged)
    before, refused = len(lines()), server.metric("origins_refused_total")
    for _ in range(50):
        assert asked(server, "GET", path, **who)[0] == 403
    assert len(lines()) - before < 25
    if path != ROOMS:
        until(lambda: server.metric("origins_refused_total") == refused + 50)


# --- topics that pages may read


@pytest.fixture(scope="module")
def reticent(needs: Callable[..., None]) -> Iterator[Server]:
    """A node that lets pages read few of its topics."""
    needs("hubsub-core")
    fleet = {"name": "fleet", "match": ["fleet/#"], "room": "fleet/+"}
    config = {"ws": "127.0.0.1:0", "phoenix": {"topics": ["chat:*", "fleet/+/at", "$*"]}}
    with hubsub_node(2, config, classes=[fleet]) as server:
        yield server


def by_events(address: tuple[str, int], topic: str) -> bool:
    with Stream(address, topic) as one:
        assert one.status in (200, 403)
        return one.status == 200


def by_socket(address: tuple[str, int], topic: str, payload: object = None) -> bool:
    with Page(address) as one:
        return bool(one.try_join(topic, payload)[0] == "ok")


def by_long_poll(address: tuple[str, int], topic: str, payload: object = None) -> bool:
    with Poller(address) as one:
        assert one.post(["1", "1", topic, JOIN, payload or {}]) == 200
        return bool(one.read()[4]["status"] == "ok")


LOOKS = {"presence": True}
IS_THERE = {"presence": {"key": "ann"}}


@pytest.mark.parametrize(
    ("topic", "is_open", "shows_members"),
    [
        ("chat:1", True, True),
        ("chat:{chat:2}", True, True),
        # The tag names a room that pages may not join, so its members are hidden even from a page that spells
        # it.
        ("chat:{secret}", True, False),
        # A class maps this topic to a room whose name pages may not join.
        ("fleet/7/at", True, True),
        ("fleet/7", False, False),
        ("secret", False, False),
        ("CHAT:1", False, False),
        # These names match but belong to the node.
        ("$system/x", False, False),
        ("$members/chat:1", False, False),
        ("chat:{$members/chat:1}", False, False),
    ],
)
def test_a_topic_is_hidden_from_pages_in_every_way_or_in_none(
    reticent: Server, topic: str, is_open: bool, shows_members: bool
) -> None:
    assert reticent.node is not None
    address = reticent.node.ws
    assert [by(address, topic) for by in (by_events, by_socket, by_long_poll)] == [is_open] * 3
    for payload in (LOOKS, IS_THERE):
        assert [by(address, topic, payload) for by in (by_socket, by_long_poll)] == [shows_members] * 2
