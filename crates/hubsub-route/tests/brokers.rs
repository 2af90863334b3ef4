//! Several brokers with arbitrarily delayed messages between them and arbitrarily slow subscribers. Messages
//! between two shards stay in order, as in mailboxes; proptest chooses everything else.

use crate::support::*;
use hubsub_route::{Draft, Namespace, Outcome, Published, Publisher, Start};
use hubsub_types::{Class, Durability, ErrorCode, OnSlow, Position, Qos, Seq};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Op {
    Publish(u16, usize),
    Subscribe(u16, u32, usize, Option<u64>),
    Resume(u16, u32, usize),
    Unsubscribe(u16, u32, usize),
    SubscribePattern(u16, u32),
    Step(u16, u16),
    Slow(u16, u32),
    Drain(u16, u32),
    Congest(u16, u16),
    Relieve(u16),
    Log(u16, usize),
    AnswerLog(u16),
    /// Readers see more of the committed records.
    Find(u16, usize),
    /// Rooms that may leave memory are evicted.
    Sweep(u16),
    /// The log starts or stops lagging.
    Behind(u16),
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![Just(Durability::Ephemeral), Just(Durability::Replicated), Just(Durability::Durable)]
}

const SHARDS: u16 = 3;
const CONNS: u32 = 3;

fn op() -> impl Strategy<Value = Op> {
    let (shard, conn, topic) = (0..SHARDS, 0..CONNS, 0..TOPICS.len());
    prop_oneof![
        6 => (shard.clone(), topic.clone()).prop_map(|(s, t)| Op::Publish(s, t)),
        3 => (shard.clone(), conn.clone(), topic.clone(), proptest::option::of(0u64..5))
            .prop_map(|(s, c, t, last)| Op::Subscribe(s, c, t, last)),
        1 => (shard.clone(), conn.clone(), topic.clone()).prop_map(|(s, c, t)| Op::Resume(s, c, t)),
        1 => (shard.clone(), conn.clone(), topic).prop_map(|(s, c, t)| Op::Unsubscribe(s, c, t)),
        1 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::SubscribePattern(s, c)),
        12 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Step(a, b)),
        2 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Slow(s, c)),
        2 => (shard.clone(), conn).prop_map(|(s, c)| Op::Drain(s, c)),
        1 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Congest(a, b)),
        2 => shard.clone().prop_map(Op::Relieve),
        4 => (shard.clone(), 1..4usize).prop_map(|(s, n)| Op::Log(s, n)),
        3 => shard.clone().prop_map(Op::AnswerLog),
        3 => (shard.clone(), 1..4usize).prop_map(|(s, n)| Op::Find(s, n)),
        2 => shard.clone().prop_map(Op::Sweep),
        1 => shard.prop_map(Op::Behind),
    ]
}

/// Seqs of the records of a topic that a connection got since its last subscription, in order.
fn seqs(got: &[Got], topic: &str, by_pattern: bool) -> Vec<u64> {
    let of_topic = got.iter().filter(|g| g.0 == by_pattern && g.1 == topic);
    of_topic.map(|g| g.2.seq.0).collect()
}

proptest! {

    /// For any delays of messages and of subscribers, a subscriber gets every record of its topic from the
    /// start of its subscription, once and in order.
    #[test]
    fn no_record_is_lost_doubled_or_swapped(
        durability in durability(), tail in prop_oneof![Just(0), Just(700), Just(u64::MAX)], ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut net = Net::with_tail(SHARDS, CONNS, Class { durability, ..remembering() }, tail.max(1));
        net.worlds.iter_mut().for_each(|world| world.readers_lag = true);
        let mut subscribed: BTreeSet<(u16, u32, usize)> = BTreeSet::new();
        let mut patterns: BTreeSet<(u16, u32)> = BTreeSet::new();
        let (mut kept, mut resumed) = (BTreeSet::new(), BTreeSet::new());
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = net.publish(shard, TOPICS[topic]),
                Op::Subscribe(shard, conn, topic, last) => {
                    if subscribed.insert((shard, conn, topic)) {
                        let start = last.map_or(Start::Live, Start::Last);
                        // Earlier deliveries do not count for a new subscription.
                        let got = net.worlds[usize::from(shard)].got.entry(conn).or_default();
                        got.retain(|g| g.0 || g.1 != TOPICS[topic]);
                        kept.remove(&(shard, conn, topic));
                        net.subscribe(shard, conn, TOPICS[topic], start);
                    }
                }
                Op::Resume(shard, conn, topic) => {
                    // Resumes after the last record that it got, as a reconnecting client does.
                    let last = net.got(shard, conn).iter().rev().find(|g| !g.0 && g.1 == TOPICS[topic]).map(|g| g.2);
                    if let (Some(last), false) = (last, subscribed.contains(&(shard, conn, topic))) {
                        subscribed.insert((shard, conn, topic));
                        resumed.insert((shard, conn, topic));
                        net.subscribe(shard, conn, TOPICS[topic], Start::After(last));
                    }
                }
                Op::Unsubscribe(shard, conn, topic) => {
                    if subscribed.remove(&(shard, conn, topic)) {
                        let name = TOPICS[topic].as_bytes();
                        net.act(shard, |b, w| b.unsubscribe(key(conn), Namespace::Global, name, NOW, w));
                        // Later subscriptions to the topic are checked by themselves.
                        let got = net.worlds[usize::from(shard)].got.entry(conn).or_default();
                        let last = got.iter().rev().find(|g| !g.0 && g.1 == TOPICS[topic]).cloned();
                        got.retain(|g| g.0 || g.1 != TOPICS[topic]);
                        resumed.remove(&(shard, conn, topic));
                        if last.is_some() {
                            kept.insert((shard, conn, topic));
                        }
                        got.extend(last);
                    }
                }
                Op::SubscribePattern(shard, conn) => {
                    if patterns.insert((shard, conn)) {
                        net.act(shard, |b, w| _ = b.subscribe_pattern(ticket(shard, conn, 0), key(conn), b"*", w));
                    }
                }
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Slow(shard, conn) => _ = net.worlds[usize::from(shard)].full.insert(conn),
                Op::Drain(shard, conn) => net.drain(shard, conn),
                Op::Congest(shard, to) => _ = net.worlds[usize::from(shard)].congested.insert(to),
                Op::Log(shard, count) => _ = net.log(shard, count),
                Op::AnswerLog(shard) => _ = net.answer_log(shard),
                Op::Find(shard, count) => _ = net.find_logged(shard, count),
                // Without a log, evicted records are lost.
                Op::Sweep(_) if durability == Durability::Ephemeral => {}
                Op::Sweep(shard) => net.act(shard, |b, w| b.sweep(NOW, w)),
                Op::Behind(shard) => net.worlds[usize::from(shard)].is_behind ^= true,
                Op::Relieve(shard) => {
                    net.worlds[usize::from(shard)].congested.clear();
                    net.act(shard, |b, w| b.retry_stalled(NOW, w));
                }
            }
        }
        net.settle();
        let marks: Vec<Published> = (0..TOPICS.len())
            .map(|topic| {
                let id = net.publish(0, TOPICS[topic]);
                net.settle();
                net.receivers[&id]
            })
            .collect();

        if durability == Durability::Durable {
            for (world, broker) in net.worlds.iter().zip(&net.brokers) {
                prop_assert_eq!(broker.unlogged(), 0);
                let logged: usize = world.logs.values().map(|log| log.entries.len()).sum();
                prop_assert!(tail < u64::MAX || broker.rooms.history_size().1 as usize == logged);
            }
        }
        // Every publish was answered, and the seqs of each epoch have no gaps.
        prop_assert_eq!(net.receivers.len() as u32, net.published);
        let mut positions: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for published in net.receivers.values() {
            positions.entry(published.position.epoch.0).or_default().push(published.position.seq.0);
        }
        for seqs in positions.values_mut() {
            seqs.sort_unstable();
            prop_assert_eq!(&*seqs, &(1..=seqs.len() as u64).collect::<Vec<_>>());
        }

        for &(shard, conn, topic) in &subscribed {
            let got = net.got(shard, conn);
            let own = seqs(got, TOPICS[topic], false);
            prop_assert!(own.is_sorted_by(|a, b| a < b), "swapped or doubled: {own:?}");
            prop_assert_eq!(own.last(), Some(&marks[topic].position.seq.0), "the last record is missing");
            // There is no gap after its first record. The first may come from an earlier subscription; then
            // only a resumed subscription has no gap after it.
            let kept = kept.contains(&(shard, conn, topic)) && !resumed.contains(&(shard, conn, topic));
            let all = net.history(TOPICS[topic]);
            prop_assert!(all.ends_with(&own[usize::from(kept)..]), "gap: {own:?} of {all:?}");
        }
        for &(shard, conn) in &patterns {
            for topic in TOPICS {
                let own = seqs(net.got(shard, conn), topic, true);
                prop_assert!(own.is_sorted_by(|a, b| a < b), "swapped or doubled by pattern: {own:?}");
                let all = net.history(topic);
                prop_assert!(all.ends_with(&own), "gap by pattern: {own:?} of {all:?}");
            }
        }
        // The reply to a publish contains the current number of subscribers.
        for (topic, mark) in marks.iter().enumerate() {
            let exact = subscribed.iter().filter(|s| s.2 == topic).count();
            prop_assert_eq!(mark.receivers, (exact + patterns.len()) as u64);
        }
        prop_assert!(net.worlds.iter().all(|w| w.closed.is_empty() && w.squeezed == 0 && w.gaps == 0));
        prop_assert!(net.brokers.iter().all(|b| b.cursors.is_empty() && b.stalled() == 0));
    }

    /// When all clients have left, no state remains.
    #[test]
    fn nothing_stays_when_all_have_gone(ops in proptest::collection::vec(op(), 1..80)) {
        let mut class = Class::named("all");
        class.on_slow = OnSlow::DropOldest;
        let mut net = Net::new(SHARDS, CONNS, class);
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = net.publish(shard, TOPICS[topic]),
                Op::Subscribe(shard, conn, topic, _) => net.subscribe(shard, conn, TOPICS[topic], Start::Live),
                Op::SubscribePattern(shard, conn) => {
                    net.act(shard, |b, w| _ = b.subscribe_pattern(ticket(shard, conn, 0), key(conn), b"*", w));
                }
                Op::Step(from, to) => _ = net.step(from, to),
                _ => {}
            }
        }
        for shard in 0..SHARDS {
            for conn in 0..CONNS {
                net.act(shard, |b, w| b.disconnected(key(conn), NOW, w));
            }
        }
        net.settle();
        for broker in &net.brokers {
            prop_assert_eq!(broker.rooms.len(), 0);
            prop_assert_eq!(broker.patterns.len(), 0);
            prop_assert_eq!(broker.topics.subscriptions().count(), 0);
            prop_assert!(broker.cursors.is_empty());
        }
    }
}

#[test]
fn a_room_without_history_ends_with_its_last_subscriber_and_begins_a_new_epoch() {
    let mut net = Net::new(1, 2, Class::named("all"));
    net.subscribe(0, 0, "a", Start::Live);
    let first = net.publish(0, "a");
    net.act(0, |b, w| b.unsubscribe(key(0), Namespace::Global, b"a", NOW, w));
    let nobody = net.publish(0, "a");
    net.subscribe(0, 0, "a", Start::Live);
    let second = net.publish(0, "a");
    let (first, nobody, second) = (net.receivers[&first], net.receivers[&nobody], net.receivers[&second]);
    assert_eq!((first.receivers, nobody.receivers, second.receivers), (1, 0, 1));
    assert_ne!(first.position.epoch, second.position.epoch);
    assert_eq!((first.position.seq, second.position.seq), (Seq(1), Seq(1)));
    assert_eq!(nobody.position, Position::default());
}

#[test]
fn an_unknown_epoch_is_not_recovered_and_never_mapped() {
    let mut net = Net::new(2, 2, remembering());
    net.publish(0, "a");
    net.settle();
    let foreign = Position { epoch: hubsub_types::Epoch(7), seq: Seq(1) };
    net.subscribe(0, 1, "a", Start::After(foreign));
    net.settle();
    let attached = net.attached[&(0, 1)][0];
    assert!(!attached.recovered && attached.replay_from.is_none());
    assert_eq!(net.got(0, 1), []);
}

#[test]
fn a_slow_subscriber_meets_its_class() {
    for (policy, closed, squeezed) in
        [(OnSlow::Disconnect, 1, 0), (OnSlow::DropOldest, 0, 1), (OnSlow::Conflate, 0, 1)]
    {
        let mut class = Class::named("all");
        class.on_slow = policy;
        let mut net = Net::new(1, 2, class);
        net.subscribe(0, 0, "a", Start::Live);
        net.subscribe(0, 1, "a", Start::Live);
        net.worlds[0].full.insert(0);
        net.publish(0, "a");
        assert_eq!((net.worlds[0].closed.len(), net.worlds[0].squeezed), (closed, squeezed), "{policy:?}");
        assert_eq!(net.got(0, 1).len(), 1, "others are not touched");
    }
}

#[test]
fn limits_are_named_in_the_refusal() {
    let mut class = remembering();
    class.payload_bytes_max = 3;
    let mut net = Net::new(1, 1, class);
    let topic = vec![b'x'; 70_000];
    let publisher = Publisher::Conn(0);
    let draft = |topic, payload| Draft {
        namespace: Namespace::Global,
        topic,
        payload,
        headers: None,
        publisher,
        producer: None,
        qos: Qos::ExactlyOnce,
        retain: false,
    };
    let long = net.act(0, |b, w| b.publish(ticket(0, 0, 0), draft(&topic, b"x"), NOW, w));
    assert_eq!(long, Outcome::Now(Err(ErrorCode::TopicLength)));
    let big = net.act(0, |b, w| b.publish(ticket(0, 0, 0), draft(b"a", b"xxxx"), NOW, w));
    assert_eq!(big, Outcome::Now(Err(ErrorCode::PayloadLength)));
}
