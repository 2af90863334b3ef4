"""Acting leaders during a network partition: `on_partition = "serve"`.

A node that has no leader lease and hears no controller is cut off from the majority. For each hub of an
ephemeral class with `serve` it determines the acting leader on its side (`acting_leader`: the leader, or the
first other member that is heard), and its data plane uses that until the node hears a controller again.
Nothing of this is written: the records keep the leader.

Invariant: a node that may lead, or hears a controller, does not act. A process that has heard no controller
since its start is new, not cut off.
"""

import asyncio
from typing import Final

import structlog

from hubsub.control.cluster.context import Context
from hubsub.control.cluster.failover import acting
from hubsub.control.cluster.view import ProcessId
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination.tasks import end, wait_set

SERVE: Final = "serve"

log = structlog.get_logger("hubsub.cluster")


class PartitionMode:
    """Recomputes the acting leaders when woken, and every silence timeout if a class uses `serve`.

    Args:
        context: Store, data plane and clock.
        cache: Hubs, classes and nodes; receives the acting leaders.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
    ) -> None:
        self._ctx = context
        self._cache = cache
        self._news = asyncio.Event()
        self._is_new = True
        """Whether no controller was heard since the start."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(context.ended)

    def wake(self) -> None:
        """Recomputes soon, because the plane or the watch cache changed."""
        self._news.set()

    async def close(self) -> None:
        await end(self._task)

    async def _run(self) -> None:
        while True:
            acting = self._acting()
            if acting != self._cache.acting_leaders:
                mine = sum(process == self._ctx.me for process in acting.values())
                log.warning("hubs are served without a leader lease", hubs=len(acting), here=mine)
                self._cache.set_acting_leaders(acting)
            # Silence causes no event, so it needs a timeout.
            wait_s = self._ctx.timing.silence_s if self._has_serving_class else None
            await wait_set(self._news, wait_s)
            self._news.clear()

    @property
    def _has_serving_class(self) -> bool:
        return any(stored.record.on_partition == SERVE for stored in self._cache.classes.values())

    def _acting(self) -> dict[int, ProcessId]:
        """Acting leader by hub on this side."""
        is_cut_off = self._ctx.plane.is_cut_off()
        self._is_new = self._is_new and is_cut_off
        if self._is_new or not is_cut_off or not self._has_serving_class:
            return {}
        since_s = self._ctx.clock() - self._ctx.timing.silence_s
        peers = self._ctx.plane.peers(0).items()
        heard = {
            name: incarnation
            for (name, incarnation), peer in sorted(peers, key=lambda row: row[0])
            if not peer.is_dead and peer.heard_s is not None and peer.heard_s >= since_s
        }
        heard[self._ctx.me[0]] = self._ctx.me[1]
        found: dict[int, ProcessId] = {}
        for hub, stored in self._cache.hubs.items():
            room_class = self._cache.classes.get(stored.record.room_class)
            process = None if room_class is None else acting(stored.record, room_class.record, heard)
            if process is not None:
                found[hub] = process
        return found
