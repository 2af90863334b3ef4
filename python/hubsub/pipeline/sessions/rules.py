"""What a session is; batch and streaming both say it, and a test holds them against each other.

A session is the presence of one user in one room, with however many pages or devices.

1. A `join` opens one. If one is open it goes on where the join has a `ref`, which names the page or device that came;
   without a `ref` nobody can say which one leaves, so the open one ends at that join.
2. A `message` or an `action` counts in the open session; where none is open it opens one, for somebody who
   speaks is there: the join was before the log began, or was lost.
3. A `leave` with a `ref` takes that one out. No `leave` ends a session while a `ref` is in; any other one ends it.
   Where none is open, or for a `ref` that is not in, it means nothing: so what was said twice does no harm.
4. A session of which nothing was heard for the time-out ends when that has passed, and no `ref` is in any more.
5. What a user did in a room is taken in the order of its records, not of the times that senders wrote: a time
   before the latest one heard is taken for that latest one. So nothing ends before it began.

`opened_by` is join or message, `closed_by` leave, join or timeout: what was not closed by a leave is marked.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from hubsub.pipeline.events import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMEOUT = timedelta(minutes=30)
"""Silence after which a user is taken to have gone."""

FIELDS = {
    "kind": Field("$.kind"),
    "user": Field("$.user"),
    "room": Field("$.room", required=False),
    "ref": Field("$.ref", required=False),
}
"""What `events.parsed` is to read of payloads; the time is its `event_time`, such as `$.ts`."""

KINDS = ("join", "leave", "message", "action")

ORDER = ("timestamp", "epoch", "seq")
"""The order of a room's records: its seqs, and its epochs by their times, for epochs compare for equality only."""


def moves(events: "DataFrame") -> "DataFrame":
    """What users did in rooms.

    Input: `room string, epoch bigint, seq bigint, timestamp timestamp, event_time timestamp,
    event struct<kind, user, room, ref>`, as `events.good` gives them for `FIELDS`.
    Output: `room string, user string, kind string, ref string, at timestamp, timestamp, epoch, seq`.
    Grain: one row for each event of a known kind; `strangers` has the others.
    Null: a null `event.room` takes the record's room. A null `ref` is none; nothing else of the output is null.
    """
    from pyspark.sql import functions as sf

    return events.where(sf.col("event.kind").isin(*KINDS)).select(
        sf.coalesce("event.room", "room").alias("room"),
        sf.col("event.user").alias("user"),
        sf.col("event.kind").alias("kind"),
        sf.col("event.ref").alias("ref"),
        sf.col("event_time").alias("at"),
        *ORDER,
    )


def strangers(events: "DataFrame") -> "DataFrame":
    """The events of unknown kinds, with `reason` `unknown_kind`: rows for the dead letters.

    Input and grain as `moves`. Output: the input without `event` and `event_time`, and `reason string`.
    """
    from pyspark.sql import functions as sf

    rest = events.where(~sf.col("event.kind").isin(*KINDS))
    return rest.drop("event", "event_time").withColumn("reason", sf.lit("unknown_kind"))
