"""A page without WebSockets: Phoenix's channels by long poll."""

from __future__ import annotations

import http.client
import json
from contextlib import ExitStack
from typing import Any

from clients.phoenix import JOIN, REPLY
from clients.raw import TIMEOUT_S


class Poller:
    """A page that polls. Each request has its own connection, which any shard may get, or all share one
    (`stays`)."""

    def __init__(self, address: tuple[str, int], query: str = "vsn=2.0.0", *, stays: bool = False) -> None:
        self.address = address
        self.query = query
        self.stack = ExitStack()
        self.stays = stays
        self.connection: http.client.HTTPConnection | None = None
        self.came: list[list[Any]] = []
        begun = self.get(token="")
        assert begun["status"] == 410, begun
        self.token: str = begun["token"]

    def __enter__(self) -> Poller:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def ask(
        self, method: str, token: str | None = None, body: str | bytes | None = None, **fields: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Sends a request. Returns the response and its whole body."""
        connection = self.connection
        if connection is None:
            connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
            self.stack.callback(connection.close)
            if self.stays:
                self.connection = connection
        own = self.token if token is None else token
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        connection.request(method, f"/socket/longpoll?{self.query}&token={own}", body, headers)
        answer = connection.getresponse()
        return answer, answer.read()

    def get(self, token: str | None = None) -> dict[str, Any]:
        """The response to a poll, as JSON."""
        answer, body = self.ask("GET", token)
        assert answer.status == 200
        found: dict[str, Any] = json.loads(body)
        return found

    def post(self, *messages: list[Any] | str) -> int:
        """Sends messages as lines of JSON or of base64. Returns the status."""
        lines = [said if isinstance(said, str) else json.dumps(said) for said in messages]
        answer, body = self.ask("POST", body="\n".join(lines), Content_Type="application/x-ndjson")
        assert answer.status == 200
        status: int = json.loads(body)["status"]
        return status

    def read(self) -> list[Any]:
        """The next message, however many polls it takes."""
        while not self.came:
            found = self.get()
            assert found["status"] in (200, 204) and found["token"] == self.token, found
            assert (found["status"] == 204) == (found["messages"] == [])
            self.came = [json.loads(text) for text in found["messages"]]
        return self.came.pop(0)

    def join(self, topic: str, payload: object = None) -> dict[str, Any]:
        """Joins a topic. Returns the response, which contains the position."""
        assert self.post(["1", "1", topic, JOIN, payload or {}]) == 200
        *_, event, answer = self.read()
        assert (event, answer["status"]) == (REPLY, "ok"), answer
        response: dict[str, Any] = answer["response"]
        return response
