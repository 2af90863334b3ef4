"""A node's rooms for tests of staging: a log that survives a kill, and hubs that know their producers.

A kill comes at a call of the test's choice, before or after the call took effect, or amid the rows of a
chunk. It may lose uncommitted stages after the last durable record.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from hubsub.errors import HubClosedError
from hubsub.node import Failed, HistoryRow, Item, Published, PublishedRows


class Killed(BaseException):
    """The simulated end of the node, at a chosen call."""


class Reader:
    """Decodes pieces of JSON rows; each piece becomes a chunk."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        rows = json.loads(data)
        return [(len(rows), data)]

    def finish(self) -> None:
        return None


class FakeRooms:
    """Rooms of a node; a row's first letter is its hub in `hubs`."""

    name = "me"

    def __init__(self, dice: random.Random, window: int = 1_000) -> None:
        self.dice = dice
        self.config = SimpleNamespace(data="data")
        self.journal: list[tuple[bytes, HistoryRow | None]] = []
        """Records of the node's internal rooms, in order; None deletes the room."""
        self.hubs: dict[str, list[tuple[int, int, str]]] = {}
        """Records per hub: producer, number, row."""
        self.window = window
        self.calls_left = -1
        """Calls until the node is killed; negative: never."""
        self.refuses: dict[str, float] = {}
        """Per hub, the probability that it refuses a row."""
        self.refuses_own = 0.0
        """The probability that an internal room refuses a record."""
        self.clock_ahead_s = 0
        """How far the clock of the hubs' leader is ahead of this node's."""
        self.is_led = True
        """Whether the hubs of the internal rooms have a leader; else reads of them fail."""

    # -- kills --

    def restart(self) -> None:
        """The state after a kill: stages after the last durable record may be gone."""
        self.calls_left = -1
        durable = [n for n, (room, _) in enumerate(self.journal) if room.startswith(b"$queries")]
        least = durable[-1] + 1 if durable else 0
        del self.journal[self.dice.randint(least, len(self.journal)) :]

    def _call(self) -> bool:
        """Counts a call. Returns whether the node is killed in this one, after its effect."""
        if self.calls_left < 0:
            return False
        self.calls_left -= 1
        if self.calls_left >= 0:
            return False
        self.calls_left = 0
        if self.dice.random() < 0.5:
            raise Killed
        return True

    def _rows(self, room: bytes) -> list[HistoryRow]:
        rows: list[HistoryRow] = []
        for name, row in self.journal:
            if name == room:
                rows = [] if row is None else [*rows, row]
        return rows

    # -- the node's interface --

    def log(self) -> None:
        """The node has no log."""

    def row_reader(self, topic: bytes | None, publisher: str) -> Reader:
        return Reader()

    async def room(self, room: bytes) -> dict[str, Any] | None:
        return {} if self._rows(room) else None

    async def rooms(self, match: bytes, after: bytes | None, limit: int) -> list[dict[str, Any]]:
        names = {room for room, _ in self.journal if room.startswith(match[:-1])}
        return [{"name": name} for name in sorted(names) if after is None or name > after][:limit]

    async def room_delete(self, room: bytes, *, as_node: bool) -> bool:
        dies = self._call()
        self.journal.append((room, None))
        if dies:
            raise Killed
        return True

    async def history(
        self, room: bytes, count: int, after: tuple[int, int] | None = None, *, as_node: bool
    ) -> tuple[bool, list[HistoryRow]]:
        if not self.is_led:
            raise HubClosedError()
        rows = self._rows(room)
        if after is None:
            return True, rows[-count:]
        return bool(rows), [row for row in rows if (row.epoch, row.seq) > after][:count]

    async def publish(self, items: Sequence[Item], *, as_node: bool) -> list[Published | Failed]:
        dies = self._call()
        results: list[Published | Failed] = []
        for item in items:
            if self.dice.random() < self.refuses_own:
                results.append(Failed("disk_full", "full"))
                continue
            seq = sum(name == item.topic for name, _ in self.journal) + 1
            at_us = int((time.time() + self.clock_ahead_s) * 1e6)
            row = HistoryRow(1, seq, at_us, item.topic, "", item.payload, item.headers)
            self.journal.append((item.topic, row))
            results.append(Published(0, 1, seq))
        if dies:
            raise Killed
        return results

    async def publish_rows(
        self, chunk: bytes, left: Sequence[int] | None, of: Sequence[int] | None, producer: int
    ) -> PublishedRows:
        dies = self._call()
        again, refused = 0, []
        rows: Mapping[int, str] = dict(enumerate(json.loads(chunk)))
        numbered = [(place, row) for place, row in rows.items() if of is None or place in of]
        numbers = {
            place: sum(other[0] == row[0] for before, other in numbered if before <= place)
            for place, row in numbered
        }
        taken = [(place, row) for place, row in numbered if left is None or place in left]
        # Hubs of other shards may have stored more or fewer rows when the node is killed.
        reach = {row[0]: self.dice.randint(0, len(taken)) for _, row in taken}
        for n, (place, row) in enumerate(taken):
            hub = row[0]
            if dies and n >= reach[hub]:
                continue
            code = self._keep(hub, producer, numbers[place], row)
            if code == "again":
                again += 1
            elif code is not None:
                refused.append((place, Failed(code, code)))
        if dies:
            raise Killed
        return PublishedRows(again, refused)

    def _keep(self, hub: str, producer: int, number: int, row: str) -> str | None:
        """Stores a row by the rules of `crates/hubsub-route/src/producers.rs`. Returns None or the error
        code; `again` for a duplicate."""
        records = self.hubs.setdefault(hub, [])
        known = {n: text for p, n, text in records[-self.window :] if p == producer}
        if known and number <= max(known):
            if number in known:
                return "again" if known[number] == row else "sequence_reused"
            return "sequence_too_old" if number < min(known) else "sequence_passed"
        if number != max(known, default=0) + 1:
            return "sequence_ahead"
        if self.dice.random() < self.refuses.get(hub, 0):
            return self.dice.choice(["disk_full", "disk_full", "room_creation_rate"])
        records.append((producer, number, row))
        return None
