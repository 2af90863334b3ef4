//! Traces: bounds, binding of positions to tickets, and the steps of brokers.

use crate::support::*;
use hubsub_route::traces::{
    Bounds, KEPT_MS, OPEN_MAX, RECORDS_MAX, STEPS_MAX, Step, StepKind, TooManyTraces, Traced, Traces, Window,
};
use hubsub_route::{Ask, Broker, Namespace, Now, Start};
use hubsub_types::{Class, Epoch, ErrorCode, Limits, Position, Seq, ShardId};

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

/// Every record, for 1 s.
fn bounds(records: usize) -> Bounds {
    Bounds { records, ms: 1_000, every: 1 }
}

/// Starts a trace of `a` for 1 s, and opens it for publishes.
fn start(traces: &mut Traces, number: u64, records: usize) {
    for _ in 0..2 {
        traces.start(number, A, bounds(records), 8, NOW).unwrap();
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
        assert_eq!(traces.start(number, A, bounds(1), 8, NOW), Ok(()));
    }
    assert_eq!(traces.start(8, A, bounds(1), 8, NOW), Err(TooManyTraces));
    assert_eq!(traces.start(7, A, bounds(1), 8, NOW), Ok(()), "it opens the one of its number");
    assert!(traces.end(3) && !traces.end(3));
    assert_eq!(traces.start(8, A, bounds(1), 8, NOW), Ok(()));
    assert_eq!(Traces::default().start(1, A, bounds(1), 0, NOW), Err(TooManyTraces));
}

#[test]
fn a_trace_that_nobody_collected_makes_room_once_its_time_is_over() {
    let mut traces = traces();
    let other = |traces: &mut Traces, ms| traces.start(2, A, bounds(1), 1, at(ms));
    assert_eq!(other(&mut traces, 999), Err(TooManyTraces));
    assert_eq!(other(&mut traces, 1_000), Ok(()));
    assert!(!traces.end(1) && traces.end(2));
}

#[test]
fn an_answer_binds_the_position_to_the_publish_with_its_ticket() {
    let (mut traces, [first, second]) = (traces(), [7, 8].map(|slot| ticket(0, 0, slot)));
    assert!(traces.begin(A, first, step(10, StepKind::Received)));
    assert!(traces.begin(A, second, step(20, StepKind::Received)));
    traces.step(second, step(21, StepKind::Waits));
    assert!(traces.steps(1).is_empty(), "a step without a position is not shown");
    traces.bind(second, Some(position(1)), step(30, StepKind::Acknowledged));
    traces.bind(first, Some(position(2)), step(40, StepKind::Acknowledged));
    traces.bind(first, Some(position(3)), step(50, StepKind::Acknowledged));
    let [earlier, later] = traces.steps(1) else { panic!("two: {:?}", traces.steps(1)) };
    let waited = vec![StepKind::Received, StepKind::Waits, StepKind::Acknowledged];
    assert_eq!((earlier.position, kinds(earlier)), (position(1), waited));
    let not = vec![StepKind::Received, StepKind::Acknowledged];
    assert_eq!((later.position, kinds(later)), (position(2), not));
}

#[test]
fn a_publish_that_arrives_again_is_followed_once() {
    let (mut traces, publish) = (traces(), ticket(1, 0, 1));
    for at_us in [10, 20] {
        assert!(traces.begin(A, publish, step(at_us, StepKind::FromShard(ShardId(1)))));
    }
    traces.bind(publish, Some(position(1)), step(30, StepKind::Answered));
    traces.bind(publish, Some(position(2)), step(40, StepKind::Answered));
    let arrivals = [StepKind::FromShard(ShardId(1)); 2];
    assert_eq!(kinds(&traces.steps(1)[0]), [&arrivals[..], &[StepKind::Answered]].concat());
    assert_eq!(traces.steps(1).len(), 1);
}

#[test]
fn steps_before_and_after_the_position_is_known_are_in_order_of_time() {
    let (mut traces, publish) = (traces(), ticket(0, 0, 1));
    for (seq, times) in [(1, [10, 20, 30]), (2, [40, 40, 40])] {
        traces.begin(A, publish, step(times[0], StepKind::Received));
        traces.step_at(A, position(seq), step(times[1], StepKind::Committed(1)));
        traces.bind(publish, Some(position(seq)), step(times[2], StepKind::Acknowledged));
    }
    let in_order = vec![StepKind::Received, StepKind::Committed(1), StepKind::Acknowledged];
    assert_eq!(traces.steps(1).iter().map(kinds).collect::<Vec<_>>(), [in_order.clone(), in_order]);
}

#[test]
fn a_trace_takes_as_many_records_and_steps_as_it_may_and_no_more() {
    for (records, taken) in [(1, 1), (2, 2), (3, 3), (4, 3)] {
        let mut traces = Traces::default();
        start(&mut traces, 1, records);
        for seq in 1..=3 {
            for _ in 0..=STEPS_MAX {
                traces.step_at(A, position(seq), step(1, StepKind::Delivered(1)));
            }
        }
        let seqs: Vec<(u64, usize)> =
            traces.steps(1).iter().map(|traced| (traced.position.seq.0, traced.steps.len())).collect();
        let wanted: Vec<(u64, usize)> = (1..=taken).map(|seq| (seq, STEPS_MAX)).collect();
        assert_eq!(seqs, wanted);
    }
    for (records, taken) in [(-1, -1), (0, 0), (1, 0)] {
        let of = |delta: isize| RECORDS_MAX.saturating_add_signed(delta);
        let mut traces = Traces::default();
        start(&mut traces, 1, of(records));
        for seq in 1..=RECORDS_MAX as u64 + 2 {
            traces.step_at(A, position(seq), step(1, StepKind::Synced));
        }
        assert_eq!(traces.steps(1).len(), of(taken));
    }
}

#[test]
fn until_it_is_open_a_trace_retains_the_last_records_and_then_takes_as_many_more() {
    let mut traces = Traces::default();
    traces.start(1, A, bounds(2), 8, NOW).unwrap();
    let seqs = |traces: &Traces| traces.steps(1).iter().map(|it| it.position.seq.0).collect::<Vec<_>>();
    (1..=5).for_each(|seq| traces.step_at(A, position(seq), step(1, StepKind::Synced)));
    assert_eq!(seqs(&traces), [4, 5]);
    let open = Window { after: Some((1, 3)), ..Window::default() };
    assert_eq!(traces.window(1), open);
    traces.start(1, A, bounds(2), 8, NOW).unwrap();
    assert_eq!(traces.window(1), open);
    assert!(traces.begin(A, ticket(0, 0, 1), step(1, StepKind::Received)));
    (6..=9).for_each(|seq| traces.step_at(A, position(seq), step(1, StepKind::Synced)));
    assert_eq!(seqs(&traces), [4, 5, 6, 7]);
    let until = Window { until: Some((1, 7)), ..open };
    assert_eq!(traces.window(1), until, "a publish has no answer yet");
    traces.bind(ticket(0, 0, 1), Some(position(6)), step(2, StepKind::Acknowledged));
    assert_eq!(traces.window(1), Window { is_full: true, ..until });
    assert_eq!(traces.window(2), Window::default());
    traces.start(1, A, bounds(2), 8, NOW).unwrap();
    assert!(!traces.begin(A, ticket(0, 0, 2), step(1, StepKind::Received)), "it is opened once");
    traces.expire(at(1_000));
    assert_eq!(traces.window(1), open, "after its deadline it has all there are");
}

#[test]
fn publishes_without_a_position_are_followed_up_to_a_limit_and_refused_ones_make_room() {
    let (mut traces, of) = (traces(), |slot: usize| ticket(0, 0, slot as u32));
    for slot in 0..OPEN_MAX {
        assert!(traces.begin(A, of(slot), step(1, StepKind::Received)));
    }
    assert!(!traces.begin(A, of(OPEN_MAX), step(1, StepKind::Received)));
    traces.bind(of(3), None, step(2, StepKind::Acknowledged));
    assert!(traces.begin(A, of(OPEN_MAX), step(3, StepKind::Received)));
    assert!(!traces.begin(A, of(OPEN_MAX + 1), step(4, StepKind::Received)));
    traces.bind(of(OPEN_MAX), Some(position(1)), step(5, StepKind::Acknowledged));
    assert_eq!(traces.steps(1).iter().map(|traced| traced.position).collect::<Vec<_>>(), [position(1)]);
}

#[test]
fn any_number_of_refused_publishes_leaves_place_for_records() {
    let mut traces = traces();
    for slot in 0..10 * OPEN_MAX as u32 {
        assert!(traces.begin(A, ticket(0, 0, slot), step(1, StepKind::Received)));
        traces.bind(ticket(0, 0, slot), None, step(2, StepKind::Acknowledged));
    }
    traces.begin(A, ticket(0, 0, 0), step(3, StepKind::Received));
    traces.bind(ticket(0, 0, 0), Some(position(1)), step(4, StepKind::Acknowledged));
    assert_eq!(traces.steps(1).len(), 1);
}

#[test]
fn all_shards_follow_the_same_sample_of_positions_whatever_their_stride() {
    for stride in [1, 2, 16, 1 << 20] {
        let mut traces: [Traces; 2] = Default::default();
        for (traces, first) in traces.iter_mut().zip([0, 500]) {
            let every = Bounds { every: 16, ..bounds(RECORDS_MAX) };
            traces.start(1, A, every, 8, NOW).unwrap();
            for seq in first..1_000 {
                traces.step_at(A, position(1 + seq * stride), step(1, StepKind::Synced));
            }
        }
        let of = |traces: &Traces| traces.steps(1).iter().map(|traced| traced.position).collect::<Vec<_>>();
        let [all, late] = traces.each_ref().map(of);
        assert!((30..=120).contains(&all.len()), "about 62 of a thousand: {} at {stride}", all.len());
        assert!(all.ends_with(&late) && late.len() > 10, "{} of {}", late.len(), all.len());
    }
}

#[test]
fn publishes_of_clients_are_followed_from_the_second_start_on() {
    let (mut traces, publish) = (Traces::default(), ticket(0, 0, 1));
    traces.start(1, A, bounds(2), 8, NOW).unwrap();
    assert!(!traces.begin(A, publish, step(1, StepKind::Received)));
    assert!(traces.begin(A, publish, step(1, StepKind::FromShard(ShardId(1)))));
    traces.start(1, A, bounds(2), 8, NOW).unwrap();
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

#[test]
fn a_publish_that_a_congested_shard_blocks_waits() {
    let mut net = Net::new(2, 1, remembering());
    let home =
        (0..2).find(|&shard| net.brokers[usize::from(shard)].home_of(b"a") == Ok(Some(ShardId(shard))));
    let home = home.expect("one shard is the home");
    net.subscribe(1 - home, 0, "a", Start::Live);
    net.settle();
    follow(&mut net);
    net.worlds[usize::from(home)].congested.insert(1 - home);
    net.publish(home, "a");
    assert_eq!(steps_of(&net), [[]; 2]);
    net.settle();
    let steps = [StepKind::Received, StepKind::Waits, StepKind::Committed(1), StepKind::Acknowledged];
    assert_eq!(steps_of(&net)[usize::from(home)], steps);
    assert_eq!(steps_of(&net)[usize::from(1 - home)], [StepKind::Delivered(1)]);
}

#[test]
fn a_publish_to_a_class_with_a_delay_waits() {
    let mut net = Net::new(1, 1, Class { commit_delay_ms: 5, ..remembering() });
    follow(&mut net);
    net.publish(0, "a");
    assert_eq!(steps_of(&net), [[]]);
    net.act(0, |b, w| b.commit_due(at(5), w));
    let steps = [StepKind::Received, StepKind::Waits, StepKind::Committed(0), StepKind::Acknowledged];
    assert_eq!(steps_of(&net), [steps]);
}

/// The steps of one record for a group whose member of this connection is the only one.
fn steps_of_group(net: &mut Net, shard: u16, is_slow: bool) -> Vec<Vec<StepKind>> {
    let joined = net.act(shard, |b, w| b.join_group(ticket(shard, 0, 0), key(0), b"g", b"a", NOW, w));
    assert!(!matches!(joined, hubsub_route::Outcome::Now(Err(_))), "{joined:?}");
    net.settle();
    follow(net);
    if is_slow {
        net.worlds[usize::from(shard)].full.insert(0);
    }
    net.publish(0, "a");
    net.settle();
    steps_of(net)
}

#[test]
fn a_record_of_a_group_is_delivered_once_to_the_member_that_takes_it() {
    let mut net = Net::new(1, 1, remembering());
    let steps = [StepKind::Received, StepKind::Committed(1), StepKind::Delivered(1), StepKind::Acknowledged];
    assert_eq!(steps_of_group(&mut net, 0, false), [steps]);
    let mut net = Net::new(2, 1, remembering());
    let of_other = steps_of_group(&mut net, 1, false);
    assert_eq!(of_other[1].iter().filter(|&&kind| kind == StepKind::Delivered(1)).count(), 1, "{of_other:?}");
    assert!(!of_other[0].contains(&StepKind::Delivered(1)));
}

#[test]
fn a_record_that_no_member_of_a_group_takes_is_not_delivered() {
    let mut net = Net::new(1, 1, remembering());
    let steps = [StepKind::Received, StepKind::Committed(1), StepKind::Acknowledged];
    assert_eq!(steps_of_group(&mut net, 0, true), [steps]);
}

#[test]
fn the_publish_of_a_client_that_disconnects_is_followed_to_its_end() {
    let mut net = Net::new(1, 2, durable());
    net.subscribe(0, 1, "a", Start::Live);
    follow(&mut net);
    net.publish(0, "a");
    net.act(0, |b, w| b.disconnected(key(0), NOW, w));
    assert!(net.log(0, 1));
    let rest = [StepKind::Committed(1), StepKind::Delivered(1), StepKind::Acknowledged];
    assert!(steps_of(&net)[0].ends_with(&rest), "{:?}", steps_of(&net));
}

#[test]
fn records_of_a_room_before_and_after_its_deletion_are_records_of_two_epochs() {
    let mut net = Net::new(1, 1, remembering());
    follow(&mut net);
    net.publish(0, "a");
    let ask = Ask { shard: ShardId(0), number: 1 };
    assert_eq!(net.act(0, |b, w| b.delete_room(b"a", ask, NOW, w)), Ok(Some(true)));
    net.publish(0, "a");
    let of = net.brokers[0].traces.steps(1).iter().map(|traced| (traced.position.epoch, traced.steps.len()));
    let of: Vec<_> = of.collect();
    assert!(matches!(of[..], [(first, 3), (second, 3)] if first.0 < second.0), "{of:?}");
}

#[test]
fn a_topic_may_be_as_long_as_the_limit_and_no_longer() {
    let mut net = Net::new(1, 1, remembering());
    let broker: &mut Broker = &mut net.brokers[0];
    let longest = Limits::default().topic_bytes_max as usize;
    for (length, expected) in
        [(longest - 1, Ok(())), (longest, Ok(())), (longest + 1, Err(ErrorCode::TopicLength))]
    {
        let topic = vec![b'a'; length];
        let started = broker.start_trace(1, (Namespace::Global, &topic), bounds(1), NOW);
        assert_eq!(started, expected, "{length}");
    }
}
