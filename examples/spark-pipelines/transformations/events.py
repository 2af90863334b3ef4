"""Records of the node as a table: each run appends new records, each once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from hubsub.pipeline import events
from hubsub.pipeline.events import Field

FIELDS = {"user": Field("$.user"), "kind": Field("$.kind"), "text": Field("$.text", required=False)}


@dp.table(comment="What people did in chat rooms, as they wrote it.")
def chat_events() -> DataFrame:
    spark = SparkSession.active()
    records = (
        spark.readStream.format("hubsub")
        .option("servers", spark.conf.get("spark.hubsub.servers"))
        .option("subscribePattern", "chat:*")
        .option("startingOffsets", "earliest")
        .load()
    )
    found = events.good(events.parsed(records, FIELDS, event_time="$.ts"))
    return found.select("room", "seq", "event_time", "event.user", "event.kind", "event.text")
