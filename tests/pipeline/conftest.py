"""One Spark session for all tests of the pipeline: starting one costs more than most of them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from command_line import environment

from hubsub.pipeline.cli import app
from hubsub.pipeline.session import connect
from pipeline.fake_log import FakeLog, rows
from pipeline.programs import JAVA, drivers, places

__all__ = ["drivers", "places"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two cores, two attempts per task, no web UI, one shuffle partition; its workers find the benchmark's package."""
    directory = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        session = connect(
            "local[2,2]",
            {
                "spark.sql.shuffle.partitions": "1",
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.driver.memory": "1g",
                "spark.driver.defaultJavaOptions": JAVA,
                "spark.log.level": "ERROR",
            },
            app="hubsub-tests",
        )
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark: Any, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Any]]:
    """Runs a command in the tests' session, as `pipeline("activity", "--once")`; returns its `out` and
    `err`."""
    changed = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(changed)

    def run(*args: object) -> Any:
        capsys.readouterr()
        local = ("--master", "local[2,2]", "--conf", "spark.sql.shuffle.partitions=1")
        app(args=[*map(str, args), *local], standalone_mode=False)
        return capsys.readouterr()

    yield run
    spark.conf.set(changed, before)


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    """Two hubs with 5,000 and 3,000 records, each in two rooms."""
    tables = {1: rows(1, 1, 5_001, ("lobby", "chat:a")), 2: rows(2, 1, 3_001, ("chat:b", "chat:c"))}
    with FakeLog(tables) as log:
        yield log


@pytest.fixture
def read(spark: Any, fake: FakeLog) -> Any:
    """`read(subscribe="lobby")`: a batch frame of the fake log."""
    return lambda **options: _with(spark.read, fake, options).load()


@pytest.fixture
def stream(spark: Any, fake: FakeLog) -> Any:
    """As `read`, but a streaming frame."""
    return lambda **options: _with(spark.readStream, fake, options).load()


def _with(reader: Any, fake: FakeLog, options: dict[str, Any]) -> Any:
    reader = reader.format("hubsub").option("servers", fake.address)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader
