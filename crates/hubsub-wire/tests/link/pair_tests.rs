//! Invariants between two nodes, whatever the transport does. A failing seed is in the message and fails
//! again.

use crate::pair::{SKEW_US, STEP_US, Weather, World};
use hubsub_message::{AskId, NodeMessage};
use hubsub_types::{HubId, Position, Seq, Term};
use hubsub_wire::link::{
    Answer, Decoded, End, Frame, FrameError, Lane, Link, LinkLimits, List, Next, Now, Payload, Sent, Status,
    decode,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const QUIET: Weather = Weather { stall: 0, cut: 0, send: 0, handled_max: 1_000 };
const SEEDS: u64 = 40;
const STEPS: u64 = 1_500;

/// Runs a seed, and prints it if it fails.
fn with_seed(seed: u64, run: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(seed);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&mut world))) {
        eprintln!("seed {seed}, after {} ms", world.now_us / 1_000);
        std::panic::resume_unwind(panic);
    }
    world
}

/// A world whose link has just come up.
fn up(seed: u64) -> World {
    with_seed(seed, |world| {
        for _ in 0..100 {
            world.step(QUIET);
            if world.is_up() {
                return;
            }
        }
        panic!("the link did not come up");
    })
}

#[test]
fn stalls_and_breaks_bring_no_frame_twice_none_out_of_order_and_none_without_credit() {
    let (mut came, mut refused, mut suspicions, mut silent, mut dials) = ([0; 3], [0; 3], 0, 0, 0);
    for seed in 0..SEEDS {
        let weather = Weather { stall: 150, cut: 400, send: 1 + seed % 8, handled_max: 1 + seed % 12 };
        let world = with_seed(seed, |world| {
            for step in 0..STEPS {
                if step == STEPS / 2 {
                    world.stall((seed % 2) as usize, 8_000_000);
                }
                world.step(weather);
            }
            world.cut();
        });
        dials += world.dials;
        for node in &world.nodes {
            suspicions += node.totals.suspicions;
            silent += node.ends.iter().filter(|end| **end == End::Silent).count();
            for lane in 0..3 {
                came[lane] += node.came[lane];
                refused[lane] += node.totals.refused[lane];
            }
        }
    }
    println!("came {came:?}, refused {refused:?}, suspicions {suspicions}, silent {silent}, dials {dials}");
    assert!(came.iter().all(|&came| came > 10_000), "little came: {came:?}");
    assert!(refused.iter().all(|&refused| refused > 1_000), "no queue was full: {refused:?}");
    assert!(suspicions > SEEDS && silent > 5 && dials > 3 * SEEDS);
}

#[test]
fn what_was_taken_arrives_once_the_weather_is_fine() {
    for seed in 0..SEEDS {
        let world = with_seed(seed, |world| {
            let rough = Weather { stall: 200, cut: 0, send: 4, handled_max: 4 };
            for _ in 0..300 {
                // Stalls may delay a handshake beyond its limit, which this test is not about.
                let weather = if world.is_up() { rough } else { QUIET };
                world.step(weather);
            }
            for _ in 0..1_000 {
                world.step(QUIET);
            }
        });
        assert_eq!(world.dials, 1);
        assert_eq!(world.nodes[0].sent, world.nodes[1].came, "seed {seed}");
        assert_eq!(world.nodes[1].sent, world.nodes[0].came, "seed {seed}");
        for node in &world.nodes {
            assert_eq!(node.link.as_ref().expect("up").waiting()[1..], [0; 3], "seed {seed}");
        }
    }
}

#[test]
fn a_peer_that_has_nothing_to_say_is_not_suspected_and_its_clock_is_known() {
    let mut world = up(1);
    for _ in 0..1_000 {
        world.step(QUIET);
    }
    for side in [0, 1] {
        let link = world.nodes[side].link.as_ref().expect("up");
        assert_eq!(link.counters().suspicions, 0);
        let offset = link.offset().expect("pings were answered");
        let skew = SKEW_US as i64 * if side == 0 { 1 } else { -1 };
        assert!((offset.offset_us - skew).unsigned_abs() <= offset.error_us, "{offset:?}");
        assert!(offset.error_us <= 2 * STEP_US, "{offset:?}");
        let bytes_a_second = link.counters().bytes_out / 10;
        assert!((300..800).contains(&bytes_a_second), "{bytes_a_second} bytes a second of idling");
    }
}

#[test]
fn a_stall_is_suspected_after_half_a_second_forgiven_when_heard_and_given_up_after_five() {
    let mut world = up(2);
    world.stall(0, 4_000_000);
    for _ in 0..390 {
        world.step(QUIET);
    }
    let suspected = |world: &World| {
        let suspected = |side: usize| world.nodes[side].link.as_ref().is_some_and(|link| link.is_suspected());
        [suspected(0), suspected(1)]
    };
    assert_eq!(suspected(&world), [false, true], "the other direction is heard");
    for _ in 0..30 {
        world.step(QUIET);
    }
    assert_eq!(suspected(&world), [false, false]);
    world.stall(0, 6_000_000);
    for _ in 0..520 {
        world.step(QUIET);
    }
    assert_eq!(world.nodes[1].ends, [End::Silent]);
    assert_eq!(world.dials, 2, "it was dialed again");
}

#[test]
fn a_peer_that_handles_nothing_stops_its_lanes_and_no_other() {
    let mut world = up(3);
    let lazy = Weather { handled_max: 0, send: 3, ..QUIET };
    for _ in 0..300 {
        world.step(lazy);
    }
    let link = world.nodes[0].link.as_ref().expect("a full lane ends no link");
    assert!(!link.flows(Lane::Live) && !link.flows(Lane::Reads));
    assert_eq!(link.counters().suspicions, 0, "heartbeats need no credit");
    let counters = link.counters();
    assert!(counters.refused[1] > 0 && counters.refused[2] > 0, "{counters:?}");
    let before = world.nodes[1].came;
    for _ in 0..300 {
        world.step(lazy);
    }
    let after = world.nodes[1].came;
    assert_eq!(after[1..], before[1..], "no credit, no frame");
    assert!(after[0] > before[0], "urgent frames go on");
}

/// The two ends of a link that is up, without a transport.
fn ends(seed: u64) -> (hubsub_wire::link::Link, hubsub_wire::link::Link, Now) {
    let mut world = up(seed);
    for _ in 0..20 {
        world.step(QUIET);
    }
    let now = world.now(0);
    let [a, b] = &mut world.nodes;
    let (mut a, b) = (a.link.take().expect("up"), b.link.take().expect("up"));
    a.written(a.output().len());
    (a, b, now)
}

#[test]
fn a_goodbye_is_told_from_an_end_without_one() {
    let (mut a, mut b, now) = ends(4);
    assert_eq!(a.bye(true, "upgrade"), End::Left);
    let said = a.output().to_vec();
    assert_eq!(b.next(&said, now), Err(End::Bye { stopping: true, text: "upgrade".into() }));
    assert_eq!(a.send(&lead_ask(1)), Sent::Refused);
    assert_eq!(a.counters().refused[0], 1);
    let (_, mut b, now) = ends(5);
    assert_eq!(b.eof(), End::Eof);
    assert_eq!(b.next(&said, now), Err(End::Left), "nothing is read behind the end");
    assert_eq!(b.wake_at(), u64::MAX);
}

/// The types of the frames in an output.
fn types(mut output: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let Ok(Decoded::Frame { bytes, .. }) = decode(output, output.len().max(4)) {
        types.push(output[4]);
        output = &output[bytes..];
    }
    types
}

#[test]
fn a_frame_that_is_too_long_is_refused_and_the_link_goes_on() {
    let (mut a, mut b, now) = ends(8);
    let body = vec![0; 32 * 1_024];
    let long = Frame::Control { id: 1, is_answer: false, body: Payload(&body) };
    assert_eq!(a.send(&long), Sent::Refused);
    assert_eq!(a.counters().refused, [1, 0, 0]);
    assert_eq!(a.send(&lead_ask(1)), Sent::Out);
    let said = a.output().to_vec();
    assert!(matches!(b.next(&said, now), Ok(Next::Frame(Frame::LeadAsk { stamp_us: 1, .. }, _))));
}

#[test]
fn one_ping_waits_for_a_socket_that_takes_nothing() {
    let (mut a, _, now) = ends(9);
    for _ in 0..4 {
        assert_eq!(a.tick(Now { mono_us: a.wake_at(), ..now }), Ok(false));
    }
    assert_eq!(types(a.output()), [6]);
    a.written(a.output().len());
    assert_eq!(types(a.output()), [6], "the latest follows");
}

#[test]
fn live_frames_and_reads_go_in_turn_and_urgent_ones_before_them() {
    let (mut a, _, _) = ends(10);
    while a.flows(Lane::Urgent) {
        assert_eq!(a.send(&Frame::Control { id: 0, is_answer: false, body: Payload(&[0; 90]) }), Sent::Out);
    }
    for ask in (0..30).map(AskId) {
        let (oldest, next) = (Position::default(), Seq(1));
        let live = NodeMessage::NotMine { ask, hub: HubId(1), term: Term(1) };
        let read = NodeMessage::RangeEnd { ask, oldest, next, gap: None, at_end: true, is_gone: false };
        assert_eq!([a.send_message(&live), a.send_message(&read)], [Sent::Queued; 2]);
    }
    // The socket accepts so little at a time that one of them follows each urgent frame.
    let mut stream = Vec::new();
    for stamp_us in 0..60 {
        let _ = a.send(&lead_ask(stamp_us));
        stream.extend_from_slice(&a.output()[..36]);
        a.written(36);
    }
    stream.extend_from_slice(a.output());
    let types = types(&stream);
    let turns: Vec<u8> = types.iter().copied().filter(|code| matches!(code, 18 | 33)).collect();
    assert!(turns.len() > 20 && turns.windows(2).all(|pair| pair[0] != pair[1]), "{types:?}");
    assert!(types.iter().filter(|&&code| code == 48).count() >= 59, "the last may wait: {types:?}");
}

#[test]
fn a_frame_that_is_wrong_ends_the_link_and_the_peer_is_told() {
    let encoded = |frame: Frame<'_>| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    };
    let long = (LinkLimits::default().frame_bytes_max as u32).to_le_bytes().to_vec();
    let too_long = FrameError::TooLong { bytes: 65 * 1_024 * 1_024 + 4, max: 32 * 1_024 };
    let cases = [
        (vec![1, 0, 0, 0, 99], End::Bad(FrameError::UnknownType(99))),
        (long, End::Bad(too_long)),
        (encoded(Frame::Proof { mac: &[0; 32] }), End::OutOfPlace("Proof")),
        (
            encoded(Frame::Message(NodeMessage::PatternsEntry { count: 1, pattern: [0; 5_000].into() }))
                .repeat(2),
            End::WithoutCredit(Lane::Live),
        ),
    ];
    for (said, expected) in cases {
        let (mut a, _, now) = ends(6);
        let mut at = 0;
        let end = loop {
            match a.next(&said[at..], now) {
                Ok(Next::Frame(_, bytes)) => at += bytes,
                Ok(other) => panic!("{other:?}"),
                Err(end) => break end,
            }
        };
        assert_eq!(end, expected);
        let (mut b, told) = (ends(6).1, a.output().to_vec());
        assert_eq!(b.next(&told, now), Err(End::Bye { stopping: false, text: end.to_string().into() }));
    }
}

#[test]
fn any_bytes_on_a_link_are_frames_or_its_end_and_never_a_panic() {
    for seed in 0..300 {
        let (mut a, mut b, now) = ends(seed);
        let mut random = World::new(seed).random;
        for _ in 0..20 {
            let stamp_us = random.below(1_000);
            let _ = b.send(&Frame::LeadGranted {
                stamp_us,
                lead_ms: 3,
                controller_term: 4,
                voters_revision: 5,
                granted: List::new(&[(HubId(6), Term(7))]),
            });
            let _ = b.send_message(&NodeMessage::Published {
                ask: AskId(1),
                again: false,
                position: Default::default(),
                receivers: 1,
            });
        }
        let mut said = b.output().to_vec();
        for _ in 0..random.below(4) {
            let place = random.below(said.len() as u64) as usize;
            said[place] = random.below(256) as u8;
        }
        let mut at = 0;
        while let Ok(next) = a.next(&said[at..], now) {
            at += match next {
                Next::Incomplete(_) => break,
                Next::Own(bytes) | Next::Frame(_, bytes) => bytes,
                other => panic!("{other:?}"),
            };
        }
    }
}

#[test]
fn what_a_node_says_of_itself_comes_with_its_pings_and_when_it_is_asked() {
    let (mut a, mut b, now) = ends(7);
    hand_over(&mut b, &mut a, now);
    assert!(a.take_answer().is_some(), "both pinged when they came up");
    assert!(a.take_ping().is_some());
    let status =
        Status { classes: 34, controller_term: 0, acknowledged_term: 12, acknowledgement: 3, is_ready: true };
    b.set_status(status);
    assert_eq!(b.tick(Now { mono_us: b.wake_at(), ..now }), Ok(false));
    hand_over(&mut b, &mut a, now);
    assert_eq!((a.peer_status(), a.take_answer()), (status, None));
    assert_eq!((a.take_ping(), a.take_ping()), (Some(status), None), "a ping is given once");
    a.written(a.output().len());
    let stamp_us = a.wake_at();
    assert_eq!(a.tick(Now { mono_us: stamp_us, ..now }), Ok(false));
    let status = Status { acknowledged_term: 0, acknowledgement: 4, ..status };
    b.set_status(status);
    hand_over(&mut a, &mut b, now);
    hand_over(&mut b, &mut a, now);
    assert_eq!((a.peer_status(), a.take_answer()), (status, Some(Answer { stamp_us, status })));
    assert_eq!(a.take_answer(), None, "an answer is given once");
    assert_eq!(a.take_ping(), None, "it was no ping");
}

/// Passes the output of one side to the other; all of it is internal frames of the link.
fn hand_over(from: &mut Link, to: &mut Link, now: Now) {
    let said = from.output().to_vec();
    let mut at = 0;
    while at < said.len() {
        let Ok(Next::Own(bytes)) = to.next(&said[at..], now) else { panic!("a frame that is not its own") };
        at += bytes;
    }
    from.written(said.len());
}

#[test]
fn a_claim_of_4096_hubs_with_the_greatest_numbers_waits_in_the_urgent_lane_with_others() {
    let pairs: Vec<_> = (0..4_096).map(|hub| (HubId(u32::MAX - hub), Term(u64::MAX))).collect();
    let names = vec!["n".repeat(255); 64];
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let (claim, suspects) = (List::new(&pairs), List::new(&names));
    let ask = Frame::LeadAsk { stamp_us: 1, claim, gave_up: claim, suspects };
    let mut bytes = Vec::new();
    let limits = LinkLimits::default();
    assert!(5 * ask.encode(&mut bytes) < limits.urgent_queue_bytes_max, "{} bytes", bytes.len());
    let Ok(Decoded::Frame { frame, .. }) = decode(&bytes, limits.frame_bytes_max) else { panic!("no frame") };
    assert_eq!(frame, ask);
    let Frame::LeadAsk { claim, suspects, .. } = frame else { panic!("another frame") };
    assert!(claim.iter().eq(pairs.iter().copied()));
    let range = bytes.as_ptr_range();
    assert!(suspects.iter().all(|name| range.contains(&name.as_ptr())), "names are ranges of the input");
}

fn lead_ask(stamp_us: u64) -> Frame<'static> {
    let (claim, gave_up, suspects) = Default::default();
    Frame::LeadAsk { stamp_us, claim, gave_up, suspects }
}

#[test]
fn what_control_planes_say_waits_behind_leads_and_takes_no_room_from_them() {
    let (mut a, _, _) = ends(11);
    let control = Frame::Control { id: 0, is_answer: false, body: Payload(&[0; 90]) };
    while a.send(&control) != Sent::Refused {}
    assert!(a.send(&lead_ask(1)) == Sent::Queued, "there is room for a lead");
    let waiting = a.output().len();
    let mut stream = a.output().to_vec();
    a.written(waiting);
    stream.extend_from_slice(a.output());
    let types = types(&stream);
    let lead = types.iter().position(|&code| code == 48).expect("it goes out with the next room");
    let before: usize = types[..lead].iter().filter(|&&code| code == 50).count();
    assert!(before * 104 <= waiting, "nothing goes before it but what was in the output: {types:?}");
}

#[test]
fn when_both_sides_stood_still_for_long_neither_gives_the_other_up_unheard() {
    let (mut a, mut b, now) = ends(12);
    let later = Now { mono_us: now.mono_us + 60_000_000, wall_us: now.wall_us + 60_000_000 };
    assert_eq!([a.tick(later), b.tick(later)], [Ok(true), Ok(true)], "suspected, and no more than that");
    assert!(a.output().len() + b.output().len() > 0, "each pings");
    assert!(a.heard(later) && !a.is_suspected(), "one is heard");
    let end = Now { mono_us: later.mono_us + 4_500_000, ..later };
    assert_eq!(b.tick(Now { mono_us: end.mono_us - 1, ..end }), Ok(false));
    assert_eq!(b.tick(end), Err(End::Silent), "the other stays silent");
}
