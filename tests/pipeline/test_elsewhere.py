"""The source where tasks run in other processes: executors of a cluster, and the server of Spark Connect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import environment, hubsub

from hubsub import BlockingClient
from hubsub.testing import Node

CONF = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}

READ = """
import json, sys
from hubsub.pipeline.session import connect

master, servers, directory, conf = sys.argv[1:]
spark = connect(master, json.loads(conf))
batch = spark.read.format("hubsub").option("servers", servers).load()
rooms = {row.room: row["count"] for row in batch.groupBy("room").count().collect()}
stream = spark.readStream.format("hubsub").option("servers", servers).option("startingOffsets", "earliest").load()
writer = stream.select("room", "offset").writeStream.format("parquet").option("path", directory + "/rows")
writer = writer.option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True)
query = writer.start()
query.awaitTermination()
query.stop()
print(json.dumps({"rooms": rooms, "streamed": spark.read.parquet(directory + "/rows").count()}))
spark.stop()
"""

SERVE = """
import json, sys
from hubsub.pipeline.session import connect

spark = connect("local[2]", json.loads(sys.argv[1]))
service = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
print(service.localPort(), flush=True)
sys.stdin.read()
spark.stop()
"""
PLUGIN = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": "0",
}


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with 1,000 records in four rooms."""
    chat = {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    node = make_node(classes=[chat], config={"data": str(tmp_path / "data")})
    with BlockingClient(node.redis_url) as client:
        client.publish_many((f"chat:{n % 4}".encode(), b"x") for n in range(1_000))
    return node


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """`sc://HOST:PORT` of a Spark Connect server."""
    conf = CONF | PLUGIN | {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
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


def check(master: str, node: Node, directory: Path, conf: dict[str, str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", READ, master, node.http_url, str(directory), json.dumps(conf)],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment(),
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    read = json.loads(run.stdout.splitlines()[-1])
    assert read == {"rooms": {f"chat:{n}": 250 for n in range(4)}, "streamed": 1_000}


def test_executors_in_processes_of_their_own_read_the_same(node: Node, tmp_path: Path) -> None:
    conf = CONF | {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    check("local-cluster[2,1,1024]", node, tmp_path, conf)


def test_spark_connect_reads_the_same_and_runs_a_job(node: Node, tmp_path: Path, connect_server: str) -> None:
    check(connect_server, node, tmp_path, {})
    places = ["--checkpoint", str(tmp_path / "job" / "checkpoint"), "--out", str(tmp_path / "job" / "out")]
    ran = hubsub(
        "pipeline", "archive", "--once", "--master", connect_server, "--servers", node.http_url, *places
    )
    assert ran.returncode == 0, ran.stderr
    assert "1,000" in ran.stdout
