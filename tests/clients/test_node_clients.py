"""ioredis, node-redis and socket.io's Redis adapter, unmodified, under node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.raw import TIMEOUT_S
from clients.servers import Server

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent


def run(script: str, server: Server, *arguments: object) -> dict[str, Any]:
    """Runs a script under node. Returns the JSON object that it printed."""
    if not (HERE / "node_modules").is_dir():
        pytest.skip("needs tests/clients/node_modules")
    command = ["node", str(HERE / script), server.host, str(server.port), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize("protocol", [2, 3])
def test_ioredis(server: Server, protocol: int) -> None:
    assert run("ioredis.mjs", server, protocol) == {
        "subscribed": 2,
        "psubscribed": 3,
        "counts": [2, 1, 0, 2],
        "messages": [["one", "hello"], ["two", "ünï"], ["one", "again"]],
        "patterns": [["on?", "one", "hello"], ["on?", "one", "again"]],
        "ping": "PONG" if protocol == 3 else "pong,",
        "numsub": ["one", 1, "none", 0],
        "unsubscribed": 2,
        "ssubscribed": 1,
        "spublished": 1,
        "smessages": [["{s}one", "hi"]],
        "pipelined": True,
        "ordered": True,
        "transaction": [[None, 1], [None, 0]],
        "error": "ERR unknown command 'NOSUCH', with args beginning with: 'a' ",
        "name": "me",
        "killed": 1,
        "back": [["two", "back"]],
    }


@pytest.mark.parametrize("protocol", [2, 3])
def test_node_redis(server: Server, protocol: int) -> None:
    assert run("node_redis.mjs", server, protocol) == {
        "counts": [2, 1, 0, 2],
        "spublished": 1,
        "messages": [["hello", "one"], ["ünï", "two"], ["again", "one"]],
        "patterns": [["hello", "one"], ["again", "one"]],
        "smessages": [["hi", "{s}one"]],
        "numsub": {"one": 1, "none": 0},
        "channels": ["one", "two"],
        "afterUnsubscribe": 1,
        "pipelined": True,
        "ordered": True,
        "transaction": [1, 0],
        "error": "ERR unknown command 'NOSUCH', with args beginning with: 'a' ",
        "name": "me",
        "echo": "x",
        "afterAll": "PONG",
    }


@pytest.mark.parametrize("adapter", ["classic", "sharded"])
@pytest.mark.parametrize("library", ["ioredis", "node-redis"])
def test_the_adapter_of_socket_io(server: Server, library: str, adapter: str) -> None:
    assert run("socketio.mjs", server, library, adapter) == {
        "servers": 2,
        "everyone": [["all", {"deep": [1, 2]}, "00ff"]] * 2,
        "room": ["for the room"],
        "sockets": 2,
        "socketsInRoom": [True],
        "serverSide": ["b heard a"],
        "acked": [2],
        "disconnected": "io server disconnect",
        "wrong": False,
    }
