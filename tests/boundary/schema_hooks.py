"""Custom data for schemathesis, which cannot generate an Arrow IPC stream of rows."""

import io

import pyarrow as pa
import schemathesis
from hypothesis import strategies as st


def rows() -> bytes:
    """Two rows with topics."""
    table = pa.table({"topic": ["chat:a", "chat:b"], "payload": [b"1", b"2"]})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


schemathesis.openapi.media_type("application/vnd.apache.arrow.stream", st.just(rows()))
