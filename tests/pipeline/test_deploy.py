"""A standalone master and worker as in docs/spark-deploy.md: executors with pyspark and pyarrow alone."""

from __future__ import annotations

import json
import os
import re
import signal
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from command_line import environment

import hubsub
from hubsub import BlockingClient
from hubsub.pipeline.java import find_java
from hubsub.testing import Node
from pipeline.programs import JAVA

SPARK_HOME = Path(pyspark.__file__).parent
SPARK_CLASS = [str(SPARK_HOME / "bin" / "spark-class")]
SUBMIT = [str(SPARK_HOME / "bin" / "spark-submit")]
HERE = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]

JOB = """
import json, sys
from hubsub.pipeline.session import connect

spark = connect()
rows = spark.read.format("hubsub").option("servers", sys.argv[1]).load()

def where(batches):
    import importlib.util
    import pyarrow as pa
    for batch in batches:
        core = importlib.util.find_spec("hubsub._core") is not None
        yield pa.RecordBatch.from_pydict({"rows": [len(batch)], "core": [core]})

seen = rows.select("room").mapInArrow(where, "rows bigint, core boolean").collect()
stream = spark.readStream.format("hubsub").option("servers", sys.argv[1]).option("startingOffsets", "earliest")
streamed = []
writer = stream.load().writeStream.foreachBatch(lambda batch, _: streamed.append(batch.count()))
writer.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start().awaitTermination()
core = any(row.core for row in seen)
print(json.dumps({"rows": sum(row.rows for row in seen), "streamed": sum(streamed), "core": core}))
spark.stop()
"""


def environ(**more: str) -> dict[str, str]:
    clean = environment(JAVA_HOME=str(find_java()), SPARK_HOME=str(SPARK_HOME), **more)
    return {name: value for name, value in clean.items() if not name.startswith("PYSPARK_")}


def line_with(process: subprocess.Popen[str], pattern: str) -> str:
    """The first match of a pattern in a process's log; leaves the later lines for the next call."""
    seen = []
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"it ended without {pattern!r}: {''.join(seen)}")


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with pyspark, pyarrow and their dependencies, but without this package."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (there,) = [Path(path) for path in site.getsitepackages() if path.endswith("site-packages")]
    for name in there.iterdir():
        if name.stem.split("-")[0] in ("pyspark", "pyarrow", "py4j", "numpy"):
            (packages / name.name).symlink_to(name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    assert subprocess.run([python, "-c", "import pyspark, pyarrow"], check=False).returncode == 0
    assert subprocess.run([python, "-c", "import hubsub"], capture_output=True).returncode == 1
    return python


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Yields `spark://HOST:PORT` of a master with one worker."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*SPARK_CLASS, f"org.apache.spark.deploy.{name}", *HERE, *args],
            stderr=subprocess.PIPE,
            text=True,
            env=environ(
                SPARK_WORKER_DIR=str(tmp_path / "work"),
                SPARK_MASTER_OPTS=REST_OFF,
                SPARK_DAEMON_JAVA_OPTS=JAVA,
            ),
            start_new_session=True,
        )
        started.append(process)
        return process

    try:
        url = line_with(start("master.Master"), r"spark://127\.0\.0\.1:\d+")
        line_with(start("worker.Worker", "--cores", "2", "--memory", "1g", url), "Successfully registered")
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


REST_OFF = "-Dspark.master.rest.enabled=false"
"""The REST server's port is fixed, so it is off."""


def test_executors_of_a_standalone_cluster_need_no_more_than_the_zip(
    make_node: Callable[..., Node], tmp_path: Path, master: str, bare_python: Path
) -> None:
    chat = {"name": "chat", "match": ["chat:*"], "durability": "durable", "history": {"bytes": "1GiB"}}
    node = make_node(classes=[chat], config={"data": str(tmp_path / "data")})
    with BlockingClient(node.redis_url) as client:
        client.publish_many((f"chat:{n % 4}".encode(), b"x") for n in range(1_000))
    package = tmp_path / "hubsub.zip"
    root = Path(hubsub.__file__).parent.parent
    with zipfile.ZipFile(package, "w") as file:
        for name in ("hubsub", "pyspark_hubsub"):
            for module in (root / name).rglob("*.py"):
                file.write(module, module.relative_to(root))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    conf = {
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(bare_python),
        "spark.driver.defaultJavaOptions": JAVA,
        "spark.executor.defaultJavaOptions": JAVA,
        "spark.executor.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
    }
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    run = subprocess.run(
        [
            *SUBMIT,
            "--master",
            master,
            *settings,
            "--py-files",
            str(package),
            str(job),
            node.http_url,
            str(tmp_path / "checkpoint"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=environ(),
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    assert json.loads(run.stdout.splitlines()[-1]) == {"rows": 1_000, "streamed": 1_000, "core": False}
