"""Bodies of the log routes: hubs, and the queries and stages of pipelines. See `schema`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from hubsub.node.status import HubState


class Hub(HubState, kw_only=True):
    """A hub that has a log. Offsets count the records of all its rooms, from 1."""

    name: Annotated[str, Meta(description="CLASS-INDEX, as its rooms name it.")]
    leader: Annotated[str, Meta(description="Name of the node that gives out its offsets.")]
    rooms: Annotated[int | None, Meta(description="Rooms with records; null while it is quarantined.")]


class HubPage(Struct, kw_only=True):
    """One page of hubs, by id."""

    hubs: list[Hub]
    next: Annotated[int | None, Meta(description="The next page's `after`; null on the last page.")]


Cell = Annotated[str, Meta(max_length=256)] | int | float | None


class JobTable(Struct, kw_only=True, forbid_unknown_fields=True):
    """The latest rows of a data pipeline job."""

    query: Annotated[str, Meta(description="What its query is shown as.", max_length=255)]
    columns: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(min_length=1, max_length=16)]
    keys: Annotated[
        int,
        Meta(
            description="So many columns, the first ones, name a row: a later one takes its place. 0: each row is one.",
            ge=0,
        ),
    ] = 0
    rows: Annotated[list[list[Cell]], Meta(description="The latest first.", max_length=20)]
    more: Annotated[int, Meta(description="Rows that are not told.", ge=0)] = 0


class QueryReport(Struct, kw_only=True, forbid_unknown_fields=True):
    """Progress report of a data pipeline query."""

    offsets: Annotated[
        dict[int, Annotated[int, Meta(ge=0)]],
        Meta(description="Hub, by id, to the first offset that is not read yet.", max_length=65_536),
    ]
    rows_per_second: Annotated[float, Meta(ge=0)] | None = None
    batch: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Number of its last batch.")] = None
    ended: Annotated[bool, Meta(description="It reads no further, until it reports again.")] = False
    archived: Annotated[
        bool,
        Meta(
            description="The offsets are the first ones that an archive does not have: retention that waits for it "
            "lets go of what is before them, also after a restart. The query's progress is told apart."
        ),
    ] = False
    room_pattern: Annotated[
        str | None,
        Meta(
            description="The archive has rooms that match this alone: hubs that may have others are left out."
        ),
    ] = None
    log: Annotated[
        str | None, Meta(description="Identity of the log that the archive is of; another one refuses.")
    ] = None


class QueryHub(Struct, kw_only=True):
    """A hub that a query reads."""

    hub: int
    name: str
    offset: Annotated[int, Meta(description="The first one that is not read yet.")]
    lag: Annotated[int, Meta(description="Committed records that it has not read.")]


class Query(Struct, kw_only=True):
    """A query of a data pipeline, from its last report."""

    query: str
    batch: int | None
    rows_per_second: float | None
    ended: Annotated[
        bool, Meta(description="It has said so, as `hubsub pipeline` does; another one falls silent.")
    ]
    silence_s: Annotated[float, Meta(description="Since its last report; after an hour it is forgotten.")]
    lag: Annotated[int, Meta(description="Of all its hubs together.")]
    hubs: list[QueryHub]


class BlockedBatch(Struct, kw_only=True):
    """A committed batch whose rows the rooms cannot accept now."""

    query: str
    batch: int
    rows: Annotated[int, Meta(description="Of the whole batch; some may be published.")]
    code: Annotated[str, Meta(description="Of the error that blocks it.")]
    reason: str
    hint: Annotated[str | None, Meta(description="What to do about it.")]
    blocked_s: Annotated[float, Meta(description="For so long.")]
    tries: Annotated[int, Meta(description="That failed.")]
    next_try_s: Annotated[
        float | None,
        Meta(description="Until the node tries again; null: not before its commit, or the next start."),
    ]


class QueryList(Struct, kw_only=True):
    """Reading queries by name, and the blocked batches of writing queries."""

    queries: list[Query]
    blocked: list[BlockedBatch]


class LoggedHub(Struct, kw_only=True):
    """A hub, with the data that a reader of its log needs."""

    hub: Annotated[int, Meta(description="Its id.")]
    name: str
    room_class: str = msgspec.field(name="class")
    state: Annotated[
        Literal["open", "damaged", "full", "failed", "quarantined"],
        Meta(description="A quarantined one cannot be read, of a damaged one all but the damage."),
    ]
    earliest: Annotated[int, Meta(description="Offset of the oldest record kept, or of the next one.")]
    committed_until: Annotated[
        int, Meta(description="Behind the last offset that may be read: where a range may end at most.")
    ]
    bytes: Annotated[int, Meta(description="Of all its segments.")]
    first_timestamp_us: Annotated[
        int | None, Meta(description="Of its oldest record in a segment; null without one.")
    ]
    last_timestamp_us: int | None
    servers: Annotated[
        list[str], Meta(description="HOST:PORT of those that serve it over HTTP, leader first.")
    ]


class LogInfo(Struct, kw_only=True):
    """A log and its hubs that match the request."""

    log: Annotated[
        str | None,
        Meta(
            description="Identity, in hexadecimal: offsets mean nothing in another one. Null: no class has a log."
        ),
    ]
    hubs: Annotated[list[LoggedHub], Meta(description="By id.")]
    ephemeral: Annotated[list[str], Meta(description="Classes among what was asked for that keep no log.")]


class OffsetAnswer(Struct, kw_only=True):
    """An offset in a hub's log."""

    offset: Annotated[
        int,
        Meta(description="Of the first record of that time or later; `committed_until` if there is none."),
    ]


class StageAnswer(Struct, frozen=True):
    """Rows staged for a batch."""

    rows: int


class BatchCommit(Struct, frozen=True, forbid_unknown_fields=True):
    """Commits a batch: the rows of these attempts, in this order."""

    attempts: list[str]


class BatchAnswer(Struct, frozen=True):
    """Result of committing a batch."""

    published: int
    """Number of rows in the batch."""
    duplicate: bool
    """True if it was published before; then the attempts in this request are dropped."""


class GivenUp(Struct, frozen=True):
    """Result of giving up a batch."""

    rows: Annotated[int, Meta(description="Of the whole batch.")]
    published: Annotated[int, Meta(description="That are known to be in their rooms.")]
    given_up: Annotated[
        int,
        Meta(
            description="The others. Where a node was killed or its log failed amid the batch, those of one chunk "
            "may be in their rooms all the same."
        ),
    ]
