"""A reader, and a writer of batches, without Spark: sends the requests of the source and the sink to one
node."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import pyarrow as pa

from cluster.cluster import Cluster
from hubsub.pipeline.listing import Listing
from hubsub.pipeline.options import Access
from hubsub.pipeline.packing import Range
from hubsub.pipeline.records import Records
from hubsub.pipeline.schema import arrow_schema
from hubsub.pipeline.selection import Selection
from hubsub.pipeline.wire import Wire

COLUMNS = ("hub", "offset", "room", "payload")


def asker(cluster: Cluster, name: str, retry_s: float = 30.0) -> Wire:
    """A client that knows only one node, and follows that node's redirects."""
    return Wire(Access(servers=(cluster.addresses[name]["http"],), retry_s=retry_s))


def read_all(wire: Wire, listing: Listing, selection: Selection, retry_s: float = 30.0) -> pa.Table:
    """Reads all selected records of the listed hubs, as a task does. It gets no hub owners, so it asks its
    node."""
    records = Records(
        wire,
        log=listing.log,
        selection=selection,
        columns=COLUMNS,
        compression="lz4",
        retry_s=retry_s,
        fail_on_data_loss=True,
    )
    hubs = [hub for hub in listing.hubs.values() if hub.earliest < hub.end]
    ranges = [Range(hub=hub.id, first=hub.earliest, end=hub.end, bytes=hub.bytes) for hub in hubs]
    batches = [batch for range_ in ranges for batch in records.read(range_)]
    return pa.Table.from_batches(batches, arrow_schema(COLUMNS))


def body(rows: Sequence[tuple[str, str]]) -> bytes:
    """Rows of topic and payload as an Arrow stream."""
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in (0, 1)]
    table = pa.Table.from_arrays(columns, ["topic", "payload"])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


def payloads(cluster: Cluster, name: str, room: str) -> list[str]:
    """Payloads of a room's history, read from a node."""
    code, page = cluster.get(name, f"/v1/rooms/{quote(room, safe='')}/history?count=10000")
    assert code == 200, page
    return [record["payload"] for record in page["records"]]
