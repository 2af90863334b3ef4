//! Traces: bounds, binding of positions to tickets, and the steps of brokers.

use crate::support::*;
use hubsub_route::traces::{KEPT_MS, RECORDS_MAX, STEPS_MAX, Step, StepKind, TooManyTraces, Traced, Traces};
use hubsub_route::{Namespace, Now, Start};
use hubsub_types::{Epoch, Position, Seq, ShardId};

const A: (Namespace, &[u8]) = (Namespace::Global, b"a");

fn at(ms: u64) -> Now {
    Now { mono_ms: NOW.mono_ms + ms, ..NOW }
}

fn position(seq: u64) -> Position {
    Position { epoch: Epoch(1), seq: Seq(seq) }
}

fn step(at_us: u64, kind: StepKind) -> Step {
    Step { at_us, kind }
}

/// Starts a trace of `a` for 1 s, and opens it for publishes.
fn start(traces: &mut Traces, number: u64, records: usize) {
    for _ in 0..2 {
        traces.start(number, A, (records, 1_000), 8, NOW).unwrap();
    }
}

/// A machine that follows two records of `a` for 1 s.
fn traces() -> Traces {
    let mut traces = Traces::default();
    start(&mut traces, 1, 2);
    traces
}

fn kinds(traced: &Traced) -> Vec<StepKind> {
    traced.steps.iter().map(|step| step.kind).collect()
}

#[test]
fn the_table_takes_as_many_traces_as_the_limit_and_no_more() {
    let mut traces = Traces::default();
    assert!(!traces.is_on());
    for number in 0..8 {
        assert_eq!(traces.start(number, A, (1, 1_000), 8, NOW), Ok(()));
    }
    assert_eq!(traces.start(8, A, (1, 1_000), 8, NOW), Err(TooManyTraces));
    assert_eq!(traces.start(7, A, (1, 1_000), 8, NOW), Ok(()), "it opens the one of its number");
    assert!(traces.end(3) && !traces.end(3));
    assert_eq!(traces.start(8, A, (1, 1_000), 8, NOW), Ok(()));
    assert_eq!(Traces::default().start(1, A, (1, 1), 0, NOW), Err(TooManyTraces));
}

#[test]
fn an_answer_binds_the_position_to_the_oldest_publish_with_its_ticket() {
    let (mut traces, same) = (traces(), ticket(0, 0, 7));
    assert!(traces.begin(A, same, step(10, StepKind::Received)));
    assert!(traces.begin(A, same, step(20, StepKind::Received)));
    traces.step(same, step(21, StepKind::Waits));
    assert!(traces.steps(1).is_empty(), "a step without a position is not shown");
    traces.bind(same, Some(position(1)), step(30, StepKind::Acknowledged));
    traces.bind(same, Some(position(2)), step(40, StepKind::Acknowledged));
    traces.bind(same, Some(position(3)), step(50, StepKind::Acknowledged));
    let [first, second] = traces.steps(1) else { panic!("two: {:?}", traces.steps(1)) };
    assert_eq!(
        (first.position, kinds(first)),
        (position(1), vec![StepKind::Received, StepKind::Acknowledged])
    );
    let waited = vec![StepKind::Received, StepKind::Waits, StepKind::Acknowledged];
    assert_eq!((second.position, kinds(second)), (position(2), waited));
}

#[test]
fn steps_before_and_after_the_position_is_known_are_in_order_of_time() {
    let (mut traces, publish) = (traces(), ticket(0, 0, 1));
    traces.begin(A, publish, step(10, StepKind::Received));
    traces.step_at(A, position(1), step(20, StepKind::Committed(1)));
    traces.bind(publish, Some(position(1)), step(30, StepKind::Acknowledged));
    let kinds_of = [StepKind::Received, StepKind::Committed(1), StepKind::Acknowledged];
    assert_eq!(kinds(&traces.steps(1)[0]), kinds_of);
}

#[test]
fn a_trace_takes_as_many_records_and_steps_as_it_may_and_no_more() {
    let mut traces = traces();
    for slot in 0..3 {
        let is_followed = traces.begin(A, ticket(0, 0, slot), step(1, StepKind::Received));
        assert_eq!(is_followed, slot < 2);
    }
    for seq in 1..=3 {
        for _ in 0..=STEPS_MAX {
            traces.step_at(A, position(seq), step(1, StepKind::Delivered(1)));
        }
    }
    let seqs: Vec<(Seq, usize)> =
        traces.steps(1).iter().map(|traced| (traced.position.seq, traced.steps.len())).collect();
    assert_eq!(seqs, [(Seq(1), STEPS_MAX), (Seq(2), STEPS_MAX)]);
    traces.start(2, A, (RECORDS_MAX + 1, 1_000), 8, NOW).unwrap();
    for seq in 1..=RECORDS_MAX as u64 + 1 {
        traces.step_at(A, position(seq), step(1, StepKind::Synced));
    }
    assert_eq!(traces.steps(2).len(), RECORDS_MAX);
}

#[test]
fn publishes_of_clients_are_followed_from_the_second_start_on() {
    let (mut traces, publish) = (Traces::default(), ticket(0, 0, 1));
    traces.start(1, A, (2, 1_000), 8, NOW).unwrap();
    assert!(!traces.begin(A, publish, step(1, StepKind::Received)));
    assert!(traces.begin(A, publish, step(1, StepKind::FromShard(ShardId(1)))));
    traces.start(1, A, (2, 1_000), 8, NOW).unwrap();
    assert!(traces.begin(A, publish, step(2, StepKind::Received)));
}

#[test]
fn only_its_topic_and_namespace_and_records_with_a_position_are_followed() {
    let (mut traces, publish) = (traces(), ticket(0, 0, 1));
    let (b, sharded) = ((Namespace::Global, &b"b"[..]), (Namespace::Shard, &b"a"[..]));
    assert!(!traces.begin(b, publish, step(1, StepKind::Received)));
    assert!(!traces.begin(sharded, publish, step(1, StepKind::Received)));
    traces.step_at(b, position(1), step(1, StepKind::Synced));
    traces.step_at(A, Position::default(), step(1, StepKind::Synced));
    for refused in [None, Some(Position::default())] {
        traces.begin(A, publish, step(1, StepKind::Received));
        traces.bind(publish, refused, step(2, StepKind::Acknowledged));
    }
    assert!(traces.steps(1).is_empty());
}

#[test]
fn after_its_deadline_a_trace_takes_no_record_and_later_it_is_removed() {
    let (mut traces, publish) = (traces(), ticket(0, 0, 1));
    traces.begin(A, publish, step(1, StepKind::Received));
    traces.step_at(A, position(1), step(1, StepKind::Committed(1)));
    traces.expire(at(999));
    traces.expire(at(1_000));
    assert!(!traces.begin(A, publish, step(1, StepKind::Received)));
    traces.step_at(A, position(2), step(1, StepKind::Committed(1)));
    traces.bind(publish, Some(position(1)), step(1, StepKind::Acknowledged));
    assert_eq!(traces.steps(1).iter().map(kinds).collect::<Vec<_>>(), [[StepKind::Committed(1)]]);
    traces.expire(at(1_000 + KEPT_MS - 1));
    assert!(traces.is_on());
    traces.expire(at(1_000 + KEPT_MS));
    assert!(!traces.is_on() && traces.steps(1).is_empty());
}

#[test]
fn nothing_is_kept_after_the_end() {
    let (mut traces, publish) = (traces(), ticket(0, 0, 1));
    traces.begin(A, publish, step(1, StepKind::Received));
    assert!(traces.end(1) && !traces.is_on());
    traces.bind(publish, Some(position(1)), step(2, StepKind::Acknowledged));
    assert!(traces.steps(1).is_empty());
    start(&mut traces, 1, 2);
    traces.bind(publish, Some(position(1)), step(2, StepKind::Acknowledged));
    assert!(traces.steps(1).is_empty(), "the publish of the earlier trace is forgotten");
}

/// Starts trace 1 of `a` on every shard.
fn follow(net: &mut Net) {
    for broker in &mut net.brokers {
        start(&mut broker.traces, 1, 10);
    }
}

/// The kinds of steps of the only record, by shard.
fn steps_of(net: &Net) -> Vec<Vec<StepKind>> {
    let of = |broker: &hubsub_route::Broker| broker.traces.steps(1).iter().flat_map(kinds).collect();
    net.brokers.iter().map(of).collect()
}

#[test]
fn a_publish_on_its_home_shard_has_the_steps_of_that_shard() {
    let mut net = Net::new(1, 1, remembering());
    net.subscribe(0, 0, "a", Start::Live);
    follow(&mut net);
    net.publish(0, "b");
    net.publish(0, "a");
    let steps = [StepKind::Received, StepKind::Committed(1), StepKind::Delivered(1), StepKind::Acknowledged];
    assert_eq!(steps_of(&net), [steps]);
}

#[test]
fn a_publish_through_another_shard_has_steps_on_both_and_at_the_subscriber() {
    let mut net = Net::new(3, 1, remembering());
    let home =
        (0..3).find(|&shard| net.brokers[usize::from(shard)].home_of(b"a") == Ok(Some(ShardId(shard))));
    let home = home.expect("one shard is the home");
    let (edge, reader) = ((home + 1) % 3, (home + 2) % 3);
    net.subscribe(reader, 0, "a", Start::Live);
    net.settle();
    follow(&mut net);
    net.publish(edge, "a");
    net.settle();
    let steps = steps_of(&net);
    let sent = vec![StepKind::Received, StepKind::SentToShard(ShardId(home)), StepKind::Acknowledged];
    assert_eq!(steps[usize::from(edge)], sent);
    let led = vec![StepKind::FromShard(ShardId(edge)), StepKind::Committed(1), StepKind::Answered];
    assert_eq!(steps[usize::from(home)], led);
    assert_eq!(steps[usize::from(reader)], [StepKind::Delivered(1)]);
}

#[test]
fn a_durable_record_is_logged_synced_and_committed_in_this_order() {
    let mut net = Net::new(1, 1, durable());
    net.subscribe(0, 0, "a", Start::Live);
    follow(&mut net);
    net.publish(0, "a");
    assert_eq!(steps_of(&net), [[StepKind::Logged(1)]], "its publisher waits");
    assert!(net.log(0, 1));
    let steps = [
        StepKind::Received,
        StepKind::Logged(1),
        StepKind::Synced,
        StepKind::Committed(1),
        StepKind::Delivered(1),
        StepKind::Acknowledged,
    ];
    assert_eq!(steps_of(&net), [steps]);
}
