"""Logged hubs without a record are assigned to new nodes; those with one stay: the rule, the node that closes
them, and both together with random seeds. See docs/adr/0016-empty-hubs-are-dealt.md."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from hubsub.control.cluster.failover import MOVES_MAX, Decision, decide
from hubsub.control.cluster.hub_ring import LOAD_MAX
from hubsub.control.cluster.records import ClassRecord, HubRecord, Proposed
from hubsub.control.cluster.view import Claims, Stored, View
from hubsub.errors import DiskFullError, LogFailedError

from .fake_data import FakeData
from .fixtures import NOW, hub, node, peer, view
from .played import Cluster, play, until
from .test_core_plane import ME, OTHER, plane, row

LOGGED = {"chat": ClassRecord(version=1, hubs=9, durability="durable")}
A, B = ("a", 1), ("b", 1)


def founded(**proposed: str) -> dict[int, Stored[HubRecord]]:
    """Nine logged hubs that `a` led before other nodes joined; `proposed` has the new leaders of some."""
    hubs = {index: hub("a", index) for index in range(9)}
    for number, to in proposed.items():
        kept = hubs[int(number[1:])]
        record = kept.record
        hubs[int(number[1:])] = Stored(
            HubRecord(
                room_class="chat",
                index=record.index,
                term=record.term,
                leader="a",
                incarnation=1,
                members=("a",),
                proposed=Proposed(leader=to, members=(to,)),
            ),
            90,
        )
    return hubs


def decided(hubs: dict[int, Stored[HubRecord]], claims: Claims, **fields: object) -> Decision:
    seen: View = view(hubs=hubs, classes=LOGGED, claims={A: claims}, **fields)  # type: ignore[arg-type]
    return decide(seen)


def whys(decision: Decision) -> dict[int, str]:
    return {step.hub: step.why for step in decision.steps}


# -- the rule --


def test_only_hubs_that_their_leader_says_are_empty_are_to_go_and_few_at_a_time() -> None:
    assert whys(decided(founded(), Claims())) == {}
    few = decided(founded(), Claims(empty=frozenset({1, 2, 3})))
    assert whys(few).keys() <= {1, 2, 3} and set(whys(few).values()) == {"propose"}
    many = decided(founded(), Claims(empty=frozenset(range(9))))
    assert len(many.steps) == MOVES_MAX and set(whys(many).values()) == {"propose"}
    assert {step.after.leader for step in many.steps} == {"a"}, "who leads it does so until it gave it up"
    assert all(step.after.proposed and step.after.proposed.leader != "a" for step in many.steps)


def test_a_hub_goes_when_its_leader_has_sealed_it_by_the_record_that_stands() -> None:
    hubs = founded(h1="b")
    for claims in (Claims(), Claims(sealed={1: 89}), Claims(sealed={2: 90}), Claims(retained={1: 89})):
        assert whys(decided(hubs, claims)) == {}, "said by another record, or of another hub"
    step = decided(hubs, Claims(sealed={1: 90})).steps[0]
    assert (step.why, step.after.leader, step.after.term, step.after.proposed) == ("gave up", "b", 4, None)
    step = decided(hubs, Claims(retained={1: 90})).steps[0]
    assert (step.why, step.after.leader, step.after.term, step.after.proposed) == (
        "has records",
        "a",
        3,
        None,
    )


def test_what_an_earlier_process_of_a_name_said_moves_nothing() -> None:
    claims = Claims(empty=frozenset(range(9)), sealed={1: 90})
    seen = view(hubs=founded(h1="b"), classes=LOGGED, claims={("a", 0): claims}, peers={("a", 2): peer()})
    assert not decide(seen).steps
    again = replace(seen, nodes={**seen.nodes, **dict([node("a", 2)])}, claims={A: claims})
    assert {step.why for step in decide(again).steps} == {"started again"}


def test_a_hub_is_not_taken_from_who_is_dead_nor_given_to_who_is() -> None:
    dead = replace(peer(), dead_s=NOW)
    assert whys(decided(founded(), Claims(empty=frozenset({1, 2})), peers={A: dead})) == {}
    assert whys(decided(founded(h1="b"), Claims(sealed={1: 90}), peers={B: dead})) == {1: "withdraw"}


def test_a_hub_whose_leader_is_not_heard_keeps_no_other_from_moving() -> None:
    """The number of concurrent moves is limited, and this hub's node may be away for long."""
    for away in (replace(peer(), dead_s=NOW), peer(heard_s=NOW - 1)):
        step = decided(founded(h1="b"), Claims(), peers={A: away}).steps[0]
        assert (step.why, step.after.leader, step.after.term) == ("withdraw", "a", 3)
        # A hub that it has sealed before is still handed over.
        assert whys(decided(founded(h1="b"), Claims(sealed={1: 90}), peers={A: away})) == {1: "gave up"}


# -- the node that leads it --


def test_an_empty_hub_is_closed_and_sealed_and_led_again_when_it_is_withdrawn() -> None:
    async def test() -> None:
        data = FakeData()
        core, face = plane(data)
        core.routes([row(4, "log"), row(5, "log")])
        await until(lambda: data.rows[4].leader == ME and data.rows[5].leader == ME)
        assert core.claims() == Claims(empty=frozenset({4, 5}))
        before = face.changes
        core.routes([row(4, "log", gives_up=True, revision=8), row(5, "log")])
        assert data.rows[4].leader is None, "who publishes waits from now on"
        assert not core.claims().sealed, "it is not closed yet"
        await until(lambda: 4 not in data.open and not data.closing)
        assert core.claims() == Claims(empty=frozenset({5}), sealed={4: 8}) and face.changes > before
        # The record changes again: the watch left out the version in between.
        core.routes([row(4, "log", gives_up=True, revision=9), row(5, "log")])
        assert core.claims().sealed == {4: 9}
        core.routes([row(4, "log", revision=10), row(5, "log")])
        assert core.claims().sealed == {}
        await until(lambda: data.rows[4].leader == ME and 4 in data.open)
        core.routes([row(4, "log", OTHER, 2, revision=11), row(5, "log")])
        await until(lambda: 4 not in data.open)
        await core.close()

    play(test)


def test_a_hub_that_got_a_record_meanwhile_is_kept_and_led_on() -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        core.routes([row(4, "log")])
        await until(lambda: data.rows[4].leader == ME)
        data.latest[4] = 1
        core.routes([row(4, "log", gives_up=True, revision=8)])
        await until(lambda: data.rows[4].leader == ME and 4 in data.open)
        assert core.claims() == Claims(retained={4: 8})
        core.routes([row(4, "log", revision=9)])
        assert core.claims() == Claims()
        await core.close()

    play(test)


@pytest.mark.parametrize("error", [LogFailedError(), DiskFullError()])
def test_a_hub_that_cannot_be_closed_is_kept(error: LogFailedError | DiskFullError) -> None:
    async def test() -> None:
        data = FakeData()
        core, _ = plane(data)
        core.routes([row(4, "log")])
        await until(lambda: data.rows[4].leader == ME)

        async def fails(hub: int) -> int | None:
            raise error

        data.close_hub = fails  # type: ignore[method-assign]
        core.routes([row(4, "log", gives_up=True, revision=8)])
        await until(lambda: data.rows[4].leader == ME)
        assert core.claims().retained == {4: 8} and not core.claims().sealed
        await core.close()

    play(test)


def test_a_hub_that_the_directory_still_has_and_another_node_leads_is_closed() -> None:
    async def test() -> None:
        data = FakeData()
        data.open = {4: ("log", 4), 5: ("log", 5), 6: ("log", 6)}
        core, _ = plane(data)
        core.routes([row(4, "log", OTHER), row(5, "log")])
        await until(lambda: 4 not in data.open and data.rows[5].leader == ME)
        assert data.open.keys() == {5, 6}, "of the last one nobody has said anything yet"
        await core.close()

    play(test)


# -- together --

CLASSES = [
    {
        "name": "chat",
        "match": ["chat:*"],
        "durability": "durable",
        "history": {"bytes": 1 << 26},
        "placement": "ring",
    }
]


def shares(cluster: Cluster) -> Counter[str]:
    return Counter(hub["leader"] for hub in cluster.status()["hubs"] if hub["class"] == "chat")


def is_dealt(cluster: Cluster) -> bool:
    hubs = [hub for hub in cluster.status()["hubs"] if hub["class"] == "chat"]
    names = len(cluster.nodes)
    return (
        len(shares(cluster)) == names
        and max(shares(cluster).values()) <= ceil(LOAD_MAX * len(hubs) / names)
        and not any(hub["proposed"] for hub in hubs)
    )


def test_hubs_of_a_founder_are_dealt_when_others_join(tmp_path: Path) -> None:
    async def test() -> None:
        async with Cluster(CLASSES) as cluster:
            await cluster.start("a", data=str(tmp_path / "a"))
            await until(lambda: cluster.controller() and shares(cluster)["a"] == 16)
            for name in "bc":
                await cluster.start(name, data=str(tmp_path / name))
            await until(lambda: is_dealt(cluster))
            given = shares(cluster)["b"]
            await cluster.kill("b")
            await asyncio.sleep(10)
            assert shares(cluster)["b"] == given, "nobody can say what a dead node's hubs have"
            await cluster.start("b", data=str(tmp_path / "b"))
            await until(lambda: is_dealt(cluster))
            assert shares(cluster)["b"] == given, "it keeps what it was given"

    play(test)


async def publishes(cluster: Cluster, chance: random.Random) -> None:
    """Clients publish on random nodes at random times, mostly to a hub that is being moved."""
    while True:
        await asyncio.sleep(chance.uniform(0, 0.1))
        if not cluster.nodes:
            continue
        rows = {row.hub: row for plane in cluster.planes.values() for row in plane.rows.values()}
        going = [hub for hub, row in rows.items() if row.gives_up]
        hubs = going if going and chance.random() < 0.7 else [chance.randrange(1, 17)]
        if chance.random() < 0.3:
            hub = chance.choice(hubs)
            for name in cluster.nodes:
                cluster.planes[name].record(hub)


@pytest.mark.parametrize("seed", range(12))
def test_no_record_is_ever_left_behind_whatever_happens(seed: int, tmp_path: Path) -> None:
    async def test() -> None:
        chance = random.Random(seed)
        async with Cluster(CLASSES) as cluster:
            cluster.seed, cluster.doubts = seed, 0.15
            await cluster.start("a", data=str(tmp_path / "a"))
            await until(lambda: len(shares(cluster)) == 1)
            publisher = asyncio.create_task(publishes(cluster, chance))
            for name in "bc":
                await cluster.start(name, data=str(tmp_path / name))
            for _ in range(20):
                name = chance.choice(sorted(cluster.nodes))
                match chance.choice(["wait", "kill", "part"]):
                    case "kill" if chance.random() < 0.5:
                        await cluster.kill(name)
                        await asyncio.sleep(chance.uniform(0, 2))
                        await cluster.start(name, data=str(tmp_path / name))
                    case "part":
                        cluster.part(name)
                        await asyncio.sleep(chance.uniform(0, 1))
                        cluster.part(name, False)
                await asyncio.sleep(chance.uniform(0, 0.4))
            publisher.cancel()
            await asyncio.gather(publisher, return_exceptions=True)
            assert publisher.cancelled(), publisher.exception()
            await until(cluster.controller, within_s=60)
            await until(lambda: not any(hub["proposed"] for hub in cluster.status()["hubs"]), within_s=60)
            leaders = cluster.leaders()
            assert cluster.records, "something was published"
            assert {hub: leaders[hub] for hub in cluster.records} == cluster.records

    play(test)
