"""Readings of devices, value by value; unreadable payloads go to the dead letters with the reason."""

from typing import TYPE_CHECKING

from hubsub.errors import ConfigError, Problem
from hubsub.names import device_pattern
from hubsub.pipeline import events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHOLE = "$"
"""Key for a payload that is no JSON object: its one value has no name."""


def named(records: "DataFrame", template: str) -> "DataFrame":
    """Records with the device that their topic names, if the room's class has not set it.

    Input: `topic string, device string`; other columns are kept.
    Output and grain: the input.
    Null: `device` stays null where the topic does not fit the template.

    Args:
        records: The input.
        template: As in a class, such as `devices/{device}/#` or `device:{device}:*` (`hubsub.names`).

    Raises:
        ConfigError: the template does not mark the device.
    """
    from pyspark.sql import functions as sf

    try:
        expression = device_pattern(template)
    except ValueError as error:
        hint = "such as devices/{device}/# or device:{device}:*"
        raise ConfigError([Problem("device", template, str(error), hint)]) from None
    found = sf.regexp_extract("topic", expression, 1)
    return records.withColumn("device", sf.coalesce("device", sf.when(found != "", found)))


def readings(records: "DataFrame") -> "DataFrame":
    """The values in devices' payloads.

    Input: `device string, topic string, epoch bigint, seq bigint, timestamp timestamp, payload binary`.
    Output: `device string, topic string, key string, value string` (JSON), `epoch, seq, timestamp`.
    Grain: one row for each member of a payload that is a JSON object; one with the key `$` for any other
    JSON.
    Null: a null `value` is JSON's null: the device reports that it has none. Nothing else is null. Records
    without a device and unreadable payloads give no row: they are `dead_letters`. An empty object gives
    neither.
    """
    from pyspark.sql import functions as sf

    rows = _read(records).where("reason IS NULL")
    members = sf.map_entries(sf.try_variant_get("_json", "$", "map<string,variant>"))
    single = sf.array(sf.struct(sf.lit(WHOLE).alias("key"), sf.col("_json").alias("value")))
    is_object = sf.schema_of_variant("_json").startswith("OBJECT")
    rows = rows.withColumn("_entry", sf.explode(sf.when(is_object, members).otherwise(single)))
    value = sf.col("_entry.value")
    text = sf.when(~sf.coalesce(sf.is_variant_null(value), sf.lit(True)), sf.to_json(value))
    return rows.select(
        "device", "topic", sf.col("_entry.key").alias("key"), text.alias("value"), "epoch", "seq", "timestamp"
    )


def dead_letters(records: "DataFrame") -> "DataFrame":
    """The records that `readings` cannot read.

    Input: as `readings`; other columns are kept.
    Output: the input and `reason string`, never null: `no_device` (its class names none in its topic, or the
    topic does not fit), `no_payload`, `not_utf8`, `not_json`.
    Grain: one row for each such record.
    """
    return _read(records).where("reason IS NOT NULL").drop("_json")


def _read(records: "DataFrame") -> "DataFrame":
    """The records with `_json variant` and `reason`."""
    from pyspark.sql import functions as sf

    rows = records.withColumn("_json", events.json_of("payload"))
    no_device = sf.col("device").isNull() | (sf.col("device") == "")
    return rows.withColumn(
        "reason", sf.coalesce(sf.when(no_device, sf.lit("no_device")), events.unreadable("payload", "_json"))
    )
