"""The console's event stream over a real socket: its events and its end."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from clients.raw import TIMEOUT_S, Connection

from hubsub.config import split_address
from hubsub.testing import Node

pytestmark = pytest.mark.needs("hubsub-core")

CHAT = {"name": "chat", "match": ["chat:*"], "history": {"messages": 1_000}}
FORGETS = {"name": "forgets", "match": ["forgets:*"]}


def listen(node: Node, query: str = "") -> tuple[http.client.HTTPConnection, Iterator[tuple[str, Any]]]:
    """The connection, and the events as they arrive."""
    connection = http.client.HTTPConnection(*split_address(node.ready["http"]), timeout=TIMEOUT_S)
    connection.request("GET", f"/v1/console/events{query}")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")

    def events() -> Iterator[tuple[str, Any]]:
        name = ""
        # A broken stream would raise here.
        for line in answer:
            kind, _, rest = line.decode().rstrip("\n").partition(": ")
            if kind == "event":
                name = rest
            elif kind == "data":
                yield name, json.loads(rest)

    return connection, events()


def tails(events: Iterator[tuple[str, Any]]) -> Iterator[Any]:
    return (body for name, body in events if name == "tail")


def test_each_record_comes_once_and_in_order_with_the_room_that_it_is_in(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(classes=[CHAT])
    with Connection(*node.redis) as client:
        client.ask("PUBLISH", "chat:a", "0")
        connection, events = listen(node, "?room=chat:a")
        with closing(connection):
            published, seen = 1, []
            for tail in tails(events):
                seen += [record["payload"] for record in tail["records"]]
                assert seen == [str(i) for i in range(len(seen))]
                if len(seen) == 40:
                    break
                for i in range(published, min(published + 13, 40)):
                    client.ask("PUBLISH", "chat:a", str(i))
                published = min(published + 13, 40)
            assert tail["room"]["seq"] == 40


def test_a_room_that_keeps_nothing_says_so(make_node: Callable[..., Node]) -> None:
    node = make_node(classes=[FORGETS])
    with Connection(*node.redis) as client:
        client.ask("SUBSCRIBE", "forgets:a")
        connection, events = listen(node, "?room=forgets:a")
        with closing(connection):
            tail = next(tails(events))
    assert tail["kept"] is False and tail["records"] == [] and tail["room"]["subscribers"] == 1


def test_a_node_that_stops_ends_its_events_and_waits_for_no_page(make_node: Callable[..., Node]) -> None:
    node = make_node()
    connection, events = listen(node)
    with closing(connection):
        assert next(body for name, body in events if name == "nodes")["missing"] == []
        node.process.send_signal(signal.SIGTERM)
        for _ in events:
            pass
    assert node.stop() == 0
    assert not [event for event in node.events if event["level"] in ("error", "critical")]
