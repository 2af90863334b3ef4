//! When a peer is reported dead, and when probing ends.

use super::*;
use crate::link::state::links::round::RETRIES_MAX;

// -- all addresses of one registration must refuse --

#[test]
fn addresses_that_change_in_the_middle_of_a_look_prove_no_death() {
    let (mut a, (listener, here), closed) = (Shard::new("a"), listener(), Closed::new());
    a.register("b", 1, &[here]);
    let b = a.is_answered(&listener, "b", 1);
    a.register("b", 1, &[closed.address(), here]);
    drop(b);
    // The first address refuses; before that result arrives, the peer is registered with the other one only.
    a.until(|a| {
        a.unheard = a.probe("b");
        a.unheard.is_some()
    });
    a.register("b", 1, &[here]);
    a.settle();
    a.unheard = None;
    a.until(|a| a.probe("b").is_none());
    a.settle();
    assert!(!a.is_dead(), "it listens at {here}");
}

#[test]
fn a_peer_that_lets_nobody_in_behind_an_address_that_refuses_is_not_dead() {
    let (mut a, (listener, here), closed) = (Shard::new("a"), listener(), Closed::new());
    a.register("b", 1, &[here]);
    let b = a.is_answered(&listener, "b", 1);
    a.register("b", 1, &[closed.address(), here]);
    a.loses(b);
    for _ in 0..6 {
        a.pass(6_000);
        // Each connection is closed without a frame.
        a.until(|_| listener.accept().is_ok());
        a.settle();
        while listener.accept().is_ok() {}
    }
    assert!(!a.is_dead(), "it listens at {here}");
}

#[test]
fn a_peer_all_of_whose_addresses_refuse_is_dead_once() {
    let (mut a, (listener, here), closed) = (Shard::new("a"), listener(), Closed::new());
    a.register("b", 1, &[closed.address(), here]);
    let b = a.is_answered(&listener, "b", 1);
    drop(listener);
    a.loses(b);
    a.until(|a| a.is_dead());
    for _ in 0..3 {
        a.pass(6_000);
        a.settle();
    }
    assert_eq!(a.changes.iter().filter(|change| **change == Change::Dead).count(), 1);
}
// -- a probe ends with its reason --

#[test]
fn a_look_at_the_port_ends_when_the_link_is_up_again_and_the_next_death_is_told() {
    let (mut b, closed) = (Shard::new("b"), Closed::new());
    b.register("a", 1, &[closed.address()]);
    let a = b.is_dialed("a", 1);
    drop(a);
    b.until(|b| {
        b.unheard = b.probe("a");
        b.unheard.is_some()
    });
    b.changes.clear();
    let a = b.is_dialed("a", 1);
    b.unheard = None;
    b.settle();
    assert!(!b.is_dead(), "its link stands");
    assert_eq!(b.probe("a"), None);
    b.loses(a);
    b.until(|b| b.is_dead());
}

#[test]
fn who_registers_anew_while_it_looks_at_a_port_dials_the_peer_again() {
    let (mut a, (listener, here)) = (Shard::new("a"), listener());
    a.register("b", 1, &[here]);
    let b = a.is_answered(&listener, "b", 1);
    drop(b);
    a.until(|a| {
        a.unheard = a.probe("b");
        a.unheard.is_some()
    });
    a.mail(LinkMail::Begin(identity("a", 2)));
    a.unheard = None;
    a.pass(6_000);
    a.changes.clear();
    // The probe may be accepted first; it sends nothing.
    let end = Instant::now() + PATIENCE;
    let mut came: Vec<Played> = Vec::new();
    while a.changes.last() != Some(&Change::Up) {
        assert!(Instant::now() < end, "it does not dial");
        came.extend(listener.accept().ok().map(|(socket, _)| Played::answer(socket, "b", 1)));
        came.iter_mut().for_each(|peer| peer.turn(a.now));
        a.turn();
    }
}

#[test]
fn a_look_at_the_port_of_an_earlier_process_proves_nothing_of_the_next() {
    let (mut b, closed) = (Shard::new("b"), Closed::new());
    b.register("a", 1, &[closed.address()]);
    let a = b.is_dialed("a", 1);
    drop(a);
    b.until(|b| {
        b.unheard = b.probe("a");
        b.unheard.is_some()
    });
    b.register("a", 2, &[closed.address()]);
    b.unheard = None;
    b.settle();
    b.pass(6_000);
    b.settle();
    assert!(!b.is_dead(), "the process that registered later was never met");
}

#[test]
fn a_peer_that_was_missed_is_looked_for_at_its_new_addresses_at_once() {
    let (mut b, closed, (listener, here)) = (Shard::new("b"), Closed::new(), listener());
    b.register("a", 1, &[here]);
    let a = b.is_dialed("a", 1);
    b.loses(a);
    b.until(|b| b.is_taken("a"));
    assert!(!b.is_dead(), "somebody is at {here}");
    b.register("a", 1, &[closed.address()]);
    b.until(|b| b.is_dead());
    drop(listener);
}

// -- a process that dies may lose its links before its port --

#[test]
fn a_process_whose_port_outlives_its_links_is_dead_when_the_port_is_closed_and_no_time_passes() {
    for (name, peer) in [("a", "b"), ("b", "a")] {
        let (mut shard, (listener, here)) = (Shard::new(name), listener());
        shard.register(peer, 1, &[here]);
        let link = if name == "a" { shard.is_answered(&listener, peer, 1) } else { shard.is_dialed(peer, 1) };
        shard.loses(link);
        shard.until(|shard| shard.is_taken(peer));
        shard.settle();
        assert!(!shard.is_dead(), "its port takes who comes");
        drop(listener);
        shard.until(|shard| shard.is_dead());
    }
}

#[test]
fn who_takes_a_look_and_says_nothing_is_looked_at_again_when_it_is_time() {
    for (name, peer) in [("a", "b"), ("b", "a")] {
        let (mut shard, (listener, here)) = (Shard::new(name), listener());
        shard.register(peer, 1, &[here]);
        let link = if name == "a" { shard.is_answered(&listener, peer, 1) } else { shard.is_dialed(peer, 1) };
        shard.loses(link);
        let mut taken = Vec::new();
        for _ in 0..4 {
            shard.until(|_| {
                listener.accept().is_ok_and(|(socket, _)| {
                    taken.push(socket);
                    true
                })
            });
            shard.settle();
            assert!(listener.accept().is_err(), "before its time");
            shard.pass(6_000);
        }
        assert!(!shard.is_dead());
    }
}

#[test]
fn who_sends_every_look_away_without_a_word_is_left_in_peace_until_the_next() {
    let (mut b, (listener, here)) = (Shard::new("b"), listener());
    b.register("a", 1, &[here]);
    let a = b.is_dialed("a", 1);
    b.loses(a);
    for _ in 0..3 {
        let mut looks = 0;
        b.until(|b| b.probe("a").is_some());
        b.until(|b| {
            looks += usize::from(listener.accept().is_ok());
            b.probe("a").is_none()
        });
        assert_eq!(looks, 1 + RETRIES_MAX);
        b.settle();
        assert!(listener.accept().is_err() && !b.is_dead());
        b.pass(6_000);
    }
}
