"""The command `hubsub bench cluster`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

NODES_MAX = 100
ROWS = "isolation,scaling,forward,failover"


def cluster(
    rows: Annotated[str, typer.Option(help="Names of rows, with commas between.")] = ROWS,
    nodes: Annotated[
        str, typer.Option(help="Sizes of clusters for `scaling`, with commas between.")
    ] = "1,2,4,8",
    against: Annotated[
        str | None, typer.Option(help="The peer: `redis-cluster`, classic and sharded.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Runs of each cluster; they take turns.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of every measured window.")] = 5.0,
    kills: Annotated[
        int, typer.Option(min=1, help="Of `failover`; every third is the controller's node.")
    ] = 100,
    rate: Annotated[
        float | None,
        typer.Option(min=1.0, help="Publishes a second and node of `scaling`; default: found before."),
    ] = None,
    coordinator: Annotated[
        str,
        typer.Option(
            help="Of HubSub: `embedded`, `etcd`, `zookeeper` (three servers are started), or a URL."
        ),
    ] = "embedded",
    data: Annotated[
        Path | None, typer.Option(help="Where nodes keep what they keep meanwhile. Default: the system's.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the results; default: benches/results/DATE-COMMIT/cluster."),
    ] = None,
) -> None:
    """Measures a cluster's cost for each node, and what a node's death does to its rooms, beside Redis Cluster."""
    from hubsub_bench import BenchError
    from hubsub_bench.cluster.hubsub import HubSubCluster
    from hubsub_bench.cluster.redis import RedisCluster
    from hubsub_bench.cluster.rows import scenarios
    from hubsub_bench.cluster.runner import run_cluster
    from hubsub_bench.cluster.subject import ClusterTarget
    from hubsub_bench.load import find_program
    from hubsub_bench.machine import need_descriptors
    from hubsub_bench.runner import Result
    from hubsub_bench.session import Session, names_of

    sizes = _sizes(nodes)
    known = scenarios(sizes)
    names = names_of(rows, known, ())
    if against not in (None, "redis-cluster"):
        raise BenchError("this cluster cannot be measured", against, "redis-cluster")
    find_program()
    need_descriptors(10_000)
    session = Session(known, out, "cluster")
    place = data or Path(tempfile.gettempdir())
    peers: list[ClusterTarget] = []
    if against is not None:
        peers = [RedisCluster(), RedisCluster(sharded=True)]
    results = list[Result]()
    for name in names:
        with _coordinator(coordinator, place) as url:
            results += run_cluster(
                known[name],
                HubSubCluster(url),
                peers,
                data=place,
                nodes=sizes,
                pairs=pairs,
                seconds=seconds,
                kills=kills,
                rate=rate,
                on_row=session.on_row,
            )
        session.write(results)
    session.end(results)


@contextmanager
def _coordinator(named: str, place: Path) -> Iterator[str | None]:
    """The URL of servers started for this run, or of existing ones; None: the nodes use the embedded coordinator."""
    from hubsub.testing.stores import STORES

    if named == "embedded":
        yield None
    elif named in STORES:
        with (
            tempfile.TemporaryDirectory(prefix="hubsub-bench-", dir=place) as directory,
            STORES[named](Path(directory)) as store,
        ):
            yield store.url(store.ports, "bench")
    else:
        yield named


def _sizes(text: str) -> list[int]:
    from hubsub_bench import BenchError

    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1 or sizes[-1] > NODES_MAX:
        raise BenchError("--nodes are no sizes of clusters", text, f"1 to {NODES_MAX}, as in 1,2,4,8")
    return sizes
