"""Acting leaders on a side of a network partition, as one process sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hubsub.control.cluster.partition import PartitionMode
from hubsub.control.cluster.records import ClassRecord, HubRecord
from hubsub.control.cluster.view import Peer, ProcessId, Stored, Timing

from .played import play

ME, OTHER = ("a", 7), ("b", 4)
HUB = HubRecord(room_class="chat", index=0, term=1, leader="b", incarnation=4, members=("b", "a"))


class WatchCache:
    def __init__(self) -> None:
        self.classes = {"chat": Stored(ClassRecord(version=1, hubs=1, on_partition="serve"), 1)}
        self.hubs = {1: Stored(HUB, 1)}
        self.acting_leaders: Mapping[int, ProcessId] = {}

    def set_acting_leaders(self, acting: Mapping[int, ProcessId]) -> None:
        self.acting_leaders = acting


def test_a_process_that_has_heard_no_controller_yet_is_new_and_not_cut_off() -> None:
    async def test() -> None:
        loop, cache = asyncio.get_running_loop(), WatchCache()
        plane = SimpleNamespace(
            is_cut_off=lambda: is_cut_off, peers=lambda controller_term: {OTHER: Peer(heard_s=loop.time())}
        )
        is_cut_off = True
        context: Any = SimpleNamespace(
            me=ME, plane=plane, timing=Timing(), clock=loop.time, ended=lambda task: None
        )
        mode = PartitionMode(context, cache)  # type: ignore[arg-type]

        async def seen() -> Mapping[int, ProcessId]:
            mode.wake()
            await asyncio.sleep(0.001)
            return cache.acting_leaders

        assert await seen() == {}
        is_cut_off = False
        assert await seen() == {}
        is_cut_off = True
        assert await seen() == {1: OTHER}
        is_cut_off = False
        assert await seen() == {}
        await mode.close()

    play(test)
