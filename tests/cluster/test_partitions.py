"""Network partitions between three nodes: what clients on each side see, during and after.

Each test cuts the network of `parted` and mends it again. Clients are on loopback: only links between nodes
are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import pytest
from clients.raw import Frame
from clients.servers import until

from cluster.cluster import CLASSES, NAMES, Cluster
from cluster.network import network_or_skip
from cluster.parted import Parted
from cluster.witness import Witness

pytestmark = pytest.mark.needs("hubsub-core", "ip")


WHOLE = "whole "
"""Prefix of payloads that are retried until the network is whole."""
OPEN = {"name": "open", "match": ["open:*"], "placement": "ring", "on_partition": "serve"}


@pytest.fixture(scope="module")
def parted(needs: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parted]:
    needs("hubsub-core", "ip")
    with (
        network_or_skip(NAMES) as network,
        Parted(network, tmp_path_factory.mktemp("parted"), classes=[OPEN, *CLASSES]) as cluster,
    ):
        yield cluster


def answer(cluster: Cluster, name: str, room: str, payload: str) -> object:
    """Publishes through this node; returns the number of receivers, or the error."""
    with cluster.connect(name) as client:
        return client.ask("PUBLISH", room, payload)


def takes(cluster: Cluster, name: str, room: str, payload: str) -> bool:
    return not isinstance(answer(cluster, name, room, payload), Frame)


def refusal(cluster: Cluster, name: str, room: str) -> Frame:
    """Publishes until a record is refused: a leader lease is valid until it ends."""
    refused = (answer(cluster, name, room, f"{name} {number}") for number in count())
    return next(told for told in refused if isinstance(told, Frame))


def finish(cluster: Cluster, witnesses: dict[str, Witness], rooms: list[str]) -> None:
    """Checks a healed cluster: publishes on any node reach all clients, and no witness saw an error."""
    for room in rooms:
        # An old link may end just after the network is mended (outcome unknown), and a node whose epoch of
        # the room just ended may not have looked it up again.
        tries = count()
        until(lambda: answer(cluster, NAMES[0], room, f"{WHOLE}{next(tries)}") == len(witnesses))  # noqa: B023
        for name in NAMES:
            assert answer(cluster, name, room, f"after {name}") == len(witnesses)
        assert takes(cluster, NAMES[0], room, "end")
    for witness in witnesses.values():
        witness.read_to("end")
        witness.check()
        for room in rooms:
            assert witness.payloads(room)[-len(NAMES) - 1 :] == [*(f"after {name}" for name in NAMES), "end"]
        witness.client.close()


def heard(witness: Witness, room: str) -> list[str]:
    """Payloads from before and during the partition, in order."""
    payloads = witness.payloads(room)
    return [it for it in payloads[: payloads.index(f"after {NAMES[0]}")] if not it.startswith(WHOLE)]


@pytest.mark.parametrize("is_controller", [True, False])
def test_the_minority_waits_the_majority_goes_on_and_all_heals_without_hands(
    parted: Parted, is_controller: bool
) -> None:
    parted.settled()
    controller = str(parted.status("a")["controller"])
    alone = next(name for name in NAMES if (name == controller) == is_controller)
    others = [name for name in NAMES if name != alone]
    rooms = {name: parted.room_led_by(name) for name in NAMES}
    orphan = rooms[alone]
    witnesses = {name: Witness(parted.connect(name), *rooms.values()) for name in NAMES}
    for room in rooms.values():
        assert answer(parted, alone, room, "before") == len(NAMES)

    parted.network.isolate(alone)
    with ThreadPoolExecutor() as threads:
        refused: list[Future[Frame]] = [
            threads.submit(refusal, parted, alone, room) for room in rooms.values()
        ]
        until(lambda: takes(parted, others[0], orphan, "there"))
        assert takes(parted, others[1], orphan, "there, too")
        for told in refused:
            assert b"try again later" in told.result().value or b"outcome is unknown" in told.result().value  # type: ignore[operator]
    assert not any(name in others for name in parted.leaders(alone) if name == alone)
    assert any(f"hears no majority of {', '.join(NAMES)}" in wrong for wrong in parted.status(alone)["wrong"])

    parted.network.mend()
    parted.settled()
    finish(parted, witnesses, list(rooms.values()))
    for name in others:
        assert heard(witnesses[name], orphan)[1:] == ["there", "there, too"]
    for name in others:
        assert witnesses[name].gaps(orphan) > 0, (
            "who may lack some of it is told that the life of before is over"
        )


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_link_that_is_cut_between_two_of_three_costs_the_others_nothing(
    parted: Parted, both_ways: bool
) -> None:
    parted.settled()
    controller = str(parted.status("a")["controller"])
    one, other = (name for name in NAMES if name != controller)
    rooms = {name: parted.room_led_by(name) for name in NAMES}
    witnesses = {name: Witness(parted.connect(name), *rooms.values()) for name in NAMES}
    before = parted.leaders("a")
    parted.network.cut([(one, other), (other, one)] if both_ways else [(one, other)])
    until(lambda: any(f"node {one}: " in wrong for wrong in parted.status(other)["wrong"]))
    for room in rooms.values():
        assert takes(parted, controller, room, "during")
    for name in (one, other):
        assert takes(parted, name, rooms[name], "during, too")
        assert takes(parted, name, rooms[controller], f"during, from {name}")
    assert parted.leaders(controller) == before
    parted.network.mend()
    parted.settled()
    finish(parted, witnesses, list(rooms.values()))


def test_the_minority_serves_rooms_of_a_class_that_says_so_in_a_life_of_their_own(parted: Parted) -> None:
    parted.settled()
    controller = str(parted.status("a")["controller"])
    alone = next(name for name in NAMES if name != controller)
    others = [name for name in NAMES if name != alone]
    room = parted.room_led_by(alone, "open:")
    witnesses = {name: Witness(parted.connect(name), room) for name in NAMES}
    assert answer(parted, alone, room, "before") == len(NAMES)

    parted.network.isolate(alone)
    # Its leader lease runs for a moment; then it continues in a new epoch.
    here = witnesses[alone]
    sent = 0
    while len(here.epochs(room)) < 2:
        if takes(parted, alone, room, f"here {sent}"):
            here.read_to(f"here {sent}")
        sent += 1
    until(lambda: takes(parted, others[0], room, "there"))
    assert takes(parted, alone, room, "here, too")
    witnesses[others[1]].read_to("there")

    parted.network.mend()
    parted.settled()
    finish(parted, witnesses, [room])
    own = here.epochs(room)[1]
    assert own not in witnesses[others[0]].epochs(room) and len(here.epochs(room)) > 2
    assert heard(witnesses[others[0]], room)[-1] == "there"
    for witness in witnesses.values():
        assert witness.gaps(room) > 0, "all are told"
