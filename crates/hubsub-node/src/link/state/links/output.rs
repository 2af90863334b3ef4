//! Output of links, written once at the end of a turn; the rest waits for the next.

use super::Links;
use crate::io::metrics::ShardMetrics;
use crate::link::state::conn::Role;
use hubsub_types::ConnKey;
use hubsub_wire::link::Lane;
use std::io::{ErrorKind, Write};

/// Bytes written to one link per turn; the last write may exceed it.
const WRITE_BYTES: usize = 1024 * 1024;

impl Links {
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
