"""Definition of a session; batch and streaming both implement it, and a test compares them.

A session is the presence of one user in one room, with any number of pages or devices.

1. A `join` opens one. If one is open it continues if the join has a `ref`, which names the page or device
   that came; without a `ref` it is unknown which one leaves, so the open one ends at that join.
2. A `message` or an `action` counts in the open session. If none is open it opens one, as its sender must be
   present: the join was before the log began, or was lost.
3. A `leave` with a `ref` removes that one. No `leave` ends a session while a `ref` is in; any other one ends
   it. If none is open, or the `ref` is not in, it has no effect: duplicates do no harm.
4. A session without events for the time-out ends when that has passed, and no `ref` is in any more.
5. A user's events in a room are taken in the order of its records, not of the times that senders wrote: a
   time before the latest one is replaced by the latest. So nothing ends before it began.

`opened_by` is join or message, `closed_by` leave, join or timeout: sessions that were not closed by a leave
are recognizable.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from hubsub.pipeline.events import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMEOUT = timedelta(minutes=30)
"""Silence after which a user counts as gone."""

FIELDS = {
    "kind": Field("$.kind"),
    "user": Field("$.user"),
    "room": Field("$.room", required=False),
    "ref": Field("$.ref", required=False),
}
"""Fields of payloads for `events.parsed`; the time is its `event_time`, such as `$.ts`."""

KINDS = ("join", "leave", "message", "action")

ORDER = ("timestamp", "epoch", "seq")
"""The order of a room's records: its seqs, and its epochs by their times, for epochs compare for equality only."""


def moves(events: "DataFrame") -> "DataFrame":
    """Events of users in rooms.

    Input: `room string, epoch bigint, seq bigint, timestamp timestamp, event_time timestamp, event
    struct<kind, user, room, ref>`, as returned by `events.good` for `FIELDS`.
    Output: `room string, user string, kind string, ref string, at timestamp, timestamp, epoch, seq`.
    Grain: one row for each event of a known kind; `unknown_events` has the others.
    Null: a null `event.room` takes the record's room. A null `ref` is none; nothing else of the output is
    null.
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


def unknown_events(events: "DataFrame") -> "DataFrame":
    """The events of unknown kinds, with `reason` `unknown_kind`: rows for the dead letters.

    Input and grain as `moves`.
    Output: the input without `event` and `event_time`, and `reason string`.
    """
    from pyspark.sql import functions as sf

    rest = events.where(~sf.col("event.kind").isin(*KINDS))
    return rest.drop("event", "event_time").withColumn("reason", sf.lit("unknown_kind"))
