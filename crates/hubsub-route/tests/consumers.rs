//! Groups with stored positions, in logged rooms, over several shards with arbitrarily delayed messages:
//! members join and leave, are slow and acknowledge any record; positions are stored late, and memory is
//! lost.

use crate::support::*;
use hubsub_route::Now;
use hubsub_types::names::group_pattern;
use hubsub_types::{ConnKey, Position};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SHARDS: u16 = 3;
const CONNS: u32 = 2;

fn source() -> Vec<u8> {
    group_pattern(b"g", b"a")
}

fn join(net: &mut Net, shard: u16, conn: u32) {
    net.act(shard, |b, w| _ = b.join_group(ticket(shard, conn, 0), key(conn), b"g", b"a", NOW, w));
}

/// Stored consumer state: the last write per consumer.
#[derive(Default)]
struct Rows(BTreeMap<Arc<[u8]>, Vec<u8>>);

impl Rows {
    /// Answers the brokers' loads and saves; saves succeed if `safe`. Returns whether there were any.
    fn answer(&mut self, net: &mut Net, safe: bool) -> bool {
        let mut was_busy = false;
        for shard in 0..SHARDS {
            let world = &mut net.worlds[usize::from(shard)];
            let (loads, saves) = (std::mem::take(&mut world.loads), std::mem::take(&mut world.saves));
            was_busy |= !loads.is_empty() || !saves.is_empty();
            for (source, row) in saves {
                if safe {
                    self.0.insert(Arc::clone(&source), row);
                }
                net.act(shard, |b, w| b.consumer_saved(&source, safe, NOW, w));
            }
            for source in loads {
                let row = self.0.get(&source).cloned();
                net.act(shard, |b, w| b.consumer_loaded(&source, Ok(row.as_deref()), NOW, w));
            }
        }
        was_busy
    }
}

fn settle(net: &mut Net, rows: &mut Rows) {
    loop {
        net.settle();
        if !rows.answer(net, true) {
            return;
        }
    }
}

fn tend(net: &mut Net, now: Now) {
    for shard in 0..SHARDS {
        net.act(shard, |b, w| b.tend_consumers(now, w));
    }
}

fn after(ms: u64) -> Now {
    Now { mono_ms: NOW.mono_ms + ms, ..NOW }
}

/// Takes the records that a member was given, so that it has none any more.
fn take(net: &mut Net, shard: u16, conn: u32) -> Vec<Position> {
    let given = net.worlds[usize::from(shard)].given.remove(&conn).unwrap_or_default();
    given.iter().map(|(_, record)| record.position).collect()
}

fn acknowledge(net: &mut Net, shard: u16, position: Position) {
    net.act(shard, |b, w| b.acknowledge(&source(), position, NOW, w));
}

fn seqs(positions: &[Position]) -> Vec<u64> {
    positions.iter().map(|position| position.seq.0).collect()
}

#[test]
fn a_group_goes_on_where_it_was_when_members_come_back() {
    let (mut net, mut rows) = (Net::new(SHARDS, CONNS, durable()), Rows::default());
    net.publish(0, "a");
    settle(&mut net, &mut rows);
    join(&mut net, 1, 0);
    settle(&mut net, &mut rows);
    let id = net.publish(0, "a");
    settle(&mut net, &mut rows);
    assert_eq!(net.receivers[&id].receivers, 1);
    let had = take(&mut net, 1, 0);
    assert_eq!(seqs(&had), [2], "it begins with what comes after its first member");
    acknowledge(&mut net, 1, had[0]);
    net.act(1, |b, w| b.disconnected(key(0), NOW, w));
    settle(&mut net, &mut rows);
    for topic in ["a", "b", "{a}.x", "a"] {
        net.publish(2, topic);
    }
    settle(&mut net, &mut rows);
    join(&mut net, 2, 1);
    settle(&mut net, &mut rows);
    assert_eq!(seqs(&take(&mut net, 2, 1)), [3, 5], "of its topic alone, and nothing twice");
    let home = net.brokers[0].topics.shard_of_room(b"a").0;
    let infos = net.act(home, |b, w| b.consumers(w));
    assert_eq!((infos.len(), infos[0].position.seq.0, infos[0].lag, infos[0].given), (1, 2, 3, 2));
    assert_eq!(infos[0].members, 1);
}

#[test]
fn a_consumer_is_listed_once_its_stored_position_is_read() {
    let (mut net, mut rows) = (Net::new(SHARDS, CONNS, durable()), Rows::default());
    let home = net.brokers[0].topics.shard_of_room(b"a").0;
    join(&mut net, 1, 0);
    net.settle();
    assert!(net.act(home, |b, w| b.consumers(w)).is_empty(), "its lag is unknown");
    settle(&mut net, &mut rows);
    assert_eq!(net.act(home, |b, w| b.consumers(w)).len(), 1);
}

#[test]
fn what_is_not_acknowledged_in_its_time_goes_to_others_and_then_to_the_dead() {
    let (mut net, mut rows) = (Net::new(SHARDS, CONNS, durable()), Rows::default());
    let limits = hubsub_types::Limits { consumer_tries_max: 3, consumer_ack_ms: 100, ..Default::default() };
    net.brokers.iter_mut().for_each(|broker| broker.set_limits(limits.clone()));
    join(&mut net, 0, 0);
    join(&mut net, 1, 0);
    settle(&mut net, &mut rows);
    net.publish(0, "a");
    settle(&mut net, &mut rows);
    let mut had = Vec::new();
    for round in 1..=4 {
        tend(&mut net, after(100 * round - 1));
        settle(&mut net, &mut rows);
        had.push(take(&mut net, 0, 0).len() + take(&mut net, 1, 0).len());
        tend(&mut net, after(100 * round));
        settle(&mut net, &mut rows);
    }
    assert_eq!(had, [1, 1, 1, 0]);
    let buried: Vec<_> = net.worlds.iter().flat_map(|world| &world.buried).collect();
    assert!(!buried.is_empty() && buried.iter().all(|(_, record)| record.position.seq.0 == 1));
}

#[test]
fn a_member_that_is_lost_gives_back_what_it_has() {
    let (mut net, mut rows) = (Net::new(SHARDS, CONNS, durable()), Rows::default());
    join(&mut net, 0, 0);
    join(&mut net, 1, 0);
    settle(&mut net, &mut rows);
    (0..10).for_each(|_| _ = net.publish(0, "a"));
    settle(&mut net, &mut rows);
    let lost = net.worlds[0].given.remove(&0).unwrap_or_default();
    assert_eq!(lost.len(), 5);
    net.act(0, |b, w| b.disconnected(key(0), NOW, w));
    for (group, record) in lost {
        net.act(0, |b, w| b.give_to_another(&group, record, NOW, w));
    }
    settle(&mut net, &mut rows);
    let mut had = seqs(&take(&mut net, 1, 0));
    had.sort_unstable();
    assert_eq!(had, (1..=10).collect::<Vec<_>>());
}

/// Delivers all messages in flight, while full members stay full. Returns the number of messages.
fn deliver_all(net: &mut Net) -> usize {
    let mut delivered = 0;
    while (0..SHARDS).any(|shard| net.log(shard, 1))
        || (0..SHARDS * SHARDS).any(|pair| net.step(pair / SHARDS, pair % SHARDS))
    {
        delivered += 1;
        assert!(delivered < 1_000, "what nobody takes goes round and round");
    }
    delivered
}

#[test]
fn what_no_member_takes_waits_and_does_not_die_of_that() {
    let (mut net, mut rows) = (Net::new(SHARDS, CONNS, durable()), Rows::default());
    let limits = hubsub_types::Limits { consumer_tries_max: 3, ..Default::default() };
    net.brokers.iter_mut().for_each(|broker| broker.set_limits(limits.clone()));
    for shard in 0..SHARDS {
        join(&mut net, shard, 0);
    }
    settle(&mut net, &mut rows);
    net.worlds.iter_mut().for_each(|world| _ = world.full.insert(0));
    net.publish(0, "a");
    deliver_all(&mut net);
    for round in 1..=10 {
        tend(&mut net, after(1_001 * round));
        assert!(deliver_all(&mut net) > 0, "it is tried again");
    }
    assert!(net.worlds.iter().all(|world| world.buried.is_empty()), "nobody has had it");
    net.worlds[1].full.clear();
    tend(&mut net, after(20_000));
    deliver_all(&mut net);
    assert_eq!(seqs(&take(&mut net, 1, 0)), [1]);
}

#[test]
fn what_takes_its_members_with_it_goes_to_the_dead() {
    let (mut net, mut rows) = (Net::new(SHARDS, CONNS, durable()), Rows::default());
    let limits = hubsub_types::Limits { consumer_tries_max: 3, ..Default::default() };
    net.brokers.iter_mut().for_each(|broker| broker.set_limits(limits.clone()));
    let mut had = 0;
    for shard in 0..SHARDS {
        join(&mut net, shard, 0);
    }
    settle(&mut net, &mut rows);
    net.publish(0, "a");
    settle(&mut net, &mut rows);
    for _ in 0..10 {
        for shard in 0..SHARDS {
            let lost = net.worlds[usize::from(shard)].given.remove(&0).unwrap_or_default();
            for (group, record) in lost {
                had += 1;
                net.act(shard, |b, w| b.give_to_another(&group, record, NOW, w));
            }
            settle(&mut net, &mut rows);
        }
    }
    assert_eq!(had, 3);
    assert_eq!(net.worlds.iter().map(|world| world.buried.len()).sum::<usize>(), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Publish(u16, usize),
    Join(u16, u32),
    Lose(u16, u32),
    Acknowledge(u16, u32, usize),
    Step(u16, u16),
    Slow(u16, u32),
    Log(u16),
    AnswerLog(u16),
    Rows(bool),
    Tend,
    Sweep(u16),
    /// The leader loses all state that was not stored.
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    let (shard, conn) = (0..SHARDS, 0..CONNS);
    prop_oneof![
        6 => (shard.clone(), 0..TOPICS.len()).prop_map(|(s, t)| Op::Publish(s, t)),
        2 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Join(s, c)),
        1 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Lose(s, c)),
        4 => (shard.clone(), conn.clone(), 0..9usize).prop_map(|(s, c, n)| Op::Acknowledge(s, c, n)),
        10 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Step(a, b)),
        1 => (shard.clone(), conn).prop_map(|(s, c)| Op::Slow(s, c)),
        4 => shard.clone().prop_map(Op::Log),
        3 => shard.clone().prop_map(Op::AnswerLog),
        2 => any::<bool>().prop_map(Op::Rows),
        1 => Just(Op::Tend),
        1 => shard.prop_map(Op::Sweep),
        1 => Just(Op::Forget),
    ]
}

proptest! {
    /// Whichever members join, leave and acknowledge: each record published after the consumer's start is
    /// acknowledged in the end, and no record whose acknowledgement is stored is delivered again.
    #[test]
    fn each_record_is_acknowledged_in_the_end(
        tail in prop_oneof![Just(700), Just(u64::MAX)], ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut net = Net::with_tail(SHARDS, CONNS, durable(), tail);
        let mut rows = Rows::default();
        join(&mut net, 0, 0);
        settle(&mut net, &mut rows);
        let mut done: BTreeSet<u64> = BTreeSet::new();
        let (mut members, mut due, mut late) = (BTreeSet::from([(0, 0)]), Vec::new(), 0);
        for op in ops {
            match op {
                Op::Publish(shard, topic) => {
                    let id = net.publish(shard, TOPICS[topic]);
                    if topic == 0 {
                        due.push(id);
                    }
                }
                Op::Join(shard, conn) => {
                    if members.insert((shard, conn)) {
                        join(&mut net, shard, conn);
                    }
                }
                Op::Lose(shard, conn) => {
                    if members.remove(&(shard, conn)) {
                        let lost = net.worlds[usize::from(shard)].given.remove(&conn).unwrap_or_default();
                        net.act(shard, |b, w| b.disconnected(ConnKey { index: conn, generation: 0 }, NOW, w));
                        for (group, record) in lost {
                            net.act(shard, |b, w| b.give_to_another(&group, record, NOW, w));
                        }
                    }
                }
                Op::Acknowledge(shard, conn, count) => {
                    let given = net.worlds[usize::from(shard)].given.entry(conn).or_default();
                    let from = given.len().saturating_sub(count);
                    // In reverse order.
                    let taken: Vec<Position> = given.drain(from..).map(|(_, record)| record.position).collect();
                    for position in taken.into_iter().rev() {
                        done.insert(position.seq.0);
                        acknowledge(&mut net, shard, position);
                    }
                }
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Slow(shard, conn) => _ = net.worlds[usize::from(shard)].full.insert(conn),
                Op::Log(shard) => _ = net.log(shard, 1),
                Op::AnswerLog(shard) => _ = net.answer_log(shard),
                Op::Rows(safe) => _ = rows.answer(&mut net, safe),
                Op::Tend => {
                    late += 10_000;
                    tend(&mut net, after(late));
                }
                Op::Forget => {
                    for broker in &mut net.brokers {
                        broker.forget_consumer(&source());
                    }
                }
                Op::Sweep(shard) => net.act(shard, |b, w| b.sweep(NOW, w)),
            }
        }
        settle(&mut net, &mut rows);
        if members.insert((2, 1)) {
            join(&mut net, 2, 1);
        }
        for _ in 0..40 {
            late += 40_000;
            tend(&mut net, after(late));
            settle(&mut net, &mut rows);
            for &(shard, conn) in &members {
                for position in take(&mut net, shard, conn) {
                    done.insert(position.seq.0);
                    acknowledge(&mut net, shard, position);
                }
            }
            settle(&mut net, &mut rows);
        }
        let all: BTreeSet<u64> = due.iter().map(|id| net.receivers[id].position.seq.0).collect();
        prop_assert_eq!(done, all);
        let home = net.brokers[0].topics.shard_of_room(b"a").0;
        let infos = net.act(home, |b, w| b.consumers(w));
        prop_assert_eq!((infos.len(), infos[0].lag, infos[0].given), (1, 0, 0));
    }
}
