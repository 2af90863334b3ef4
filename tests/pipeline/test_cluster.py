"""Spark over three nodes: a whole cluster is one source and one sink, whichever node you name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
from clients.servers import until
from cluster.cluster import CHAT, LOGGED, NAMES, Cluster

from hubsub import BlockingClient
from hubsub.cli import demo
from hubsub.pipeline.archive import open_table

CLASSES = (
    LOGGED | {"match": ["chat:*", "copy:*"]},
    LOGGED | {"name": "devices", "match": ["devices/#"], "device": "devices/{device}/#"},
    CHAT | {"match": ["memory:*"]},
)
EVENTS = 3_000


@pytest.fixture(scope="module")
def cluster(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes. A chat log was published to rooms `chat:*` through all of them, and devices have published
    states."""
    needs("hubsub-core")
    with Cluster(tmp_path_factory.mktemp("cluster"), classes=CLASSES) as cluster:
        clients = [BlockingClient(cluster.nodes[name].redis_url) for name in NAMES]
        events = list(demo.events(EVENTS, 20, 50))
        for client, part in zip(clients, (events[:1_000], events[1_000:2_000], events[2_000:]), strict=True):
            client.publish_many((event["room"].encode(), json.dumps(event).encode()) for event in part)
        for number, client in enumerate(clients):
            for device in range(6):
                client.publish(f"devices/{device}/state", json.dumps({"level": number}))
            client.close()
        yield cluster


def servers(cluster: Cluster, *names: str) -> str:
    return ",".join(cluster.addresses[name]["http"] for name in names)


def latest_table(cluster: Cluster, job: str) -> dict[str, Any]:
    """The last table that a job published."""
    status, answer = cluster.get("a", f"/v1/rooms/{quote(f'$stats/job/{job}', safe='')}/history?count=1")
    assert status == 200, answer
    table: dict[str, Any] = json.loads(answer["records"][-1]["payload"])
    return table


def elsewhere(cluster: Cluster, room_class: str = "logged") -> list[str]:
    """The nodes, those with the fewest hub leaders of the class first."""
    has = Counter(cluster.leaders("a", room_class))
    return sorted(NAMES, key=lambda name: has[name])


def rows(frame: Any) -> Counter[tuple[str, bytes]]:
    return Counter((row.room, bytes(row.payload)) for row in frame.select("room", "payload").collect())


def test_each_job_has_the_records_of_all_nodes(
    cluster: Cluster, tmp_path: Path, pipeline: Callable[..., Any]
) -> None:
    events = list(demo.events(EVENTS, 20, 50))
    asked = dict(zip(("archive", "activity", "sessions", "devices"), cycle(elsewhere(cluster)), strict=False))

    def run(job: str, *args: str) -> Any:
        places = ("--checkpoint", tmp_path / job / "checkpoint", "--out", tmp_path / job / "out")
        return pipeline(job, "--once", "--servers", servers(cluster, asked[job]), *places, *args)

    assert "3,018" in run("archive").out
    _, files = open_table(str(tmp_path / "archive" / "out")).contents()
    kept = pd.concat([pd.read_parquet(tmp_path / "archive" / "out" / file.path) for file in files])
    assert len(kept) == EVENTS + 18 and not kept.duplicated(["hub", "offset"]).any()
    assert set(kept["room"]) == {event["room"] for event in events} | {f"devices/{n}/state" for n in range(6)}

    ran = run("activity", "--pattern", "chat:*", "--event-time", "$.ts")
    assert "3,000 records" in ran.err
    windows = pd.read_parquet(tmp_path / "activity" / "out").sort_values("batch_id")
    windows = windows.drop_duplicates(["room", "epoch", "window_start"], keep="last")
    said = Counter(event["room"] for event in events)
    assert windows.groupby("room")["messages"].sum().to_dict() == said and windows["missing"].isna().all()

    assert "Sessions that are over" in run("sessions", "--pattern", "chat:*").out
    shown = run("devices", "--pattern", "devices/#").out
    devices, values = shown.split("Devices, the latest first:\n")[1].split("Latest values, ")
    assert sorted(line.split()[0] for line in devices.splitlines() if line) == [*"012345", "device"]
    found = [line.split()[:4] for line in values.splitlines() if "level" in line]
    assert sorted(found) == [[str(n), f"devices/{n}/state", "level", "2"] for n in range(6)]

    # Each job has published its latest rows, whichever node was named.
    told = {job: latest_table(cluster, job) for job in ("archive", "sessions", "devices")}
    state = open_table(str(tmp_path / "archive" / "out")).state()
    assert sum(at - 1 for _, at in told["archive"]["rows"]) + told["archive"]["more"] >= len(kept)
    assert len(told["archive"]["rows"]) + told["archive"]["more"] == len(state.offsets)
    over = pd.read_parquet(tmp_path / "sessions" / "out" / "sessions")
    batch = over["batch_id"].astype(int)
    ends = over[batch == batch.max()]["end"].sort_values(ascending=False)
    place = told["sessions"]["columns"].index("end")
    assert [pd.Timestamp(row[place]) for row in told["sessions"]["rows"]] == list(ends[:20].dt.floor("ms"))
    assert sorted(row[:4] for row in told["devices"]["rows"]) == [
        [str(n), f"devices/{n}/state", "level", "2"] for n in range(6)
    ]


def test_a_query_goes_on_when_a_node_dies_and_is_back(cluster: Cluster, spark: Any, tmp_path: Path) -> None:
    """The query copies all rooms' records into other rooms; it names a node with the fewest hub leaders."""
    named, *_, dies = elsewhere(cluster)
    options = {
        "servers": servers(cluster, named),
        "subscribePattern": "chat:*",
        "startingOffsets": "earliest",
    }
    stream = spark.readStream.format("hubsub").options(**options, maxRowsPerBatch="500").load()
    copied = stream.selectExpr("concat('copy:', substr(room, 6)) as topic", "payload")
    writer = copied.writeStream.format("hubsub").option("servers", servers(cluster, named))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    reader = spark.read.format("hubsub").option("servers", servers(cluster, named))
    until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 1)
    cluster.kill(dies)
    cluster.start(dies)
    cluster.settled()
    with BlockingClient(cluster.nodes[named].redis_url) as client:
        client.publish_many((f"chat:room-{n:04d}".encode(), b"after") for n in range(20))
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    chat = rows(reader.option("subscribePattern", "chat:*").load())
    assert sum(chat.values()) == EVENTS + 20
    copies = rows(reader.option("subscribePattern", "copy:*").load())
    assert copies == Counter({(room.replace("chat:", "copy:"), said): n for (room, said), n in chat.items()})


def test_a_batch_from_each_node_is_the_same(cluster: Cluster, spark: Any) -> None:
    found = []
    for name in NAMES:
        reader = spark.read.format("hubsub").option("servers", servers(cluster, name))
        found.append(rows(reader.option("subscribePattern", "devices/#").load()))
    assert found[0] == found[1] == found[2] and sum(found[0].values()) == 18
