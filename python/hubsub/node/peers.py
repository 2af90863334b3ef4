"""What a node is told of its cluster and asked about its peers: links, and leads of ephemeral hubs.

Times of leads are seconds of `time.monotonic()` here, which is the core's clock counted from another beginning.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any

from hubsub.errors import StartError
from hubsub.node.answers import LeadPeer, LeadSnapshot
from hubsub.node.life import Life

READS = 8
"""Of both clocks, when they are compared the first time: one of them is not interrupted."""


class Peers(Life):
    """A part of `Node`."""

    _began_s = inf
    """When the core's clock began, or a little later."""

    # -- links --

    def link_begin(self, cluster: str, incarnation: int) -> None:
        """Says who this node is in its cluster: from now on it accepts and dials peers. The secret is that of the
        configuration.

        Args:
            cluster: Id, at most 64 bytes.
            incarnation: As it was issued when the node registered.

        Raises:
            StartError: there is no listener for links.
        """
        secret = self.config.cluster_secret
        if self.config.link is None or secret is None:
            hint = "`link` and `cluster_secret` in the configuration, on all nodes of the cluster"
            raise StartError("this node has no listener for links", hint=hint)
        self._core.link_begin(cluster, self.name, incarnation, secret.reveal().encode())

    def link_roster(self, peers: Sequence[tuple[str, int, Sequence[str], int]]) -> None:
        """Sets who may have links with this node; the same again changes nothing.

        Args:
            peers: All that are registered, as `(name, incarnation, addresses, shards)`; addresses are `IP:PORT`, tried
                in turn. This node itself is passed over.
        """
        self._core.link_roster([(name, number, list(to), shards) for name, number, to, shards in peers])

    def link_peers(self) -> list[dict[str, Any]]:
        """Peers and their links now, as `Core.link_peers`."""
        return self._core.link_peers() if self.addresses else []

    def link_status(self, classes: int) -> None:
        """What peers are told of this node: the version of its classes; its leads say the rest."""
        self._core.link_status(classes)

    async def link_ask(self, node: str, body: bytes) -> bytes:
        """Asks a peer's control plane.

        Raises:
            NotLinkedError: there is no link to it now.
            LinkFullError: too much waits for it.
            LinkLostError: the link ended; it may have been done.
            TimedOutError: likewise, after `request_timeout_ms`.
        """
        answer: bytes = await self._ask_in_time(self._core.link_ask, node, body)
        return answer

    def link_answer(self, node: str, number: int, body: bytes) -> None:
        """Answers what `on_asked` was given; who asks knows by its time when the link has ended since."""
        self._core.link_answer(node, number, body)

    # -- leads: all of them behind `link_begin` --

    def lead_routes(self, routes: Sequence[tuple[int, int, bool]]) -> None:
        """Sets which hubs this process claims to lead.

        Args:
            routes: All whose records name this process as their leader, as `(hub, term, gives_up)`; leads of those that
                it is to give up are claimed no more, and given up where they are held.
        """
        self._core.lead_routes(list(routes))

    def lead_census(self, revision: int, nodes: Sequence[str], before: Sequence[str]) -> None:
        """Sets whose majority lets a lead go on while there is no controller.

        Args:
            revision: Of the record.
            nodes: Who counts, whether registered or not.
            before: Who counts too, as long as the census changes.
        """
        self._core.lead_census(revision, list(nodes), list(before))

    async def lead_tables(
        self,
        mandate: int,
        until_s: float,
        confirmed_s: float,
        tables: Mapping[tuple[str, int], Collection[tuple[int, int]]],
        census: int,
    ) -> None:
        """Sets what this node, the controller, may grant. Returns when nothing is granted by tables of before.

        Args:
            mandate: Its number, from 1; those of an earlier one change nothing.
            until_s: End of its lease at the coordinator; nothing is granted from then on. One that has passed ends the
                mandate.
            confirmed_s: A time at or after which the coordinator had this mandate; it runs for one lead from then, and
                longer while a majority of the census heeds it.
            tables: By node and incarnation, hubs and terms. A process that has no table is granted nothing.
            census: Revision of the census that each grant names.

        Raises:
            TimedOutError: the shard gave no answer in `request_timeout_ms`; they may apply.
        """
        rows = [(node, number, list(pairs)) for (node, number), pairs in tables.items()]
        # Rounded down, from a beginning that is too late rather than too early: never past the lease.
        until_us = max(0, int((until_s - self._clock_began_s()) * 1e6))
        # Likewise: never later than it was.
        confirmed_us = max(0, int((confirmed_s - self._clock_began_s()) * 1e6))
        await self._ask_in_time(self._core.lead_tables, mandate, until_us, confirmed_us, rows, census)

    async def lead_resign(self, mandate: int) -> None:
        """Ends a mandate. Returns when nothing is granted by it.

        Raises:
            TimedOutError: as `lead_tables`.
        """
        await self._ask_in_time(self._core.lead_resign, mandate)

    def lead_snapshot(self) -> LeadSnapshot:
        """What a controller decides by, as it was a few ms ago at most. Tables that were set are in it, and what
        `on_lead` was told."""
        shown = self._core.lead_snapshot()
        began_s = self._clock_began_s()

        def at(time_us: int) -> float:
            return began_s + time_us / 1e6

        def known(time_us: int | None) -> float | None:
            return None if time_us is None else at(time_us)

        peers = {
            (row["node"], row["incarnation"]): LeadPeer(
                heard_s=at(row["heard_us"]),
                heeds_s=known(row["heeds_us"]),
                heeds_until_s=known(row["heeds_until_us"]),
                lead_until_s=known(row["lead_until_us"]),
                gave_up=frozenset(row["gave_up"]),
                suspects=frozenset(row["suspects"]),
            )
            for row in shown["peers"]
        }
        return LeadSnapshot(
            now_s=at(shown["now_us"]),
            mandate=shown["mandate"],
            confirmed_s=at(shown["confirmed_us"]),
            alone_s=known(shown["alone_us"]),
            census=shown["census"],
            census_s=at(shown["census_us"]),
            until_s=at(shown["until_us"]) if shown["until_us"] else None,
            heeds=shown["heeds"],
            peers=peers,
        )

    def _clock_began_s(self) -> float:
        """The core's clock is read first: what lies in between makes its beginning late, and the least is right."""
        for _ in range(READS if self._began_s == inf else 1):
            passed_s = self._core.clock_us() / 1e6
            self._began_s = min(self._began_s, time.monotonic() - passed_s)
        return self._began_s
