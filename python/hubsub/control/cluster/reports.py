"""Reports from nodes to the controller: a node's load, and which of its logged hubs may be moved away. The
controller stores the latest ones.

Invariant: only reports of a node's latest process count.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from hubsub.control.cluster import rpc
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.controller import Controller
from hubsub.control.cluster.placement import Load, NodeLoad
from hubsub.control.cluster.view import Claims
from hubsub.control.cluster.watch_cache import WatchCache
from hubsub.coordination.tasks import wait_set
from hubsub.errors import HubSubError

LOAD_S: Final = 2.0
"""Interval of load reports: much shorter than the smoothing and the age at which a load becomes stale."""

CLAIM_S: Final = 0.05
"""Minimum interval between claims: changes that arrive together are reported together."""

log = structlog.get_logger("hubsub.cluster")


class Reports:
    """Sends this node's reports, and stores the reports of others while it is the controller.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache of the cluster.
        controller: Receives the claims of other nodes.
        loads: Reported load by node; only the controller has those of other nodes.
        ask: Sends a request to the controller.
        claim_news: Set when the claims of this node may have changed.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        controller: Controller,
        loads: dict[str, NodeLoad],
        ask: Callable[[rpc.Request], Awaitable[rpc.Response]],
        claim_news: asyncio.Event,
    ) -> None:
        self._ctx = context
        self.latest: Load | None = None
        self.taken = 0
        """Rooms that this node accepted since its last sample."""
        self._cache = cache
        self._controller = controller
        self._loads = loads
        self._ask = ask
        self._claim_news = claim_news

    async def report(self) -> None:
        """Reports the load, until cancelled."""
        while True:
            await asyncio.sleep(LOAD_S)
            try:
                load = await self._ctx.plane.load()
                if load is not None:
                    self.latest, self.taken = load, 0
                    await self._ask(rpc.Report(load))
            except HubSubError as error:
                log.debug("no load was reported", reason=error.message)

    async def claim(self) -> None:
        """Reports claims, until cancelled: at each change, and again to each new controller."""
        sent: tuple[int, Claims] | None = None
        while True:
            self._claim_news.clear()
            held, claims = self._cache.controller, self._ctx.plane.claims()
            if held is not None and sent != (held.revision, claims) and (sent or claims != Claims()):
                request = rpc.Claim(
                    self._ctx.me[1],
                    tuple(sorted(claims.empty)),
                    dict(claims.sealed),
                    dict(claims.retained),
                )
                try:
                    if isinstance(await self._ask(request), rpc.Acknowledged):
                        sent = held.revision, claims
                except HubSubError as error:
                    log.debug("no hubs were claimed to be empty", reason=error.message)
            await asyncio.sleep(CLAIM_S)
            await wait_set(self._claim_news, LOAD_S)

    def note_claim(self, node: str, claim: rpc.Claim) -> None:
        stored = self._cache.nodes.get(node)
        if stored is not None and stored.record.incarnation == claim.incarnation:
            known = self._controller.claims
            known[node, claim.incarnation] = Claims(
                empty=frozenset(claim.empty), sealed=claim.sealed, retained=claim.retained
            )
            for process in [process for process in known if process[0] not in self._cache.nodes]:
                del known[process]
            for process in [p for p in known if p[0] == node and p[1] < claim.incarnation]:
                del known[process]
            self._controller.wake()

    def note_load(self, node: str, load: Load) -> None:
        if node in self._cache.nodes:
            now, before = self._ctx.clock(), self._loads.get(node)
            fresh = NodeLoad(load=load, at_s=now, added=0.0 if before is None else before.added)
            is_known = before is not None and before.at_s > float("-inf")
            self._loads[node] = before.sampled(load, now) if is_known and before is not None else fresh
        for name in self._loads.keys() - self._cache.nodes.keys():
            del self._loads[name]
