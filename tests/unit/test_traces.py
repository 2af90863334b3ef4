"""Traces: how the steps of several nodes are joined, and what `hubsub trace` prints of one."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from hubsub.api.traces import KINDS, Part, Parts, Step, first_records, join
from hubsub.cli.trace import TEXTS, _row


def step(at_us: int, kind: str, node: str = "a") -> Step:
    return Step(at_us=at_us, node=node, shard=0, kind=kind)


def part(position: str, *steps: Step) -> Part:
    return Part(position=position, steps=list(steps))


def whole(position: str, at_us: int = 0) -> Part:
    return part(position, step(at_us, "received"), step(at_us + 1, "committed"))


def test_steps_of_all_nodes_are_joined_by_position_in_order_of_time() -> None:
    edge = part("1-5", step(10, "received"), step(50, "acknowledged"))
    leader = part("1-5", step(20, "from_node", "b"), step(30, "committed", "b"))
    reader = part("1-5", step(40, "delivered", "c"))
    (record,) = join(Parts(records=[reader, edge, leader]), 10)
    assert record.position == "1-5"
    kinds = [(each.node, each.kind) for each in record.steps]
    assert kinds == [
        ("a", "received"),
        ("b", "from_node"),
        ("b", "committed"),
        ("c", "delivered"),
        ("a", "acknowledged"),
    ]


def test_only_records_that_were_received_and_committed_meanwhile_are_shown() -> None:
    received, committed = part("1-1", step(1, "received")), part("1-2", step(1, "committed"))
    found = join(Parts(records=[received, committed, whole("1-3")]), 10)
    assert [record.position for record in found] == ["1-3"]
    assert join(Parts(records=[]), 10) == []


def test_only_records_that_all_shards_followed_are_shown() -> None:
    parts = Parts(records=[whole(f"{epoch}-{seq}") for epoch in (1, 2) for seq in (1, 2, 3)])
    parts.add(Parts(after=(1, 1), until=(2, 2), records=[]))
    parts.add(Parts(records=[]))
    assert [record.position for record in join(parts, 10)] == ["1-2", "1-3", "2-1", "2-2"]
    parts.add(Parts(after=(1, 2), until=(2, 1), is_full=True, records=[]))
    assert ([record.position for record in join(parts, 10)], parts.is_full) == (["1-3", "2-1"], True)
    parts.add(Parts(after=(1, 1), until=(2, 3), records=[]))
    assert [record.position for record in join(parts, 10)] == ["1-3", "2-1"]


def test_the_first_records_are_in_order_of_their_positions_as_numbers() -> None:
    parts = Parts(records=[whole(position) for position in ("2-1", "1-10", "1-9")])
    assert [record.position for record in join(parts, 10)] == ["1-9", "1-10", "2-1"]
    assert [record.position for record in join(parts, 2)] == ["1-9", "1-10"]


def test_steps_of_one_microsecond_are_in_the_order_in_which_they_happen() -> None:
    (record,) = join(Parts(records=[part("1-1", *(step(7, kind) for kind in reversed(KINDS)))]), 1)
    assert [each.kind for each in record.steps] == list(KINDS)
    assert list(TEXTS) == list(KINDS)


def test_a_part_has_the_first_records_that_fit() -> None:
    records = [whole(position) for position in ("1-10", "1-9", "1-11")]
    one, two, all_three = accumulate(
        len(msgspec.json.encode(whole(position))) for position in ("1-9", "1-10", "1-11")
    )
    cases = {0: ([], (1, 8)), one - 1: ([], (1, 8)), one: (["1-9"], (1, 9)), two: (["1-9", "1-10"], (1, 10))}
    cases |= {all_three - 1: cases[two], all_three: (["1-9", "1-10", "1-11"], None)}
    for most, expected in cases.items():
        first, until = first_records(records, most)
        assert ([record.position for record in first], until) == expected


def test_a_line_has_the_time_since_the_first_step_the_place_and_the_peer() -> None:
    sent = {"at_us": 1_250, "node": "a", "shard": 1, "kind": "sent_to_leader", "peer_node": "b"}
    assert _row(sent, 1_000) == {"us": 250, "node": "a", "shard": 1, "step": "sent to its leader: b"}
    moved = {"at_us": 1_000, "node": "a", "shard": 1, "kind": "from_shard", "peer_shard": 0}
    assert _row(moved, 1_000)["step"] == "arrived at its hub: shard 0"
    logged = {"at_us": 1_000, "node": "a", "shard": 1, "kind": "logged", "count": 7}
    assert _row(logged, 1_000)["step"] == "logged at offset 7"
