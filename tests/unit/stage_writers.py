"""Writers of batches through stages on a fake node, and the published rows, for tests."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from hubsub.control.batches import Batches
from hubsub.control.cluster.log_owners import LogOwner
from hubsub.control.staging import Staging
from hubsub.errors import (
    HubSubError,
    StagesMissingError,
)
from unit.fake_rooms import FakeRooms, Killed

LIMITS = {
    "stage_bytes_max": 1 << 30,
    "stage_ms": 3_600_000,
    "http_stage_bytes_max": 1 << 20,
    "http_stages_max": 100,
    "request_timeout_ms": 60_000,
}


async def pieces(rows: Sequence[str], size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(rows), size):
        yield json.dumps(rows[start : start + size]).encode()


class Ring:
    """Assigns rooms to `hubs` hubs by a hash of their names. All hubs are on this node, except the stages'
    hubs in `away` and the queries' hubs if `of_queries` is another node."""

    def __init__(self, hubs: int = 16, away: frozenset[int] = frozenset(), of_queries: str = "me") -> None:
        self.hubs, self.away, self.of_queries = hubs, away, of_queries

    @property
    def log_owners(self) -> Ring:
        return self

    def keeps_log(self, room_class: str) -> bool:
        return True

    def all(self) -> list[LogOwner]:
        return [self.of(name, i) for name in ("$queries", "$stage") for i in range(self.hubs)]

    def of(self, room_class: str, index: int) -> LogOwner:
        of_stage = "other" if index in self.away else "me"
        node = self.of_queries if room_class == "$queries" else of_stage
        return LogOwner(index + 1, room_class, index, node, None)

    def index_of(self, room: bytes) -> int:
        return sum((i + 1) * byte for i, byte in enumerate(room)) % self.hubs


class OnNode:
    """A node's stages and batches."""

    def __init__(self, rooms: Any, cluster: Any = None, **limits: int) -> None:
        self.limits = limits
        self.stages = Staging(rooms, lambda: LIMITS | limits, lambda: cluster)
        self.batches = Batches(rooms, self.stages, lambda: LIMITS | limits)
        self.stage, self.commit, self.abort = self.stages.stage, self.batches.commit, self.batches.abort
        self.give_up, self.blocked = self.batches.give_up, self.batches.blocked
        self.resume, self.retry, self.counts = self.batches.resume, self.batches.retry, self.batches.counts


class Driver:
    """Spark as a sink sees it: tasks, repeated tasks, and a driver that forgets every unconfirmed batch."""

    def __init__(self, rooms: FakeRooms, dice: random.Random) -> None:
        self.rooms = rooms
        self.dice = dice
        self.names = 0
        self.on_node = OnNode(rooms)

    async def run(self, batch: int, rows: Sequence[str]) -> None:
        """Writes a micro-batch until it is committed and the driver knows that; the driver may die in
        between."""
        for _ in range(100):
            attempts = await self.write(rows)
            if attempts is None or self.dice.random() < 0.2:
                continue  # The driver died before the commit.
            if await self.commit(batch, attempts):
                if self.dice.random() < 0.2:
                    continue  # It died before it recorded that the batch is done.
                return
        raise AssertionError("never done")

    async def write(self, rows: Sequence[str]) -> list[str] | None:
        """Stages the rows in random order, in tasks of which some fail and are repeated. Returns the
        attempts; None if the node was killed."""
        rows = self.dice.sample(list(rows), len(rows))
        tasks = [rows[n::3] for n in range(3)]
        attempts = []
        for task in tasks:
            while True:
                self.names += 1
                name = f"a{self.names}"
                try:
                    await self.on_node.stage("q", name, None, pieces(task, self.dice.randint(1, 4)))
                except Killed:
                    await self.restart()
                    return None
                except HubSubError as error:
                    assert error.retryable, error
                    self.rooms.refuses_own = 0
                    continue
                if self.dice.random() < 0.8:
                    attempts.append(name)
                    break
        return attempts

    async def commit(self, batch: int, attempts: list[str]) -> bool:
        for _ in range(100):
            try:
                if self.dice.random() < 0.3 and len(self.on_node.blocked):
                    # As the node does by itself, concurrently with the driver.
                    await self.on_node.batches._resume("q")
                await self.on_node.batches._commit("q", batch, attempts)
                return True
            except Killed:
                await self.restart()
            except StagesMissingError:
                return False
            except HubSubError as error:
                assert error.retryable, error
                self.rooms.refuses_own /= 2
                if self.rooms.refuses_own < 0.1:
                    self.rooms.refuses, self.rooms.refuses_own = {}, 0
        raise AssertionError("never committed")

    async def restart(self) -> None:
        for _ in range(100):
            self.rooms.restart()
            if self.dice.random() < 0.5:
                self.rooms.calls_left = self.dice.randint(0, 20)
            self.on_node = OnNode(self.rooms)
            try:
                await self.on_node.resume()
                return
            except Killed:
                continue


def run(rooms: FakeRooms, *steps: Any) -> None:
    async def all_of_them() -> None:
        for step in steps:
            await step()

    asyncio.run(all_of_them())


def found(rooms: FakeRooms) -> list[str]:
    return sorted(row for records in rooms.hubs.values() for _, _, row in records)


async def settled(task: asyncio.Task[None]) -> None:
    """Lets a task run until it blocks."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()


def lose(rooms: FakeRooms, room: bytes) -> None:
    """Damages a log: it loses the records of the rooms that begin with `room`."""
    rooms.journal = [entry for entry in rooms.journal if not entry[0].startswith(room)]


async def hold(node: OnNode, rooms: FakeRooms, batch: int = 0) -> None:
    """Stages and commits a batch of three rows, which is blocked after the first one is published."""
    await node.stage("q", "a", None, pieces(["x1", "y1", "x2"], 2))
    rooms.refuses = {"y": 1.0}
    with pytest.raises(HubSubError):
        await node.commit("q", batch, ["a"])
    rooms.refuses = {"x": 1.0, "y": 1.0}
