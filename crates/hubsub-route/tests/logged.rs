//! Brokers whose hubs have logs: what is said waits for them, and what memory has
//! no more comes from them.

mod support;

use hubsub_route::rooms::HistoryQuery;
use hubsub_route::topk::SAMPLE;
use hubsub_route::{
    Answer, Ask, Broker, Busy, Draft, Found, HubSeed, Hubs, LogRead, Namespace, Outcome, Publisher, Record,
    Settings, Start, Then, TrafficTotals, Want, Wish,
};
use hubsub_types::{Class, ClassTable, Durability, Epoch, ErrorCode, HubId, Limits, Position, Seq, ShardId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use support::*;

fn durable() -> Class {
    Class { durability: Durability::Durable, ..remembering() }
}

#[test]
fn nobody_hears_of_a_durable_record_before_it_is_safe() {
    let mut net = Net::new(1, 2, durable());
    net.subscribe(0, 0, "a", Start::Live);
    let ids = [net.publish(0, "a"), net.publish(0, "a"), net.publish(0, "a")];
    net.act(0, |b, w| b.retry_stalled(NOW, w));
    assert!(net.receivers.is_empty() && net.got(0, 0).is_empty() && net.history("a").is_empty());
    assert!(net.log(0, 2));
    assert_eq!(net.got(0, 0).len(), 2);
    let seqs = |net: &Net| net.receivers.values().map(|p| p.position.seq.0).collect::<Vec<_>>();
    assert_eq!((seqs(&net), net.receivers.contains_key(&ids[2])), (vec![1, 2], false));
    // Who comes now begins behind what is committed, and gets what is committed later.
    net.subscribe(0, 1, "a", Start::Live);
    assert_eq!(net.attached[&(0, 1)][0].position.seq, Seq(2));
    assert!(net.log(0, 1));
    assert_eq!((net.got(0, 0).len(), net.got(0, 1).len(), seqs(&net)), (3, 1, vec![1, 2, 3]));
}

#[test]
fn a_hub_counts_what_it_has_committed_and_for_each_who_gets_it() {
    let mut net = Net::new(1, 2, durable());
    (0..2).for_each(|conn| net.subscribe(0, conn, "a", Start::Live));
    net.publish(0, "a");
    net.publish(0, "a");
    net.publish(0, "nobody");
    let totals = |net: &Net| {
        let logs = net.brokers[0].rooms.hubs.iter().filter_map(|hub| hub.log.as_ref());
        logs.map(|log| log.traffic.totals()).fold(TrafficTotals::default(), |sum, t| TrafficTotals {
            deliveries: sum.deliveries + t.deliveries,
            bytes_in: sum.bytes_in + t.bytes_in,
            bytes_out: sum.bytes_out + t.bytes_out,
        })
    };
    assert_eq!(totals(&net), TrafficTotals::default());
    while net.log(0, 1) {}
    // Payloads are of four bytes.
    assert_eq!(totals(&net), TrafficTotals { deliveries: 4, bytes_in: 2 * 5 + 10, bytes_out: 4 * 5 });
}

#[test]
fn a_busy_room_shows_what_its_records_weigh_and_how_many_get_them_whatever_its_class() {
    let remembering_nothing = Class { durability: Durability::Ephemeral, history: None, ..remembering() };
    for class in [remembering_nothing, remembering(), durable()] {
        let mut net = Net::new(1, 2, class);
        net.subscribe(0, 0, "a", Start::Live);
        net.act(0, |b, w| _ = b.subscribe_pattern(ticket(0, 1, 0), key(1), b"*", w));
        (0..SAMPLE).for_each(|_| _ = net.publish(0, "a"));
        while net.log(0, 1) {}
        let (room, busy) = &net.brokers[0].busiest.busiest(1)[0];
        assert_eq!(
            (&**room, *busy),
            (&b"a"[..], Busy { publishes: 16, bytes_in: 16 * 5, bytes_out: 2 * 16 * 5 })
        );
    }
}

#[test]
fn a_replicated_record_is_committed_in_its_turn_and_logged_behind() {
    let mut net = Net::new(1, 1, Class { durability: Durability::Replicated, ..remembering() });
    net.subscribe(0, 0, "a", Start::Live);
    let id = net.publish(0, "a");
    net.act(0, |b, w| b.retry_stalled(NOW, w));
    assert!(net.receivers.contains_key(&id) && net.got(0, 0).len() == 1);
    assert_eq!(net.worlds[0].logs.values().map(|log| (log.entries.len(), log.safe)).max(), Some((1, 0)));
}

#[test]
fn a_replicated_record_waits_for_a_log_that_is_behind() {
    let mut net = Net::new(1, 1, Class { durability: Durability::Replicated, ..remembering() });
    net.worlds[0].is_behind = true;
    let ids = [net.publish(0, "a"), net.publish(0, "a")];
    net.act(0, |b, w| b.retry_stalled(NOW, w));
    assert!(net.receivers.is_empty());
    assert!(net.log(0, 1));
    assert_eq!(net.receivers.keys().collect::<Vec<_>>(), [&ids[0]]);
    net.worlds[0].is_behind = false;
    net.act(0, |b, w| b.retry_stalled(NOW, w));
    assert!(net.receivers.contains_key(&ids[1]));
}

/// Two shards: that of room a's hub, and another with a subscriber, which is behind.
fn beside_one_that_is_behind() -> (Net, u16, u16) {
    let mut net = Net::new(2, 1, durable());
    let hub = net.brokers[0].topics.shard_of_room(b"a").0;
    let other = 1 - hub;
    net.subscribe(other, 0, "a", Start::Live);
    net.settle();
    net.worlds[usize::from(hub)].congested.insert(other);
    (net, hub, other)
}

#[test]
fn what_is_safe_when_a_log_fails_is_delivered_all_the_same() {
    let (mut net, hub, other) = beside_one_that_is_behind();
    net.publish(hub, "a");
    net.publish(hub, "a");
    assert!(net.log(hub, 1));
    let (broker, world) = (&mut net.brokers[usize::from(hub)], &mut net.worlds[usize::from(hub)]);
    broker.log_failed(NOW, world);
    let answers: Vec<_> = world.answers.drain(..).map(|(_, answer)| answer).collect();
    assert!(matches!(answers[..], [Answer::Published(Err(ErrorCode::LogFailed))]));
    world.congested.clear();
    net.act(hub, |b, w| b.retry_stalled(NOW, w));
    while net.step(hub, other) {}
    assert_eq!((net.got(other, 0).len(), net.brokers[usize::from(hub)].unlogged()), (1, 0));
}

#[test]
fn a_pattern_catches_up_in_rooms_that_left_memory() {
    for shard in [0, 1] {
        let mut net = Net::with_tail(2, 1, durable(), 1);
        net.act(shard, |b, w| _ = b.subscribe_pattern(ticket(shard, 0, 0), key(0), b"*", w));
        net.settle();
        net.worlds[usize::from(shard)].full.insert(0);
        (0..5).for_each(|_| _ = net.publish(0, "a"));
        let hub = net.brokers[0].topics.shard_of_room(b"a").0;
        while net.step(0, hub) || net.log(hub, 5) || net.step(hub, shard) {}
        net.act(hub, |b, w| b.sweep(NOW, w));
        assert!(net.brokers[usize::from(hub)].rooms.is_empty());
        assert_eq!(net.got(shard, 0).len(), 0);
        net.settle();
        assert_eq!(net.got(shard, 0).iter().map(|got| got.2.seq.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(net.worlds[usize::from(shard)].gaps, 0);
        net.publish(0, "a");
        net.settle();
        assert_eq!(net.got(shard, 0).len(), 6);
    }
}

#[test]
fn what_comes_while_the_log_is_asked_where_to_begin_is_not_missed() {
    let mut net = Net::with_tail(1, 1, durable(), 1);
    // Records of another topic of the room, which are in no memory.
    (0..3).for_each(|_| _ = net.publish(0, "{a}.x"));
    net.settle();
    net.subscribe(0, 0, "a", Start::Last(1));
    assert_eq!(net.worlds[0].asked.len(), 1);
    net.publish(0, "a");
    assert!(net.log(0, 1));
    net.settle();
    assert_eq!(net.got(0, 0).iter().map(|got| got.2.seq.0).collect::<Vec<_>>(), [4]);
}

#[test]
fn a_subscription_that_ends_while_the_log_is_asked_leaves_nothing() {
    for shard in [0, 1] {
        let mut net = Net::with_tail(2, 1, durable(), 1);
        (0..3).for_each(|_| _ = net.publish(0, "a"));
        net.settle();
        net.subscribe(shard, 0, "a", Start::Last(2));
        let hub = net.brokers[0].topics.shard_of_room(b"a").0;
        while net.step(shard, hub) {}
        assert_eq!(net.worlds[usize::from(hub)].asked.len(), 1);
        net.act(shard, |b, w| b.unsubscribe(key(0), Namespace::Global, b"a", NOW, w));
        net.settle();
        let id = net.publish(0, "a");
        net.settle();
        assert_eq!((net.receivers[&id].receivers, net.got(shard, 0).len()), (0, 0));
        assert!(net.brokers.iter().all(|b| b.cursors.is_empty()));
    }
}

#[test]
fn a_shard_that_is_behind_holds_up_what_is_safe_and_is_named() {
    let (mut net, hub, other) = beside_one_that_is_behind();
    let id = net.publish(hub, "a");
    assert!(net.log(hub, 1));
    assert_eq!((net.brokers[usize::from(hub)].stalled(), net.receivers.len()), (1, 0));
    net.settle();
    assert_eq!((net.receivers[&id].receivers, net.got(other, 0).len()), (1, 1));
}

#[test]
fn a_log_that_takes_nothing_refuses_and_one_that_fails_says_so() {
    let mut net = Net::new(1, 1, durable());
    net.subscribe(0, 0, "a", Start::Live);
    net.worlds[0].refuses = Some(ErrorCode::DiskFull);
    let draft = Draft {
        namespace: Namespace::Global,
        topic: b"a",
        payload: &7u32.to_le_bytes(),
        headers: None,
        publisher: Publisher::Conn(0),
        producer: None,
    };
    let outcome = net.act(0, |b, w| b.publish(ticket(0, 0, 9), draft, NOW, w));
    assert_eq!(outcome, Outcome::Now(Err(ErrorCode::DiskFull)));
    net.worlds[0].refuses = None;
    net.publish(0, "a");
    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
    broker.log_failed(NOW, world);
    let answers: Vec<_> = world.answers.drain(..).map(|(_, answer)| answer).collect();
    assert!(matches!(answers[..], [Answer::Published(Err(ErrorCode::LogFailed))]));
    assert_eq!((broker.unlogged(), net.got(0, 0).len()), (0, 0));
}

#[test]
fn a_question_behind_records_that_a_failed_log_gave_up_is_answered_with_what_there_is() {
    let mut net = Net::new(1, 1, durable());
    net.publish(0, "a");
    assert!(net.log(0, 1));
    net.publish(0, "a");
    let query = HistoryQuery { room: b"a".to_vec(), count: 9, after: None, topic: None };
    let ask = Ask { shard: ShardId(0), number: 77 };
    let waits = net.act(0, |b, w| b.history(&query, ask, NOW, w)).unwrap();
    assert!(waits.is_none() && net.worlds[0].histories.is_empty(), "it sees what came before it");
    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
    broker.log_failed(NOW, world);
    let seqs: Vec<u64> = world.histories[&77].records.iter().map(|r| r.position.seq.0).collect();
    assert_eq!(seqs, [1]);
}

#[test]
fn rooms_that_a_log_knows_count_when_they_come_back_and_give_way_to_others_when_nobody_uses_them() {
    let mut net = Net::new(1, 2, durable());
    let open = |net: &mut Net, conn, topic: &[u8]| {
        let wish = Wish { topic, namespace: Namespace::Global, start: Start::Live };
        net.act(0, |b, w| b.subscribe(ticket(0, conn, 0), key(conn), wish, NOW, w))
    };
    for room in ["a", "b", "c"] {
        net.publish(0, room);
    }
    net.settle();
    net.brokers[0].set_limits(Limits { rooms_max: 2, ..Limits::default() });
    // All of them are idle and in the log.
    (0..4).for_each(|_| net.act(0, |b, w| b.sweep(NOW, w)));
    assert_eq!(net.brokers[0].rooms.len(), 1);
    for room in [b"a", b"b"] {
        assert!(matches!(open(&mut net, 0, room), Outcome::Now(Ok(_))));
    }
    (0..4).for_each(|_| net.act(0, |b, w| b.sweep(NOW, w)));
    assert_eq!(open(&mut net, 1, b"c"), Outcome::Now(Err(ErrorCode::TooManyRooms)), "the others are in use");
    net.settle();
    assert_eq!(net.history("c").len(), 1, "its past is read without it");
    net.act(0, |b, w| b.unsubscribe(key(0), Namespace::Global, b"a", NOW, w));
    (0..4).for_each(|_| net.act(0, |b, w| b.sweep(NOW, w)));
    let Outcome::Now(Ok(attached)) = open(&mut net, 1, b"c") else { panic!("there is place") };
    assert_eq!(attached.position.seq, Seq(1), "its life goes on");
}

#[test]
fn clients_rooms_do_not_keep_one_of_the_nodes_own_from_coming_back() {
    let mut net = Net::new(1, 2, durable());
    ["a", "b", "$queries/q"].iter().for_each(|room| _ = net.publish(0, room));
    net.settle();
    net.brokers[0].set_limits(Limits { rooms_max: 2, ..Limits::default() });
    (0..4).for_each(|_| net.act(0, |b, w| b.sweep(NOW, w)));
    net.subscribe(0, 0, "a", Start::Live);
    net.subscribe(0, 0, "b", Start::Live);
    (0..4).for_each(|_| net.act(0, |b, w| b.sweep(NOW, w)));
    assert_eq!(net.brokers[0].rooms.len(), 2, "both in use");
    let wish = Wish { topic: b"$queries/new", namespace: Namespace::Global, start: Start::Live };
    let made = net.act(0, |b, w| b.subscribe(ticket(0, 1, 0), key(1), wish, NOW, w));
    assert_eq!(made, Outcome::Now(Err(ErrorCode::TooManyRooms)), "a new one counts as any");
    let again = net.publish(0, "$queries/q");
    net.settle();
    assert_eq!(net.receivers[&again].position.seq, Seq(2), "its life goes on");
}

#[test]
fn a_room_in_no_memory_goes_on_where_its_log_ends() {
    let mut net = Net::new(1, 1, durable());
    let id = net.publish(0, "a");
    net.settle();
    let before = net.receivers[&id].position;
    // The same log under a new broker, as after a restart; the room is in no memory.
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
        net.brokers[0] = Broker::new(Settings { shard: ShardId(0), hubs, classes, limits, epochs });
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
    /// Rooms leave memory, if they may.
    Sweep(u16),
    Delete(usize),
    History(usize),
}

const SHARDS: u16 = 2;

fn op() -> impl Strategy<Value = Op> {
    let (shard, topic) = (0..SHARDS, 0..TOPICS.len());
    prop_oneof![
        5 => (shard.clone(), topic.clone()).prop_map(|(s, t)| Op::Publish(s, t)),
        3 => (shard.clone(), 1usize..4).prop_map(|(s, n)| Op::Log(s, n)),
        2 => (shard.clone(), 1usize..4).prop_map(|(s, n)| Op::Find(s, n)),
        2 => shard.clone().prop_map(Op::AnswerLog),
        3 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Step(a, b)),
        2 => shard.prop_map(Op::Sweep),
        1 => topic.clone().prop_map(Op::Delete),
        2 => topic.prop_map(Op::History),
    ]
}

/// How often a room was deleted, and the positions of what was said since, safe or not.
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

    /// Rooms that leave memory and come back, that are deleted and made again: no seq is
    /// given twice, and history is what was published since the last deletion.
    #[test]
    fn a_room_that_leaves_memory_comes_back_as_it_was(
        ops in proptest::collection::vec(op(), 1..150),
        tail in prop_oneof![Just(1u64), Just(1000), Just(u64::MAX)],
    ) {
        let mut net = Net::with_tail(SHARDS, 1, durable(), tail);
        net.worlds.iter_mut().for_each(|world| world.readers_lag = true);
        let mut deletions = 0;
        // By number of a question: the room, and what its hub had got by then.
        let mut asked: BTreeMap<u32, (&str, u16, Life)> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = net.publish(shard, TOPICS[topic]),
                Op::Log(shard, count) => _ = net.log(shard, count),
                Op::Find(shard, count) => _ = net.find_logged(shard, count),
                Op::AnswerLog(shard) => _ = net.answer_log(shard),
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Sweep(shard) => net.act(shard, |b, w| b.sweep(NOW, w)),
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
            // A question that is still on its way when the room is deleted may see that.
            if life(&net, *shard, room).0 == life_then.0 {
                prop_assert_eq!(&got, &life_then.1, "{}", room);
            }
        }
        // Each publish has a place of its own, without gaps.
        let mut positions: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for published in net.receivers.values() {
            positions.entry(published.position.epoch.0).or_default().push(published.position.seq.0);
        }
        for seqs in positions.values_mut() {
            seqs.sort_unstable();
            prop_assert_eq!(&*seqs, &(1..=seqs.len() as u64).collect::<Vec<_>>());
        }
        // At rest, everything leaves memory, and is found all the same.
        for shard in 0..SHARDS {
            net.act(shard, |b, w| b.sweep(NOW, w));
        }
        if tail == 1 {
            prop_assert!(net.brokers.iter().all(|broker| broker.rooms.is_empty()));
        }
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
    // Another class's log, or none, is not asked.
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
        // Where it begins is found; what follows cannot be read.
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
