"""What devices are to do, as messages on their own topics.

Invariant: a message goes to the device of its row or nowhere. A name that would make it another's topic (a
level more, a wildcard) is no address.
"""

from typing import TYPE_CHECKING

from hubsub.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "devices/{device}/actions"


def actions(frame: "DataFrame", topic: str = TOPIC) -> "DataFrame":
    """Actions as rows for the sink.

    Input: `device string` and either `payload` (string or binary) or any other columns.
    Output: `topic string, payload binary`.
    Grain: one row for each row that names a device; `unaddressed` has the others.
    Null: without a column `payload` the payload is a JSON object of the other columns, without those that are
    null. A null `payload` is an empty one.

    Args:
        topic: The action topic; `{device}` stands for the device.
    """
    from pyspark.sql import functions as sf

    before, name, after = topic.partition("{device}")
    if not name or set(topic) & set("+#"):
        problem = Problem("topic", topic, "this names no device's topic", f"such as {TOPIC}")
        raise ConfigError([problem])
    if "payload" in frame.columns:
        payload = sf.coalesce(sf.col("payload").cast("binary"), sf.lit(b""))
    else:
        others = [column for column in frame.columns if column != "device"]
        text = sf.to_json(sf.struct(*others), {"timeZone": "UTC"}) if others else sf.lit("{}")
        payload = text.cast("binary")
    address = sf.concat(sf.lit(before), sf.col("device"), sf.lit(after))
    return frame.where(_ADDRESS).select(address.alias("topic"), payload.alias("payload"))


def unaddressed(frame: "DataFrame") -> "DataFrame":
    """The rows of which `actions` makes no message: the input and `reason` `no_device`. Grain: one for each."""
    from pyspark.sql import functions as sf

    return frame.where(f"NOT ({_ADDRESS})").withColumn("reason", sf.lit("no_device"))


_ADDRESS = r"device IS NOT NULL AND device RLIKE r'^[^/+#\x00]+$'"
