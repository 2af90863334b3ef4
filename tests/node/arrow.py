"""Reads hub records over HTTP as Arrow, and looks up the offsets of published records."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
from clients.servers import TIMEOUT_S, Server

Query = dict[str, Any]


class Refused(NamedTuple):
    """An HTTP response with a status of 400 or above."""

    status: int
    body: dict[str, Any]

    @property
    def code(self) -> str:
        return str(self.body["code"])


def path(hub: str | int, **query: Any) -> str:
    """The URL path of a record range. `from_` means `from`; a list repeats the parameter."""
    given = {key.rstrip("_"): value for key, value in query.items()}
    return f"/v1/hubs/{hub}/records?{urlencode(given, doseq=True)}"


def fetch(server: Server, hub: str | int, **query: Any) -> pa.Table:
    """The records of a range, as an Arrow table."""
    return pa.ipc.open_stream(server.get(path(hub, **query))).read_all()


def refusal(server: Server, where: str) -> Refused:
    """The error response of a GET that must fail."""
    try:
        server.get(where)
    except urllib.error.HTTPError as error:
        with error:
            return Refused(error.code, json.loads(error.read()))
    raise AssertionError(f"it was answered: {where}")


def log(server: Server, **query: Any) -> dict[str, Any]:
    """The response of /v1/log."""
    answer: dict[str, Any] = json.loads(server.get(f"/v1/log?{urlencode(query, doseq=True)}"))
    return answer


def hub(server: Server, name: str) -> dict[str, Any]:
    """The entry of a hub in /v1/log."""
    found: dict[str, Any] = next(row for row in log(server)["hubs"] if row["name"] == name)
    return found


def offset(server: Server, hub: str, timestamp_us: int) -> int:
    """The offset in a hub at which records from a time on begin.

    Args:
        server: The node.
        hub: The hub's name.
        timestamp_us: Microseconds since 1970.
    """
    answer = json.loads(server.get(f"/v1/hubs/{hub}/offset?timestamp_us={timestamp_us}"))
    return int(answer["offset"])


def post(server: Server, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Publishes records over HTTP; returns one result per record, in order."""
    assert server.node
    body = json.dumps({"records": records}).encode()
    request = urllib.request.Request(f"{server.node.http_url}/v1/publish", body, method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        results: list[dict[str, Any]] = json.loads(answer.read())["results"]
    return results


def connection(server: Server) -> http.client.HTTPConnection:
    """An HTTP connection to the node's API."""
    assert server.node
    return http.client.HTTPConnection(server.node.http_url.removeprefix("http://"), timeout=TIMEOUT_S)
