"""Source, sink and jobs where tasks run in other processes: executors of a cluster, the server of Spark Connect.

Both places run `everywhere.py` at once on one node, before the first test; each test looks at one part of what came of
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import environment

from hubsub import BlockingClient
from hubsub.pipeline.archive import open_table
from hubsub.testing import Node
from pipeline import everywhere
from pipeline.conftest import JAVA

CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": JAVA,
    "spark.executor.defaultJavaOptions": JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}
PLUGIN = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": "0",
}
SERVE = """
import json, sys
from hubsub.pipeline.session import connect

spark = connect("local[2]", json.loads(sys.argv[1]))
service = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
print(service.localPort(), flush=True)
sys.stdin.read()
spark.stop()
"""

DURABLE = {"durability": "durable", "history": {"bytes": "1GiB"}}
CLASSES = [
    {"name": "chat", "match": ["chat:*"], **DURABLE},
    {"name": "devices", "match": ["devices/#"], **DURABLE},
    {"name": "out", "match": ["cluster:*", "connect:*"], **DURABLE},
]
PLACES = ("cluster", "connect")
USERS = 50


def event(n: int, kind: str, user: int) -> dict[str, Any]:
    at = f"2026-03-01T12:{n // 60:02}:{n % 60:02}Z"
    return {"kind": kind, "user": f"user-{user}", "room": f"chat:{user % 4}", "ts": at, "text": f"{n}"}


EVENTS = [
    event(n, kind, user) for n, kind in enumerate(("join", "message", "leave")) for user in range(USERS)
]
PAYLOADS = Counter(json.dumps(one) for one in EVENTS)


@dataclass(frozen=True)
class Place:
    """What a run has left."""

    name: str
    told: dict[str, Any]
    directory: Path
    node: Node

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.directory / name)

    def rooms(self, what: str, *rooms: str) -> Counter[str]:
        """Payloads that were published."""
        with BlockingClient(self.node.redis_url) as client:
            pages = [client.history(f"{self.name}:{what}:{room}", count=10_000) for room in rooms]
        return Counter(record.payload.decode() for page in pages for record in page.records)


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`sc://HOST:PORT` of a Spark Connect server."""
    conf = CONF | PLUGIN | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, json.dumps(conf)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        yield f"sc://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()  # Its end ends it.
        server.wait(60)
        server.stdout.close()


@pytest.fixture(scope="module")
def runs(
    needs: Callable[..., None], connect_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    """Both places, when they have ended well."""
    needs("hubsub-core")
    base = tmp_path_factory.mktemp("elsewhere")
    masters = {"cluster": "local-cluster[2,1,1024]", "connect": connect_server}
    confs = {"cluster": CONF | {"spark.sql.warehouse.dir": str(base / "warehouse")}, "connect": {}}
    with Node(classes=CLASSES, config={"data": str(base / "data")}) as node:
        with BlockingClient(node.redis_url) as client:
            client.publish_many((one["room"].encode(), json.dumps(one).encode()) for one in EVENTS)
            client.publish_many((f"devices/{n % 5}/state".encode(), b'{"t": %d}' % n) for n in range(20))
        processes = {
            name: subprocess.Popen(
                [
                    *(sys.executable, everywhere.__file__, masters[name], node.http_url),
                    *(str(base / name), f"{name}:", json.dumps(confs[name])),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for name in PLACES
        }
        try:
            places = {}
            for name, process in processes.items():
                out, err = process.communicate(timeout=240)
                assert process.returncode == 0, f"{name}: {err[-6_000:]}"
                places[name] = Place(name, json.loads(out.splitlines()[-1]), base / name, node)
            yield places
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()


@pytest.fixture(params=PLACES)
def place(runs: dict[str, Place], request: pytest.FixtureRequest) -> Place:
    return runs[request.param]


def test_batch_and_stream_read_all_records_once(place: Place) -> None:
    assert place.told["rooms"] == Counter(one["room"] for one in EVENTS)
    assert place.told["streamed"] == [len(EVENTS), len(EVENTS)]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_the_sink_publishes_each_row_once(place: Place, kind: str) -> None:
    assert place.rooms(kind, "0", "1", "2") == PAYLOADS


def test_activity_counts_each_message(place: Place) -> None:
    windows = place.table("activity/out")
    windows = windows.sort_values("batch_id").drop_duplicates(["room", "window_start"], keep="last")
    assert windows.groupby("room").messages.sum().to_dict() == Counter(one["room"] for one in EVENTS)
    assert (place.directory / "plot.png").exists()


def test_the_archive_has_each_record_once(place: Place) -> None:
    _, files = open_table(str(place.directory / "archive" / "out")).contents()
    rows = pd.concat([place.table(f"archive/out/{file.path}") for file in files])
    assert Counter(payload.decode() for payload in rows.payload) == PAYLOADS


def test_devices_have_their_latest_value(place: Place) -> None:
    state = place.table("devices/out/state")
    assert dict(zip(state.device, state.value, strict=True)) == {str(n): str(15 + n) for n in range(5)}


def test_sessions_are_closed_by_their_leaves(place: Place) -> None:
    sessions = place.table("sessions/out/sessions")
    assert sorted(sessions.user) == sorted(f"user-{n}" for n in range(USERS))
    assert set(zip(sessions.opened_by, sessions.closed_by, sessions.messages, strict=True)) == {
        ("join", "leave", 1)
    }
    assert set(sessions.duration_s) == {2.0}


def test_a_replay_publishes_each_archived_record_once(place: Place) -> None:
    assert place.rooms("replay", *(f"chat:{n}" for n in range(4))) == PAYLOADS
