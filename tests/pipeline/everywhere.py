"""A program that runs source, sink and jobs in one session of a Spark master, one after the other.

Arguments: the master (`sc` starts a Spark Connect server), a node's HTTP address, an output directory, a
prefix of rooms to write to, Spark's settings as JSON, the jobs with commas in between. The program prints one JSON
object with the values that only Spark itself can report; all other results are in the directory and in the rooms.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from hubsub.pipeline.cli import app
from hubsub.pipeline.session import connect

JOBS: dict[str, tuple[str, ...]] = {
    "activity": ("--once", "--event-time", "$.ts", "--pattern", "chat:*"),
    "archive": ("--once", "--pattern", "chat:*"),
    "devices": ("--once", "--pattern", "devices/#"),
    "sessions": ("--once", "--pattern", "chat:*", "--watermark", "1 second"),
    "replay": ("--rate", "1000000"),
}
"""Jobs with their arguments; a replay is of the archive."""

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


def main(master: str, servers: str, directory: str, prefix: str, conf: str, jobs: str) -> None:
    settings: dict[str, str] = json.loads(conf)
    if master != "sc":
        with connect(master, settings) as spark:
            run_all(spark, master, servers, directory, prefix, settings, jobs.split(","))
        return
    # A session that ends after its server repeats its last request for minutes.
    with connect_server(settings | PLUGIN) as address, connect(address, {}) as spark:
        run_all(spark, address, servers, directory, prefix, {}, jobs.split(","))


@contextlib.contextmanager
def connect_server(conf: dict[str, str]) -> Iterator[str]:
    """Starts a Spark Connect server; yields its `sc://HOST:PORT`."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, json.dumps(conf)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        yield f"sc://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()  # The server ends when its input closes.
        server.wait(60)


def run_all(
    spark: Any,
    master: str,
    servers: str,
    directory: str,
    prefix: str,
    settings: dict[str, str],
    jobs: list[str],
) -> None:
    rooms = {"servers": servers, "subscribePattern": "chat:*"}
    batch = spark.read.format("hubsub").options(**rooms).load()
    told = {row.room: row["count"] for row in batch.groupBy("room").count().collect()}

    live = spark.readStream.format("hubsub").options(**rooms).option("startingOffsets", "earliest").load()
    run(live.select("room", "offset"), "parquet", f"{directory}/stream", path=f"{directory}/rows")
    streamed = spark.read.parquet(f"{directory}/rows").selectExpr("count(*)", "count(distinct room, offset)")

    out = batch.selectExpr(f"concat('{prefix}batch:', seq % 3) as topic", "payload").repartition(3)
    out.write.format("hubsub").option("servers", servers).mode("append").save()
    out = live.selectExpr(f"concat('{prefix}stream:', seq % 3) as topic", "payload").repartition(3)
    run(out, "hubsub", f"{directory}/sink", servers=servers)

    for job in jobs:
        places = ["--checkpoint", f"{directory}/{job}/checkpoint"]
        if job == "replay":
            places += ["--from", f"{directory}/archive/out", "--prefix", f"{prefix}replay:"]
        else:
            places += ["--out", f"{directory}/{job}/out"]
        if job == "activity":
            places += ["--plot", f"{directory}/plot.png", "--publish"]
            places += ["--option", f"queryName={prefix}activity"]
        pipeline(job, *JOBS[job], *places, "--servers", servers, master=master, settings=settings)
    print(json.dumps({"rooms": told, "streamed": list(streamed.collect()[0])}))


def run(frame: Any, sink: str, checkpoint: str, **options: str) -> None:
    """Runs a query until it has read everything available.

    Args:
        frame: The streaming frame.
        sink: Name of the Spark data source to write to.
        checkpoint: The checkpoint directory.
        options: Options of the sink.
    """
    writer = frame.writeStream.format(sink).options(checkpointLocation=checkpoint, **options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    query.stop()


def pipeline(*arguments: str, master: str, settings: dict[str, str]) -> None:
    """Runs `hubsub pipeline …` in the existing session."""
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    print(f"pipeline {arguments[0]}", file=sys.stderr, flush=True)
    app(args=[*arguments, "--master", master, *conf], standalone_mode=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
