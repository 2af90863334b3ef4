//! Dials peers, and probes whether a process listens at a peer's port. An attempt tries the peer's addresses
//! in turn; the breaker sets the delay until the next one.
//!
//! A dying process may lose its connections before its port, which accepts connections until then. So an
//! accepted probe proves nothing and stays open until the next attempt is due; if it is closed without a
//! frame, it is repeated at once.

use super::round::Round;
use super::{Links, PeerLink};
use crate::io::node_info::run_of;
use crate::link::state::conn::{Conn, Role};
use crate::link::state::mail::News;
use crate::link::state::peer_table::Registered;
use hubsub_types::ConnKey;
use hubsub_wire::link::breaker::State as BreakerState;
use hubsub_wire::link::{End, Link, Refusal};
use mio::net::TcpStream;
use std::io::{self, ErrorKind};
use std::sync::Arc;

impl PeerLink {
    /// True if the peer is to be dialed or probed once the back-off ends.
    fn is_wanting(&self) -> bool {
        (self.dials || self.is_missed) && self.link.is_none()
    }

    /// A probe has ended, whatever its result: schedules the next one.
    pub(super) fn looked(&mut self, now_us: u64) {
        (self.probe, self.round) = (None, None);
        self.wait(now_us);
    }

    /// Schedules the next probe, measured from the start of this one.
    fn wait(&mut self, now_us: u64) {
        if self.breaker.state() == BreakerState::HalfOpen {
            self.breaker.down(None, now_us);
        }
    }
}

impl Links {
    /// A dialed peer has authenticated.
    pub(crate) fn answered(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(peer) = conn.link.peer().cloned() else { return };
        let Some(known) = self.peers.get_mut(&peer.node) else { return };
        let wrong = if peer.incarnation != known.registered.incarnation {
            Some((Refusal::OtherNode, "it is another process than the one that is registered"))
        } else if peer.links != known.registered.shards.min(self.shards) {
            Some((Refusal::NoSuchLink, "it has another number of shards than it registered"))
        } else {
            None
        };
        if let Some((refusal, why)) = wrong {
            conn.link.bye(false, why);
            return self.ended(key, &End::Refused(refusal, why.into()));
        }
        conn.link.set_status(self.status);
        conn.role = Role::Up(peer.clone());
        let answering = known.round.take().and_then(|round| round.address());
        let place = known.registered.addresses.iter().position(|address| Some(*address) == answering);
        known.first = place.unwrap_or(0);
        self.up(key, &peer);
    }

    /// Dials peers and probes missed ones that are due.
    pub(super) fn dial_due(&mut self) {
        let now_us = self.now.mono_us;
        if self.identity.is_none() || self.is_stopping {
            return;
        }
        let mut due = Vec::new();
        let Links { peers, conns, wake_us, .. } = self;
        let is_taken = |key| conns.get(key).is_some_and(|conn| conn.is_connected);
        for (node, peer) in
            peers.iter_mut().filter(|(_, peer)| peer.is_wanting() && peer.probe.is_none_or(is_taken))
        {
            if peer.breaker.may_dial(now_us) {
                due.push((node.clone(), !peer.dials));
            } else if let BreakerState::Open { until_us } = peer.breaker.state() {
                *wake_us = (*wake_us).min(until_us);
            }
        }
        for (node, probes) in due {
            if let Some(key) = self.peers.get_mut(&node).and_then(|peer| peer.probe.take()) {
                self.remove(key);
            }
            self.begin_round(&node, probes);
        }
    }

    /// Starts an attempt over a peer's addresses.
    pub(super) fn begin_round(&mut self, node: &str, probes: bool) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        peer.round = Some(Round::new(&peer.registered.addresses, peer.first));
        if !probes {
            self.peer_table.dialing(&peer.registered, self.shard);
        }
        self.connect(node, probes, "it has no address".to_owned());
    }

    /// Connects to the next address; without one the attempt has failed.
    fn connect(&mut self, node: &str, probes: bool, mut why: String) {
        loop {
            let (Some(peer), Some(identity)) = (self.peers.get_mut(node), &self.identity) else { return };
            let Some(round) = &mut peer.round else { return };
            let Some(address) = round.address() else { return self.unreachable(node, probes, &why) };
            self.metrics.links_dialed_total.add(1);
            match TcpStream::connect(address) {
                Ok(socket) => {
                    let expected = Some(Box::from(node));
                    let (identity, limits) = (Arc::clone(identity), Arc::clone(&self.limits));
                    let nonce = crate::io::sys::random();
                    let link = Link::dial(identity, limits, self.shard, expected, &nonce, self.now);
                    let role = if probes { Role::Probe(node.into()) } else { Role::Dialed(node.into()) };
                    let mut conn = Conn::new(socket, link, role);
                    conn.is_connected = false;
                    let Some(key) = self.insert(conn) else {
                        return self.unreachable(node, probes, "its socket cannot be waited for");
                    };
                    let peer = self.peers.get_mut(node).expect("it is dialed");
                    *(if probes { &mut peer.probe } else { &mut peer.link }) = Some(key);
                    return;
                }
                Err(e) => {
                    round.failed(e.kind() == ErrorKind::ConnectionRefused);
                    why = format!("{e}: {address}");
                }
            }
        }
    }

    /// True once a connecting socket is connected; if not yet, it is asked again.
    pub(crate) fn connected(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        if conn.is_connected {
            return true;
        }
        let error = match conn.socket.take_error() {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => match conn.socket.peer_addr() {
                Ok(_) => {
                    conn.is_connected = true;
                    crate::io::sys::prepare(&conn.socket, 0, 0);
                    self.soil(key);
                    return self.is_wanted(key);
                }
                Err(error) if error.kind() == ErrorKind::NotConnected => return false,
                Err(error) => error,
            },
        };
        self.failed(key, &error);
        false
    }

    /// True if a new connection is to be read; a probe is, to detect its end.
    fn is_wanted(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let Role::Probe(node) = &conn.role else { return true };
        // A probe sends nothing.
        conn.is_shut = true;
        if let Some(peer) = self.peers.get_mut(node) {
            peer.wait(self.now.mono_us);
        }
        self.wake_us = 0;
        true
    }

    /// A probe was accepted and closed without a frame. Returns whether it is repeated.
    pub(super) fn looks_again(&mut self, key: ConnKey, node: &str) -> bool {
        let Some(peer) = self.peers.get_mut(node).filter(|peer| peer.probe == Some(key)) else {
            return false;
        };
        if !peer.round.as_mut().is_some_and(Round::again) {
            return false;
        }
        peer.probe = None;
        self.remove(key);
        self.connect(node, true, "it closes without a word".to_owned());
        true
    }

    /// Ends a probe whose reason is gone.
    pub(super) fn end_look(&mut self, node: &str) {
        let now_us = self.now.mono_us;
        let Some(peer) = self.peers.get_mut(node) else { return };
        if let Some(key) = peer.probe {
            peer.looked(now_us);
            self.remove(key);
        }
    }

    /// A connection attempt failed: tries the next address.
    pub(super) fn failed(&mut self, key: ConnKey, error: &io::Error) {
        let Some(conn) = self.remove(key) else { return };
        let (node, probes) = match conn.role {
            Role::Dialed(node) => (node, false),
            Role::Probe(node) => (node, true),
            _ => return,
        };
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let place = if probes { &mut peer.probe } else { &mut peer.link };
        // The result of another attempt does not count for this one.
        let Some(round) = peer.round.as_mut().filter(|_| *place == Some(key)) else { return };
        *place = None;
        let why = round.address().map_or_else(|| error.to_string(), |address| format!("{error}: {address}"));
        round.failed(error.kind() == ErrorKind::ConnectionRefused);
        self.connect(&node, probes, why);
    }

    fn unreachable(&mut self, node: &str, probes: bool, why: &str) {
        let peer = self.peers.get_mut(node).expect("it was tried a moment ago");
        let all_refuse = peer.round.take().is_some_and(|round| round.all_refuse(&peer.registered.addresses));
        if !probes {
            self.peer_table.unreachable(&peer.registered, self.shard, why);
        }
        if all_refuse && std::mem::take(&mut peer.is_missed) {
            self.peer_table.dead(&peer.registered);
            let Registered { node, incarnation, .. } = &peer.registered;
            self.news.push(News::Dead(run_of(node, *incarnation)));
        }
        if !probes || !peer.dials {
            peer.breaker.down(None, self.now.mono_us);
        }
        self.wake_us = 0;
    }
}
