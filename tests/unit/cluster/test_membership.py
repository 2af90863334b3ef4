"""Admission of nodes to a cluster, their incarnations, and the loss of a node's lease."""

import asyncio
import re
from pathlib import Path

import pytest

from hubsub.control.cluster.membership import HELD_S, LEASE_S
from hubsub.control.cluster.records import (
    HUBS,
    INCARNATION,
    NODES,
    IncarnationRecord,
    NodeRecord,
    format_of,
    node_key,
    parse,
)
from hubsub.coordination import Put
from hubsub.coordination.memory import MemoryCoordinator
from hubsub.errors import (
    ClassChangeError,
    ClusterDiffersError,
    DataDirectoryError,
    DuplicateNodeError,
    ExpectationError,
    OtherClusterError,
)
from unit.cluster.played import CLASSES, YEAR_2030, Cluster, play, until


def record(cluster: Cluster, name: str) -> NodeRecord:
    entry = cluster.store.entries[node_key(name)]
    return parse(NodeRecord, entry.key, entry.value)


# -- incarnations --


def test_an_incarnation_is_above_the_clock_the_last_one_issued_and_the_nodes_own_last(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", data=str(tmp_path / "a"))
            await cluster.start("b", data=str(tmp_path / "b"))
            first, second = cluster.nodes["a"].incarnation, cluster.nodes["b"].incarnation
            assert YEAR_2030 < first < second
            await cluster.stop("a")
            # The clock and the last issued incarnation are set back: the data directory still has the node's
            # own.
            entry = cluster.store.entries[INCARNATION]
            await MemoryCoordinator(cluster.store).commit(
                {INCARNATION: entry.revision}, [Put(INCARNATION, format_of(IncarnationRecord(last=1)))]
            )
            cluster.wall = lambda: 5.0  # type: ignore[method-assign]
            await cluster.start("a", data=str(tmp_path / "a"))
            assert cluster.nodes["a"].incarnation == first + 1

    play(test)


# -- names --


def test_a_name_that_is_held_is_refused_and_the_error_says_by_whom_since_when_and_what_to_do() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            held, asked_s = cluster.nodes["b"], cluster.now
            with pytest.raises(DuplicateNodeError) as refused:
                await cluster.start("b")
            text = str(refused.value)
            assert re.search(r"b is process .+:\d+ since 2030-01-01T00:16:\d\d\+00:00", text)
            assert f"incarnation {held.incarnation}" in text and "redis b:3221" in text
            assert "hint: give this one another --node" in text
            # As long as a process that has just died may hold it.
            assert HELD_S <= cluster.now - asked_s < HELD_S + 1
            assert record(cluster, "b").incarnation == held.incarnation
            assert cluster.status()["wrong"] == []

    play(test)


def test_the_name_of_a_process_that_died_is_free_when_its_lease_is_over() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.kill("b")
            died_s = cluster.now
            await cluster.start("b")
            assert cluster.now - died_s < 2 * LEASE_S
            await cluster.settle()

    play(test)


def test_a_process_with_the_data_directory_of_the_dead_one_takes_its_name_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", data=str(tmp_path / "a"))
            await cluster.start("b", data=str(tmp_path / "b"))
            await cluster.settle()
            before = cluster.nodes["b"].incarnation
            await cluster.kill("b")
            died_s = cluster.now
            await cluster.start("b", data=str(tmp_path / "b"))
            assert cluster.now - died_s < 0.5
            assert record(cluster, "b").incarnation == cluster.nodes["b"].incarnation > before
            # The lease of the dead process ends, which does not affect its successor.
            await asyncio.sleep(2 * LEASE_S)
            assert record(cluster, "b").incarnation == cluster.nodes["b"].incarnation
            await cluster.settle()

    play(test)


# -- data directories --


def test_a_data_directory_has_one_process(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", data=str(tmp_path))
            with pytest.raises(DataDirectoryError, match="another process has the data directory"):
                await cluster.start("b", data=str(tmp_path))

    play(test)


def test_a_data_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def once() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", data=str(tmp_path))

    async def other() -> None:
        async with Cluster() as cluster:
            await cluster.start("b", data=str(tmp_path / "b"))
            with pytest.raises(OtherClusterError, match=r"the coordinator's is [0-9a-f]{32}"):
                await cluster.start("a", data=str(tmp_path))
            assert "a" not in {node["name"] for node in cluster.status()["nodes"]}

    async def empty() -> None:
        async with Cluster() as cluster:
            with pytest.raises(OtherClusterError, match="the coordinator's is none yet"):
                await cluster.start("a", data=str(tmp_path))
            assert not cluster.store.entries

    for test in (once, other, empty):
        play(test)


def test_a_data_directory_keeps_the_name_of_its_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", data=str(tmp_path))
            await cluster.stop("a")
            with pytest.raises(DuplicateNodeError, match="of another node: a, not b"):
                await cluster.start("b", data=str(tmp_path))
            await cluster.start("a", data=str(tmp_path))

    play(test)


# -- settings that must match --


def test_a_node_whose_configuration_differs_is_told_all_that_differs() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            other = [{"name": "chat", "match": ["chat:*", "talk:*"]}, {"name": "iot", "match": ["iot/#"]}]
            config = {"class": other, "hash_tags": False, "limits": {"topic_bytes_max": 100}}
            with pytest.raises(ClusterDiffersError) as refused:
                await cluster.start("b", **config)
            text = str(refused.value)
            assert "in 5:" in text
            assert "hash_tags: False here, True in the cluster" in text
            assert "limits.topic_bytes_max: 100 here, 65535 in the cluster" in text
            assert 'class chat, match: ["chat:*","talk:*"] here, ["chat:*"] in the cluster' in text
            assert "class iot: not in the cluster" in text and "hubsub class apply" in text
            assert "class game: not in the file" in text
            assert not [key for key in cluster.store.entries if key.startswith(f"{NODES}/b")]

    play(test)


def test_a_node_without_classes_takes_the_clusters() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.start("b", **{"class": []})
            await cluster.settle()
            assert [cls.name for cls in cluster.nodes["b"].classes] == ["chat", "game"]
            assert cluster.planes["b"].known_classes.keys() == {"chat", "game", "default"}

    play(test)


def test_settings_may_change_while_no_node_is_registered() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.stop("a")
            with pytest.raises(ClusterDiffersError):
                await cluster.start("a", hash_tags=False)
            await cluster.stop("b")
            await cluster.start("a", "b", hash_tags=False)
            with pytest.raises(ClusterDiffersError):
                await cluster.start("c")

    play(test)


def test_a_hub_node_without_a_data_directory_is_refused_where_a_class_keeps_a_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", data=str(tmp_path))
            with pytest.raises(ClusterDiffersError, match="data: none here, and class"):
                await cluster.start("b")
            await cluster.start("e", role="edge")

    play(test)


# -- classes --


def test_applied_classes_get_versions_their_hubs_and_make_older_files_known_as_old() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            changed = [
                {**CLASSES[0], "on_slow": "drop-oldest"},
                CLASSES[1],
                {"name": "iot", "match": ["iot/#"]},
            ]
            given = cluster.config("x", **{"class": changed}).classes
            assert sorted(await cluster.nodes["b"].apply(given)) == ["chat", "iot"]
            await until(lambda: "iot" in cluster.planes["a"].known_classes)
            await cluster.settle()
            assert len(cluster.led()) == 4 * 64
            assert cluster.status()["classes"] == {"chat": 2, "default": 1, "game": 1, "iot": 2}
            assert [cls.name for cls in cluster.nodes["a"].classes] == ["chat", "game", "iot"]
            assert await cluster.nodes["b"].apply(given) == []
            await cluster.start("c")
            wrong = "\n".join(cluster.status("c")["wrong"])
            assert (
                "class chat, on_slow" in wrong
                and "version 2" in wrong
                and "class iot: not in the file" in wrong
            )

    play(test)


def test_a_class_keeps_what_decides_where_its_rooms_are() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a")
            await cluster.nodes["a"].ready()
            for change in ({"placement": "ring"},):
                given = cluster.config("x", **{"class": [{**CLASSES[0], **change}]}).classes
                with pytest.raises(ClassChangeError, match="class chat keeps its placement"):
                    await cluster.nodes["a"].apply(given)

    play(test)


def test_of_two_who_apply_at_once_one_is_refused() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("a", "b")
            await cluster.settle()
            one, other = (
                cluster.config("x", **{"class": [{**CLASSES[0], "on_slow": slow}]}).classes
                for slow in ("conflate", "drop-oldest")
            )
            results = await asyncio.gather(
                cluster.nodes["a"].apply(one), cluster.nodes["b"].apply(other), return_exceptions=True
            )
            assert [type(result) for result in results] == [list, ExpectationError]

    play(test)


# -- lost leases --


def hubs(cluster: Cluster) -> dict[str, bytes]:
    """Values of the hubs' records, by key."""
    return {key: entry.value for key, entry in cluster.store.entries.items() if key.startswith(f"{HUBS}/")}


def lease_of(cluster: Cluster, name: str) -> int:
    return cluster.store._bound[node_key(name)]


@pytest.mark.parametrize("names", ["b", "abc"])
def test_nodes_whose_leases_are_lost_register_again_as_the_same_processes_and_keep_their_hubs(
    names: str,
) -> None:
    """As after an outage of the coordinator longer than its leases, all of which end when it is back."""

    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            incarnations = {name: cluster.nodes[name].incarnation for name in names}
            before = hubs(cluster)
            for name in names:
                cluster.store.end(lease_of(cluster, name))
            assert not any(node_key(name) in cluster.store.entries for name in names)
            await until(lambda: all(node_key(name) in cluster.store.entries for name in names))
            assert {name: record(cluster, name).incarnation for name in names} == incarnations
            await cluster.settle(120)
            assert before and hubs(cluster) == before, "in their terms"

    play(test)


def test_a_controller_whose_lease_is_lost_is_one_no_more() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            name, controller_term = cluster.controller(), cluster.status()["controller_term"]
            assert name is not None
            cluster.store.end(lease_of(cluster, name))
            await until(lambda: (cluster.status()["controller_term"] or 0) > controller_term)
            await cluster.settle(120)

    play(test)


def test_a_process_whose_name_another_one_took_has_to_stop() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            node = cluster.nodes["b"]
            cluster.part("b")
            cluster.store.end(lease_of(cluster, "b"))
            later = NodeRecord(incarnation=node.incarnation + 100, process="elsewhere:1")
            other = MemoryCoordinator(cluster.store)
            await other.commit({}, [Put(node_key("b"), format_of(later), await other.lease(LEASE_S))])
            cluster.part("b", False)
            with pytest.raises(DuplicateNodeError, match="elsewhere:1"):
                async with asyncio.timeout(30):
                    await node.failed
            assert record(cluster, "b") == later

    play(test)
