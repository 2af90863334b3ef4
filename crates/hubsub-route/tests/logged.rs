//! Brokers whose hubs have logs: replies and deliveries wait for the commit. `logged_past.rs` tests reads
//! from logs.

use crate::support::*;
use hubsub_route::places::Places;
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::topk::SAMPLE;
use hubsub_route::{
    Answer, Ask, Busy, Cluster, Draft, Hubs, Leader, Namespace, Outcome, Publisher, RelayLimits, Start,
    TrafficTotals, Wish,
};
use hubsub_types::{Class, Durability, ErrorCode, HubId, Limits, ProducerId, Qos, Seq, ShardId, Term};
use std::sync::Arc;

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
    // A new subscription starts after the last committed record and gets records committed later.
    net.subscribe(0, 1, "a", Start::Live);
    assert_eq!(net.attached[&(0, 1)][0].position.seq, Seq(2));
    assert!(net.log(0, 1));
    assert_eq!((net.got(0, 0).len(), net.got(0, 1).len(), seqs(&net)), (3, 1, vec![1, 2, 3]));
}

#[test]
fn records_that_wait_when_the_node_joins_a_cluster_are_committed() {
    for hubs in [vec![], vec![HubId(1), HubId(2)]] {
        let mut net = Net::new(1, 1, durable());
        net.subscribe(0, 0, "a", Start::Live);
        let [first, second, third] = std::array::from_fn(|_| net.publish(0, "a"));
        net.publish(0, "b");
        assert!(net.log(0, 1));
        let cluster = Cluster { producer: ProducerId(1 << 8), limits: RelayLimits::default() };
        let places = Arc::new(Places::new([false].into_iter()));
        let joined = Arc::new(Hubs::with_places(1, std::slice::from_ref(&hubs), places, cluster));
        net.act(0, |b, w| {
            b.disconnected(key(0), NOW, w);
            b.join(joined);
            b.connected(key(0));
        });
        while net.log(0, 1) {}
        let of = |net: &Net, id| net.receivers.get(&id).map(|p| (p.position.seq, p.receivers));
        assert_eq!(
            [first, second, third].map(|id| of(&net, id)),
            [1, 2, 3].map(|seq| Some((Seq(seq), u64::from(seq == 1))))
        );
        assert_eq!(net.receivers.len(), 4, "each publisher has its answer");
        let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Live };
        let again = net.act(0, |b, w| b.subscribe(ticket(0, 0, 1), key(0), wish, NOW, w));
        assert_eq!(
            again,
            match hubs.len() {
                0 => Outcome::Now(Err(ErrorCode::HubClosed)),
                _ => Outcome::Later,
            }
        );
        if hubs.is_empty() {
            continue;
        }
        for hub in hubs {
            net.act(0, |b, w| b.route(hub, Term(1), Leader::Me, NOW, w));
        }
        let next = net.publish(0, "a");
        while net.log(0, 1) {}
        assert_eq!(of(&net, next), Some((Seq(4), 1)), "the room continues");
    }
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
    // Payloads have four bytes.
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

/// Two shards: that of room a's hub, and a congested one with a subscriber.
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
    // Records of another topic of the room; none is in memory.
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
        qos: Qos::ExactlyOnce,
        retain: false,
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
