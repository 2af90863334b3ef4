"""Finds rooms by their nodes, and connects clients there."""

from collections.abc import Sequence
from dataclasses import dataclass

from hubsub_bench import BenchError
from hubsub_bench.cluster.subject import Cluster, Member

LOOK = 64
"""Rooms that are located at a time, per wanted room."""
LOOKS = 32
"""Number of attempts before a node counts as one without rooms."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Rooms on nodes, in the generator's form: room i is at the i-th node, in turn."""

    members: Sequence[Member]
    numbers: Sequence[int]

    def params(self) -> dict[str, object]:
        """Options of the generator: clients connect to the node of their room."""
        return {
            "rooms": len(self.numbers),
            "numbers": ",".join(map(str, self.numbers)),
            "publishers": len(self.numbers),
            "publish_to": "own",
        }

    @property
    def address(self) -> str:
        return ",".join(member.address for member in self.members)

    @property
    def pids(self) -> str:
        return ",".join(str(member.pid) for member in self.members)


def place(cluster: Cluster, members: Sequence[Member], rooms: int) -> Placed:
    """Finds rooms that live on certain nodes, equally many on each.

    Args:
        cluster: The cluster.
        members: The nodes.
        rooms: Number of rooms per node.

    Raises:
        BenchError: a node gets none, or too few.
    """
    found: dict[str, list[int]] = {member.name: [] for member in members}
    for look in range(LOOKS):
        if all(len(numbers) >= rooms for numbers in found.values()):
            break
        wanted = range(look * LOOK * rooms, (look + 1) * LOOK * rooms)
        for number, name in cluster.places(wanted).items():
            if name in found and len(found[name]) < rooms:
                found[name].append(number)
    short = [name for name, numbers in found.items() if len(numbers) < rooms]
    if short:
        raise BenchError("nodes get too few rooms", ", ".join(short))
    return Placed(members, [found[member.name][index] for index in range(rooms) for member in members])
