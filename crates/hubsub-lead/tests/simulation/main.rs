//! Invariants of leader leases among nodes that fail in every possible way. A failing seed is in the message
//! and fails again.

mod controller;
mod random;
mod store;
mod world;

use controller::HUBS;
use hubsub_types::{HubId, NodeId};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{DEAF, FAIR, FOUL, MS, SECOND, SLOW, World};

/// Enough for leases of dead nodes, an election, a leader lease and a change of the voters; after that all is
/// well.
const BOUND_US: u64 = 10 * SECOND;

/// Default number of seeds of the long run; `HUBSUB_SEEDS` overrides it.
const SEEDS: u64 = 6;

fn with_seed(seed: u64, nodes: u16, run: impl FnOnce(&mut World)) {
    let mut world = World::new(seed, nodes);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&mut world))) {
        eprintln!("seed {seed}, after {} ms", world.now / MS);
        std::panic::resume_unwind(panic);
    }
}

/// Removes all faults for a while, and then looks for a leader of every hub.
fn settle(world: &mut World) {
    world.heal();
    world.weather = FAIR;
    world.run(BOUND_US);
    let led: BTreeSet<HubId> = world.led().into_keys().collect();
    let moving: BTreeSet<HubId> =
        world.store.hubs.iter().filter(|(_, hub)| hub.proposed.is_some()).map(|(id, _)| *id).collect();
    // A hub that moves has no leader for a moment.
    for hub in (0..HUBS).map(HubId).filter(|hub| !led.contains(hub) && !moving.contains(hub)) {
        let before = world.store.hubs.get(&hub).map(|hub| hub.term);
        for _ in 0..100 {
            if world.led().contains_key(&hub) {
                break;
            }
            world.run(10 * MS);
        }
        assert!(
            world.led().contains_key(&hub),
            "{hub:?} is led by nobody: {before:?} {:?}",
            world.store.hubs[&hub]
        );
    }
}

fn some(world: &mut World) -> BTreeSet<NodeId> {
    let all: Vec<NodeId> = world.nodes.keys().copied().collect();
    let most = 1 + world.random.below(all.len() as u64);
    (0..most).filter_map(|_| world.random.pick(&all)).collect()
}

fn happen(world: &mut World) {
    let all: Vec<NodeId> = world.nodes.keys().copied().collect();
    let one = world.random.pick(&all).expect("there are nodes");
    let other = world.random.pick(&all).expect("there are nodes");
    match world.random.below(15) {
        0 | 1 if world.alive().len() > 3 => world.kill(one),
        2 | 3 => {
            let (side, rest) = (some(world), some(world));
            let everybody: BTreeSet<NodeId> = all.into_iter().collect();
            let reaching = match world.random.below(4) {
                0 => side.clone(),
                1 => everybody.difference(&side).copied().collect(),
                2 => everybody,
                _ => rest,
            };
            world.split(&side, &reaching);
        }
        4 => world.away = some(world),
        5 if one != other => _ = world.cut.insert((one.min(other), one.max(other))),
        6 => world.heal(),
        7 => {
            let for_us = world.random.below(3 * SECOND);
            world.stop(one, for_us);
        }
        8 if one != other => world.flap(one, other),
        9 if world.nodes.len() < 7 => world.start(NodeId(world.nodes.len() as u16)),
        10 => world.weather = if world.random.percent(50) { FOUL } else { FAIR },
        11 => _ = world.bad.insert((one, other), DEAF),
        12 => _ = world.bad.insert((one, other), SLOW),
        13 | 14 => {
            // The coordinator is unreachable, and a machine stalls.
            world.away = all.into_iter().collect();
            let before_us = world.random.below(3 * SECOND);
            world.run(before_us);
            for node in some(world) {
                let for_us = world.random.below(3 * SECOND);
                world.stop(node, for_us);
            }
        }
        _ => {}
    }
}

fn mend(world: &mut World) {
    let dead: Vec<NodeId> =
        world.nodes.values().filter(|node| !node.is_alive).map(|node| node.id.node).collect();
    dead.into_iter().for_each(|node| world.start(node));
}

#[test]
fn no_hub_ever_has_two_leaders_and_all_hubs_are_led_again_after_the_faults() {
    let seeds = std::env::var("HUBSUB_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut replaced = 0;
    let mut prolonged = 0;
    let (mut regained, mut deposed) = (0, 0);
    for seed in 0..seeds {
        with_seed(seed, 5, |world| {
            settle(world);
            for _ in 0..6 {
                for _ in 0..=world.random.below(3) {
                    happen(world);
                    let for_us = world.random.below(2_500 * MS);
                    world.run(for_us);
                }
                if world.random.percent(50) {
                    mend(world);
                    settle(world);
                }
            }
            mend(world);
            settle(world);
            replaced += world.store.replaced;
            prolonged += world.prolonged;
            regained += world.regained;
            deposed += world.deposed;
        });
    }
    assert!(replaced > 20 * seeds && prolonged > 2 * seeds, "too little happened: {replaced}, {prolonged}");
    assert!(regained > 0 && deposed > 0, "too little happened: {regained}, {deposed}");
}

/// The voters grow during bootstrap: whichever of three nodes dies then, the others lead all hubs.
#[test]
fn a_death_in_the_first_seconds_is_failed_over() {
    for seed in 0..60 {
        with_seed(seed, 1, |world| {
            let joins = world.random.below(2 * SECOND);
            world.run(joins);
            world.start(NodeId(1));
            let joins = world.random.below(2 * SECOND);
            world.run(joins);
            world.start(NodeId(2));
            while world.store.voters.nodes.len() < 3 {
                world.run(10 * MS);
            }
            let lives = world.random.below(2 * SECOND);
            world.run(lives);
            world.kill(NodeId((seed % 3) as u16));
            settle(world);
            assert!(world.store.voters.before.is_empty(), "{:?}", world.store.voters);
        });
    }
}

#[test]
fn while_the_coordinator_is_away_leads_go_on_without_a_break() {
    for seed in 0..3 {
        with_seed(seed, 5, |world| {
            settle(world);
            world.away = world.nodes.keys().copied().collect();
            // By then hubs in a move are given up or granted, and the controller's lease has ended.
            world.run(4 * SECOND);
            let (led, closed) = (world.led(), world.closed);
            world.run(60 * SECOND);
            assert_eq!((world.led(), world.closed), (led, closed));
            assert!(world.prolonged > 0);
            settle(world);
        });
    }
}

/// A controller's leader leases depend on a majority or on the coordinator like any other node's. Its own
/// lease, which may last longer, is not enough, and no node waits for its end.
#[test]
fn a_controller_that_is_cut_off_leads_nothing_after_one_lead_and_is_soon_replaced() {
    let mut slowest = 0;
    for seed in 0..40 {
        with_seed(seed, 3, |world| {
            settle(world);
            let controller = world.controller().expect("it is settled");
            let others: BTreeSet<NodeId> =
                world.alive().into_iter().filter(|node| *node != controller).collect();
            if seed % 2 == 0 {
                world.split(&[controller].into(), &others);
            } else {
                world.stop(controller, 20 * SECOND);
            }
            let began = world.now;
            world.run(SECOND + 20 * MS);
            let leases = world.led().into_values().any(|node| node == controller);
            assert!(!leases, "it leases, and a majority cannot know that");
            while world.led().len() < HUBS as usize {
                world.run(10 * MS);
                assert!(world.now < began + 5 * SECOND, "{:?}", world.led());
            }
            slowest = slowest.max(world.now - began);
            world.run(20 * SECOND);
            settle(world);
        });
    }
    assert!(slowest < 4 * SECOND, "{slowest}");
}

/// A machine stalls for longer than a leader lease.
#[test]
fn a_lead_that_a_stall_ended_comes_back_while_the_coordinator_is_away() {
    for seed in 0..40 {
        with_seed(seed, 3, |world| {
            settle(world);
            world.away = world.nodes.keys().copied().collect();
            world.run(4 * SECOND);
            let (led, replaced, regained) = (world.led(), world.store.replaced, world.regained);
            let all = world.alive();
            for &node in &all[..1 + seed as usize % all.len()] {
                world.stop(node, 2 * SECOND);
            }
            world.run(2 * SECOND);
            let for_us = 2 * SECOND;
            world.run(for_us);
            assert_eq!((world.led(), world.store.replaced), (led, replaced));
            assert!(world.regained > regained);
            settle(world);
        });
    }
}

/// The leader was replaced while it was cut off and does not know: the nodes that have no controller now had
/// one meanwhile.
#[test]
fn an_expired_lease_does_not_return_by_nodes_that_had_a_controller_since() {
    for seed in 0..30 {
        with_seed(seed, 3, |world| {
            settle(world);
            let controller = world.controller().expect("it is settled");
            let others: Vec<NodeId> = world.alive().into_iter().filter(|node| *node != controller).collect();
            let one = others[seed as usize % 2];
            let rest: BTreeSet<NodeId> = world.alive().into_iter().filter(|node| *node != one).collect();
            // Its clock goes on, or the process stalls too.
            world.split(&[one].into(), &rest);
            let for_us = 2 * SECOND + world.random.below(2 * SECOND);
            if world.random.percent(50) {
                world.stop(one, for_us);
            }
            world.run(for_us);
            world.cut.clear();
            world.away = world.nodes.keys().copied().collect();
            world.run(10 * SECOND);
            assert!(world.led().into_values().all(|node| node != one), "its successors go on");
            settle(world);
        });
    }
}

/// The third of three no longer hears the controller, while the controller still receives its
/// acknowledgement: it helps the leader to extend its lease, and the controller must not count it.
#[test]
fn a_node_that_stopped_acknowledging_does_not_count_for_a_replacement() {
    let mut helped = 0;
    for seed in 0..16 {
        with_seed(seed, 3, |world| {
            settle(world);
            let controller = world.controller().expect("it is settled");
            let others: Vec<NodeId> = world.alive().into_iter().filter(|node| *node != controller).collect();
            for (leader, third) in [(others[0], others[1]), (others[1], others[0])] {
                let prolonged = world.prolonged;
                world.bad.insert((leader, controller), DEAF);
                world.bad.insert((controller, leader), DEAF);
                let for_us = world.random.below(500 * MS);
                world.run(for_us);
                world.bad.insert((controller, third), DEAF);
                world.bad.insert((third, controller), SLOW);
                world.run(3 * SECOND);
                helped += world.prolonged - prolonged;
                settle(world);
            }
        });
    }
    assert!(helped > 0, "nobody needed help");
}
