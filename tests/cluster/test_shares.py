"""Groups over the nodes of a cluster: each record goes to one member, on any node, also while members and
nodes leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from clients.mqtt import PINGRESP, PUBACK, PUBLISH, Wire
from clients.servers import until

from cluster.cluster import DEFAULT, Cluster

ROOMS = [f"field/{i}" for i in range(30)]
FIELD = {"name": "field", "match": ["field/#"], "placement": "ring"}


def test_each_record_is_one_members_on_all_nodes_together(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("hubsub-core")
    config = {"mqtt": "127.0.0.1:0"}
    with Cluster(tmp_path, classes=(FIELD, DEFAULT), config=config) as cluster, ExitStack() as stack:
        cluster.settled()
        members = {name: stack.enter_context(Wire(node.mqtt)) for name, node in cluster.nodes.items()}
        for name, wire in members.items():
            wire.connect(f"member-{name}")
            assert wire.subscribe(("$share/g/field/+", 1)) == [1]
        publishers = {name: stack.enter_context(cluster.connect(name)) for name in cluster.nodes}

        def publish(mark: str, names: str) -> list[str]:
            """Publishes a record to each room, through the nodes in turn; each publish counts the group as
            one receiver."""
            for i, room in enumerate(ROOMS):
                assert publishers[names[i % len(names)]].ask("PUBLISH", room, mark) == 1
            return ROOMS

        got: Counter[tuple[str, str, bytes]] = Counter()

        def read(names: str, answers: bool = True) -> int:
            """Reads what members were sent so far; returns the total number of records that arrived."""
            for name in names:
                wire = members[name]
                wire.ping()
                while (packet := wire.read()).kind != PINGRESP:
                    assert packet.kind == PUBLISH and packet.qos == 1
                    got[name, packet.topic, packet.rest] += 1
                    if answers:
                        wire.answer(PUBACK, packet.id)
            return got.total()

        def each_once(mark: bytes) -> bool:
            return Counter(topic for _, topic, text in got.elements() if text == mark) == Counter(ROOMS)

        publish("1", "abc")
        until(lambda: read("abc") >= len(ROOMS), "all are given")
        assert each_once(b"1")
        assert {name for name, _, _ in got} == set("abc"), "no node gets all"

        # Records that a leaving member has not acknowledged go to a member on another node.
        publish("2", "abc")
        until(lambda: read("ac") + read("b", answers=False) >= 2 * len(ROOMS), "all are given")
        held = [topic for name, topic, text in got if (name, text) == ("b", b"2")]
        assert held
        for topic in held:
            del got["b", topic, b"2"]
        members["b"].close()
        until(lambda: read("ac") >= 2 * len(ROOMS), "others have what it had")
        assert each_once(b"2")

        # A node stops: the others know that its members are gone.
        members.pop("c").close()
        assert cluster.stop("c") == 0
        until(lambda: publishers["a"].ask("PUBLISH", ROOMS[0], "gone") == 1, "its rooms have a leader")
        got.clear()
        read("a")
        got.clear()
        publish("3", "ab")
        until(lambda: read("a") >= len(ROOMS), "the one that is left has all")
        assert each_once(b"3")
