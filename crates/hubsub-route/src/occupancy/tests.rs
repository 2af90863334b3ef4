use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MAX: u64 = 1_000;

/// A publish of a connection to the room with this number, which is also its topic's handle.
fn publish(counts: &mut Occupancy, conn: u32, room: u32, second: u32) {
    let published = Published { conn, topic: room, reused: 0, second };
    if !counts.repeats(published) {
        counts.published(published, &name(room), MAX, true);
    }
}

fn name(room: u32) -> Vec<u8> {
    format!("room:{room}").into_bytes()
}

fn publishers(counts: &Occupancy, room: u32) -> u32 {
    counts.of(&name(room)).publishers
}

fn none(_: &[u8]) -> bool {
    false
}

#[test]
fn a_connection_is_a_publisher_for_a_minute_behind_its_last_publish() {
    let mut counts = Occupancy::default();
    publish(&mut counts, 7, 0, 10);
    publish(&mut counts, 7, 0, 10);
    publish(&mut counts, 8, 0, 30);
    assert_eq!(publishers(&counts, 0), 2);
    publish(&mut counts, 7, 0, 50);
    counts.expire(90, none);
    assert_eq!(publishers(&counts, 0), 2, "each has published within a minute");
    counts.expire(91, none);
    assert_eq!(publishers(&counts, 0), 1);
    counts.expire(110, none);
    assert_eq!(publishers(&counts, 0), 1);
    counts.expire(111, none);
    assert_eq!(publishers(&counts, 0), 0);
    assert!(counts.rooms.is_empty(), "a room that nobody is in is forgotten");
}

#[test]
fn the_handle_of_a_forgotten_topic_is_no_repetition() {
    let mut counts = Occupancy::default();
    let first = Published { conn: 1, topic: 5, reused: 0, second: 3 };
    counts.published(first, b"a", MAX, false);
    assert!(counts.repeats(first));
    let other = Published { reused: 1, ..first };
    assert!(!counts.repeats(other));
    counts.published(other, b"b", MAX, false);
    assert_eq!([&b"a"[..], b"b"].map(|room| counts.of(room).publishers), [1, 1]);
}

#[test]
fn a_connection_that_ended_is_no_publisher_and_nor_is_who_has_its_place_next() {
    let mut counts = Occupancy::default();
    publish(&mut counts, 1, 0, 5);
    publish(&mut counts, 1, 1, 5);
    counts.publisher_gone(1, none);
    assert_eq!([publishers(&counts, 0), publishers(&counts, 1)], [0, 0]);
    publish(&mut counts, 1, 0, 20);
    counts.expire(66, none);
    assert_eq!(publishers(&counts, 0), 1, "what was due of the one before is not its");
    counts.expire(81, none);
    assert_eq!(publishers(&counts, 0), 0);
}

#[test]
fn so_many_publishers_are_remembered_and_the_others_are_told_to_be_missing() {
    let mut counts = Occupancy::default();
    for conn in 0..3 {
        counts.published(Published { conn, topic: 0, reused: 0, second: 1 }, b"a", 2, false);
    }
    assert_eq!((counts.of(b"a").publishers, counts.uncounted()), (2, 1));
    counts.expire(62, none);
    counts.published(Published { conn: 2, topic: 0, reused: 0, second: 62 }, b"a", 2, false);
    assert_eq!((counts.of(b"a").publishers, counts.uncounted()), (1, 1));
}

#[test]
fn only_rooms_that_tell_it_have_changed() {
    let mut counts = Occupancy::default();
    counts.subscribed(b"told", || b"told"[..].into(), (Protocol::Mqtt, true), true);
    counts.subscribed(b"not", || b"not"[..].into(), (Protocol::Redis, true), false);
    counts.member(b"told", true, true);
    assert_eq!(counts.take_changed(), [Arc::from(&b"told"[..])]);
    assert!(!counts.has_changed());
    counts.member(b"told", false, true);
    counts.subscribed(b"told", || b"told"[..].into(), (Protocol::Mqtt, false), true);
    assert_eq!(counts.take_changed(), [Arc::from(&b"told"[..])]);
    assert!(counts.of(b"told").is_none() && !counts.of(b"not").is_none());
}

#[test]
fn counts_are_read_as_they_were_written_and_damaged_ones_are_none() {
    let counts = Counts { subscribers: [1, 2, 3, u32::MAX], publishers: 5, members: 6 };
    let bytes = counts.encode(b"chat:\xFF");
    assert_eq!(Counts::decode(&bytes), Some((counts, &b"chat:\xFF"[..])));
    assert_eq!(Counts::decode(&bytes[..23]), None);
    assert_eq!(Counts::decode(&bytes[..24]), Some((counts, &b""[..])));
    let all: Counts = [counts, counts].iter().sum();
    assert_eq!((all.subscribers, all.subscriptions()), ([2, 4, 6, u32::MAX], u64::from(u32::MAX) + 12));
}

proptest! {
    /// Compared with a model of all publishes.
    #[test]
    fn publishers_are_those_of_the_last_minute(
        events in prop::collection::vec((0..4u32, 0..3u32, 0..40u32, 0..8u8), 1..200),
    ) {
        let mut counts = Occupancy::default();
        let mut last: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut second = 0;
        for (conn, room, later, kind) in events {
            second += later;
            counts.expire(second, none);
            last.retain(|_, at| *at + PUBLISHER_S >= second);
            if kind == 0 {
                counts.publisher_gone(conn, none);
                last.retain(|(of, _), _| *of != conn);
            } else {
                publish(&mut counts, conn, room, second);
                last.insert((conn, room), second);
            }
            for room in 0..3 {
                let expected = last.keys().filter(|(_, of)| *of == room).count();
                prop_assert_eq!(publishers(&counts, room) as usize, expected);
            }
        }
    }
}

/// A node that knows the parts of all nodes, and the outcomes of its own publishes.
#[derive(Default)]
struct Node {
    telling: Telling,
    waits: BTreeSet<(u64, Arc<[u8]>)>,
    under_way: Vec<Arc<[u8]>>,
}

/// A publish of a room's counts by a node, and whether it failed.
#[derive(Clone, Copy)]
struct Said {
    at_ms: u64,
    run: u64,
    counts: Counts,
    has_failed: bool,
}

/// The nodes and the time; the last node publishes, as long as it lives.
struct World {
    nodes: BTreeMap<u64, Node>,
    /// By node and room: number and counts.
    parts: BTreeMap<(u64, u32), (u64, Counts)>,
    now_ms: u64,
    number: u64,
    told: BTreeMap<Arc<[u8]>, Vec<Said>>,
}

impl World {
    fn new(nodes: u64) -> World {
        let nodes = (1..=nodes).map(|run| (run, Node::default())).collect();
        let (parts, told) = (BTreeMap::new(), BTreeMap::new());
        let mut world = World { nodes, parts, now_ms: 1_000, number: 0, told };
        world.elect();
        world
    }

    fn act(&mut self, run: u64, event: impl FnOnce(&mut Telling, u64, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        let node = self.nodes.get_mut(&run).expect("it lives");
        event(&mut node.telling, self.now_ms, &mut actions);
        for action in actions {
            match action {
                Action::Wait(room, at_ms) => _ = node.waits.insert((at_ms, room)),
                Action::Tell(room, counts) => {
                    node.under_way.push(Arc::clone(&room));
                    self.told.entry(room).or_default().push(Said {
                        at_ms: self.now_ms,
                        run,
                        counts,
                        has_failed: false,
                    });
                }
            }
        }
    }

    fn elect(&mut self) {
        let oldest = self.nodes.keys().next().copied();
        for run in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.act(run, |it, now, actions| it.lead(Some(run) == oldest, now, actions));
        }
    }

    /// A node publishes its part of a room; all nodes receive it.
    fn say(&mut self, run: u64, room: u32, counts: Counts) {
        self.number += 1;
        let number = self.number;
        let before = self.parts.remove(&(run, room));
        if !counts.is_none() {
            self.parts.insert((run, room), (number, counts));
        }
        for hears in self.nodes.keys().copied().collect::<Vec<_>>() {
            if !counts.is_none() {
                self.act(hears, |it, now, actions| it.part(run, &name(room), (number, counts), now, actions));
            }
            if let Some((number, _)) = before {
                self.act(hears, |it, now, actions| it.drop_part(run, &name(room), number, now, actions));
            }
        }
    }

    fn kill(&mut self, run: u64) {
        self.nodes.remove(&run);
        let rooms: Vec<u32> = self.parts.keys().filter(|(of, _)| *of == run).map(|(_, room)| *room).collect();
        for room in rooms {
            self.say(run, room, Counts::default());
        }
        self.elect();
    }

    fn answer(&mut self, is_told: bool) {
        for run in self.nodes.keys().copied().collect::<Vec<_>>() {
            for room in std::mem::take(&mut self.nodes.get_mut(&run).expect("it lives").under_way) {
                if let Some(Said { has_failed, .. }) =
                    self.told.get_mut(&room).and_then(|told| told.last_mut())
                {
                    *has_failed = !is_told;
                }
                self.act(run, |it, now, actions| it.told(&room, is_told, now, actions));
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        for run in self.nodes.keys().copied().collect::<Vec<_>>() {
            let node = self.nodes.get_mut(&run).expect("it lives");
            let due: Vec<_> = node.waits.extract_if(.., |(at_ms, _)| *at_ms <= self.now_ms).collect();
            for (_, room) in due {
                self.act(run, |it, now, actions| it.tick(&room, now, actions));
            }
            self.nodes.get_mut(&run).expect("it lives").telling.sweep(self.now_ms);
        }
    }

    fn total(&self, room: u32) -> Counts {
        self.parts.iter().filter(|((_, of), _)| *of == room).map(|(_, (_, counts))| counts).sum()
    }

    fn last(&self, room: u32) -> Counts {
        let told = self.told.get(&*name(room)).and_then(|told| told.iter().rfind(|told| !told.has_failed));
        told.map_or_else(Counts::default, |told| told.counts)
    }
}

#[test]
fn who_told_for_another_tells_beside_it_when_that_is_back_until_all_know_its_part() {
    let (mut node, mut actions) = (Telling::default(), Vec::new());
    let members = |members| Counts { members, ..Counts::default() };
    let of = |members| Action::Tell(name(0).into(), Counts { members, ..Counts::default() });
    node.lead(false, 0, &mut actions);
    node.part(1, &name(0), (1, members(1)), 0, &mut actions);
    node.part(2, &name(0), (1, members(1)), 0, &mut actions);
    assert_eq!(actions, [], "another one tells");
    // That node is considered dead.
    node.drop_part(1, &name(0), 1, 100_000, &mut actions);
    node.lead(true, 100_000, &mut actions);
    assert_eq!(actions, [of(1)]);
    node.told(&name(0), true, 100_001, &mut actions);
    // It returns, and its part arrives later.
    actions.clear();
    node.lead(false, 101_000, &mut actions);
    node.part(1, &name(0), (1, members(1)), 101_500, &mut actions);
    assert_eq!(actions, [of(2)]);
    node.told(&name(0), true, 101_501, &mut actions);
    node.sweep(111_000);
    actions.clear();
    node.part(1, &name(0), (2, members(3)), 112_000, &mut actions);
    assert_eq!(actions, [], "now it tells alone");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The last published counts are correct in the end, whichever nodes died and whichever publishes failed;
    /// one node publishes at a time, at the limited rate, and repeats nothing unless another node takes over.
    #[test]
    fn the_last_state_is_told_by_one_node_at_a_time(
        events in prop::collection::vec((0..10u8, 1..4u64, 0..3u32, 0..4u32, 0..400u64), 1..60),
    ) {
        let mut world = World::new(3);
        for (kind, run, room, members, ms) in events {
            match kind {
                0 if world.nodes.len() > 1 && world.nodes.contains_key(&run) => {
                    // Its publish in flight may have succeeded or not.
                    world.answer(members % 2 == 0);
                    world.kill(run);
                }
                1 => world.answer(false),
                2..=4 => world.answer(true),
                5..=6 => world.pass(ms),
                _ if world.nodes.contains_key(&run) => {
                    world.say(run, room, Counts { members, ..Counts::default() });
                }
                _ => {}
            }
        }
        for _ in 0..8 {
            world.answer(true);
            world.pass(1_000);
        }
        for room in 0..3 {
            prop_assert_eq!(world.last(room), world.total(room));
        }
        for told in world.told.values() {
            for pair in told.windows(2) {
                let [before, next] = [pair[0], pair[1]];
                if before.run == next.run {
                    prop_assert!(before.at_ms + EACH_MS <= next.at_ms, "{} {}", before.at_ms, next.at_ms);
                    prop_assert!(before.counts != next.counts || before.has_failed, "{:?} twice", next.counts);
                }
            }
        }
        let lived: Vec<u64> = world.nodes.keys().copied().collect();
        for room in 0..3 {
            for run in 1..4 {
                world.say(run, room, Counts::default());
            }
        }
        for _ in 0..70 {
            world.answer(true);
            world.pass(1_000);
        }
        for run in lived {
            prop_assert!(world.nodes[&run].telling.is_empty(), "rooms that nobody is in are forgotten");
        }
    }
}
