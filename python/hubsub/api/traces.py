"""/v1/trace: the next records of a topic with the time and place of each step, on all nodes.

The asked node starts a trace under one number on every node (`/v1/traces/{id}`, a node's own part), polls their
steps until there are enough records, joins them by position, and ends the trace everywhere. On a busy topic each
shard is full before the others start: the asked node then starts another trace, which follows a sample of the
records, the same on all shards.

A trace also ends by itself, a minute after its deadline. A node that does not answer once is not asked again, so
one that dies meanwhile delays the response once.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from itertools import accumulate
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.everywhere import Everywhere
from hubsub.api.others import Reply
from hubsub.api.params import check_length, name, optional_number, path_id
from hubsub.api.routes import Param, Routes
from hubsub.api.state import State
from hubsub.control.cluster.plane import RPC_BYTES_MAX
from hubsub.errors import BadRequestError, HubSubError, TooManyTracesError
from hubsub.names import text_of

RECORDS_MAX = 100
WAIT_MS_MAX = 60_000
POLL_S = 0.1
"""Time between two looks at the steps of all nodes; and after the last record, for its deliveries to arrive."""
FULL_S = 0.5
"""Time from which a shard is full until the next sample: responses in flight may complete its records."""
SLACK = 50
"""Additional records that each shard follows: it does not know which ones the others follow."""
SAMPLES = (1, 16, 256, 4096)
"""Sampling: about one record in N is followed. The next N is used where the shards were full of different records."""
PART_BYTES_MAX = RPC_BYTES_MAX // 2
"""Bytes of the records in a node's part, so that its encoding fits into a message of a link."""
KINDS = (
    *("received", "waits", "sent_to_shard", "sent_to_leader", "from_shard", "from_node", "logged", "synced"),
    *("committed", "sent_to_node", "from_leader", "delivered", "answered", "acknowledged"),
)
"""In the order in which they happen."""


class Step(Struct, kw_only=True, omit_defaults=True):
    """A step of a record. Its time is of its node's clock."""

    at_us: Annotated[int, Meta(description="Since 1970.")]
    node: str
    shard: int
    kind: Annotated[
        str,
        Meta(
            description="`received`, `waits`, `sent_to_shard`, `sent_to_leader`, `from_shard`, `from_node`, `logged`, "
            "`synced`, `committed`, `sent_to_node`, `from_leader`, `delivered`, `answered`, `acknowledged`."
        ),
    ]
    count: Annotated[
        int | None,
        Meta(description="`committed`, `delivered`: subscribers; `logged`: the offset in the hub's log."),
    ] = None
    peer_node: Annotated[str | None, Meta(description="The other node.")] = None
    peer_shard: Annotated[int | None, Meta(description="The other shard of the node.")] = None


class Part(Struct, kw_only=True):
    """A node's steps of one record."""

    position: str
    steps: list[Step]


class Parts(Struct, kw_only=True):
    """A node's part of a trace."""

    after: Annotated[
        tuple[int, int] | None, Meta(description="Epoch and seq: its parts of later records")
    ] = None
    until: Annotated[tuple[int, int] | None, Meta(description="up to this one are whole.")] = None
    is_full: Annotated[
        bool, Meta(description="Whether one of its shards follows as many records as it may.")
    ] = False
    records: list[Part]

    def add(self, other: "Parts") -> None:
        """Adds the part of another node."""
        self.after = max((end for end in (self.after, other.after) if end), default=None)
        self.until = min((end for end in (self.until, other.until) if end), default=None)
        self.is_full |= other.is_full
        self.records += other.records


class TracedRecord(Struct, kw_only=True):
    """A record, and its steps on all nodes in order of time."""

    position: str
    steps: list[Step]


class Trace(Struct, kw_only=True):
    """The followed records, in order of position."""

    topic: str
    sample: Annotated[
        int, Meta(description="Sampling: about one record in this number was followed; 1: every record.")
    ]
    records: list[TracedRecord]


routes = Routes("rooms")


def join(parts: Parts, records: int) -> list[TracedRecord]:
    """Joins the steps of all nodes by position.

    Args:
        parts: Of all nodes.
        records: Most records to return.

    Returns:
        The first records of which the publish was received and committed while all followed them, in order of
        position; the steps of each in order of time.
    """
    found: dict[str, list[Step]] = {}
    for part in parts.records:
        found.setdefault(part.position, []).extend(part.steps)
    whole = [
        TracedRecord(position=position, steps=sorted(steps, key=_time))
        for position, steps in found.items()
        if {"received", "committed"} <= {step.kind for step in steps}
    ]
    after, until = parts.after or (0, 0), parts.until or (2**64, 0)
    return sorted((record for record in whole if after < _order(record) <= until), key=_order)[:records]


def first_records(records: Iterable[Part], bytes_max: int) -> tuple[list[Part], tuple[int, int] | None]:
    """The first records by position that fit into `bytes_max`, encoded, and the position up to which they are complete;
    None: no record is left out.
    """
    ordered = sorted(records, key=_order)
    sums = accumulate(len(msgspec.json.encode(record)) for record in ordered)
    first = [record for record, total in zip(ordered, sums, strict=True) if total <= bytes_max]
    if len(first) == len(ordered):
        return first, None
    epoch, seq = _order(ordered[len(first)])
    return first, (epoch, seq - 1)


def _order(record: Part | TracedRecord) -> tuple[int, int]:
    epoch, _, seq = record.position.partition("-")
    return int(epoch), int(seq)


def _time(step: Step) -> tuple[int, int]:
    """A key for the order of steps: several may have the same µs."""
    return step.at_us, KINDS.index(step.kind) if step.kind in KINDS else len(KINDS)


class _Traces:
    """Traces on all nodes, one after another, each under its number.

    Args:
        state: Of this node.
        topic: The topic.
        records: Most records that each shard follows.
    """

    def __init__(self, state: State, topic: bytes, records: int) -> None:
        self._state, self._topic, self._records = state, topic, records
        self._number = 0
        self.nodes = Everywhere(state)

    async def start(self, ms: int, sample: int) -> None:
        """Starts a trace on all nodes, and then opens it for publishes.

        Raises:
            TooManyTracesError: a node follows too many already. `end` ends it on the others.
        """
        self._number = secrets.randbits(63)
        bounds = {"records": self._records, "ms": ms, "sample": sample}
        query = urlencode({"topic": text_of(self._topic), **bounds})
        for _ in range(2):
            own = self._state.node.trace_start(self._number, self._topic, self._records, ms, sample)
            # The others have answered before `end` follows.
            refused, replies = await asyncio.gather(_failure_of(own), self._ask("PUT", query))
            if refused is not None:
                raise refused
            for node, reply in replies.items():
                if reply.status == TooManyTracesError.status:
                    raise TooManyTracesError(value=node)
                if reply.status >= 400:
                    self.nodes.missing.add(node)

    async def parts(self) -> Parts:
        """The parts of all nodes."""
        found, replies = await asyncio.gather(_parts(self._state, self._number), self._ask("GET"))
        for node, reply in replies.items():
            if reply.status >= 400:
                self.nodes.missing.add(node)
                continue
            found.add(msgspec.json.decode(reply.body, type=Parts))
        return found

    async def end(self) -> None:
        await asyncio.gather(self._state.node.trace_end(self._number), self._ask("DELETE"))

    async def _ask(self, method: str, query: str = "") -> dict[str, Reply]:
        # A node that is silent is asked once a trace, so that it does not slow the others down; it may have started it.
        skip = () if method == "DELETE" else self.nodes.missing
        return await self.nodes.ask(method, f"/v1/traces/{self._number}", query, skip)


async def _failure_of(call: Awaitable[None]) -> HubSubError | None:
    try:
        await call
    except HubSubError as error:
        return error
    return None


async def _parts(state: State, trace: int) -> Parts:
    """This node's part of a trace."""
    names = {peer["id"]: peer["node"] for peer in state.node.link_peers()}
    records: dict[str, Part] = {}
    traced = await state.node.trace_steps(trace)
    for step in traced.steps:
        position = f"{step.epoch}-{step.seq}"
        part = records.setdefault(position, Part(position=position, steps=[]))
        part.steps.append(
            Step(
                at_us=step.at_us,
                node=state.node.name,
                shard=step.shard,
                kind=step.kind,
                count=step.count,
                peer_node=None if step.peer_node is None else names.get(step.peer_node, "?"),
                peer_shard=step.peer_shard,
            )
        )
    first, until = first_records(records.values(), PART_BYTES_MAX)
    own = Parts(after=traced.after, until=traced.until, is_full=traced.is_full, records=first)
    if until is not None:
        own.add(Parts(until=until, records=[]))
    return own


def _topic(state: State, request: Request) -> bytes:
    topic = name(request, "topic")
    if topic is None:
        raise BadRequestError("topic is missing")
    check_length(topic, state.limits["topic_bytes_max"])
    return topic


TOPIC = Param("topic", "The topic, without wildcards.", min_length=1, required=True)


@routes(
    "GET",
    "/v1/trace",
    "Follows the next records of a topic: the time and place of each step, on all nodes",
    (
        TOPIC,
        Param(
            "records",
            "Ends after this number of records; default 10.",
            "integer",
            minimum=1,
            maximum=RECORDS_MAX,
        ),
        Param("wait_ms", "Ends after this time; default 10 s.", "integer", minimum=1, maximum=WAIT_MS_MAX),
    ),
    answer=(Trace,),
    errors=("too_many_traces", "topic_length"),
)
async def show_trace(state: State, request: Request) -> Response:
    """A record is shown if it has a position, which a record without history has only while somebody subscribes.
    On a busy topic only a sample of the records is followed.
    """
    topic = _topic(state, request)
    records = optional_number(request, "records", 1, RECORDS_MAX) or 10
    wait_ms = optional_number(request, "wait_ms", 1, WAIT_MS_MAX) or 10_000
    trace, time = _Traces(state, topic, records + SLACK), asyncio.get_running_loop().time
    until = time() + wait_ms / 1_000

    async def is_over() -> bool:
        return time() >= until or state.stopping or await request.is_disconnected()

    best = Trace(topic=text_of(topic), sample=1, records=[])
    for sample in SAMPLES:
        found = await _follow(trace, sample, records, until, is_over)
        if len(found) > len(best.records):
            best.sample, best.records = sample, found
        if len(best.records) == records or await is_over():
            break
    return json_answer(best, headers=trace.nodes.headers)


async def _follow(
    trace: _Traces, sample: int, records: int, until: float, is_over: Callable[[], Awaitable[bool]]
) -> list[TracedRecord]:
    """Follows a sample of the records until there are enough, the time is over, or a shard is full and the others do
    not have the same records.
    """
    time = asyncio.get_running_loop().time
    full_since = None
    try:
        await trace.start(max(1, round((until - time()) * 1_000)), sample)
        while not await is_over():
            parts = await trace.parts()
            full_since = (full_since or time()) if parts.is_full else None
            is_full = full_since is not None and time() - full_since >= FULL_S and sample < SAMPLES[-1]
            if len(join(parts, records)) == records or is_full:
                break
            await asyncio.sleep(min(POLL_S, max(0, until - time())))
        await asyncio.sleep(POLL_S)
        return join(await trace.parts(), records)
    finally:
        await asyncio.shield(trace.end())


@routes(
    "PUT",
    "/v1/traces/{id}",
    "Starts a node's part of a trace, and opens it the second time; /v1/trace does so on all nodes",
    (
        TOPIC,
        Param(
            "records",
            "Maximum number of records to follow.",
            "integer",
            minimum=1,
            maximum=RECORDS_MAX + SLACK,
        ),
        Param("ms", "Time limit.", "integer", minimum=1, maximum=WAIT_MS_MAX),
        Param(
            "sample",
            "Sampling: about one record in this number is followed; default 1.",
            "integer",
            minimum=1,
            maximum=SAMPLES[-1],
        ),
    ),
    status=204,
    errors=("too_many_traces", "topic_length"),
)
async def start_part(state: State, request: Request) -> Response:
    trace, topic = path_id(request, "id"), _topic(state, request)
    records = optional_number(request, "records", 1, RECORDS_MAX + SLACK) or 10
    ms = optional_number(request, "ms", 1, WAIT_MS_MAX) or 10_000
    sample = optional_number(request, "sample", 1, SAMPLES[-1]) or 1
    await state.node.trace_start(trace, topic, records, ms, sample)
    return Response(status_code=204)


@routes("GET", "/v1/traces/{id}", "The steps of a node's part of a trace", answer=(Parts,))
async def show_part(state: State, request: Request) -> Response:
    return json_answer(await _parts(state, path_id(request, "id")))


@routes("DELETE", "/v1/traces/{id}", "Ends a node's part of a trace", status=204)
async def end_part(state: State, request: Request) -> Response:
    await state.node.trace_end(path_id(request, "id"))
    return Response(status_code=204)
