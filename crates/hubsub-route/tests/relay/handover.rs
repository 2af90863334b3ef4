//! The leadership of a hub moves from one node to another.

use super::*;
use hubsub_route::relay::limits::{FORMER_MS, OVER_MS, REGISTER_MS};

/// Numbers of receivers in the answers to publishers, for the records sent to the other node.
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
    ends(&mut broker, &mut world, 2);
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
        ends(&mut broker, &mut world, 2);
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
    ends(&mut broker, &mut world, 2);
    broker.route(HUB, Term(3), Leader::Me, at(0), &mut world);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    register(&mut broker, &mut world, 3, at(1));
    assert!(world.answers.is_empty());
    hold_pattern(&mut broker, &mut world, 1);
    broker.retry_stalled(at(1), &mut world);
    assert_eq!((receivers(&world), delivered(&world)), (vec![1], vec![(0, 0)]));
}

/// A subscriber and a pattern follow the hub that the other node leads, and one record has arrived.
fn followed() -> (Broker, World) {
    followed_with(false)
}

/// As `followed`, in a class with or without history.
fn followed_with(history: bool) -> (Broker, World) {
    let (mut broker, mut world) = relay(history);
    let live = NodeMessage::PatternsLive { hub: HUB, term: Term(2), epoch: Epoch(70), expected: 0 };
    broker.node_message(OTHER, live, at(0), &mut world);
    subscribe(&mut broker, &mut world);
    let outcome = broker.subscribe_pattern(ticket(), KEY, b"a*", &mut world);
    assert!(matches!(outcome, Outcome::Later), "{outcome:?}");
    broker.node_message(OTHER, NodeMessage::PatternsHeld { version: 1 }, at(0), &mut world);
    broker.node_message(OTHER, deliver(2, 5, 6), at(0), &mut world);
    (broker, world)
}

fn over(expected: u64) -> LeadershipEnd {
    LeadershipEnd { epoch: Epoch(70), expected, committed: 7 }
}

/// The other node is the next leader too, in a new epoch.
fn goes_on(broker: &mut Broker, world: &mut World, term: u64) {
    broker.route(HUB, Term(term), Leader::Node(OTHER), at(2), world);
    let (ask, asked_term, _) = asked(world);
    assert_eq!(asked_term, Term(term), "it is asked in the next term");
    let live = NodeMessage::PatternsLive { hub: HUB, term: Term(term), epoch: Epoch(71), expected: 0 };
    broker.node_message(OTHER, live, at(2), world);
    let next = Position { epoch: Epoch(10), seq: Seq(0) };
    let attached = Attached { position: next, replay_from: None, recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(2), world);
}

#[test]
fn a_hole_is_read_where_a_room_continues_after_a_lead_of_which_all_was_received() {
    let (mut broker, mut world) = followed_with(true);
    say_over(&mut broker, &mut world, 2, over(1));
    broker.route(HUB, Term(3), Leader::Node(OTHER), at(2), &mut world);
    let (ask, ..) = asked(&world);
    let attached = Attached { position: position(6), replay_from: None, recovered: true };
    broker.node_message(OTHER, NodeMessage::Attached { ask, attached }, at(2), &mut world);
    // The record between was lost.
    broker.node_message(OTHER, deliver(3, 7, 8), at(2), &mut world);
    assert_eq!(world.got, [Seq(6); 2], "by topic and by pattern");
    let last = world.frames.last();
    assert!(
        matches!(last, Some(NodeMessage::Read { start, .. }) if *start == Start::After(position(6))),
        "{last:?}"
    );
}

#[test]
fn who_got_all_of_a_lead_that_is_over_is_told_no_gap() {
    let (mut broker, mut world) = followed();
    say_over(&mut broker, &mut world, 2, over(1));
    goes_on(&mut broker, &mut world, 3);
    assert_eq!(world.gaps, [], "neither of the room nor of the pattern");
}

#[test]
fn who_lacks_a_record_of_a_lead_or_a_lead_is_told_the_gaps() {
    let lost = (position(7), position(0));
    let lack = (Position::default(), Position::default());
    for (due, term) in [(2, 3), (1, 4)] {
        let (mut broker, mut world) = followed();
        say_over(&mut broker, &mut world, 2, over(due));
        goes_on(&mut broker, &mut world, term);
        assert!(world.gaps.contains(&lost) && world.gaps.contains(&lack), "{:?}", world.gaps);
    }
}

#[test]
fn the_last_records_of_a_lead_are_handed_on_before_the_next_route() {
    let (mut broker, mut world) = followed();
    broker.route(HUB, Term(3), Leader::Me, at(1), &mut world);
    broker.node_message(OTHER, deliver(2, 6, 7), at(1), &mut world);
    assert_eq!((world.got.last(), broker.leads(HUB)), (Some(&Seq(7)), None));
    say_over(&mut broker, &mut world, 2, over(2));
    assert_eq!((&world.gaps[..], broker.leads(HUB)), (&[][..], Some(Term(3))));
}

#[test]
fn a_route_waits_for_the_word_of_a_leader_that_is_reached_and_not_for_longer_than_its_time() {
    for has_gone in [false, true] {
        let (mut broker, mut world) = followed();
        broker.route(HUB, Term(3), Leader::Me, at(1), &mut world);
        broker.commit_due(at(OVER_MS), &mut world);
        assert_eq!(broker.leads(HUB), None);
        if has_gone {
            broker.node_down(OTHER, 0, at(OVER_MS), &mut world);
        } else {
            broker.commit_due(at(OVER_MS + 1), &mut world);
        }
        assert_eq!(broker.leads(HUB), Some(Term(3)));
        assert!(world.gaps.contains(&(position(7), position(0))), "{:?}", world.gaps);
    }
}

/// The messages about ended leadership: term, records due to the other node, and all records.
fn said_over(world: &World) -> Vec<(u64, u64, u64)> {
    let said = world.frames.iter().filter_map(|frame| match frame {
        NodeMessage::LeadershipEnded { term, end, .. } => Some((term.0, end.expected, end.committed)),
        _ => None,
    });
    said.collect()
}

#[test]
fn a_leader_says_once_that_its_lead_is_over_behind_its_last_record() {
    let (mut broker, mut world) = followed_by_pattern();
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    world.has_no_lead = true;
    broker.gave_up(HUB, Term(2), &mut world);
    assert_eq!(said_over(&world), [], "that term is over long since");
    broker.gave_up(HUB, Term(3), &mut world);
    assert_eq!(said_over(&world), [(3, 1, 1)]);
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
    broker.route(HUB, Term(4), Leader::Node(OTHER), at(2), &mut world);
    assert_eq!((said_over(&world), &world.gaps[..]), (vec![(3, 1, 1)], &[][..]));
    let last = world.frames.iter().rposition(|frame| matches!(frame, NodeMessage::Deliver { .. }));
    let over = world.frames.iter().position(|frame| matches!(frame, NodeMessage::LeadershipEnded { .. }));
    assert!(last < over);
}

#[test]
fn a_leader_that_leads_again_in_a_term_that_it_gave_up_begins_other_lives() {
    let (mut broker, mut world) = followed_by_pattern();
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.took_up(HUB, Term(3), at(1), &mut world);
    assert_eq!((&said_due(&world)[..], &world.gaps[..]), (&[][..], &[][..]), "it led all the time");
    broker.gave_up(HUB, Term(3), &mut world);
    broker.took_up(HUB, Term(3), at(1), &mut world);
    assert_eq!((said_due(&world), world.gaps.len()), (vec![1], 1));
    assert!(matches!(publish(&mut broker, &mut world), Outcome::Now(Ok(_))));
    broker.gave_up(HUB, Term(3), &mut world);
    assert_eq!(said_over(&world), [(3, 1, 1), (3, 2, 2)], "of each life");
}

/// A publish queued after one in flight proceeds when that one is answered.
#[test]
fn a_publish_in_flight_to_a_silent_leader_is_answered_when_its_successor_is_known() {
    for is_silent in [true, false] {
        let (mut broker, mut world) = relay(false);
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
        world.is_silent = is_silent;
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
        let third = NodeId(2);
        broker.node_up(third, 0, 1, at(0), &mut world);
        broker.route(HUB, Term(3), Leader::Node(third), at(1_000), &mut world);
        let lost = |world: &World| {
            let is_lost = |answer: &&Answer| matches!(answer, Answer::Published(Err(ErrorCode::LinkLost)));
            world.answers.iter().filter(is_lost).count()
        };
        assert_eq!(lost(&world), if is_silent { 2 } else { 0 }, "{:?}", world.answers);
        if !is_silent {
            // A leader that is heard may still answer.
            broker.commit_due(at(1_000 + OVER_MS), &mut world);
            broker.commit_due(at(1_000 + OVER_MS + FORMER_MS - 1), &mut world);
            assert_eq!(lost(&world), 0);
            broker.commit_due(at(1_000 + OVER_MS + FORMER_MS), &mut world);
            assert_eq!(lost(&world), 2);
        }
        world.frames.clear();
        assert!(matches!(publish(&mut broker, &mut world), Outcome::Later));
        assert!(
            matches!(world.frames[..], [NodeMessage::Publish { term: Term(3), .. }]),
            "{:?}",
            world.frames
        );
    }
}
