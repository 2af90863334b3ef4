"""Whole nodes that run as a cluster in virtual time: see `played`."""

import asyncio
from collections import Counter
from math import ceil
from pathlib import Path

import pytest

from hubsub.control.cluster.failover import MOVES_MAX
from hubsub.control.cluster.hub_ring import LOAD_MAX, Place, assign
from hubsub.control.cluster.node import DRAIN_S
from hubsub.control.cluster.view import ProcessId
from hubsub.coordination import Delete, Put, Write
from hubsub.errors import CoordinatorUnknownError, NoControllerError
from unit.cluster.played import TIMING, Cluster, PlayedPlane, play, until

HUBS = 3 * 64


def homes(names: str) -> dict[tuple[str, int], str]:
    """The ring's leader of each hub of the three classes."""
    found: dict[tuple[str, int], str] = {}
    for room_class in ("chat", "game", "default"):
        hubs = [f"{room_class}/{index}" for index in range(64)]
        members = assign([Place(name) for name in names], hubs)
        found |= {(room_class, index): members[hub][0] for index, hub in enumerate(hubs)}
    return found


def leaders(cluster: Cluster) -> dict[tuple[str, int], str]:
    return {(hub["class"], hub["index"]): hub["leader"] for hub in cluster.status()["hubs"]}


def led_by_class(cluster: Cluster) -> set[tuple[str, str]]:
    return {(hub["class"], hub["leader"]) for hub in cluster.status()["hubs"]}


def terms(cluster: Cluster) -> dict[int, int]:
    return {hub["hub"]: hub["term"] for hub in cluster.status()["hubs"]}


@pytest.mark.parametrize("names", ["abc", "cba", "bdace", "edcba"])
def test_nodes_started_in_any_order_share_the_hubs_as_the_ring_says_and_each_is_led_once(names: str) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*names)
            await cluster.settle()
            assert len(cluster.led()) == HUBS
            assert leaders(cluster) == homes(names)
            for name in names:
                status = cluster.status(name)
                assert status["controller"] == cluster.controller() and status["wrong"] == []
                assert {node["state"] for node in status["nodes"]} == {"up"}

    play(test)


def test_hubs_with_a_log_whose_node_is_gone_are_told_as_wrong_until_it_is_back(tmp_path: Path) -> None:
    log = {"name": "log", "match": ["log:*"], "durability": "durable", "history": {"bytes": "64MiB"}}

    async def test() -> None:
        async with Cluster([log]) as cluster:
            for name in "abc":
                await cluster.start(name, data=str(tmp_path / name))
            await cluster.settle()
            dead = next(hub["leader"] for hub in cluster.status()["hubs"] if hub["class"] == "log")
            of_it = Counter(hub["class"] for hub in cluster.status()["hubs"] if hub["leader"] == dead)
            assert of_it.pop("default"), "those get other leaders, and nobody need see to them"
            await cluster.kill(dead)
            await until(lambda: ("default", dead) not in led_by_class(cluster))
            await until(lambda: len(cluster.status()["nodes"]) == 2)
            counts = ", ".join(f"{name} ({count})" for name, count in sorted(of_it.items()))
            told = (
                f"{of_it.total()} hubs wait, of node {dead}, which is not registered and has their logs: start it "
                f"again; classes {counts}"
            )
            await until(lambda: all(cluster.status(name)["wrong"] == [told] for name in cluster.nodes))
            await cluster.start(dead, data=str(tmp_path / dead))
            await cluster.settle()
            assert cluster.status()["wrong"] == []

    play(test)


def test_hubs_without_a_log_that_nobody_may_replace_are_told_as_wrong() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"ab")
            await cluster.settle()
            count = sum(leader == "b" for leader in cluster.leaders().values())
            cluster.cut.add(frozenset("ab"))
            await cluster.kill("b")
            await until(lambda: len(cluster.status("a")["nodes"]) == 1)
            wrong = cluster.status("a")["wrong"]
            assert any(text.startswith(f"{count} hubs wait, of node b, which is not") for text in wrong), (
                wrong
            )
            assert any("to be replaced as their leader" in text for text in wrong)

    play(test)


@pytest.mark.parametrize("who", ["leader", "controller", "both"])
def test_hubs_of_who_dies_are_led_by_others_long_before_leases_end_and_nobody_elses_change(who: str) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abcde")
            await cluster.settle()
            controller = cluster.controller()
            assert controller is not None
            other = next(name for name in "abcde" if name != controller)
            dead = {"leader": other, "controller": controller, "both": other + controller}[who]
            before, old_terms = cluster.leaders(), terms(cluster)
            died_s = cluster.now
            await cluster.kill(*dead)
            await until(lambda: len(cluster.led()) == HUBS, within_s=2)
            # The leader lease is 3 s; the links report the death earlier.
            assert cluster.now - died_s < 1.0
            orphans = {hub for hub, leader in before.items() if leader in dead}
            changed = {hub for hub, leader in cluster.led().items() if leader != before[hub]}
            assert orphans <= changed and not set(cluster.led().values()) & set(dead)
            # Other moved hubs come from nodes that are now above their share, a few hubs at a time.
            assert len(changed - orphans) <= 2 * MOVES_MAX
            assert all(terms(cluster)[hub] == old_terms[hub] + 1 for hub in changed)
            await cluster.settle()
            assert leaders(cluster) == homes("".join(set("abcde") - set(dead)))

    play(test)


def test_with_two_of_three_dead_at_once_nothing_is_failed_over_and_the_third_goes_on_until_one_is_back() -> (
    None
):
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            before, controller = cluster.leaders(), cluster.controller()
            assert controller is not None
            left = next(name for name in "abc" if name != controller)
            mine = {hub for hub, leader in before.items() if leader == left}
            await cluster.kill(*(set("abc") - {left}))
            for _ in range(60):
                await asyncio.sleep(1)
                assert cluster.leaders() == before
            assert cluster.led().keys() == mine
            assert any("majority" in line for line in cluster.status()["wrong"])
            await cluster.start(controller)
            await cluster.settle()
            assert len(cluster.led()) == HUBS

    play(test)


def test_while_the_coordinator_is_away_for_a_minute_all_that_exists_goes_on() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            there = await cluster.nodes["a"].locate(b"chat:there")
            led, old_terms = cluster.led(), terms(cluster)
            routes = {name: plane.rows for name, plane in cluster.planes.items()}
            cluster.store.away = True
            for _ in range(60):
                await asyncio.sleep(1)
                assert cluster.led() == led
                assert {name: plane.rows for name, plane in cluster.planes.items()} == routes
            for name in "abc":
                assert await cluster.nodes[name].locate(b"chat:there") == there
                ring = await cluster.nodes[name].locate(b"game:new")
                assert ring is not None and ring.members
                assert any("coordinator is away" in line for line in cluster.status(name)["wrong"])
                assert cluster.status(name)["controller"] is not None
            asked_s = cluster.now
            with pytest.raises(NoControllerError, match="after 5 s"):
                await cluster.nodes["b"].locate(b"chat:new")
            assert cluster.now - asked_s == pytest.approx(5.0, abs=0.1)
            assert {len(plane.neighbours) for plane in cluster.planes.values()} == {2}
            waiting = asyncio.create_task(cluster.nodes["b"].locate(b"chat:waits"))
            await asyncio.sleep(2)
            cluster.store.away = False
            assert await waiting is not None
            await cluster.settle()
            assert (cluster.led(), terms(cluster)) == (led, old_terms)
            assert all(node.status()["wrong"] == [] for node in cluster.nodes.values())

    play(test)


def test_a_side_without_a_controller_serves_what_its_class_says_until_it_hears_one_again() -> None:
    async def test() -> None:
        classes = [
            {"name": "chat", "match": ["chat:*"], "members": 2, "on_partition": "serve"},
            {"name": "game", "match": ["game:*"], "members": 2},
        ]
        async with Cluster(classes) as cluster:
            await cluster.start(*"abcde")
            await cluster.settle()
            hubs = {hub["hub"]: hub for hub in cluster.status("a")["hubs"]}
            procs = {name: plane.me for name, plane in cluster.planes.items()}
            cluster.split("abc", "de")
            cluster.part("de")

            def acts(name: str) -> dict[int, ProcessId | None]:
                return {hub: row.acting_leader for hub, row in cluster.planes[name].rows.items()}

            due = {
                hub: next((procs[name] for name in row["members"] if name in "de"), None)
                if row["class"] == "chat"
                else None
                for hub, row in hubs.items()
            }
            assert set(due.values()) == {None, procs["d"], procs["e"]}
            await until(lambda: acts("d") == acts("e") == due)
            await asyncio.sleep(5)
            assert acts("d") == acts("e") == due
            assert not any(acts(name)[hub] for name in "abc" for hub in hubs)
            cluster.split("abcde")
            cluster.part("de", False)
            await cluster.settle()
            assert not any(acts(name)[hub] for name in "abcde" for hub in hubs)

    play(test)


def test_a_node_that_joins_takes_its_bounded_share_and_no_hub_moves_between_the_others() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abcd")
            await cluster.settle()
            before, old_terms = leaders(cluster), terms(cluster)
            await cluster.start("e")
            await cluster.settle(120)
            after = leaders(cluster)
            assert after == homes("abcde")
            moved = {hub for hub in after if after[hub] != before[hub]}
            taken = Counter(room_class for room_class, index in moved if after[room_class, index] == "e")
            assert taken.keys() == {"chat", "game", "default"}
            assert all(count <= ceil(LOAD_MAX * 64 / 5) for count in taken.values())
            # Other moved hubs are the overflow of nodes that were full: less than the new node takes.
            assert len(moved) < 2 * taken.total()
            assert sum(terms(cluster).values()) - sum(old_terms.values()) == len(moved)

    play(test)


def test_a_node_that_is_not_ready_is_given_nothing() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"ab")
            await cluster.settle()
            before = cluster.leaders()
            await cluster.start("c")
            cluster.planes["c"].is_ready = False
            await asyncio.sleep(10)
            assert cluster.leaders() == before
            assert {n["name"]: n["state"] for n in cluster.status("a")["nodes"]}["c"] == "joining"
            cluster.planes["c"].is_ready = True
            await cluster.settle()
            assert leaders(cluster) == homes("abc")

    play(test)


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_node_that_stops_gives_its_hubs_and_the_mandate_away_first(is_controller: bool) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            name = next(n for n in "abc" if (n == cluster.controller()) == is_controller)
            mine = {hub for hub, leader in cluster.leaders().items() if leader == name}
            stopping = asyncio.create_task(cluster.nodes[name].drain())
            unled: dict[int, float] = {}
            while not stopping.done():
                await asyncio.sleep(0.01)
                for hub in mine - cluster.led().keys():
                    unled[hub] = unled.get(hub, 0.0) + 0.01
            assert await stopping
            # No hub waited for a leader lease to end.
            assert max(unled.values(), default=0.0) < TIMING.lease_s / 2
            assert cluster.controller() != name
            await cluster.stop(name)
            assert name not in {node["name"] for node in cluster.status()["nodes"]}
            await cluster.settle()
            assert leaders(cluster) == homes("".join(sorted(set("abc") - {name})))

    play(test)


def test_a_node_that_stops_gives_away_its_hubs_without_records_and_waits_for_no_other(tmp_path: Path) -> None:
    log = {"name": "log", "match": ["log:*"], "durability": "durable", "history": {"bytes": "64MiB"}}

    async def test() -> None:
        async with Cluster([log]) as cluster:
            for name in "abc":
                await cluster.start(name, data=str(tmp_path / name))
            await cluster.settle()
            of_c = [hub for hub in cluster.status()["hubs"] if hub["leader"] == "c"]
            recorded = next(hub["hub"] for hub in of_c if hub["class"] == "log")
            assert cluster.planes["c"].record(recorded)
            began_s = cluster.now
            assert not await cluster.nodes["c"].drain()
            assert cluster.now - began_s < DRAIN_S, (
                "it waits for hubs that others can take, and only for these"
            )
            assert [hub["hub"] for hub in cluster.status("c")["hubs"] if hub["leader"] == "c"] == [recorded]
            await cluster.stop("c")
            told = (
                "1 hubs wait, of node c, which is not registered and has their logs: start it again; "
                "classes log (1)"
            )
            await until(lambda: all(cluster.status(name)["wrong"] == [told] for name in "ab"))

    play(test)


def test_an_edge_node_is_never_controller_and_holds_no_hub() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start("e", role="edge")
            await asyncio.sleep(10)
            assert cluster.controller() is None
            await cluster.start(*"ab")
            await cluster.settle()
            assert set(cluster.led().values()) == {"a", "b"}
            located = await cluster.nodes["e"].locate(b"chat:x")
            assert located is not None and located.members[0].node in "ab"
            await cluster.kill("a", "b")
            await asyncio.sleep(20)
            assert cluster.controller() is None

    play(test)


@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize("after_s", [0.0, 0.6, 1.1])
def test_a_death_while_the_first_nodes_are_counted_is_failed_over(victim: str, after_s: float) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            for node in cluster.nodes.values():
                await node.became_voter()
            assert cluster.status("c")["voters"]["nodes"] == [*"abc"]
            await asyncio.sleep(after_s)
            await cluster.kill(victim)
            others = set("abc") - {victim}
            await until(lambda: len(cluster.led()) == HUBS and set(cluster.led().values()) <= others, 2)
            await until(lambda: set(cluster.led().values()) == others)
            await until(lambda: cluster.status()["voters"] == {"nodes": sorted(others), "before": []})

    play(test)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_of_unknown_outcome_that_counted_on_the_dead_is_read_when_it_cannot_be_made_any_more(
    is_made: bool,
) -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.nodes["c"].became_voter()
            coordinator = cluster.coordinators["a"]
            commit, doubted = coordinator._commit, False

            async def doubt(expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
                nonlocal doubted
                if doubted or "nodes/b" not in expect or not any(isinstance(w, Put) for w in writes):
                    return await commit(expect, writes)
                doubted = True
                if is_made:
                    await commit(expect, writes)
                held = await coordinator.get("nodes/b")
                assert held is not None
                await commit({"nodes/b": held.revision}, (Put("nodes/b", held.value),))
                raise CoordinatorUnknownError()

            coordinator._commit = doubt  # type: ignore[method-assign]
            await cluster.kill("b")
            await until(lambda: doubted)
            await until(lambda: cluster.status("c")["voters"]["before"] == [])
            await cluster.start("d")
            await until(lambda: cluster.status("c")["voters"] == {"nodes": [*"abcd"], "before": []})

    play(test)


def test_a_commit_refused_for_what_went_before_any_watch_gave_it_holds_up_nothing() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            await cluster.start("d")
            await cluster.nodes["d"].became_voter()
            coordinator = cluster.coordinators["a"]
            commit, refused = coordinator._commit, False

            async def refuse(expect: dict[str, int], writes: tuple[Write, ...]) -> dict[str, int]:
                nonlocal refused
                if refused or "nodes/b" not in expect or not any(isinstance(w, Put) for w in writes):
                    return await commit(expect, writes)
                refused = True
                # A process of this name came and left: watches report only its end.
                put = Put("nodes/b", cluster.store.entries["nodes/b"].value)
                made = cluster.store.commit({}, (put,), None)
                try:
                    return cluster.store.commit(expect, writes, None)
                finally:
                    cluster.store.commit(made, (Delete("nodes/b"),), None)

            coordinator._commit = refuse  # type: ignore[method-assign]
            await cluster.kill("b")
            await until(lambda: refused)
            await until(lambda: cluster.status("c")["voters"] == {"nodes": [*"acd"], "before": []})
            await until(lambda: len(cluster.led()) == HUBS)

    play(test)


def test_a_death_while_one_that_has_left_is_counted_is_failed_over() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abcd")
            await cluster.settle()
            await cluster.stop("d")
            await until(lambda: cluster.status()["voters"] == {"nodes": [*"abc"], "before": [*"abcd"]})
            await cluster.kill("c")
            await until(lambda: len(cluster.led()) == HUBS and set(cluster.led().values()) == {"a", "b"}, 2)
            await until(lambda: cluster.status()["voters"] == {"nodes": ["a", "b"], "before": []})

    play(test)


def test_a_controller_that_is_cut_off_from_the_others_hands_over_to_one_that_hears_a_majority() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abcde")
            await cluster.settle()
            alone = cluster.controller()
            assert alone is not None
            others = "".join(sorted(set("abcde") - {alone}))
            cluster.split(alone, others)
            await until(lambda: set(cluster.led().values()) == set(others) and len(cluster.led()) == HUBS)
            assert (cluster.controller() or alone) in others
            cluster.split()
            await cluster.settle(120)
            assert leaders(cluster) == homes("abcde")

    play(test)


def test_a_split_with_the_coordinator_on_the_side_of_the_few_heals_by_itself() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abcde")
            await cluster.settle()
            led = cluster.led()
            cluster.split("ab", "cde")
            cluster.part("cde")
            await asyncio.sleep(30)
            # The majority continues, and the minority takes no hub from it.
            assert {hub for hub, name in cluster.led().items() if name in "cde"} >= {
                hub for hub, name in led.items() if name in "cde"
            }
            cluster.part("cde", False)
            cluster.split()
            await cluster.settle(120)
            assert leaders(cluster) == homes("abcde")
            assert all(node.status()["wrong"] == [] for node in cluster.nodes.values())

    play(test)


def test_a_cluster_begins_where_nobody_is_ready_before_all_hubs_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_ready(plane: PlayedPlane) -> bool:
        hubs = sum(record.hubs for record in plane.known_classes.values())
        return 0 < hubs == len(plane.rows)

    settable = property(is_ready, lambda plane, to: None)
    monkeypatch.setattr(PlayedPlane, "is_ready", settable, raising=False)

    async def test() -> None:
        async with Cluster() as cluster:
            await cluster.start(*"abc")
            await cluster.settle()
            assert all(plane.is_ready for plane in cluster.planes.values())

    play(test)
