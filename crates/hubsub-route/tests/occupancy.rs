//! Numbers of subscribers to a room's topics, while classes change at run time.

use crate::support::{NOW, Net, key, ticket};
use hubsub_route::occupancy::Counts;
use hubsub_route::places::Places;
use hubsub_route::{Cluster, Hubs, Namespace, Outcome, RelayLimits, Start, Wish};
use hubsub_types::names::Matcher;
use hubsub_types::{Class, ClassTable, HubId, ProducerId};
use std::sync::Arc;

const TOPIC: &[u8] = b"told:1";

fn class(name: &str, matches: &[&str], occupancy_records: bool) -> Class {
    let matches = matches.iter().map(|matcher| Matcher::parse(matcher).unwrap()).collect();
    Class { matches, occupancy_records, ..Class::named(name) }
}

fn set_classes(net: &mut Net, table: ClassTable) {
    let cluster = Cluster { producer: ProducerId(1 << 8), limits: RelayLimits::default() };
    let hubs: Vec<Vec<HubId>> = (7..).map(|hub| vec![HubId(hub)]).take(table.classes().len()).collect();
    let places = Arc::new(Places::new(hubs.iter().map(|_| false)));
    let hubs = Arc::new(Hubs::with_places(1, &hubs, places, cluster));
    net.act(0, |broker, world| broker.set_classes(Arc::new(table), hubs, NOW, world));
}

fn subscribers(net: &Net) -> u64 {
    net.brokers[0].occupancy_of(TOPIC).subscriptions()
}

#[test]
fn a_room_that_comes_to_a_class_with_records_keeps_its_count() {
    let others = class("others", &[], false);
    let mut net = Net::in_cluster(others.clone(), HubId(7));
    let wish = Wish { topic: TOPIC, namespace: Namespace::Global, start: Start::Live };
    let outcome = net.act(0, |broker, world| broker.subscribe(ticket(0, 0, 0), key(0), wish, NOW, world));
    assert!(matches!(outcome, Outcome::Later));
    assert_eq!(subscribers(&net), 1);

    let before = ClassTable::new(vec![others.clone()], true);
    let with_records = before.changed(vec![class("told", &["told:*"], true), others.clone()]);
    set_classes(&mut net, with_records.clone());
    assert_eq!(subscribers(&net), 1);
    assert_eq!(net.brokers[0].occupancy.take_changed().len(), 1, "that is told");

    set_classes(&mut net, with_records.changed(vec![others]));
    assert_eq!(subscribers(&net), 1);

    net.act(0, |broker, world| broker.unsubscribe(key(0), Namespace::Global, TOPIC, NOW, world));
    assert_eq!(net.brokers[0].occupancy_of(TOPIC), Counts::default());
}
