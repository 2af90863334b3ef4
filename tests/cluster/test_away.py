"""The coordinator is away for longer than any of its leases: existing state keeps working, nothing is failed
over, and requests that need a record wait and then fail with an error; when it is back everything resumes.
For each kind of coordinator.

etcd and ZooKeeper are halted. The embedded one is cut off: its nodes hear each other over links, but not over
their `raft` listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from signal import SIGCONT
from typing import Any

import pytest
from clients.raw import Frame
from clients.servers import until

from cluster.cluster import NAMES, Cluster
from cluster.network import network_or_skip
from cluster.parted import RAFT, Parted
from cluster.witness import Witness
from hubsub.control.cluster.membership import LEASE_S
from hubsub.testing.stores import STORES

pytestmark = pytest.mark.needs("hubsub-core")


LEADS = {"leader_lease_ms": 3_000, "leader_silence_ms": 1_500}
"""Long enough for pauses of this machine: while the coordinator is away, an expired leader lease cannot be
granted again."""


@dataclass(frozen=True)
class Away:
    """A cluster whose coordinator can be made unavailable and available."""

    cluster: Cluster
    goes: Callable[[], None]
    comes: Callable[[], None]


@pytest.fixture(params=["embedded", "etcd", "zookeeper"])
def away(request: pytest.FixtureRequest, needs: Callable[..., None], tmp_path: Path) -> Iterator[Away]:
    kind = str(request.param)
    needs("hubsub-core", "ip" if kind == "embedded" else kind)
    with ExitStack() as stack:
        if kind == "embedded":
            network = stack.enter_context(network_or_skip(NAMES))
            parted = stack.enter_context(Parted(network, tmp_path, limits=LEADS))
            raft = f"ipproto tcp dport {RAFT}"
            yield Away(parted, lambda: network.cut(permutations(NAMES, 2), raft), network.mend)
            return
        (tmp_path / "store").mkdir()
        members = stack.enter_context(STORES[kind](tmp_path / "store"))
        url = members.url(members.ports, "tests", "1s")
        cluster = stack.enter_context(Cluster(tmp_path, url, limits=LEADS))

        def halt() -> None:
            for member in range(len(members.processes)):
                members.pause_one(member)

        def go_on() -> None:
            for process in members.processes:
                process.send_signal(SIGCONT)

        stack.callback(go_on)
        yield Away(cluster, halt, go_on)


def answer(cluster: Cluster, name: str, room: str, payload: str) -> object:
    with cluster.connect(name) as client:
        return client.ask("PUBLISH", room, payload)


def test_while_the_coordinator_is_away_what_exists_goes_on_and_what_needs_a_record_waits(away: Away) -> None:
    cluster = away.cluster
    rooms = [*(cluster.room_led_by(name) for name in NAMES), "busy:there"]
    assert answer(cluster, "a", "busy:there", "made") == 0
    witnesses = [Witness(cluster.connect(name), *rooms) for name in NAMES]

    def hubs() -> list[dict[str, Any]]:
        """Hubs without a log: the others keep moving for a while after a start."""
        return [row for row in cluster.status("a")["hubs"] if row["class"] != "logged"]

    cluster.settled()
    before = hubs()

    def is_away(name: str) -> bool:
        status = cluster.status(name)
        ago_s = status["coordinator"]["heard_ago_s"]
        return ago_s is not None and ago_s > 2 * LEASE_S and any("is away" in why for why in status["wrong"])

    away.goes()
    number = 0

    def goes_on() -> bool:
        nonlocal number
        number += 1
        for name in NAMES:
            for room in rooms:
                assert answer(cluster, name, room, f"{number} {name}") == len(NAMES)
        return all(map(is_away, NAMES))

    until(goes_on, "the coordinator is away for longer than its leases, and every record was taken")
    with ThreadPoolExecutor() as threads:
        publishes = [threads.submit(answer, cluster, name, f"busy:new {name}", "x") for name in NAMES]
        located = threads.submit(cluster.post, "a", "/v1/rooms/busy:newer")
        for refused in publishes:
            told = refused.result()
            assert isinstance(told, Frame) and b"try again later" in told.value, told  # type: ignore[operator]
        code, body = located.result()
        assert code == 503, body
    assert goes_on()
    assert hubs() == before, "nothing is failed over"

    away.comes()
    cluster.settled()
    assert hubs() == before
    for name in NAMES:
        until(lambda name=name: not isinstance(answer(cluster, name, f"busy:new {name}", "x"), Frame))
    for room in rooms:
        assert answer(cluster, "a", room, "end") == len(NAMES)
    for witness in witnesses:
        witness.read_to("end")
        witness.check()
        for room in rooms:
            assert witness.gaps(room) == 0 and len(witness.epochs(room)) == 1
        witness.client.close()
