"""Starts Spark for the pipeline: finds Java, and applies useful settings.

Spark Connect sessions are created the same way, so nothing here uses the JVM or a SparkContext; it only
starts Java if there is none yet, and filters its output.
"""

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hubsub.errors import OptionError, SparkMissingError
from hubsub.pipeline.java import find_java
from hubsub.pipeline.packing import CORES
from hubsub.pipeline.stderr_filter import filtered_stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN, PYSPARK_END = (4, 2), (5, 0)
"""Supported versions of pyspark: from the first on, below the second."""

MASTER_DEFAULT = "local[*]"

_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Rows of a batch between the JVM and Python functions; 10,000 by default.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
_DRIVER = {"spark.ui.showConsoleProgress": "false"}
_LOCAL = {
    # Only long-running code is compiled at the highest level. With Java's own thresholds a run over 3,000
    # records spends half of 47 s of processor time in that compiler, without benefit; with these it takes 28
    # s. The stack size is for streams that are stopped in the middle of a batch: Spark then searches a
    # message of some 10,000 characters by a regular expression that takes half a kilobyte of stack for each.
    "spark.driver.defaultJavaOptions": (
        "-Xss32m -XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000 "
        "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=800000"
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Renaming is atomic on a local disk; the default manager uses Hadoop's FileContext, which starts a
    # process to set the permissions of each file of a checkpoint.
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
    quiet: bool = True,
) -> "SparkSession":
    """A Spark session for the pipeline: the running one if there is one, with `conf` applied.

    Args:
        master: `local[N]`, `spark://HOST:PORT` or another of Spark's, or `sc://HOST:PORT` for Spark Connect;
            default: the one given to `spark-submit`, else all cores of this machine.
        conf: Spark's own settings; they override the ones set here.
        app: Displayed name of the application.
        ui: Whether Spark serves its own pages.
        quiet: Filters Spark's usual start-up messages and the like from stderr; warnings and errors stay.

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
        _choose_python(master, conf or {})
        builder = SparkSession.builder.appName(app).master(master)
    chosen = defaults(master, ui=ui) | dict(conf or {})
    elsewhere = not master.startswith(("local", "sc://"))
    tasks = tasks_at_once(master, _submitted_conf() | chosen)
    if elsewhere and tasks:
        chosen = {f"spark.executorEnv.{CORES}": str(tasks)} | chosen
    elif tasks:
        os.environ.setdefault(CORES, str(tasks))  # Spark's processes on this machine inherit it.
    for name, value in chosen.items():
        builder = builder.config(name, value)
    if quiet and not master.startswith("sc://"):
        _start_java({"spark.master": master, "spark.app.name": app} | chosen)
    spark = builder.getOrCreate()
    if elsewhere:
        register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Registers the source in a session; `connect` does it if executors are on other machines.

    Spark finds the source by itself where the package is installed, but then runs it by the `python3` of each
    machine's PATH. A registered source is run by `spark.pyspark.python`, with the files of `--py-files` or,
    on Spark Connect, the artifacts that the session has by now.
    """
    import hubsub
    from hubsub.pipeline.source import HubSubSource

    files = Path(hubsub.__file__).parent.parent
    if files.is_file() and hasattr(spark, "sparkContext"):
        # A zip of `--py-files`: Spark passes it to all of its processes except the one on the driver that
        # plans streams.
        spark.sparkContext.environment["PYTHONPATH"] = str(files)
    spark.dataSource.register(HubSubSource)


def _start_java(conf: Mapping[str, str]) -> None:
    """Starts the JVM like the builder, but with another stderr, unless one exists or another process starts it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    with filtered_stderr(here=conf["spark.master"].startswith("local")) as stderr:
        settings = SparkConf().setAll(list(conf.items()))
        gateway = launch_gateway(settings, {"stderr": stderr})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def _choose_python(master: str, conf: Mapping[str, str]) -> None:
    """Sets the Python that Spark's workers run, which Spark reads from the environment only.

    If everything is on this machine, it is this one: `python3` of PATH need not have the package. On other
    machines a path of this one may not exist, so it is the configured one, or `python3` of their PATH.
    """
    if "spark.pyspark.python" in conf:
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    elif master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def is_running() -> bool:
    """Whether this process has a session, which `connect` would return."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _submitted() -> str | None:
    """The master given to `spark-submit`, in a program that it runs."""
    return _submitted_conf().get("spark.master")


def _submitted_conf() -> dict[str, str]:
    """The settings given to `spark-submit`, in a program that it runs."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def defaults(master: str, *, ui: bool = False) -> dict[str, str]:
    """Default settings for a master; the user's override them."""
    if master.startswith("sc://"):
        return dict(_EVERYWHERE)
    settings = _EVERYWHERE | _DRIVER | {"spark.ui.enabled": str(ui).lower()}
    if not master.startswith("local"):
        return settings
    # A shuffle into 200 partitions, Spark's default, is 200 tasks of 35 ms and more for a few cores.
    return settings | _LOCAL | {"spark.sql.shuffle.partitions": str(local_cores(master))}


def tasks_at_once(master: str, conf: Mapping[str, str]) -> int | None:
    """Number of tasks that run at once, from which the source derives its number of parts; None if settings
    do not define it.

    The source plans on the driver's machine, whose cores need not match the cluster's.
    """
    if master.startswith("local"):
        return local_cores(master)
    if conf.get("spark.cores.max", "").isdigit():
        return int(conf["spark.cores.max"])
    if conf.get("spark.executor.instances", "").isdigit():
        return int(conf["spark.executor.instances"]) * int(conf.get("spark.executor.cores", "1"))
    return None


def local_cores(master: str) -> int:
    """Tasks that a local master runs at once: `local`, `local[4]`, `local[*]`, `local-cluster[2,1,1024]`."""
    numbers = re.match(r"local(-cluster)?(?:\[(\d+|\*)(?:\s*,\s*(\d+))?)?", master)
    if numbers is None:
        return 1
    if numbers[2] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(numbers[2] or 1) * (int(numbers[3] or 1) if numbers[1] else 1))


def parse_conf(pairs: Iterable[str]) -> dict[str, str]:
    """Settings of all options `--conf NAME=VALUE`.

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
    """Raises SparkMissingError unless a supported version of pyspark is installed."""
    hint = "pip install 'hubsub[spark]'"
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise SparkMissingError("pyspark is not installed", hint=hint) from None
    major, minor = (int(number) for number in re.findall(r"\d+", version)[:2])
    if not PYSPARK_MIN <= (major, minor) < PYSPARK_END:
        wanted = f"{PYSPARK_MIN[0]}.{PYSPARK_MIN[1]} or newer is needed, and below {PYSPARK_END[0]}"
        raise SparkMissingError(f"this version of pyspark does not do; {wanted}", version, hint)
