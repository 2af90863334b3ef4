"""Generates docs/reference/spark.md from the tables of options and the columns of source and sink."""

from collections.abc import Iterable, Mapping

from hubsub.columns import COLUMNS as RECORD_COLUMNS
from hubsub.pipeline.options import CAUGHT_UP, NAMES, SINK_NAMES
from hubsub.pipeline.schema import spark_schema
from hubsub.pipeline.sink import COLUMNS

OPTION_DOCS = {
    "servers": (
        "`127.0.0.1:3220`",
        "HTTP listeners of nodes, `HOST:PORT` or `https://HOST:PORT`, with commas between; asked in this order.",
    ),
    "subscribe": ("all", "Rooms by name, with commas between; a comma in a name is `%2C`."),
    "subscribePattern": ("all", "Rooms that match: a glob, or an MQTT filter."),
    "topicFilter": ("all", "Topics that match one of these MQTT filters or globs."),
    "startingOffsets": (
        "`earliest`, streams `latest`",
        '`earliest`, `latest`, or by hub `{"0": 17, "chat-1": -2}`: -2 is earliest, -1 latest.',
    ),
    "endingOffsets": ("`latest`", "Likewise, the first offset that is not read. Batch only."),
    "startingTimestamp": ("", "From this time on: milliseconds since 1970, or ISO 8601."),
    "endingTimestamp": ("", "Before this time. Batch only."),
    "maxRowsPerBatch": ("all", "Records of the log that a micro-batch takes, before any filter."),
    "maxBytesPerBatch": ("all", "Likewise bytes, such as `64MiB`."),
    "minPartitions": ("", "Tasks of a read at least, as far as there are records."),
    "failOnDataLoss": (
        "`true`",
        "Whether records that are gone are an error; else they are left out and logged.",
    ),
    "columns": ("all", "Columns that the frame has."),
    "compression": ("`none`", "Of the stream: `none` or `lz4`."),
    "queryName": ("kept by the checkpoint", "Under which nodes show a stream's progress."),
    "token": ("", "Says who asks."),
    "tls.ca": ("the system's", "File with the certificates that are trusted."),
    "tls.cert": ("", "File with the certificate to show."),
    "tls.key": ("", "File with its key."),
    "tls.verify": ("`true`", "Whether the server's certificate is checked."),
    "timeoutSeconds": ("`60`", "A connection that is silent for so long is broken."),
    "retrySeconds": ("`60`", "How long attempts go on without any progress."),
}
"""Option to its default and its description."""

SINK_OPTION_DOCS = {
    "topic": ("", "Topic of all rows, which then have no column for it."),
    "query": (
        "the checkpoint's",
        "Under which the node numbers batches; at most 200 bytes, and nobody else's. A batch write without it is a "
        "query of its own.",
    ),
    "queryName": ("", "Likewise, as the source has it; `query` wins."),
    "batch": (
        "`0`",
        "Number of a batch write of `query`: written again, it is published once. A stream numbers its own.",
    ),
    "checkpointLocation": ("", "Spark's own option; its identity is the query where none is named."),
    "servers": (
        OPTION_DOCS["servers"][0],
        "As of the source; they need a data directory, and one batch goes to one node.",
    ),
}

SINK_COLUMN_DOCS = {
    "topic": "Where to, as `hubsub.names` writes it. Needed, unless the option names it; not null.",
    "payload": "What. Needed; not null. A text goes as UTF-8.",
    "publisher": "Who. Null, or without the column: the query.",
    "headers": "Headers by name. Null, or without the column: none.",
}

COLUMN_DOCS = {
    "hub": "Id of the hub.",
    "term": "Term of the hub's leader.",
    "offset": "Place in the hub's log, from 1.",
    "room": "Room, as `hubsub.names` writes it: UTF-8, other bytes as `%XX`.",
    "epoch": "Life of the room: a room that is deleted and made again has another. Compares for equality only.",
    "seq": "Place in the room, from 1; without gaps in one epoch.",
    "topic": "What the publisher named.",
    "timestamp": "When the node took it, to the microsecond; never falls within a hub.",
    "publisher": "Who published, as the node knows it.",
    "device": "Device, where the room's class has a `device` template that finds one in the topic; else null.",
    "headers": "Headers by name.",
    "payload": "The bytes as they were published.",
    CAUGHT_UP: "Only where the option `columns` names it. Of a stream: whether its batches have reached the end that "
    "the log had when the query was started; false for the backlog before that. Of a batch: true.",
}


def page() -> str:
    out = [
        "# The Spark source and sink: options and columns",
        "",
        "Written from the definitions by `make fix`; change `python/hubsub/pipeline/reference.py` instead.",
        "",
        "In names of options case does not count; one that is not here is an error, with the nearest one.",
        "",
        "## Options of the source",
        "",
        *_options(NAMES, OPTION_DOCS),
        "",
        "## Columns of the source",
        "",
        "| column | type | meaning |",
        "| --- | --- | --- |",
        *(
            f"| `{f.name}` | `{f.dataType.simpleString()}` | {COLUMN_DOCS[f.name]} |"
            for f in spark_schema((*RECORD_COLUMNS, CAUGHT_UP)).fields
        ),
        "",
        "## Options of the sink",
        "",
        *_options(SINK_NAMES, OPTION_DOCS | SINK_OPTION_DOCS),
        "",
        "## Columns of the sink",
        "",
        "Any other column is an error.",
        "",
        "| column | type | meaning |",
        "| --- | --- | --- |",
        *(
            f"| `{name}` | {' or '.join(f'`{kind}`' for kind in kinds)} | {SINK_COLUMN_DOCS[name]} |"
            for name, kinds in COLUMNS.items()
        ),
    ]
    return "\n".join(out) + "\n"


def _options(names: Iterable[str], docs: Mapping[str, tuple[str, str]]) -> list[str]:
    rows = ["| `{}` | {} | {} |".format(name, *docs[name]) for name in names]
    return ["| option | default | meaning |", "| --- | --- | --- |", *rows]
