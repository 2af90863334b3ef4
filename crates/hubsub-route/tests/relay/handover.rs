//! A hub's lead passes from one node to another.

use super::*;
use hubsub_route::relay::limits::REGISTER_MS;

/// Of the records that went to the other node, their numbers of receivers as publishers were told.
fn receivers(world: &World) -> Vec<u64> {
    let told = world.answers.iter().filter_map(|answer| match answer {
        Answer::Published(Ok(published)) => Some(published.receivers),
        _ => None,
    });
    told.collect()
}

fn tell_interest(broker: &mut Broker, world: &mut World, count: u32) {
    let names = Names { namespace: Namespace::Global, room: (*b"a").into(), topic: (*b"a").into() };
    let (ask, known, start) = (AskId::new(7, ShardId(0)), Position::default(), Start::Live);
    let interest = NodeMessage::Interest { ask, hub: HUB, term: Term(3), names, count, known, start };
    broker.node_message(OTHER, interest, at(1), world);
}

#[test]
fn a_new_leader_commits_nothing_before_the_nodes_that_it_reaches_have_told_their_interest() {
    let (mut broker, mut world) = relay(false);
    hold_pattern(&mut broker, &mut world, 1);
    broker.route(HUB, Term(3), Leader::Me, at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    tell_interest(&mut broker, &mut world, 4);
    broker.retry_stalled(at(1), &mut world);
    assert!(world.answers.is_empty(), "others may be on their way");
    register(&mut broker, &mut world, 2, at(2));
    assert!(world.answers.is_empty(), "that was another leader");
    register(&mut broker, &mut world, 3, at(2));
    assert_eq!((receivers(&world), delivered(&world)), (vec![5], vec![(0, 1)]), "and one by its pattern");
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))), "it waits once");
}

#[test]
fn what_waits_for_interest_is_committed_in_its_order_when_its_time_is_over_or_the_node_has_gone() {
    for has_gone in [false, true] {
        let (mut broker, mut world) = relay(false);
        broker.route(HUB, Term(3), Leader::Me, at(0), &mut world);
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
        assert!(
            matches!(publish(&mut broker, &mut world), Outcome::Now(Err(ErrorCode::LinkFull))),
            "as others"
        );
        broker.commit_due(at(REGISTER_MS - 1), &mut world);
        assert!(world.answers.is_empty());
        if has_gone {
            broker.node_down(OTHER, 0, at(REGISTER_MS - 1), &mut world);
        } else {
            assert_eq!(broker.next_due_ms(), Some(REGISTER_MS));
            broker.commit_due(at(REGISTER_MS), &mut world);
        }
        assert_eq!(receivers(&world), [0, 0], "{:?}", world.answers);
    }
}

#[test]
fn a_node_whose_patterns_are_not_held_is_waited_for() {
    let (mut broker, mut world) = relay(false);
    broker.route(HUB, Term(3), Leader::Me, at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    register(&mut broker, &mut world, 3, at(1));
    assert!(world.answers.is_empty());
    hold_pattern(&mut broker, &mut world, 1);
    broker.retry_stalled(at(1), &mut world);
    assert_eq!((receivers(&world), delivered(&world)), (vec![1], vec![(0, 0)]));
}
