"""Room records are bounded: a client that would create one too many gets an error, and the cluster keeps
working."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.mqtt import PUBACK, V5, Wire
from clients.phoenix import Page
from clients.raw import TIMEOUT_S, Frame
from clients.servers import until

from cluster.cluster import BUSY, DEFAULT, NAMES, Cluster

pytestmark = pytest.mark.needs("hubsub-core")

LONG = {**BUSY, "name": "long", "match": ["long:*"]}
ROOMS, RECORDS_BYTES = 4, 8_192
LIMITS = {"placed_rooms_class_max": ROOMS, "room_records_bytes_max": RECORDS_BYTES}
LISTENERS = {"mqtt": "127.0.0.1:0", "ws": "127.0.0.1:0"}
SETTINGS = (
    b"rooms_max, room_names_bytes_max, in a cluster also placed_rooms_class_max, room_records_bytes_max"
)
FULL = Frame("-", b"ERR max number of rooms reached; hint: " + SETTINGS)
QUOTA_EXCEEDED = 0x97


def metrics(cluster: Cluster, start: str) -> int:
    """Sum over all nodes of the samples with this prefix."""
    total = 0
    for node in cluster.nodes.values():
        with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=TIMEOUT_S) as page:
            lines = page.read().decode().splitlines()
        total += sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(start))
    return total


def refused(limit: str) -> str:
    return f'hubsub_room_records_refused_total{{limit="{limit}"}}'


def test_one_room_too_many_is_refused_to_clients_of_all_protocols_and_failover_goes_on(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("hubsub-core")
    config: dict[str, Any] = {**LISTENERS, "phoenix": {"topics": ["busy:*"]}}
    with Cluster(tmp_path, classes=[LONG, BUSY, DEFAULT], limits=LIMITS, config=config) as cluster:
        cluster.settled()
        rooms = [f"busy:{number}" for number in range(ROOMS)]
        leaders = {room: cluster.leader_of(room, by) for room, by in zip(rooms, "abca", strict=True)}
        for name in NAMES:
            with cluster.connect(name) as client, Wire(cluster.nodes[name].mqtt) as device:
                # A lookup creates no room, and is never refused.
                address = cluster.addresses[name]["redis"].encode()
                assert client.ask("HUBSUB", "LOCATE", "busy:more") == [[name.encode(), address]]
                assert client.call("PUBLISH", "busy:more", "x") == FULL
                assert client.call("SUBSCRIBE", "busy:more") == FULL
                device.connect(f"device-{name}", version=V5)
                assert device.subscribe(("busy:more", 1)) == [QUOTA_EXCEEDED]
                device.publish("busy:more", b"x", 1, 7)
                assert device.read(PUBACK).rest[0] == QUOTA_EXCEEDED
            with Page(cluster.nodes[name].ws) as page:
                status, reason = page.try_join("busy:more")
                assert status == "error" and "max number of rooms" in repr(reason)
            code, answer = cluster.post(name, "/v1/rooms/busy:more")
            assert (code, answer["code"]) == (503, "too_many_rooms")
        assert metrics(cluster, refused("placed_rooms_class_max")) >= 15
        assert metrics(cluster, refused("room_records_bytes_max")) == 0
        assert metrics(cluster, 'hubsub_room_records{class="busy"}') == 3 * ROOMS, "each node knows of all"

        # Another class has a limit of its own, until the records of all classes reach the limit in bytes.
        taken = 0
        with cluster.connect("b") as client:
            while taken < 100 and client.call("PUBLISH", f"long:{taken}:{'x' * 3_000}", "x") != FULL:
                taken += 1
            assert 0 < taken < ROOMS and client.ask("PUBLISH", "busy:0", "x") == 0
        assert metrics(cluster, refused("room_records_bytes_max")) > 0
        assert metrics(cluster, "hubsub_room_records_bytes ") <= 3 * RECORDS_BYTES

        # The controller can still write: it replaces the dead node as leader.
        cluster.kill(leaders[rooms[0]])
        name = next(iter(cluster.nodes))
        with cluster.connect(name) as client:
            until(lambda: client.ask("PUBLISH", rooms[0], "x") == 0)
            assert client.call("PUBLISH", "busy:more", "x") == FULL
