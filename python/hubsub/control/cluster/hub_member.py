"""Answers to the controller as a member and leader of hubs: new rooms that it accepts, and unused rooms."""

from hubsub.control.cluster import rpc
from hubsub.control.cluster.context import Context
from hubsub.control.cluster.directory import Directory
from hubsub.control.cluster.membership import Membership
from hubsub.control.cluster.reports import Reports
from hubsub.control.cluster.watch_cache import WatchCache


class HubMember:
    """Serves `Confirm` and `Forget`.

    Args:
        context: Store, data plane and clock.
        cache: Watch cache of the cluster.
        directory: Learns which rooms are given up.
        membership: Knows whether this node drains.
        reports: Has the latest load, and counts the rooms accepted since.
        rooms_max: Rooms that this node may have.
    """

    def __init__(
        self,
        context: Context,
        cache: WatchCache,
        directory: Directory,
        membership: Membership,
        reports: Reports,
        *,
        rooms_max: int,
    ) -> None:
        self._ctx = context
        self._cache = cache
        self._directory = directory
        self._membership = membership
        self._reports = reports
        self._rooms_max = rooms_max

    def confirm(self, request: rpc.Confirm) -> rpc.Confirmation:
        """Refuses rooms of hubs that this node is no member of, and rooms beyond its capacity."""
        refused: list[bytes] = []
        space = self._rooms_max - self._reports.taken
        space -= 0 if self._reports.latest is None else round(self._reports.latest.rooms)
        for hub, rooms in request.rooms.items():
            stored = self._cache.hubs.get(hub)
            is_mine = stored is not None and self._ctx.me[0] in stored.record.members
            taken = max(0, space) if is_mine and not self._membership.is_draining else 0
            refused += rooms[taken:]
            space -= min(taken, len(rooms))
            self._reports.taken += min(taken, len(rooms))
        return rpc.Confirmation(tuple(refused))

    async def unused(self, request: rpc.Forget) -> rpc.Unused:
        """Returns the unused rooms of a hub; none if this node does not lead the hub in that term."""
        room_class, hub, term = request.room_class, request.hub, request.term
        stored = self._cache.hubs.get(hub)
        if stored is None or (stored.record.leader, stored.record.term) != (self._ctx.me[0], term):
            return rpc.Unused(())
        if not request.gives_up:
            return rpc.Unused(tuple(await self._ctx.plane.unused(hub, term, request.rooms, gives_up=False)))
        # From here on this node's cached room records may be outdated.
        rooms, unused = self._directory.give_up(room_class, request.rooms), frozenset[bytes]()
        try:
            unused = frozenset(await self._ctx.plane.unused(hub, term, rooms, gives_up=True))
        finally:
            self._directory.keep(room_class, [room for room in rooms if room not in unused])
        return rpc.Unused(tuple(unused))
