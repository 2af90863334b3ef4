"""/v1/consumers: consumer groups with a persisted position in a topic, their lag, and their deletion.

The data plane knows a consumer that has had a member since this node leads the room. Any other consumer is
read from its persisted entry.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_answer
from hubsub.api.params import path_name
from hubsub.api.reach import AllTold, Asked, Gathered
from hubsub.api.routes import Routes
from hubsub.api.state import State
from hubsub.errors import HubClosedError, HubSubError, NoSuchConsumerError, refusal
from hubsub.names import text_of
from hubsub.node import Failed, Item

ROWS = b"$consumer/"

AT_ONCE = 64
"""Entries that a list reads concurrently."""


class Consumer(Struct, kw_only=True):
    """A consumer group with a persisted position in a topic."""

    group: str
    topic: str
    position: Annotated[str, Meta(description="All records up to this one are acknowledged.")]
    lag: Annotated[
        int | None,
        Meta(
            description="Records of the topic's room that are not; null where another node leads that room."
        ),
    ]
    delivered: Annotated[int, Meta(description="Of these, records that members have.")]
    members: Annotated[int, Meta(description="In the whole cluster.")]


class ConsumerList(Struct, kw_only=True):
    """Consumers by group and topic."""

    consumers: list[Consumer]


class Key(NamedTuple):
    """Identifies a consumer by group and topic."""

    group: bytes
    topic: bytes


routes = Routes("consumers")


class AtItsRoom:
    """Answers with the data of the room's leader, else of a node that leads the consumer's entry."""

    async def answer(self, asked: Asked) -> Response:
        own, replies, _ = await asked.of_all()
        answers = [(own.status_code, bytes(own.body)), *((r.status, r.body) for r in replies.values())]
        found = [msgspec.json.decode(body, type=Consumer) for status, body in answers if status < 400]
        if not found:
            return own
        return json_answer(min(found, key=lambda consumer: (consumer.lag is None, -consumer.members)))


def merge_consumers(state: State, request: Request, lists: Sequence[ConsumerList]) -> ConsumerList:
    """Sorted by group and topic. If a consumer's room and entry have different leaders, the room's wins."""
    found: dict[tuple[str, str], Consumer] = {}
    for consumer in (consumer for part in lists for consumer in part.consumers):
        key = (consumer.group, consumer.topic)
        if key not in found or found[key].lag is None:
            found[key] = consumer
    return ConsumerList(consumers=[found[key] for key in sorted(found)])


@routes(
    "GET",
    "/v1/consumers",
    "Groups that keep their place in a topic, and how far they are behind",
    answer=(ConsumerList,),
    reach=Gathered(ConsumerList, merge_consumers),
)
async def list_consumers(state: State, request: Request) -> Response:
    found = await _all(state)
    return json_answer(ConsumerList(consumers=[found[key] for key in sorted(found)]))


@routes(
    "GET",
    "/v1/consumers/{group}/{topic}",
    "One of them",
    answer=(Consumer,),
    errors=("no_such_consumer",),
    reach=AtItsRoom(),
)
async def show_consumer(state: State, request: Request) -> Response:
    return json_answer(await _one(state, _key_of(request)))


@routes(
    "DELETE",
    "/v1/consumers/{group}/{topic}",
    "Forgets its place: its next member begins with what comes then",
    status=204,
    errors=("no_such_consumer",),
    reach=AllTold(),
)
async def delete_consumer(state: State, request: Request) -> Response:
    """Deletes the entry, then the data plane's state. Current members continue from the position they send."""
    key = _key_of(request)
    await _one(state, key)
    [outcome] = await state.node.publish([Item(_row(key), b"", {}, "hubsub")], as_node=True)
    if isinstance(outcome, Failed):
        raise refusal(*outcome)
    await state.node.forget_consumer(*key)
    return Response(status_code=204)


def _key_of(request: Request) -> Key:
    return Key(path_name(request, "group"), path_name(request, "topic"))


async def _one(state: State, key: Key) -> Consumer:
    """A consumer of which this node leads the room or the entry.

    Raises:
        NoSuchConsumerError: there is none.
    """
    found = (await _live(state)).get(key)
    if found is None:
        try:
            is_led = await state.node.room(_row(key)) is not None
        except HubClosedError:
            # Another node leads the entry.
            is_led = False
        [found] = await _entries(state, [key]) if is_led else [None]
    if found is None:
        named = f"{text_of(key.group)} of {text_of(key.topic)}"
        raise NoSuchConsumerError(value=named, hint="GET /v1/consumers lists them")
    return found


async def _all(state: State) -> dict[Key, Consumer]:
    """Consumers of which this node leads the room or the entry."""
    found: dict[Key, Consumer] = {}
    after, limit = None, state.limits["http_page_max"]
    while page := await state.node.rooms(ROWS + b"*", after, limit):
        keys = [_key(room["name"]) for room in page]
        for start in range(0, len(keys), AT_ONCE):
            read = keys[start : start + AT_ONCE]
            found |= {key: one for key, one in zip(read, await _entries(state, read), strict=True) if one}
        after = page[-1]["name"]
        if len(page) < limit:
            break
    return found | await _live(state)


async def _live(state: State) -> dict[Key, Consumer]:
    """Consumers that the data plane knows."""
    return {
        Key(row.group, row.topic): Consumer(
            group=text_of(row.group),
            topic=text_of(row.topic),
            position=f"{row.position[0]}-{row.position[1]}",
            lag=row.lag,
            delivered=row.given,
            members=row.members,
        )
        for row in await state.node.consumers()
    }


async def _entries(state: State, keys: Sequence[Key]) -> list[Consumer | None]:
    """Consumers by their persisted entries, in the order of the keys; None for a deleted entry."""

    async def entry(key: Key) -> Consumer | None:
        _, rows = await state.node.history(_row(key), 1, as_node=True)
        is_there = rows and len(rows[-1].payload) >= 16
        return await _cold(state, key, rows[-1].payload) if is_there else None

    return await asyncio.gather(*map(entry, keys))


async def _cold(state: State, key: Key, row: bytes) -> Consumer:
    """A consumer from its entry: epoch, the seq up to which all are acknowledged, and acknowledged seqs above it."""
    epoch, seq = (int.from_bytes(row[at : at + 8], "little") for at in (0, 8))
    lag = None
    try:
        room = await state.node.room(state.node.room_of(key.topic)[0])
    except HubSubError:
        # Another node leads the room; that node reports the group's lag.
        room = None
    if room is not None:
        lag = room["seq"] - seq - (len(row) // 8 - 2) if room["epoch"] == epoch else room["seq"]
    return Consumer(
        group=text_of(key.group),
        topic=text_of(key.topic),
        position=f"{epoch}-{seq}",
        lag=lag,
        delivered=0,
        members=0,
    )


def _row(key: Key) -> bytes:
    """Name of the room that holds the entry, as the data plane builds it."""
    return ROWS + b"/".join(part.replace(b"%", b"%25").replace(b"/", b"%2F") for part in key)


def _key(row: bytes) -> Key:
    group, _, topic = row.removeprefix(ROWS).partition(b"/")
    return Key(*(part.replace(b"%2F", b"/").replace(b"%25", b"%") for part in (group, topic)))
