"""POST /v1/publish: publishes a record or a batch, once per Idempotency-Key.

A key is held in memory by this process. It identifies the whole response of one endpoint for the same topics,
in every class. A producer's sequence is in the log and identifies one record: it outlives the process.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hubsub.api.answers import json_bytes
from hubsub.api.params import body, decode
from hubsub.api.routes import KEY_CHARACTERS_MAX, Routes, key_of
from hubsub.api.schema import ErrorBody, PublishBatch, PublishItem, PublishOne, PublishResult, PublishResults
from hubsub.api.state import State
from hubsub.errors import BadRequestError, TimedOutError, refusal
from hubsub.names import bytes_of, producer_id
from hubsub.node import Failed, Item, Published

routes = Routes("rooms")
PUBLISH_ERRORS = (
    *("topic_length", "payload_length", "body_too_large", "idempotency_mismatch"),
    *("too_many_rooms", "room_creation_rate", "publish_rate", "not_allowed"),
    *("disk_full", "log_failed", "quarantined"),
)


@routes(
    "POST",
    "/v1/publish",
    "Publishes a record, or a batch in order; what a producer numbers is kept once",
    (key_of("one publish"),),
    body=(PublishOne, PublishBatch),
    answer=(PublishResult, PublishResults),
    errors=(*PUBLISH_ERRORS, "not_logged", "sequence_too_old", "sequence_passed", "sequence_reused"),
)
async def publish(state: State, request: Request) -> Response:
    data = await body(state, request)
    parsed: PublishItem | PublishBatch = _parse(data)
    records = parsed.records if isinstance(parsed, PublishBatch) else [parsed]
    most = state.limits["http_batch_records_max"]
    if len(records) > most:
        raise BadRequestError(f"a batch has at most {most} records", len(records), "send several batches")
    publisher = f"http:{request.client.host}:{request.client.port}" if request.client else "http"
    name = parsed.producer if isinstance(parsed, PublishBatch) else None
    items = [
        Item(bytes_of(r.topic), r.payload_bytes(), r.headers, publisher, _producer(r, name)) for r in records
    ]

    async def work() -> bytes:
        results = await state.node.publish(items)
        if isinstance(parsed, PublishItem):
            if isinstance(results[0], Failed):
                raise refusal(*results[0])
            return json_bytes(_result(items[0], results[0]))
        return json_bytes(PublishResults(results=list(map(_result, items, results))))

    answer = await once(state, request, [item.topic for item in items], data, work)
    return Response(answer, media_type="application/json")


async def once(
    state: State, request: Request, topics: Iterable[bytes], data: bytes, work: Callable[[], Awaitable[bytes]]
) -> bytes:
    """Runs a publishing request, or returns the earlier response if its Idempotency-Key was used before.

    A key is scoped to method, path and topics: another client's use of the same key for another room has no
    effect.

    Args:
        state: State of this node.
        request: The request; it may carry the key.
        topics: Topics of the records to publish.
        data: The body; a key identifies exactly one body.
        work: Publishes and returns the response body.

    Returns:
        The response body.

    Raises:
        BadRequestError: the key is too long.
        IdempotencyMismatchError: the key was used with another body.
        TimedOutError: the outcome is not known in time.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise BadRequestError(f"an Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters", len(key))
    done = work() if key is None else state.window.once(_scope(request, topics), key, _digest(data), work)
    try:
        async with asyncio.timeout(state.limits["request_timeout_ms"] / 1_000):
            return await done
    except TimeoutError:
        raise TimedOutError(
            hint="with a producer or an Idempotency-Key the same request may be sent again"
        ) from None


def _scope(request: Request, topics: Iterable[bytes]) -> bytes:
    """Scope of a key: method, path, and each topic once."""
    parts = [request.method.encode(), request.url.path.encode(), *sorted(set(topics))]
    return _digest(b"".join(_digest(part) for part in parts))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _parse(data: bytes) -> PublishItem | PublishBatch:
    """A batch if there is a key `records`, else one record."""
    head = decode(data, dict[str, msgspec.Raw])
    parsed: PublishItem | PublishBatch = decode(data, PublishBatch if "records" in head else PublishItem)
    return parsed


def _producer(record: PublishItem, batch: str | None) -> tuple[int, int] | None:
    """The record's producer and sequence, if it has them."""
    name = record.producer or batch
    if (name is None) != (record.sequence is None):
        raise BadRequestError("a producer and a sequence go together", record.topic, "give both, or neither")
    return None if name is None or record.sequence is None else (producer_id(name), record.sequence)


def _result(item: Item, result: Published | Failed) -> PublishResult:
    if isinstance(result, Failed):
        error = refusal(*result)
        return PublishResult(error=ErrorBody(code=error.code, message=error.message))
    position = f"{result.epoch}-{result.seq}" if result.seq else None
    if result.is_duplicate:
        return PublishResult(position=position, duplicate=True)
    return PublishResult(
        receivers=result.receivers, position=position, duplicate=None if item.producer is None else False
    )
