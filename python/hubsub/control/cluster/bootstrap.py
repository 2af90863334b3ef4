"""Founding a cluster from a node with a log: its hubs, which it numbered itself while it was a single node.

The hubs keep their numbers, so that their records are found. A room of a ring class stays in its hub as long
as its class has the same number of hubs, so the class keeps that number for good. Rooms of other classes go
to the hub that the controller chooses, and the controller does not know the existing rooms: such a class is
refused unless it has one hub.

Invariant: if anything is refused, nothing is written, neither here nor to the coordinator.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from hubsub.config import Config
from hubsub.control.cluster.records import ClassRecord, ClusterRecord, Founder
from hubsub.errors import OtherClusterError, StartError

if TYPE_CHECKING:
    from hubsub.node.status import Manifest

HINT = "found the cluster with another data directory, or start this one as it was"


def founder_of(config: Config) -> Founder | None:
    """Reads a node's data directory; None: it has no log, or its hubs are numbered by a cluster.

    Raises:
        StartError: its log cannot be read.
    """
    manifest = _manifest(config)
    if manifest is None or manifest["cluster"] is not None or not manifest["hubs"]:
        return None
    hubs: dict[str, dict[int, int]] = {}
    for row in manifest["hubs"]:
        hubs.setdefault(row["class"], {})[row["index"]] = row["hub"]
    for name, ids in hubs.items():
        if sorted(ids) != list(range(len(ids))):
            raise StartError("hubs of the log are missing", f"class {name} has {sorted(ids)}", HINT)
    return Founder(
        node=config.node,
        log=manifest["identity"],
        hubs={name: tuple(ids[index] for index in range(len(ids))) for name, ids in sorted(hubs.items())},
    )


def check_unowned(config: Config) -> None:
    """Raises `OtherClusterError` if another cluster numbers the hubs of the data directory."""
    manifest = _manifest(config)
    if manifest is not None and manifest["cluster"] is not None:
        raise OtherClusterError(value=f"{manifest['cluster']}; the coordinator has none yet")


def is_founder(config: Config, cluster: ClusterRecord) -> bool:
    """Whether the cluster was founded with the hubs of this data directory."""
    founder = cluster.founder
    return founder is not None and founder.node == config.node and founder == founder_of(config)


def with_founder_hubs(seeds: Mapping[str, ClassRecord], founder: Founder | None) -> dict[str, ClassRecord]:
    """Returns the classes, with the founder's number of hubs where the founder has some.

    Raises:
        StartError: rooms of a class would not be found, or the class has no log any more.
    """
    records = dict(seeds)
    for name, ids in {} if founder is None else founder.hubs.items():
        record = records.get(name)
        if record is None or record.durability == "ephemeral":
            raise StartError("the data directory has a log of a class that keeps none", name, HINT)
        if record.placement != "ring" and len(ids) > 1:
            raise StartError(
                "a cluster would not find the rooms that the data directory has",
                f"class {name}, {len(ids)} hubs",
                f'placement = "ring" leaves them where they are; or {HINT}',
            )
        records[name] = structs.replace(record, hubs=len(ids))
    return records


def check_unfinished(there: Mapping[str, ClassRecord], founder: Founder | None) -> None:
    """Raises `StartError` if another node began to found this cluster, with a different number of hubs."""
    for name, ids in {} if founder is None else founder.hubs.items():
        if name in there and there[name].hubs != len(ids):
            raise StartError(
                "the coordinator has the class with another number of hubs than the data directory",
                f"class {name}, {there[name].hubs} hubs, {len(ids)} here",
                f"another node began to found this cluster and did not end it; {HINT}",
            )


def _manifest(config: Config) -> "Manifest | None":
    if config.data is None:
        return None
    directory = Path(config.data) / "log"
    if not (directory / "manifest.json").exists():
        return None
    from hubsub.node import log_manifest
    from hubsub.node.setup import log_problem

    try:
        return log_manifest(directory)
    except OSError as error:
        raise StartError(*log_problem(error, directory)) from None
