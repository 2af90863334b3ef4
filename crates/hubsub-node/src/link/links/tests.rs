//! A shard's links on real sockets, turn by turn and at a time of the test's own.
//! The test is the loop, and plays the peers.

use super::{LISTENER, LinkMail, TOKENS};
use crate::control::Event;
use crate::link::board::Change;
use crate::link::conn::Role;
use crate::link::{Identity, Registered, Secret};
use crate::lone::Lone;
use hubsub_types::{ConnKey, ErrorCode, Limits, NodeId};
use hubsub_wire::link::{End, Frame, Link, LinkLimits, Next, Now, Payload, Refusal};
use mio::event::Event as Readiness;
use mio::{Events, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far above what any step needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn identity(node: &str, incarnation: u64) -> Arc<Identity> {
    let (cluster, secret, versions) = ("test".into(), Secret::new(b"sesame"), 1..=1);
    Arc::new(Identity { cluster, node: node.into(), incarnation, shards: 1, secret, versions })
}

/// An address that refuses connections, for as long as this lives.
struct Closed(socket2::Socket);

impl Closed {
    fn new() -> Closed {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Closed(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap().as_socket().unwrap()
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The shard.
struct Shard {
    lone: Lone,
    poll: Poll,
    scratch: Vec<u8>,
    now: Now,
    /// Where its links' listener is.
    address: SocketAddr,
    /// What this connection's socket tells is kept from it.
    unheard: Option<ConnKey>,
    kept: Vec<Readiness>,
    changes: Vec<Change>,
}

impl Shard {
    fn new(node: &str) -> Shard {
        Shard::with(node, Limits::default())
    }

    fn with(node: &str, limits: Limits) -> Shard {
        let (mut lone, poll) = (Lone::new(limits), Poll::new().unwrap());
        let socket = mio::net::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        lone.core.rim.links.attach(poll.registry().try_clone().unwrap(), Some(socket));
        let now = Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 };
        let scratch = vec![0; 64 * 1024];
        let (unheard, kept, changes) = (None, Vec::new(), Vec::new());
        let mut shard = Shard { lone, poll, scratch, now, address, unheard, kept, changes };
        shard.pass(0);
        shard.mail(LinkMail::Begin(identity(node, 1)));
        shard
    }

    fn mail(&mut self, mail: LinkMail) {
        self.lone.core.link_mail(mail);
    }

    /// One peer is registered.
    fn register(&mut self, node: &str, incarnation: u64, addresses: &[SocketAddr]) {
        let (id, node, addresses) = (NodeId(0), node.into(), addresses.to_vec());
        let peer = Registered { id, node, incarnation, addresses, shards: 1 };
        let board = Arc::clone(&self.lone.core.rim.links.board);
        self.mail(LinkMail::Roster(board.set_roster(vec![peer])));
    }

    /// Time passes.
    fn pass(&mut self, ms: u64) {
        self.now.mono_us += ms * 1_000;
        self.now.wall_us += ms * 1_000;
        self.lone.core.rim.links.set_now(self.now.mono_us, self.now.wall_us);
    }

    fn event(&mut self, event: &Readiness) {
        match event.token() {
            LISTENER => self.lone.core.rim.links.accept(),
            Token(TOKENS..) => self.lone.core.link_event(event, &mut self.scratch),
            token => panic!("whose? {token:?}"),
        }
    }

    /// A turn of its loop.
    fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
        let unheard = self.unheard.map(|key| Token(TOKENS + key.index as usize));
        for event in &events {
            if unheard == Some(event.token()) {
                self.kept.push(event.clone());
            } else {
                self.event(event);
            }
        }
        if unheard.is_none() {
            std::mem::take(&mut self.kept).iter().for_each(|event| self.event(event));
        }
        self.lone.core.resume_links(&mut self.scratch);
        self.lone.core.tick_links();
        self.lone.core.flush();
        for event in self.lone.core.rim.control.drain(usize::MAX) {
            if let Event::Link(event) = event {
                self.changes.push(event.change);
            }
        }
    }

    /// Turns until something is so.
    #[track_caller]
    fn until(&mut self, mut is_so: impl FnMut(&mut Shard) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "it does not come; changes so far: {:?}", self.changes);
            self.turn();
        }
    }

    /// Turns until nothing but the clock could bring more.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.turn();
        }
    }

    fn links(&self) -> &super::Links {
        &self.lone.core.rim.links
    }

    fn links_mut(&mut self) -> &mut super::Links {
        &mut self.lone.core.rim.links
    }

    fn count(&self, is_meant: impl Fn(&Role) -> bool) -> usize {
        self.links().keys(is_meant).len()
    }

    fn probe(&self, node: &str) -> Option<ConnKey> {
        self.links().peers[node].probe
    }

    fn is_dead(&self) -> bool {
        self.changes.contains(&Change::Dead)
    }

    /// A peer that it has dialed answers, and is up.
    #[track_caller]
    fn is_answered(&mut self, listener: &TcpListener, node: &str, incarnation: u64) -> Played {
        let mut peer = None;
        self.until(|_| {
            peer = listener.accept().ok().map(|(socket, _)| Played::answer(socket, node, incarnation));
            peer.is_some()
        });
        let mut peer = peer.unwrap();
        self.meet(&mut peer);
        peer
    }

    /// A peer dials it, and is up.
    #[track_caller]
    fn is_dialed(&mut self, node: &str, incarnation: u64) -> Played {
        let mut peer = Played::dial(self.address, node, incarnation, self.now);
        self.meet(&mut peer);
        peer
    }

    #[track_caller]
    fn meet(&mut self, peer: &mut Played) {
        self.until(|shard| {
            peer.turn(shard.now);
            peer.link.peer().is_some() && shard.count(|role| matches!(role, Role::Up(_))) == 1
        });
        self.until(|shard| shard.changes.last() == Some(&Change::Up));
    }

    /// A peer's connection ends without a goodbye, and this side has seen it.
    #[track_caller]
    fn loses(&mut self, peer: Played) {
        drop(peer);
        self.until(|shard| matches!(shard.changes.last(), Some(Change::Down("eof", _))));
    }
}

/// A peer's end.
struct Played {
    socket: TcpStream,
    link: Link,
    input: Vec<u8>,
    end: Option<End>,
    /// Answers to questions that came.
    answered: Vec<u64>,
}

impl Played {
    fn new(socket: TcpStream, link: Link) -> Played {
        socket.set_nonblocking(true).unwrap();
        Played { socket, link, input: Vec::new(), end: None, answered: Vec::new() }
    }

    fn answer(socket: TcpStream, node: &str, incarnation: u64) -> Played {
        let limits = Arc::new(LinkLimits::default());
        let now = Now { mono_us: 1_000_000, wall_us: 0 };
        Played::new(socket, Link::accept(identity(node, incarnation), limits, [3; 32], now))
    }

    fn dial(address: SocketAddr, node: &str, incarnation: u64, now: Now) -> Played {
        let limits = Arc::new(LinkLimits::default());
        let link = Link::dial(identity(node, incarnation), limits, 0, None, &[4; 32], now);
        Played::new(TcpStream::connect(address).unwrap(), link)
    }

    /// Reads and writes what it can.
    fn turn(&mut self, now: Now) {
        let mut bytes = [0; 4096];
        loop {
            while !self.link.output().is_empty() {
                match self.socket.write(self.link.output()) {
                    Ok(n) => self.link.written(n),
                    Err(_) => break,
                }
            }
            match self.socket.read(&mut bytes) {
                Ok(0) => {
                    self.end.get_or_insert(End::Eof);
                    return;
                }
                Ok(n) => self.input.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.end.get_or_insert(End::Eof);
                    return;
                }
            }
            self.take(now);
        }
    }

    fn take(&mut self, now: Now) {
        let mut used = 0;
        while self.end.is_none() {
            match self.link.next(&self.input[used..], now) {
                Ok(Next::Incomplete(_)) => break,
                Ok(Next::Own(bytes) | Next::Up(bytes)) => used += bytes,
                Ok(Next::Proved(_, bytes)) => {
                    used += bytes;
                    self.link.welcome(now);
                }
                Ok(Next::Frame(frame, bytes)) => {
                    if let Frame::Control { id, is_answer: true, .. } = frame {
                        self.answered.push(id);
                    }
                    used += bytes;
                }
                Err(end) => self.end = Some(end),
            }
        }
        self.input.drain(..used);
    }
}

// -- death is proved by all addresses of one registration --

#[test]
fn addresses_that_change_in_the_middle_of_a_look_prove_no_death() {
    let (mut a, (listener, here), closed) = (Shard::new("a"), listener(), Closed::new());
    a.register("b", 1, &[here]);
    let b = a.is_answered(&listener, "b", 1);
    a.register("b", 1, &[closed.address(), here]);
    drop(b);
    // The first address refuses; before that is heard, the peer has but the other one.
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
        // Whoever comes is sent away without a word.
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
// -- a look at the port is over when its reason is --

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
    // The look may have been accepted first: it says nothing.
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
    b.until(|b| b.probe("a").is_none());
    assert!(!b.is_dead(), "somebody is at {here}");
    drop(listener);
    b.register("a", 1, &[closed.address()]);
    b.until(|b| b.is_dead());
}

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

// -- strangers --

/// 300 that say this and stay.
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
    b.until(|b| b.lone.core.rim.metrics.links_strangers_total.get() == 70);
    assert!(b.links().is_empty());
    assert_eq!(b.lone.core.rim.metrics.links_refused_total.get(), 0);
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_peer_out() {
    let mut b = Shard::new("b");
    b.register("a", 1, &[]);
    let crowd = crowd(&mut b, b"");
    b.until(|b| b.links().conns.len() == 256 && b.lone.core.rim.metrics.links_strangers_total.get() == 44);
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
    b.until(|b| b.lone.core.rim.metrics.links_refused_total.get() == 300);
    assert!(b.links().conns.len() <= 256, "{}", b.links().conns.len());
    assert_eq!(b.lone.core.rim.metrics.links_strangers_total.get(), 0, "each was told why");
    drop(crowd);
}

// -- what control planes ask --

fn up(shard: &Shard) -> ConnKey {
    shard.links().keys(|role| matches!(role, Role::Up(_)))[0]
}

#[test]
fn a_peer_that_asks_without_end_ends_its_link_and_one_that_is_heard_does_not() {
    for (bytes, most) in [(10, 2_048), (9 << 20, 3)] {
        let mut b = Shard::new("b");
        b.lone.core.rim.control.set_events_max(100_000);
        b.register("a", 1, &[]);
        let mut a = b.is_dialed("a", 1);
        let (link, body) = (up(&b), vec![7; bytes]);
        for round in 0..2 {
            (0..most).for_each(|id| b.links_mut().control_frame(link, id, false, &body));
            assert_eq!(b.count(|role| matches!(role, Role::Up(_))), 1, "round {round}");
            let events = b.lone.core.rim.control.drain(usize::MAX);
            assert_eq!(events.iter().filter(|e| matches!(e, Event::Asked(..))).count(), most as usize);
        }
        (0..=most).for_each(|id| b.links_mut().control_frame(link, id, false, &body));
        b.until(|b| {
            a.turn(b.now);
            a.end.is_some()
        });
        let Some(End::Bye { stopping: false, text }) = &a.end else { panic!("{:?}", a.end) };
        assert!(text.contains("more than is taken in of one peer"), "{text}");
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
        let answer =
            |event| if let Event::Answered(ticket, came) = event { Some((ticket, came)) } else { None };
        b.lone.core.rim.control.drain(usize::MAX).into_iter().filter_map(answer).collect::<Vec<_>>()
    };
    let first = b.links().asks.next();
    (0..1_024).for_each(|ticket| b.links_mut().ask(ticket, "a", b"x"));
    assert_eq!(answers(&b), []);
    b.links_mut().ask(2_000, "a", b"x");
    assert_eq!(answers(&b), [(2_000, Err(ErrorCode::LinkFull))]);
    // An answer by another link than that which was asked is none.
    let other = ConnKey { index: link.index + 1, ..link };
    b.links_mut().control_frame(other, first, true, b"no");
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
    let (link, first) = (up(&b), b.links().asks.next());
    (0..3).for_each(|ticket| b.links_mut().ask(ticket, "a", b"x"));
    let long = vec![7; 40 << 20];
    (0..3).for_each(|ask| b.links_mut().control_frame(link, first + ask, true, &long));
    let events = b.lone.core.rim.control.drain(usize::MAX);
    let full = |event: &&Event| matches!(event, Event::Answered(_, Err(ErrorCode::LinkFull)));
    assert_eq!(events.iter().filter(full).count(), 2, "who asked is told");
    assert_eq!(b.links().peers["a"].answers.waiting(), (0, 0));
}
