//! Accepts connections and decides whether to admit them.
//!
//! An authenticated peer whose registration is not known here yet waits for a while: the coordinator notifies
//! nodes at different times.

use super::Links;
use crate::io::inbox::{Letter, Mailer};
use crate::io::log_lines::Level;
use crate::link::state::conn::{Conn, Handover, Role};
use crate::link::state::mail::{LinkMail, News};
use crate::link::state::reach::Way;
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::link::{Admission, Identity, Link, Peer, Refusal};
use mio::net::TcpStream;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

/// Connections accepted per turn; more wait for the next.
const ACCEPTS: usize = 64;

/// Connections of a shard that are not admitted, including refused ones that are still closing. Each may hold
/// a frame of a kilobyte for `link_handshake_ms`; there are never this many peers.
const STRANGERS_MAX: usize = 256;

/// The pause after accepting failed for lack of file descriptors, in µs.
const PAUSE_US: u64 = 100_000;

impl Links {
    /// Accepts waiting connections, up to `ACCEPTS`.
    pub fn accept(&mut self) {
        self.accepts_more = false;
        let Some(identity) = &self.identity else { return };
        let identity = Arc::clone(identity);
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((socket, address)) => self.admit(socket, address, &identity),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    self.metrics.accept_errors_total.add(1);
                    self.control.log(Level::Error, "cannot accept links", vec![("error", e.to_string())]);
                    let at_us = self.now.mono_us + PAUSE_US;
                    self.accept_at_us = Some(at_us);
                    return self.wake_by(at_us);
                }
            }
        }
        self.accepts_more = true;
    }

    fn admit(&mut self, socket: TcpStream, address: SocketAddr, identity: &Arc<Identity>) {
        crate::io::sys::prepare(&socket, 0, 0);
        let limits = Arc::clone(&self.limits);
        let link = Link::accept(Arc::clone(identity), limits, crate::io::sys::random(), self.now);
        self.insert_stranger(Conn::new(socket, link, Role::Accepted), Some(address));
    }

    /// Adds a connection that is not admitted yet. Above the limit the oldest is dropped, preferably a
    /// refused one: a peer with the secret authenticates before many others can connect.
    fn insert_stranger(&mut self, mut conn: Conn, address: Option<SocketAddr>) -> Option<ConnKey> {
        if self.strangers.len() >= STRANGERS_MAX {
            let conns = &self.conns;
            self.strangers.retain(|&key| conns.get(key).is_some_and(|conn| conn.is_stranger));
        }
        if self.strangers.len() >= STRANGERS_MAX {
            let place = |is_meant: fn(&Role) -> bool| {
                let mut keys = self.strangers.iter();
                keys.position(|&key| self.conns.get(key).is_some_and(|conn| is_meant(&conn.role)))
            };
            let is_over = place(|role| matches!(role, Role::Closing(_)));
            let oldest = is_over.or_else(|| place(|role| matches!(role, Role::Accepted)));
            let Some(key) = oldest.and_then(|place| self.strangers.remove(place)) else {
                self.log_refused("refused", "too many connections wait to be let in", address);
                return None;
            };
            self.remove(key);
            self.metrics.links_unauthenticated_total.add(u64::from(is_over.is_none()));
        }
        conn.is_stranger = true;
        let key = self.insert(conn)?;
        self.strangers.push_back(key);
        Some(key)
    }

    /// A peer has authenticated: its link belongs to this shard or another one.
    pub(crate) fn proved<M: Letter + From<LinkMail>>(
        &mut self,
        key: ConnKey,
        peer: Peer,
        mailer: &mut Mailer<M>,
    ) {
        if peer.link == self.shard {
            return self.wait_for_registration(key, peer);
        }
        if let Some(Conn { socket, link, input, .. }) = self.remove(key) {
            let to = ShardId(peer.link);
            mailer.post(to, LinkMail::from(Handover { socket, link, peer, input }));
        }
    }

    /// Takes over a link of this shard that another shard accepted.
    pub(crate) fn take_over(&mut self, handover: Handover) {
        let Handover { socket, link, peer, input } = handover;
        let mut conn = Conn::new(socket, link, Role::Accepted);
        conn.input = input;
        let address = conn.address();
        if let Some(key) = self.insert_stranger(conn, address) {
            self.wait_for_registration(key, peer);
        }
    }

    fn wait_for_registration(&mut self, key: ConnKey, peer: Peer) {
        // Earlier than the peer's own timeout, so that it gets the reason.
        let until_us = self.now.mono_us + self.limits.handshake_ms * 1_000 / 2;
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.role = Role::Proved(peer, until_us);
        self.wake_by(until_us);
        self.decide(key);
    }

    /// Admits or refuses an authenticated peer, or lets it wait.
    pub(super) fn decide(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Proved(peer, until_us) = &conn.role else { return };
        let (peer, is_late) = (peer.clone(), self.now.mono_us >= *until_us);
        let registered = self.peers.get(&peer.node).map(|known| &known.registered);
        let links = registered.map_or(0, |registered| registered.shards.min(self.shards));
        let refusal = match registered {
            _ if self.is_stopping => (Refusal::Stopping, String::new()),
            Some(known) if known.incarnation > peer.incarnation => {
                (Refusal::DuplicateNode, format!("{} registered later", peer.node))
            }
            Some(known) if known.incarnation == peer.incarnation => {
                if peer.links != links {
                    (Refusal::NoSuchLink, format!("{} links there, {links} here", peer.links))
                } else {
                    match self.roster.admit(&peer) {
                        Ok(admission) => return self.welcome(key, peer, admission),
                        Err(refusal) => (refusal, peer.node.to_string()),
                    }
                }
            }
            _ if is_late => (Refusal::Stranger, format!("{} is not registered", peer.node)),
            _ => return,
        };
        let end = conn.link.refuse(refusal.0, &refusal.1);
        self.ended(key, &end);
    }

    fn welcome(&mut self, key: ConnKey, peer: Peer, admission: Admission) {
        let (now, status) = (self.now, self.status);
        if let Admission::Replaces(_) = admission
            && let Some(old) = self.peers.get_mut(&peer.node).and_then(|known| known.link.take())
            && let Some(conn) = self.conns.get_mut(old)
        {
            let end = conn.link.bye(false, "another link has taken its place");
            let known = &self.peers[&peer.node];
            self.peer_table.ended(&known.registered, self.shard, &conn.link, &end);
            self.close(old);
        }
        let conn = self.conns.get_mut(key).expect("its peer was admitted a moment ago");
        conn.link.welcome(now);
        conn.link.set_status(status);
        conn.role = Role::Up(peer.clone());
        conn.is_stranger = false;
        conn.needed = 0;
        self.up(key, &peer);
        self.again(key);
    }

    pub(super) fn up(&mut self, key: ConnKey, peer: &Peer) {
        self.end_look(&peer.node);
        let known = self.peers.get_mut(&peer.node).expect("links are held with registered peers");
        known.link = Some(key);
        known.is_missed = false;
        known.breaker.up(self.now.mono_us);
        let conn = self.conns.get_mut(key).expect("it is up");
        self.peer_table.stands(&known.registered, self.shard, &conn.link);
        conn.node = Some(known.registered.id);
        let (incarnation, gate) = (known.registered.incarnation, Arc::clone(&conn.gate));
        let way = Way { link: self.shard, incarnation, key, gate };
        self.news.push(News::Up(known.registered.id, peer.links, way));
        self.soil(key);
        self.wake_us = 0;
    }
}
