"""Memory use of a node by pool, and a warning when it exceeds `memory`.

The pools add up to the resident size that the system reports. Each is counted where it is filled; `other` is
the rest of the core's allocations, and `rest` is neither the core's nor existed at the start.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from hubsub.control.resource_usage import resident_bytes
from hubsub.node import Node
from hubsub.node.status import Log

LOOK_S = 10.0

NAMED_MAX = 3
"""Pools that the warning names."""

POOLS: Mapping[str, tuple[Sequence[str], str]] = {
    "connections": (("connections_bytes",), "Connections, without what they send and wait for."),
    "topics": (("topics_bytes",), "Topics with subscribers, and routes to rooms."),
    "rooms": (("rooms_bytes",), "Rooms, without what they remember."),
    "patterns": (("patterns_bytes",), "Patterns and groups: each shard has all."),
    "history": (("history_bytes",), "What rooms remember, and the tails of logs."),
    "retained": (("retained_bytes",), "Retained messages."),
    "output": (("waiting_bytes",), "What waits for clients; bytes for several are there once."),
    "input": (("input_bytes",), "What clients sent that is no whole command yet, or waits."),
    "sessions": (
        ("mqtt_session_queued_bytes", "mqtt_large_bytes"),
        "What waits for absent MQTT clients, and long messages that have not come whole.",
    ),
    "mail": (("mailbox_bytes",), "What waits for another shard."),
    "buffers": (("pool_bytes",), "Buffers for reuse."),
}
"""For each pool, the gauges of a shard that it adds up, and its description."""

DOCS: Mapping[str, str] = {
    **{pool: doc for pool, (_, doc) in POOLS.items()},
    "log": "What waits for the journal, and indexes of segments.",
    "other": "What the data plane has allocated beside those.",
    "program": "The program, its libraries and Python, as the node began to serve.",
    "rest": "What Python has taken since, and what the allocator keeps for reuse.",
}


def pools(metrics: Mapping[str, Any], log: Log | None, program: int, resident: int) -> dict[str, int]:
    """Bytes by pool.

    Args:
        metrics: As returned by `Node.metrics`.
        log: As returned by `Node.log`.
        program: Bytes of the process when it began to serve, without the core's allocations.
        resident: Current bytes of the process.
    """
    shards, used = metrics["shards"], metrics["node"]["memory_used_bytes"]
    of = {pool: sum(shard[name] for shard in shards for name in names) for pool, (names, _) in POOLS.items()}
    of["log"] = 0
    if log is not None:
        of["log"] = log.figures["pending_bytes"] + sum(hub.index_bytes for hub in log.hubs)
    of["other"] = max(0, used - sum(of.values()))
    of["program"] = program
    of["rest"] = max(0, resident - program - used)
    return of


class Memory:
    """Memory use of one node.

    Args:
        node: The running node.
        allowed: Returns the current value of the setting `memory`, in bytes.
    """

    def __init__(self, node: Node, allowed: Callable[[], int]) -> None:
        self._node = node
        self._allowed = allowed
        self._program = 0

    def begin(self) -> None:
        """Called when the node begins to serve: the memory in use then counts as the program's."""
        used = self._node.metrics()["node"]["memory_used_bytes"]
        self._program = max(0, (resident_bytes() or 0) - used)

    def pools(self) -> dict[str, int]:
        """Current bytes by pool; empty where the system does not report the resident size."""
        resident = resident_bytes()
        if resident is None:
            return {}
        return pools(self._node.metrics(), self._node.log(), self._program, resident)

    async def report(self) -> None:
        """Warns, until cancelled, each time that the node starts to exceed its limit."""
        is_over = False
        while True:
            await asyncio.sleep(LOOK_S)
            was_over, is_over = is_over, (resident_bytes() or 0) > self._allowed()
            if is_over and not was_over:
                self.warn()

    def warn(self) -> None:
        of = self.pools()
        largest = sorted(of, key=lambda pool: -of[pool])[:NAMED_MAX]
        log = structlog.get_logger()
        log.warning(
            "more memory than allowed",
            resident_bytes=resident_bytes(),
            memory=self._allowed(),
            largest={pool: of[pool] for pool in largest},
        )
