//! Groups that share records, over several shards with arbitrarily delayed messages. Members join and leave,
//! are slow, and are lost with unacknowledged records.

use crate::support::*;
use hubsub_route::{Outcome, Record};
use hubsub_types::names::group_pattern;
use hubsub_types::{Class, Durability, ErrorCode, ShareKey, ShareStrategy};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SHARDS: u16 = 3;
const CONNS: u32 = 3;
/// A group on all topics, and one on a single topic, with a wildcard so that it has no stored position.
const GROUPS: [(&str, &str); 2] = [("g", "#"), ("one", "a/#")];
/// A member of each group throughout the test; it is never slow.
const STAYS: (u16, u32) = (0, 0);

#[derive(Clone, Debug)]
enum Op {
    Publish(u16, usize),
    Join(u16, u32, usize),
    Leave(u16, u32, usize),
    /// The member acknowledges all its records.
    Acknowledge(u16, u32),
    /// The member is lost, and its unacknowledged records go to another one.
    Lose(u16, u32),
    Step(u16, u16),
    Slow(u16, u32),
    Quicken(u16, u32),
    Congest(u16, u16),
    Relieve(u16),
    Log(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let (shard, conn, group) = (0..SHARDS, 0..CONNS, 0..GROUPS.len());
    prop_oneof![
        6 => (shard.clone(), 0..TOPICS.len()).prop_map(|(s, t)| Op::Publish(s, t)),
        2 => (shard.clone(), conn.clone(), group.clone()).prop_map(|(s, c, g)| Op::Join(s, c, g)),
        1 => (shard.clone(), conn.clone(), group).prop_map(|(s, c, g)| Op::Leave(s, c, g)),
        2 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Acknowledge(s, c)),
        1 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Lose(s, c)),
        10 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Step(a, b)),
        1 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Slow(s, c)),
        1 => (shard.clone(), conn).prop_map(|(s, c)| Op::Quicken(s, c)),
        1 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Congest(a, b)),
        1 => shard.clone().prop_map(Op::Relieve),
        3 => shard.prop_map(Op::Log),
    ]
}

fn strategy() -> impl Strategy<Value = ShareStrategy> {
    prop_oneof![
        Just(ShareStrategy::RoundRobin),
        Just(ShareStrategy::Random),
        Just(ShareStrategy::Sticky),
        Just(ShareStrategy::Hash(ShareKey::Topic)),
        Just(ShareStrategy::Hash(ShareKey::Publisher)),
    ]
}

fn join(
    net: &mut Net,
    shard: u16,
    conn: u32,
    (group, filter): (&str, &str),
) -> Outcome<Result<(), ErrorCode>> {
    let (group, filter) = (group.as_bytes(), filter.as_bytes());
    net.act(shard, |b, w| b.join_group(ticket(shard, conn, 0), key(conn), group, filter, NOW, w))
}

fn leave(net: &mut Net, shard: u16, conn: u32, (group, filter): (&str, &str)) -> bool {
    net.act(shard, |b, w| b.leave_group(key(conn), group.as_bytes(), filter.as_bytes(), w))
}

/// Takes the records that a connection was given as a member, so that it has none any more.
fn take(net: &mut Net, shard: u16, conn: u32) -> Vec<Given> {
    net.worlds[usize::from(shard)].given.remove(&conn).unwrap_or_default()
}

fn number(record: &Record) -> u32 {
    u32::from_le_bytes(record.payload().try_into().unwrap())
}

fn lose(net: &mut Net, shard: u16, conn: u32, of: impl Fn(&[u8]) -> bool) {
    let (lost, stays): (Vec<_>, Vec<_>) =
        take(net, shard, conn).into_iter().partition(|(group, _)| of(group.as_slice()));
    net.worlds[usize::from(shard)].given.insert(conn, stays);
    for (group, record) in lost {
        net.act(shard, |b, w| b.give_to_another(&group, record, NOW, w));
    }
}

proptest! {
    /// Each record goes to exactly one member of each group, and each member gets records in order unless one
    /// is redelivered. The unacknowledged records of a lost member go to another one.
    #[test]
    fn each_record_is_one_members_and_none_is_lost(
        durability in prop_oneof![Just(Durability::Ephemeral), Just(Durability::Durable)],
        share_strategy in strategy(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let class = if durability.is_logged() { durable() } else { Class::named("all") };
        let mut net = Net::new(SHARDS, CONNS, Class { share_strategy, ..class });
        for group in GROUPS {
            join(&mut net, STAYS.0, STAYS.1, group);
        }
        net.settle();
        let mut members: BTreeSet<(u16, u32, usize)> = (0..GROUPS.len()).map(|g| (STAYS.0, STAYS.1, g)).collect();
        let mut acknowledged: BTreeMap<(Vec<u8>, u32), u32> = BTreeMap::new();
        let mut topics: Vec<usize> = Vec::new();
        for op in ops {
            match op {
                Op::Publish(shard, topic) => {
                    topics.push(topic);
                    net.publish(shard, TOPICS[topic]);
                }
                Op::Join(shard, conn, group) => {
                    if members.insert((shard, conn, group)) {
                        join(&mut net, shard, conn, GROUPS[group]);
                    }
                }
                Op::Leave(shard, conn, group) => {
                    if (shard, conn) != STAYS && members.remove(&(shard, conn, group)) {
                        prop_assert!(leave(&mut net, shard, conn, GROUPS[group]));
                        let (name, filter) = GROUPS[group];
                        let source = group_pattern(name.as_bytes(), filter.as_bytes());
                        lose(&mut net, shard, conn, |of| of == source);
                    }
                }
                Op::Acknowledge(shard, conn) => {
                    for (group, record) in take(&mut net, shard, conn) {
                        *acknowledged.entry((group, number(&record))).or_default() += 1;
                    }
                }
                Op::Lose(shard, conn) => {
                    if (shard, conn) != STAYS {
                        members.retain(|it| (it.0, it.1) != (shard, conn));
                        net.act(shard, |b, w| b.disconnected(key(conn), NOW, w));
                        lose(&mut net, shard, conn, |_| true);
                    }
                }
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Slow(shard, conn) => {
                    if (shard, conn) != STAYS {
                        net.worlds[usize::from(shard)].full.insert(conn);
                    }
                }
                Op::Quicken(shard, conn) => net.drain(shard, conn),
                Op::Congest(shard, to) => _ = net.worlds[usize::from(shard)].congested.insert(to),
                Op::Relieve(shard) => {
                    net.worlds[usize::from(shard)].congested.clear();
                    net.act(shard, |b, w| b.retry_stalled(NOW, w));
                }
                Op::Log(shard) => _ = net.log(shard, 1),
            }
        }
        net.settle();
        let lost: u64 = net.brokers.iter().map(|broker| broker.groups.lost).sum();
        for shard in 0..SHARDS {
            for conn in 0..CONNS {
                for (group, record) in take(&mut net, shard, conn) {
                    *acknowledged.entry((group, number(&record))).or_default() += 1;
                }
            }
        }
        prop_assert_eq!(lost, 0);
        prop_assert!(acknowledged.values().all(|&times| times == 1), "twice: {acknowledged:?}");
        let of = |group: usize| {
            let source = group_pattern(GROUPS[group].0.as_bytes(), GROUPS[group].1.as_bytes());
            acknowledged.keys().filter(|(it, _)| *it == source).map(|(_, id)| *id).collect::<Vec<_>>()
        };
        prop_assert_eq!(of(0), (1..=topics.len() as u32).collect::<Vec<_>>());
        let of_a: Vec<u32> = (1..).zip(&topics).filter(|(_, topic)| **topic == 0).map(|(id, _)| id).collect();
        prop_assert_eq!(of(1), of_a);
        // Each group counts as one subscriber.
        for (id, topic) in (1..).zip(&topics) {
            prop_assert_eq!(net.receivers[&id].receivers, 1 + u64::from(*topic == 0));
        }
        for (shard, conn, _) in members {
            net.act(shard, |b, w| b.disconnected(key(conn), NOW, w));
        }
        net.settle();
        prop_assert!(net.brokers.iter().all(|broker| broker.groups.is_empty()));
    }
}

#[test]
fn members_on_all_shards_take_turns_in_order_and_others_subscribe_beside_them() {
    let mut net = Net::new(3, 3, Class::named("all"));
    for (shard, conn) in [(0, 0), (0, 1), (1, 0), (2, 0)] {
        join(&mut net, shard, conn, ("g", "a"));
    }
    net.subscribe(1, 2, "a", hubsub_route::Start::Live);
    net.settle();
    let ids: Vec<u32> = (0..40).map(|i| net.publish(i % 3, "a")).collect();
    net.settle();
    assert!(ids.iter().all(|id| net.receivers[id].receivers == 2), "the group counts as one");
    assert_eq!(net.got(1, 2).len(), 40);
    for (shard, conn) in [(0, 0), (0, 1), (1, 0), (2, 0)] {
        let seqs: Vec<u64> =
            take(&mut net, shard, conn).iter().map(|(_, record)| record.position.seq.0).collect();
        assert_eq!(seqs.len(), 10, "shard {shard}, {conn}");
        assert!(seqs.is_sorted());
    }
}

#[test]
fn what_a_member_that_is_gone_was_sent_goes_to_another() {
    let mut net = Net::new(2, 2, Class::named("all"));
    join(&mut net, 0, 0, ("g", "a"));
    join(&mut net, 1, 0, ("g", "a"));
    net.settle();
    let home = net.brokers[0].topics.shard_of_room(b"a").0;
    let away = 1 - home;
    (0..2).for_each(|_| _ = net.publish(home, "a"));
    assert_eq!(net.worlds[usize::from(home)].given[&0].len(), 1);
    // The second record is in flight to a member that leaves.
    leave(&mut net, away, 0, ("g", "a"));
    net.settle();
    assert_eq!(net.worlds[usize::from(home)].given[&0].len(), 2);
    assert!(!leave(&mut net, away, 0, ("g", "a")));
}

#[test]
fn a_record_that_nobody_is_left_for_is_counted() {
    let mut net = Net::new(1, 1, Class::named("all"));
    join(&mut net, 0, 0, ("g", "a"));
    net.publish(0, "a");
    leave(&mut net, 0, 0, ("g", "a"));
    lose(&mut net, 0, 0, |_| true);
    assert_eq!(net.brokers[0].groups.lost, 1);
    // All members are full.
    join(&mut net, 0, 0, ("g", "a"));
    net.worlds[0].full.insert(0);
    net.publish(0, "a");
    assert_eq!(net.brokers[0].groups.lost, 2);
    assert!(net.worlds[0].closed.is_empty(), "it is not its fault");
}

#[test]
fn one_group_too_many_is_refused_and_no_member_of_one_that_is_there() {
    let mut net = Net::new(2, 1, Class::named("all"));
    let limits = hubsub_types::Limits { groups_max: 2, ..Default::default() };
    net.brokers.iter_mut().for_each(|broker| broker.set_limits(limits.clone()));
    join(&mut net, 0, 0, ("g", "a"));
    join(&mut net, 1, 0, ("h", "a"));
    net.settle();
    let refused = Outcome::Now(Err(ErrorCode::TooManyGroups));
    assert_eq!(join(&mut net, 1, 0, ("i", "a")), refused);
    assert_ne!(join(&mut net, 1, 0, ("g", "a")), refused, "that is one of the other shard");
    leave(&mut net, 0, 0, ("g", "a"));
    leave(&mut net, 1, 0, ("g", "a"));
    net.settle();
    assert_ne!(join(&mut net, 1, 0, ("i", "a")), refused);
}

#[test]
fn a_group_counts_against_the_subscriptions_of_its_member() {
    let mut net = Net::new(1, 1, Class::named("all"));
    let limits = hubsub_types::Limits { subscriptions_per_client_max: 2, ..Default::default() };
    net.brokers[0].set_limits(limits);
    assert_eq!(join(&mut net, 0, 0, ("g", "a")), Outcome::Now(Ok(())));
    assert_eq!(join(&mut net, 0, 0, ("g", "a")), Outcome::Now(Ok(())), "it is a member already");
    assert_eq!(join(&mut net, 0, 0, ("h", "a")), Outcome::Now(Ok(())));
    let refused = Outcome::Now(Err(ErrorCode::TooManySubscriptions));
    assert_eq!(join(&mut net, 0, 0, ("i", "a")), refused);
    assert_eq!(join(&mut net, 0, 0, ("i", &"x".repeat(70_000))), Outcome::Now(Err(ErrorCode::PatternLength)));
}
