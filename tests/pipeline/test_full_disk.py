"""Really full disks, the node's and the archive's: no row is lost, duplicated or partly written.

Each disk is a small tmpfs in its own mount namespace.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients.servers import Server, hubsub_node
from command_line import environment
from node.home import CHAT
from node.test_disk_full import LIMITS, MOUNT, Disk, namespace
from pyspark.errors import StreamingQueryException

from hubsub import BlockingClient
from hubsub.errors import DiskFullError
from hubsub.pipeline.run.failures import failure
from hubsub.testing import Node
from pipeline.programs import JAVA

COUNT = 1_000


@pytest.fixture
def server(needs: Callable[..., None], tmp_path: Path) -> Iterator[Server]:
    """A node on a disk of 16 MiB."""
    needs("hubsub-core")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [*namespace(), "sh", "-c", MOUNT, str(disk), sys.executable, "-m", "hubsub.testing"]
    config = {"data": str(disk / "data")}
    with hubsub_node(2, config, classes=[CHAT], limits=LIMITS, command=command) as server:
        yield server


def test_a_sink_to_a_node_whose_disk_is_full_says_so_and_publishes_once_when_there_is_room(
    spark: Any, server: Server, tmp_path: Path
) -> None:
    assert server.node
    node, disk = server.node, Disk(server, tmp_path / "disk")
    rows = spark.range(COUNT).selectExpr("id as value")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))

    def start(**options: str) -> Any:
        numbers = spark.readStream.schema("value long").parquet(str(tmp_path / "in"))
        out = numbers.selectExpr("concat('chat:', value % 3) as topic", "cast(value as string) as payload")
        writer = out.repartition(3).writeStream.format("hubsub").options(servers=node.http_url, **options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def published() -> Counter[str]:
        with BlockingClient(node.redis_url) as client:
            pages = [client.history(f"chat:{n}", count=10_000) for n in range(3)]
        return Counter(record.payload.decode() for page in pages for record in page.records)

    disk.fill()
    with pytest.raises(StreamingQueryException) as ended:
        start(retrySeconds="0.3").awaitTermination(60)
    assert isinstance(failure(ended.value), DiskFullError)
    assert published() == Counter()

    query = start()
    disk.free()  # The query retries for that long, whether or not it has met the full disk.
    assert query.awaitTermination(60)
    assert published() == Counter(str(n) for n in range(COUNT))


ARCHIVE = """
import json, subprocess, sys
from hubsub.errors import HubSubError
from hubsub.pipeline.archive import open_table, read
from hubsub.pipeline.cli import app
from hubsub.pipeline.session import connect

servers, disk, conf = sys.argv[1:]
spark = connect("local[2]", json.loads(conf))
job = ["archive", "--once", "--servers", servers, "--option", "maxRowsPerBatch=300"]
job += ["--checkpoint", disk + "/checkpoint", "--out", disk + "/out"]
told = ""
try:
    app(args=job, standalone_mode=False)
except HubSubError as error:
    told = f"{type(error).__name__}: {error}"
half = read(spark, open_table(disk + "/out")).count()
subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
app(args=job, standalone_mode=False)
rows = read(spark, open_table(disk + "/out")).selectExpr("count(*)", "count(distinct hub, offset)").collect()[0]
print(json.dumps({"told": told, "half": half, "rows": list(rows)}))
spark.stop()
"""


def test_an_archive_on_a_full_disk_says_so_and_has_each_record_once_when_there_is_room(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    node = make_node(classes=[CHAT], config={"data": str(tmp_path / "data")})
    with BlockingClient(node.redis_url) as client:
        dice = random.Random(1)  # Random data, which does not compress.
        client.publish_many((f"chat:{n % 3}", dice.randbytes(2_000)) for n in range(COUNT))
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.defaultJavaOptions": JAVA,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.log.level": "OFF",
    }
    mount = MOUNT.replace("16m", "1m")
    program = [sys.executable, "-c", ARCHIVE, node.http_url, str(disk), json.dumps(conf)]
    run = subprocess.run(
        [*namespace(), "sh", "-c", mount, str(disk), *program],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment(),
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    seen = json.loads(run.stdout.splitlines()[-1])
    assert seen["told"].startswith("PipelineError: ") and "No space left on device" in seen["told"]
    assert seen["half"] < COUNT and seen["half"] % 300 == 0
    assert seen["rows"] == [COUNT, COUNT]
