//! Ends connections: notifies the peer and updates its state.

use super::Links;
use crate::io::log_lines::Level;
use crate::link::state::conn::Role;
use crate::link::state::mail::News;
use hubsub_types::ConnKey;
use hubsub_wire::link::End;
use hubsub_wire::link::breaker::State as BreakerState;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

/// The time to send the last frames and close, in µs.
const LAST_WORDS_US: u64 = 1_000_000;

/// The input read from a connection that is closed at once, so that the peer receives the last frames: bytes
/// per read, and reads.
const UNREAD_BYTES: usize = 16 * 1024;
const UNREADS: usize = 256;

/// The minimum interval between log lines about refused unauthenticated peers, in µs.
const QUIET_US: u64 = 1_000_000;

impl Links {
    /// Stops dialing and admitting; links continue. The listener stays open to refuse connections with a
    /// reason: while the port accepts, no peer considers this process dead.
    pub fn begin_to_stop(&mut self) {
        self.is_stopping = true;
    }

    /// Sends goodbye to all peers. If `is_late`, closes all connections now, after one last write.
    pub fn leave(&mut self, is_late: bool) {
        if let (Some(mut listener), Some(registry)) = (self.listener.take(), &self.registry) {
            // The socket is closed next, which also deregisters it.
            let _ = registry.deregister(&mut listener);
        }
        for key in self.keys(|role| is_late || !matches!(role, Role::Closing(_))) {
            let conn = self.conns.get_mut(key).expect("just listed");
            conn.link.bye(true, "the node stops");
            self.close(key);
            if is_late {
                self.part(key);
            }
        }
    }

    /// Closes a connection whose time is over.
    fn part(&mut self, key: ConnKey) {
        if self.conns.get(key).is_none() {
            return;
        }
        let metrics = Arc::clone(&self.metrics);
        self.write(key, &metrics);
        let Some(mut conn) = self.remove(key) else { return };
        // Closing with unread bytes would discard the goodbye.
        let mut unread = [0; UNREAD_BYTES];
        for _ in 0..UNREADS {
            if !matches!(conn.socket.read(&mut unread), Ok(1..)) {
                break;
            }
        }
    }

    /// A peer exceeds a queue limit: its link ends, with a goodbye that states the reason.
    pub(crate) fn end_crowding(&mut self, key: ConnKey, what: &'static str) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let end = End::Crowding(what);
        conn.link.bye(false, &end.to_string());
        self.ended(key, &end);
    }

    /// A connection's machine has ended it.
    pub(crate) fn ended(&mut self, key: ConnKey, end: &End) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let address = conn.address();
        match std::mem::replace(&mut conn.role, Role::Closing(u64::MAX)) {
            Role::Accepted | Role::Proved(..) => {
                if let End::Refused(refusal, text) = end {
                    let (code, text) = (refusal.code(), text.to_string());
                    self.log_refused(code, &text, address);
                } else {
                    self.metrics.links_unauthenticated_total.add(1);
                }
            }
            Role::Dialed(node) => {
                if let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.link == Some(key))
                    && let Some(round) = peer.round.take()
                {
                    // Another of its addresses may be the right one.
                    peer.first = round.place() + 1;
                }
                self.lost(key, &node, end);
            }
            Role::Up(peer) => {
                self.roster.left(&peer);
                self.lost(key, &peer.node, end);
            }
            Role::Probe(node) => {
                if *end == End::Eof && !self.is_stopping && self.looks_again(key, &node) {
                    return;
                }
                if let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.probe == Some(key)) {
                    peer.looked(self.now.mono_us);
                }
            }
            Role::Closing(_) => {}
        }
        match end {
            End::Eof => drop(self.remove(key)),
            _ => self.close(key),
        }
    }

    /// Updates a peer that has lost its link.
    fn lost(&mut self, key: ConnKey, node: &str, end: &End) {
        let Some(peer) = self.peers.get_mut(node).filter(|peer| peer.link == Some(key)) else { return };
        let was_up = matches!(peer.breaker.state(), BreakerState::Up { .. });
        peer.link = None;
        peer.breaker.down(end.refusal(), self.now.mono_us);
        let conn = self.conns.get(key).expect("it is the link's");
        self.peer_table.ended(&peer.registered, self.shard, &conn.link, end);
        peer.is_missed |= was_up && *end == End::Eof;
        // At once, because a dead node must be replaced; later probes back off like dialing.
        if peer.is_missed && peer.probe.is_none() && !self.is_stopping {
            self.begin_round(&Box::from(node), true);
        }
        self.wake_us = 0;
    }

    /// Starts a lingering close: writes the remaining output and waits for the peer to close, because closing
    /// with unread bytes would discard the last frames.
    pub(super) fn close(&mut self, key: ConnKey) {
        let until_us = self.now.mono_us + LAST_WORDS_US;
        let Some(conn) = self.conns.get_mut(key) else { return };
        if !conn.is_connected {
            drop(self.remove(key));
            return;
        }
        conn.role = Role::Closing(until_us);
        self.news.extend(conn.node.take().map(|node| News::Down(node, self.shard)));
        self.asks.lost(key, &*self.control);
        conn.input = Vec::new();
        self.soil(key);
        self.again(key);
        self.wake_by(until_us);
    }

    /// Logs a refusal by this side. Unauthenticated peers cause at most one line a second.
    pub(super) fn log_refused(&mut self, code: &str, text: &str, address: Option<SocketAddr>) {
        self.metrics.links_refused_total.add(1);
        if self.now.mono_us < self.quiet_until_us {
            return;
        }
        self.quiet_until_us = self.now.mono_us + QUIET_US;
        let mut fields = vec![("code", code.to_owned()), ("reason", text.to_owned())];
        fields.extend(address.map(|address| ("address", address.to_string())));
        self.control.log(Level::Warning, "link refused", fields);
    }
}
