"""A page that uses Phoenix channels, over the package `websockets` of PyPI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from clients.raw import TIMEOUT_S

JOIN, LEAVE, REPLY, CLOSE, ERROR, GAP = (
    "phx_join",
    "phx_leave",
    "phx_reply",
    "phx_close",
    "phx_error",
    "phx_gap",
)

V1, V2 = "1.0.0", "2.0.0"

OK: list[Any] = ["ok", {}]


class Page:
    """One connection. Messages are `[join_ref, ref, topic, event, payload]` in both versions."""

    def __init__(
        self,
        address: tuple[str, int],
        version: str = V2,
        *,
        subprotocols: Sequence[str] = (),
        origin: str | None = None,
        path: str = "/socket/websocket",
        **params: str,
    ) -> None:
        host, port = address
        self.version = version
        self.stack = ExitStack()
        self.socket: ClientConnection = self.stack.enter_context(
            connect(
                f"ws://{host}:{port}{path}?{urlencode({'vsn': version, **params})}",
                subprotocols=[Subprotocol(name) for name in subprotocols] or None,
                origin=None if origin is None else Origin(origin),
                open_timeout=TIMEOUT_S,
                # A page with unread messages does not get to the server's answer, and closes without it.
                close_timeout=0.5,
                ping_interval=None,
                proxy=None,
                max_size=None,
            )
        )
        self.refs = 0
        self.joins: dict[str, str | None] = {}

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stack.close()

    def ref(self) -> str:
        self.refs += 1
        return str(self.refs)

    def send(self, topic: str, event: str, payload: object = None, join_ref: str | None = None) -> str:
        """Sends a message. Returns its ref."""
        ref = self.ref()
        body = {} if payload is None else payload
        if isinstance(body, bytes):
            fields = [part.encode() for part in (join_ref or "", ref, topic, event)]
            self.socket.send(bytes([0, *map(len, fields)]) + b"".join(fields) + body)
        elif self.version == V1:
            said = {"topic": topic, "event": event, "payload": body, "ref": ref}
            self.socket.send(json.dumps(said))
        else:
            self.socket.send(json.dumps([join_ref, ref, topic, event, body]))
        return ref

    def read(self) -> list[Any]:
        data = self.socket.recv(timeout=TIMEOUT_S)
        if isinstance(data, bytes):
            count = {0: 3, 1: 4, 2: 2}[data[0]]
            fields, at = [], 1 + count
            for length in data[1 : 1 + count]:
                fields.append(data[at : at + length].decode())
                at += length
            join_ref, ref, *rest = {
                0: lambda: [fields[0], None, *fields[1:]],
                1: lambda: [*fields[:3], REPLY],
                2: lambda: [None, None, *fields],
            }[data[0]]()
            return [join_ref, ref, *rest, data[at:]]
        said = json.loads(data)
        return (
            said
            if isinstance(said, list)
            else [None, *(said[k] for k in ("ref", "topic", "event", "payload"))]
        )

    def answer(self, ref: str) -> list[Any]:
        """Status and response of the reply to the message `ref`, which must come next."""
        _, got, _, event, payload = self.read()
        assert (got, event) == (ref, REPLY), (got, event, payload)
        return [payload["status"], payload["response"]]

    def ask(self, topic: str, event: str, payload: object = None, join_ref: str | None = None) -> list[Any]:
        """Sends a message. Returns status and response of its reply, which must come next."""
        return self.answer(self.send(topic, event, payload, join_ref))

    def try_join(self, topic: str, payload: object = None) -> list[Any]:
        """Tries to join. Returns the reply's status and response."""
        join_ref = str(self.refs + 1)
        answer = self.ask(topic, JOIN, payload, join_ref)
        self.joins[topic] = None if self.version == V1 else join_ref
        return answer

    def join(self, topic: str, payload: object = None) -> dict[str, Any]:
        """Joins a topic. Returns the response, which contains the position."""
        status, response = self.try_join(topic, payload)
        assert status == "ok", response
        assert isinstance(response, dict)
        return response

    def push(self, topic: str, event: str, payload: object = None) -> str:
        """Pushes an event on a joined topic. Returns its ref."""
        return self.send(topic, event, payload, self.joins[topic])

    def said(self, topic: str) -> tuple[str, Any]:
        """Event and payload of the next message, which must be a broadcast on that topic."""
        join_ref, ref, got, event, payload = self.read()
        assert (join_ref, ref, got) == (None, None, topic), (join_ref, ref, got, event, payload)
        return event, payload

    def closed(self) -> tuple[int, str]:
        """Code and reason of the close frame, which must come next."""
        try:
            more = self.socket.recv(timeout=TIMEOUT_S)
        except ConnectionClosed as end:
            assert end.rcvd is not None, "it ended without a word"
            return end.rcvd.code, end.rcvd.reason
        raise AssertionError(f"it goes on: {more!r}")
