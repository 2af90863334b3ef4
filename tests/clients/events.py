"""A stream of server-sent events, parsed by the rules of HTML, section 9.2, line by line off a socket."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from clients.raw import TIMEOUT_S


class Stream:
    """A request for the events of a room, and its response."""

    def __init__(self, address: tuple[str, int], room: str | bytes, query: str = "", **fields: str) -> None:
        self.stack = ExitStack()
        self.socket = self.stack.enter_context(socket.create_connection(address, TIMEOUT_S))
        lines = [f"GET /v1/rooms/{quote(room, safe='')}/events{query} HTTP/1.1", f"Host: {address[0]}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.lines = self.stack.enter_context(self.socket.makefile("rb"))
        self.status = int(self.lines.readline().split()[1])
        head = iter(self.lines.readline, b"\r\n")
        self.fields = {
            name.lower(): value.strip() for name, _, value in (line.decode().partition(":") for line in head)
        }
        self.last_id = ""
        """The Last-Event-ID that a browser sends when it reconnects."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def error(self) -> dict[str, Any]:
        """The body of an error response."""
        body: dict[str, Any] = json.loads(self.lines.read())
        return body

    def block(self) -> tuple[str, str]:
        """The next block, as (event, data). A position has neither, a comment has the event `:`."""
        event, data = "", []
        while True:
            line = self.lines.readline().decode()
            assert line.endswith("\n"), f"the stream ended: {line!r}"
            name, _, value = line.rstrip("\n").partition(":")
            value = value.removeprefix(" ")
            if not line.strip():
                return event, "\n".join(data)
            if not name:
                event = ":"
            elif name == "id":
                self.last_id = value
            elif name == "event":
                event = value
            else:
                assert name == "data", line
                data.append(value)

    def place(self) -> str:
        """The stream's position, which the next block contains."""
        assert self.block() == ("", "")
        return self.last_id

    def event(self) -> tuple[str, Any]:
        """The next event, and its data as JSON."""
        event, data = self.block()
        return event, json.loads(data)
