//! A connection that follows whole hubs by its patterns gets each record once, those of a room in order, from
//! memory and from logs.

use crate::support::*;
use hubsub_route::{Answer, Asker, HubsFrom, LogPlace, Outcome};
use hubsub_types::{ErrorCode, HubId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const CONN: u32 = 0;

fn follow(net: &mut Net, shard: u16, from: HubsFrom<'_>) {
    net.act(shard, |b, w| b.follow_hubs(key(CONN), from, NOW, w));
}

/// Payloads that the connection got, in order.
fn got(net: &Net, shard: u16) -> Vec<u32> {
    net.worlds[usize::from(shard)].got.get(&CONN).into_iter().flatten().map(|got| got.3).collect()
}

fn places(net: &Net, shard: u16) -> BTreeMap<HubId, (u64, bool)> {
    let places = net.brokers[usize::from(shard)].cursors.hubs.places(CONN);
    places.map(|(hub, next, is_live)| (hub, (next, is_live))).collect()
}

#[test]
fn a_record_of_a_log_says_where_it_stands_live_and_from_the_past() {
    let mut net = Net::new(2, 1, durable());
    net.subscribe(1, CONN, "a", hubsub_route::Start::Live);
    net.settle();
    (0..3).for_each(|_| _ = net.publish(0, "a"));
    net.settle();
    let live = net.worlds[1].places[&CONN].clone();
    let hub = live[0].hub;
    assert_ne!(hub, HubId(0));
    assert_eq!(live, (1..=3).map(|offset| LogPlace { hub, offset }).collect::<Vec<_>>());
    net.subscribe(0, CONN, "a", hubsub_route::Start::Last(2));
    net.settle();
    assert_eq!(net.worlds[0].places[&CONN], live[1..]);
}

#[test]
fn who_comes_back_gets_what_it_has_not_had_of_all_rooms_and_then_what_is_new() {
    // Memory retains nothing: earlier records are in logs only.
    for tail in [u64::MAX, 1] {
        let mut net = Net::with_tail(2, 1, durable(), tail);
        let before = net.publish(0, "a");
        net.publish(0, "other");
        net.settle();
        let ends = net.act(1, |b, w| b.hub_ends(ticket(1, CONN, 9), NOW, w));
        assert_eq!(ends, Outcome::Later, "a hub of the other shard is asked, too");
        while net.step(1, 0) {}
        let answer = net.mail.get_mut(&(0, 1)).and_then(std::collections::VecDeque::pop_front);
        let mut ends = Vec::new();
        let mut next = answer;
        while let Some(msg) = next {
            net.brokers[1].receive(msg, NOW, &mut net.worlds[1]);
            next = net.mail.get_mut(&(0, 1)).and_then(std::collections::VecDeque::pop_front);
        }
        for (_, answer) in std::mem::take(&mut net.worlds[1].answers) {
            if let Answer::HubEnds(found) = answer {
                ends = found.unwrap();
            }
        }
        assert_eq!(ends.iter().map(|(_, committed)| committed).sum::<u64>(), 2);
        assert_eq!(ends.len(), 3);
        let missed: Vec<u32> = ["a", "b", "{a}.x", "a"].map(|topic| net.publish(0, topic)).into();
        net.settle();
        net.subscribe_pattern(1, CONN, "*");
        net.settle();
        let begin: Vec<_> = ends.iter().map(|&(hub, committed)| (hub, committed + 1)).collect();
        follow(&mut net, 1, HubsFrom::Offsets(&begin));
        net.settle();
        let mut all = got(&net, 1);
        assert!(!all.contains(&before));
        let new: Vec<u32> = ["b", "a"].map(|topic| net.publish(1, topic)).into();
        net.settle();
        assert_eq!(got(&net, 1)[all.len()..].iter().collect::<BTreeSet<_>>(), new.iter().collect());
        all.sort_unstable();
        assert_eq!(all, missed);
        assert!(places(&net, 1).values().all(|(_, is_live)| *is_live));
    }
}

#[test]
fn a_pattern_begins_in_the_past_and_the_others_of_its_connection_do_not() {
    let mut net = Net::new(2, 1, durable());
    (0..5).for_each(|_| _ = net.publish(0, "a"));
    net.subscribe_pattern(1, CONN, "b*");
    net.settle();
    (0..2).for_each(|_| _ = net.publish(0, "b"));
    net.settle();
    assert_eq!(got(&net, 1), [6, 7]);
    let asked = net
        .act(1, |b, w| b.subscribe_pattern_from(ticket(1, CONN, 1), key(CONN), b"a*", HubsFrom::Since(0), w));
    assert_eq!(asked, Outcome::Later);
    net.publish(0, "a");
    net.settle();
    net.publish(0, "a");
    net.publish(0, "b");
    net.settle();
    let (of_a, of_b): (Vec<u32>, Vec<u32>) =
        got(&net, 1).into_iter().partition(|id| *id < 6 || (8..10).contains(id));
    assert_eq!((of_a, of_b), (vec![1, 2, 3, 4, 5, 8, 9], vec![6, 7, 10]));
}

#[test]
fn what_a_log_has_no_more_is_told_once_for_each_pattern_and_the_rest_is_given() {
    let mut net = Net::with_tail(1, 1, durable(), 1);
    (0..4).for_each(|_| _ = net.publish(0, "a"));
    net.settle();
    net.subscribe_pattern(0, CONN, "*");
    follow(&mut net, 0, HubsFrom::Since(0));
    let asked = net.worlds[0].hub_asked.pop_front().expect("memory has none of them");
    let mut range = hubsub_route::HubRange { lost: Some((1, 2)), next: 3, ..Default::default() };
    net.act(0, |b, w| b.hub_log_read(asked.clone(), Ok(range.clone()), NOW, w));
    assert_eq!(net.worlds[0].gaps, 1);
    range.lost = None;
    net.act(0, |b, w| b.hub_log_read(asked, Ok(range), NOW, w));
    net.settle();
    assert_eq!((got(&net, 0), net.worlds[0].gaps), (vec![3, 4], 1), "an answer counts once");

    follow(&mut net, 0, HubsFrom::Since(0));
    let asked = net.worlds[0].hub_asked.pop_front().expect("it begins anew");
    net.act(0, |b, w| b.hub_log_read(asked, Err(ErrorCode::TimedOut), NOW, w));
    let asked = net.worlds[0].hub_asked.pop_front().expect("a slow disk is asked again");
    net.act(0, |b, w| b.hub_log_read(asked, Err(ErrorCode::Quarantined), NOW, w));
    net.settle();
    assert_eq!((got(&net, 0).len(), net.worlds[0].gaps), (2, 2), "what cannot be read is told");
    net.publish(0, "a");
    net.settle();
    assert_eq!(got(&net, 0).last(), Some(&5));
}

#[test]
fn where_logs_end_is_refused_when_nobody_says_it_in_time() {
    let mut net = Net::in_cluster(durable(), HubId(5));
    let asked = net.act(0, |b, w| b.hub_ends(ticket(0, CONN, 3), NOW, w));
    assert_eq!(asked, Outcome::Later);
    let due = net.brokers[0].next_due_ms().expect("something waits for its time");
    let late = hubsub_route::Now { mono_ms: due, ..NOW };
    net.brokers[0].commit_due(late, &mut net.worlds[0]);
    let [(Asker::Client { slot: 3, .. }, Answer::HubEnds(Err(ErrorCode::HubClosed)))] =
        net.worlds[0].answers[..]
    else {
        panic!("{:?}", net.worlds[0].answers)
    };
    assert_eq!(net.brokers[0].next_due_ms(), None);
}

#[derive(Clone, Debug)]
enum Op {
    Publish(u16, usize),
    Log(u16, usize),
    AnswerLog(u16),
    Step(u16, u16),
    Full(u16),
    Drain(u16),
    /// The follower disconnects, and reconnects on another shard with its positions.
    Return(u16),
    Pattern(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let shard = || 0..3_u16;
    prop_oneof![
        6 => (shard(), 0..TOPICS.len()).prop_map(|(shard, topic)| Op::Publish(shard, topic)),
        4 => (shard(), 1..4_usize).prop_map(|(shard, count)| Op::Log(shard, count)),
        4 => shard().prop_map(Op::AnswerLog),
        12 => (shard(), shard()).prop_map(|(from, to)| Op::Step(from, to)),
        1 => shard().prop_map(Op::Full),
        2 => shard().prop_map(Op::Drain),
        1 => shard().prop_map(Op::Return),
        1 => any::<bool>().prop_map(Op::Pattern),
    ]
}

proptest! {
    #[test]
    fn a_follower_gets_each_record_once_and_those_of_a_room_in_order(
        ops in proptest::collection::vec(op(), 1..150),
        tail in prop_oneof![Just(1_u64), Just(600), Just(u64::MAX)],
    ) {
        let mut net = Net::with_tail(3, 1, durable(), tail);
        let (mut at, mut seen) = (1_u16, Vec::new());
        net.subscribe_pattern(at, CONN, "*");
        follow(&mut net, at, HubsFrom::Offsets(&[]));
        let mut published = BTreeSet::new();
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = published.insert(net.publish(shard, TOPICS[topic])),
                Op::Log(shard, count) => _ = net.log(shard, count),
                Op::AnswerLog(shard) => _ = net.answer_log(shard),
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Full(shard) => _ = net.worlds[usize::from(shard)].full.insert(CONN),
                Op::Drain(shard) => net.drain(shard, CONN),
                Op::Pattern(more) => net.act(at, |b, w| match more {
                    true => _ = b.subscribe_pattern(ticket(at, CONN, 0), key(CONN), b"a*", w),
                    false => _ = b.unsubscribe_pattern(key(CONN), b"a*", w),
                }),
                Op::Return(to) => {
                    let offsets: Vec<_> =
                        places(&net, at).into_iter().map(|(hub, (next, _))| (hub, next)).collect();
                    net.act(at, |b, w| {
                        b.disconnected(key(CONN), NOW, w);
                        b.connected(key(CONN));
                    });
                    seen.extend(net.worlds[usize::from(at)].got.remove(&CONN).unwrap_or_default());
                    at = to;
                    net.subscribe_pattern(at, CONN, "*");
                    follow(&mut net, at, HubsFrom::Offsets(&offsets));
                }
            }
            for shard in 0..3 {
                net.act(shard, |b, w| b.retry_stalled(NOW, w));
            }
        }
        net.settle();
        seen.extend(net.worlds[usize::from(at)].got.remove(&CONN).unwrap_or_default());
        prop_assert_eq!(net.worlds.iter().map(|world| world.gaps).sum::<usize>(), 0);
        // Two patterns deliver a record twice, in succession.
        seen.dedup_by_key(|got| got.3);
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, topic, position, _) in &seen {
            let room = if topic.starts_with("{a}") { "a" } else { topic };
            let before = last.insert(room, position.seq.0).unwrap_or(0);
            prop_assert!(before < position.seq.0, "{} {} behind {}", topic, position, before);
        }
        prop_assert_eq!(seen.iter().map(|got| got.3).collect::<BTreeSet<_>>(), published);
        prop_assert!(places(&net, at).values().all(|(_, is_live)| *is_live));
    }
}
