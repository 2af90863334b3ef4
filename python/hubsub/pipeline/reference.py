"""docs/reference/spark.md, made of the table of options and the schema."""

from hubsub.pipeline.options import NAMES
from hubsub.pipeline.schema import spark_schema

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
"""Option to its default and what it means."""

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
}


def page() -> str:
    """The whole page."""
    out = [
        "# The Spark source: options and columns",
        "",
        "Written from the definitions by `make fix`; change `python/hubsub/pipeline/reference.py` instead.",
        "",
        "## Options",
        "",
        "Case does not count. A name that is not here is an error, with the nearest one.",
        "",
        "| option | default | meaning |",
        "| --- | --- | --- |",
        *("| `{}` | {} | {} |".format(name, *OPTION_DOCS[name]) for name in NAMES),
        "",
        "## Columns",
        "",
        "| column | type | meaning |",
        "| --- | --- | --- |",
        *(
            f"| `{f.name}` | `{f.dataType.simpleString()}` | {COLUMN_DOCS[f.name]} |"
            for f in spark_schema().fields
        ),
    ]
    return "\n".join(out) + "\n"
