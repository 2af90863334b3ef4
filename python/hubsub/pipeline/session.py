"""Starts Spark as the pipeline needs it: finds Java, and sets what is worth setting.

Nothing here touches the JVM or a SparkContext, so that a session of Spark
Connect is made the same way.
"""

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hubsub.errors import OptionError, SparkMissingError
from hubsub.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN, PYSPARK_END = (4, 2), (5, 0)
"""Versions of pyspark that do: from the first on, below the second."""

MASTER_DEFAULT = "local[*]"

_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    # Filters reach the node, instead of being applied to all that it sent.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Rows of a batch between the JVM and Python functions; 10,000 by default.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
_DRIVER = {"spark.ui.showConsoleProgress": "false"}
_LOCAL = {
    # Only what runs long is compiled to the last degree. With Java's own thresholds a run over 3,000 records spends
    # half of 47 s of processor time in that compiler, and nothing comes of it; so it takes 28 s.
    "spark.driver.defaultJavaOptions": (
        "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000 "
        "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=800000"
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Renaming is atomic on a local disk; the default manager goes through Hadoop's FileContext, which sets the
    # permissions of each file of a checkpoint by starting a process.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def connect(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    app: str = "hubsub",
    ui: bool = False,
) -> "SparkSession":
    """A Spark session for the pipeline: the running one if there is one, with `conf` applied.

    Args:
        master: `local[N]`, `spark://HOST:PORT` or another of Spark's, or `sc://HOST:PORT` for Spark Connect;
            default: what `spark-submit` was told, else all cores of this machine.
        conf: Spark's own settings; they win over the ones set here.
        app: The name that Spark shows.
        ui: Whether Spark serves its own pages.

    Raises:
        SparkMissingError: pyspark or Java is missing, or too old.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    master = master or _submitted() or MASTER_DEFAULT
    if master.startswith("sc://"):
        builder = SparkSession.builder.remote(master)  # Its process has Java, master and name already.
    else:
        os.environ["JAVA_HOME"] = str(find_java())
        # Workers would take `python3` from PATH, which need not have this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(app).master(master)
    for name, value in (defaults(master, ui=ui) | dict(conf or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def is_running() -> bool:
    """Whether this process has a session, which `connect` would give."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _submitted() -> str | None:
    """The master that `spark-submit` was told, in a program that it runs."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master", None)


def defaults(master: str, *, ui: bool = False) -> dict[str, str]:
    """What is set for a master unless the user sets it."""
    if master.startswith("sc://"):
        return dict(_EVERYWHERE)
    settings = _EVERYWHERE | _DRIVER | {"spark.ui.enabled": str(ui).lower()}
    if not master.startswith("local"):
        return settings
    # A shuffle into 200 partitions, Spark's default, is 200 tasks of 35 ms and more for a few cores.
    return settings | _LOCAL | {"spark.sql.shuffle.partitions": str(local_cores(master))}


def local_cores(master: str) -> int:
    """Tasks that a local master runs at once: `local`, `local[4]`, `local[*]`, `local-cluster[2,1,1024]`."""
    numbers = re.match(r"local(-cluster)?(?:\[(\d+|\*)(?:\s*,\s*(\d+))?)?", master)
    if numbers is None:
        return 1
    if numbers[2] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(numbers[2] or 1) * (int(numbers[3] or 1) if numbers[1] else 1))


def parse_conf(pairs: Iterable[str]) -> dict[str, str]:
    """Settings of `--conf NAME=VALUE`, as often as it was given.

    >>> parse_conf(["spark.executor.memory=2g"])
    {'spark.executor.memory': '2g'}

    Raises:
        OptionError: one of them has another form.
    """
    conf = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.strip() or not equals:
            raise OptionError("a setting of Spark has the form NAME=VALUE", pair, "spark.executor.memory=2g")
        conf[name.strip()] = value.strip()
    return conf


def check_pyspark() -> None:
    """Raises SparkMissingError unless pyspark is there in a version that does."""
    hint = "pip install 'hubsub[spark]'"
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise SparkMissingError("pyspark is not installed", hint=hint) from None
    major, minor = (int(number) for number in re.findall(r"\d+", version)[:2])
    if not PYSPARK_MIN <= (major, minor) < PYSPARK_END:
        wanted = f"{PYSPARK_MIN[0]}.{PYSPARK_MIN[1]} or newer is needed, and below {PYSPARK_END[0]}"
        raise SparkMissingError(f"this version of pyspark does not do; {wanted}", version, hint)
