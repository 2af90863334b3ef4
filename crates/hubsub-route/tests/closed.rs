//! A hub whose log is closed, and that may be opened again.

use crate::support::{NOW, Net, key, remembering, ticket};
use hubsub_route::{HubSeed, Leader, Namespace, NodeMessage, Outcome, Producers, Start, Wish};
use hubsub_types::{Class, Durability, ErrorCode, HubId, NodeId, Position, Seq, Term};

fn durable() -> Class {
    Class { durability: Durability::Durable, ..remembering() }
}

#[test]
fn a_hub_that_was_given_back_takes_no_new_subscription() {
    let mut net = Net::new(1, 1, durable());
    net.publish(0, "a");
    while net.log(0, 9) {}
    net.worlds[0].refuses = Some(ErrorCode::HubClosed);
    let wish = Wish { topic: b"a", namespace: Namespace::Global, start: Start::Live };
    let outcome = net.act(0, |b, w| b.subscribe(ticket(0, 0, 1), key(0), wish, NOW, w));
    assert_eq!(outcome, Outcome::Now(Err(ErrorCode::HubClosed)));
    assert_eq!(net.brokers[0].counts(key(0)), (0, 0, 0));
    net.worlds[0].refuses = None;
    net.subscribe(0, 0, "a", Start::Live);
    assert_eq!(net.brokers[0].counts(key(0)), (1, 0, 0));
}

#[test]
fn who_catches_up_in_a_hub_that_was_given_back_waits_and_is_told_no_gap() {
    for shards in [1, 3] {
        let mut net = Net::new(shards, 1, durable());
        let home = net.brokers[0].topics.shard_of_room(b"a").0;
        let edge = (home + 1) % shards;
        net.subscribe(edge, 0, "a", Start::Live);
        net.settle();
        net.worlds[usize::from(edge)].full.insert(0);
        let ids: Vec<u32> = (0..5).map(|_| net.publish(home, "a")).collect();
        while net.log(home, 9) || net.find_logged(home, 9) || net.step(home, edge) || net.step(edge, home) {}
        assert_eq!(net.got(edge, 0).len(), 0);
        net.worlds[usize::from(home)].refuses = Some(ErrorCode::HubClosed);
        net.drain(edge, 0);
        net.settle();
        let told = net.worlds[usize::from(edge)].gaps;
        assert_eq!((net.got(edge, 0).len(), told), (0, 0), "{shards} shards");
        net.worlds[usize::from(home)].refuses = None;
        net.settle();
        let got: Vec<u32> = net.got(edge, 0).iter().map(|got| got.3).collect();
        assert_eq!((got, net.worlds[usize::from(edge)].gaps), (ids, 0), "{shards} shards");
    }
}

#[test]
fn who_catches_up_in_a_hub_that_was_given_back_reads_on_where_it_is_led_now() {
    let (hub, other) = (HubId(1), NodeId(3));
    let mut net = Net::in_cluster(durable(), hub);
    let seed = HubSeed { id: hub, next: 1, continuous_from: 1, ..HubSeed::default() };
    net.brokers[0].open_log(&seed, Producers::default());
    net.act(0, |b, w| b.route(hub, Term(1), Leader::Me, NOW, w));
    net.subscribe(0, 0, "a", Start::Live);
    net.worlds[0].full.insert(0);
    net.publish(0, "a");
    while net.log(0, 9) {}
    net.worlds[0].refuses = Some(ErrorCode::HubClosed);
    net.drain(0, 0);
    assert_eq!(net.got(0, 0).len(), 0);
    net.act(0, |b, w| b.node_up(other, 0, 1, NOW, w));
    net.worlds[0].frames.clear();
    net.act(0, |b, w| b.route(hub, Term(2), Leader::Node(other), NOW, w));
    net.settle();
    let reads = net.worlds[0].frames.iter().filter_map(|frame| match frame {
        NodeMessage::Read { start, .. } => Some(*start),
        _ => None,
    });
    let before = Position { seq: Seq(0), ..net.receivers[&1].position };
    assert_eq!(reads.collect::<Vec<_>>(), [Start::After(before)]);
}
