"""A Kafka broker as a peer: its address, and Spark's options for it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from hubsub.errors import without_secrets
from hubsub_bench import BenchError

PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_URL = re.compile(r"kafka://(?P<brokers>[^/@?#\s]+:\d+)/(?P<topic>[A-Za-z0-9._-]{1,249})")


@dataclass(frozen=True, slots=True)
class Kafka:
    """A topic of a broker that already runs.

    Args:
        brokers: `HOST:PORT`, several separated by commas.
        topic: Gets the rows; it should have as many partitions as Spark has cores.
    """

    brokers: str
    topic: str

    @property
    def reading(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.brokers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
        }

    @property
    def writing(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.brokers, "topic": self.topic}

    @staticmethod
    def conf(given: Mapping[str, str]) -> dict[str, str]:
        """Settings that load Spark's own source, unless the given ones do."""
        if given.keys() & {"spark.jars", "spark.jars.packages"}:
            return {}
        return {"spark.jars.packages": f"{PACKAGE}:{version('pyspark')}"}


def parse(text: str) -> Kafka:
    """The broker that `--against` names.

    >>> parse("kafka://127.0.0.1:9092/rows")
    Kafka(brokers='127.0.0.1:9092', topic='rows')

    Raises:
        BenchError: it has another form.
    """
    match = _URL.fullmatch(text)
    if match is None:
        raise BenchError("this is no topic of Kafka", without_secrets(text), "kafka://HOST:PORT/TOPIC")
    return Kafka(match["brokers"], match["topic"])
