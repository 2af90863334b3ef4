//! Input and output of links. A link is read a few times per turn and written once at its end, so that
//! clients of the shard get their turn; the rest waits for the next turn. Frames are parsed in the read
//! buffer; only an incomplete one is copied.
//!
//! A peer's records count as handled when the broker has them. While a shard that they may be for lags,
//! credit is withheld: the peer runs out of it and stops sending records, while its pings still arrive.

use super::conn::Role;
use super::dispatch::Credit;
use super::links::Links;
use crate::core::Core;
use crate::metrics::ShardMetrics;
use crate::rim::{Rim, TURN_BYTES};
use hubsub_types::{ConnKey, NodeId};
use hubsub_wire::link::{Lane, Next};
use mio::event::Event;
use std::io::{ErrorKind, Read, Write};

/// Reads per link and turn: a link carries the traffic of many clients.
const READS: usize = 4;

/// Bytes written to one link per turn; the last write may exceed it.
const WRITE_BYTES: usize = 1024 * 1024;

/// The capacity that an empty input buffer keeps, in bytes.
const KEPT_BYTES_MAX: usize = 64 * 1024;

impl Core {
    /// Handles readiness of a link's socket.
    pub fn link_event(&mut self, event: &Event, scratch: &mut [u8]) {
        let links = &mut self.rim.links;
        let Some(key) = links.key_of(event.token()) else { return };
        if !links.connected(key) {
            return;
        }
        if event.is_writable() {
            links.soil(key);
        }
        if event.is_read_closed()
            && let Some(conn) = links.conns.get_mut(key)
        {
            conn.is_ended = true;
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read_link(key, scratch);
        }
    }

    /// Continues to read links that the last turn left.
    pub fn resume_links(&mut self, scratch: &mut [u8]) {
        if self.rim.links.accepts() {
            self.rim.links.accept();
        }
        let mut ready = std::mem::take(&mut self.rim.links.ready);
        for key in ready.drain(..) {
            if let Some(conn) = self.rim.links.conns.get_mut(key) {
                conn.is_ready = false;
                self.read_link(key, scratch);
            }
        }
        // Its allocation is reused.
        std::mem::swap(&mut self.rim.links.ready, &mut ready);
        self.rim.links.ready.append(&mut ready);
    }

    /// Reads a bounded amount and handles its frames.
    fn read_link(&mut self, key: ConnKey, scratch: &mut [u8]) {
        // Input that arrived before its peer was admitted.
        if self.rim.links.conns.get(key).is_some_and(|conn| conn.reads() && !conn.input.is_empty()) {
            self.link_input(key, &[]);
        }
        for _ in 0..READS {
            let now = self.rim.links.now;
            let Some(conn) = self.rim.links.conns.get_mut(key).filter(|conn| conn.reads()) else { return };
            match conn.socket.read(scratch) {
                Ok(0) => return self.link_eof(key),
                Ok(_) if matches!(conn.role, Role::Closing(_)) => {}
                Ok(n) => {
                    let is_all = n < scratch.len() && !conn.is_ended;
                    if conn.link.heard(now) {
                        self.rim.links.heard_again(key);
                    }
                    self.rim.metrics.links_bytes_in_total.add(n as u64);
                    self.link_input(key, &scratch[..n]);
                    if is_all {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.link_eof(key),
            }
        }
        self.rim.links.again(key);
    }

    fn link_eof(&mut self, key: ConnKey) {
        let links = &mut self.rim.links;
        let Some(conn) = links.conns.get_mut(key) else { return };
        if let Role::Closing(_) = conn.role {
            drop(links.remove(key));
            return;
        }
        let end = conn.link.eof();
        links.ended(key, &end);
    }

    /// Appends input of a link to what it buffered.
    fn link_input(&mut self, key: ConnKey, bytes: &[u8]) {
        let Some(conn) = self.rim.links.conns.get_mut(key) else { return };
        let mut input = std::mem::take(&mut conn.input);
        let needed = conn.needed;
        if input.is_empty() {
            let used = self.take_frames(key, bytes);
            input.extend_from_slice(&bytes[used..]);
        } else {
            input.extend_from_slice(bytes);
            if input.len() >= needed {
                let used = self.take_frames(key, &input);
                input.drain(..used);
            }
        }
        if input.is_empty() && input.capacity() > KEPT_BYTES_MAX {
            input = Vec::new();
        }
        let Rim { links, mailer, .. } = &mut self.rim;
        let Some(conn) = links.conns.get_mut(key) else { return };
        conn.input = input;
        if let Role::Proved(peer, 0) = &conn.role {
            let peer = peer.clone();
            links.proved(key, peer, mailer);
        }
        links.soil(key);
        self.tell_news();
    }

    /// Handles the complete frames of the input; returns the bytes consumed.
    fn take_frames(&mut self, key: ConnKey, input: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let links = &mut self.rim.links;
            let now = links.now;
            let Some(conn) = links.conns.get_mut(key).filter(|conn| !matches!(conn.role, Role::Closing(_)))
            else {
                return input.len();
            };
            match conn.link.next(&input[used..], now) {
                Ok(Next::Incomplete(needed)) => {
                    conn.needed = needed;
                    return used;
                }
                Ok(Next::Own(bytes)) => {
                    used += bytes;
                    self.take_beat(key);
                }
                Ok(Next::Up(bytes)) => {
                    used += bytes;
                    links.answered(key);
                    self.tell_news();
                }
                Ok(Next::Proved(peer, bytes)) => {
                    // Nothing more is read before it is admitted.
                    conn.role = Role::Proved(peer, 0);
                    conn.needed = 0;
                    return used + bytes;
                }
                Ok(Next::Frame(frame, bytes)) => {
                    used += bytes;
                    let lane = frame.lane();
                    match self.link_frame(key, frame, bytes) {
                        Ok(credit) => self.rim.links.count(key, lane, bytes, credit),
                        Err(end) => {
                            let links = &mut self.rim.links;
                            let Some(conn) = links.conns.get_mut(key) else { return input.len() };
                            conn.link.bye(false, &end.to_string());
                            links.ended(key, &end);
                            return input.len();
                        }
                    }
                    if self.rim.turn_bytes() > TURN_BYTES {
                        self.flush();
                    }
                }
                Err(end) => {
                    links.ended(key, &end);
                    return input.len();
                }
            }
        }
    }
}

impl Links {
    /// Counts a handled frame. Its credit is withheld while the broker is not done with it.
    fn count(&mut self, key: ConnKey, lane: Lane, bytes: usize, credit: Credit) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match credit {
            Credit::Now => conn.link.handled(lane, bytes),
            Credit::Held => {
                if conn.held == [0; 2] {
                    self.held.push(key);
                }
                conn.held[usize::from(lane == Lane::Reads)] += bytes;
            }
            Credit::Elsewhere => {}
        }
    }

    /// A broker has handled these bytes, live and reads.
    pub(super) fn handled(&mut self, key: ConnKey, [live, reads]: [usize; 2]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.link.handled(Lane::Live, live);
        conn.link.handled(Lane::Reads, reads);
        self.soil(key);
    }

    /// Returns withheld credit, except for nodes whose messages still wait.
    pub(super) fn release(&mut self, is_behind: impl Fn(NodeId) -> bool) {
        for key in std::mem::take(&mut self.held) {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            if conn.node.is_some_and(&is_behind) {
                self.held.push(key);
                continue;
            }
            let bytes = std::mem::take(&mut conn.held);
            self.handled(key, bytes);
        }
    }

    /// Writes the output of this turn.
    pub fn flush(&mut self, metrics: &ShardMetrics) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            if let Some(conn) = self.conns.get_mut(key) {
                conn.is_dirty = false;
                self.write(key, metrics);
            }
            if let Some(conn) = self.conns.get(key) {
                conn.gate.set(conn.link.flows(Lane::Live), conn.link.flows(Lane::Reads));
            }
        }
        std::mem::swap(&mut self.dirty, &mut dirty);
        self.dirty.append(&mut dirty);
    }

    pub(super) fn write(&mut self, key: ConnKey, metrics: &ShardMetrics) {
        let conn = self.conns.get_mut(key).expect("its caller has seen it");
        if !conn.is_connected || conn.is_shut {
            return;
        }
        let mut written = 0;
        while !conn.link.output().is_empty() {
            if written >= WRITE_BYTES {
                return self.soil(key);
            }
            match conn.socket.write(conn.link.output()) {
                Ok(n) => {
                    let is_full = n < conn.link.output().len();
                    conn.link.written(n);
                    metrics.links_bytes_out_total.add(n as u64);
                    written += n;
                    if is_full {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // The peer's last frames may still be readable, and reading detects the end.
                    conn.is_shut = true;
                    conn.is_ended = true;
                    return self.again(key);
                }
            }
        }
        if let Role::Closing(_) = conn.role {
            conn.shut();
        }
    }
}
