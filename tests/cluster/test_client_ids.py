"""A client id has one connection in the whole cluster, on whichever nodes clients connect."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from clients.mqtt import CONNACK, DISCONNECT, V5, V311, Wire
from clients.mqtt_sessions import resume
from clients.servers import until

from cluster.cluster import DEFAULT, Cluster

TAKEN_OVER = 0x8E
CLIENTS = 60


def test_one_connection_has_a_client_id_on_all_nodes_together(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits = {"mqtt_takeover_ms": 400}
    config = {"mqtt": "127.0.0.1:0"}
    with Cluster(tmp_path, classes=[DEFAULT], limits=limits, config=config) as cluster, ExitStack() as stack:

        def connect(name: str, client_id: str, version: int = V5) -> Wire:
            wire = stack.enter_context(Wire(cluster.nodes[name].mqtt))
            answer = wire.connect(client_id, version)
            assert answer.kind == CONNACK and answer.body[1] == 0, answer
            return wire

        # From node to node, and again to the same node.
        before = connect("a", "lamp/1 %")
        for name, version in (("b", V5), ("c", V5), ("c", V5), ("a", V311), ("b", V5)):
            after = connect(name, "lamp/1 %", version)
            told = before.read_all()
            assert [(one.kind, one.body[:1]) for one in told] == (
                [(DISCONNECT, bytes([TAKEN_OVER]))] if before.version == V5 else []
            )
            after.ping()
            after.read()
            before = after
        # A client with another id is not affected, and a closed client frees its id.
        other = connect("c", "lamp/2")
        before.close()
        connect("c", "lamp/1 %").ping()

        # All at once: in the end one of them remains.
        with ThreadPoolExecutor(CLIENTS) as threads:
            wires = list(threads.map(lambda number: connect("abc"[number % 3], "rush"), range(CLIENTS)))

        def connected(client_id: str) -> int:
            return sum(row["name"] == client_id for row in cluster.get("a", "/v1/clients")[1]["clients"])

        until(lambda: connected("rush") <= 1)
        last = connect("b", "rush")
        for wire in wires:
            told = wire.read_all()
            assert [(one.kind, one.body[:1]) for one in told] == [(DISCONNECT, bytes([TAKEN_OVER]))]
        last.ping()
        last.read()

        # A session follows its client, and is on one node.
        def come(name: str) -> bool:
            wire = stack.enter_context(Wire(cluster.nodes[name].mqtt))
            present = resume(wire, "kept")
            assert wire.subscribe(("a", 1)) == [1]
            wire.send(b"\xe0\x00")
            assert wire.read_all() == []
            return present

        def homes() -> list[str]:
            return [row["node"] for row in cluster.get("a", "/v1/sessions")[1]["sessions"]]

        for name, present in (("a", False), ("a", True), ("b", True), ("b", True), ("a", True)):
            assert come(name) == present
            until(lambda name=name: homes() == [name])

        # Do not wait for an unresponsive node: it is halted, not dead.
        other.ping()
        other.read()
        halted = cluster.nodes["c"].process
        halted.send_signal(signal.SIGSTOP)
        try:
            connect("a", "lamp/2").ping()
        finally:
            halted.send_signal(signal.SIGCONT)
        assert [one.kind for one in other.read_all()] == [DISCONNECT], "it hears of it later"

        # The client ids of a dead node are free.
        connect("c", "lamp/3")
        cluster.kill("c")
        connect("b", "lamp/3").ping()
