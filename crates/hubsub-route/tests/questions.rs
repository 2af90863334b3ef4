//! Requests about a room that another node leads, or that has no leader.

use crate::support::{NOW, Net, remembering, ticket};
use hubsub_message::LeadershipEnd;
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::{Answer, Ask, AskId, Leader, Namespace, NodeMessage, Now, Outcome, RowsAsk};
use hubsub_types::{Class, ErrorCode, HubId, NodeId, Position, ShardId, Term};

const HUB: HubId = HubId(7);
const OTHER: NodeId = NodeId(3);

fn at(ms: u64) -> Now {
    Now { mono_ms: NOW.mono_ms + ms, ..NOW }
}

/// Requests the subscribers of a topic and its room's last records.
fn ask(net: &mut Net) {
    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
    let count = broker.subscribers(ticket(0, 0, 1), Namespace::Global, b"a", NOW, world);
    assert!(matches!(count, Outcome::Later), "{count:?}");
    let query = HistoryQuery { room: b"a".to_vec(), count: 10, after: None, topic: None };
    let part = broker.history(&query, Ask { shard: ShardId(0), number: 1 }, NOW, world);
    assert!(matches!(part, Ok(None)), "{part:?}");
}

/// Takes the ids of the requests that were sent to the leader.
fn asked(net: &mut Net) -> Vec<AskId> {
    let frames = std::mem::take(&mut net.worlds[0].frames);
    let asks = frames.iter().map(|frame| match *frame {
        NodeMessage::CountAsk { ask, .. } | NodeMessage::Read { ask, .. } => ask,
        _ => AskId::NONE,
    });
    asks.filter(|&ask| ask != AskId::NONE).collect()
}

fn hear(net: &mut Net, message: NodeMessage, ms: u64) {
    net.brokers[0].node_message(OTHER, message, at(ms), &mut net.worlds[0]);
}

/// The leader reports that its first term has ended.
fn hear_over(net: &mut Net, ms: u64) {
    hear(net, NodeMessage::LeadershipEnded { hub: HUB, term: Term(1), end: LeadershipEnd::default() }, ms);
}

/// The leader responds to both requests.
fn answer(net: &mut Net, asks: &[AskId], ms: u64) {
    let &[count, history] = asks else { panic!("both are asked: {asks:?}") };
    hear(net, NodeMessage::Counted { ask: count, count: 5 }, ms);
    let oldest = Position::default();
    let (next, gap, at_end, is_gone) = (oldest.seq, None, true, false);
    hear(net, NodeMessage::RangeEnd { ask: history, oldest, next, gap, at_end, is_gone }, ms);
    let world = &mut net.worlds[0];
    assert!(matches!(world.answers[..], [(_, Answer::Counted(Ok(5)))]), "{:?}", world.answers);
    assert!(world.histories.remove(&1).is_some());
    assert!(!net.brokers[0].is_waiting());
}

#[test]
fn a_question_waits_until_its_leader_is_linked() {
    let mut net = Net::in_cluster(remembering(), HUB);
    net.act(0, |b, w| b.route(HUB, Term(1), Leader::Node(OTHER), NOW, w));
    ask(&mut net);
    assert!(net.brokers[0].is_waiting() && asked(&mut net).is_empty());
    net.act(0, |b, w| b.node_up(OTHER, 0, 1, at(4_999), w));
    let asks = asked(&mut net);
    answer(&mut net, &asks, 4_999);
}

#[test]
fn a_question_that_met_who_does_not_lead_is_asked_of_the_next_leader() {
    let mut net = Net::in_cluster(remembering(), HUB);
    net.act(0, |b, w| b.node_up(OTHER, 0, 1, NOW, w));
    net.act(0, |b, w| b.route(HUB, Term(1), Leader::Node(OTHER), NOW, w));
    ask(&mut net);
    for ask in asked(&mut net) {
        hear(&mut net, NodeMessage::NotMine { ask, hub: HUB, term: Term(2) }, 1);
    }
    assert!(net.worlds[0].answers.is_empty() && asked(&mut net).is_empty());
    net.act(0, |b, w| b.route(HUB, Term(2), Leader::Node(OTHER), at(2), w));
    hear_over(&mut net, 2);
    let asks = asked(&mut net);
    answer(&mut net, &asks, 2);
}

#[test]
fn a_question_whose_answer_is_lost_with_a_link_is_asked_of_the_next_leader() {
    let (mut net, next) = (Net::in_cluster(remembering(), HUB), NodeId(4));
    net.act(0, |b, w| b.node_up(next, 0, 1, NOW, w));
    net.act(0, |b, w| b.route(HUB, Term(1), Leader::Node(next), NOW, w));
    ask(&mut net);
    assert_eq!(asked(&mut net).len(), 2);
    net.act(0, |b, w| b.node_down(next, 0, at(1), w));
    assert!(net.worlds[0].answers.is_empty() && asked(&mut net).is_empty());
    net.act(0, |b, w| b.node_up(OTHER, 0, 1, at(1), w));
    net.act(0, |b, w| b.route(HUB, Term(2), Leader::Node(OTHER), at(2), w));
    let asks = asked(&mut net);
    answer(&mut net, &asks, 2);
}

#[test]
fn a_question_of_a_room_that_this_node_comes_to_lead_is_answered_here() {
    for was_led in [false, true] {
        let mut net = Net::in_cluster(remembering(), HUB);
        if was_led {
            net.act(0, |b, w| b.node_up(OTHER, 0, 1, NOW, w));
            net.act(0, |b, w| b.route(HUB, Term(1), Leader::Node(OTHER), NOW, w));
        }
        ask(&mut net);
        assert_eq!(asked(&mut net).len(), if was_led { 2 } else { 0 });
        net.brokers[0].route(HUB, Term(2), Leader::Me, at(1), &mut net.worlds[0]);
        if was_led {
            hear_over(&mut net, 1);
        }
        let world = &net.worlds[0];
        assert!(matches!(world.answers[..], [(_, Answer::Counted(Ok(0)))]), "{:?}", world.answers);
        assert!(world.histories.contains_key(&1));
    }
}

#[test]
fn a_question_for_rows_of_a_hub_that_this_node_comes_to_lead_is_answered_here_or_refused_at_once() {
    for was_led in [false, true] {
        let mut net = Net::in_cluster(Class { keeps_latest: true, ..Class::named("$system") }, HUB);
        if was_led {
            net.act(0, |b, w| b.node_up(OTHER, 0, 1, NOW, w));
            net.act(0, |b, w| b.route(HUB, Term(1), Leader::Node(OTHER), NOW, w));
        }
        let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
        let class = broker.rows_class().unwrap();
        let ask = RowsAsk {
            ticket: ticket(0, 0, 1),
            class,
            hub: 0,
            filter: b"#"[..].into(),
            after: None,
            bytes_max: 1,
        };
        let asked = broker.rows(ask.clone(), NOW, world);
        if !was_led {
            // Reads of other hubs must not be delayed for it.
            assert!(matches!(asked, Outcome::Now(Err(ErrorCode::HubClosed))));
            broker.route(HUB, Term(2), Leader::Me, at(1), world);
            assert!(matches!(broker.rows(ask, NOW, world), Outcome::Now(Ok(page)) if page.is_last));
            continue;
        }
        assert!(matches!(asked, Outcome::Later));
        broker.route(HUB, Term(2), Leader::Me, at(1), world);
        hear_over(&mut net, 1);
        let answers = &net.worlds[0].answers;
        assert!(matches!(&answers[..], [(_, Answer::Rows(Ok(page)))] if page.is_last), "{answers:?}");
    }
}

#[test]
fn who_reads_rows_knows_whether_their_leader_is_reached() {
    let mut net = Net::in_cluster(Class { keeps_latest: true, ..Class::named("$system") }, HUB);
    let is_away = |net: &Net| {
        let broker = &net.brokers[0];
        let is_away = broker.row_hub_is_away(0);
        assert_eq!((broker.rows_are_away(b"#"), broker.rows_are_away(b"a")), (is_away, is_away));
        is_away
    };
    net.act(0, |b, w| b.route(HUB, Term(1), Leader::Node(OTHER), NOW, w));
    assert!(is_away(&net));
    assert!(net.brokers[0].tells_rows_are_away() && !net.brokers[0].tells_rows_are_away(), "once");
    net.act(0, |b, w| b.node_up(OTHER, 0, 1, NOW, w));
    assert!(!is_away(&net));
    // The asker repeats a request that got no response.
    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
    let class = broker.rows_class().unwrap();
    let (filter, after) = (b"#"[..].into(), None);
    let ask = RowsAsk { ticket: ticket(0, 0, 1), class, hub: 0, filter, after, bytes_max: 1 };
    assert!(matches!(broker.rows(ask, NOW, world), Outcome::Later));
    broker.node_down(OTHER, 0, at(1), world);
    let answers = &net.worlds[0].answers;
    assert!(matches!(&answers[..], [(_, Answer::Rows(Err(ErrorCode::HubClosed)))]), "{answers:?}");
    assert!(is_away(&net));
    assert!(net.brokers[0].tells_rows_are_away(), "and again");
    net.act(0, |b, w| b.route(HUB, Term(2), Leader::Me, at(2), w));
    assert!(!is_away(&net));
}

#[test]
fn a_question_that_finds_no_leader_in_its_time_is_refused() {
    let mut net = Net::in_cluster(remembering(), HUB);
    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
    let count = broker.subscribers(ticket(0, 0, 1), Namespace::Global, b"a", NOW, world);
    assert!(matches!(count, Outcome::Later));
    broker.commit_due(at(4_999), world);
    assert!(world.answers.is_empty());
    assert_eq!(broker.next_due_ms(), Some(at(5_000).mono_ms));
    broker.commit_due(at(5_000), world);
    assert!(matches!(world.answers[..], [(_, Answer::Counted(Err(ErrorCode::HubClosed)))]));
}
