"""Makes a SPARK_HOME of the installed pyspark from which Spark starts sooner: half of the time of most tests with
Spark is their start.

Argument: the directory. It contains

- links to parts of the package. In place of `pyspark.zip`, which each of Spark's Python processes would
  compile anew, it has a link to the packages themselves, whose bytecode is cached;
- `classes.jsa`, an archive of the Java classes that a program with our source and sink loads. It is valid for
  this Java and this Spark; others ignore it.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import pyspark

from hubsub import BlockingClient
from hubsub.pipeline.run.runner import ROCKSDB
from hubsub.pipeline.session import connect
from hubsub.testing import Node

JAVA = "-Xss32m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def link_parts(home: Path) -> None:
    """Fills a SPARK_HOME, new or old, with links to the installed pyspark."""
    package = Path(pyspark.__file__).parent
    libraries = home / "python" / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    links = {home / name: package / name for name in ("bin", "jars", "sbin")}
    links |= {libraries / file.name: package.parent for file in (package / "python" / "lib").glob("*.zip")}
    for link, target in links.items():
        link.unlink(missing_ok=True)  # It may be of another version.
        link.symlink_to(target)


def archive(file: Path) -> None:
    """Runs a batch and a stream from rooms into files and rooms, and archives the loaded classes."""
    part = file.with_suffix(".part")
    conf = {
        "spark.driver.defaultJavaOptions": f"{JAVA} -XX:ArchiveClassesAtExit={part}",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    }
    logged = {"name": "all", "match": ["*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    with (
        tempfile.TemporaryDirectory() as directory,
        Node(classes=[logged], config={"data": f"{directory}/data"}) as node,
    ):
        conf["spark.sql.warehouse.dir"] = f"{directory}/warehouse"
        with BlockingClient(node.redis_url) as client:
            client.publish_many((f"chat:{n % 3}".encode(), json.dumps({"n": n}).encode()) for n in range(100))
        spark = connect("local[2]", conf)
        rooms = {"servers": node.http_url, "subscribePattern": "chat:*"}
        batch = spark.read.format("hubsub").options(**rooms).load()
        batch.selectExpr("'out' AS topic", "payload").write.format("hubsub").option(
            "servers", node.http_url
        ).mode("append").save()
        stream = (
            spark.readStream.format("hubsub").options(**rooms).option("startingOffsets", "earliest").load()
        )
        counts = stream.withWatermark("timestamp", "1 second").groupBy("room", "timestamp").count()
        writer = counts.writeStream.outputMode("update").option(
            "checkpointLocation", f"{directory}/checkpoint"
        )
        query = (
            writer.foreachBatch(lambda rows, _: rows.write.mode("append").parquet(f"{directory}/counts"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        spark.read.parquet(f"{directory}/counts").groupBy("room").sum("count").toPandas()
        java = spark.sparkContext._gateway.proc
        spark.stop()
        java.stdin.close()  # Its end ends it.
        java.wait(300)
    os.replace(part, file)


if __name__ == "__main__":
    home = Path(sys.argv[1]).absolute()
    link_parts(home)
    os.environ["SPARK_HOME"] = str(home)
    archive(home / "classes.jsa")
