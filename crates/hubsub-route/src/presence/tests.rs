//! Tests of single rules, and of several nodes with a room between them under seeds.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LIMITS: Limits = Limits { batch_ms: 250, answer_ms: 1_000, listed_max: 1_000, word_bytes: 100 };
const ROOM: &[u8] = b"chat:a";

fn member(reference: u64) -> Member {
    Member { reference, former: 0, key: format!("user {}", reference % 5).into(), meta: b"{}"[..].into() }
}

fn act(presence: &mut Presence, act: impl FnOnce(&mut Presence, &mut Vec<Action>)) -> Vec<Action> {
    let mut actions = Vec::new();
    act(presence, &mut actions);
    actions
}

/// The messages among actions, with their numbers.
fn words(actions: &[Action]) -> Vec<(u64, Word)> {
    let said = actions.iter().filter_map(|action| match action {
        Action::Say(_, number, bytes) => Some((*number, Word::decode(bytes).unwrap().1)),
        _ => None,
    });
    said.collect()
}

/// A node that is in the room, alone.
fn alone(limits: Limits) -> Presence {
    let mut presence = Presence::new(1, limits);
    let got = act(&mut presence, |p, actions| p.watch(ROOM, 0, actions));
    assert_eq!(got, [Action::Enter(ROOM.into())]);
    let got = act(&mut presence, |p, actions| p.entered(ROOM, true, 0, actions));
    let [(number, Word::Hello)] = words(&got)[..] else { panic!("{got:?}") };
    let got = act(&mut presence, |p, actions| p.said(ROOM, number, Some(1), 0, actions));
    assert_eq!(got, [Action::Ready(ROOM.into())], "nobody else is there to answer");
    presence
}

/// Delivers a node's own messages to it.
fn echo(presence: &mut Presence, said: &[Action], now_ms: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    for action in said {
        if let Action::Say(room, _, bytes) = action {
            presence.heard(room, bytes, now_ms, &mut actions);
        }
    }
    actions
}

#[test]
fn who_comes_and_goes_within_a_batch_is_one_word_and_one_who_does_both_is_none() {
    let mut presence = alone(LIMITS);
    let got = act(&mut presence, |p, actions| p.join(ROOM, member(1), 10, actions));
    assert_eq!(got, [Action::Wait(ROOM.into(), 260)]);
    assert_eq!(act(&mut presence, |p, actions| p.join(ROOM, member(2), 100, actions)), []);
    assert_eq!(act(&mut presence, |p, actions| p.join(ROOM, member(3), 200, actions)), []);
    assert_eq!(act(&mut presence, |p, actions| p.leave(ROOM, 2, 255, actions)), []);
    let said = act(&mut presence, |p, actions| p.tick(ROOM, 260, actions));
    assert!(matches!(&words(&said)[..], [(_, Word::Part { members, .. })] if members.len() == 2), "{said:?}");
    assert_eq!(presence.shown(ROOM).unwrap().1, 0, "it is shown when it has been through the room");
    let told = echo(&mut presence, &said, 261);
    let [Action::Tell(_, diff)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((diff.joins.len(), diff.leaves.len(), diff.count), (2, 0, 2));
    act(&mut presence, |p, actions| p.leave(ROOM, 1, 300, actions));
    act(&mut presence, |p, actions| p.join(ROOM, member(4), 301, actions));
    let said = act(&mut presence, |p, actions| p.tick(ROOM, 550, actions));
    assert!(
        matches!(&words(&said)[..], [(_, Word::Change { joins, leaves, .. })] if joins.len() == 1 && leaves == &[1]),
        "{said:?}"
    );
}

#[test]
fn more_members_than_are_listed_are_counted() {
    let mut presence = alone(Limits { listed_max: 3, ..LIMITS });
    for reference in 1..=10 {
        act(&mut presence, |p, actions| p.join(ROOM, member(reference), 0, actions));
    }
    let said = act(&mut presence, |p, actions| p.tick(ROOM, 250, actions));
    echo(&mut presence, &said, 250);
    let (members, count) = presence.shown(ROOM).unwrap();
    assert_eq!((members.len(), count), (3, 10));
    act(&mut presence, |p, actions| p.leave(ROOM, 9, 300, actions));
    let said = act(&mut presence, |p, actions| p.tick(ROOM, 550, actions));
    let told = echo(&mut presence, &said, 550);
    let [Action::Tell(_, diff)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*diff, Diff { count: 9, more: 6, ..Diff::default() });
    assert_eq!(presence.unlisted, 7);
}

#[test]
fn what_a_process_said_that_is_gone_counts_no_more_unless_it_is_heard_again() {
    let mut presence = alone(LIMITS);
    let part = |number| Word::Part {
        number,
        is_first: true,
        is_last: true,
        more: 0,
        members: vec![Arc::new(member(7))],
    };
    let told = act(&mut presence, |p, actions| p.heard(ROOM, &part(1).encode(2), 0, actions));
    assert!(matches!(&told[..], [Action::Tell(_, diff)] if diff.count == 1), "{told:?}");
    let told = act(&mut presence, |p, actions| p.gone(2, 10, actions));
    assert!(matches!(&told[..], [Action::Tell(_, diff)] if diff.count == 0), "{told:?}");
    assert_eq!(act(&mut presence, |p, actions| p.heard(ROOM, &part(2).encode(2), 20, actions)), []);
    let asked = act(&mut presence, |p, actions| p.back(2, 30, actions));
    assert!(matches!(words(&asked)[..], [(_, Word::Hello)]), "{asked:?}");
    let told = act(&mut presence, |p, actions| p.heard(ROOM, &part(3).encode(2), 40, actions));
    assert!(matches!(&told[..], [Action::Tell(_, diff)] if diff.count == 1), "{told:?}");
    assert_eq!(act(&mut presence, |p, actions| p.back(2, 50, actions)), [], "it is there");
}

#[test]
fn a_room_that_cannot_be_reached_is_tried_again_and_one_that_nobody_wants_is_left() {
    let mut presence = Presence::new(1, LIMITS);
    act(&mut presence, |p, actions| p.join(ROOM, member(1), 0, actions));
    let got = act(&mut presence, |p, actions| p.entered(ROOM, false, 100, actions));
    assert_eq!(got, [Action::Wait(ROOM.into(), 1_100)]);
    assert_eq!(act(&mut presence, |p, actions| p.join(ROOM, member(2), 200, actions)), []);
    let got = act(&mut presence, |p, actions| p.tick(ROOM, 1_100, actions));
    assert_eq!(got, [Action::Enter(ROOM.into())]);
    let got = act(&mut presence, |p, actions| p.entered(ROOM, true, 1_200, actions));
    assert!(
        matches!(&words(&got)[..], [(_, Word::Hello), (_, Word::Part { members, .. })] if members.len() == 2)
    );
    for reference in [1, 2] {
        act(&mut presence, |p, actions| p.leave(ROOM, reference, 1_300, actions));
    }
    let got = act(&mut presence, |p, actions| p.tick(ROOM, 1_550, actions));
    let [(number, Word::Bye)] = words(&got)[..] else { panic!("{got:?}") };
    act(&mut presence, |p, actions| p.said(ROOM, number, Some(1), 1_560, actions));
    let got = act(&mut presence, |p, actions| p.tick(ROOM, 1_810, actions));
    assert_eq!(got, [Action::Exit(ROOM.into())], "once all who are there have been told");
    assert!(presence.is_empty());
}

#[test]
fn what_was_not_said_is_said_again_whole() {
    let mut presence = alone(LIMITS);
    act(&mut presence, |p, actions| p.join(ROOM, member(1), 0, actions));
    let said = act(&mut presence, |p, actions| p.tick(ROOM, 250, actions));
    let (number, _) = words(&said)[0];
    act(&mut presence, |p, actions| p.said(ROOM, number, None, 300, actions));
    let said = act(&mut presence, |p, actions| p.tick(ROOM, 1_300, actions));
    assert!(matches!(&words(&said)[..], [(_, Word::Part { members, .. })] if members.len() == 1), "{said:?}");
}

fn any_word() -> impl Strategy<Value = Word> {
    let member = (any::<[u64; 2]>(), ".{0,9}", prop::collection::vec(any::<u8>(), 0..9)).prop_map(
        |([reference, former], key, meta)| {
            Arc::new(Member { reference, former, key: key.into(), meta: meta.into() })
        },
    );
    let members = prop::collection::vec(member, 0..5);
    prop_oneof![
        Just(Word::Hello),
        Just(Word::Bye),
        (any::<u64>(), any::<bool>(), any::<bool>(), any::<u64>(), members.clone()).prop_map(
            |(number, is_first, is_last, more, members)| Word::Part {
                number,
                is_first,
                is_last,
                more,
                members
            }
        ),
        (any::<[u64; 3]>(), members, prop::collection::vec(any::<u64>(), 0..5)).prop_map(
            |([after, number, more], joins, leaves)| Word::Change { after, number, more, joins, leaves }
        ),
    ]
}

proptest! {
    #[test]
    fn a_word_reads_back_what_it_wrote_and_a_part_of_it_is_none(word in any_word(), from: u64, at in 0_usize..99) {
        let bytes = word.encode(from);
        prop_assert_eq!(Word::decode(&bytes), Ok((from, word)));
        prop_assert_eq!(Word::decode(&bytes[..at % bytes.len()]), Err(BadWord));
        prop_assert_eq!(Word::decode(&[&bytes[..], b"x"].concat()), Err(BadWord));
    }

    #[test]
    fn any_bytes_are_a_word_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok((from, word)) = Word::decode(&bytes) {
            prop_assert_eq!(Word::decode(&word.encode(from)), Ok((from, word)));
        }
    }
}

/// Messages in flight between a node and the room; in order per direction.
#[derive(Clone, Debug)]
enum Way {
    Enter,
    Exit,
    Say(u64, Vec<u8>),
    Entered(bool),
    Said(u64, Option<u64>),
    Heard(Vec<u8>),
    Missed,
    Gone(u64),
}

struct Node {
    presence: Presence,
    run: u64,
    /// Members that are actually on it.
    members: BTreeSet<u64>,
    watchers: u64,
    /// The members that its watchers know.
    told: Option<BTreeSet<(u64, u64)>>,
    inside: bool,
    to_room: VecDeque<Way>,
    to_node: VecDeque<Way>,
    timers: BTreeSet<u64>,
}

struct Cluster {
    nodes: Vec<Node>,
    now_ms: u64,
    references: u64,
    seed: u64,
    first_seed: u64,
    said: usize,
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let mut cluster =
            Cluster { nodes: Vec::new(), now_ms: 0, references: 0, seed, first_seed: seed, said: 0 };
        (0..3).for_each(|at| cluster.start(at));
        cluster
    }

    fn start(&mut self, at: usize) {
        self.references += 1;
        let run = self.references;
        let node = Node {
            presence: Presence::new(run, LIMITS),
            run,
            members: BTreeSet::new(),
            watchers: 0,
            told: None,
            inside: false,
            to_room: VecDeque::new(),
            to_node: VecDeque::new(),
            timers: BTreeSet::new(),
        };
        if at < self.nodes.len() { self.nodes[at] = node } else { self.nodes.push(node) }
    }

    fn below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % n
    }

    fn event(&mut self, at: usize, event: impl FnOnce(&mut Presence, u64, &mut Vec<Action>)) {
        let seed = self.first_seed;
        let node = &mut self.nodes[at];
        let mut actions = Vec::new();
        event(&mut node.presence, self.now_ms, &mut actions);
        for action in actions {
            match action {
                Action::Enter(_) => node.to_room.push_back(Way::Enter),
                Action::Exit(_) => {
                    node.told = None;
                    node.to_room.push_back(Way::Exit);
                }
                Action::Say(_, number, bytes) => {
                    self.said += bytes.len();
                    node.to_room.push_back(Way::Say(number, bytes));
                }
                Action::Wait(_, at_ms) => {
                    assert!(at_ms > self.now_ms, "seed {seed}: what is due is done");
                    node.timers.insert(at_ms);
                }
                Action::Ready(_) if node.watchers == 0 => {}
                Action::Ready(_) => {
                    let (members, _) = node.presence.shown(ROOM).expect("it is ready");
                    node.told = Some(members.iter().map(|(run, it)| (*run, it.reference)).collect());
                }
                Action::Tell(_, diff) => {
                    let told = node.told.as_mut().expect("nothing is told before it is ready");
                    for (run, it) in diff.leaves {
                        assert!(told.remove(&(run, it.reference)), "seed {seed}: who goes was there");
                    }
                    for (run, it) in diff.joins {
                        assert!(told.insert((run, it.reference)), "seed {seed}: who comes was not there");
                    }
                    assert_eq!(told.len() as u64, diff.count, "seed {seed}");
                }
            }
        }
    }

    /// Delivers one message in flight; returns whether there was one.
    fn step(&mut self, is_kind: bool) -> bool {
        let busy = |node: &Node| [!node.to_room.is_empty(), !node.to_node.is_empty()];
        let ways: Vec<usize> = self
            .nodes
            .iter()
            .flat_map(busy)
            .enumerate()
            .filter_map(|(way, busy)| busy.then_some(way))
            .collect();
        if ways.is_empty() {
            return false;
        }
        let way = ways[self.below(ways.len())];
        let at = way / 2;
        if way % 2 == 1 {
            match self.nodes[at].to_node.pop_front().unwrap() {
                Way::Entered(is_held) => self.event(at, |p, now, a| p.entered(ROOM, is_held, now, a)),
                Way::Said(number, nodes) => self.event(at, |p, now, a| p.said(ROOM, number, nodes, now, a)),
                Way::Heard(bytes) => self.event(at, |p, now, a| p.heard(ROOM, &bytes, now, a)),
                Way::Missed => self.event(at, |p, now, a| p.missed(ROOM, now, a)),
                Way::Gone(run) => self.event(at, |p, now, a| p.gone(run, now, a)),
                other => unreachable!("{other:?}"),
            }
            return true;
        }
        let is_refused = !is_kind && self.below(12) == 0;
        match self.nodes[at].to_room.pop_front().unwrap() {
            Way::Enter => {
                self.nodes[at].inside = !is_refused;
                self.nodes[at].to_node.push_back(Way::Entered(!is_refused));
            }
            Way::Exit => self.nodes[at].inside = false,
            // It may have been published anyway.
            Way::Say(number, _) if is_refused && self.below(2) == 0 => {
                self.nodes[at].to_node.push_back(Way::Said(number, None));
            }
            Way::Say(number, bytes) => {
                let inside: Vec<usize> = (0..self.nodes.len()).filter(|&to| self.nodes[to].inside).collect();
                inside.iter().for_each(|&to| self.nodes[to].to_node.push_back(Way::Heard(bytes.clone())));
                let nodes = (!is_refused).then_some(inside.len() as u64);
                self.nodes[at].to_node.push_back(Way::Said(number, nodes));
            }
            other => unreachable!("{other:?}"),
        }
        true
    }

    /// Advances the time to the next timer of any node; returns whether one is set.
    fn pass(&mut self) -> bool {
        let Some(at_ms) = self.nodes.iter().filter_map(|node| node.timers.first().copied()).min() else {
            return false;
        };
        self.now_ms = self.now_ms.max(at_ms);
        for at in 0..self.nodes.len() {
            while self.nodes[at].timers.first().is_some_and(|&at_ms| at_ms <= self.now_ms) {
                self.nodes[at].timers.pop_first();
                self.event(at, |p, now, a| p.tick(ROOM, now, a));
            }
        }
        true
    }

    /// Lets one random event happen to a node.
    fn happen(&mut self) {
        let at = self.below(self.nodes.len());
        match self.below(20) {
            0..=6 => {
                self.references += 1;
                let reference = self.references;
                self.nodes[at].members.insert(reference);
                self.event(at, |p, now, a| p.join(ROOM, member(reference), now, a));
            }
            7..=11 => {
                if let Some(reference) = self.nodes[at].members.pop_first() {
                    self.event(at, |p, now, a| p.leave(ROOM, reference, now, a));
                }
            }
            12..=14 => {
                // A watcher that starts while the members are known gets them at once.
                let node = &mut self.nodes[at];
                node.watchers += 1;
                if node.told.is_none() {
                    let known = node.presence.shown(ROOM);
                    let of = |(members, _): (Vec<Seen>, u64)| {
                        members.iter().map(|(run, it)| (*run, it.reference)).collect()
                    };
                    node.told = known.map(of);
                }
                self.event(at, |p, now, a| p.watch(ROOM, now, a));
            }
            15..=16 if self.nodes[at].watchers > 0 => {
                self.nodes[at].watchers -= 1;
                if self.nodes[at].watchers == 0 {
                    self.nodes[at].told = None;
                }
                self.event(at, |p, now, a| p.unwatch(ROOM, now, a));
            }
            17 => {
                // The messages in flight to it are lost.
                let is_heard = |way: &Way| matches!(way, Way::Heard(_));
                self.nodes[at].to_node.retain(|way| !is_heard(way));
                if self.nodes[at].inside {
                    self.nodes[at].to_node.push_back(Way::Missed);
                }
            }
            18 => {
                let run = self.nodes[at].run;
                self.start(at);
                (0..self.nodes.len()).for_each(|to| self.nodes[to].to_node.push_back(Way::Gone(run)));
            }
            _ => _ = self.pass(),
        }
    }
}

#[test]
fn all_who_watch_see_in_the_end_who_is_there_whatever_was_lost() {
    for seed in 0..2_000 {
        let mut cluster = Cluster::new(seed);
        for _ in 0..60 {
            cluster.happen();
            for _ in 0..cluster.below(8) {
                cluster.step(false);
            }
        }
        let ends = (0..9_999).any(|_| !cluster.step(true) && !cluster.pass());
        assert!(ends, "seed {seed}: it comes to an end");
        let there: BTreeSet<(u64, u64)> = cluster
            .nodes
            .iter()
            .flat_map(|node| node.members.iter().map(|&reference| (node.run, reference)))
            .collect();
        for node in &cluster.nodes {
            if node.watchers > 0 {
                assert_eq!(node.told.as_ref(), Some(&there), "seed {seed}: run {}", node.run);
            }
            let is_there = node.watchers > 0 || !node.members.is_empty();
            assert_eq!((node.inside, node.presence.len()), (is_there, usize::from(is_there)), "seed {seed}");
            assert!(node.timers.is_empty(), "seed {seed}: nothing is waited for when all is said");
        }
    }
}

#[test]
fn what_is_said_is_linear_in_what_changes() {
    let mut cluster = Cluster::new(1);
    let mut said = BTreeMap::new();
    for at in 0..3 {
        cluster.nodes[at].watchers = 1;
        cluster.event(at, |p, now, a| p.watch(ROOM, now, a));
    }
    for count in [500, 1_000] {
        while cluster.references < count + 3 {
            cluster.references += 1;
            let (reference, at) = (cluster.references, cluster.references as usize % 3);
            cluster.event(at, |p, now, a| p.join(ROOM, member(reference), now, a));
            (0..99).take_while(|_| cluster.step(true)).count();
            cluster.now_ms += 10;
            if cluster.references.is_multiple_of(25) {
                cluster.pass();
            }
        }
        (0..9_999).take_while(|_| cluster.step(true) || cluster.pass()).count();
        said.insert(count, cluster.said);
    }
    assert!(said[&1_000] < said[&500] * 21 / 10, "{said:?}");
}
