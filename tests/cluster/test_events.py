"""Event streams on the nodes of one cluster: any node serves every room, and resumes a stream of another
node."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from clients.events import Stream

from cluster.cluster import DEFAULT, Cluster

CHAT = {"name": "talk", "match": ["talk/#"], "placement": "ring", "history": {"messages": 10_000}}
ROOMS = [f"talk/{i}" for i in range(6)]


def test_a_stream_of_any_node_goes_on_at_any_other(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=(CHAT, DEFAULT), config={"ws": "127.0.0.1:0"}) as cluster:
        cluster.settled()
        nodes = cluster.nodes
        with ExitStack() as stack:
            redis = stack.enter_context(cluster.connect("b"))
            for room in ROOMS:
                streams = [stack.enter_context(Stream(node.ws, room)) for node in nodes.values()]
                for stream in streams:
                    stream.place()
                for n in range(3):
                    redis.ask("PUBLISH", room, json.dumps({"n": n}))
                for stream in streams:
                    assert [stream.event() for _ in range(3)] == [("message", {"n": n}) for n in range(3)]
                (last,) = {stream.last_id for stream in streams}
                redis.ask("PUBLISH", room, json.dumps({"n": 3}))
                for node in nodes.values():
                    again = stack.enter_context(Stream(node.ws, room, Last_Event_ID=last))
                    assert again.event() == ("message", {"n": 3}), "nothing twice, nothing missing"
