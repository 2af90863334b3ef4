"""Reads streams of records; runs on executors.

A broken stream continues after the last offset that was returned, so each record comes once, in order. A
stream is complete only with the mark of Arrow's end and the last chunk of the body: any other end counts as
broken.
"""

import http.client
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hubsub.errors import HubSubError, OffsetsLostError, PipelineError, StreamBrokenError
from hubsub.pipeline.options import CAUGHT_UP, canonical
from hubsub.pipeline.packing import Range
from hubsub.pipeline.schema import arrow_schema
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.wire import BROKEN, BackOff, Params, Wire

LOG = logging.getLogger("hubsub.pipeline")


class Records:
    """Reads ranges of one log.

    Args:
        wire: Sends the requests.
        log: Identity of the log that the ranges are of.
        selection: Selects records of the ranges.
        columns: Columns in the order of the result.
        compression: Of the stream.
        retry_s: How long to retry without progress, in seconds.
        fail_on_data_loss: Whether missing offsets are an error; else they are left out and logged.
        caught_up: Value of that column.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        log: str,
        selection: Selection,
        columns: tuple[str, ...],
        compression: str,
        retry_s: float,
        fail_on_data_loss: bool,
        caught_up: bool = True,
    ) -> None:
        self._wire = wire
        self._rooms = selection.rooms_here
        self._schema = arrow_schema(columns)
        self._columns = columns
        self._retry_s = retry_s
        self._fail_on_data_loss = fail_on_data_loss
        self._caught_up = pa.scalar(caught_up)
        # The offset is needed to resume; it is 8 bytes a record.
        asked = canonical({*columns, "offset"} | ({"room"} if self._rooms is not None else set()))
        self._params: Params = [
            *selection.params(),
            ("columns", ",".join(asked)),
            ("compression", compression),
            ("log", log),
        ]

    def read(self, range_: Range) -> Iterator[pa.RecordBatch]:
        """The selected records of a range, in Spark's form.

        Raises:
            OffsetsLostError: some of the range is gone.
            StreamBrokenError: it breaks again and again.
            HubSubError: another error of a server. All but the first name the offsets that were not read.
        """
        at = range_.first

        def unread(error: HubSubError) -> HubSubError:
            where = f"hub {range_.hub}, offsets {at} to {range_.end - 1}"
            what = f"{error.what} ({error.value})" if error.value is not None else error.what
            return type(error)(f"records were not read: {what}", where, error.hint)

        back_off = BackOff(self._retry_s)
        while at < range_.end:
            span = [("from", str(at)), ("until", str(range_.end))]
            try:
                with self._wire.records(range_.hub, range_.servers, [*span, *self._params]) as answer:
                    for batch in _batches(answer):
                        if batch.num_rows:
                            at = _behind(batch, at, range_)
                            back_off.renew()
                            yield self._shaped(batch)
                return
            except OffsetsLostError as error:
                if self._fail_on_data_loss:
                    raise
                LOG.warning("records are gone, the read goes on behind them: %s", error.message)
                at = max(at + 1, range_.end if error.end is None else error.end)
            except (*BROKEN, pa.ArrowException) as broken:
                reason = str(broken) or type(broken).__name__
                broken = StreamBrokenError(
                    f"the stream breaks off ({reason})", hint="the node's log says why"
                )
                back_off.wait(unread(broken))
            except HubSubError as error:
                if not error.retryable:
                    raise unread(error) from None
                back_off.wait(unread(error))

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The requested columns, without a copy if their types are Spark's already."""
        if self._rooms is not None:
            rooms = pa.array(sorted(self._rooms), batch.schema.field("room").type)
            batch = batch.filter(pc.is_in(batch.column("room"), value_set=rooms))
        arrays = []
        for field in self._schema:
            is_ours = field.name == CAUGHT_UP
            array = pa.repeat(self._caught_up, batch.num_rows) if is_ours else batch.column(field.name)
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _behind(batch: pa.RecordBatch, at: int, range_: Range) -> int:
    """The offset after a batch, after a check that the batch matches the request."""
    offsets = batch.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if not at <= first <= last < range_.end:
        got = f"{first} to {last}, asked for were {at} to {range_.end - 1}"
        raise PipelineError("the node sent offsets that were not asked for", got)
    return int(last) + 1


def _batches(answer: http.client.HTTPResponse) -> Iterator[pa.RecordBatch]:
    body = _Body(answer)
    yield from pa.ipc.open_stream(pa.PythonFile(body, mode="r"))
    body.finish()


class _Body:
    """The body of a response as a file, for Arrow. It reads into Arrow's own memory: one copy, from the socket."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self._short = False
        self.closed = False

    def read(self, size: int) -> Any:
        buffer = pa.allocate_buffer(size)
        got = self._answer.readinto(memoryview(buffer))
        if got == size:
            return buffer
        self._short = True
        return buffer.slice(0, got)

    def finish(self) -> None:
        """Raises unless everything was read, and Arrow stopped at its end mark."""
        if self._short or self._answer.read(1):
            raise http.client.IncompleteRead(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
