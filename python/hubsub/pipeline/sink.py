"""Publishes rows of Spark into rooms: each row of a batch once, despite retries.

A task sends its rows to a node as stages of some megabytes, each under a unique name; the driver names all of
them in one commit. The stages of a failed task are never committed. A batch that Spark repeats finds its
number committed, and its new stages are dropped (docs/protocol/stages.md).

Input: `topic` (string; not with the option `topic`), `payload` (binary or string), and optionally `publisher`
(string) and `headers` (map of string to string).
Grain: one record per row, in the order of each task's rows.
Null: in `publisher` or `headers` null means none; in `topic` or `payload` it fails the batch.
"""

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hubsub.errors import BatchGivenUpError, HubSubError, OptionError
from hubsub.pipeline.options import SinkOptions
from hubsub.pipeline.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

LOG = logging.getLogger("hubsub.pipeline")

STAGE_BYTES = 8 << 20
"""Size of a stage: it is held in memory while it is sent, to be sent again if a connection breaks."""

COLUMNS = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "publisher": ("string",),
    "headers": ("map<string,string>",),
}
"""Column to its types, as Spark writes them, without nullability."""


@dataclass
class Staged(WriterCommitMessage):
    attempts: tuple[str, ...]
    rows: int


class Sink:
    """Common part of both writers. Goes to executors with each task, so it holds plain values only.

    Args:
        options: Options of the sink.
        query: Name under which batches are numbered.
    """

    def __init__(self, options: SinkOptions, query: str) -> None:
        self.options = options
        self.query = query

    def stage(self, batches: Iterator["pa.RecordBatch"]) -> Staged:
        names: list[str] = []
        rows = 0
        with Wire(self.options.access) as wire:
            for piece in _pieces(batches):
                names.append(wire.stage(self.query, _body(piece), self.options.topic))
                rows += sum(batch.num_rows for batch in piece)
        return Staged(tuple(names), rows)

    def stage_frame(self, rows: "DataFrame") -> list[Staged]:
        """Sends the rows of a frame, whose tasks run here; for callers that commit by themselves."""
        task = partial(_stage, self)
        found = rows.mapInArrow(task, "attempts array<string>, rows bigint").collect()
        return [Staged(tuple(row["attempts"]), row["rows"]) for row in found]

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Publishes the stages once, however often it is called; returns when they are published."""
        attempts = [name for message in messages if isinstance(message, Staged) for name in message.attempts]
        with Wire(self.options.access) as wire:
            wire.commit(self.query, batch, attempts)

    def commit_in_turn(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """As `commit`, for a stream: skips a batch that an operator gave up, which Spark would repeat for ever."""
        try:
            self.commit(messages, batch)
        except BatchGivenUpError as error:
            LOG.warning("%s; the stream goes on with the next", error.message)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops stages, as far as a node can be reached: the others expire."""
        with Wire(self.options.access) as wire:
            for message in messages:
                for name in message.attempts if isinstance(message, Staged) else ():
                    try:
                        wire.drop_stage(self.query, name)
                    except HubSubError:
                        return


def _stage(sink: Sink, batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """A task of `stage_frame`."""
    import pyarrow as pa

    staged = sink.stage(batches)
    columns = [pa.array([list(staged.attempts)], pa.list_(pa.string())), pa.array([staged.rows], pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, ["attempts", "rows"])


class HubSubWriter(DataSourceArrowWriter):
    """`df.write`: all rows are one batch, of a new query unless the options name one."""

    def __init__(self, options: SinkOptions) -> None:
        self._batch = options.batch or 0
        self._sink = Sink(options, options.query or f"write-{uuid.uuid4().hex}")

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Staged:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


class HubSubStreamWriter(DataSourceStreamArrowWriter):
    """`writeStream`: one batch per micro-batch, with Spark's number."""

    def __init__(self, options: SinkOptions) -> None:
        if options.batch is not None:
            raise OptionError("option batch is for df.write", options.batch, "a stream numbers its batches")
        self._sink = Sink(options, query_of(options))

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Staged:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        self._sink.commit_in_turn(messages, batch)

    def abort(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        self._sink.abort(messages)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises OptionError unless a frame of this schema can be published."""
    columns = [name for name in COLUMNS if name != "topic" or options.topic is None]
    for field in schema.fields:
        if field.name not in columns:
            hint = f"there are {', '.join(columns)}; select them"
            if field.name == "topic":
                hint = "option topic names that of all rows: leave out the one or the other"
            raise OptionError("rows to publish have no such column", field.name, hint)
        wanted = COLUMNS[field.name]
        found = field.dataType.simpleString()
        if found not in wanted:
            raise OptionError(
                "a column has another type", f"{field.name} {found}", f"cast it to {' or '.join(wanted)}"
            )
    for name in columns[: len(columns) - 2]:
        if name not in schema.fieldNames():
            hint = "name the rows' topic in this column, or that of all in option topic"
            raise OptionError("a column is missing", name, hint if name == "topic" else "select it")


def query_of(options: SinkOptions) -> str:
    """The name under which a stream's batches are numbered: its checkpoint's, so that it outlives the driver.

    A checkpoint on a local disk has its own identity, so a new one at the same place is another query.
    Elsewhere the path is used.

    Raises:
        OptionError: the options name neither a query nor a checkpoint.
    """
    if options.query is not None:
        return options.query
    if options.checkpoint is None:
        raise OptionError(
            "the sink does not know the query", hint="give option query, or option checkpointLocation"
        )
    url = urlsplit(options.checkpoint)
    if url.scheme in ("", "file"):
        path = unquote(url.path) if url.scheme else options.checkpoint
        try:
            return f"checkpoint-{json.loads((Path(path) / 'metadata').read_text())['id']}"
        except (OSError, ValueError, KeyError):
            pass
    return f"checkpoint-{uuid.uuid5(uuid.NAMESPACE_URL, options.checkpoint.rstrip('/')).hex}"


def _pieces(batches: Iterator["pa.RecordBatch"]) -> Iterator[list["pa.RecordBatch"]]:
    """Batches in lists of some `STAGE_BYTES`, none empty; a larger batch is split by rows."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        step = max(1, batch.num_rows * STAGE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            piece.append(part)
            size += part.nbytes
            if size >= STAGE_BYTES:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece


def _body(batches: Sequence["pa.RecordBatch"]) -> bytes:
    import pyarrow as pa

    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(out.getvalue())
