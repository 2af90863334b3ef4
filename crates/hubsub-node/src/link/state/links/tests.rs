//! A shard's links on real sockets, with turns and time controlled by the test, which also acts as the peers.

mod control_tests;
mod death_tests;
mod end_tests;

use super::{LISTENER, TOKENS};
use crate::control::Event;
use crate::link::state::conn::Role;
use crate::link::{self, Change, Identity, LinkMail, Registered, Secret};
use crate::lone::Lone;
use hubsub_types::{ConnKey, ErrorCode, Limits, NodeId};
use hubsub_wire::link::{End, Frame, Link, LinkLimits, Next, Now, Payload, Refusal};
use mio::event::Event as Readiness;
use mio::{Events, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn identity(node: &str, incarnation: u64) -> Arc<Identity> {
    let (cluster, secret, versions) = ("test".into(), Secret::new(b"sesame"), 1..=1);
    Arc::new(Identity { cluster, node: node.into(), incarnation, shards: 1, secret, versions })
}

/// An address that refuses connections while this value exists.
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

/// The shard under test.
struct Shard {
    lone: Lone,
    poll: Poll,
    scratch: Vec<u8>,
    now: Now,
    /// The address of its link listener.
    address: SocketAddr,
    /// The connection whose socket events are held back.
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
        lone.ctx.io.states.links.attach(poll.registry().try_clone().unwrap(), Some(socket));
        let now = Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 };
        let scratch = vec![0; 64 * 1024];
        let (unheard, kept, changes) = (None, Vec::new(), Vec::new());
        let mut shard = Shard { lone, poll, scratch, now, address, unheard, kept, changes };
        shard.pass(0);
        shard.mail(LinkMail::Begin(identity(node, 1)));
        shard
    }

    fn mail(&mut self, mail: LinkMail) {
        crate::link::dispatch::receive(&mut self.lone.ctx, mail);
    }

    fn register(&mut self, node: &str, incarnation: u64, addresses: &[SocketAddr]) {
        let (id, node, addresses) = (NodeId(0), node.into(), addresses.to_vec());
        let peer = Registered { id, node, incarnation, addresses, shards: 1 };
        let peer_table = Arc::clone(&self.lone.ctx.io.states.links.peer_table);
        self.mail(LinkMail::Roster(peer_table.set_roster(vec![peer])));
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono_us += ms * 1_000;
        self.now.wall_us += ms * 1_000;
        self.lone.ctx.io.states.links.set_now(self.now.mono_us, self.now.wall_us);
    }

    fn event(&mut self, event: &Readiness) {
        match event.token() {
            LISTENER => self.lone.ctx.io.states.links.accept(),
            Token(TOKENS..) => crate::link::intake::link_event(&mut self.lone.ctx, event, &mut self.scratch),
            token => panic!("whose? {token:?}"),
        }
    }

    /// One turn of its event loop.
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
        crate::link::intake::resume_links(&mut self.lone.ctx, &mut self.scratch);
        crate::link::dispatch::tick(&mut self.lone.ctx);
        self.lone.ctx.flush();
        for event in self.lone.control.drain(usize::MAX) {
            if let Event::Link(link::Event::Link(event)) = event {
                self.changes.push(event.change);
            }
        }
    }

    /// Runs turns until a condition holds.
    #[track_caller]
    fn until(&mut self, mut is_so: impl FnMut(&mut Shard) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "it does not come; changes so far: {:?}", self.changes);
            self.turn();
        }
    }

    /// Runs turns until only the clock could cause a change.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.turn();
        }
    }

    fn links(&self) -> &super::Links {
        &self.lone.ctx.io.states.links
    }

    fn links_mut(&mut self) -> &mut super::Links {
        &mut self.lone.ctx.io.states.links
    }

    fn count(&self, is_meant: impl Fn(&Role) -> bool) -> usize {
        self.links().keys(is_meant).len()
    }

    fn probe(&self, node: &str) -> Option<ConnKey> {
        self.links().peers[node].probe
    }

    /// True if a probe of a peer's port was accepted.
    fn is_taken(&self, node: &str) -> bool {
        let conn = self.probe(node).and_then(|key| self.links().conns.get(key));
        conn.is_some_and(|conn| conn.is_connected)
    }

    fn is_dead(&self) -> bool {
        self.changes.contains(&Change::Dead)
    }

    /// A peer that it has dialed answers and is up.
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

    /// A peer dials it and is up.
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

    /// A peer's connection ends without a goodbye, and this side has detected it.
    #[track_caller]
    fn loses(&mut self, peer: Played) {
        drop(peer);
        self.until(|shard| matches!(shard.changes.last(), Some(Change::Down("eof", _))));
    }
}

/// The peer's side of a link.
struct Played {
    socket: TcpStream,
    link: Link,
    input: Vec<u8>,
    end: Option<End>,
    /// Numbers of the responses received.
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
