"""Rows of a cluster and their bounds.

- isolation: rooms on two nodes, clients at them; traffic of a third node for their messages.
- scaling: rooms and clients grow with the nodes, each node is offered the same rate; CPU of all nodes per
  delivery.
- forward: a publish at the node where its room lives, and at another one, until the subscriber at the first
  has it; and frames between nodes per message, divided by the nodes that have subscribers.
- failover: `kill -9` of a room's node; until a subscriber on another node has its first message of the new
  epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubsub_bench.cluster.subject import ClusterTarget
from hubsub_bench.scenarios import BaseScenario, Figure, Figures
from hubsub_bench.stats import Bound

THIRD_BYTES_MAX = 1.0
"""Heartbeats do not come evenly: a difference of two windows is not zero to the byte."""
FRAMES_MAX = 1.0
SCALING_MAX = 1.1
FORWARD_MAX = 2.0
FAILOVER_P50_MS, FAILOVER_P99_MS = 500.0, 1_500.0


@dataclass(slots=True)
class Asked:
    """Parameters and results of a row's run.

    Args:
        nodes: Sizes of clusters, ascending.
        seconds: Length of each measured window.
        kills: Number of kills of `failover`.
        rate: Publishes a second that each node is offered in `scaling`; the runner sets it.
        directory: For the nodes' data; the runner creates a new one for each run.
    """

    nodes: Sequence[int]
    seconds: float
    kills: int
    rate: float
    directory: Path
    complaints: list[str] = field(default_factory=list)
    """Why figures are unreliable or missing."""
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    """Raw results of the generator and the row."""
    version: str = ""
    build_profile: str = ""

    @property
    def warmup(self) -> float:
        """Seconds of load before a window."""
        return min(1.0, self.seconds)


@dataclass(frozen=True, slots=True)
class ClusterScenario(BaseScenario):
    """One row.

    Args:
        measure: Runs it against one target.
        pairs_max: Runs of each target that make sense; None: no limit.
        is_of_failover: Only for targets that have failover.
    """

    measure: Callable[[ClusterTarget, Asked], Figures]
    pairs_max: int | None = None
    is_of_failover: bool = False


def scenarios(nodes: Sequence[int]) -> dict[str, ClusterScenario]:
    """The rows by name.

    Args:
        nodes: Sizes of clusters in `scaling`, ascending, each 1 or more.
    """
    from hubsub_bench.cluster import failover, forward, isolation, scaling

    def most(limit: float) -> Bound:
        return Bound(limit, of="value")

    rows = (
        ClusterScenario(
            "isolation",
            "rooms on two nodes of three, clients at them; what the third one sends and receives for each message",
            (
                Figure(isolation.FRAMES, "", bound=most(0.0)),
                Figure(isolation.LINKS, "B", bound=most(THIRD_BYTES_MAX)),
                Figure(isolation.CLIENTS, "B", bound=most(THIRD_BYTES_MAX)),
                Figure(isolation.IDLE, "B/s"),
                Figure(isolation.BUSY, "B/s"),
            ),
            isolation.measure,
        ),
        ClusterScenario(
            "scaling",
            f"{scaling.ROOMS} rooms × {scaling.SUBSCRIBERS} a node, clients where their rooms live, one rate a node",
            (
                Figure(scaling.RATIO, "×", bound=most(SCALING_MAX)),
                *(Figure(scaling.cpu_of(count), "µs") for count in nodes),
                Figure(scaling.BUSY, ""),
                Figure(scaling.IDLE, ""),
            ),
            scaling.measure,
        ),
        ClusterScenario(
            "forward",
            "one publish in flight, subscriber at the room's node; published there, and at another node",
            (
                Figure(forward.RATIO, "×", bound=most(FORWARD_MAX)),
                Figure(forward.LOCAL_P50, "µs"),
                Figure(forward.AWAY_P50, "µs"),
                Figure(forward.LOCAL_P99, "µs"),
                Figure(forward.AWAY_P99, "µs"),
                Figure(forward.FRAMES, "", bound=most(FRAMES_MAX)),
            ),
            forward.measure,
        ),
        ClusterScenario(
            "failover",
            "kill -9 of a room's node, every third the controller's, until a subscriber elsewhere has a message again",
            (
                Figure(failover.P50, "ms", bound=most(FAILOVER_P50_MS)),
                Figure(failover.P99, "ms", bound=most(FAILOVER_P99_MS)),
                Figure(failover.MAX, "ms"),
                Figure(failover.CONTROLLER_P50, "ms"),
                Figure(failover.KILLS, "", lower_is_better=False),
                Figure(failover.NEVER, "", bound=most(0.0)),
            ),
            failover.measure,
            pairs_max=1,
            is_of_failover=True,
        ),
    )
    return {row.name: row for row in rows}
