"""Each node of a cluster publishes its own values of `$SYS`, and a client receives those of all nodes from
any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clients.mqtt import CONNACK, PUBLISH, Wire

from cluster.cluster import DEFAULT, Cluster


def test_a_client_of_any_node_hears_what_each_says_of_itself(
    needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("hubsub-core")
    limits, config = {"sys_interval_ms": 50}, {"mqtt": "127.0.0.1:0"}
    wanted = {f"$SYS/broker/{name}/clients/connected": str(number) for number, name in enumerate("abc")}
    with Cluster(tmp_path, classes=[DEFAULT], limits=limits, config=config) as cluster:
        clients = [Wire(cluster.nodes[name].mqtt) for name in ("b", "c", "c")]
        for number, client in enumerate(clients):
            assert client.connect(f"client-{number}").kind == CONNACK
        listener = clients[-1]
        assert listener.subscribe(("$SYS/broker/+/clients/connected", 0)) == [0]
        heard: dict[str, str] = {}
        while heard != wanted:
            message = listener.read(PUBLISH)
            heard[message.topic] = message.rest.decode()
        for client in clients:
            client.close()
