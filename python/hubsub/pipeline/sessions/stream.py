"""Sessions of a stream: the open ones are state, and each is output once, when it has ended."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hubsub.pipeline.sessions.rules import ORDER, TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATE = "start_us bigint, last_us bigint, messages bigint, opened_by string, refs array<string>"
"""State of a user; `refs` are in the room."""
GONE = ""
"""Replaces `opened_by` after the user has left; kept for one time-out, so that times do not go back."""
OUTPUT = (
    "room string, user string, start_us bigint, end_us bigint, last_seen_us bigint, duration_s double, "
    "messages bigint, opened_by string, closed_by string"
)


def streamed(moves: "DataFrame", timeout: timedelta = TIMEOUT, watermark: str = "1 minute") -> "DataFrame":
    """Sessions by the rules of `hubsub.pipeline.sessions.rules`, each when it has ended.

    Input: the output of `rules.moves`, as a stream. It needs the RocksDB state store.
    Output, grain and null: as `batch.sessions`, without the sessions that are still open.

    Append mode. A session that times out is output when the watermark has passed its end; Spark drops events
    older than the watermark, and counts them in the query's progress. State is one small row for each user in
    a room, with the refs.

    Args:
        moves: The input.
        timeout: Silence after which a session ends; default 30 minutes.
        watermark: How much older than the latest event of all rooms an event may be, as an interval; default
            1 minute.
    """
    from pyspark.sql import functions as sf

    # Times go to Python and back as numbers, which have no time zones.
    rows = moves.withWatermark("at", watermark).select(
        "room", "user", "kind", "ref", "at", sf.unix_micros("at").alias("at_us"), *ORDER
    )
    found = rows.groupBy("room", "user").transformWithState(
        _processor(timeout // timedelta(microseconds=1)), OUTPUT, outputMode="Append", timeMode="EventTime"
    )
    times = [sf.timestamp_micros(f"{name}_us").alias(name) for name in ("start", "end", "last_seen")]
    return found.select("room", "user", *times, "duration_s", "messages", "opened_by", "closed_by")


def _processor(timeout_us: int) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    def is_open(session: Any) -> bool:
        return bool(session[3] != GONE)

    class Sessions(StatefulProcessor):
        """The session of one user in one room."""

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.state = handle.getValueState("session", STATE)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            before: Any = self.state.get() if self.state.exists() else None
            session = before
            refs = set(before[4]) if before is not None else set()
            for row in sorted(rows, key=lambda row: tuple(row[name] for name in ORDER)):
                at = row["at_us"]
                if session is not None:
                    at = max(at, session[1])
                    if is_open(session) and at - session[1] > timeout_us:
                        yield self.closed(key, session, session[1] + timeout_us, session[1], "timeout")
                        session = None
                        refs.clear()
                present = session is not None and is_open(session)
                kind, ref = row["kind"], row["ref"]
                if kind == "leave":
                    refs.discard(ref)
                    if refs:
                        session = (session[0], at, *session[2:])
                        continue
                    if present:
                        yield self.closed(key, session, at, at, "leave")
                    session = (at, at, 0, GONE)
                elif kind == "join":
                    if present and ref is None:
                        yield self.closed(key, session, at, session[1], "join")
                        present = False
                    session = (session[0], at, *session[2:]) if present else (at, at, 0, "join")
                    if ref is not None:
                        refs.add(ref)
                elif present:
                    session = (session[0], at, session[2] + 1, session[3])
                else:
                    session = (at, at, 1, "message")
            self.keep(before, (*session[:4], sorted(refs)))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
            if self.state.exists():
                session = self.state.get()
                if is_open(session):
                    yield self.closed(key, session, session[1] + timeout_us, session[1], "timeout")
                self.state.clear()

        def keep(self, before: Any, session: Any) -> None:
            """Stores the new state, with one timer: that of its time-out."""
            if before is not None:
                self.handle.deleteTimer(_timer(before[1] + timeout_us))
            self.state.update(session)
            self.handle.registerTimer(_timer(session[1] + timeout_us))

        def closed(self, key: Any, session: Any, end: int, last: int, closed_by: str) -> Any:
            start, _, messages, opened_by = session[:4]
            return Row(
                room=key[0],
                user=key[1],
                start_us=start,
                end_us=end,
                last_seen_us=last,
                duration_s=(end - start) / 1e6,
                messages=messages,
                opened_by=opened_by,
                closed_by=closed_by,
            )

    return Sessions()


def _timer(us: int) -> int:
    """Time of a timer in ms that must fire as soon as the watermark is at a time or after it.

    By then a message at exactly that time, which would extend the session, comes too late.
    """
    return -(-us // 1_000)
