"""Updates of a node about its cluster and requests about its peers: links, and leader leases of ephemeral hubs.

Times of leader leases are seconds of `time.monotonic()`; the core's clock is the same with a different start.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from math import inf

from hubsub.errors import StartError
from hubsub.node.lifecycle import Lifecycle
from hubsub.node.status import Peer
from hubsub.node.types import LeasePeer, LeaseSnapshot

READS = 8
"""Reads of both clocks at the first comparison, so that one pair is not interrupted."""


class Peers(Lifecycle):
    """The peer part of `Node`."""

    _began_s = inf
    """When the core's clock began, or slightly later."""

    # -- links --

    def link_begin(self, cluster: str, incarnation: int) -> None:
        """Sets this node's identity in its cluster: from now on it accepts and dials peers. The secret is the
        configuration's.

        Args:
            cluster: Id, at most 64 bytes.
            incarnation: As issued when the node registered.

        Raises:
            StartError: there is no listener for links.
        """
        secret = self.config.cluster_secret
        if self.config.link is None or secret is None:
            hint = "`link` and `cluster_secret` in the configuration, on all nodes of the cluster"
            raise StartError("this node has no listener for links", hint=hint)
        self._core.link_begin(cluster, self.name, incarnation, secret.reveal().encode())

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        """Sets the nodes that may have links with this one; the same list again changes nothing.

        Args:
            peers: All registered nodes, as `(name, incarnation, addresses, shards)`; addresses are `IP:PORT`,
                tried in turn. This node itself is skipped.
        """
        self._core.link_roster([(name, number, list(to), shards) for name, number, to, shards in peers])

    def link_peers(self) -> list[Peer]:
        """Peers and the state of their links, by name."""
        return self._core.link_peers() if self.addresses else []

    def link_status(self, classes: int) -> None:
        """Sets this node's version of the classes, which peers receive together with the state of its leader leases."""
        self._core.link_status(classes)

    async def link_ask(self, node: str, body: bytes) -> bytes:
        """Sends a request to a peer's control plane.

        Raises:
            NotLinkedError: there is no link to it now.
            LinkFullError: too many bytes wait for it.
            LinkLostError: the link ended; the request may have been carried out.
            TimedOutError: no reply within `request_timeout_ms`; it may have been carried out.
        """
        return await self._ask_in_time(self._core.link_ask, node, body)

    def link_answer(self, node: str, number: int, body: bytes) -> None:
        """Replies to a request of `on_request`. If the link has ended since, the reply is dropped and the peer
        times out.

        Args:
            node: Name of the peer.
            number: Number of the request.
            body: The reply.
        """
        self._core.link_answer(node, number, body)

    # -- leader leases: all require `link_begin` first --

    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None:
        """Sets the hubs that this process claims to lead.

        Args:
            routes: All hubs whose records name this process as their leader, as `(hub, term, gives_up)`. A
                hub that it is to give up is not claimed any more, and given up if it leads it.
        """
        self._core.lead_routes(list(routes))

    def lead_voters(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None:
        """Sets the voters, whose majority extends a leader lease while there is no controller.

        Args:
            revision: Revision of the record.
            nodes: The voters, registered or not.
            before: The previous voters, while the set changes; their majority is needed, too.
        """
        self._core.lead_voters(revision, list(nodes), list(before))

    async def lead_tables(
        self,
        controller_term: int,
        until_s: float,
        confirmed_s: float,
        tables: Mapping[tuple[str, int], Collection[tuple[int, int]]],
        voters: int,
    ) -> None:
        """Sets the leader leases that this node, the controller, may grant. Returns when nothing is granted
        by earlier tables.

        Args:
            controller_term: The controller term, from 1; tables of an earlier one change nothing.
            until_s: End of its lease at the coordinator; nothing is granted after it. A time in the past ends
                the controller term.
            confirmed_s: A time at or after which the coordinator had this controller term. The term lasts for
                one leader lease from then, and longer while a majority of the voters acknowledges it.
            tables: By node and incarnation, hubs and terms. A process without a table is granted nothing.
            voters: Revision of the voters that each grant names.

        Raises:
            TimedOutError: the shard did not reply within `request_timeout_ms`; the tables may apply.
        """
        rows = [(node, number, list(pairs)) for (node, number), pairs in tables.items()]
        # Rounded down, with the latest possible clock start: never past the lease.
        until_us = max(0, int((until_s - self._clock_began_s()) * 1e6))
        # Also rounded down: never later than the given time.
        confirmed_us = max(0, int((confirmed_s - self._clock_began_s()) * 1e6))
        await self._ask_in_time(self._core.lead_tables, controller_term, until_us, confirmed_us, rows, voters)

    async def lead_resign(self, controller_term: int) -> None:
        """Ends a controller term. Returns when nothing is granted by it.

        Raises:
            TimedOutError: as `lead_tables`.
        """
        await self._ask_in_time(self._core.lead_resign, controller_term)

    def lead_snapshot(self) -> LeaseSnapshot:
        """The input of a controller's decisions, at most a few ms old. It includes all tables set before and
        all events passed to `on_lease`.
        """
        shown = self._core.lead_snapshot()
        began_s = self._clock_began_s()

        def at(time_us: int) -> float:
            return began_s + time_us / 1e6

        def known(time_us: int | None) -> float | None:
            return None if time_us is None else at(time_us)

        peers = {
            (row["node"], row["incarnation"]): LeasePeer(
                heard_s=at(row["heard_us"]),
                acknowledged_s=known(row["acknowledges_us"]),
                acknowledged_until_s=known(row["acknowledges_until_us"]),
                lease_until_s=known(row["lead_until_us"]),
                gave_up=frozenset(row["gave_up"]),
                suspects=frozenset(row["suspects"]),
            )
            for row in shown["peers"]
        }
        return LeaseSnapshot(
            now_s=at(shown["now_us"]),
            controller_term=shown["controller_term"],
            confirmed_s=at(shown["confirmed_us"]),
            alone_s=known(shown["alone_us"]),
            voters=shown["voters_revision"],
            voters_s=at(shown["voters_since_us"]),
            until_s=at(shown["until_us"]) if shown["until_us"] else None,
            acknowledged_term=shown["acknowledged_term"],
            peers=peers,
        )

    def _clock_began_s(self) -> float:
        """The core's clock is read first: a delay between the reads makes the start later; the smallest is best."""
        for _ in range(READS if self._began_s == inf else 1):
            passed_s = self._core.clock_us() / 1e6
            self._began_s = min(self._began_s, time.monotonic() - passed_s)
        return self._began_s
