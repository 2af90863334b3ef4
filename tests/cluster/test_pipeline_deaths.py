"""The node with the logs dies during reads and publishes: clients get errors, and nothing is lost or
duplicated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from clients.servers import until
from command_line import hubsub

from cluster.cluster import CLASSES, LOGGED, NAMES, Cluster
from cluster.reading import asker, body, payloads, read_all
from hubsub.errors import NodesUnreachableError, NotConnectedError
from hubsub.pipeline.selection import Selection

pytestmark = pytest.mark.needs("hubsub-core")

SLOW = LOGGED | {"name": "slow", "match": ["slow:*"], "commit_delay_ms": 1_000}
"""Delays a batch, so that the test can kill its node meanwhile."""


@pytest.fixture(scope="module")
def cluster(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes `a`, `b`, `c` with a class whose commits are slow. Each test leaves all of them running."""
    needs("hubsub-core")
    with Cluster(tmp_path_factory.mktemp("deaths"), classes=[SLOW, *CLASSES]) as cluster:
        yield cluster


def home_of(cluster: Cluster, query: str) -> str:
    """The node that owns a query."""
    with asker(cluster, "a") as wire:
        stage = wire.stage(query, body([("log:x", "x")]), None)
        home = wire.server
        wire.drop_stage(query, stage)
    return next(name for name in NAMES if cluster.addresses[name]["http"] == home)


def test_what_dies_between_stage_and_commit_or_amid_it_is_published_once(cluster: Cluster) -> None:
    cluster.settled()
    home = home_of(cluster, "q")
    other = next(name for name in NAMES if name != home)
    rows = [(f"slow:{n % 3}", f"row {n}") for n in range(300)]
    with asker(cluster, other) as wire:
        names = [wire.stage("q", body(rows[at : at + 100]), None) for at in (0, 100, 200)]

    cluster.kill(home)
    with asker(cluster, other, retry_s=0.5) as wire, pytest.raises(NodesUnreachableError, match=home):
        wire.commit("q", 1, names)
    # Requests go there as long as the owner is registered.
    with (
        asker(cluster, other, retry_s=0.5) as wire,
        pytest.raises((NodesUnreachableError, NotConnectedError)),
    ):
        wire.stage("q", body(rows), None)
    cluster.start(home)

    answers: list[object] = []

    def commit() -> None:
        with asker(cluster, other, retry_s=60.0) as wire:
            answers.append(wire.commit("q", 1, names))

    committing = threading.Thread(target=commit, daemon=True)
    committing.start()
    # The commit record exists, and the rows do not yet.
    until(lambda: cluster.get(other, "/v1/rooms/%24queries%2Fq")[0] == 200)
    cluster.kill(home)
    cluster.start(home)
    committing.join(60)
    assert answers and answers[0] in (
        {"published": 300, "duplicate": False},
        {"published": 300, "duplicate": True},
    )
    for room in range(3):
        published = payloads(cluster, other, f"slow:{room}")
        assert published == [f"row {n}" for n in range(room, 300, 3)]


def test_a_batch_goes_on_by_itself_when_its_home_is_back(cluster: Cluster) -> None:
    cluster.settled()
    home = home_of(cluster, "alone")
    other = next(name for name in NAMES if name != home)
    room, rows = "slow:alone", [f"row {n}" for n in range(50)]
    with asker(cluster, other) as wire:
        names = [wire.stage("alone", body([(room, row) for row in rows]), None)]
    committing = threading.Thread(target=_commit_in_vain, args=(cluster, other, names), daemon=True)
    committing.start()
    until(lambda: cluster.get(other, "/v1/rooms/%24queries%2Falone")[0] == 200)
    cluster.kill(home)
    committing.join(60)
    cluster.start(home)
    until(lambda: _said(cluster, other, room) == rows, "nobody commits it again")
    with asker(cluster, other) as wire:
        assert wire.commit("alone", 1, names)["published"] == len(rows)
    assert _said(cluster, other, room) == rows


def _commit_in_vain(cluster: Cluster, name: str, attempts: list[str]) -> None:
    with asker(cluster, name, retry_s=0.2) as wire, pytest.raises(NodesUnreachableError):
        wire.commit("alone", 1, attempts)


def _said(cluster: Cluster, name: str, room: str) -> list[str] | None:
    """A room's history; None: it has no leader now."""
    code, page = cluster.get(name, f"/v1/rooms/{quote(room, safe='')}/history?count=1000")
    return [record["payload"] for record in page["records"]] if code == 200 else None


def test_a_read_waits_for_the_home_of_a_hub_and_goes_on_where_it_was(cluster: Cluster) -> None:
    cluster.settled()
    leader = cluster.leaders("a", "logged")[0]
    room = cluster.room_led_by(leader, "log:")
    other = next(name for name in NAMES if name != leader)
    with cluster.connect(other) as client:
        said = [f"m{n}" for n in range(200) if client.ask("PUBLISH", room, f"m{n}") == 0]
    with asker(cluster, other) as wire:
        listing = wire.listing([room])
    cluster.kill(leader)
    (hub,) = listing.hubs
    for path in ("/v1/log", f"/v1/log?subscribe={room}", f"/v1/hubs/{hub}"):
        code, answer = cluster.get(other, path)
        assert (code, answer["code"]) == (503, "nodes_unreachable") and leader in answer["message"]
    code, _ = cluster.get(other, "/v1/log?subscribePattern=chat:*")
    assert code == 200, "what is not asked for is not missed"
    got: list[object] = []

    def read() -> None:
        with asker(cluster, other, retry_s=60.0) as wire:
            again = wire.listing([room])
            got.extend(read_all(wire, again, Selection(rooms=frozenset([room])))["payload"].to_pylist())

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    cluster.start(leader)
    reading.join(60)
    assert got == [payload.encode() for payload in said]

    # The same with the command line, on a node that does not have the room.
    cluster.settled()
    url = cluster.nodes[other].redis_url
    run = hubsub("sub", room, "--rewind", 3, "--count", 3, "--json", "--server", url)
    last = [json.loads(line) for line in run.stdout.splitlines()]
    assert [record["payload"] for record in last] == said[-3:], run.stderr
    run = hubsub("sub", room, "--resume", last[0]["position"], "--count", 2, "--server", url)
    assert run.stdout.splitlines() == [f"{room}: {payload}" for payload in said[-2:]], run.stderr
