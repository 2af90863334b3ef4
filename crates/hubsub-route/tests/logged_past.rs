//! Brokers whose hubs have logs: records that are no longer in memory are read from the log.

use crate::support::*;
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::{
    Ask, Broker, Found, HubSeed, Hubs, LogRead, Namespace, Now, Outcome, Record, Settings, Start, Then, Want,
    Wish,
};
use hubsub_types::{ClassTable, Epoch, ErrorCode, HubId, Limits, Position, Seq, ShardId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[test]
fn a_room_in_no_memory_goes_on_where_its_log_ends() {
    let mut net = Net::new(1, 1, durable());
    let id = net.publish(0, "a");
    net.settle();
    let before = net.receivers[&id].position;
    // A new broker opens the same log, as after a restart; the room is not in memory.
    let logs = std::mem::take(&mut net.worlds[0].logs);
    let mut net = Net::new(1, 1, durable());
    let (hub, log) = logs.into_iter().next().unwrap();
    let seed = HubSeed {
        id: hub,
        index: hub.0 as u16 - 1,
        next: 2,
        last_us: 50,
        continuous_from: 1,
        ..HubSeed::default()
    };
    let classes = Arc::new(ClassTable::new(vec![durable()], true));
    for (continuous_from, seq) in [(1, 2), (2, 1)] {
        let seeds = (0..2u16).map(|i| {
            if i == seed.index {
                HubSeed { continuous_from, ..seed.clone() }
            } else {
                HubSeed { id: HubId(u32::from(i) + 1), index: i, next: 1, ..seed.clone() }
            }
        });
        let hubs = Arc::new(Hubs::new(1, &classes, seeds.collect()));
        let epochs = Arc::new(AtomicU64::new(9 << 32));
        let (classes, limits) = (Arc::clone(&classes), Limits::default());
        net.brokers[0] = Broker::new(Settings {
            shard: ShardId(0),
            hubs,
            classes,
            limits,
            epochs,
            retained: Arc::default(),
        });
        net.brokers[0].connected(key(0));
        net.worlds[0] = World::default();
        net.worlds[0].logs.insert(hub, log.clone());
        assert_eq!(net.history("a"), [1], "what is old is read from the log");
        let after = Some(Position { seq: Seq(0), ..before });
        let query = HistoryQuery { room: b"a".to_vec(), count: 10, after, topic: None };
        let ask = Ask { shard: ShardId(0), number: 9 };
        let part = net.act(0, |b, w| b.history(&query, ask, NOW, w)).unwrap();
        net.worlds[0].histories.extend(part.map(|part| (9, part)));
        net.settle();
        let part = net.worlds[0].histories.remove(&9).unwrap();
        assert_eq!(
            (part.recovered, part.records.len() as u64),
            (seq == 2, seq - 1),
            "of an epoch that is over"
        );
        let id = net.publish(0, "a");
        net.settle();
        let after = net.receivers[&id].position;
        assert_eq!((after.seq.0, after.epoch == before.epoch), (seq, seq == 2));
        net.receivers.clear();
    }
}

#[test]
fn history_of_a_topic_says_what_is_gone_before_it_and_nothing_of_other_topics() {
    let net = Net::new(1, 1, durable());
    let at = |seq| Position { epoch: Epoch(3), seq: Seq(seq) };
    let record = |seq| {
        let mut record = Record::new(Namespace::Global, b"rare", b"", "".into(), None);
        record.position = at(seq);
        Arc::new(record)
    };
    let query = |after| HistoryQuery {
        room: b"a".to_vec(),
        count: 10,
        after: Some(at(after)),
        topic: Some(b"rare".to_vec()),
    };
    let read = LogRead {
        hub: HubId(1),
        room: (*b"a").into(),
        through: 100,
        epoch: Epoch(3),
        seq_max: Seq(90),
        seq_min: Seq(1),
        since_us: 0,
        topic: Some(b"rare".to_vec()),
        namespace: None,
        want: Want::On(Seq(1)),
        count: 10,
        bytes_max: 1000,
        then: Then::History(Box::new(query(0)), Ask { shard: ShardId(0), number: 1 }),
    };
    let part = |after, first: Option<u64>, seqs: &[u64]| {
        let found = Found { records: seqs.iter().map(|&seq| record(seq)).collect(), first: first.map(Seq) };
        let part = net.brokers[0].rooms.history_found(&read, &query(after), found);
        (part.recovered, part.start, part.records.len())
    };
    assert_eq!(part(20, Some(21), &[70]), (true, at(20), 1), "others are between");
    assert_eq!(part(20, Some(21), &[]), (true, at(20), 0));
    assert_eq!(part(20, Some(50), &[70]), (false, at(49), 0), "what was between is gone");
    assert_eq!(part(20, None, &[]), (false, at(90), 0), "all of it is gone");
    assert_eq!(part(90, None, &[]), (true, at(90), 0));
}

#[derive(Clone, Debug)]
enum Op {
    Publish(u16, usize),
    Log(u16, usize),
    Find(u16, usize),
    AnswerLog(u16),
    Step(u16, u16),
    /// Rooms that may leave memory are evicted.
    Sweep(u16),
    /// Much later, all rooms whose records are in the log are evicted.
    Age(u16),
    Delete(usize),
    History(usize),
}

const SHARDS: u16 = 2;

/// A time at which every tail is idle.
const LATER: Now = Now { mono_ms: NOW.mono_ms, wall_us: NOW.wall_us + 3_600_000_000 };

fn op() -> impl Strategy<Value = Op> {
    let (shard, topic) = (0..SHARDS, 0..TOPICS.len());
    prop_oneof![
        5 => (shard.clone(), topic.clone()).prop_map(|(s, t)| Op::Publish(s, t)),
        3 => (shard.clone(), 1usize..4).prop_map(|(s, n)| Op::Log(s, n)),
        2 => (shard.clone(), 1usize..4).prop_map(|(s, n)| Op::Find(s, n)),
        2 => shard.clone().prop_map(Op::AnswerLog),
        3 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Step(a, b)),
        2 => shard.clone().prop_map(Op::Sweep),
        1 => shard.prop_map(Op::Age),
        1 => topic.clone().prop_map(Op::Delete),
        2 => topic.prop_map(Op::History),
    ]
}

/// How often a room was deleted, and the positions of the records since then, committed or not.
type Life = (usize, Vec<Position>);

fn life(net: &Net, shard: u16, room: &str) -> Life {
    let mut life = Life::default();
    let logs = net.worlds[usize::from(shard)].logs.values();
    for entry in logs.flat_map(|log| &log.entries).filter(|entry| entry.room == room.as_bytes()) {
        match entry.payload {
            Some(_) => life.1.push(entry.position),
            None => life = (life.0 + 1, Vec::new()),
        }
    }
    life
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1000 } else { 4000 }))]

    /// Rooms leave memory and come back, are deleted and made again: no seq is used twice, and history
    /// contains the records since the last deletion.
    #[test]
    fn a_room_that_leaves_memory_comes_back_as_it_was(
        ops in proptest::collection::vec(op(), 1..150),
        tail in prop_oneof![Just(1u64), Just(1000), Just(u64::MAX)],
    ) {
        let mut net = Net::with_tail(SHARDS, 1, durable(), tail);
        net.worlds.iter_mut().for_each(|world| world.readers_lag = true);
        let mut deletions = 0;
        // By request number: the room, and its hub's state at that time.
        let mut asked: BTreeMap<u32, (&str, u16, Life)> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = net.publish(shard, TOPICS[topic]),
                Op::Log(shard, count) => _ = net.log(shard, count),
                Op::Find(shard, count) => _ = net.find_logged(shard, count),
                Op::AnswerLog(shard) => _ = net.answer_log(shard),
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Sweep(shard) => net.act(shard, |b, w| b.sweep(NOW, w)),
                Op::Age(shard) => net.act(shard, |b, w| b.sweep(LATER, w)),
                Op::Delete(topic) => {
                    let room = if topic == 2 { "a" } else { TOPICS[topic] }.as_bytes();
                    let shard = net.brokers[0].topics.shard_of_room(room);
                    let ask = Ask { shard, number: 0 };
                    match net.act(shard.0, |b, w| b.delete_room(room, ask, NOW, w)) {
                        Ok(None) => deletions += 1,
                        Ok(Some(was_there)) => prop_assert!(!was_there),
                        Err(refused) => prop_assert_eq!(refused, ErrorCode::RoomInUse),
                    }
                }
                Op::History(topic) => {
                    let room = if topic == 2 { "a" } else { TOPICS[topic] };
                    let shard = net.brokers[0].topics.shard_of_room(room.as_bytes());
                    let number = asked.len() as u32 + 10;
                    let ask = Ask { shard, number };
                    let query = HistoryQuery { room: room.into(), count: 1000, after: None, topic: None };
                    let part = net.act(shard.0, |b, w| b.history(&query, ask, NOW, w)).unwrap();
                    net.worlds[usize::from(shard.0)].histories.extend(part.map(|part| (number, part)));
                    asked.insert(number, (room, shard.0, life(&net, shard.0, room)));
                }
            }
        }
        net.settle();
        let deleted: usize = net.worlds.iter().map(|world| world.deleted.len()).sum();
        prop_assert_eq!(deleted, deletions);
        for (number, (room, shard, life_then)) in &asked {
            let part = &net.worlds[usize::from(*shard)].histories[number];
            let got: Vec<_> = part.records.iter().map(|record| record.position).collect();
            // A request in flight while the room is deleted may observe the deletion.
            if life(&net, *shard, room).0 == life_then.0 {
                prop_assert_eq!(&got, &life_then.1, "{}", room);
            }
        }
        // Each publish has a unique position, and there are no gaps.
        let mut positions: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for published in net.receivers.values() {
            positions.entry(published.position.epoch.0).or_default().push(published.position.seq.0);
        }
        for seqs in positions.values_mut() {
            seqs.sort_unstable();
            prop_assert_eq!(&*seqs, &(1..=seqs.len() as u64).collect::<Vec<_>>());
        }
        // At rest, every room can leave memory and still be found.
        for shard in 0..SHARDS {
            net.act(shard, |b, w| b.sweep(NOW, w));
        }
        if tail == 1 {
            prop_assert!(net.brokers.iter().all(|broker| broker.rooms.is_empty()));
        }
        for shard in [0, 0, 1, 1] {
            net.act(shard, |b, w| b.sweep(LATER, w));
        }
        prop_assert!(net.brokers.iter().all(|broker| broker.rooms.is_empty()));
        prop_assert!(net.brokers.iter().all(|broker| broker.rooms.history_size() == (0, 0)));
    }
}

#[test]
fn the_past_of_a_damaged_log_is_refused_not_empty() {
    let mut net = Net::new(1, 1, durable());
    net.publish(0, "a");
    net.settle();
    net.worlds[0].refuses = Some(ErrorCode::Quarantined);
    let ask = Ask { shard: ShardId(0), number: 1 };
    let query = HistoryQuery { room: b"a".to_vec(), count: 1, after: None, topic: None };
    assert_eq!(net.act(0, |b, w| b.history(&query, ask, NOW, w)).err(), Some(ErrorCode::Quarantined));
    assert_eq!(net.act(0, |b, w| b.delete_room(b"a", ask, NOW, w)), Err(ErrorCode::Quarantined));
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Last(1) };
    let begun = net.act(0, |b, w| b.subscribe(ticket(0, 0, 0), key(0), wish, NOW, w));
    assert_eq!(begun, Outcome::Now(Err(ErrorCode::Quarantined)));
    assert_eq!(net.brokers[0].cursors.len(), 0);
    // A class with another log, or without one, is not affected.
    net.worlds[0].refuses = Some(ErrorCode::DiskFull);
    assert!(net.act(0, |b, w| b.history(&query, ask, NOW, w)).is_ok());
}

#[test]
fn what_a_cursor_cannot_read_is_told_from_where_to_where_and_it_goes_on_behind() {
    let mut net = Net::with_tail(1, 1, durable(), 1);
    (0..5).for_each(|_| _ = net.publish(0, "a"));
    net.settle();
    let position = net.receivers[&1].position;
    net.subscribe(0, 0, "a", Start::After(position));
    net.publish(0, "a");
    let mut failures = [ErrorCode::TimedOut, ErrorCode::Quarantined].into_iter();
    for _ in 0..100 {
        net.log(0, 9);
        net.find_logged(0, 9);
        // The start is found; the records after it cannot be read.
        let is_range = matches!(net.worlds[0].asked.front().map(|ask| &ask.then), Some(Then::Range(_)));
        if is_range && let Some(failure) = failures.next() {
            let ask = net.worlds[0].asked.pop_front().unwrap();
            net.act(0, |b, w| b.log_read(ask, Err(failure), NOW, w));
        } else if !net.answer_log(0) {
            break;
        }
    }
    net.settle();
    assert!(failures.next().is_none());
    let got: Vec<u64> = net.got(0, 0).iter().map(|got| got.2.seq.0).collect();
    let (from, to) = net.worlds[0].told[0];
    assert_eq!((from.seq.0, net.worlds[0].told.len()), (2, 1));
    assert_eq!(got, (to.seq.0 + 1..=6).collect::<Vec<_>>());
}

#[test]
fn who_goes_on_behind_a_position_gets_what_follows_and_of_another_life_all() {
    let mut net = Net::new(2, 1, durable());
    let first = net.publish(0, "a");
    net.settle();
    let had = net.receivers[&first].position;
    let missed = [net.publish(0, "a"), net.publish(0, "a")];
    net.settle();
    let other = |seq| Position { epoch: Epoch(1), seq: Seq(seq) };
    // An empty room has no gap; a position of an earlier epoch yields a gap report.
    for (after, is_first, gaps) in [(had, false, 0), (other(0), true, 0), (other(5), true, 1)] {
        for shard in 0..2 {
            net.worlds[usize::from(shard)] =
                World { logs: std::mem::take(&mut net.worlds[usize::from(shard)].logs), ..World::default() };
            net.act(shard, |b, w| b.subscribe_on(ticket(shard, 0, 7), key(0), b"a", after, NOW, w));
            net.drain(shard, 0);
            net.settle();
            let live = net.publish(0, "a");
            net.settle();
            let world = &net.worlds[usize::from(shard)];
            let got: Vec<u32> = world.got.get(&0).into_iter().flatten().map(|got| got.3).collect();
            let all = [first].into_iter().filter(|_| is_first).chain(missed).chain(first + 3..=live);
            assert_eq!(got, all.collect::<Vec<u32>>());
            assert_eq!(world.gaps, gaps);
            net.act(shard, |b, w| b.unsubscribe(key(0), Namespace::Global, b"a", NOW, w));
            net.settle();
        }
    }
}
