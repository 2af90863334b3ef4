"""A room and the end of its history, polled about once a second for one listener.

The room is not read while the listener has not taken the previous event. In a busy room the listener gets
only the latest records; their positions show the gap.
"""

import asyncio
import base64
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec

from hubsub.api.console.board import Board
from hubsub.api.console.schema import Tail, TailRecord
from hubsub.api.console.watch import Ask
from hubsub.api.others import Call
from hubsub.api.params import position
from hubsub.api.schema import HistoryPage, Record, Room
from hubsub.config import RoomClass

LOOK_S: Final = 1.0
RECORDS: Final = 50
"""Records read per poll."""
PAYLOAD_BYTES: Final = 1_024
"""A longer payload is truncated to this."""
HEADERS: Final = 16
HEADER_CHARS: Final = 256

TAIL: Final = "tail"


async def follow(room: bytes, ask: Ask, classes: Callable[[], tuple[RoomClass, ...]], board: Board) -> None:
    """Puts events about a room on a board until cancelled.

    Args:
        room: Name of the room.
        ask: Calls the API of this node.
        classes: Returns the current room classes.
        board: The listener's board.
    """
    path, last = f"/v1/rooms/{quote(room, safe='')}", (0, 0)
    while True:
        if not board.has(TAIL):
            reply = await ask(Call("GET", path, ""))
            records: list[Record] = []
            kept = True
            if reply.status < 400:
                found = msgspec.json.decode(reply.body, type=Room)
                kept = _keeps(found.room_class, classes())
                if kept and position(found.position) != last:
                    records = await _records(path, ask)
            fresh = [record for record in records if position(record.position) > last]
            if fresh:
                last = position(fresh[-1].position)
            tail = Tail(records=[_cut(record) for record in fresh], kept=kept, room=msgspec.Raw(reply.body))
            board.put(TAIL, msgspec.json.encode(tail))
        await asyncio.sleep(LOOK_S)


async def _records(path: str, ask: Ask) -> list[Record]:
    reply = await ask(Call("GET", f"{path}/history", f"count={RECORDS}"))
    return msgspec.json.decode(reply.body, type=HistoryPage).records if reply.status < 400 else []


def _keeps(name: str, classes: tuple[RoomClass, ...]) -> bool:
    """Whether a class has a history; an unknown class may."""
    return all(cls.history is not None or cls.is_logged for cls in classes if cls.name == name)


def _cut(record: Record) -> TailRecord:
    payload, encoded = record.payload, record.payload_base64
    if payload is not None:
        size = len(payload.encode())
        # A character that is cut in its middle is left out.
        payload = payload.encode()[:PAYLOAD_BYTES].decode(errors="ignore")
    else:
        data = base64.b64decode(encoded or "")
        size, encoded = len(data), base64.b64encode(data[:PAYLOAD_BYTES]).decode()
    headers = list(record.headers.items())[:HEADERS]
    return TailRecord(
        position=record.position,
        timestamp_us=record.timestamp_us,
        topic=record.topic,
        publisher=record.publisher,
        headers={name[:HEADER_CHARS]: value[:HEADER_CHARS] for name, value in headers},
        payload=payload,
        payload_base64=encoded,
        payload_bytes=size,
    )
