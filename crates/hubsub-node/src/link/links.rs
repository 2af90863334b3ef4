//! A shard's links: one to each registered peer that has a shard of this
//! number (`peers`). What connects is let in or not (`admission`), peers are
//! dialed (`dialing`), and what is over ends (`ends`).

mod admission;
mod dialing;
mod ends;
mod peers;
mod round;
#[cfg(test)]
mod tests;

use super::board::Board;
use super::conn::{Conn, Role};
use super::dispatch::{News, Owed};
use super::leads::LeadRim;
use super::reach::Reach;
use super::{LISTENER, LinkMail, TOKENS};
use crate::control::{Control, Level};
use crate::metrics::ShardMetrics;
use crate::slab::Slab;
use hubsub_lead::Timing;
use hubsub_types::{ConnKey, NodeId, ShardId};
use hubsub_wire::link::handshake::dials;
use hubsub_wire::link::{Identity, LinkLimits, Now, Roster, Status};
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
pub(super) use peers::PeerLink;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;

/// See the module.
pub struct Links {
    shard: u16,
    /// How many shards this node has.
    shards: u16,
    pub(super) board: Arc<Board>,
    pub(super) control: Arc<Control>,
    pub(super) metrics: Arc<ShardMetrics>,
    registry: Option<Registry>,
    listener: Option<TcpListener>,
    /// From `Begin` on.
    identity: Option<Arc<Identity>>,
    /// Of links made from now on.
    pub(crate) limits: Arc<LinkLimits>,
    /// Of this turn.
    pub(super) now: Now,
    pub(super) conns: Slab<Conn>,
    pub(super) peers: HashMap<Box<str>, PeerLink>,
    /// Whether it was ever told who is registered.
    pub(super) has_roster: bool,
    roster: Roster,
    status: Status,
    /// The leads of this process: of shard 0, once links have begun.
    pub(super) leads: Option<Box<LeadRim>>,
    /// How long leads take.
    pub(super) lead_timing: Timing,
    /// Connections with output to write.
    pub(super) dirty: Vec<ConnKey>,
    /// Connections with input that was not read.
    pub(super) ready: Vec<ConnKey>,
    /// Connections whose credit is held back while other shards are behind.
    pub(super) held: Vec<ConnKey>,
    /// When something is due at the earliest, in µs.
    wake_us: u64,
    /// When to accept again after running out of descriptors, in µs.
    accept_at_us: Option<u64>,
    accepts_more: bool,
    /// Connections that were accepted and may not be let in yet, the first to come first.
    strangers: VecDeque<ConnKey>,
    is_stopping: bool,
    /// When the next line about a refused stranger may be logged, in µs.
    quiet_until_us: u64,
    /// By which links this shard's broker reaches other nodes.
    pub(super) reach: Reach,
    /// What became of this shard's links, to be told to all shards.
    pub(super) news: Vec<News>,
    /// What this shard's broker was given by links of other shards.
    pub(super) owed: Vec<Owed>,
    /// Questions of the control plane that peers have not answered.
    pub(super) asks: super::control::Asks,
}

impl Links {
    /// None yet.
    #[must_use]
    pub fn new(
        shard: ShardId,
        shards: u16,
        (limits, lead_timing): (LinkLimits, Timing),
        board: Arc<Board>,
        control: Arc<Control>,
        metrics: Arc<ShardMetrics>,
    ) -> Links {
        Links {
            shard: shard.0,
            shards,
            board,
            control,
            metrics,
            registry: None,
            listener: None,
            identity: None,
            limits: Arc::new(limits),
            now: Now::default(),
            conns: Slab::default(),
            peers: HashMap::new(),
            has_roster: false,
            roster: Roster::default(),
            status: Status::default(),
            leads: None,
            lead_timing,
            dirty: Vec::new(),
            ready: Vec::new(),
            held: Vec::new(),
            wake_us: u64::MAX,
            accept_at_us: None,
            accepts_more: false,
            strangers: VecDeque::new(),
            is_stopping: false,
            quiet_until_us: 0,
            reach: Reach::default(),
            news: Vec::new(),
            owed: Vec::new(),
            asks: super::control::Asks::default(),
        }
    }

    /// Where its sockets are waited for, and the one that listens; nothing is accepted yet.
    pub fn attach(&mut self, registry: Registry, listener: Option<TcpListener>) {
        (self.registry, self.listener) = (Some(registry), listener);
    }

    /// This turn's time, in µs of the node's clock.
    #[inline]
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now.mono_us
    }

    /// A turn begins.
    #[inline]
    pub fn set_now(&mut self, mono_us: u64, wall_us: u64) {
        self.now = Now { mono_us, wall_us };
    }

    /// Whether the next turn must not wait.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.ready.is_empty() || self.accepts_more
    }

    /// Time until something is due, in ms; none if nothing will be.
    #[inline]
    #[must_use]
    pub fn wait_ms(&self) -> Option<u64> {
        let wake_us = self.wake_us.min(self.leads_wake_us());
        (wake_us != u64::MAX).then(|| wake_us.saturating_sub(self.now.mono_us).div_ceil(1_000))
    }

    /// Whether no connection is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conns.len() == 0
    }

    /// Whether credit is held back, so that it is looked for a reason that is gone.
    #[inline]
    #[must_use]
    pub fn holds_credit(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether more connections may wait to be accepted.
    pub(super) fn accepts(&self) -> bool {
        self.accepts_more
    }

    /// The connection of a token.
    #[must_use]
    pub fn key_of(&self, token: Token) -> Option<ConnKey> {
        self.conns.key_at((token.0 - TOKENS) as u32)
    }

    // -- orders --

    /// Who this node is: it accepts and dials from now on. One that has registered anew begins
    /// again: to its peers it is another process.
    pub(super) fn begin(&mut self, identity: Arc<Identity>) {
        for peer in self.peers.values_mut() {
            peer.dials = dials(&identity.node, &peer.registered.node);
        }
        if let Some(former) = self.identity.replace(identity) {
            let is_new = self.identity.as_ref().is_some_and(|now| now.incarnation != former.incarnation);
            for key in self.keys(|role| is_new && !matches!(role, Role::Closing(_))) {
                let conn = self.conns.get_mut(key).expect("just listed");
                let end = conn.link.bye(false, "this node has registered anew");
                self.ended(key, &end);
            }
            self.wake_us = 0;
            return;
        }
        if let (Some(listener), Some(registry)) = (&mut self.listener, &self.registry)
            && let Err(error) = registry.register(listener, LISTENER, Interest::READABLE)
        {
            let fields = vec![("error", error.to_string())];
            self.control.log(Level::Error, "cannot listen for links", fields);
        }
        self.accepts_more = self.listener.is_some();
        self.wake_us = 0;
    }

    /// Whether a name is this node's.
    pub(super) fn is_own(&self, name: &str) -> bool {
        self.identity.as_ref().is_some_and(|identity| *identity.node == *name)
    }

    /// What this node says of controllers from now on: its own mandate, that of the one it heeds, and the number of its
    /// heeding.
    pub(super) fn set_beat(&mut self, mandate: u64, heeds: u64, heed: u64) {
        self.set_status(Status { mandate, heeds, heed, ..self.status });
    }

    /// Whether this node says that it is ready.
    pub(super) fn set_ready(&mut self, is_ready: bool) {
        self.set_status(Status { is_ready, ..self.status });
    }

    /// What this node says of itself.
    pub(super) fn status(&self) -> Status {
        self.status
    }

    /// Which life of this process, once links have begun; 0 of a lone node.
    pub fn run(&self) -> u64 {
        self.incarnation().unwrap_or_default()
    }

    /// Those of all processes of the cluster that are registered, as far as none is known to be gone; this one is among them.
    pub fn runs(&self) -> HashSet<u64> {
        let mut runs = self.board.runs();
        runs.extend(self.incarnation());
        runs
    }

    /// Which life of this process, once links have begun.
    pub(super) fn incarnation(&self) -> Option<u64> {
        self.identity.as_ref().map(|identity| identity.incarnation)
    }

    /// All other nodes that are registered.
    pub(super) fn registered(&self) -> impl Iterator<Item = NodeId> {
        self.peers.values().map(|peer| peer.registered.id)
    }

    /// What this node says of itself from now on.
    fn set_status(&mut self, status: Status) {
        self.status = status;
        for key in self.keys(|role| matches!(role, Role::Up(_))) {
            self.conns.get_mut(key).expect("just listed").link.set_status(status);
        }
    }

    // -- time --

    /// Does what is due. Without links, and between pings, this is one comparison.
    #[inline]
    pub fn tick(&mut self) {
        if self.now.mono_us >= self.wake_us {
            self.tick_due();
        }
    }

    fn tick_due(&mut self) {
        let now = self.now;
        self.wake_us = u64::MAX;
        if self.accept_at_us.take_if(|at_us| *at_us <= now.mono_us).is_some() {
            self.accept();
        }
        for key in self.keys(|_| true) {
            self.tick_conn(key);
        }
        self.dial_due();
        let conns = self.conns.iter().map(|(_, conn)| conn.wake_at());
        let due = conns.chain(self.accept_at_us).min().unwrap_or(u64::MAX);
        self.wake_us = self.wake_us.min(due);
    }

    fn tick_conn(&mut self, key: ConnKey) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.wake_at() <= now.mono_us) else { return };
        match &conn.role {
            Role::Closing(_) => return drop(self.remove(key)),
            Role::Proved(_, until_us) if *until_us <= now.mono_us => return self.decide(key),
            _ => {}
        }
        match conn.link.tick(now) {
            Ok(is_new) => {
                if let Role::Up(peer) = &conn.role
                    && let Some(known) = self.peers.get(&peer.node)
                {
                    let node = is_new.then(|| peer.node.clone());
                    if is_new {
                        conn.gate.set_silent(true);
                        self.roster.suspect(peer, true);
                    }
                    self.board.stands(&known.registered, self.shard, &conn.link);
                    if let Some(node) = node {
                        self.lead_suspects(&node, true);
                    }
                }
                self.soil(key);
            }
            Err(_) if !conn.is_connected => self.failed(key, &ErrorKind::TimedOut.into()),
            Err(end) => self.ended(key, &end),
        }
    }

    /// A peer that was suspected is heard again.
    pub(super) fn heard_again(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get(key) else { return };
        if let Role::Up(peer) = &conn.role
            && let Some(known) = self.peers.get(&peer.node)
        {
            let node = peer.node.clone();
            conn.gate.set_silent(false);
            self.roster.suspect(peer, false);
            self.board.stands(&known.registered, self.shard, &conn.link);
            self.lead_suspects(&node, false);
        }
    }

    // -- the table --

    /// A connection, waited for from now on.
    fn insert(&mut self, conn: Conn) -> Option<ConnKey> {
        let key = self.conns.insert(conn);
        let conn = self.conns.get_mut(key).expect("just added");
        let wake_us = conn.wake_at();
        let registry = self.registry.as_ref().expect("attached before links begin");
        let token = Token(TOKENS + key.index as usize);
        if let Err(error) =
            registry.register(&mut conn.socket, token, Interest::READABLE | Interest::WRITABLE)
        {
            self.control.log(Level::Error, "link's socket refused", vec![("error", error.to_string())]);
            self.conns.remove(key);
            return None;
        }
        self.wake_by(wake_us);
        Some(key)
    }

    /// Takes a connection out; it is waited for no more.
    pub(super) fn remove(&mut self, key: ConnKey) -> Option<Conn> {
        let mut conn = self.conns.remove(key)?;
        self.news.extend(conn.node.take().map(|node| News::Down(node, self.shard)));
        self.asks.lost(key, &self.control);
        if let Some(registry) = &self.registry {
            // What is closed next is deregistered anyway, and what moves is registered anew.
            let _ = registry.deregister(&mut conn.socket);
        }
        Some(conn)
    }

    fn keys(&self, is_meant: impl Fn(&Role) -> bool) -> Vec<ConnKey> {
        self.conns.iter().filter(|(_, conn)| is_meant(&conn.role)).map(|(key, _)| key).collect()
    }

    fn wake_by(&mut self, us: u64) {
        self.wake_us = self.wake_us.min(us);
    }

    /// A connection may have output.
    pub(super) fn soil(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !std::mem::replace(&mut conn.is_dirty, true)
        {
            self.dirty.push(key);
        }
    }

    /// A connection is to be read in the next turn.
    pub(super) fn again(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !std::mem::replace(&mut conn.is_ready, true)
        {
            self.ready.push(key);
        }
    }
}

/// An order of the control plane, or a letter of another shard.
impl Links {
    /// Acts on one.
    pub fn receive(&mut self, mail: LinkMail) {
        match mail {
            LinkMail::Begin(identity) => self.begin(identity),
            LinkMail::Roster(registered) => self.set_roster(&registered),
            LinkMail::Status(classes) => self.set_status(Status { classes, ..self.status }),
            LinkMail::Ask(ticket, node, body) => self.ask(ticket, &node, &body),
            LinkMail::Answer(node, id, body) => self.answer(&node, id, &body),
            LinkMail::Handover(handover) => self.take_over(*handover),
            LinkMail::Send(key, message) => self.send_for_other(key, &message),
            LinkMail::Handled(key, bytes) => self.handled(key, bytes),
            LinkMail::News(_) | LinkMail::Message { .. } => unreachable!("the broker takes these"),
        }
    }
}
