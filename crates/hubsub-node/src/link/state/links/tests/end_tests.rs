//! How a node leaves, and which connections are not admitted.

use super::*;
use hubsub_route::{Namespace, NodeMessage, Record};
use hubsub_types::{HubId, Seq, Term};

// -- a stop --

#[test]
fn a_stop_whose_time_is_over_says_goodbye_also_to_who_has_just_sent_something() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let mut a = b.is_dialed("a", 1);
    b.settle();
    a.link.send(&Frame::Control { id: 1, is_answer: false, body: Payload(&[7; 100_000]) });
    let now = b.now;
    a.turn(now);
    b.links_mut().begin_to_stop();
    b.links_mut().leave(true);
    assert!(b.links().is_empty());
    let end = Instant::now() + PATIENCE;
    while a.end.is_none() {
        assert!(Instant::now() < end, "no end");
        a.turn(now);
    }
    assert_eq!(a.end, Some(End::Bye { stopping: true, text: "the node stops".into() }));
}

#[test]
fn while_a_node_stops_its_port_says_so_and_refuses_only_when_it_has_left() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    b.links_mut().begin_to_stop();
    let mut a = Played::dial(b.address, "a", 1, b.now);
    b.until(|b| {
        a.turn(b.now);
        a.end.is_some()
    });
    assert!(matches!(a.end, Some(End::RefusedByPeer(Some(Refusal::Stopping), _))), "{:?}", a.end);
    b.links_mut().leave(false);
    let refused = TcpStream::connect(b.address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

// -- crowded links --

#[test]
fn a_link_for_which_more_of_other_shards_waits_than_there_is_room_for_ends_as_crowded() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let mut a = b.is_dialed("a", 1);
    let link = b.links().keys(|role| matches!(role, Role::Up(_)))[0];
    let record = Record::new(Namespace::Global, b"t", &[7; 1 << 20], "".into(), None);
    let (hub, term, record) = (HubId(1), Term(1), Arc::new(record));
    let message = NodeMessage::Deliver { hub, term, previous: Seq(0), before: 0, record };
    let is_up = |b: &Shard| b.count(|role| matches!(role, Role::Up(_))) == 1;
    let sent = (0..1_000).take_while(|_| {
        b.links_mut().send_for_other(link, &message);
        is_up(&b)
    });
    assert!((1..999).contains(&sent.count()), "there is room for some");
    b.until(|b| {
        a.turn(b.now);
        a.end.is_some()
    });
    let Some(End::Bye { stopping: false, text }) = &a.end else { panic!("{:?}", a.end) };
    assert!(text.contains("messages of other shards"), "{text}");
    assert!(matches!(b.changes.last(), Some(Change::Down("broken_rule", _))), "{:?}", b.changes);
}

// -- unauthenticated peers --

/// Opens 300 connections that send these bytes and stay open.
fn crowd(shard: &mut Shard, said: &[u8]) -> Vec<TcpStream> {
    let come = |_| {
        let mut stranger = TcpStream::connect(shard.address).unwrap();
        stranger.write_all(said).unwrap();
        shard.turn();
        stranger
    };
    (0..300).map(come).collect()
}

#[test]
fn who_connects_and_closes_without_a_word_is_counted_and_leaves_nothing() {
    let mut b = Shard::new("b");
    for _ in 0..70 {
        drop(TcpStream::connect(b.address).unwrap());
    }
    b.until(|b| b.lone.ctx.io.metrics.links_unauthenticated_total.get() == 70);
    assert!(b.links().is_empty());
    assert_eq!(b.lone.ctx.io.metrics.links_refused_total.get(), 0);
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_peer_out() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let crowd = crowd(&mut b, b"");
    b.until(|b| {
        b.links().conns.len() == 256 && b.lone.ctx.io.metrics.links_unauthenticated_total.get() == 44
    });
    let _a = b.is_dialed("a", 1);
    b.until(|b| b.links().conns.len() == 256);
    b.pass(3_000);
    drop(crowd);
    b.until(|b| b.links().conns.len() == 1);
}

#[test]
fn who_was_turned_away_and_stays_counts_among_the_strangers() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let crowd = crowd(&mut b, b"GET / HTTP/1.1\r\n\r\n");
    b.until(|b| b.lone.ctx.io.metrics.links_refused_total.get() == 300);
    assert!(b.links().conns.len() <= 256, "{}", b.links().conns.len());
    assert_eq!(b.lone.ctx.io.metrics.links_unauthenticated_total.get(), 0, "each was told why");
    drop(crowd);
}
