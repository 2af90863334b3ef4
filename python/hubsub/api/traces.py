"""/v1/trace: the next records of a topic with the time and place of each step, on all nodes.

The asked node starts a trace under one number on every node (`/v1/traces/{id}`, a node's own part), polls their
steps until there are enough records, joins them by position, and ends the trace everywhere. A trace also ends by
itself, at its deadline and a minute later, so a node that dies meanwhile leaves nothing.
"""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.others import ONLY, Call, Reply, encode, reply_of
from hubsub.api.params import check_length, name, optional_number, path_id
from hubsub.api.reach import UNREACHABLE
from hubsub.api.routes import Param, Routes
from hubsub.api.state import State
from hubsub.errors import BadRequestError, HubSubError, TooManyTracesError
from hubsub.names import text_of

RECORDS_MAX = 100
WAIT_MS_MAX = 60_000
POLL_S = 0.1
"""Time between two looks at the steps of all nodes; and after the last record, for its deliveries to arrive."""
SLACK = 2
"""Each shard follows so many times the records: it does not know which of them the others follow."""


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

    records: list[Part]


class TracedRecord(Struct, kw_only=True):
    """A record, and its steps on all nodes in order of time."""

    position: str
    steps: list[Step]


class Trace(Struct, kw_only=True):
    """The followed records, in order of position."""

    topic: str
    records: list[TracedRecord]


routes = Routes("rooms")


def join(parts: Iterable[Part], records: int) -> list[TracedRecord]:
    """Joins the steps of all nodes by position.

    Args:
        parts: Of all nodes.
        records: Most records to return.

    Returns:
        The first records of which the publish was received and committed while they were followed, in order of
        position; the steps of each in order of time.
    """
    found: dict[str, list[Step]] = {}
    for part in parts:
        found.setdefault(part.position, []).extend(part.steps)
    whole = [
        TracedRecord(position=position, steps=sorted(steps, key=lambda step: step.at_us))
        for position, steps in found.items()
        if {"received", "committed"} <= {step.kind for step in steps}
    ]
    return sorted(whole, key=lambda record: [int(n) for n in record.position.split("-")])[:records]


class _Everywhere:
    """A trace on all nodes, under one number."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._number = secrets.randbits(63)
        self.missing: set[str] = set()

    async def start(self, topic: bytes, records: int, ms: int) -> None:
        """Starts it on all nodes, and then opens it for publishes.

        Raises:
            TooManyTracesError: a node follows too many already.
        """
        query = f"topic={quote(topic, safe='')}&{urlencode({'records': records, 'ms': ms})}"
        for _ in range(2):
            own = self._state.node.trace_start(self._number, topic, records, ms)
            _, replies = await asyncio.gather(own, self._ask("PUT", query))
            for node, reply in replies.items():
                if reply.status == TooManyTracesError.status:
                    raise TooManyTracesError(value=node)
                if reply.status >= 400:
                    self.missing.add(node)

    async def parts(self) -> list[Part]:
        own, replies = await asyncio.gather(_parts(self._state, self._number), self._ask("GET"))
        others = [
            msgspec.json.decode(reply.body, type=Parts) for reply in replies.values() if reply.status < 400
        ]
        return [part for parts in (own, *others) for part in parts.records]

    async def end(self) -> None:
        await asyncio.gather(self._state.node.trace_end(self._number), self._ask("DELETE"))

    async def _ask(self, method: str, query: str = "") -> dict[str, Reply]:
        others = self._state.others
        if others is None:
            return {}
        call = encode(Call(method, f"/v1/traces/{self._number}", f"{query}&{ONLY}" if query else ONLY))
        names = sorted(others.names())
        answers = await asyncio.gather(*(others.ask(name, call) for name in names), return_exceptions=True)
        replies = {}
        for node, answer in zip(names, answers, strict=True):
            if isinstance(answer, bytes):
                replies[node] = reply_of(answer)
            elif isinstance(answer, HubSubError):
                self.missing.add(node)
            else:
                raise answer
        return replies


async def _parts(state: State, trace: int) -> Parts:
    """This node's part of a trace."""
    names = {peer["id"]: peer["node"] for peer in state.node.link_peers()}
    records: dict[str, Part] = {}
    for step in await state.node.trace_steps(trace):
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
    return Parts(records=list(records.values()))


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
        Param("records", "Ends after so many; default 10.", "integer", minimum=1, maximum=RECORDS_MAX),
        Param("wait_ms", "Ends after this time; default 10 s.", "integer", minimum=1, maximum=WAIT_MS_MAX),
    ),
    answer=(Trace,),
    errors=("too_many_traces", "topic_length"),
)
async def show_trace(state: State, request: Request) -> Response:
    """A record is shown if it has a position, which a record without history has only while somebody subscribes."""
    topic = _topic(state, request)
    records = optional_number(request, "records", 1, RECORDS_MAX) or 10
    wait_ms = optional_number(request, "wait_ms", 1, WAIT_MS_MAX) or 10_000
    trace, loop = _Everywhere(state), asyncio.get_running_loop()
    until = loop.time() + wait_ms / 1_000
    try:
        await trace.start(topic, records * SLACK, wait_ms)
        while not state.stopping and not await request.is_disconnected():
            left = until - loop.time()
            found = len(join(await trace.parts(), records))
            if found == records or left <= 0:
                break
            await asyncio.sleep(min(POLL_S, left))
        await asyncio.sleep(POLL_S)
        joined = join(await trace.parts(), records)
    finally:
        await asyncio.shield(trace.end())
    headers = {UNREACHABLE: ", ".join(sorted(trace.missing))} if trace.missing else None
    return json_answer(Trace(topic=text_of(topic), records=joined), headers=headers)


@routes(
    "PUT",
    "/v1/traces/{id}",
    "Starts a node's part of a trace, and opens it the second time; /v1/trace does so on all nodes",
    (
        TOPIC,
        Param("records", "Follows so many.", "integer", minimum=1, maximum=RECORDS_MAX * SLACK),
        Param("ms", "For so long.", "integer", minimum=1, maximum=WAIT_MS_MAX),
    ),
    status=204,
    errors=("too_many_traces", "topic_length"),
)
async def start_part(state: State, request: Request) -> Response:
    trace, topic = path_id(request, "id"), _topic(state, request)
    records = optional_number(request, "records", 1, RECORDS_MAX * SLACK) or 10
    ms = optional_number(request, "ms", 1, WAIT_MS_MAX) or 10_000
    await state.node.trace_start(trace, topic, records, ms)
    return Response(status_code=204)


@routes("GET", "/v1/traces/{id}", "The steps of a node's part of a trace", answer=(Parts,))
async def show_part(state: State, request: Request) -> Response:
    return json_answer(await _parts(state, path_id(request, "id")))


@routes("DELETE", "/v1/traces/{id}", "Ends a node's part of a trace", status=204)
async def end_part(state: State, request: Request) -> Response:
    await state.node.trace_end(path_id(request, "id"))
    return Response(status_code=204)
