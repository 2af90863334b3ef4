"""Actions for devices, as messages on their own topics.

Invariant: a message goes to the device of its row or nowhere. A name that would change the topic (a further
level, a wildcard) is no valid device, nor a valid action.
"""

import re
from typing import TYPE_CHECKING

from hubsub.errors import ConfigError, Problem
from hubsub.names import ACTION, DEVICE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "devices/{device}/actions"


def actions(frame: "DataFrame", topic: str = TOPIC) -> "DataFrame":
    """Actions as rows for the sink.

    Input: `device string`, `action string` if the topic names the action, and either `payload` (string or
    binary) or any other columns.
    Output: `topic string, payload binary`.
    Grain: one row for each row with a valid device, and action; `unaddressed` has the others.
    Null: without a column `payload` the payload is a JSON object of the other columns, without those that are
    null. A null `payload` is an empty one.

    Args:
        frame: The input.
        topic: The action topic with `{device}` and `{action}` in place of their names. With
            `devices/{device}/actions/{action}` the node tracks the action's progress
            (docs/guides/devices.md).

    Raises:
        ConfigError: the topic is no device's, or the frame has no column for the action.
    """
    from pyspark.sql import functions as sf

    if topic.count(DEVICE) != 1 or set(topic) & set("+#"):
        problem = Problem("topic", topic, "this names no device's topic", f"such as {TOPIC}")
        raise ConfigError([problem])
    named = [name for name in (DEVICE, ACTION) if name in topic]
    if ACTION in named and "action" not in frame.columns:
        problem = Problem("topic", topic, "the rows have no column `action`", "or leave {action} out of it")
        raise ConfigError([problem])
    if "payload" in frame.columns:
        payload = sf.coalesce(sf.col("payload").cast("binary"), sf.lit(b""))
    else:
        others = [column for column in frame.columns if f"{{{column}}}" not in named]
        text = sf.to_json(sf.struct(*others), {"timeZone": "UTC"}) if others else sf.lit("{}")
        payload = text.cast("binary")
    parts = [sf.col(part[1:-1]) if part in named else sf.lit(part) for part in re.split(_PARTS, topic)]
    return frame.where(_address(topic)).select(sf.concat(*parts).alias("topic"), payload.alias("payload"))


def unaddressed(frame: "DataFrame", topic: str = TOPIC) -> "DataFrame":
    """The rows that `actions` leaves out: the input and `reason`, `no_device` or `no_action`.

    Grain: one row for each.
    """
    from pyspark.sql import functions as sf

    reason = sf.when(sf.expr(_IS_DEVICE), "no_action").otherwise("no_device")
    return frame.where(f"NOT ({_address(topic)})").withColumn("reason", reason)


_PARTS = f"({re.escape(DEVICE)}|{re.escape(ACTION)})"
_IS_DEVICE = r"(device IS NOT NULL AND device RLIKE r'^[^/+#\x00]+$')"
_IS_ACTION = r"(action IS NOT NULL AND action RLIKE r'^[A-Za-z0-9_.-]{1,100}\z')"


def _address(topic: str) -> str:
    """Condition that a row names everything that the topic needs."""
    return f"{_IS_DEVICE} AND {_IS_ACTION}" if ACTION in topic else _IS_DEVICE
