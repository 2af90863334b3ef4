"""Records leave events for members of dead processes, in classes that record presence.

Each process records its own members in `$stats/presence/ROOM` (docs/presence.md), so the leave events of a
killed process are missing. The node that has these records reads them. A member that joined under a reference
of a process that no longer exists, and has no `leave`, gets one with `"why": "node_gone"`.

Owns no state: everything is in the log, so any process may have been killed, also this one.

Invariants: records are read before the list of processes; a process is registered before it has members. No
`leave` is therefore written for a member of a living process. A `leave` is at worst recorded twice, which has
no effect.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping

import structlog

from hubsub.control.load_samples import ROOM as LOAD_ROOM
from hubsub.errors import HubSubError
from hubsub.names import text_of
from hubsub.node import HistoryRow, Item, Node, publish_own

ROOMS = b"$stats/presence/"
"""Prefix of the rooms that hold these records."""

ROOMS_PAGE = 1_000
ROWS_PAGE = 1_000
"""Rooms or records per read."""

LOOK_S = 1.0
"""Seconds between two checks of the processes, and between two retries."""

log = structlog.get_logger()


def run_of(node: str, incarnation: int) -> str:
    """A process's prefix in references, before the point: FNV-1a of its name and incarnation, as `run_of` in Rust."""
    run = 0xCBF2_9CE4_8422_2325
    for byte in node.encode() + incarnation.to_bytes(8, "little"):
        run = (run ^ byte) * 0x0100_0000_01B3 & 0xFFFF_FFFF_FFFF_FFFF
    return f"{run:x}"


async def report(node: Node, processes: Callable[[], Mapping[str, int]] | None) -> None:
    """Checks after the start, and when a process is gone, until cancelled.

    Args:
        node: This node, which serves.
        processes: Returns names and incarnations of all registered processes; None: a single node.
    """
    if node.config.data is None:
        return

    def there() -> frozenset[str]:
        names = {node.name: node.incarnation} if processes is None else processes()
        return frozenset(run_of(name, incarnation) for name, incarnation in names.items())

    # For a single node the time of its last sample is known; for others the time when their end is noticed.
    last_us = await _last_sample_us(node) if processes is None else None
    due: set[bytes] = set()
    before: frozenset[str] | None = None
    while True:
        now = there()
        try:
            if before is None or before - now:
                due.update([name async for name in _rooms(node)])
            before = now
            for room in sorted(due):
                if await _try_record(node, room, there, last_us):
                    due.discard(room)
            if not due:
                last_us = None
        except HubSubError as error:
            log.warning("records of members cannot be listed", code=error.code, reason=str(error))
        await asyncio.sleep(LOOK_S)


async def _try_record(
    node: Node, room: bytes, there: Callable[[], frozenset[str]], last_us: int | None
) -> bool:
    """Whether nothing is left to record for a room."""
    try:
        count = await record_leaves(node, room, there, last_us or time.time_ns() // 1_000)
    except HubSubError as error:
        if not error.retryable:
            log.warning("it is not recorded who left", room=text_of(room), code=error.code, reason=str(error))
        return not error.retryable
    if count:
        log.info("members of nodes that are gone have left", room=text_of(room), members=count)
    return True


async def record_leaves(node: Node, room: bytes, there: Callable[[], frozenset[str]], at_us: int) -> int:
    """Records the members that left a room with a dead process.

    Args:
        node: It has the room's records.
        room: `$stats/presence/ROOM`.
        there: Returns the prefixes of all existing processes; called after the records are read.
        at_us: When they left, µs since 1970; raised to the time of the room's latest record.

    Returns:
        How many left.

    Raises:
        HubSubError: the room cannot be read, or accepts no records.
    """
    left: set[str] = set()
    came: list[dict[str, object]] = []
    async for row in _newest_first(node, room):
        at_us = max(at_us, row.timestamp_us)
        try:
            record = json.loads(row.payload)
            kind, ref = record["kind"], str(record["ref"])
        except (ValueError, KeyError, TypeError):
            log.warning("no record of a member", room=text_of(room), epoch=row.epoch, seq=row.seq)
            continue
        if kind == "join" and ref not in left:
            came.append(record)
        left.add(ref)
    runs = there()
    gone = [record for record in reversed(came) if str(record["ref"]).partition(".")[0] not in runs]
    leaves = [record | {"kind": "leave", "ts": at_us // 1_000, "why": "node_gone"} for record in gone]
    for begin in range(0, len(leaves), ROWS_PAGE):
        items = [
            Item(room, json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode(), {}, "")
            for record in leaves[begin : begin + ROWS_PAGE]
        ]
        await publish_own(node, items)
    return len(leaves)


async def _rooms(node: Node) -> AsyncIterator[bytes]:
    """All presence rooms that this node has."""
    after: bytes | None = None
    while rooms := await node.rooms(ROOMS + b"*", after, ROOMS_PAGE):
        after = rooms[-1]["name"]
        for room in rooms:
            yield room["name"]


async def _newest_first(node: Node, room: bytes) -> AsyncIterator[HistoryRow]:
    """All retained records of a room's epoch."""
    _, rows = await node.history(room, ROWS_PAGE, as_node=True)
    while rows:
        for row in reversed(rows):
            yield row
        rows = await _before(node, room, rows[0])


async def _before(node: Node, room: bytes, first: HistoryRow) -> list[HistoryRow]:
    """Records right before that one; where retention has removed some, the count is halved repeatedly."""
    count = min(ROWS_PAGE, first.seq - 1)
    while count:
        recovered, rows = await node.history(room, count, (first.epoch, first.seq - 1 - count), as_node=True)
        if recovered and rows:
            return rows
        count //= 2
    return []


async def _last_sample_us(node: Node) -> int | None:
    """Time of the node's last load sample, when it was still alive; None: it is not known."""
    try:
        _, rows = await node.history(LOAD_ROOM, 1, as_node=True)
    except HubSubError:
        return None
    return rows[-1].timestamp_us if rows else None
