"""A node's life cycle, over a fake core."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from hubsub.config import load


async def test_a_stop_that_waits_for_the_disk_says_so_and_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    node_module = pytest.importorskip("hubsub.node")
    may_end = threading.Event()

    class StalledCore:
        """A core whose log ends when the test permits it."""

        def __init__(self, config: Any) -> None:
            self._wake, self._ends = os.pipe()

        def start(self) -> dict[str, Any]:
            return {}

        def wake_fd(self) -> int:
            return self._wake

        def stop(self, grace_ms: int) -> None:
            pass

        def drain(self, events_max: int) -> list[Any]:
            return []

        def join(self) -> None:
            assert may_end.wait(30)

    monkeypatch.setattr(node_module._native, "Core", StalledCore)
    monkeypatch.setattr("hubsub.node.lifecycle.SLOW_STOP_S", 0.01)
    with capture_logs() as lines:
        node = node_module.Node(load(flags={"shards": 1}, environ={}))
        await node.start()
        node._on_stopped(0, None)
        stopping = asyncio.create_task(node.stop())
        while len(lines) < 3:
            assert not stopping.done()
            await asyncio.wait({stopping}, timeout=0.01)
        may_end.set()
        await stopping
    assert {line["event"] for line in lines} == {"still waits for the disk of the log"}
    assert [line["waited_s"] for line in lines[:3]] == [0.01, 0.02, 0.04]
