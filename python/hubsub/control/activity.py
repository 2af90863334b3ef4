"""Logs the busiest clients from time to time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from hubsub.errors import HubSubError
from hubsub.node.status import Client

NAMED_MAX = 5

FIELDS = ("addr", "name", "messages_in_60s", "messages_out_60s", "bytes_out_60s", "pending_bytes", "dropped")
"""Fields of a client that are logged, after its id."""

log = structlog.get_logger()


def busiest(clients: Sequence[Client]) -> list[dict[str, Any]]:
    """Log fields of each client that had traffic in the last minute."""
    return [
        {"conn": c.id, **{field: getattr(c, field) for field in FIELDS}}
        for c in clients[:NAMED_MAX]
        if c.messages_in_60s or c.messages_out_60s
    ]


async def report(
    clients: Callable[[str, int], Awaitable[list[Client]]], interval_ms: Callable[[], int]
) -> None:
    """Logs one line per interval until cancelled; none while no client is busy, or the interval is 0."""
    while True:
        interval = interval_ms()
        await asyncio.sleep((interval or 60_000) / 1_000)
        if not interval:
            continue
        try:
            busy = busiest(await clients("messages_out_60s", NAMED_MAX))
        except HubSubError as error:
            log.warning("busiest clients unknown", code=error.code, reason=error.message)
            continue
        if busy:
            log.info("busiest clients", clients=busy)
