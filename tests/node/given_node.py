"""The program of `node.given.Given`: a node that receives its hubs, and all other calls, as lines of its
input.

A line is `{"n": …, "call": …, "args": […]}`. Its response is `{"n": …, "answer": …}` or `{"n": …, "code": …,
"message": …}`, written in order of completion. The program ends when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import msgspec
import pyarrow.ipc
import structlog

from hubsub.config import resolve
from hubsub.errors import HubSubError
from hubsub.node import Cluster, Node


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def offsets(node: Node, hub: int) -> list[int]:
    """The offsets in a stream of a hub's records."""
    scan = {"hub": hub, "from": None, "until": None, "since_us": 0, "until_us": None, "columns": ["offset"]}
    filters = {"rooms": [], "topics": [], "devices": [], "room_patterns": [], "topic_filters": []}
    sizes = {
        "room_prefix": b"",
        "topic_prefix": b"",
        "lz4": False,
        "batch_rows": 1000,
        "batch_bytes": 100_000,
    }
    records = await node.open_records(scan | filters | sizes)
    stream = b"".join([chunk async for chunk in records])
    read: list[int] = pyarrow.ipc.open_stream(stream).read_all()["offset"].to_pylist()
    return read


async def call(node: Node, line: str) -> None:
    request = json.loads(line)
    try:
        match request["call"]:
            case "open_hub":
                answer: Any = msgspec.to_builtins(await node.open_hub(*request["args"]))
            case "close_hub":
                answer = await node.close_hub(*request["args"])
            case "offsets":
                answer = await offsets(node, *request["args"])
            case "log":
                answer = msgspec.to_builtins(node.log())
            case other:
                raise AssertionError(other)
    except HubSubError as error:
        say({"n": request["n"], "code": error.code, "message": error.message})
    else:
        say({"n": request["n"], "answer": answer})


async def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    options = json.loads(sys.argv[1])
    cluster = Cluster(*options["cluster"]) if options["cluster"] else None
    try:
        node = Node(resolve(options["config"], {}, {}), cluster)
        say(await node.start())
    except HubSubError as error:
        say({"error": str(error)})
        return
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    calls = set()
    while line := await reader.readline():
        calls.add(asyncio.create_task(call(node, line.decode())))
    with contextlib.suppress(HubSubError):
        await asyncio.gather(*calls)
    await node.stop()


asyncio.run(main())
