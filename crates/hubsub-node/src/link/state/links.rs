//! A shard's links: one to each registered peer that has a shard of this number (`peers`). Submodules admit
//! connections (`admission`), dial peers (`dialing`), write (`output`) and end links (`ends`).

mod admission;
mod dialing;
mod ends;
mod output;
mod peers;
mod round;
#[cfg(test)]
mod tests;

use super::asks::Asks;
use super::conn::{Conn, Role};
use super::events::Event;
use super::lead_state::LeadState;
use super::mail::News;
use super::peer_table::PeerTable;
use super::reach::Reach;
use crate::io::log_lines::Level;
use crate::io::metrics::ShardMetrics;
use crate::io::report::Report;
use crate::io::slab::Slab;
use hubsub_lead::{Beat, Timing};
use hubsub_types::{ConnKey, NodeId, ShardId};
use hubsub_wire::link::handshake::dials;
use hubsub_wire::link::{Identity, LinkLimits, Now, Roster, Status};
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
pub(crate) use peers::PeerLink;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;

pub(crate) const LISTENER: Token = Token(usize::MAX - 2);

/// The first poll token of links; client tokens are below 2^32.
pub(crate) const TOKENS: usize = 1 << 40;

/// Bytes of frames passed to another shard, per connection: live, then reads.
pub(crate) type Owed = (ShardId, ConnKey, NodeId, [usize; 2]);

pub struct Links {
    shard: u16,
    shards: u16,
    pub(crate) peer_table: Arc<PeerTable>,
    pub(crate) control: Arc<dyn Report<Event>>,
    pub(crate) metrics: Arc<ShardMetrics>,
    registry: Option<Registry>,
    listener: Option<TcpListener>,
    /// None until `Begin` arrives.
    identity: Option<Arc<Identity>>,
    /// For new links; existing ones keep theirs.
    pub(crate) limits: Arc<LinkLimits>,
    pub(crate) now: Now,
    pub(crate) conns: Slab<Conn>,
    pub(crate) peers: HashMap<Box<str>, PeerLink>,
    /// True once the registered peers are known.
    pub(crate) has_roster: bool,
    roster: Roster,
    status: Status,
    /// The leader leases of this process: on shard 0, once links have begun.
    pub(crate) leads: Option<Box<LeadState>>,
    pub(crate) lead_timing: Timing,
    /// Connections with output to write.
    pub(crate) dirty: Vec<ConnKey>,
    /// Connections with unread input.
    pub(crate) ready: Vec<ConnKey>,
    /// Connections whose credit is withheld while other shards lag.
    pub(crate) held: Vec<ConnKey>,
    /// The time of the next timer, in µs.
    wake_us: u64,
    /// When to accept again after file descriptors ran out, in µs.
    accept_at_us: Option<u64>,
    /// True if more connections may wait to be accepted.
    pub(crate) accepts_more: bool,
    /// Unauthenticated peers: accepted and not admitted yet, oldest first.
    strangers: VecDeque<ConnKey>,
    is_stopping: bool,
    /// When the next refused unauthenticated peer may be logged, in µs.
    quiet_until_us: u64,
    /// The links to other nodes for this shard's broker.
    pub(crate) reach: Reach,
    /// Changes of this shard's links, to be sent to all shards.
    pub(crate) news: Vec<News>,
    /// Credit that this shard owes for frames of other shards' links.
    pub(crate) owed: Vec<Owed>,
    /// Outstanding requests of the control plane to peers.
    pub(crate) asks: Asks,
}

impl Links {
    pub fn new(
        shard: ShardId,
        shards: u16,
        (limits, lead_timing): (LinkLimits, Timing),
        peer_table: Arc<PeerTable>,
        control: Arc<dyn Report<Event>>,
        metrics: Arc<ShardMetrics>,
    ) -> Links {
        Links {
            shard: shard.0,
            shards,
            peer_table,
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
            asks: Asks::default(),
        }
    }

    /// Sets the poll registry and the listener; nothing is accepted yet.
    pub fn attach(&mut self, registry: Registry, listener: Option<TcpListener>) {
        (self.registry, self.listener) = (Some(registry), listener);
    }

    /// The time of this turn, in µs of the node's clock.
    #[inline]
    pub fn now_us(&self) -> u64 {
        self.now.mono_us
    }

    #[inline]
    pub fn set_now(&mut self, mono_us: u64, wall_us: u64) {
        self.now = Now { mono_us, wall_us };
    }

    /// True if the next turn must not wait.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.ready.is_empty() || self.accepts_more
    }

    /// Time until the next timer, in ms; none if no timer is set.
    #[inline]
    pub fn wait_ms(&self) -> Option<u64> {
        let wake_us = self.wake_us.min(self.leads.as_ref().map_or(u64::MAX, |leads| leads.wake_us()));
        (wake_us != u64::MAX).then(|| wake_us.saturating_sub(self.now.mono_us).div_ceil(1_000))
    }

    pub fn is_empty(&self) -> bool {
        self.conns.len() == 0
    }

    /// True if credit is withheld, so the reason must be checked again.
    #[inline]
    pub fn holds_credit(&self) -> bool {
        !self.held.is_empty()
    }

    pub fn key_of(&self, token: Token) -> Option<ConnKey> {
        self.conns.key_at((token.0 - TOKENS) as u32)
    }

    // -- orders --

    /// Sets this node's identity: it accepts and dials from now on. After a new registration all links
    /// restart, because to its peers this is another process.
    pub(crate) fn begin(&mut self, identity: Arc<Identity>) {
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

    pub(crate) fn is_own(&self, name: &str) -> bool {
        self.identity.as_ref().is_some_and(|identity| *identity.node == *name)
    }

    /// Sets the controller part of this node's status: its own controller term, the term that it
    /// acknowledges, and the number of that acknowledgement.
    pub(crate) fn set_beat(&mut self, beat: Beat) {
        let Beat { controller_term, acknowledges: acknowledged_term, acknowledgement } = beat;
        self.set_status(Status { controller_term, acknowledged_term, acknowledgement, ..self.status });
    }

    pub(crate) fn set_ready(&mut self, is_ready: bool) {
        self.set_status(Status { is_ready, ..self.status });
    }

    pub(crate) fn set_classes(&mut self, classes: u64) {
        self.set_status(Status { classes, ..self.status });
    }

    /// This node's status, as sent with pings.
    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// The incarnation of this process, once links have begun; 0 for a lone node.
    pub fn run(&self) -> u64 {
        self.incarnation().unwrap_or_default()
    }

    /// The incarnations of all registered processes not known to be dead, including this one.
    pub fn runs(&self) -> HashSet<u64> {
        let mut runs = self.peer_table.runs();
        runs.extend(self.incarnation());
        runs
    }

    /// The incarnation of this process, once links have begun.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.identity.as_ref().map(|identity| identity.incarnation)
    }

    /// All other registered nodes.
    pub(crate) fn registered(&self) -> impl Iterator<Item = NodeId> {
        self.peers.values().map(|peer| peer.registered.id)
    }

    /// Sets this node's status and sends it on all links.
    fn set_status(&mut self, status: Status) {
        self.status = status;
        for key in self.keys(|role| matches!(role, Role::Up(_))) {
            self.conns.get_mut(key).expect("just listed").link.set_status(status);
        }
    }

    // -- time --

    /// Runs due timers. Without links, and between pings, this is one comparison.
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
                    self.peer_table.stands(&known.registered, self.shard, &conn.link);
                    if is_new {
                        conn.gate.set_silent(true);
                        self.roster.suspect(peer, true);
                        self.leads.iter_mut().for_each(|leads| leads.suspects(known.registered.id, true));
                    }
                }
                self.soil(key);
            }
            Err(_) if !conn.is_connected => self.failed(key, &ErrorKind::TimedOut.into()),
            Err(end) => self.ended(key, &end),
        }
    }

    /// A suspected peer is heard again.
    pub(crate) fn heard_again(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get(key) else { return };
        if let Role::Up(peer) = &conn.role
            && let Some(known) = self.peers.get(&peer.node)
        {
            conn.gate.set_silent(false);
            self.roster.suspect(peer, false);
            self.peer_table.stands(&known.registered, self.shard, &conn.link);
            self.leads.iter_mut().for_each(|leads| leads.suspects(known.registered.id, false));
        }
    }

    // -- the table --

    /// Adds a connection and registers it for polling.
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

    /// Removes a connection and deregisters it.
    pub(crate) fn remove(&mut self, key: ConnKey) -> Option<Conn> {
        let mut conn = self.conns.remove(key)?;
        self.news.extend(conn.node.take().map(|node| News::Down(node, self.shard)));
        self.asks.lost(key, &*self.control);
        if let Some(registry) = &self.registry {
            // A socket that is closed is deregistered anyway; one that moves is registered again there.
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

    /// Marks a connection for writing.
    pub(crate) fn soil(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !std::mem::replace(&mut conn.is_dirty, true)
        {
            self.dirty.push(key);
        }
    }

    /// Marks a connection for reading in the next turn.
    pub(crate) fn again(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !std::mem::replace(&mut conn.is_ready, true)
        {
            self.ready.push(key);
        }
    }
}
