"""The controller's decisions in a simulated cluster: invariants under random faults. See `world`."""

import hypothesis
import pytest

from hubsub.control.cluster.failover import MOVES_MAX
from hubsub.control.cluster.hub_ring import Place, assign
from hubsub.control.cluster.records import ClassRecord
from unit.cluster.world import TIMING, World

CLASSES = {
    "chat": ClassRecord(version=1, hubs=9),
    "game": ClassRecord(version=1, hubs=3, members=2, placement="ring"),
}
HUBS = 12

BOUND_S = 8.0
"""The leases of dead processes end, then an election, a leader lease, the voters, and moves to the ring's
nodes: after this time the cluster is healthy."""


SEEDS = range(8 if hypothesis.settings().max_examples <= 100 else 400)
"""The profile `soak` runs more seeds."""


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_nobody_leads_beside_another_and_all_is_led_again_when_it_is_over(seed: int) -> None:
    world = World(seed, 5, CLASSES)
    settle(world)
    # At least one leader dies in any case.
    world.kill(world.random.choice(sorted(set(world.led().values()))))
    for _ in range(6):
        for _ in range(world.random.randint(1, 3)):
            happen(world)
            world.run(world.random.uniform(0.1, 2.5))
        if world.random.random() < 0.5:
            mend(world)
            settle(world)
    mend(world)
    settle(world)
    world.run(BOUND_S / 2)
    assert {hub: kept.record.members for hub, kept in world.store.hubs().items()} == homes(world)
    assert world.led() == {hub: members[0] for hub, members in homes(world).items()}
    assert world.replaced > 0


def test_a_leader_that_dies_is_replaced_before_its_lead_would_have_ended() -> None:
    world = World(1, 5, CLASSES)
    settle(world)
    controller = world.controller()
    victim = next(name for name in world.led().values() if name != controller)
    world.kill(victim)
    world.run(TIMING.lease_s / 2)
    assert victim not in {kept.record.leader for kept in world.store.hubs().values()}
    world.run(TIMING.lease_s / 2)
    assert set(world.led()) == set(range(1, HUBS + 1))


def test_while_the_coordinator_is_away_everybody_goes_on_and_nothing_changes() -> None:
    world = World(2, 5, CLASSES)
    settle(world)
    led, replaced = world.led(), world.replaced
    world.away = set(world.processes)
    for _ in range(60):
        world.run(1.0)
        assert world.led() == led
    world.heal()
    world.run(BOUND_S)
    assert (world.led(), world.replaced) == (led, replaced)


def test_the_side_of_a_split_without_a_majority_loses_its_hubs_and_the_other_leads_them_all() -> None:
    world = World(3, 5, CLASSES)
    settle(world)
    world.split({"n0", "n1"}, {"n2", "n3", "n4"})
    world.run(BOUND_S)
    assert set(world.led()) == set(range(1, HUBS + 1))
    assert set(world.led().values()) == {"n2", "n3", "n4"}


def test_a_coordinator_on_the_side_of_the_few_takes_nothing_from_the_many() -> None:
    """The majority's leases have lapsed long ago at the coordinator; the voters do not shrink with them."""
    world = World(4, 5, CLASSES)
    settle(world)
    led = world.led()
    world.split({"n0", "n1"}, {"n0", "n1"})
    world.run(30)
    assert {hub: name for hub, name in led.items() if name not in ("n0", "n1")}.items() <= world.led().items()


def test_hubs_move_to_a_node_that_joins_a_few_at_a_time_and_from_one_that_drains_all() -> None:
    world = World(5, 3, {"chat": ClassRecord(version=1, hubs=40)})
    world.run(2 * BOUND_S)
    world.start("n3")
    held: set[int] = set()
    for _ in range(160):
        world.tick()
        moving = [hub for hub, kept in world.store.hubs().items() if kept.record.proposed is not None]
        assert len(moving) <= MOVES_MAX
        held.add(len(moving))
    assert max(held) == MOVES_MAX and len(world.led()) == 40
    assert set(world.led().values()) == {"n0", "n1", "n2", "n3"}
    world.processes["n0"].is_draining = True
    world.run(2 * BOUND_S)
    assert len(world.led()) == 40 and set(world.led().values()) == {"n1", "n2", "n3"}


def settle(world: World) -> None:
    """Heals the network, waits for the bound, and checks that every hub has a leader."""
    world.heal()
    world.run(BOUND_S)
    assert set(world.led()) == set(range(1, HUBS + 1)), f"{world.now:.2f}: {world.led()}"


def happen(world: World) -> None:
    """Injects a random fault."""
    random = world.random
    names = sorted(world.processes)
    match random.choice(["kill", "kill", "split", "split", "away", "cut", "heal", "join", "drain"]):
        case "kill" if len(world.alive()) > 3:
            world.kill(random.choice(world.alive()).id[0])
        case "split":
            side = set(random.sample(names, random.randint(1, len(names) - 1)))
            world.split(side, random.choice([side, set(names) - side, set(names), set()]))
        case "away":
            world.away = set(random.sample(names, random.randint(1, len(names))))
        case "cut":
            world.cut.add(frozenset(random.sample(names, 2)))
        case "heal":
            world.heal()
        case "join" if len(names) < 7:
            world.start(f"n{len(names)}")
        case "drain":
            random.choice(world.alive()).is_draining = random.random() < 0.5


def mend(world: World) -> None:
    """Starts dead processes again and ends all drains."""
    for name in sorted(world.processes):
        if not world.processes[name].is_alive:
            world.start(name)
        world.processes[name].is_draining = False


def homes(world: World) -> dict[int, tuple[str, ...]]:
    """The ring's members of each hub."""
    places = [Place(name) for name in world.processes]
    targets = {}
    for name, room_class in CLASSES.items():
        targets |= assign(places, [f"{name}/{i}" for i in range(room_class.hubs)], room_class.members)
    records = {hub: kept.record for hub, kept in world.store.hubs().items()}
    return {hub: targets[f"{record.room_class}/{record.index}"] for hub, record in records.items()}
