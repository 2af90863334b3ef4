"""SIGHUP: a changeable limit takes effect; for any other the node logs a warning and keeps the old value
until the next start."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from clients.servers import Server, until

from hubsub.config.render import toml

Start = Callable[..., Server]


def logged(server: Server, event: str) -> list[dict[str, Any]]:
    """The events of this name in the node's log, in order."""
    assert server.node
    return [entry for entry in server.node.events if entry["event"] == event]


def reload(server: Server, **limits: Any) -> dict[str, Any]:
    """Gives a one-shard node new limits, waits until it has applied them, and returns the log event."""
    assert server.node
    before = len(logged(server, "configuration reloaded"))
    table = {"redis": "127.0.0.1:0", "http": "127.0.0.1:0", "shards": 1, "limits": limits}
    server.node.config_file.write_text(toml(table))
    server.node.process.send_signal(signal.SIGHUP)
    return until(lambda: logged(server, "configuration reloaded")[before:], "a reload")[-1]


def test_limits_that_can_change_hold_for_clients_that_are_there(start: Start) -> None:
    server = start(1)
    with server.connect() as client:
        assert client.ask("PUBLISH", "x" * 100, "y") == 0
        pooled = until(lambda: server.metric("pool_bytes"))
        reload(server, topic_bytes_max=99, pool_bytes_max=0)
        assert (
            client.call("PUBLISH", "x" * 100, "y").value
            == b"ERR topic length is out of range; hint: topic_bytes_max"
        )
        until(lambda: server.metric("pool_bytes") < pooled, "idle output is freed")
        reload(server)
        assert client.ask("PUBLISH", "x" * 100, "y") == 0


def test_a_lower_limit_on_http_connections_holds_for_the_next_one(start: Start) -> None:
    server = start(1)
    assert server.node
    address = urlsplit(server.node.http_url).netloc
    first, second = (http.client.HTTPConnection(address, timeout=30) for _ in range(2))

    def status(connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert status(first) == 200
    assert reload(server, http_connections_max=1)["limits"] == {"http_connections_max": 1}
    assert (status(second), status(first)) == (503, 200)
    for connection in (first, second):
        connection.close()
    third, fourth = (http.client.HTTPConnection(address, timeout=30) for _ in range(2))
    until(lambda: status(third) == 200 or third.close(), "the one connection that there may be")
    assert status(fourth) == 503
    reload(server, http_connections_max=2)
    fourth.close()
    until(lambda: status(fourth) == 200 or fourth.close(), "the second of two")
    for connection in (third, fourth):
        connection.close()


def test_limits_that_hold_from_the_start_say_so_and_stay(start: Start) -> None:
    server = start(1, limits={"route_cache_topics_max": 100})
    entry = reload(server, route_cache_topics_max=50_000, mailbox_bytes_max="1MiB", rooms_max=7)
    assert entry["limits"] == {"rooms_max": 7}
    line = until(lambda: logged(server, "takes effect at the next start"), "a warning")[0]
    assert line["level"] == "warning"
    assert line["keys"] == ["limits.mailbox_bytes_max", "limits.route_cache_topics_max"]
    with server.connect() as client:
        for n in range(1_000):
            client.command("PUBLISH", f"t{n}", "x")
        client.read_many(1_000)
    until(lambda: 0 < server.metric("topics") <= 100, "the routes of the old limit")
