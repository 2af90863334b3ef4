"""Devices in a cluster: an action or query on one node is known to all nodes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.mqtt import PUBACK, PUBLISH, Wire
from clients.raw import TIMEOUT_S
from clients.servers import until

from cluster.cluster import DEFAULT, Cluster

LOG = {"durability": "durable", "history": {"bytes": "64MiB"}}
FIELD = (
    {"name": "actions", "match": ["devices/+/actions/#"], "room": "devices/+/actions", **LOG},
    {"name": "devices", "match": ["devices/#"], "room": "devices/+", "device": "devices/{device}/#", **LOG},
)
"""Classes whose rooms are placed individually."""
DEVICES = [f"d{i}" for i in range(12)]


def give(cluster: Cluster, node: str, device: str, name: str) -> dict[str, Any]:
    """Creates an action through a node's API."""
    url = f"{cluster.nodes[node].http_url}/v1/devices/{device}/actions"
    request = urllib.request.Request(url, json.dumps({"name": name}).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        assert answer.status == 201
        return dict(json.load(answer))


def test_a_device_of_any_node_is_known_and_told_by_all(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    with Cluster(tmp_path, classes=(*FIELD, DEFAULT), config={"mqtt": "127.0.0.1:0"}) as cluster:
        names = list(cluster.nodes)
        wires = {device: Wire(cluster.nodes[names[i % 3]].mqtt) for i, device in enumerate(DEVICES)}
        for device, wire in wires.items():
            wire.connect(device)
            wire.subscribe((f"devices/{device}/actions/+", 1))
            wire.publish(f"devices/{device}/state", device.encode(), 1, 1)
            wire.read(PUBACK)
        for i, device in enumerate(DEVICES):
            asked, other = names[(i + 1) % 3], names[(i + 2) % 3]
            status, shown = cluster.get(asked, f"/v1/devices/{device}")
            assert (status, shown["connection"]["node"]) == (200, names[i % 3])
            assert shown["state"]["payload"] == device
            given = give(cluster, asked, device, "go")
            action = wires[device].read(PUBLISH)
            assert (action.topic, given["receivers"]) == (f"devices/{device}/actions/go", 1)
            # Its room was just created, through another node.
            status, listed = cluster.get(other, f"/v1/devices/{device}/actions")
            assert [(row["id"], row["state"]) for row in listed["actions"]] == [(given["id"], "queued")]
            wires[device].answer(PUBACK, action.id)
            until(
                lambda node=other, name=device: (
                    [  # type: ignore[misc]
                        row["state"] for row in cluster.get(node, f"/v1/devices/{name}/actions")[1]["actions"]
                    ]
                    == ["delivered"]
                ),
                "all know that it has it",
            )
            wires[device].publish(f"{action.topic}/done", b"ok", 1, 2)
            wires[device].read(PUBACK)
            for name in names:
                (row,) = cluster.get(name, f"/v1/devices/{device}/actions")[1]["actions"]
                assert (row["state"], row["answer"]["publisher"]) == ("acknowledged", device)
        wires.pop("d0").close()
        for name in names:
            until(
                lambda node=name: cluster.get(node, "/v1/devices/d0")[1]["connection"] is None,  # type: ignore[misc]
                "d0 has gone",
            )
            found, after = [], ""
            while after is not None:
                page = cluster.get(name, f"/v1/devices?limit=5&connected=true&after={after}")[1]
                found += [row["id"] for row in page["devices"]]
                after = page["next"]
            assert found == sorted(DEVICES[1:])
        for wire in wires.values():
            wire.close()
