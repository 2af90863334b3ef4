//! Requests between control planes are bounded per peer.

use super::*;

fn up(shard: &Shard) -> ConnKey {
    shard.links().keys(|role| matches!(role, Role::Up(_)))[0]
}

#[test]
fn a_peer_that_asks_without_end_ends_its_link_and_one_that_is_heard_does_not() {
    for (bytes, most) in [(10, 2_048), (9 << 20, 3)] {
        let mut b = Shard::new("b");
        b.lone.control.set_events_max(100_000);
        b.register("a", 1, &[]);
        let mut a = b.is_dialed("a", 1);
        let (link, body) = (up(&b), vec![7; bytes]);
        for round in 0..2 {
            (0..most).for_each(|id| b.links_mut().control_frame(link, id, false, &body));
            assert_eq!(b.count(|role| matches!(role, Role::Up(_))), 1, "round {round}");
            let events = b.lone.control.drain(usize::MAX);
            assert_eq!(
                events.iter().filter(|e| matches!(e, Event::Link(link::Event::Asked(..)))).count(),
                most as usize
            );
        }
        (0..=most).for_each(|id| b.links_mut().control_frame(link, id, false, &body));
        b.until(|b| {
            a.turn(b.now);
            a.end.is_some()
        });
        let Some(End::Bye { stopping: false, text }) = &a.end else { panic!("{:?}", a.end) };
        assert!(text.contains("more than there is room for of one peer"), "{text}");
        assert!(matches!(b.changes.last(), Some(Change::Down("broken_rule", _))), "{:?}", b.changes);
    }
}

#[test]
fn a_question_may_be_longer_than_all_that_may_wait() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let _a = b.is_dialed("a", 1);
    let link = up(&b);
    b.links_mut().control_frame(link, 1, false, &vec![7; 33 << 20]);
    assert_eq!(b.count(|role| matches!(role, Role::Up(_))), 1);
}

#[test]
fn who_asks_a_peer_that_does_not_answer_is_refused_at_the_bound_until_it_does() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let _a = b.is_dialed("a", 1);
    let link = up(&b);
    let answers = |b: &Shard| {
        let answer = |event| {
            if let Event::Link(link::Event::Answered(ticket, came)) = event {
                Some((ticket, came))
            } else {
                None
            }
        };
        b.lone.control.drain(usize::MAX).into_iter().filter_map(answer).collect::<Vec<_>>()
    };
    let first = b.links().asks.next;
    (0..1_024).for_each(|ticket| b.links_mut().ask(ticket, "a", b"x"));
    assert_eq!(answers(&b), []);
    b.links_mut().ask(2_000, "a", b"x");
    assert_eq!(answers(&b), [(2_000, Err(ErrorCode::LinkFull))]);
    b.links_mut().control_frame(link, first, true, b"yes");
    assert_eq!(answers(&b), [(0, Ok(b"yes"[..].into()))]);
    b.links_mut().ask(2_001, "a", &vec![7; 20 << 20]);
    assert_eq!(answers(&b), [(2_001, Err(ErrorCode::LinkFull))], "too much beside the others");
    b.links_mut().ask(2_002, "a", b"x");
    assert_eq!(answers(&b), []);
    b.links_mut().leave(true);
    let lost = answers(&b);
    assert_eq!(lost.len(), 1_024);
    assert!(lost.iter().all(|(_, came)| *came == Err(ErrorCode::LinkLost)));
}

#[test]
fn answers_that_the_control_plane_does_not_take_are_bounded_in_bytes() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let _a = b.is_dialed("a", 1);
    let (link, first) = (up(&b), b.links().asks.next);
    (0..3).for_each(|ticket| b.links_mut().ask(ticket, "a", b"x"));
    let long = vec![7; 40 << 20];
    (0..3).for_each(|ask| b.links_mut().control_frame(link, first + ask, true, &long));
    let events = b.lone.control.drain(usize::MAX);
    let full =
        |event: &&Event| matches!(event, Event::Link(link::Event::Answered(_, Err(ErrorCode::LinkFull))));
    assert_eq!(events.iter().filter(full).count(), 2, "who asked is told");
    assert_eq!(b.links().peers["a"].answers.waiting(), (0, 0));
}
