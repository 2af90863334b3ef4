"""Placement of new rooms by load."""

from collections import Counter
from dataclasses import replace

import pytest

from hubsub.control.cluster.placement import (
    DELIVERIES_PER_CAPACITY,
    SMOOTH_S,
    STALE_S,
    Allowance,
    Choice,
    Load,
    NodeLoad,
    choose,
    score,
)
from hubsub.control.cluster.records import Proposed
from hubsub.control.cluster.view import View
from unit.cluster.fixtures import NOW, hub, node, peer, view

HUBS = {1: hub("a", 0), 2: hub("b", 1), 3: hub("c", 2)}


def loaded(**cpu: float) -> dict[str, NodeLoad]:
    return {name: NodeLoad(load=Load(cpu_share=share, rooms=100), at_s=NOW) for name, share in cpu.items()}


def chosen(
    rooms: int,
    loads: dict[str, NodeLoad],
    refused: dict[bytes, set[int]] | None = None,
    seen: View | None = None,
) -> Choice:
    names = [b"room%d" % i for i in range(rooms)]
    return choose(seen or view(hubs=HUBS), "chat", names, loads, refused)


def test_a_room_goes_to_the_hub_of_the_least_busy_node() -> None:
    assert chosen(1, loaded(a=0.5, b=0.2, c=0.4)).hubs == {b"room0": 2}


@pytest.mark.parametrize(
    "busy",
    [
        Load(cpu_share=0.9),
        Load(bytes_out_per_second=9e7),
        Load(deliveries_per_second=4e5),
        Load(connections=4e4),
    ],
)
def test_each_of_the_four_makes_a_node_busy(busy: Load) -> None:
    loads = loaded(a=0.1, b=0.1, c=0.1) | {"a": NodeLoad(load=busy, at_s=NOW)}
    assert 1 not in chosen(2, loads).hubs.values()


def test_a_node_of_more_capacity_is_less_busy_with_the_same_load() -> None:
    seen = view(hubs=HUBS, nodes="abc")
    seen = replace(seen, nodes={**seen.nodes, **dict([node("c", capacity=4.0)])})
    assert chosen(1, loaded(a=0.3, b=0.3, c=0.9), seen=seen).hubs == {b"room0": 3}


def test_a_hub_is_as_busy_as_its_busiest_member() -> None:
    hubs = {1: hub("a", 0, members=("a", "b")), 2: hub("c", 1, members=("c", "a"))}
    assert chosen(1, loaded(a=0.1, b=0.9, c=0.5), seen=view(hubs=hubs)).hubs == {b"room0": 2}


def test_a_batch_is_spread_until_all_are_as_busy() -> None:
    choice = chosen(300, loaded(a=0.5, b=0.5, c=0.2))
    counts = Counter(choice.hubs.values())
    assert abs(counts[3] - 150) <= 2 and abs(counts[1] - counts[2]) <= 1
    scores = [score(load, 1.0) for load in choice.loads.values()]
    assert max(scores) - min(scores) < 0.01


def test_a_batch_on_an_idle_cluster_is_spread_evenly() -> None:
    assert set(Counter(chosen(300, loaded(a=0, b=0, c=0)).hubs.values()).values()) == {100}


def test_the_next_batch_knows_of_the_one_before() -> None:
    first = chosen(1, loaded(a=0, b=0.001, c=0.9))
    second = chosen(1, dict(first.loads))
    assert (first.hubs, second.hubs) == ({b"room0": 1}, {b"room0": 2})


def test_what_was_given_fades_as_samples_show_it() -> None:
    load = NodeLoad(load=Load(), at_s=NOW, added=0.8)
    for i in range(1, 101):
        load = load.sampled(Load(cpu_share=0.4), NOW + i * SMOOTH_S / 10)
    assert load.added < 1e-3 and load.load.cpu_share == pytest.approx(0.4, rel=1e-3)


def test_a_short_peak_is_smoothed() -> None:
    load = NodeLoad(load=Load(cpu_share=0.1), at_s=NOW).sampled(Load(cpu_share=1.0), NOW + SMOOTH_S / 10)
    assert load.load.cpu_share < 0.2


def test_hubs_of_the_same_members_are_chosen_as_if_each_was_looked_at() -> None:
    """For a room that was refused, all hubs are examined. Here a hub that does not exist refuses it, which
    changes nothing else."""
    pairs = [(a, b) for a in "abc" for b in "abc"]
    hubs = {i: hub(pairs[i % 9][0], i, members=tuple(set(pairs[i % 9]))) for i in range(1, 40)}
    seen, loads = view(hubs=hubs), loaded(a=0.2, b=0.25, c=0.2)
    each = {b"room%d" % i: {999} for i in range(200)}
    alike, looked_at = chosen(200, loads, seen=seen), chosen(200, loads, each, seen)
    assert alike == looked_at and len(set(alike.hubs.values())) > 20
    mixed = {b"room%d" % i: {999} for i in range(0, 200, 3)}
    assert chosen(200, loads, mixed, seen) == alike


def test_a_room_that_is_refused_goes_to_the_next_hub_and_others_are_not_kept_from_it() -> None:
    choice = chosen(2, loaded(a=0.5, b=0.2, c=0.4), refused={b"room0": {2}})
    assert choice.hubs == {b"room0": 3, b"room1": 2}


def test_a_room_that_all_refuse_is_not_placed() -> None:
    assert chosen(2, loaded(a=0, b=0, c=0), refused={b"room1": {1, 2, 3}}).hubs.keys() == {b"room0"}


@pytest.mark.parametrize("fields", [{"roles": ("edge",)}, {"is_draining": True}])
def test_a_node_that_holds_no_hubs_or_drains_is_never_chosen(fields: dict[str, object]) -> None:
    seen = view(hubs=HUBS)
    seen = replace(seen, nodes={**seen.nodes, **dict([node("b", **fields)])})
    assert 2 not in chosen(100, loaded(a=0.9, b=0, c=0.9), seen=seen).hubs.values()


@pytest.mark.parametrize(
    "state", [{"dead_s": NOW}, {"is_ready": False}, {"heard_s": NOW - 1}, {"suspected_by": frozenset("ac")}]
)
def test_a_node_that_cannot_lead_now_is_never_chosen(state: dict[str, object]) -> None:
    seen = view(hubs=HUBS, peers={("b", 1): peer(**state)})
    assert 2 not in chosen(100, loaded(a=0.9, b=0, c=0.9), seen=seen).hubs.values()


def test_a_hub_that_is_being_moved_gets_no_rooms() -> None:
    hubs = HUBS | {2: hub("b", 1, proposed=Proposed(leader="c", members=("c",)))}
    assert 2 not in chosen(100, loaded(a=0.9, b=0, c=0.9), seen=view(hubs=hubs)).hubs.values()


def test_a_node_of_unknown_or_old_load_comes_last() -> None:
    loads = loaded(a=0.9, b=0) | {"b": NodeLoad(load=Load(), at_s=NOW - STALE_S - 1)}
    assert chosen(1, loads).hubs == {b"room0": 1}
    assert chosen(1, {}, refused={b"room0": {1}}).hubs == {b"room0": 2}


def test_a_class_has_its_own_hubs() -> None:
    hubs = HUBS | {4: hub("a", 0, room_class="game")}
    assert 4 not in chosen(100, loaded(a=0, b=1, c=1), seen=view(hubs=hubs)).hubs.values()


def test_rooms_are_made_no_faster_than_their_rate_behind_a_burst() -> None:
    allowance = Allowance(per_second=10, burst=20, rooms_max=1_000, left=20, at_s=0)
    allowance, given, code = allowance.taken(25, 0, 0.0)
    assert (given, code) == (20, "room_creation_rate")
    allowance, given, code = allowance.taken(25, 20, 0.55)
    assert (given, code) == (5, "room_creation_rate")
    _, given, code = allowance.taken(5, 25, 100.0)
    assert (given, code) == (5, None)


def test_there_are_no_more_rooms_than_their_limit() -> None:
    allowance = Allowance(per_second=10, burst=20, rooms_max=100, left=20, at_s=0)
    assert allowance.taken(5, 98, 0.0)[1:] == (2, "too_many_rooms")
    assert allowance.taken(5, 120, 0.0)[1:] == (0, "too_many_rooms")


def test_shares_count_beside_a_core() -> None:
    delivers = NodeLoad(load=Load(deliveries_per_second=DELIVERIES_PER_CAPACITY), at_s=NOW)
    computes = NodeLoad(load=Load(cpu_share=1), at_s=NOW)
    assert score(delivers, 1.0) == score(computes, 1.0) == 2 * score(computes, 2.0)
