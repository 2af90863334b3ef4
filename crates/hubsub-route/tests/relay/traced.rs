//! Traces of publishes that wait for a leader, go to another node, or come from it.

use super::*;
use hubsub_route::Published;
use hubsub_route::traces::{Bounds, StepKind};

/// Follows the records of `a`.
fn follow(broker: &mut Broker) {
    for _ in 0..2 {
        let bounds = Bounds { records: 10, ms: 1_000, every: 1 };
        broker.start_trace(1, (Namespace::Global, b"a"), bounds, at(0)).unwrap();
    }
}

/// The steps of each followed record.
fn steps(broker: &Broker) -> Vec<Vec<StepKind>> {
    let kinds = |steps: &[hubsub_route::traces::Step]| steps.iter().map(|step| step.kind).collect();
    broker.traces.steps(1).iter().map(|traced| kinds(&traced.steps)).collect()
}

/// The other node has committed the last publish that was sent to it.
fn answer(broker: &mut Broker, world: &mut World) {
    let Some(&NodeMessage::Publish { ask, .. }) = world.frames.last() else { panic!("{:?}", world.frames) };
    let (again, receivers) = (false, 1);
    let published = NodeMessage::Published { ask, again, position: position(1), receivers };
    broker.node_message(OTHER, published, at(1), world);
}

fn publish_of_other(broker: &mut Broker, world: &mut World, ask: u64, term: u64) {
    let record = Arc::new(Record::new(Namespace::Global, b"a", b"x", Box::default(), None));
    let message =
        NodeMessage::Publish { ask: AskId::new(ask, ShardId(0)), hub: HUB, term: Term(term), record };
    broker.node_message(OTHER, message, at(1), world);
}

#[test]
fn a_publish_waits_until_there_is_a_leader_and_is_sent_to_it() {
    let (mut broker, mut world) = relay(true);
    ends(&mut broker, &mut world, 2);
    broker.route(HUB, Term(3), Leader::None, at(0), &mut world);
    follow(&mut broker);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.route(HUB, Term(4), Leader::Node(OTHER), at(1), &mut world);
    answer(&mut broker, &mut world);
    let kinds = [StepKind::Received, StepKind::Waits, StepKind::SentToLeader(OTHER), StepKind::Acknowledged];
    assert_eq!(steps(&broker), [kinds]);
    assert!(matches!(world.answers[..], [Answer::Published(Ok(Published { receivers: 1, .. }))]));
}

#[test]
fn a_publish_whose_leader_dies_is_dropped_and_the_next_one_is_followed() {
    let (mut broker, mut world) = relay(false);
    subscribe(&mut broker, &mut world);
    world.answers.clear();
    follow(&mut broker);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.node_down(OTHER, 0, at(1), &mut world);
    assert!(
        matches!(world.answers[..], [Answer::Published(Err(ErrorCode::LinkLost))]),
        "{:?}",
        world.answers
    );
    assert!(steps(&broker).is_empty());
    lead(&mut broker, &mut world, 3, at(2));
    publish(&mut broker, &mut world);
    let kinds = &steps(&broker)[0];
    assert!(
        kinds.starts_with(&[StepKind::Received]) && kinds.ends_with(&[StepKind::Acknowledged]),
        "{kinds:?}"
    );
}

#[test]
fn a_publish_of_another_node_is_followed_where_it_is_committed() {
    let (mut broker, mut world) = relay(true);
    lead(&mut broker, &mut world, 3, at(0));
    follow(&mut broker);
    publish_of_other(&mut broker, &mut world, 77, 3);
    assert!(matches!(world.frames.last(), Some(NodeMessage::Published { .. })), "{:?}", world.frames);
    assert_eq!(steps(&broker), [[StepKind::FromNode(OTHER), StepKind::Committed(0), StepKind::Answered]]);
}

#[test]
fn a_record_of_the_leader_is_followed_where_it_is_delivered() {
    let (mut broker, mut world) = relay(false);
    subscribe(&mut broker, &mut world);
    follow(&mut broker);
    broker.node_message(OTHER, deliver(2, 5, 6), at(1), &mut world);
    assert_eq!(steps(&broker), [[StepKind::FromLeader(OTHER), StepKind::Delivered(1)]]);
}

#[test]
fn a_publish_that_waits_for_the_place_of_its_room_is_one_publish() {
    let places = Arc::new(Places::new([true].into_iter()));
    let (mut broker, mut world) = relay_of(1, true, &places);
    lead(&mut broker, &mut world, 3, at(0));
    follow(&mut broker);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.rooms_placed(0, &put(&places, b"a", 0), at(1), &mut world);
    let waited = [StepKind::Received, StepKind::Waits, StepKind::Committed(0), StepKind::Acknowledged];
    assert_eq!(steps(&broker), [&waited[..]]);
    publish(&mut broker, &mut world);
    let at_once = [StepKind::Received, StepKind::Committed(0), StepKind::Acknowledged];
    assert_eq!(steps(&broker), [&waited[..], &at_once], "the first one left nothing under its ticket");
}
